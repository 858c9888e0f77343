//! Volumes of files from ConfigMaps, Secrets and the pod itself. They lie on one tmpfs of the node, kept out of swap
//! where the kernel can, and cost no writes to disk.

use std::ops::Bound;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use super::files::{self, Content, Files};
use super::{Sources, VolumeError};
use crate::spec::{DownwardFile, KeyFile, Object, ObjectKind, PodSpec, Projected, Projection};
use crate::sys::file;

/// Held while a volume is written. Two writers would take each other's folder for one that a crash left, and the later
/// one must have the later documents: they are read under this lock.
static WRITING: Mutex<()> = Mutex::new(());

/// Makes the volume, and writes its files if they are not as wanted.
pub(super) fn ensure(
    root: &Path,
    volume: &Projected,
    pod: &PodSpec,
    sources: &Sources<'_>,
) -> Result<PathBuf, VolumeError> {
    // Only root may enter the folders above.
    let parent = root.parent().expect("a volume lies in a pod's folder");
    for (folder, mode) in [(parent, 0o700), (root, 0o755)] {
        file::make_dirs(folder, mode).map_err(|source| VolumeError::Access {
            action: "make",
            path: folder.to_owned(),
            source,
        })?;
    }
    refresh(root, volume, pod, sources)
}

/// Writes the files of a volume that is there, if they are not as wanted.
pub(super) fn refresh(
    root: &Path,
    volume: &Projected,
    pod: &PodSpec,
    sources: &Sources<'_>,
) -> Result<PathBuf, VolumeError> {
    let _turn = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let wanted = wanted(volume, pod, sources)?;
    files::write(root, &wanted, pod.fs_group).map_err(|source| VolumeError::Access {
        action: "write the files of",
        path: root.to_owned(),
        source,
    })?;
    Ok(root.to_owned())
}

/// The files that the volume is to have.
fn wanted(volume: &Projected, pod: &PodSpec, sources: &Sources<'_>) -> Result<Files, VolumeError> {
    let mut files = Files::new();
    let configuration = sources.configuration.now();
    for source in &volume.sources {
        match source {
            Projection::Keys {
                kind,
                name,
                items,
                optional,
            } => {
                let found = configuration.get(*kind, &pod.key.namespace, name);
                match found {
                    Some(object) => {
                        let items = (items.as_deref(), *optional);
                        keys(object, items, volume.default_mode, &mut files)?;
                    }
                    None if *optional => {}
                    None => {
                        let (kind, name) = (*kind, name.clone());
                        return Err(VolumeError::NotFound { kind, name });
                    }
                }
            }
            Projection::Downward(list) => {
                for file in list {
                    let content = downward(file, volume.default_mode, pod, sources);
                    add(&mut files, &file.path, content)?;
                }
            }
        }
    }
    Ok(files)
}

fn keys(
    object: &Object,
    (items, optional): (Option<&[KeyFile]>, bool),
    default_mode: u32,
    files: &mut Files,
) -> Result<(), VolumeError> {
    let Some(items) = items else {
        for (key, value) in object.data() {
            let content = Content {
                bytes: value.to_vec(),
                mode: default_mode,
            };
            add(files, key, content)?;
        }
        return Ok(());
    };
    for item in items {
        let Some(value) = object.value(&item.key) else {
            if optional {
                continue;
            }
            return Err(VolumeError::NoKey {
                kind: object.kind(),
                key: item.key.clone(),
            });
        };
        let content = Content {
            bytes: value.to_vec(),
            mode: item.mode.unwrap_or(default_mode),
        };
        add(files, &item.path, content)?;
    }
    Ok(())
}

fn downward(
    file: &DownwardFile,
    default_mode: u32,
    pod: &PodSpec,
    sources: &Sources<'_>,
) -> Content {
    let text = sources.node.value(&file.value, pod, &[]);
    Content {
        bytes: text.unwrap_or_default().into_bytes(),
        mode: file.mode.unwrap_or(default_mode),
    }
}

/// Adds a file in the place of one of an earlier source. A path cannot be a file and a folder.
fn add(files: &mut Files, path: &str, content: Content) -> Result<(), VolumeError> {
    let plain = Path::new(path).components();
    let plain: PathBuf = plain
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    // What is below a path comes right after it.
    let after = (Bound::Excluded(&plain), Bound::Unbounded);
    let mut after = files.range::<PathBuf, _>(after);
    let is_folder = after
        .next()
        .is_some_and(|(next, _)| next.starts_with(&plain));
    let above = |folder: &Path| folder != plain && files.contains_key(folder);
    if is_folder || plain.ancestors().any(above) {
        return Err(VolumeError::FileAndFolder {
            path: path.to_owned(),
        });
    }
    files.insert(plain, content);
    Ok(())
}

/// How the kubelet names a kind in messages.
pub(super) fn word(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::ConfigMap => "configmap",
        ObjectKind::Secret => "secret",
        ObjectKind::ServiceAccount => "serviceaccount",
        ObjectKind::Namespace => "namespace",
        ObjectKind::PersistentVolumeClaim => "persistentvolumeclaim",
        ObjectKind::PersistentVolume => "persistentvolume",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_files_win_but_no_file_is_a_folder() {
        let mut files = Files::new();
        let content = |text: &str| Content {
            bytes: text.as_bytes().to_vec(),
            mode: 0o644,
        };
        add(&mut files, "a", content("one")).expect("first");
        add(&mut files, "./a", content("two")).expect("second");
        assert_eq!(files[Path::new("a")].bytes, b"two");
        assert!(add(&mut files, "a/b", content("")).is_err());
        add(&mut files, "c//d", content("")).expect("folder");
        assert!(add(&mut files, "c", content("")).is_err());
        // Names that merely begin alike do not conflict.
        for path in ["c-", "c.d", "cc", "c/d/e", "c/"] {
            let fits = add(&mut files, path, content("")).is_ok();
            assert_eq!(fits, !path.contains('/'), "{path}");
        }
        assert_eq!(files.len(), 5);
    }
}
