//! Errors of a shim. Each says what failed, on what, and why.

use std::io;
use std::path::{Path, PathBuf};

use super::protocol::FailedStep;

/// Why a shim could not be set up, or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// A system call on a path failed.
    #[error("could not {what} `{path}`")]
    Path {
        /// The operation, as a verb.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A system call on the process failed.
    #[error("could not {what}")]
    System {
        /// The operation, as a verb.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("`{path}` is not valid")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// The pod's cgroup is missing in every hierarchy.
    #[error("cgroup `{0}` exists in no hierarchy; it must be made before the shim starts")]
    NoCgroup(String),
    /// libcontainer failed before the container's program was reached.
    #[error("could not create container: {0}")]
    Create(String),
    /// A sub-path of a volume could not be bound. The sentence is the kubelet's.
    #[error("failed to prepare subPath for volumeMount \"{mount}\" of container \"{container}\"")]
    SubPath {
        /// The name of the mount.
        mount: String,
        /// The container.
        container: String,
        /// The reason.
        #[source]
        source: Box<ShimError>,
    },
    /// The program could not be executed.
    #[error("{0}")]
    Run(String),
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
}

impl ShimError {
    /// For `map_err` on an operation with a path.
    pub(super) fn path<'a>(
        what: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Path {
            what,
            path: path.to_owned(),
            source,
        }
    }

    /// For `map_err` on an operation without a path.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// The step this error belongs to.
    pub(super) fn step(&self) -> FailedStep {
        match self {
            Self::Request(_) => FailedStep::Request,
            Self::Run(_) => FailedStep::Run,
            Self::SubPath { .. } => FailedStep::Config,
            Self::Path { .. }
            | Self::System { .. }
            | Self::Json { .. }
            | Self::NoCgroup(_)
            | Self::Create(_) => FailedStep::Create,
        }
    }
}
