//! The images seen by this agent, and when they were in use. The planner decides which are removed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use super::super::{Node, unblock_cleaning};
use crate::images::{Image, ImageError, ImageStore};
use crate::plan::pressure::images::{Goal, ImageFacts, ImagePolicy, doomed};
use crate::types::Time;
use crate::types::quantity::Quantity;
use crate::types::usage::Space;

/// Images by id.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Arc<Mutex<Table>>);

/// The result of a removal.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Removed {
    /// The number of images.
    pub(super) images: u32,
    /// Their size in bytes.
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
struct Table {
    /// When this agent began to watch.
    since: Option<Time>,
    /// When each was first seen, and last used. Those that existed at the beginning may be older.
    images: HashMap<String, (Time, Option<Time>)>,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no panic holds this lock")
    }

    /// Records that these are in use now.
    pub(super) fn note_used(&self, used: &BTreeSet<String>) {
        let now = super::super::now().time;
        let mut table = self.lock();
        for id in used {
            let known = table.images.get_mut(id.as_str());
            match known {
                Some((_, last_used)) => *last_used = Some(now),
                None => {
                    table.images.insert(id.clone(), (Time(0), Some(now)));
                }
            }
        }
    }

    /// Records the existing images and forgets the rest. Returns since when this agent watches.
    fn note(&self, images: &[Image]) -> Time {
        let now = super::super::now().time;
        let mut table = self.lock();
        let first = match table.since {
            None => Time(0),
            Some(_) => now,
        };
        let since = *table.since.get_or_insert(now);
        let mut kept = HashMap::new();
        for image in images {
            let known = table.images.remove(&image.id);
            kept.insert(image.id.clone(), known.unwrap_or((first, None)));
        }
        table.images = kept;
        since
    }

    fn facts(&self, images: &[Image], used: &BTreeSet<String>) -> Vec<ImageFacts> {
        let table = self.lock();
        let facts = images.iter().map(|image| {
            let known = table.images.get(&image.id).copied();
            let (first_seen, last_used) = known.unwrap_or_default();
            ImageFacts {
                id: image.id.clone(),
                size_bytes: image.size_bytes,
                used: used.contains(&image.id),
                preloaded: image.preloaded,
                first_seen,
                last_used,
            }
        });
        facts.collect()
    }
}

impl Node {
    /// Beside the loop: lists the images, so that their first-seen time is known.
    pub(in super::super) fn look_at_images(&self) {
        let (known, images) = (self.pressure.images.clone(), self.tools.images.clone());
        super::super::spawn(async move {
            let listed = unblock_cleaning(move || images.list().map(|all| known.note(&all)));
            if let Err(error) = listed.await {
                let error = crate::chain(&error);
                tracing::warn!("could not list the images: {error}, going on");
            }
        });
    }

    /// Removes images that no container uses and no manifest names, or reports the error.
    pub(super) fn discard(
        &self,
        goal: Goal,
        short: bool,
    ) -> impl Future<Output = Result<Removed, String>> + use<> {
        let policy = self.tools.sandboxes.settings.now().image_gc;
        let running = self.images_kept();
        let wanted = self.images_named();
        let (known, images) = (self.pressure.images.clone(), self.tools.images.clone());
        async move {
            let work = move || remove(&images, &known, (running, &wanted), (&policy, goal, short));
            let removed = unblock_cleaning(work).await;
            removed.map_err(|error| crate::chain(&error))
        }
    }
}

/// Blocking.
fn remove(
    store: &ImageStore,
    known: &Known,
    (mut used, wanted): (BTreeSet<String>, &BTreeSet<String>),
    (policy, goal, short): (&ImagePolicy, Goal, bool),
) -> Result<Removed, ImageError> {
    for name in wanted {
        // What cannot be looked up is no image that could be removed by that name.
        used.extend(store.lookup(name).ok().flatten().map(|image| image.id));
    }
    let images = store.list()?;
    let since = known.note(&images);
    let now = super::super::now().time;
    let facts = known.facts(&images, &used);
    let ids = doomed(&facts, policy, goal, (since, now));
    if ids.is_empty() && goal == Goal::Age {
        return Ok(Removed::default());
    }
    // Abandoned downloads go with them, and also where no image can.
    let removed = store.discard(&ids, &used, short)?;
    for id in &removed.deleted {
        let image = images.iter().find(|image| image.id == *id);
        let names = image.map(|image| image.names.join(", "));
        tracing::info!("removed unused image {id} ({})", names.unwrap_or_default());
    }
    Ok(Removed {
        images: u32::try_from(removed.deleted.len()).unwrap_or(u32::MAX),
        bytes: removed.freed_bytes,
    })
}

/// The kubelet's message when removing images does not free enough space.
pub(super) fn not_enough(space: Space, freed: u64) -> String {
    let percent = ImagePolicy::used_percent(space);
    let size = Quantity::bytes(space.capacity);
    format!(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {size} used). Failed to free sufficient \
         space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, \
         logs, volumes, or other data."
    )
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn abandoned_downloads_are_removed_where_no_image_can_be_but_not_for_their_age_alone() {
        let dir = std::env::temp_dir().join(format!("coracle-abandoned-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let store = ImageStore::open(&dir).unwrap();
        let (old, new) = (dir.join("pulls/old"), dir.join("pulls/new"));
        for (goal, stays) in [
            (Goal::Age, true),
            (Goal::Bytes(1), false),
            (Goal::All, false),
        ] {
            fs::create_dir_all(&old).unwrap();
            fs::create_dir_all(&new).unwrap();
            let long_ago = SystemTime::UNIX_EPOCH;
            File::open(&old).unwrap().set_modified(long_ago).unwrap();
            let nothing = (BTreeSet::new(), &BTreeSet::new());
            let policy = ImagePolicy {
                high_percent: 85,
                low_percent: 80,
                min_age_ms: 0,
                max_age_ms: 0,
            };
            let removed =
                remove(&store, &Known::default(), nothing, (&policy, goal, true)).unwrap();
            assert_eq!(removed.images, 0);
            assert_eq!(old.exists(), stays, "{goal:?}");
            assert!(new.exists(), "{goal:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
