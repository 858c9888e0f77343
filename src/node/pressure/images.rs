//! Which images has this agent seen, and when were they in use? What goes is the planner's choice.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use super::super::{Node, unblock_cleaning};
use crate::effects::image::{Image, ImageError, ImageStore};
use crate::plan::Time;
use crate::plan::pressure::images::{Goal, ImageFacts, ImagePolicy, doomed};
use crate::spec::quantity::Quantity;
use crate::spec::usage::Space;

/// Images by id.
#[derive(Debug, Clone, Default)]
pub(super) struct Known(Arc<Mutex<Table>>);

/// What was removed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Removed {
    /// How many.
    pub(super) images: u32,
    /// What they had.
    pub(super) bytes: u64,
}

#[derive(Debug, Default)]
struct Table {
    /// When this agent began to look.
    since: Option<Time>,
    /// When each was first seen, and used last. Those that were there at the beginning may be old.
    images: HashMap<String, (Time, Option<Time>)>,
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no panic holds this lock")
    }

    /// These are in use now.
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

    /// These are there now; the rest is forgotten. Returns since when this agent looks.
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
    /// Beside the loop: looks which images there are, so that it is known since when.
    pub(in super::super) fn look_at_images(&self) {
        let (known, images) = (self.pressure.images.clone(), self.hands.images.clone());
        super::super::spawn(async move {
            let listed = unblock_cleaning(move || images.list().map(|all| known.note(&all)));
            if let Err(error) = listed.await {
                let error = crate::chain(&error);
                tracing::warn!("could not look which images there are: {error}, going on");
            }
        });
    }

    /// Removes images that nobody uses and no manifest asks for, or says what went wrong.
    pub(super) fn discard(
        &self,
        goal: Goal,
    ) -> impl Future<Output = Result<Removed, String>> + use<> {
        let policy = super::policy(&self.hands.sandboxes.settings.now()).images;
        let policy = policy.unwrap_or(ImagePolicy {
            min_age_ms: self.hands.sandboxes.settings.now().image_gc.min_age_ms,
            max_age_ms: 0,
            high_percent: 100,
            low_percent: 0,
        });
        let running = self.images_in_use();
        let desired = self.state.desired.iter().flat_map(|d| d.pods.values());
        let pods = self.state.pods.values().map(|pod| &pod.spec);
        let containers = desired.chain(pods).flat_map(|pod| pod.all_containers());
        let wanted: BTreeSet<String> = containers.map(|c| c.image_name.to_string()).collect();
        let (known, images) = (self.pressure.images.clone(), self.hands.images.clone());
        async move {
            let work = move || remove(&images, &known, (running, &wanted), (&policy, goal));
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
    (policy, goal): (&ImagePolicy, Goal),
) -> Result<Removed, ImageError> {
    for name in wanted {
        used.extend(store.lookup(name)?.map(|image| image.id));
    }
    let images = store.list()?;
    let since = known.note(&images);
    let now = super::super::now().time;
    let facts = known.facts(&images, &used);
    let ids = doomed(&facts, policy, goal, (since, now));
    if ids.is_empty() {
        return Ok(Removed::default());
    }
    let removed = store.discard(&ids)?;
    for id in &removed.deleted {
        let image = images.iter().find(|image| image.id == *id);
        let names = image.map(|image| image.names.join(", "));
        tracing::info!(
            "removed image {id} ({}), which nobody used",
            names.unwrap_or_default()
        );
    }
    Ok(Removed {
        images: u32::try_from(removed.deleted.len()).unwrap_or(u32::MAX),
        bytes: removed.freed_bytes,
    })
}

/// The kubelet's sentence about a disk on which images make no room.
pub(super) fn not_enough(space: Space, freed: u64) -> String {
    let percent = ImagePolicy::used_percent(space);
    let size = Quantity::bytes(space.capacity);
    format!(
        "Insufficient free disk space on the node's image filesystem ({percent}% of {size} used). Failed to free sufficient \
         space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, \
         logs, volumes, or other data."
    )
}
