//! Changes of a bundle's state, one at a time.

use std::path::Path;

use super::disk::{Folder, State};
use super::{ChangeError, name_images};
use crate::images::ImageStore;
use crate::node::execute::Tools;
use crate::node::unblock;

impl Tools {
    /// Changes a bundle's state by `change`, which sees it as it is on disk. Returns the new state, or an error at once while
    /// another change is under way: an import may hold the turn for long, and the caller tries again.
    pub(super) async fn change_bundle_now(
        &self,
        name: &str,
        change: impl FnOnce(&Folder, Option<State>) -> Result<State, ChangeError> + Send + 'static,
    ) -> Result<State, ChangeError> {
        match self.bundles.turn.try_lock() {
            Some(_turn) => self.change_in_turn(name, change).await,
            None => Err(ChangeError::Busy(name.to_owned())),
        }
    }

    /// The same for one who has the turn.
    pub(super) async fn change_in_turn(
        &self,
        name: &str,
        change: impl FnOnce(&Folder, Option<State>) -> Result<State, ChangeError> + Send + 'static,
    ) -> Result<State, ChangeError> {
        let (bundles, images) = (self.config.layout.manifest_bundles(), self.images.clone());
        let name = name.to_owned();
        let (changed, moved) = unblock(move || on_disk(&bundles, &images, &name, change)).await;
        // Otherwise there is nothing to look at, and what failed would be tried again at once.
        if moved {
            self.bundles_changed().await;
        }
        changed
    }
}

/// Makes a change on disk. Also returns whether the loop has to look: after a success, and after a failure that came too
/// late. Blocking.
fn on_disk(
    bundles: &Path,
    images: &ImageStore,
    name: &str,
    change: impl FnOnce(&Folder, Option<State>) -> Result<State, ChangeError>,
) -> (Result<State, ChangeError>, bool) {
    let folder = Folder::of(bundles, name);
    let disk = |source| ChangeError::Disk {
        name: name.to_owned(),
        source,
    };
    let unread = |source| ChangeError::Unread {
        name: name.to_owned(),
        source,
    };
    let before = match folder.state() {
        Ok(before) => before,
        Err(why) => return (Err(unread(why)), false),
    };
    let make = || {
        let state = change(&folder, before.clone())?;
        let record = folder.record(state.current).map_err(unread)?;
        if before.as_ref() != Some(&state) {
            folder.commit(&state).map_err(disk)?;
        }
        name_images(images, &record).map_err(|source| ChangeError::Images {
            name: name.to_owned(),
            source,
        })?;
        Ok(state)
    };
    let made = make();
    if let Ok(state) = &made
        && let Err(error) = folder.clean(state)
    {
        tracing::warn!("could not remove former generations of bundle `{name}`: {error}, going on");
    }
    let moved = made.is_ok() || folder.state().ok() != Some(before);
    (made, moved)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::disk::Record;
    use super::*;

    #[test]
    fn the_loop_looks_only_where_something_has_changed() {
        let dir = std::env::temp_dir().join(format!("coracle-change-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let images = ImageStore::open(&dir.join("images")).unwrap();
        let bundles = dir.join("bundles");
        let folder = Folder::of(&bundles, "site");
        let in_force = |current| State {
            current,
            ..State::default()
        };
        folder.write(None, &Record::default(), &[]).unwrap();
        folder.commit(&in_force(1)).unwrap();
        let change = |to: Result<u64, ChangeError>| {
            let (made, moved) = on_disk(&bundles, &images, "site", |folder, before| {
                let before = before.expect("in force");
                let to = to?;
                if to != before.current {
                    let record = Record::default();
                    assert_eq!(folder.write(Some(&before), &record, &[]).unwrap(), to);
                }
                Ok(in_force(to))
            });
            (made.is_ok(), moved)
        };
        let refused = Err(ChangeError::Missing("site".to_owned()));
        assert_eq!(change(refused), (false, false), "nothing was tried");
        assert_eq!(change(Ok(1)), (true, true), "images have got their names");
        // In the place of the file that becomes the state.
        let in_the_way = dir.join("bundles/site/.state.json.tmp");
        fs::create_dir(&in_the_way).unwrap();
        assert_eq!(change(Ok(2)), (false, false), "the state was not written");
        fs::remove_dir(in_the_way).unwrap();
        fs::remove_dir_all(dir.join("images")).unwrap();
        assert_eq!(change(Ok(3)), (false, true), "the names were not given");
        assert_eq!(folder.state().unwrap(), Some(in_force(3)));
        fs::remove_dir_all(&dir).unwrap();
    }
}
