//! Status of manifest files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use crate::spec::PodKey;
use crate::types::{Gather, Wall};

/// A manifest file as the node sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// Path. In JSON, bytes that are not UTF-8 are shown as U+FFFD.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// State.
    pub state: FileState,
    /// Its pods (of a rejected file: those still running from its last valid content).
    pub pods: Vec<PodKey>,
    /// The number of its documents by kind, those of lists included; empty while it is not known.
    #[serde(default)]
    pub documents: DocumentCounts,
    /// Errors: `line:column: field: message`.
    pub errors: Vec<String>,
    /// Warnings: valid, but without effect here.
    pub warnings: Vec<String>,
    /// Modification time.
    pub modified: Option<Wall>,
}

/// How many documents of each kind there are. A map would take several times the memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<String, usize>", into = "BTreeMap<String, usize>")]
pub struct DocumentCounts(pub Box<[(String, usize)]>);

impl From<BTreeMap<String, usize>> for DocumentCounts {
    fn from(map: BTreeMap<String, usize>) -> Self {
        Self(map.into_iter().collect())
    }
}

impl From<DocumentCounts> for BTreeMap<String, usize> {
    fn from(counts: DocumentCounts) -> Self {
        counts.0.into_iter().gather()
    }
}

/// All manifest files, for clients.
#[derive(Debug, Serialize)]
pub(crate) struct Files {
    /// Whether they have been read since the agent's start.
    pub(crate) read: bool,
    pub(crate) items: Vec<FileStatus>,
}

/// Serializes lossily: otherwise a single name that is not UTF-8 would make the whole list fail.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// State of a manifest file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileState {
    /// Its documents are in force.
    Loaded,
    /// Something else is in force of a document than it says, for its pods were not ready in time, or a client undid it.
    RolledBack,
    /// It has errors; its last valid content stays in force.
    Rejected,
    /// Another file defines the same pod.
    Superseded,
}

impl FileState {
    /// As shown to users.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "Loaded",
            Self::RolledBack => "RolledBack",
            Self::Rejected => "Rejected",
            Self::Superseded => "Superseded",
        }
    }
}
