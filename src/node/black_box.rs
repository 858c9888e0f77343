//! The black box: how containers ended, evictions, and how the machine and the agent went down, in a file that outlives
//! the boot (`coracle help black-box`). `plan/black_box.rs` decides when it is written and what makes room; nothing of it
//! is in memory but what waits to be written.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::Node;
use crate::effects::black_box::{Slot, Writer, last_output, read};
use crate::effects::former_secrets::Former;
use crate::effects::mask::{Cut, Secrets};
use crate::layout::Layout;
use crate::plan::black_box::{Batch, place};
use crate::plan::{Notice, former, restart};
use crate::spec::{ObjectKind, PodSpec, PodUid, Reason};
use crate::types::black_box::Entry;
use crate::types::{Gather, Time, Wall};

/// What was noted, and what is to be written.
#[derive(Debug)]
pub(super) struct BlackBox {
    path: PathBuf,
    /// The id of this boot.
    boot: String,
    batch: Batch,
    /// The newest exit of each container that was noted.
    noted: HashMap<PodUid, Vec<(String, u32, Wall)>>,
    /// The last write, until its result is taken: the entries that it failed to write.
    writing: Option<smol::Task<Vec<Entry>>>,
    /// Whether the last write failed, which is said once.
    failed: bool,
}

/// An entry, and what is needed to find the end of its container's output.
struct Job {
    entry: Entry,
    logs: Option<PathBuf>,
    secrets: Arc<Secrets>,
}

impl BlackBox {
    /// Opens the box with what the start of the agent has found.
    pub(super) fn new(layout: &Layout, found: Vec<Entry>) -> Self {
        let path = layout.black_box();
        let now = super::now().time;
        // An agent that restarts again and again does not write more often. A clock that was set back counts as now.
        let age = std::fs::metadata(&path).and_then(|file| file.modified());
        let age = age.map(|at| {
            SystemTime::from(crate::sys::clock::timestamp())
                .duration_since(at)
                .unwrap_or_default()
        });
        let age = age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        let mut black_box = Self {
            path,
            boot: super::boot::id(),
            batch: Batch::after(age.ok(), now),
            noted: HashMap::new(),
            writing: None,
            failed: false,
        };
        for entry in found {
            black_box.add(entry, now);
        }
        black_box
    }

    fn add(&mut self, entry: Entry, now: Time) {
        let boot = self.boot.clone();
        self.batch.add(Entry { boot, ..entry }, now);
    }

    /// When the next write is due, or the result of the last one.
    pub(super) fn next(&self) -> Option<Time> {
        let written = self.writing.as_ref().and_then(|_| self.batch.next_write());
        self.batch.due().or(written)
    }

    /// Takes back what the last write could not write; `false` if it is still under way.
    fn settle(&mut self, now: Time) -> bool {
        match self.writing.take() {
            Some(task) if !task.is_finished() => {
                self.writing = Some(task);
                false
            }
            Some(task) => {
                let left = smol::future::block_on(smol::future::poll_once(task));
                let left = left.unwrap_or_default();
                self.failed = !left.is_empty();
                self.batch.put_back(left, now);
                true
            }
            None => true,
        }
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.noted.remove(uid);
    }
}

impl Node {
    /// Notes evictions, and pods that were ended to make room.
    pub(super) fn note_eviction(&mut self, notice: &Notice) {
        if !matches!(notice.reason, Reason::Evicted | Reason::Preempting) {
            return;
        }
        let now = super::now();
        let entry = Entry {
            pod: notice.key.to_string(),
            uid: notice.uid.to_string(),
            ..Entry::new(&notice.reason.to_string(), &notice.message, now.wall)
        };
        self.black_box.add(entry, now.time);
    }

    /// Notes how a pod's containers have ended, unless the pod is to go. A restart that a client asked for is no crash.
    pub(super) fn note_exits(&mut self, uid: &PodUid) {
        let Some(pod) = self.state.pods.get(uid) else {
            return;
        };
        let ends: Vec<_> = former::ends(pod)
            .map(|(name, ended)| (name.to_owned(), ended.clone()))
            .collect();
        let (spec, now) = (Arc::clone(&pod.spec), super::now().time);
        for (name, ended) in ends {
            let exit = &ended.exit;
            let noted = self.black_box.noted.entry(uid.clone()).or_default();
            let run = (name, ended.attempt, exit.finished.wall);
            // What a power cut ended is the power cut's.
            let asked_to = ended.on_request && !exit.oom_killed;
            if noted.contains(&run) || exit.is_cut_short() || asked_to {
                continue;
            }
            noted.retain(|(of, ..)| *of != run.0);
            noted.push(run.clone());
            // Now: a pod that is gone by then may have had Secrets that are not known any more.
            let message = match exit.message.is_empty() {
                true => String::new(),
                false => {
                    let kept = Former::load(&self.tools.config.layout);
                    clean(&exit.message, &self.secrets_of(&spec, &kept))
                }
            };
            let entry = Entry {
                pod: spec.key.to_string(),
                uid: uid.to_string(),
                container: run.0,
                attempt: ended.attempt,
                code: exit.code,
                ..Entry::new(restart::reason(exit), &message, exit.finished.wall)
            };
            self.black_box.add(entry, now);
        }
    }

    /// Writes what is due.
    pub(super) fn write_black_box(&mut self) {
        let now = super::now().time;
        if self.black_box.next().is_none_or(|due| due > now) {
            return;
        }
        if !self.black_box.settle(now) {
            self.black_box.batch.put_off(now);
            return;
        }
        let (path, jobs) = (self.black_box.path.clone(), self.jobs(now, false));
        if jobs.is_empty() {
            return;
        }
        let again = self.black_box.failed;
        let write = super::unblock(move || write(&path, jobs, again));
        self.black_box.writing = Some(super::task(write));
    }

    /// Blocking. Writes everything that is left.
    pub(super) fn flush_black_box(&mut self) {
        let now = super::now().time;
        self.black_box.settle(now);
        let jobs = self.jobs(now, true);
        // Nothing comes after it.
        write(&self.black_box.path, jobs, false);
    }

    fn jobs(&mut self, now: Time, at_once: bool) -> Vec<Job> {
        let entries = self.black_box.batch.take(now, at_once);
        if entries.is_empty() {
            return Vec::new();
        }
        let layout = &self.tools.config.layout;
        let kept = Former::load(layout);
        // Prepared once for each pod: they take memory, and a pod may have many entries.
        let mut known: BTreeMap<PodUid, Arc<Secrets>> = BTreeMap::new();
        let job = |entry: Entry| {
            let uid = PodUid::from(entry.uid.as_str());
            let key = entry.pod.split_once('/').unwrap_or_default();
            let logs = layout.container_logs(key.0, key.1, &uid, &entry.container);
            let spec = self.state.pods.get(&uid).map(|pod| &pod.spec);
            Job {
                // A pod that is gone may have had Secrets that are not known any more.
                logs: (spec.is_some() && !entry.container.is_empty()).then_some(logs),
                entry,
                secrets: match (spec, known.get(&uid)) {
                    (None, _) => Arc::default(),
                    (Some(_), Some(secrets)) => Arc::clone(secrets),
                    (Some(spec), None) => {
                        let secrets = Arc::new(self.secrets_of(spec, &kept));
                        known.insert(uid, Arc::clone(&secrets));
                        secrets
                    }
                },
            }
        };
        entries.into_iter().map(job).gather()
    }

    /// The values of the Secrets that a pod refers to, and those that they had in this boot: its containers may have
    /// started with them.
    fn secrets_of(&self, spec: &PodSpec, kept: &Former) -> Secrets {
        let configuration = self.tools.sandboxes.configuration.now();
        let mut references = spec.references();
        references.retain(|key| key.kind == ObjectKind::Secret);
        if references.is_empty() {
            return Secrets::default();
        }
        let mut secrets = kept.values(|namespace, name| {
            let mut keys = references.iter();
            keys.any(|key| key.namespace == namespace && key.name == name)
        });
        for key in references {
            let found = configuration.get(key.kind, &key.namespace, &key.name);
            let data = found.map(|object| object.data()).unwrap_or_default();
            secrets.extend(data.into_iter().map(|(_, value)| value.to_vec()));
        }
        Secrets::new(&secrets)
    }
}

/// Writes the entries, or returns those that could not be written. `again`: the last write failed, too.
fn write(path: &std::path::Path, jobs: Vec<Job>, again: bool) -> Vec<Entry> {
    let mut left: Vec<Entry> = jobs.iter().map(|job| job.entry.clone()).collect();
    if left.is_empty() {
        return left;
    }
    let Err(error) = put(path, jobs, &mut left) else {
        return Vec::new();
    };
    let path = path.display();
    let then = match left.is_empty() {
        true => "going on without the newest entries",
        false => "retrying each minute",
    };
    match again {
        true => tracing::debug!("could not write the black box `{path}`: {error}, {then}"),
        false => tracing::warn!("could not write the black box `{path}`: {error}, {then}"),
    }
    left
}

/// A message without values of Secrets.
fn clean(message: &str, secrets: &Secrets) -> String {
    secrets.mask_text(message, Cut::of_message(message))
}

/// Writes what is not there yet. `left`: the entries of the jobs, of which those that are done are taken away.
fn put(path: &std::path::Path, jobs: Vec<Job>, left: &mut Vec<Entry>) -> io::Result<()> {
    let slots = read(path, false)?;
    let mut number = slots.last().map_or(0, |slot| slot.number);
    let mut there: Vec<(usize, Entry)> = slots
        .into_iter()
        .map(|slot| (slot.index, slot.entry))
        .collect();
    let (mut writer, mut freed) = (None, Vec::new());
    for Job {
        mut entry,
        logs,
        secrets,
    } in jobs
    {
        entry.message = clean(&entry.message, &secrets);
        let attempt = entry.attempt;
        let Some((index, mut entry)) = place(&there, &freed, entry) else {
            left.remove(0);
            continue;
        };
        number += 1;
        if entry.id == 0 {
            entry.id = number;
        }
        let output = logs.and_then(|logs| last_output(&logs, attempt, &secrets).ok());
        let slot = Slot {
            index,
            number,
            entry,
            output: output.unwrap_or_default(),
        };
        let writer = match &writer {
            Some(writer) => writer,
            None => writer.insert(Writer::open(path)?),
        };
        writer.put(&slot)?;
        left.remove(0);
        let former = there.iter().filter(|(_, old)| old.id == slot.entry.id);
        freed.extend(former.map(|(taken, _)| *taken));
        there.retain(|(taken, old)| *taken != index && old.id != slot.entry.id);
        there.push((index, slot.entry));
    }
    match writer {
        Some(writer) => writer.flush(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_could_not_be_written_come_back() {
        let folder = std::env::temp_dir().join(format!("coracle-box-{}", std::process::id()));
        let path = folder.join("black-box");
        let jobs = || {
            let entry = Entry::new("Rebooted", "", Wall(7));
            vec![Job {
                entry,
                logs: None,
                secrets: Arc::default(),
            }]
        };
        let left = write(&path, jobs(), false);
        assert_eq!(left.len(), 1, "there is no such folder");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(write(&path, jobs(), true), []);
        assert_eq!(read(&path, false).unwrap().len(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
