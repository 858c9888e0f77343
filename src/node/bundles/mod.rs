//! Bundles: sets of manifests that are replaced as a whole, with the images that they need. [`disk`] has them on disk,
//! [`generations`] says which are kept, [`apply`] puts a new generation in force, [`trial`] takes one back whose pods do not become ready, [`poll`] looks for new
//! ones. One change at a time, each decided by one rename.

mod apply;
mod change;
pub(super) mod disk;
mod fetch;
mod generations;
mod poll;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use smol::channel::{Receiver, Sender, bounded};

use super::commands::{Reply, answer};
use super::execute::Tools;
use super::{Input, Node, unblock};
use crate::api::{CommandError, CommandErrorKind};
use crate::config::BundlePoll;
use crate::images::{ImageError, ImageStore};
use crate::plan::{Event, NodeFact, status};
use crate::spec::Pins;
use crate::types::Time;

use disk::{Clash, Folder, Record, State};

pub(super) use apply::apply;
pub(super) use poll::poll;

/// What changes of bundles go through; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    /// Held during a change.
    turn: Arc<smol::lock::Mutex<()>>,
    changed: Sender<()>,
    /// A message when other manifests may be in force.
    pub(super) changes: Receiver<()>,
}

impl Desk {
    /// Has the manifests read again.
    pub(super) fn read_again(&self) {
        let _ = self.changed.try_send(());
    }
}

impl Default for Desk {
    fn default() -> Self {
        let (changed, changes) = bounded(1);
        Self {
            turn: Arc::default(),
            changed,
            changes,
        }
    }
}

/// A bundle, as it is on disk.
#[derive(Debug, Clone)]
pub(super) struct Known {
    state: State,
    current: Record,
    previous: Option<Record>,
    before_previous: Option<Record>,
}

/// All bundles by name.
pub(super) type All = BTreeMap<String, Known>;

/// What the loop knows of bundles.
#[derive(Debug, Default)]
pub(super) struct Bundles {
    all: All,
    boot: String,
    /// Clients that wait for the end of the trial of a generation.
    waiting: Vec<(String, u64, Sender<Value>)>,
    /// Those about to be changed because of their trial, and when to try again if that fails.
    busy: BTreeMap<String, Time>,
    /// Generations whose failure has been reported.
    reported: BTreeSet<(String, u64)>,
    /// Since when all pods of a generation on trial are ready.
    steady: BTreeMap<(String, u64), Time>,
    /// When to look at trials again.
    wake: Option<Time>,
    /// The source that is polled, and what the last look at it has brought.
    poll: Option<Value>,
}

impl Known {
    /// The generations that are kept, the newest first; without those whose records could not be read.
    fn records(&self) -> impl Iterator<Item = &Record> {
        let former = self.previous.iter().chain(&self.before_previous);
        std::iter::once(&self.current).chain(former)
    }
}

impl Bundles {
    pub(super) fn new(all: All, wanted: &BundlePoll) -> Self {
        let polled = Some(&wanted.source).filter(|source| !source.is_empty());
        Self {
            all,
            poll: polled.map(|source| json!({ "source": fetch::shown(source) })),
            boot: super::boot::id(),
            ..Self::default()
        }
    }

    /// The images of all generations that are kept: they must stay in the store.
    pub(super) fn images(&self) -> impl Iterator<Item = &str> {
        let records = self.all.values().flat_map(Known::records);
        let images = records.flat_map(|record| &record.images);
        images.map(|image| image.id.as_str())
    }

    pub(super) fn next_wake(&self) -> Option<Time> {
        self.wake
    }

    /// For `coracle bundle ls`.
    fn show(&self) -> Value {
        let generation = |number: u64, record: &Record| {
            let images: Vec<&str> = record
                .images
                .iter()
                .flat_map(|i| &i.names)
                .map(String::as_str)
                .collect();
            json!({
                "generation": number, "digest": record.digest, "source": record.source,
                "applied": (record.applied.0 > 0).then(|| status::time(record.applied)),
                "files": record.files, "images": images,
            })
        };
        let items = self.all.iter().map(|(name, known)| {
            let state = &known.state;
            let mut item =
                json!({ "name": name, "current": generation(state.current, &known.current) });
            if let Some((number, record)) = state.previous.zip(known.previous.as_ref()) {
                item["previous"] = generation(number, record);
            }
            if let Some((number, record)) =
                state.before_previous.zip(known.before_previous.as_ref())
            {
                item["beforePrevious"] = generation(number, record);
            }
            if let Some(trial) = &state.trial {
                item["trial"] = json!({ "withinSeconds": trial.within_ms / 1000 });
            }
            if let Some(failed) = &state.failed {
                item["failed"] = json!({ "generation": failed.generation, "digest": failed.digest,
                                         "message": failed.why });
            }
            item
        });
        json!({ "items": items.collect::<Vec<_>>(), "polled": self.poll })
    }
}

/// Reads all bundles, and brings the names of their images to what is in force: a power cut may have come between.
/// Blocking.
pub(super) fn load(bundles: &Path, images: &ImageStore) -> All {
    let warn = |error: &dyn std::error::Error| {
        tracing::warn!(
            "could not read bundles below `{}`: {}, going on",
            bundles.display(),
            crate::chain(error)
        );
    };
    let names = disk::names(bundles).unwrap_or_else(|error| {
        warn(&error);
        BTreeSet::new()
    });
    let mut all = All::new();
    for name in names {
        match read(&Folder::of(bundles, &name)) {
            Ok(Some(known)) => {
                if let Err(error) = name_images(images, &known.current) {
                    warn(&error);
                }
                all.insert(name, known);
            }
            Ok(None) => {}
            Err(error) => warn(&error),
        }
    }
    all
}

/// Removes what a crash or a power cut left of changes. For the agent's start, when none is under way. Blocking.
pub(super) fn remove_leftovers(bundles: &Path) {
    let clean = |name: String| {
        let folder = Folder::of(bundles, &name);
        match folder.state()? {
            Some(state) => folder.clean(&state),
            // It was being applied for the first time.
            None => folder.remove(),
        }
    };
    let names = disk::names(bundles);
    let (names, unlisted) = match names {
        Ok(names) => (names, Ok(())),
        Err(error) => (BTreeSet::new(), Err(error)),
    };
    let each = names.into_iter().map(clean);
    for done in [disk::remove_leftovers(bundles), unlisted]
        .into_iter()
        .chain(each)
    {
        if let Err(error) = done {
            tracing::warn!(
                "could not remove leftovers of bundles below `{}`: {error}, going on; the next start tries again",
                bundles.display()
            );
        }
    }
}

fn read(folder: &Folder) -> io::Result<Option<Known>> {
    let Some(state) = folder.state()? else {
        return Ok(None);
    };
    // They can be done without.
    let former = |number: Option<u64>| folder.record(number?).ok();
    Ok(Some(Known {
        current: folder.record(state.current)?,
        previous: former(state.previous),
        before_previous: former(state.before_previous),
        state,
    }))
}

/// Gives images the names that they have while this generation is in force.
fn name_images(images: &ImageStore, record: &Record) -> Result<(), ImageError> {
    let pins = record.pins();
    let names = pins.iter().map(|(name, id)| (name.as_str(), id.as_str()));
    images.set_names(names, record.origin.as_ref())
}

/// Why a change could not be made.
#[derive(Debug, thiserror::Error)]
enum ChangeError {
    #[error("there is no bundle `{0}`")]
    Missing(String),
    #[error("bundle `{0}` has no former generation")]
    NoFormer(String),
    /// Another change of bundles is under way.
    #[error("bundle `{0}` cannot be changed while another change is under way")]
    Busy(String),
    /// It is not what it was.
    #[error("bundle `{0}` has changed meanwhile")]
    Changed(String),
    #[error("nothing has changed: {0}")]
    Clash(Clash),
    #[error("the manifests of its former generation cannot take effect; nothing has changed: {}", .0.join("; "))]
    Refused(Vec<String>),
    #[error("could not read bundle `{name}`")]
    Unread {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("could not write bundle `{name}`")]
    Disk {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("could not name the images of bundle `{name}`")]
    Images {
        name: String,
        #[source]
        source: ImageError,
    },
}

impl From<ChangeError> for CommandError {
    fn from(error: ChangeError) -> Self {
        let kind = match error {
            ChangeError::Missing(_) => CommandErrorKind::NotFound,
            ChangeError::NoFormer(_)
            | ChangeError::Changed(_)
            | ChangeError::Busy(_)
            | ChangeError::Clash(_)
            | ChangeError::Refused(_) => CommandErrorKind::Conflict,
            ChangeError::Unread { .. } | ChangeError::Disk { .. } | ChangeError::Images { .. } => {
                CommandErrorKind::Failed
            }
        };
        Self {
            kind,
            message: crate::chain(&error),
        }
    }
}

impl From<apply::ApplyError> for CommandError {
    fn from(error: apply::ApplyError) -> Self {
        match error {
            apply::ApplyError::Change(error) => error.into(),
            other => Self {
                kind: CommandErrorKind::Failed,
                message: crate::chain(&other),
            },
        }
    }
}

impl Tools {
    /// Has the manifests read again, and lets the loop know.
    async fn bundles_changed(&self) {
        let (bundles, images) = (self.config.layout.manifest_bundles(), self.images.clone());
        let all = unblock(move || load(&bundles, &images)).await;
        let _ = self.inputs.send(Input::Bundles(all)).await;
        // Then the loop knows which images the manifests may name. One message is enough, however many changes.
        let _ = self.bundles.changed.try_send(());
        // A pod may have looked for an image before that had its name.
        let changed = Input::Event(Event::Node(NodeFact::ImagesChanged(None)));
        let _ = self.inputs.send(changed).await;
    }
}

/// What a client hears that waits for the end of a trial; `None`: it has not ended.
fn end_of_trial(name: &str, generation: u64, known: Option<&Known>) -> Option<Value> {
    let ended = |kind: &str, message: String| {
        Some(json!({ "type": kind, "name": name, "generation": generation, "message": message }))
    };
    let Some(Known { state, .. }) = known else {
        return ended("rolledBack", "the bundle was removed".to_owned());
    };
    match &state.failed {
        Some(failed) if failed.generation == generation => {
            let (kind, now) = match state.current {
                same if same == generation => ("notReady", "it stays in force".to_owned()),
                other => (
                    "rolledBack",
                    format!("generation {other} is in force again"),
                ),
            };
            ended(
                kind,
                format!("generation {generation} was {}; {now}", failed.why),
            )
        }
        _ if state.current != generation => ended(
            "rolledBack",
            format!("generation {} is in force by now", state.current),
        ),
        _ if state.trial.is_some() => None,
        _ => ended("ready", String::new()),
    }
}

/// Refuses what would mean other images by its names than another bundle in force does.
fn no_clash(bundles: &Path, name: &str, pins: &Pins) -> Result<(), ChangeError> {
    let found = disk::clash(bundles, name, pins).map_err(|source| ChangeError::Unread {
        name: name.to_owned(),
        source,
    })?;
    found.map_or(Ok(()), |clash| Err(ChangeError::Clash(clash)))
}

impl Bundles {
    /// Whether the generation before may come back of one of them.
    pub(super) fn are_on_trial(&self) -> bool {
        self.all.values().any(|known| known.state.trial.is_some())
    }

    /// Takes what is on disk now. What could not be changed waits still.
    fn take(&mut self, all: All) {
        let before = std::mem::replace(&mut self.all, all);
        let state = |all: &All, name: &String| all.get(name).map(|known| known.state.clone());
        self.busy
            .retain(|name, _| state(&before, name) == state(&self.all, name));
    }
}

impl Node {
    /// Takes what is on disk now.
    pub(super) fn bundles_are(&mut self, all: All) {
        self.bundles.take(all);
        let all = &self.bundles.all;
        let on_trial = |(name, of): &(String, u64)| {
            let known = all.get(name.as_str());
            known.is_some_and(|known| known.state.current == *of && known.state.trial.is_some())
        };
        self.bundles.reported.retain(on_trial);
        self.end_waits();
    }

    /// Lets a client know how the trial of a generation ends.
    pub(super) fn await_bundle(&mut self, name: String, generation: u64, say: Sender<Value>) {
        self.bundles.waiting.push((name, generation, say));
        self.end_waits();
    }

    fn end_waits(&mut self) {
        let Bundles { all, waiting, .. } = &mut self.bundles;
        waiting.retain(|(name, generation, say)| {
            let end = end_of_trial(name, *generation, all.get(name.as_str()));
            end.is_none_or(|end| {
                let _ = say.try_send(end);
                false
            })
        });
    }

    pub(super) fn list_bundles(&self, reply: &Reply<Value>) {
        let _ = reply.try_send(Ok(self.bundles.show()));
    }

    /// Brings a bundle's former generation back. Without a name it is the only bundle.
    pub(super) fn roll_back_bundle(&self, name: Option<String>, reply: Reply<Value>) {
        let name = name.map_or_else(|| self.only_bundle(), Ok);
        let tools = self.tools.clone();
        answer(reply, async move {
            let name = name?;
            // In turn, so that another bundle cannot take a name after the check.
            let _turn = tools.bundles.turn.lock().await;
            let refused = apply::former_refusals(&tools, &name).await?;
            if !refused.is_empty() {
                return Err(ChangeError::Refused(refused).into());
            }
            let of = name.clone();
            let bundles = tools.config.layout.manifest_bundles();
            let change = move |folder: &Folder, state: Option<State>| {
                let state = state.ok_or_else(|| ChangeError::Missing(of.clone()))?;
                let state = state.rolled_back();
                let state = state.ok_or_else(|| ChangeError::NoFormer(of.clone()))?;
                // One that cannot be read is reported later.
                let record = folder.record(state.current).unwrap_or_default();
                no_clash(&bundles, &of, &record.pins())?;
                Ok(state)
            };
            let state = tools.change_in_turn(&name, change).await?;
            tracing::info!("bundle {name}: rolled back to generation {}", state.current);
            Ok(json!({ "name": name, "generation": state.current }))
        });
    }

    fn only_bundle(&self) -> Result<String, CommandError> {
        let mut names = self.bundles.all.keys();
        let refused = |kind, message: &str| CommandError {
            kind,
            message: message.to_owned(),
        };
        match (names.next(), names.next()) {
            (Some(only), None) => Ok(only.clone()),
            (None, _) => Err(refused(CommandErrorKind::NotFound, "there is no bundle")),
            (Some(_), Some(_)) => Err(refused(
                CommandErrorKind::Invalid,
                "there are several bundles: name one (coracle bundle ls)",
            )),
        }
    }

    /// Removes a bundle with its manifests. Its images stay until they are pruned.
    pub(super) fn remove_bundle(&self, name: String, reply: Reply<Value>) {
        let tools = self.tools.clone();
        answer(reply, async move {
            let _turn = tools.bundles.turn.lock().await;
            let (bundles, of) = (tools.config.layout.manifest_bundles(), name.clone());
            let removed = unblock(move || {
                // What is no name could be a path.
                if crate::images::check_name(&of).is_err() || !bundles.join(&of).is_dir() {
                    return Err(ChangeError::Missing(of));
                }
                let removed = Folder::of(&bundles, &of).remove();
                removed.map_err(|source| ChangeError::Disk { name: of, source })
            });
            let removed = removed.await;
            tools.bundles_changed().await;
            removed?;
            tracing::info!("bundle {name}: removed");
            Ok(json!({ "name": name }))
        });
    }
}

#[cfg(test)]
#[path = "bundles_test.rs"]
mod tests;
