//! What can go wrong in a shim? Each error says what failed, on what, and why.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use super::protocol::FailedStep;

/// Why a shim could not be set up, or a request could not be done.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    /// A system call on a path failed.
    #[error("could not {what} `{path}`")]
    Path {
        /// Verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A system call on the process failed.
    #[error("could not {what}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("`{path}` is not valid")]
    Json {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The pod's cgroup is missing in every hierarchy.
    #[error("cgroup `{0}` exists in no hierarchy; it must be made before the shim starts")]
    NoCgroup(String),
    /// libcontainer failed before the container's program was reached.
    #[error("could not create container: {0}")]
    Create(String),
    /// The program could not be executed.
    #[error("{0}")]
    Run(String),
    /// The request makes no sense.
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
            Self::Path { .. }
            | Self::System { .. }
            | Self::Json { .. }
            | Self::NoCgroup(_)
            | Self::Create(_) => FailedStep::Create,
        }
    }
}

/// An error and all its causes in one line.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.ends_with(&next_text) {
            text.push_str(": ");
            text.push_str(&next_text);
        }
        cause = next.source();
    }
    text
}
