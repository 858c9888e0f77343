//! Errors of registries, with hints for people.

use std::time::Duration;

use super::super::error::ImageError;
use super::super::progress::Cause;

/// A failure to fetch an image. No message has credentials, or the query of a URL.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// The store, a document of the image, or a name.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The worker was asked for something it cannot read.
    #[error("the request of the worker is not valid: {0}")]
    Request(String),
    /// No connection, or it broke.
    #[error("{url}: {why}")]
    Connection {
        /// Without its query.
        url: String,
        /// What went wrong.
        why: String,
        /// What to do about it.
        hint: Option<&'static str>,
    },
    /// Too little arrives.
    #[error("{url}: fewer than {least} bytes arrived in {}s", window.as_secs_f32())]
    Slow {
        /// Without its query.
        url: String,
        /// The least that must arrive.
        least: u64,
        /// In this time.
        window: Duration,
    },
    /// The registry refused.
    #[error("{url}: the server answered {status}{}", shown(details))]
    Status {
        /// Without its query.
        url: String,
        /// The status code.
        status: u16,
        /// Its own words.
        details: String,
    },
    /// The image does not exist there.
    #[error("{what} is not in the registry `{registry}`{}", shown(details))]
    NotFound {
        /// Manifest or blob.
        what: String,
        /// Its host.
        registry: String,
        /// Its own words.
        details: String,
    },
    /// Access was refused.
    #[error(
        "the registry `{registry}` refuses access to `{repository}`{}",
        shown(details)
    )]
    Denied {
        /// Its host.
        registry: String,
        /// The repository.
        repository: String,
        /// Its own words.
        details: String,
        /// Whether credentials were sent.
        with_credentials: bool,
    },
    /// The registry is busy, for longer than a worker waits.
    #[error("{url}: the server answered {status} and asks to wait {}s", wait.as_secs())]
    Busy {
        /// Without its query.
        url: String,
        /// 429 or 503.
        status: u16,
        /// What it asks for.
        wait: Duration,
    },
    /// An answer makes no sense.
    #[error("{url}: {why}")]
    Answer {
        /// Without its query.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Plain HTTP to another machine.
    #[error("`{0}` would be asked without encryption")]
    Plain(String),
    /// A manifest in the format from before 2016.
    #[error("the manifest of `{0}` is in Docker's schema 1, which is not supported")]
    Schema1(String),
    /// Something that is no image.
    #[error("`{name}` is no container image: {why}")]
    NoImage {
        /// The image's name.
        name: String,
        /// The reason.
        why: String,
    },
    /// Neither a mirror nor the registry has it.
    #[error("{last}; before that, {}", failures.join("; "))]
    Everywhere {
        /// What the last place said, the registry.
        last: Box<FetchError>,
        /// What mirrors said.
        failures: Vec<String>,
    },
    /// A certificate, key or setting on this node is unusable.
    #[error("{0}")]
    Setup(String),
}

impl FetchError {
    /// What to do about it.
    pub(super) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Image(why) => return why.hint_of_pull(),
            Self::Everywhere { last, .. } => return last.hint(),
            Self::Connection { hint, .. } => (*hint)?,
            Self::NotFound { .. } => "check the name and the tag",
            Self::Denied {
                with_credentials: false,
                ..
            } => {
                "the image does not exist, or it is private: put credentials into `/etc/coracle/auth.json`, or give \
                 them by `--authfile`"
            }
            Self::Denied { .. } => {
                "check the name, and the credentials in `/etc/coracle/auth.json` or of `--authfile`"
            }
            Self::Busy { .. } => "try again later; registries serve more to users with credentials",
            Self::Plain(_) => {
                "list the registry in the setting `coracle.plainHTTPRegistries` if that is meant"
            }
            Self::Schema1(_) => "push the image again with a current tool",
            Self::Request(_)
            | Self::Slow { .. }
            | Self::Status { .. }
            | Self::Answer { .. }
            | Self::NoImage { .. }
            | Self::Setup(_) => return None,
        };
        Some(hint.to_owned())
    }

    /// What kind of failure it is.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Connection { .. } | Self::Slow { .. } | Self::Busy { .. } => Cause::Unreachable,
            Self::Status { status, .. } if *status == 429 || *status >= 500 => Cause::Unreachable,
            Self::Everywhere { last, .. } => last.cause(),
            Self::Image(ImageError::Pull { cause, .. }) => *cause,
            Self::Image(ImageError::NoSpace { .. }) => Cause::NoSpace,
            Self::Image(_)
            | Self::Request(_)
            | Self::Status { .. }
            | Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Answer { .. }
            | Self::Plain(_)
            | Self::Schema1(_)
            | Self::NoImage { .. }
            | Self::Setup(_) => Cause::Other,
        }
    }

    /// Whether another place may do better.
    pub(super) fn is_of_the_source(&self) -> bool {
        match self {
            Self::Image(why) => matches!(
                why,
                ImageError::Digest { .. }
                    | ImageError::Json { .. }
                    | ImageError::Limit { .. }
                    | ImageError::Platform { .. }
                    | ImageError::Pull { .. }
                    | ImageError::Size { .. }
            ),
            Self::Request(_) | Self::Everywhere { .. } => false,
            Self::Connection { .. }
            | Self::Slow { .. }
            | Self::Status { .. }
            | Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Busy { .. }
            | Self::Answer { .. }
            | Self::Plain(_)
            | Self::Schema1(_)
            | Self::NoImage { .. }
            | Self::Setup(_) => true,
        }
    }

    /// Whether a blob may be continued after it: the connection broke, or too little arrived.
    pub(super) fn is_interruption(&self) -> bool {
        matches!(self, Self::Connection { .. } | Self::Slow { .. })
    }
}

fn shown(details: &str) -> String {
    match details {
        "" => String::new(),
        details => format!(": {details}"),
    }
}
