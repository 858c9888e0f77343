//! Documents that stand for pods, among the other pods: they come, change and go while everything else goes wrong. What
//! must hold of them is computed a second time, from the document and from the pods before and after each fact.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use coracle::plan::workload::status::Status;
use coracle::spec::convert::{ConvertContext, documents};
use coracle::spec::workload::{Job, Update, job};
use coracle::spec::{Workload, WorkloadKey, WorkloadKind};

use super::*;

/// A document and its pods.
type Document = (Arc<Workload>, Vec<Arc<PodSpec>>);

/// What is kept of documents.
#[derive(Debug, Default)]
pub(super) struct Documents {
    /// Whether there are any on this node.
    on: bool,
    asked: BTreeMap<WorkloadKey, Document>,
    /// The indexes of each edition of a Job that have succeeded.
    succeeded: BTreeMap<(WorkloadKey, Arc<str>), BTreeSet<u32>>,
}

/// A pod of a document, before a fact.
#[derive(Debug, Clone)]
pub(super) struct Was {
    spec: Arc<PodSpec>,
    stopping: bool,
    ready_at: Option<u64>,
    finished: bool,
}

pub(super) type Before = BTreeMap<PodUid, Was>;

/// A rollout that went to its end, a Job that did.
#[derive(Debug)]
struct RolledOut;
#[derive(Debug)]
struct Complete;

/// Each text is read once: reading takes longer than all that is done with it.
fn read(text: &str) -> Document {
    static KNOWN: LazyLock<Mutex<HashMap<String, Document>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap();
    let document = known.entry(text.to_owned()).or_insert_with(|| {
        let found = documents(text.as_bytes(), "f", &ConvertContext::of("n")).expect("valid");
        let pods = found.pods.into_iter().map(Arc::new).collect();
        let mut workloads = found.workloads.into_iter();
        (Arc::new(workloads.next().unwrap()), pods)
    });
    document.clone()
}

/// A long-running document; the containers of template `c` do anything, the others stay.
fn rollout(kind: &str, letter: char, replicas: u64, more: &str) -> String {
    let replicas = match kind {
        "DaemonSet" => String::new(),
        _ => format!("  replicas: {replicas}\n"),
    };
    let container = if letter == 'c' { "x" } else { "w" };
    format!(
        "apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: d-{}}}\nspec:\n{replicas}{more}  selector: {{matchLabels: \
         {{of: d}}}}\n  template:\n    metadata: {{labels: {{all: 'yes', of: d, letter: {letter}}}}}\n    spec:\n      \
         terminationGracePeriodSeconds: 5\n      containers: [{{name: {container}, image: 'img:{letter}'}}]\n",
        kind.to_lowercase()
    )
}

impl Documents {
    pub(super) fn of(seed: u64) -> Self {
        Self {
            on: seed % 3 == 1,
            ..Self::default()
        }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn is_asked(&self, pod: &PodSpec) -> bool {
        let key = pod.workload.as_ref();
        key.is_some_and(|key| self.asked.contains_key(key))
    }

    pub(super) fn add_to(&self, desired: &mut coracle::plan::event::Desired) {
        for (key, (workload, pods)) in &self.asked {
            Arc::make_mut(&mut desired.workloads).insert(key.clone(), workload.clone());
            let pods = pods.iter().map(|pod| (pod.uid.clone(), pod.clone()));
            desired.pods.extend(pods);
        }
    }

    /// The steps that a turn may take for them.
    pub(super) fn steps(&self) -> usize {
        30 * self.asked.len()
    }

    pub(super) fn clear(&mut self) {
        self.asked.clear();
    }
}

impl Sim {
    pub(super) fn edit_documents(&mut self) {
        if !self.documents.on {
            return;
        }
        let kinds = [
            WorkloadKind::Deployment,
            WorkloadKind::StatefulSet,
            WorkloadKind::DaemonSet,
            WorkloadKind::Job,
        ];
        for kind in kinds {
            if !self.world.rng.chance(25) {
                continue;
            }
            self.documents.asked.retain(|key, _| key.kind != kind);
            if self.world.rng.chance(20) {
                continue;
            }
            let text = self.text(kind);
            let document = read(&text);
            let key = document.0.key.clone();
            self.documents.asked.insert(key, document);
        }
    }

    fn text(&mut self, kind: WorkloadKind) -> String {
        let rng = &mut self.world.rng;
        let letter = ['a', 'b', 'c'][usize::try_from(rng.below(3)).unwrap()];
        let replicas = rng.below(4);
        let more = match kind {
            WorkloadKind::Deployment if rng.chance(25) => {
                "  strategy: {type: Recreate}\n".to_owned()
            }
            WorkloadKind::Deployment => {
                let (surge, unavailable) = (rng.below(3), rng.below(3));
                let unavailable = unavailable.max(u64::from(surge == 0));
                let wait = 30 * rng.below(2);
                format!(
                    "  minReadySeconds: {wait}\n  strategy: {{rollingUpdate: {{maxSurge: {surge}, maxUnavailable: \
                     {unavailable}}}}}\n"
                )
            }
            WorkloadKind::StatefulSet if rng.chance(25) => {
                "  podManagementPolicy: Parallel\n".to_owned()
            }
            WorkloadKind::Job => {
                let (completions, parallelism) = (1 + rng.below(3), 1 + rng.below(2));
                let (index, policy) = match rng.below(4) {
                    0 => ("  completionMode: Indexed\n", "Never"),
                    1 => (
                        "  completionMode: Indexed\n  successPolicy: {rules: [{succeededCount: 1}]}\n",
                        "Never",
                    ),
                    _ => ("", "OnFailure"),
                };
                let suspend = rng.chance(10);
                let container = if letter == 'c' { "x" } else { "j" };
                return format!(
                    "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: d-job, labels: {{letter: {letter}}}}}\nspec:\n  \
                     suspend: {suspend}\n  completions: {completions}\n  parallelism: {parallelism}\n{index}  template:\n    \
                     metadata: {{labels: {{all: 'yes'}}}}\n    spec:\n      restartPolicy: {policy}\n      \
                     terminationGracePeriodSeconds: 5\n      containers: [{{name: {container}, image: i}}]\n"
                );
            }
            _ => String::new(),
        };
        rollout(kind.as_str(), letter, replicas, &more)
    }

    /// The pods of documents, before a fact.
    pub(super) fn pods_of_documents(&self) -> Before {
        let pods = self.state.pods.iter();
        let pods = pods.filter(|(_, pod)| self.documents.on && pod.spec.workload.is_some());
        pods.map(|(uid, pod)| (uid.clone(), was(pod))).collect()
    }

    /// What a fact has done to pods of documents keeps to the documents.
    pub(super) fn check_documents(&mut self, event: &Event, before: &Before) {
        if !self.documents.on {
            return;
        }
        let now = self.world.now;
        for (uid, pod) in &self.state.pods {
            if pod.spec.workload.is_none() {
                continue;
            }
            if let Some(stopping) = pod.stopping() {
                let going = Going {
                    since: stopping.since.time.0,
                    grace_ms: stopping.asked_ms.max(2_000),
                };
                self.going.entry(uid.clone()).or_insert(going);
            }
            let changed = before
                .get(uid)
                .filter(|was| !Arc::ptr_eq(&was.spec, &pod.spec));
            for new in changed.into_iter().flat_map(|_| pod.spec.all_containers()) {
                // The failures of the old image are no reason to wait.
                let old = before[uid].spec.container(&new.name);
                if old.is_some_and(|old| old.image != new.image) {
                    self.backoff.remove(&(uid.clone(), new.name.clone()));
                    self.starts
                        .remove(&(pod.spec.key.clone(), new.name.clone()));
                }
            }
        }
        self.note_succeeded();
        // What an agent finds at its start was somebody else's decision, and so is what a client deletes.
        let decided = match event {
            Event::Node(_) => self.state.desired.is_some(),
            Event::Pod { fact, .. } => !matches!(
                fact,
                PodFact::Recovered(_) | PodFact::DeleteRequested { .. }
            ),
            Event::Run { .. } => true,
        };
        // During a shutdown no pod starts, and documents have no turn.
        if !decided
            || self.state.shutdown.is_some()
            || matches!(
                event,
                Event::Node(NodeFact::DrainTurn | NodeFact::DrainBegun { .. })
            )
        {
            return;
        }
        for (key, (workload, pods)) in &self.documents.asked {
            let own = |(_, was): &(&PodUid, &Was)| was.spec.workload.as_ref() == Some(key);
            let before: Before = before
                .iter()
                .filter(own)
                .map(|(u, w)| (u.clone(), w.clone()))
                .collect();
            let pods_now = self.state.pods.values();
            let pods_now = pods_now.filter(|pod| pod.spec.workload.as_ref() == Some(key));
            let after: Before = pods_now
                .map(|pod| (pod.spec.uid.clone(), was(pod)))
                .collect();
            let replicas = pods.len();
            let change = Change {
                workload,
                replicas,
                before,
                after,
                now,
            };
            change.check(event);
        }
    }

    fn note_succeeded(&mut self) {
        let asked = &self.documents.asked;
        self.documents.succeeded.retain(|(key, edition), _| {
            asked
                .get(key)
                .is_some_and(|(workload, _)| workload.revision == *edition)
        });
        for (key, (workload, _)) in asked {
            let Some(Job { indexed: true, .. }) = workload.job.as_deref() else {
                continue;
            };
            let status =
                Status::of(&self.state, workload).map(|status| status.json(workload, 1, None));
            let status = status.unwrap_or_default();
            let of = (key.clone(), workload.revision.clone());
            let known = self.documents.succeeded.entry(of).or_default();
            let text = status["completedIndexes"].as_str().unwrap_or_default();
            let indexes = text.split(',').filter(|part| !part.is_empty());
            let indexes: BTreeSet<u32> = indexes
                .flat_map(|part| {
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    first.parse::<u32>().unwrap()..=last.parse().unwrap()
                })
                .collect();
            if self.state.desired.is_some() && status.is_object() {
                assert!(
                    known.is_subset(&indexes),
                    "{known:?} had succeeded: {status}"
                );
                known.extend(indexes);
            }
        }
    }

    /// What has succeeded does not run again.
    pub(super) fn check_job_start(&self, pod: &PodSpec) {
        let Some(key) = &pod.workload else { return };
        let edition = pod.revision().unwrap_or_default().into();
        let known = self.documents.succeeded.get(&(key.clone(), edition));
        if let (Some(known), Some((index, _))) = (known, job::place(pod)) {
            assert!(!known.contains(&index), "{} runs again", pod.key);
        }
    }

    /// In the end everything is as the documents ask.
    pub(super) fn documents_converged(&mut self) {
        let pods = self
            .state
            .pods
            .values()
            .filter(|pod| pod.spec.workload.is_some());
        let strays = pods.filter(|pod| !self.documents.is_asked(&pod.spec));
        let strays: Vec<_> = strays.map(|pod| &pod.spec.key).collect();
        assert!(strays.is_empty(), "no document asks for {strays:?}");
        let mut reached = (0, 0);
        for (key, (workload, pods)) in &self.documents.asked {
            let status = Status::of(&self.state, workload).expect("it is known");
            let status = status.json(workload, 1, None);
            let own = self.state.pods.values();
            let own: Vec<&PodState> = own
                .filter(|pod| pod.spec.workload.as_ref() == Some(key))
                .collect();
            let stays = |pod: &PodSpec| pod.containers.iter().all(|c| c.name == "w");
            if let Some(job) = &workload.job {
                let conditions = status["conditions"].as_array().unwrap().iter();
                let conditions = conditions.filter(|c| c["status"] == "True");
                let types: Vec<&str> = conditions.filter_map(|c| c["type"].as_str()).collect();
                let ends = pods[0].containers[0].name == "j";
                let complete = types.contains(&"Complete");
                let ended = complete || types.contains(&"Failed");
                assert!(job.suspended || !ends || ended, "{status}");
                reached.1 += usize::from(complete);
                continue;
            }
            let first = pods.first().map(|pod| &**pod);
            let all_stay = own.iter().all(|pod| stays(&pod.spec)) && first.is_none_or(stays);
            if all_stay {
                let wanted: BTreeSet<&PodKey> = pods.iter().map(|pod| &pod.key).collect();
                let here: BTreeSet<&PodKey> = own.iter().map(|pod| &pod.spec.key).collect();
                assert_eq!(here, wanted, "{key}: {status}");
                let current = own
                    .iter()
                    .all(|pod| pod.wanted().revision() == Some(&workload.revision));
                assert!(current, "{key}: {status}");
                let ready = own.iter().filter(|pod| pod.flags.ready.yes).count();
                assert_eq!(ready, wanted.len(), "{key}: {status}");
                reached.0 += 1;
            }
        }
        (0..reached.0).for_each(|_| self.stats.count("document", &RolledOut));
        (0..reached.1).for_each(|_| self.stats.count("document", &Complete));
    }
}

fn was(pod: &PodState) -> Was {
    let ready = pod.flags.ready.yes && pod.stopping().is_none() && pod.verdict.is_none();
    Was {
        spec: pod.spec.clone(),
        stopping: pod.stopping().is_some(),
        ready_at: pod.flags.ready_at.filter(|_| ready).map(|at| at.0),
        finished: pod.finished(),
    }
}

/// A document's pods before and after a fact.
struct Change<'s> {
    workload: &'s Workload,
    replicas: usize,
    before: Before,
    after: Before,
    now: u64,
}

impl Change<'_> {
    fn check(&self, event: &Event) {
        // A client may stop any pod at any time.
        if matches!(event, Event::Node(NodeFact::StopRequested { .. })) {
            return;
        }
        if let Some(job) = &self.workload.job {
            let live = self
                .after
                .values()
                .filter(|was| !was.stopping && !was.finished);
            let most = usize::try_from(job.parallelism).unwrap();
            let edition = Some(&*self.workload.revision);
            let live = live.filter(|was| was.spec.revision() == edition).count();
            return self.check_new(live <= most, event);
        }
        match self.workload.update {
            Update::Rolling { surge, unavailable } => {
                let live = self.after.values().filter(|was| !was.stopping).count();
                let most = self.replicas + usize::try_from(surge).unwrap();
                self.check_new(live <= most, event);
                self.check_available(usize::try_from(unavailable).unwrap(), event);
            }
            Update::Recreate => {
                let old = self.after.values().any(|was| !self.is_current(was));
                self.check_new(!old, event);
            }
            Update::InPlace { .. } if self.workload.ordered => self.check_order(event),
            Update::InPlace { .. } | Update::OnDelete => {}
        }
    }

    fn is_current(&self, was: &Was) -> bool {
        was.spec.revision() == Some(&*self.workload.revision)
    }

    fn is_available(&self, was: &Was) -> bool {
        let long = |at| at + self.workload.min_ready_ms <= self.now;
        !was.stopping && was.ready_at.is_some_and(long)
    }

    /// The pods that came with this fact. One that was held may have changed without having been there.
    fn came(&self) -> impl Iterator<Item = &Was> {
        let was_here = |new: &Was| {
            let mut before = self.before.values().filter(|was| !was.stopping);
            before.any(|was| was.spec.key == new.spec.key)
        };
        let new = self.after.iter();
        let new = new.filter(move |(uid, was)| !self.before.contains_key(*uid) && !was_here(was));
        new.map(|(_, was)| was)
    }

    /// The pods that this fact has ended.
    fn ended(&self) -> impl Iterator<Item = &Was> {
        let live = self.before.iter().filter(|(_, was)| !was.stopping);
        let ended = live.filter(|(uid, _)| self.after.get(*uid).is_none_or(|was| was.stopping));
        ended.map(|(_, was)| was)
    }

    /// If there are new pods, this must be so.
    fn check_new(&self, good: bool, event: &Event) {
        let new: Vec<_> = self.came().map(|was| was.spec.key.name.clone()).collect();
        assert!(
            good || new.is_empty(),
            "{new:?} came: {event:?}, {}",
            self.shown()
        );
    }

    /// An available pod of an earlier template goes only if enough others are available.
    fn check_available(&self, unavailable: usize, event: &Event) {
        let held = |was: &&Was| was.ready_at.is_none();
        let blocked = self.after.values().any(|was| held(&was));
        let may_be_missing = unavailable.max(usize::from(blocked));
        let least = self.replicas.saturating_sub(may_be_missing);
        let left = self
            .after
            .values()
            .filter(|was| self.is_available(was))
            .count();
        for was in self.ended().filter(|was| !self.is_current(was)) {
            assert!(
                !self.is_available(was) || left >= least,
                "{} goes, {left} of {least} are left: {event:?}, {}",
                was.spec.key,
                self.shown()
            );
        }
    }

    /// Pods come when those before them are available, and go from the highest number on.
    fn check_order(&self, event: &Event) {
        let number = |was: &Was| -> usize {
            let name = &was.spec.key.name;
            name.rsplit('-').next().unwrap().parse().unwrap()
        };
        for new in self.came() {
            let lower = self.before.values().filter(|was| number(was) < number(new));
            let available = lower.filter(|was| self.is_available(was)).count();
            assert!(
                available == number(new),
                "{} comes too early: {event:?}, {}",
                new.spec.key,
                self.shown()
            );
        }
        // One that had ended before, as by a shutdown that is cancelled, is not missed.
        let ended = self.ended().filter(|was| !was.finished);
        for ended in ended.filter(|was| number(was) >= self.replicas) {
            let higher = self.before.values().any(|was| number(was) > number(ended));
            assert!(
                !higher,
                "{} goes too early: {event:?}, {}",
                ended.spec.key,
                self.shown()
            );
        }
    }

    fn shown(&self) -> String {
        let shown = |all: &Before| {
            let all = all.values().map(|was| {
                let (name, letter) = (&was.spec.key.name, was.spec.containers[0].image.clone());
                format!(
                    "{name} {letter} {:?}{}",
                    was.ready_at,
                    if was.stopping { " goes" } else { "" }
                )
            });
            all.collect::<Vec<_>>().join(", ")
        };
        format!(
            "{} replicas, {:?}: {} -> {}",
            self.replicas,
            self.workload.update,
            shown(&self.before),
            shown(&self.after)
        )
    }
}
