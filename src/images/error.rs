//! Errors of images, with hints for people.

use std::io;
use std::path::{Path, PathBuf};

use super::progress::Cause;

/// A failure of the image store, an archive, or the worker.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A system call failed.
    #[error("could not {doing} `{}`", path.display())]
    Io {
        /// Verb phrase: `read`, `create directory`.
        doing: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file or directory has no known format.
    #[error("`{}` is not an image archive: {why}", path.display())]
    NotAnImage {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file or directory is no bundle.
    #[error("`{}` is not a bundle: {why}", path.display())]
    NotABundle {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The bundle is not signed with the key that is demanded.
    #[error("bundle `{}` is refused: {why}", path.display())]
    Unsigned {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The data ends too early.
    #[error("{what} is truncated: it ends in the middle of {at}")]
    Truncated {
        /// Archive, blob or layer.
        what: String,
        /// The part at which it ends.
        at: String,
    },
    /// A part the image refers to is not in the archive.
    #[error("{what} is missing from the archive")]
    Missing {
        /// The part.
        what: String,
    },
    /// Data does not have its declared digest.
    #[error("{what} is damaged: its digest is {actual}, expected {expected}")]
    Digest {
        /// Which blob or layer.
        what: String,
        /// The declared digest.
        expected: String,
        /// The computed digest.
        actual: String,
    },
    /// A blob does not have its declared length.
    #[error("{what} is damaged: it has {actual} bytes, expected {expected}")]
    Size {
        /// The blob.
        what: String,
        /// The declared length.
        expected: u64,
        /// The actual length.
        actual: u64,
    },
    /// Compressed or tar data is invalid.
    #[error("{what} cannot be read: {why}")]
    Malformed {
        /// Archive, blob or layer.
        what: String,
        /// The reason.
        why: String,
    },
    /// A JSON document is invalid.
    #[error("{what} is not valid")]
    Json {
        /// The document.
        what: String,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
    /// A limit was exceeded.
    #[error("{what} is over the limit of {limit} {unit}")]
    Limit {
        /// What grew too large.
        what: String,
        /// The limit.
        limit: u64,
        /// Its unit.
        unit: &'static str,
    },
    /// The archive has no image for this machine.
    #[error("no image for {wanted}; it has {}", some(available))]
    Platform {
        /// The platform of this machine.
        wanted: String,
        /// The platforms in the archive.
        available: Vec<String>,
    },
    /// An entry of a layer must not or cannot be unpacked.
    #[error("{layer}: refused entry `{entry}`: {why}")]
    Entry {
        /// The layer.
        layer: String,
        /// Name of the entry.
        entry: String,
        /// The reason.
        why: String,
    },
    /// An entry of a layer could not be unpacked.
    #[error("{layer}: could not unpack `{entry}`")]
    Unpack {
        /// The layer.
        layer: String,
        /// Name of the entry.
        entry: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The disk is (nearly) full.
    #[error("no space left for images on `{}`: {free_bytes} bytes free, {reserve_bytes} bytes are kept free", path.display())]
    NoSpace {
        /// The store.
        path: PathBuf,
        /// Free bytes now.
        free_bytes: u64,
        /// Bytes that images never use.
        reserve_bytes: u64,
    },
    /// An invalid image name.
    #[error("`{name}` is not an image name: {why}")]
    Name {
        /// As given.
        name: String,
        /// The reason.
        why: String,
    },
    /// No such image.
    #[error("no image `{name}` in the store")]
    NotFound {
        /// As given.
        name: String,
    },
    /// An abbreviated image id fits several images.
    #[error("image id `{id}` is ambiguous: it fits {}", candidates.join(", "))]
    Ambiguous {
        /// As given.
        id: String,
        /// The ids that it matches.
        candidates: Vec<String>,
    },
    /// Containers use the image.
    #[error("image `{name}` is in use by a container")]
    InUse {
        /// As given.
        name: String,
    },
    /// A pod or manifest has the image by this name.
    #[error("image `{name}` is what a pod or a manifest asks for")]
    Wanted {
        /// As given.
        name: String,
    },
    /// A container runs from the image: its files must not go.
    #[error("image `{name}` cannot be removed, not even by force: {user} runs from it")]
    Running {
        /// As given.
        name: String,
        /// The container.
        user: String,
    },
    /// The image has several names and was asked for by id.
    #[error("image `{id}` has several names: {}", names.join(", "))]
    SeveralNames {
        /// The id.
        id: String,
        /// Its names.
        names: Vec<String>,
    },
    /// The archive was changed during the import.
    #[error("`{}` changed while it was read", path.display())]
    Changed {
        /// The archive.
        path: PathBuf,
    },
    /// The import's client is gone, so the import ends.
    #[error("the import was cancelled: its client is gone")]
    Abandoned,
    /// The stream ended early.
    #[error("the archive could not be received")]
    Received {
        /// The error of the stream.
        #[source]
        source: io::Error,
    },
    /// An archive could not be sent to its reader.
    #[error("the archive could not be written")]
    Send {
        /// The error of the stream.
        #[source]
        source: io::Error,
    },
    /// A worker could not save images. The caller says which.
    #[error("{message}")]
    Save {
        /// The chain of causes in one line.
        message: String,
        /// What to do about it.
        hint: Option<String>,
    },
    /// A worker could not pull an image. The caller says which.
    #[error("{message}")]
    Pull {
        /// The chain of causes in one line.
        message: String,
        /// What to do about it.
        hint: Option<String>,
        /// What kind of failure it is.
        cause: Cause,
    },
    /// The worker reported a failure.
    #[error("could not import `{}`: {message}", archive.display())]
    Worker {
        /// The archive.
        archive: PathBuf,
        /// The chain of causes in one line.
        message: String,
        /// What to do about it.
        hint: Option<String>,
        /// What kind of failure it is.
        cause: Cause,
    },
}

impl ImageError {
    /// What a system call failed on.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. } => Some(path),
            _ => None,
        }
    }

    /// What kind of failure it is.
    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::Pull { cause, .. } | Self::Worker { cause, .. } => *cause,
            Self::Truncated { .. }
            | Self::Missing { .. }
            | Self::Digest { .. }
            | Self::Size { .. }
            | Self::Malformed { .. }
            | Self::Json { .. } => Cause::Damaged,
            Self::NotAnImage { .. }
            | Self::Limit { .. }
            | Self::Platform { .. }
            | Self::Entry { .. } => Cause::Unfit,
            Self::NoSpace { .. } => Cause::NoSpace,
            _ => Cause::Other,
        }
    }

    /// A hint for people about a pull: it has no archive.
    pub fn hint_of_pull(&self) -> Option<String> {
        match self {
            Self::Digest { .. } | Self::Size { .. } => {
                Some("the registry, or a cache before it, has damaged data".to_owned())
            }
            Self::Missing { .. } | Self::Truncated { .. } => Some("pull it again".to_owned()),
            Self::NotAnImage { .. } => Some("the registry has something else by this name".to_owned()),
            Self::Platform { .. } => Some(
                "the image is not built for this machine; another platform is chosen by `--platform`".to_owned(),
            ),
            other => other.hint(),
        }
    }

    /// A hint for people.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotAnImage { .. } => {
                "accepted are OCI layouts (directory or tar) and `docker save` archives, plain, gzip or zstd"
            }
            Self::Unsigned { .. } => {
                "sign it when it is made: `coracle bundle create --sign-by KEY`; `--key` names the public key"
            }
            Self::NotABundle { .. } => "bundles are made by `coracle bundle create`",
            Self::Truncated { .. }
            | Self::Missing { .. }
            | Self::Digest { .. }
            | Self::Size { .. } => "copy or make the archive again",
            Self::Platform { .. } => "make the archive on or for this architecture",
            Self::NoSpace { .. } => {
                "free space, or remove unused images with `coracle image prune --all`; what is kept free follows from \
                 `imagefs.available` and `nodefs.available` of `evictionHard` and `evictionSoft`"
            }
            Self::InUse { .. } => "remove the pod first",
            Self::Wanted { .. } => {
                "remove the manifest first; `coracle image rm --force` takes the name also if a pod will need it"
            }
            Self::Running { .. } => "stop the pod first: `coracle stop POD`",
            Self::SeveralNames { .. } => {
                "remove it by each of its names, or with all of them: `coracle image rm --force ID`"
            }
            Self::NotFound { .. } => "images are listed by `coracle get images`",
            Self::Changed { .. } => "copy the file under another name and rename it when complete",
            Self::Worker { hint, .. } | Self::Pull { hint, .. } | Self::Save { hint, .. } => {
                return hint.clone();
            }
            Self::Unpack { source, .. } if source.raw_os_error() == Some(libc::EPERM) => {
                "importing needs root with CAP_CHOWN, CAP_MKNOD, CAP_SETFCAP and CAP_SYS_ADMIN"
            }
            Self::Unpack { source, .. } | Self::Io { source, .. }
                if source.raw_os_error() == Some(libc::ENOSYS) =>
            {
                "Linux 5.6 or newer is needed (`openat2`)"
            }
            Self::Io { .. }
            | Self::Abandoned
            | Self::Received { .. }
            | Self::Send { .. }
            | Self::Malformed { .. }
            | Self::Json { .. }
            | Self::Limit { .. }
            | Self::Entry { .. }
            | Self::Unpack { .. }
            | Self::Name { .. }
            | Self::Ambiguous { .. } => return None,
        };
        Some(hint.to_owned())
    }
}

/// A list in words.
fn some(list: &[String]) -> String {
    match list {
        [] => "none at all".to_owned(),
        some => some.join(", "),
    }
}

/// Converts an I/O error into one that names the operation and the path.
pub(crate) fn io<E: Into<io::Error>>(
    doing: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Io {
        doing,
        path,
        source: source.into(),
    }
}
