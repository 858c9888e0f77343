//! User namespaces of pods: whether the node can make them, the ranges of ids that pods have, and the way to a pod's
//! folders for its own root.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::layout::Layout;
use crate::shim::protocol::ShimConfig;
use crate::spec::{IdRange, PodUid};
use crate::sys::file::{self, Durability};
use crate::sys::user_namespace::try_mounts;

/// Ids that the node's administration has given to programs and users (subuid(5), subgid(5)).
const GIVEN: [&str; 2] = ["/etc/subuid", "/etc/subgid"];

/// The user in these files whose ids are for pods, by the kubelet's convention.
const KUBELET: &str = "kubelet";

/// A file or folder of a pod with a user namespace could not be used.
#[derive(Debug, thiserror::Error)]
pub enum UserNamespaceError {
    /// The system reported an error.
    #[error("could not {action} `{}`", path.display())]
    Access {
        /// The operation: `read`, `write`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The root of the pod's user namespace cannot come to the pod's folders.
    #[error(
        "`{}` is closed to the ids of pods with `hostUsers: false`: it needs mode 711, or another directory \
         `coracle.runDir`", path.display()
    )]
    Closed {
        /// The folder.
        path: PathBuf,
    },
    /// All ids are taken.
    #[error("no range of {count} ids is left for the pod's user namespace")]
    NoneLeft {
        /// The number of ids of a pod.
        count: u32,
    },
}

fn access<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> UserNamespaceError + 'a {
    move |source| UserNamespaceError::Access {
        action,
        path: path.to_owned(),
        source,
    }
}

/// Blocking. Why this node cannot run pods with a user namespace; `None` if it can. The state directory, with images and
/// volumes, must be on a file system that can be shown with other ids.
pub fn missing(layout: &Layout) -> Option<String> {
    let problem = match try_mounts(&layout.trial()) {
        Ok(trial) => trial.problem()?,
        Err(error) => format!("the trial failed: {error}"),
    };
    Some(format!("`{}`: {problem}", layout.root.display()))
}

/// Blocking. The range that a pod has; `None` if it has none yet.
///
/// # Errors
///
/// If its record is there and cannot be read: it may have one.
pub fn of_pod(layout: &Layout, pod: &PodUid) -> Result<Option<IdRange>, UserNamespaceError> {
    match live(layout, pod)? {
        Some(range) => Ok(Some(range)),
        None => recorded(layout, pod),
    }
}

/// Blocking. Records a pod's range, also for the time after a power cut: its volumes have its ids.
pub fn record(layout: &Layout, pod: &PodUid, range: IdRange) -> Result<(), UserNamespaceError> {
    let state = layout.pod_state(pod);
    let path = state.user_namespace();
    let bytes = serde_json::to_vec(&range).expect("plain data");
    file::make_dirs(&state.dir, 0o700).map_err(access("make", &state.dir))?;
    file::replace(&path, &bytes, 0o600, Durability::PowerCut).map_err(access("write", &path))
}

/// Blocking. The ranges that no new pod may have: those of pods that have folders, whether they run or not, and those that
/// the node's administration has given to other programs.
pub fn taken(layout: &Layout) -> Result<Vec<IdRange>, UserNamespaceError> {
    let mut pods = BTreeSet::new();
    for folder in [layout.pods_state_dir(), layout.pods_run_dir()] {
        for entry in fs::read_dir(&folder).map_err(access("read", &folder))? {
            let entry = entry.map_err(access("read", &folder))?;
            pods.extend(entry.file_name().to_str().map(PodUid::from));
        }
    }
    let mut taken: Vec<IdRange> = Vec::new();
    for pod in &pods {
        taken.extend(live(layout, pod)?);
        taken.extend(recorded(layout, pod)?);
    }
    for path in GIVEN {
        let text = file::read_text(path).unwrap_or_default();
        taken.extend(text.lines().filter_map(given));
    }
    Ok(taken)
}

/// The range of the shim, if there is one.
fn live(layout: &Layout, pod: &PodUid) -> Result<Option<IdRange>, UserNamespaceError> {
    let config: Option<ShimConfig> = read(&layout.pod_run(pod).shim_config())?;
    Ok(config.and_then(|config| config.users))
}

fn recorded(layout: &Layout, pod: &PodUid) -> Result<Option<IdRange>, UserNamespaceError> {
    read(&layout.pod_state(pod).user_namespace())
}

/// A record; `None` if there is none. One that cannot be read for another reason is an error, or its range would seem free.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, UserNamespaceError> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let bytes = match file::read_record(path) {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
        found => found.map_err(access("read", path))?,
    };
    let read = serde_json::from_slice(&bytes).map_err(io::Error::from);
    read.map(Some).map_err(access("read", path))
}

/// A line `name:first:count`.
fn given(line: &str) -> Option<IdRange> {
    let mut fields = line.trim().split(':');
    let name = fields.next().filter(|name| *name != KUBELET)?;
    let (first, count) = (fields.next()?, fields.next()?);
    (!name.is_empty() && fields.next().is_none()).then_some(())?;
    Some(IdRange {
        first: first.parse().ok()?,
        count: count.parse().ok()?,
    })
}

/// Blocking. Lets the root of a user namespace pass through these folders of its pod, to bundles and shared memory, but
/// see nothing on the way, and no other user of the node either. The outermost comes first.
pub fn open_way(layout: &Layout, root: u32, way: &[&Path]) -> Result<(), UserNamespaceError> {
    let pods = layout.pods_run_dir();
    fs::set_permissions(&pods, Permissions::from_mode(0o711)).map_err(access("open", &pods))?;
    for folder in pods.ancestors().skip(1) {
        let found = fs::metadata(folder).map_err(access("inspect", folder))?;
        if found.mode() & 0o001 == 0 {
            return Err(UserNamespaceError::Closed {
                path: folder.to_owned(),
            });
        }
    }
    for folder in way {
        file::make_dirs(folder, 0o700)
            .and_then(|()| std::os::unix::fs::chown(folder, None, Some(root)))
            .and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o710)))
            .map_err(access("open", folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_given_to_others_are_read_from_lines_with_three_fields() {
        for (line, expected) in [
            ("user:100000:65536", Some((100_000, 65_536))),
            ("1000:231072:65536", Some((231_072, 65_536))),
            ("kubelet:65536:7208960", None),
            ("user:100000", None),
            ("user:100000:65536:1", None),
            ("user:-1:65536", None),
            ("user:100000:99999999999", None),
            (":100000:65536", None),
            ("# user:1:2", Some((1, 2))),
            ("", None),
        ] {
            let found = given(line).map(|range| (range.first, range.count));
            assert_eq!(found, expected, "{line}");
        }
    }
}
