//! What became of each manifest file?

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use crate::spec::{PodKey, Wall};

/// One manifest file as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Where it lies. In JSON, bytes that are not UTF-8 are shown as U+FFFD.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What became of it.
    pub state: FileState,
    /// The pods it asks for (of a rejected file: those still running from its last good content).
    pub pods: Vec<PodKey>,
    /// Everything that is wrong: `line:column: field: message`.
    pub errors: Vec<String>,
    /// Valid, but without effect here.
    pub warnings: Vec<String>,
    /// When it was last written.
    pub modified: Option<Wall>,
}

/// A name that is not UTF-8 is still a name: without this, one such file would keep all of them from being listed.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// What became of a manifest file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileState {
    /// Its documents are wanted.
    Loaded,
    /// It has errors; what ran before still runs.
    Rejected,
    /// Another file has the same pod.
    Superseded,
}

impl FileState {
    /// As shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "Loaded",
            Self::Rejected => "Rejected",
            Self::Superseded => "Superseded",
        }
    }
}
