//! The source that is polled for bundles (`coracle.bundle`). [`crate::plan::poll`] decides when to look and what to
//! apply; this file looks, and says what came of it.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use smol::channel::bounded;

use super::apply::{ApplyError, try_apply};
use super::disk::{self, Folder};
use super::fetch::{Polled, shown};
use crate::api::BundleRequest;
use crate::config::BundlePoll;
use crate::images::ImageStore;
use crate::node::execute::Tools;
use crate::node::pulls::PullFailure;
use crate::node::{Input, Node, now, unblock};
use crate::plan::event::ImageFailure;
use crate::plan::poll::{Held, Looked, Memory, first_wait_ms, wait_ms};
use crate::plan::status;
use crate::spec::Reason;
use crate::sys::file::{self, Durability};

/// Failures in a row that are logged; a network that is away for a month would fill the log.
const LOGGED: u32 = 3;

/// Why a look failed.
enum Failure {
    /// Pulls are not allowed for so long.
    Closed {
        opens_in_ms: u64,
        why: String,
    },
    Other(String),
}

/// Looks at the source again and again.
pub(in crate::node) async fn poll(tools: Tools, wanted: BundlePoll) {
    let mut failures = 0;
    let (mut last_look, mut last_error) = (None, None);
    let random = || RandomState::new().hash_one(());
    let first = first_wait_ms(now().time.0, wanted.interval_ms, random());
    smol::Timer::after(Duration::from_millis(first)).await;
    loop {
        let begun = now().wall;
        let done = look(&tools, &wanted).await;
        let mut event = None;
        let looked = match done {
            Ok(found) => {
                if failures > LOGGED {
                    tracing::info!("`coracle.bundle` can be polled again");
                }
                (failures, last_error) = (0, None);
                event = found.map(|said| (Reason::BundleApplied, said));
                Looked::Done
            }
            Err(Failure::Closed { opens_in_ms, why }) => {
                last_error = Some(why);
                Looked::Closed(opens_in_ms)
            }
            Err(Failure::Other(why)) => {
                failures = failures.saturating_add(1);
                if last_error.as_ref() != Some(&why) {
                    let text = format!("Bundle from {}: {why}", shown(&wanted.source));
                    event = Some((Reason::BundlePollFailed, text));
                }
                if failures <= LOGGED || event.is_some() {
                    tracing::warn!("`coracle.bundle`: {why}, looking again later");
                }
                last_error = Some(why);
                Looked::Failed(failures)
            }
        };
        if !matches!(looked, Looked::Closed(_)) {
            last_look = Some(status::time(begun));
        }
        let status = json!({
            "source": shown(&wanted.source), "lastLook": last_look, "lastError": last_error,
        });
        let _ = tools
            .inputs
            .send(Input::BundlePolled { status, event })
            .await;
        let wait = wait_ms(looked, wanted.interval_ms, random());
        smol::Timer::after(Duration::from_millis(wait)).await;
    }
}

/// One look, while pods may pull. Returns what to say about a new generation that is in force.
async fn look(tools: &Tools, wanted: &BundlePoll) -> Result<Option<String>, Failure> {
    if let Some(closed) = tools.closed() {
        return Err(closed.into());
    }
    look_now(tools, wanted).await
}

impl From<PullFailure> for Failure {
    fn from(closed: PullFailure) -> Self {
        Self::Closed {
            opens_in_ms: match closed.failure {
                ImageFailure::Window { opens_in_ms } => opens_in_ms,
                // Windows have no other failures.
                _ => 60_000,
            },
            why: closed.message,
        }
    }
}

async fn look_now(tools: &Tools, wanted: &BundlePoll) -> Result<Option<String>, Failure> {
    let layout = tools.config.layout.clone();
    let source = wanted.source.clone();
    let images = tools.images.clone();
    let known = unblock(move || {
        let held = held(&layout.manifest_bundles(), &images)?;
        io::Result::Ok((held, remembered(&layout.bundle_poll(), source)))
    });
    let disk =
        |why: io::Error| Failure::Other(format!("could not read what the bundles are: {why}"));
    let (held, mut memory) = known.await.map_err(disk)?;
    let polled = Polled {
        key: wanted.key.clone(),
        settled: memory.settled(&held),
        validator: memory.settled_validator(&held),
    };
    let request = BundleRequest {
        source: wanted.source.clone(),
        ready_within_seconds: match wanted.ready_within_ms {
            0 => None,
            ms => Some(ms.div_ceil(1000)),
        },
        key: None,
        dry_run: false,
    };
    // No client listens.
    let (progress, _) = bounded(1);
    let applied = match try_apply(tools, &request, Some(&polled), &progress).await {
        Ok(applied) => applied,
        Err(why) => {
            tools.clear_up_after_import().await;
            return Err(match (why.hint(), why) {
                (_, ApplyError::Closed(closed)) => closed.into(),
                (Some(hint), why) => Failure::Other(format!("{}; {hint}", crate::chain(&why))),
                (None, why) => Failure::Other(crate::chain(&why)),
            });
        }
    };
    let before = memory.clone();
    match applied.digest.is_empty() {
        // A web server says that the archive is the one that was seen.
        true => memory.same(&held),
        false => memory.note(&applied.digest, applied.validator.clone(), &held),
    }
    let said = (applied.line["unchanged"] == false).then(|| {
        format!(
            "Bundle {}: generation {} from {} is in force",
            applied.name,
            applied.line["generation"],
            shown(&wanted.source)
        )
    });
    if memory != before {
        let path = tools.config.layout.bundle_poll();
        let written = unblock(move || write(&path, &memory)).await;
        match written {
            // The next look fails with it, too.
            Err(why) if said.is_some() => {
                tracing::warn!("`coracle.bundle`: could not note what was seen: {why}, going on");
            }
            Err(why) => {
                return Err(Failure::Other(format!(
                    "could not note what was seen: {why}"
                )));
            }
            Ok(()) => {}
        }
    }
    Ok(said)
}

/// The digests of the node's bundles. Blocking.
fn held(bundles: &Path, images: &ImageStore) -> io::Result<Held> {
    let mut held = Held::default();
    for name in disk::names(bundles)? {
        // One that cannot be read has been reported, and does not keep others away.
        let Ok(Some(known)) = super::read(&Folder::of(bundles, &name)) else {
            continue;
        };
        let state = known.state;
        // Generations are numbered as they come: a rollback made a newer one the former. It is still that if what came
        // after it fails its trial.
        let undone = [
            (Some(state.current), state.previous, known.previous),
            (state.previous, state.before_previous, known.before_previous),
        ];
        let undone = undone.into_iter().filter(|(one, former, _)| former > one);
        let digests = undone.filter_map(|(_, _, record)| Some(record?.digest));
        held.declined.extend(digests);
        held.declined
            .extend(state.failed.map(|failed| failed.digest));
        // They may have been removed by force, or damaged.
        let ids = known.current.images.iter().map(|image| image.id.as_str());
        if !images.has_all(ids, false) {
            held.incomplete.insert(known.current.digest.clone());
        }
        held.in_force.insert(known.current.digest);
    }
    Ok(held)
}

/// What is known of this source.
fn remembered(path: &Path, source: String) -> Memory {
    let bytes = file::read_record(path).unwrap_or_default();
    let memory: Memory = serde_json::from_slice(&bytes).unwrap_or_default();
    match memory.source == source {
        true => memory,
        false => Memory {
            source,
            ..Memory::default()
        },
    }
}

fn write(path: &Path, memory: &Memory) -> io::Result<()> {
    let bytes = serde_json::to_vec(memory)?;
    file::replace(path, &bytes, 0o600, Durability::PowerCut)
}

impl Node {
    /// Shows what a look at the source of bundles has brought.
    pub(in crate::node) fn bundle_polled(
        &mut self,
        status: Value,
        event: Option<(Reason, String)>,
    ) {
        self.bundles.poll = Some(status);
        if let Some((reason, message)) = event {
            self.shown.node_event(reason, &message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::disk::{Pinned, Record, State};
    use super::*;
    use crate::images::sample::Room;
    use crate::plan::bundle::Trial;
    use crate::types::Time;

    #[test]
    fn a_bundle_in_force_is_incomplete_without_one_of_its_images() {
        let room = Room::new("bundle-held");
        let archive = room.image("image", "a:1", "a");
        let id = room.import(&archive).unwrap().remove(0).id;
        let (bundles, images) = (room.0.join("bundles"), room.store());
        let folder = Folder::of(&bundles, "site");
        let pinned = |id: &str| Pinned {
            id: id.to_owned(),
            names: Vec::new(),
        };
        let record = Record {
            digest: "sha256:1".to_owned(),
            images: vec![pinned(&id)],
            ..Record::default()
        };
        folder.write(None, &record, &[]).unwrap();
        let state = State {
            current: 1,
            ..State::default()
        };
        folder.commit(&state).unwrap();
        let whole = held(&bundles, &images).unwrap();
        assert_eq!(whole.in_force, ["sha256:1".to_owned()].into());
        assert!(whole.incomplete.is_empty());
        fs::write(images.dir().join(format!("records/{}.json", &id[7..])), "{").unwrap();
        let damaged = held(&bundles, &images).unwrap();
        assert_eq!(damaged.incomplete, damaged.in_force);
        room.import(&archive).unwrap();
        assert_eq!(held(&bundles, &images).unwrap(), whole);
    }

    #[test]
    fn what_was_rolled_back_by_hand_is_declined_also_during_the_next_trial() {
        let dir = std::env::temp_dir().join(format!("coracle-declined-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let images = ImageStore::open(&dir.join("images")).unwrap();
        let bundles = dir.join("bundles");
        let folder = Folder::of(&bundles, "site");
        for number in 1..=3 {
            let record = Record {
                digest: number.to_string(),
                ..Record::default()
            };
            folder.write(None, &record, &[]).unwrap();
        }
        let declined = |state: &State| {
            folder.commit(state).unwrap();
            let held = held(&bundles, &images).unwrap();
            held.declined.into_iter().collect::<Vec<_>>()
        };
        let trial = || Some(Trial::new(1000, "boot", Time(0)));
        let applied = State::applied(None, 1, None);
        let second = State::applied(Some(applied), 2, None);
        assert_eq!(declined(&second), [""; 0]);
        let third = State::applied(Some(second.clone()), 3, trial());
        assert_eq!(declined(&third), [""; 0]);
        let back = second.rolled_back().unwrap();
        assert_eq!(declined(&back), ["2"]);
        let third = State::applied(Some(back), 3, trial());
        assert_eq!(declined(&third), ["2"], "the trial may lead back there");
        assert_eq!(declined(&third.passed()), [""; 0]);
        fs::remove_dir_all(dir).unwrap();
    }
}
