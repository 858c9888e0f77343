//! Claims of storage: the size of those that the file system does not limit, and those that only one pod may use.
//!
//! A claim that is over its size is enforced like an emptyDir that is over its limit: the pods that use it are evicted one
//! after the other. They are held until files were removed or the claim was given more room.

use std::collections::{BTreeMap, BTreeSet};

use super::fit::failed;
use super::hold::Rejection;
use super::notice::Annotations;
use super::pressure::{Eviction, EvictionReason, GRACE_MS, Walk};
use super::state::Sandbox;
use super::{NodeState, Notice, PodState, Stamp};
use crate::spec::priority::CRITICAL;
use crate::spec::{PodKey, PodSpec, PodUid, Reason, VolumeSource};
use crate::types::quantity::Quantity;

/// What decisions about a claim depend on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claim {
    /// Only one pod at a time may use it: `ReadWriteOncePod`.
    pub one_pod: bool,
    /// Its size in bytes, if that is enforced by counting: it is bound to a directory that the file system does not limit.
    pub counted_bytes: Option<u64>,
}

/// The claims by namespace and name.
pub type Claims = BTreeMap<PodKey, Claim>;

/// What is known of claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownClaims {
    all: Claims,
    /// How many bytes those take whose size is enforced by counting, as far as they were measured.
    used: BTreeMap<PodKey, u64>,
    /// Those that were over their size before the agent restart and were not measured since.
    suspect: BTreeSet<PodKey>,
}

impl KnownClaims {
    /// All claims.
    pub fn all(&self) -> &Claims {
        &self.all
    }

    /// Whether this claim takes more than its size, by the newest figures.
    fn is_over(&self, key: &PodKey) -> Option<u64> {
        let size = self.all.get(key)?.counted_bytes?;
        let over = match self.used.get(key) {
            Some(used) => *used > size,
            None => self.suspect.contains(key),
        };
        over.then_some(size)
    }

    fn over(&self) -> Vec<&PodKey> {
        let all = self.all.keys();
        all.filter(|key| self.is_over(key).is_some()).collect()
    }
}

/// The claims that a pod uses.
pub fn of(pod: &PodSpec) -> impl Iterator<Item = PodKey> + '_ {
    pod.volumes
        .iter()
        .filter_map(|volume| match &volume.source {
            VolumeSource::Claim { name, .. } => {
                Some(PodKey::new(pod.key.namespace.clone(), name.as_str()))
            }
            VolumeSource::EmptyDir { .. }
            | VolumeSource::MemoryDir { .. }
            | VolumeSource::HugePageDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Projected(_)
            | VolumeSource::Image(_) => None,
        })
}

impl NodeState {
    /// The claims to measure: those with a size that is enforced by counting and that pods use, or are held for.
    pub fn measured_claims(&self, walk: Walk) -> Vec<PodKey> {
        if walk == Walk::None {
            return Vec::new();
        }
        let counted = self.claims.all.iter();
        let counted = counted.filter(|(_, claim)| claim.counted_bytes.is_some());
        let uses = |pod: &&PodState| {
            let held = pod
                .hold()
                .is_some_and(|hold| hold.reason == Reason::ClaimOverSize);
            held || matches!(pod.sandbox, Sandbox::Ready { .. })
        };
        let users: Vec<&PodState> = self.pods.values().filter(uses).collect();
        let used = |key: &PodKey| {
            users
                .iter()
                .any(|pod| of(&pod.spec).any(|claim| claim == *key))
        };
        counted
            .map(|(key, _)| key)
            .filter(|key| used(key))
            .cloned()
            .collect()
    }

    /// What claims are has changed: pods that are held for one may be admitted.
    pub(super) fn claims_changed(&mut self, all: &Claims, now: Stamp, out: &mut Vec<Notice>) {
        let size = |claims: &Claims, key: &PodKey| claims.get(key)?.counted_bytes;
        // One that got more storage since may be in use again at once.
        self.claims
            .suspect
            .retain(|key| size(&self.claims.all, key) == size(all, key));
        let counted = |key: &PodKey| {
            all.get(key)
                .is_some_and(|claim| claim.counted_bytes.is_some())
        };
        self.claims.used.retain(|key, _| counted(key));
        self.claims.all.clone_from(all);
        self.admit(now, out);
    }

    /// These pods were held before the agent restart, because a claim of theirs was over its size: it still counts as that
    /// until it is measured.
    pub(super) fn suspect_claims_of(&mut self, pods: &[PodUid]) {
        let Some(desired) = &self.desired else {
            return;
        };
        let pods = pods.iter().filter_map(|uid| desired.pods.get(uid));
        self.claims.suspect.extend(pods.flat_map(|pod| of(pod)));
    }

    /// Claims were measured. Those that were not keep their figures. Returns whether that may admit a pod.
    pub(super) fn claims_measured(&mut self, used: &BTreeMap<PodKey, u64>) -> bool {
        let before: Vec<PodKey> = self.claims.over().into_iter().cloned().collect();
        self.claims.suspect.retain(|key| !used.contains_key(key));
        let used = used.iter().map(|(key, bytes)| (key.clone(), *bytes));
        self.claims.used.extend(used);
        !self.claims.over().into_iter().eq(&before)
    }

    /// The eviction of a pod that uses a claim that is over its size.
    pub(super) fn evicted_for_claim(&self, pod: &PodState) -> Option<Eviction> {
        let over = of(&pod.spec).find_map(|key| Some((self.claims.is_over(&key)?, key)));
        let (size, key) = over?;
        let (name, size) = (&key.name, Quantity::bytes(size));
        Some(Eviction {
            reason: EvictionReason::ClaimSize,
            message: format!(
                "Usage of PersistentVolumeClaim \"{name}\" exceeds its size \"{size}\". "
            ),
            annotations: Annotations::new(),
            grace_ms: GRACE_MS,
        })
    }

    /// Refuses a pod that uses a claim that is over its size. A critical pod is not evicted for that, nor held.
    pub(super) fn claim_over_size(&self, pod: &PodSpec) -> Option<Rejection> {
        if pod.priority >= CRITICAL || !self.pressure.enforces_limits() {
            return None;
        }
        let over = of(pod).find_map(|key| Some((self.claims.is_over(&key)?, key)));
        let (size, key) = over?;
        let (name, size) = (&key.name, Quantity::bytes(size));
        Some(Rejection {
            reason: Reason::ClaimOverSize,
            message: format!(
                "persistentvolumeclaim \"{name}\" takes more than its size \"{size}\": remove files from it, or let it \
                 request more storage"
            ),
        })
    }

    /// Refuses a pod that uses a claim that only one pod may use, while another one does (the scheduler's
    /// `VolumeRestrictions`), or a claim that is not known, as only one may be able to use that.
    pub(super) fn claim_taken(&self, pod: &PodSpec) -> Option<Rejection> {
        if let Some(claim) = self.claim_without_document(pod) {
            let why = format!("persistentvolumeclaim {:?} not found", claim.name);
            return Some(failed(Reason::VolumeBinding, &why));
        }
        let (claim, owner) = self.claim_owners(pod).next()?;
        let (claim, owner) = (claim.name, &owner.spec.key);
        // The scheduler names neither the claim nor the pod.
        let why = format!(
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode ({claim} is in \
             use by pod {owner})"
        );
        Some(failed(Reason::VolumeRestrictions, &why))
    }

    /// The first claim of this pod that has no document, and that another pod waits for.
    fn claim_without_document(&self, pod: &PodSpec) -> Option<PodKey> {
        let mut unknown = of(pod).filter(|key| !self.claims.all.contains_key(key));
        unknown.find(|key| self.other_users(pod, key).next().is_some())
    }

    /// The other pods that use claims of this one that only one pod may use.
    pub(super) fn claim_owners<'s>(
        &'s self,
        pod: &'s PodSpec,
    ) -> impl Iterator<Item = (PodKey, &'s PodState)> {
        let all = &self.claims.all;
        let one_pod = move |key: &PodKey| all.get(key).is_some_and(|claim| claim.one_pod);
        of(pod).filter(one_pod).flat_map(move |key| {
            let owners = self.other_users(pod, &key);
            owners.map(move |other| (key.clone(), other))
        })
    }

    /// The other pods that use this claim.
    fn other_users<'s>(
        &'s self,
        pod: &'s PodSpec,
        claim: &PodKey,
    ) -> impl Iterator<Item = &'s PodState> + use<'s> {
        let others = self.pods.values().filter(|other| other.spec.uid != pod.uid);
        let wanted = claim.clone();
        let users = others.filter(move |other| of(&other.spec).any(|theirs| theirs == wanted));
        users.filter(|other| other.takes_ports())
    }
}
