//! The format of the state on disk, of all files together. The root and the runtime directory each have a file that
//! names it. An agent refuses state of a newer format instead of misreading it; the number grows whenever an agent of
//! the version before could not go on with what this one writes.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::start::StartError;
use crate::layout::{FORMAT_FILE, Layout, STATE_FORMAT};
use crate::sys::file::{self, Durability};

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    format: u32,
    /// The version of coracle that first wrote this format here.
    version: String,
}

/// Refuses newer state, before anything is written; then marks the directories.
pub(super) fn settle(layout: &Layout) -> Result<(), StartError> {
    let places = [
        (&layout.root, Durability::PowerCut),
        (&layout.run_dir, Durability::Process),
    ];
    let mut old = Vec::new();
    for (folder, durability) in places {
        let path = folder.join(FORMAT_FILE);
        match read(&path)? {
            Some(mark) if mark.format > STATE_FORMAT => {
                return Err(StartError::NewerState {
                    path,
                    format: mark.format,
                    version: mark.version,
                    folder: folder.clone(),
                });
            }
            Some(mark) if mark.format == STATE_FORMAT => {}
            Some(_) | None => old.push((path, durability)),
        }
    }
    let mark = Mark {
        format: STATE_FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let bytes = serde_json::to_vec(&mark).expect("plain data");
    for (path, durability) in old {
        file::replace(&path, &bytes, 0o644, durability).map_err(failed("write", &path))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Option<Mark>, StartError> {
    let bytes = match file::read_record(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    // A newer version may say more in it.
    Ok(serde_json::from_slice(&bytes)
        .inspect_err(|e| tracing::warn!("`{}` is broken ({e}), writing it again", path.display()))
        .ok())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::Access {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_state_is_refused_and_nothing_is_overwritten() {
        let dir = std::env::temp_dir().join(format!("coracle-format-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let layout = Layout {
            root: dir.join("root"),
            run_dir: dir.join("run"),
            ..Layout::default()
        };
        for folder in [&layout.root, &layout.run_dir] {
            std::fs::create_dir_all(folder).unwrap();
        }
        settle(&layout).unwrap();
        settle(&layout).unwrap();
        let (root, run) = (
            layout.root.join(FORMAT_FILE),
            layout.run_dir.join(FORMAT_FILE),
        );
        let wanted = format!(
            r#"{{"format":{STATE_FORMAT},"version":"{}"}}"#,
            env!("CARGO_PKG_VERSION")
        );
        for (path, newer) in [
            (&root, r#"{"format":77,"version":"9.1.0","more":1}"#),
            (&run, r#"{"format":78,"version":"9"}"#),
        ] {
            std::fs::remove_file(&root).unwrap();
            std::fs::write(path, newer).unwrap();
            let error = settle(&layout).unwrap_err();
            let StartError::NewerState { path: named, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(named, path);
            assert_eq!(std::fs::read_to_string(path).unwrap(), newer);
            // The other one is not touched either.
            assert_eq!(root.exists(), path == &root);
            std::fs::write(&root, "broken").unwrap();
            let _ = std::fs::remove_file(&run);
            settle(&layout).unwrap();
            assert_eq!(std::fs::read_to_string(&root).unwrap(), wanted);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
