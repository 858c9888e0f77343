//! The worker's output: one JSON document a line on its standard output.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::bundle::Bundle;
use super::registry::WebDocument;

/// The progress of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// `receive`, `download`, `unpack`.
    pub stage: String,
    /// The number of the layer, from 1; layers already in the store are not counted.
    pub layer: usize,
    /// The number of layers.
    pub layers: usize,
    /// Bytes read of the layer in the archive.
    pub done_bytes: u64,
    /// Its length.
    pub total_bytes: u64,
    /// The digest of the layer's blob, while several are downloaded at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// All layers together, while several are downloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<Amount>,
}

/// How much of something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Bytes that are there.
    pub done_bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
}

/// An image that is now in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The config's digest.
    pub id: String,
    /// Its full names in the archive.
    pub names: Vec<String>,
    /// Warnings about settings of its config without effect.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The result of a fetch: a folder or an id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fetched {
    /// The pull's folder, ready to be imported.
    #[serde(default)]
    pub(crate) folder: Option<PathBuf>,
    /// The id of the image in the store, which is the registry's; of a bundle the digest that is known already.
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// What mirrors said that could not serve it.
    #[serde(default)]
    pub(crate) failures: Vec<String>,
    /// What the web server names the archive by.
    #[serde(default)]
    pub(crate) validator: Option<String>,
    /// Which login of all sources was accepted last, from 0; a source without any counts as one.
    #[serde(default)]
    pub(crate) login: usize,
}

/// Failures of pulls and imports that are handled in a way of their own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Any other.
    #[default]
    Other,
    /// The registry could not be asked: there is no connection to it, or it is out of order.
    Unreachable,
    /// The policy of the node does not let the image in.
    Signature,
    /// The data is not what it says it is.
    Damaged,
    /// There is nothing in the archive that this node could use.
    Unfit,
    /// It does not fit on the disk.
    NoSpace,
}

/// A line of the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Line {
    /// A progress report.
    Progress(Progress),
    /// Last lines of success, one for each image.
    Image(Imported),
    /// Last line of a successful fetch.
    Fetched(Fetched),
    /// The manifest and config of a pull are in its folder; its layers follow.
    Resolved {
        /// The pull's folder.
        folder: PathBuf,
    },
    /// A layer of a pull is complete.
    Arrived {
        /// The digest of its blob.
        digest: String,
    },
    /// Last line of a reading.
    Bundle(Box<Bundle>),
    /// Last line of a fetched document; none, if it has not changed.
    Document {
        /// The document.
        document: Option<WebDocument>,
    },
    /// First line of an archive that is being saved: its length.
    Ready {
        /// In bytes.
        bytes: u64,
    },
    /// Last line of failure.
    Error {
        /// The chain of causes in one line.
        message: String,
        /// What to do about it.
        hint: Option<String>,
        /// What kind of failure it is.
        #[serde(default)]
        cause: Cause,
    },
}
