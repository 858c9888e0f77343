//! The UIDs of successive pods of one name. A recreated pod (after a deletion, an edit that replaces it, an
//! eviction or a preemption) has a new UID; a pod that survives an agent restart or a reboot keeps its UID
//! (`coracle help differences`). A UID given in the manifest stays as it is.
//!
//! A manifest identifies a pod by its template, a hash of the fields that cannot change without a new pod. The
//! first pod of a name has its template as UID, each later one a hash of its template and the UID of the pod before
//! it. One that was asked for before that pod was gone keeps the UID that it got then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::event::Desired;
use super::pressure::Evictions;
use super::restart::CrashBackoff;
use super::{NodeState, PodState};
use crate::spec::{PodKey, PodSpec, PodUid, uid};
use crate::types::{Ascending, Gather, InOrder};

/// Names that are remembered although no pod has them any more.
const MAX_NAMES: usize = 1_000;

/// What the newest removed pod of each name leaves to its successor. Written to disk: it outlives the boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Gone>", into = "Vec<Gone>")]
pub struct Incarnations {
    gone: BTreeMap<PodKey, Gone>,
    /// The wanted pods that are not the first of their name, by UID. Not written to disk.
    asked: BTreeMap<PodUid, Arc<PodSpec>>,
    /// Grows with every change.
    changes: u64,
}

/// A removed pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Gone {
    #[serde(flatten)]
    key: PodKey,
    uid: PodUid,
    /// The pod that follows, if its UID does not derive from its template and this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Box<Successor>>,
    /// Its recent evictions, if an eviction removed it.
    #[serde(default)]
    evictions: Evictions,
    /// The back-off of its containers, if an eviction removed it: milliseconds by name.
    #[serde(default)]
    waits_ms: BTreeMap<String, u64>,
    /// The number of the change that recorded it: the oldest are forgotten first.
    #[serde(skip)]
    change: u64,
}

/// A pod that was asked for before the one of its name was gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Successor {
    template: PodUid,
    uid: PodUid,
}

impl From<Vec<Gone>> for Incarnations {
    fn from(oldest_first: Vec<Gone>) -> Self {
        let mut all = Self::default();
        for gone in oldest_first {
            all.note(gone, None);
        }
        all
    }
}

impl From<Incarnations> for Vec<Gone> {
    fn from(all: Incarnations) -> Self {
        let mut oldest_first: Vec<Gone> = all.gone.into_values().collect();
        oldest_first.order_by_key(|gone| gone.change);
        oldest_first
    }
}

impl Incarnations {
    /// Grows with every change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Records a removed pod, and the UID of its successor if that was asked for before.
    pub(super) fn ended(&mut self, pod: &PodState, desired: Option<&Desired>) {
        let mut gone = Gone {
            key: pod.spec.key.clone(),
            uid: pod.spec.uid.clone(),
            next: None,
            evictions: Evictions::default(),
            waits_ms: BTreeMap::new(),
            change: 0,
        };
        if pod.returns() && pod.stopping().is_none() {
            gone.evictions = pod.evictions;
            let waits = pod.of_manifest().iter();
            let waits = waits.filter_map(|c| Some((c.name.clone(), c.backoff?.delay_ms)));
            gone.waits_ms = waits.gather();
        }
        self.note(gone, desired);
        let wanted = desired
            .into_iter()
            .flat_map(|desired| desired.pods.values());
        let own = |next: &&Arc<PodSpec>| {
            next.key == pod.spec.key && next.uid != pod.spec.uid && !self.is_given(next)
        };
        if let Some(next) = wanted.into_iter().find(own) {
            self.is_now(&next.key, &next.template, &next.uid);
        }
    }

    /// Whether the manifest of this wanted pod gives the UID.
    fn is_given(&self, wanted: &PodSpec) -> bool {
        has_given_uid(wanted) && !self.asked.contains_key(&wanted.uid)
    }

    fn note(&mut self, gone: Gone, desired: Option<&Desired>) {
        self.changes += 1;
        let change = self.changes;
        self.gone.insert(gone.key.clone(), Gone { change, ..gone });
        if self.gone.len() > MAX_NAMES {
            // The pods of a CronJob have new names each time; others need theirs after the next boot.
            let wanted = desired
                .into_iter()
                .flat_map(|desired| desired.pods.values());
            let wanted: BTreeSet<&PodKey> = wanted.map(|pod| &pod.key).gather();
            let oldest = self.gone.values();
            let oldest = oldest.min_by_key(|gone| (wanted.contains(&gone.key), gone.change));
            if let Some(key) = oldest.map(|gone| gone.key.clone()) {
                self.gone.remove(&key);
            }
        }
    }

    /// The UID of the next pod of that name and template.
    pub(super) fn next(&self, key: &PodKey, template: &PodUid) -> PodUid {
        let Some(former) = self.gone.get(key) else {
            return template.clone();
        };
        match &former.next {
            Some(next) if next.template == *template => next.uid.clone(),
            _ => uid::next(template, &former.uid),
        }
    }

    /// Notes that the pod of that name and template has this UID, for the next boot.
    fn is_now(&mut self, key: &PodKey, template: &PodUid, uid: &PodUid) {
        if self.next(key, template) == *uid {
            return;
        }
        if let Some(former) = self.gone.get_mut(key) {
            former.next = Some(Box::new(Successor {
                template: template.clone(),
                uid: uid.clone(),
            }));
            self.changes += 1;
        }
    }

    /// What the pod before this new one leaves to it: an evicted pod that crashed keeps its back-off.
    pub(super) fn pass_on(&self, pod: &mut PodState) {
        let Some(gone) = self.gone.get(&pod.spec.key) else {
            return;
        };
        pod.evictions = gone.evictions;
        let permitted = pod.created.time;
        for container in &mut pod.containers {
            let wait = gone.waits_ms.get(&container.name);
            container.backoff = wait.map(|delay_ms| CrashBackoff {
                delay_ms: *delay_ms,
                permitted,
                waived: false,
            });
        }
    }
}

/// Whether the manifest gives the UID. It cannot in a document that stands for pods: what is wanted of that may be a
/// later pod itself, until its successor's turn comes.
fn has_given_uid(spec: &PodSpec) -> bool {
    spec.uid != spec.template && spec.workload.is_none()
}

impl NodeState {
    /// The pods that manifests ask for, under the UIDs that they have or will have.
    pub(super) fn incarnate(&mut self, desired: &Desired) -> Desired {
        let derived = desired.pods.iter().filter(|(_, spec)| !has_given_uid(spec));
        let mut later: BTreeMap<(&PodKey, &PodUid), &PodUid> = BTreeMap::new();
        if derived.clone().next().is_some() {
            let here = self.pods.values().map(|pod| &pod.spec);
            let here = here.filter(|spec| spec.uid != spec.template);
            later.extend(here.map(|spec| ((&spec.key, &spec.template), &spec.uid)));
        }
        let mut all_here = Ascending::of(&self.pods);
        // The pods that have a UID of their own, and what asks for them.
        let mut asked = BTreeMap::new();
        for (first, spec) in derived {
            let here = all_here.get(first);
            let uid = match later.get(&(&spec.key, &spec.template)) {
                Some(uid) => uid,
                None if here.is_some_and(|pod| pod.spec.key == spec.key) => first,
                None => &self.incarnations.next(&spec.key, &spec.template),
            };
            let exists = match uid == first {
                true => here.is_some(),
                false => self.pods.contains_key(uid),
            };
            if exists {
                self.incarnations.is_now(&spec.key, &spec.template, uid);
            }
            if uid != first {
                asked.insert(uid.clone(), Arc::clone(spec));
            }
        }
        let mut pods = desired.pods.clone();
        for spec in asked.values() {
            pods.remove(&spec.uid);
        }
        for (uid, spec) in &asked {
            // Should two pods have one UID, the later document counts.
            if pods.get(uid).is_none_or(|other| other.uid < spec.uid) {
                pods.insert(uid.clone(), self.incarnation(spec, uid));
            }
        }
        self.incarnations.asked = asked;
        Desired {
            pods,
            services: desired.services.clone(),
            workloads: desired.workloads.clone(),
            complete: desired.complete,
            ..Desired::default()
        }
    }

    /// The pod with this UID; the same value as before if nothing changed.
    fn incarnation(&self, spec: &Arc<PodSpec>, uid: &PodUid) -> Arc<PodSpec> {
        if *uid == spec.uid {
            return Arc::clone(spec);
        }
        let same = |asked: &Arc<PodSpec>| Arc::ptr_eq(asked, spec);
        let known = self.desired.iter().filter_map(|d| d.pods.get(uid)).next();
        match known.filter(|_| self.incarnations.asked.get(uid).is_some_and(same)) {
            Some(known) => Arc::clone(known),
            None => Arc::new(spec.with_uid(uid)),
        }
    }

    /// Whether the next pod made from this pod's manifest will have a different UID.
    pub(super) fn has_own_uid(&self, uid: &PodUid) -> bool {
        let wanted = self.desired.as_ref().and_then(|d| d.pods.get(uid));
        wanted.is_some_and(|spec| !self.incarnations.is_given(spec))
    }

    /// Records that this pod is removed. If its manifest still exists, the next pod made from it has a new UID.
    pub(super) fn incarnation_ended(&mut self, pod: &PodState) {
        self.incarnations.ended(pod, self.desired.as_ref());
        let uid = &pod.spec.uid;
        let wanted = self.desired.as_mut().and_then(|d| d.pods.remove(uid));
        let Some(wanted) = wanted else {
            return;
        };
        let asked = self.incarnations.asked.remove(uid);
        let asked = asked.unwrap_or_else(|| Arc::clone(&wanted));
        let uid = match has_given_uid(&asked) {
            true => asked.uid.clone(),
            false => self.incarnations.next(&asked.key, &asked.template),
        };
        let next = self.incarnation(&asked, &uid);
        if let Some(desired) = &mut self.desired {
            desired.pods.insert(uid.clone(), next);
        }
        if uid != asked.uid {
            self.incarnations.asked.insert(uid, asked);
        }
    }
}
