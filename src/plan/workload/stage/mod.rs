//! One document's pods, of the current and of earlier templates: which of them are wanted now.
//!
//! ```text
//! rolling:  new ones come while there are fewer than replicas + maxSurge,
//!           old ones go while replicas - maxUnavailable others are available; those that are not ready first
//! recreate: new ones come when no old one is left
//! in place: the highest ordinals with an earlier template are replaced while enough others are available
//! ```

mod back;
mod figures;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) use self::figures::Figures;

use super::resume::Halfway;
use super::{Progress, ready_since, trial};
use crate::plan::{NodeState, PodState, Stamp, Time};
use crate::spec::workload::Update;
use crate::spec::{PodKey, PodSpec, Reason, Workload, WorkloadKind};
use crate::types::{Gather, InOrder};

/// A document and its pods.
pub(super) struct Stage<'s> {
    workload: &'s Workload,
    /// What the file asks for, in the order of ordinals.
    new: Vec<New<'s>>,
    /// The other pods that belong to the document, by name, with those that are on their way out.
    old: Vec<Old<'s>>,
    /// A new pod can only start once an old one has gone.
    blocked: bool,
    /// The node does not suit the pods of a DaemonSet.
    elsewhere: bool,
    /// A person has stopped all its pods.
    stopped: bool,
    /// It was paused when it came, and still is.
    unstarted: bool,
    /// The node keeps pods of it down by itself.
    pub(super) kept_away: bool,
    /// What the file asks for are the pods of its last good template, which come back (`resume.rs`).
    resumed: Option<Halfway>,
    /// Ordinals whose pods are missing, and come back with the last good template.
    awaited: BTreeSet<u64>,
    min_ready_ms: u64,
    now: Time,
}

/// A pod that the file asks for.
struct New<'s> {
    wanted: &'s Arc<PodSpec>,
    /// The pod of that name, if there is one.
    here: Option<Here<'s>>,
}

impl New<'_> {
    /// Whether it is here, and not on its way out.
    fn stays(&self) -> bool {
        let here = self.here.as_ref();
        here.is_some_and(|here| here.pod.stopping().is_none())
    }
}

/// A pod that exists.
struct Here<'s> {
    pod: &'s PodState,
    /// It was made from an earlier template, and has the name of a new one.
    outdated: bool,
    /// Since when it is ready.
    ready: Option<Time>,
}

/// A pod that no file asks for any more.
struct Old<'s> {
    pod: &'s PodState,
    ready: Option<Time>,
    /// It has the current template: there are too many.
    surplus: bool,
}

impl<'s> Stage<'s> {
    pub(super) fn of(
        state: &'s NodeState,
        workload: &'s Workload,
        new: &[&'s Arc<PodSpec>],
        resumed: Option<Halfway>,
        now: Stamp,
    ) -> Self {
        let own = |pod: &&PodState| pod.spec.workload.as_ref() == Some(&workload.key);
        let mut here: BTreeMap<&PodKey, &PodState> = BTreeMap::new();
        for pod in state.pods.values().filter(own) {
            // A pod on its way out may have the name of its successor.
            let before = here.get(&pod.spec.key);
            if before.is_none_or(|before| before.stopping().is_some()) {
                here.insert(&pod.spec.key, pod);
            }
        }
        let revision = Some(&*workload.revision);
        let new: Vec<New<'s>> = new
            .iter()
            .map(|wanted| New {
                wanted,
                here: here.remove(&wanted.key).map(|pod| Here {
                    pod,
                    outdated: pod.wanted().revision() != revision,
                    ready: ready_since(pod),
                }),
            })
            .collect();
        let old = here.into_values().map(|pod| Old {
            pod,
            ready: ready_since(pod),
            surplus: pod.spec.revision() == revision,
        });
        let old: Vec<Old<'s>> = old.collect();
        let waits = |new: &New<'_>| waits_for(state, &old, new);
        let daemon = workload.key.kind == WorkloadKind::DaemonSet;
        Self {
            blocked: new.iter().any(waits),
            elsewhere: daemon && new.iter().any(|new| state.other_node(new.wanted).is_some()),
            stopped: state.stops.has_workload(&workload.key),
            unstarted: false,
            kept_away: new.iter().any(|new| state.is_kept_away(new.wanted)),
            resumed,
            awaited: BTreeSet::new(),
            old,
            new,
            workload,
            min_ready_ms: workload.min_ready_ms,
            now: now.time,
        }
    }

    /// No pod starts. Returns whether that is so: those that are there go on. Pods that stop are of a document before.
    pub(super) fn keep_unstarted(&mut self) -> bool {
        let none_old = (self.old.iter()).all(|old| old.pod.stopping().is_some());
        self.unstarted = none_old && self.new.iter().all(|new| !new.stays());
        self.unstarted
    }

    fn is_available(&self, ready: Option<Time>) -> bool {
        ready.is_some_and(|since| self.now.since(since) >= self.min_ready_ms)
    }

    /// Whether a new pod has been ready for long enough for an old one to go.
    fn is_steady(&self, ready: Option<Time>) -> bool {
        ready.is_some_and(|since| self.now.since(since) >= self.workload.steady_ms)
    }

    /// The pods that are wanted now.
    pub(super) fn wanted(&self, progress: &Progress) -> impl Iterator<Item = &Arc<PodSpec>> {
        let wanted = match self.workload.update {
            _ if self.elsewhere || self.unstarted => Vec::new(),
            _ if self.workload.key.kind == WorkloadKind::StatefulSet => self.in_place(),
            // No pod serves that the new ones would have to spare.
            Update::Rolling { .. } | Update::Recreate if self.stopped => {
                self.first_new(self.new.len())
            }
            Update::Rolling { surge, .. } if self.resumed.is_some() => self.back(surge as usize),
            Update::Rolling { surge, .. } if self.stands_still(progress) => {
                self.standing(progress, surge as usize)
            }
            Update::Rolling { surge, unavailable } => {
                self.rolling(surge as usize, unavailable as usize)
            }
            Update::Recreate if self.workload.paused => self.standing(progress, 0),
            Update::Recreate | Update::InPlace { .. } => self.recreated(),
            Update::OnDelete => self.on_delete(),
        };
        let surplus = self.surplus(&wanted);
        wanted.into_iter().chain(surplus)
    }

    fn live(&self) -> impl Iterator<Item = &Old<'s>> {
        let live = |old: &&Old<'_>| old.pod.stopping().is_none() && !old.surplus;
        self.old.iter().filter(live)
    }

    /// The pods that are too many and stay for now: they serve until enough others do.
    fn surplus(&self, wanted: &[&Arc<PodSpec>]) -> Vec<&'s Arc<PodSpec>> {
        let none = self.workload.key.kind == WorkloadKind::StatefulSet
            || self.elsewhere
            || self.stopped
            || self.staying_surplus().next().is_none();
        if none {
            return Vec::new();
        }
        let is_wanted = |pod: &PodKey| wanted.iter().any(|wanted| wanted.key == *pod);
        let new = self.new.iter().filter(|new| is_wanted(&new.wanted.key));
        let serving = new.clone().filter(|new| self.serves(new)).count();
        let old = self.live().filter(|old| is_wanted(&old.pod.spec.key));
        let serving = serving + old.filter(|old| self.is_available(old.ready)).count();
        let replicas = self.new.len();
        let mut most = replicas.saturating_sub(serving);
        // A pod that is about to come needs the room.
        let comes = new.clone().any(|new| !new.stays());
        if let (true, Update::Rolling { surge, .. }) = (comes, self.workload.update) {
            most = most.min((replicas + surge as usize).saturating_sub(wanted.len()));
        }
        let available = |old: &&Old<'_>| self.is_available(old.ready);
        let mut surplus: Vec<&Old<'s>> = self.staying_surplus().filter(available).collect();
        surplus.order_by_key(|old| ordinal(&old.pod.spec));
        let kept = surplus.into_iter().take(most);
        kept.map(|old| old.pod.wanted()).collect()
    }

    fn staying_surplus(&self) -> impl Iterator<Item = &Old<'s>> {
        let stays = |old: &&Old<'_>| old.pod.stopping().is_none() && old.surplus;
        self.old.iter().filter(stays)
    }

    /// The first `limit` of the new pods; those that exist and stay count first.
    fn first_new(&self, limit: usize) -> Vec<&Arc<PodSpec>> {
        // A deleted pod comes back only if there is room. A cancelled node shutdown may restore more pods than there
        // should be.
        let here = self.new.iter().filter(|new| new.stays()).count();
        let mut more = limit.saturating_sub(here);
        let mut chosen = Vec::new();
        for new in &self.new {
            if !new.stays() {
                if more == 0 {
                    continue;
                }
                more -= 1;
            }
            chosen.push(new.wanted);
        }
        chosen
    }

    fn rolling(&self, surge: usize, unavailable: usize) -> Vec<&Arc<PodSpec>> {
        let replicas = self.new.len();
        if self.is_alone() {
            return self.first_new(replicas);
        }
        // Those on their way out take room, too.
        let limit = (replicas + surge).saturating_sub(self.old.len());
        let mut wanted = self.first_new(limit.min(replicas));
        let old: Vec<&Old<'_>> = self.live().collect();
        let kept = old.len() - self.going(&old, unavailable.max(usize::from(self.blocked)));
        wanted.extend(self.last_to_go(old, kept));
        wanted
    }

    /// The pods of a rollout that stands still: those that are here. If the file asks for fewer than that, what served
    /// before the rollout stays.
    fn standing(&self, progress: &Progress, surge: usize) -> Vec<&Arc<PodSpec>> {
        let replicas = self.new.len();
        if self.is_alone() {
            return self.first_new(replicas);
        }
        let old: Vec<&Old<'_>> = self.live().collect();
        let here = self.new.iter().filter(|new| new.stays());
        let (working, here) = (
            here.clone().filter(|new| self.serves(new)).count(),
            here.count(),
        );
        let let_in = progress.let_in.max(here).min(replicas);
        let most = match let_in {
            0 => replicas,
            _ => replicas + surge,
        };
        let let_in = let_in.min(working.max(most - old.len().min(replicas)));
        let mut wanted = self.few_new(let_in);
        let kept = old.len().min(most - let_in);
        wanted.extend(self.last_to_go(old, kept));
        wanted
    }

    /// No more than `limit` of the new pods: first those that serve, then the others that are here, then those that are not.
    fn few_new(&self, limit: usize) -> Vec<&Arc<PodSpec>> {
        let mut new: Vec<&New<'_>> = self.new.iter().collect();
        new.order_by_key(|new| (!self.serves(new), !new.stays(), ordinal(new.wanted)));
        new.into_iter().take(limit).map(|new| new.wanted).collect()
    }

    /// Whether a new pod is here to stay, and available.
    fn serves(&self, new: &New<'_>) -> bool {
        let here = new.here.as_ref().filter(|_| new.stays());
        here.is_some_and(|here| self.is_available(here.ready))
    }

    /// Whether no pod has an earlier template.
    fn is_alone(&self) -> bool {
        self.old.iter().all(|old| old.surplus)
    }

    /// The `kept` of these that stay: those that are not available go first, then those with the highest names.
    fn last_to_go<'o>(
        &self,
        mut old: Vec<&'o Old<'s>>,
        kept: usize,
    ) -> impl Iterator<Item = &'o Arc<PodSpec>> {
        old.order_by_key(|old| !self.is_available(old.ready));
        old.into_iter().take(kept).map(|old| old.pod.wanted())
    }

    /// How many of the old pods may go.
    fn going(&self, old: &[&Old<'_>], unavailable: usize) -> usize {
        let enough = self.new.len().saturating_sub(unavailable);
        let live_new = self.new.iter().filter_map(|new| new.here.as_ref());
        let live_new: Vec<&Here<'_>> = live_new
            .filter(|here| here.pod.stopping().is_none())
            .collect();
        let new_available = live_new.iter().filter(|here| self.is_steady(here.ready));
        let new_available = new_available.count();
        let old_available = old
            .iter()
            .filter(|old| self.is_available(old.ready))
            .count();
        let unready_new = live_new.len() - new_available;
        let unready_old = old.len() - old_available;
        // As in Kubernetes: those that do not work go while enough pods are left that may still become ready.
        let all = live_new.len() + old.len();
        let dead = unready_old.min(all.saturating_sub(enough + unready_new));
        let working = (new_available + old_available).saturating_sub(enough);
        dead + working.min(old_available)
    }

    fn recreated(&self) -> Vec<&Arc<PodSpec>> {
        match self.is_alone() {
            true => self.first_new(self.new.len()),
            // The strategy may have been another until now: pods that came then serve.
            false => self.first_new(0),
        }
    }

    fn on_delete(&self) -> Vec<&Arc<PodSpec>> {
        let old: Vec<_> = self.live().map(|old| old.pod.wanted()).collect();
        match old.is_empty() {
            true => self.first_new(self.new.len()),
            false => old,
        }
    }

    /// The pods of a StatefulSet, which keep their names.
    fn in_place(&self) -> Vec<&Arc<PodSpec>> {
        let available = |new: &New<'_>| {
            let here = new.here.as_ref();
            here.is_some_and(|here| self.is_available(here.ready))
        };
        let ordered = self.workload.ordered;
        let update = self.to_update();
        let mut wanted = Vec::new();
        let mut before = true;
        for new in &self.new {
            let number = ordinal(new.wanted);
            let goes = |here: &Here<'_>| here.pod.stopping().is_some();
            match &new.here {
                // It comes with the new template.
                _ if self.was_updated(new) && !new.stays() => continue,
                None if self.awaited.contains(&number) => {}
                Some(here) if self.comes_back_held(new, here) => wanted.push(new.wanted),
                // Below the partition one comes back as it was.
                Some(here) if here.outdated && (!goes(here) || number < self.partition()) => {
                    wanted.push(match update.contains(&number) {
                        true => new.wanted,
                        false => here.pod.wanted(),
                    });
                }
                Some(here) if !goes(here) => wanted.push(new.wanted),
                // It comes back when those before it are available.
                _ if ordered && !before => {}
                _ => wanted.push(new.wanted),
            }
            before &= available(new);
        }
        // Those beyond the number wanted go from the highest on, one after the other.
        let mut surplus: Vec<&Old<'_>> = self.old.iter().collect();
        surplus.order_by_key(|old| ordinal(&old.pod.spec));
        if ordered {
            surplus.pop();
            let live = surplus.iter().filter(|old| old.pod.stopping().is_none());
            wanted.extend(live.map(|old| old.pod.wanted()));
        }
        wanted
    }

    /// The first ordinal that is updated.
    fn partition(&self) -> u64 {
        let start = self.new.first().map_or(0, |new| ordinal(new.wanted));
        match self.workload.update {
            Update::InPlace { partition, .. } => start + u64::from(partition),
            Update::Rolling { .. } | Update::Recreate | Update::OnDelete => 0,
        }
    }

    /// The ordinals whose new template may take effect now: first of those that are not available, which costs nothing,
    /// then from the highest on.
    fn to_update(&self) -> BTreeSet<u64> {
        let Update::InPlace { unavailable, .. } = self.workload.update else {
            return BTreeSet::new();
        };
        let most = unavailable as usize;
        let counts = |new: &&New<'_>| {
            let here = new.here.as_ref();
            here.is_some_and(|here| match here.outdated {
                true => self.is_available(here.ready),
                false => self.is_steady(here.ready),
            })
        };
        let outdated = |new: &&New<'_>| {
            let here = new.here.as_ref();
            here.is_some_and(|here| here.outdated && here.pod.stopping().is_none())
        };
        let missing = self.new.iter().filter(|new| !counts(new));
        // One that waits for those before it is not on its way: it may wait for one that is updated here.
        let comes = |new: &&New<'_>| new.here.is_some() && !outdated(new);
        let unsteady = missing.clone().filter(comes).count();
        let missing = missing.count();
        let candidates = self.new.iter().rev().filter(outdated);
        let candidates = candidates
            .filter(|new| ordinal(new.wanted) >= self.partition() && !self.was_updated(new));
        let (working, broken): (Vec<_>, Vec<_>) = candidates.partition(counts);
        let broken = broken.into_iter().take(most.saturating_sub(unsteady));
        let working = working.into_iter().take(most.saturating_sub(missing));
        let all = broken.chain(working);
        all.map(|new| ordinal(new.wanted)).gather()
    }

    /// Whether a StatefulSet with a partition has no pods for now. That ends no rollout: the first ones are to come back
    /// with the former template.
    fn is_between(&self) -> bool {
        let partition = match self.workload.update {
            Update::InPlace { partition, .. } => partition,
            Update::Rolling { .. } | Update::Recreate | Update::OnDelete => 0,
        };
        partition > 0 && self.new.is_empty()
    }

    fn stands_still(&self, progress: &Progress) -> bool {
        progress.failed || self.workload.paused
    }

    /// Notes how far it is, if it may take so long without progress. Returns when the next step becomes possible if nothing happens.
    /// `on_trial` says when a rollout that may be taken back fails, and when its time is to be written down.
    pub(super) fn note(
        &self,
        progress: &mut Progress,
        now: Stamp,
        deadline_ms: Option<u64>,
        on_trial: impl FnOnce((usize, usize, usize), u64) -> (Time, Option<Time>),
    ) -> Option<Time> {
        self.count(progress, now);
        let figures = progress.figures;
        let going = self.old.iter().filter(|old| old.pod.stopping().is_some());
        let [updated, steady, old] =
            [figures.updated, figures.updated_steady, figures.old].map(|number| number as usize);
        let going = going.count();
        let gone = match self.misses_former(progress) {
            // Some were deleted or evicted, which is no progress.
            true => progress.best.2,
            false => usize::MAX - 2 * old - going,
        };
        if std::mem::take(&mut progress.renumbered) {
            progress.best = self.rest(progress, (updated, steady, going));
        }
        let best = (
            progress.best.0.max(updated),
            progress.best.1.max(steady),
            progress.best.2.max(gone),
        );
        // Pods that the node stops are no progress.
        if best != progress.best && !self.kept_away {
            progress.best = best;
            progress.since = now.time;
            progress.failed = false;
        }
        progress.let_in = progress.let_in.max(updated);
        let all = progress.replicas_here;
        // What breaks later is no matter of the rollout.
        let whole = updated == all && steady == all && old == 0;
        progress.complete |= whole && !self.is_between();
        let waits = progress.complete || self.workload.paused || self.stopped || self.kept_away;
        let deadline = deadline_ms.filter(|_| !waits);
        let (fails_at, record_at) = match deadline {
            Some(within_ms) if self.workload.rollback && self.resumed.is_none() => {
                let (at, record) = on_trial(progress.best, within_ms);
                (Some(at), record)
            }
            deadline => (deadline.map(|after| progress.since.plus(after)), None),
        };
        let stays_failed = self.kept_away && progress.failed;
        progress.failed = stays_failed || fails_at.is_some_and(|at| at <= now.time);
        progress.progressing.set(!progress.failed, now.wall);
        let new = self.new.iter().filter_map(|new| new.here.as_ref()?.ready);
        let ripe = new.chain(self.old.iter().filter_map(|old| old.ready));
        let (available, steady) = (self.min_ready_ms, self.workload.steady_ms);
        // Pods of all documents that became ready together are looked at together.
        let whole = |at: Time| at.0.checked_next_multiple_of(1000).map_or(at, Time);
        let ripe = ripe.flat_map(|since| {
            let steady = (steady != available).then(|| whole(since.plus(steady)));
            [Some(since.plus(available)), steady]
        });
        let ripe = ripe.flatten();
        let later = ripe
            .chain(fails_at)
            .chain(record_at)
            .filter(|at| *at > now.time);
        later.min()
    }

    /// How far a failed rollout is once it has another number of pods. If all its pods are steady then, it goes on.
    fn rest(
        &self,
        progress: &Progress,
        (updated, steady, going): (usize, usize, usize),
    ) -> (usize, usize, usize) {
        let Update::Rolling { surge, .. } = self.workload.update else {
            return (0, 0, 0);
        };
        let here = self.standing(progress, surge as usize);
        let stay = self
            .live()
            .filter(|old| here.iter().any(|pod| pod.key == old.pod.spec.key));
        let steady = steady.min(self.new.len().saturating_sub(1));
        (updated, steady, usize::MAX - 2 * stay.count() - going)
    }

    /// The pods of the current template that are not ready, for people.
    pub(super) fn unready(&self, state: &NodeState) -> Vec<String> {
        let pods = self.new.iter().filter(|new| new.here.is_some());
        pods.filter_map(|new| trial::unready(state, new.wanted))
            .collect()
    }
}

/// Whether a new pod is held for nothing but what pods of an earlier template have.
fn waits_for(state: &NodeState, old: &[Old<'_>], new: &New<'_>) -> bool {
    let Some(hold) = new.here.as_ref().and_then(|here| here.pod.hold()) else {
        return false;
    };
    let is_old = |pod: &PodState| {
        let mut former = old.iter().filter(|old| !old.surplus);
        former.any(|old| old.pod.spec.uid == pod.spec.uid)
    };
    if matches!(hold.reason, Reason::NodePorts | Reason::VolumeRestrictions) {
        let ports = state.port_owners(new.wanted).map(|(_, owner)| owner);
        let claims = state.claim_owners(new.wanted).map(|(_, owner)| owner);
        let mut owners = ports.chain(claims).peekable();
        return owners.peek().is_some() && owners.all(is_old);
    }
    matches!(hold.reason, Reason::OutOf(_)) && state.has_room_without(is_old, new.wanted)
}

/// The number at the end of a pod's name.
fn ordinal(pod: &PodSpec) -> u64 {
    let number = pod.key.name.rsplit('-').next();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
