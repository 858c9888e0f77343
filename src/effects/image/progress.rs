//! What does the worker say? One JSON document a line on its standard output.

use serde::{Deserialize, Serialize};

/// How far an import is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// `receive`, `unpack`.
    pub stage: String,
    /// Which layer, from 1; layers already in the store are not counted.
    pub layer: usize,
    /// Of how many.
    pub layers: usize,
    /// Bytes of the archive's layer read.
    pub done_bytes: u64,
    /// Its length.
    pub total_bytes: u64,
}

/// An image that is now in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The config's digest.
    pub id: String,
    /// Full names the archive gave it.
    pub names: Vec<String>,
    /// What of its config means nothing, and what is done instead.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A line of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Line {
    /// It goes on.
    Progress(Progress),
    /// Last lines of success, one for each image.
    Image(Imported),
    /// Last line of failure.
    Error {
        /// The chain of causes in one line.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
}
