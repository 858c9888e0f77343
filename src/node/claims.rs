//! Claims and volumes as clients see them: what each claim is bound to, its use and its size.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::commands::{Reply, answer};
use super::{Input, Node};
use crate::api::{CommandError, CommandErrorKind, VolumeRow};
use crate::effects::volume::claim::{self, Bound, Found, Record};
use crate::effects::volume::claim_size::{self, Sized};
use crate::layout::Layout;
use crate::plan::event::Claims;
use crate::plan::{Event, NodeFact, PodState};
use crate::spec::{Object, ObjectKey, ObjectKind, PodKey, VolumeSource, binding, uid};
use crate::sys::disk_usage;
use crate::types::Gather;

/// The maximum number of files that are counted for one list.
const MOST_FILES: u64 = 200_000;

/// The phase of a claim whose record cannot be read.
const LOST: &str = "Lost";

/// A document with the time of its file.
pub(super) type Shown = (Arc<Object>, Option<Time>);

impl Node {
    /// Shows the configuration documents, claims and volumes with their state.
    pub(super) fn show_configuration(&self) {
        let layout = &self.tools.config.layout;
        let shown = with_state(&self.documents, &claim::find(layout), layout);
        self.shown.store.set_configuration(&shown);
    }

    /// A pod has its volumes: a claim may have been bound for it.
    pub(super) fn claims_may_be_bound(&self, pod: &PodState) {
        if claims_of(pod).next().is_some() {
            self.show_configuration();
            self.settle_claims();
            self.ending_claims.due.set(true);
        }
    }

    /// The first documents are there: claims have the sizes of before the agent restart until they are settled.
    pub(super) fn claims_known(&mut self) {
        let layout = &self.tools.config.layout;
        for lost in claim::find(layout).lost {
            let (why, record) = (crate::chain(&lost.why), &lost.record);
            let claim = format!("{}/{}", record.namespace, record.name);
            tracing::warn!("claim `{claim}` is lost: {why}, keeping its data");
        }
        self.claim_sizes = claim_size::known(layout);
        self.settle_claims();
    }

    /// Gives claims the sizes that their documents ask for, beside the loop: files may have to be moved to a project.
    pub(super) fn settle_claims(&self) {
        let layout = self.tools.config.layout.clone();
        let configuration = self.tools.sandboxes.configuration.now();
        let inputs = self.tools.inputs.clone();
        let number = self.settlements.get() + 1;
        self.settlements.set(number);
        super::spawn(async move {
            let sizes = super::unblock(move || claim_size::settle(&layout, &configuration)).await;
            let _ = inputs.send(Input::ClaimsSettled(number, sizes)).await;
        });
    }

    /// Claims have the sizes that their documents ask for. Files may take one settlement longer than a later one.
    pub(super) fn claims_settled(&mut self, number: u64, sizes: Vec<Sized>) {
        if number < self.settled {
            return;
        }
        self.settled = number;
        for sized in &sizes {
            let new = !self.claim_sizes.contains(sized);
            if let Some(problem) = sized.problem.as_ref().filter(|_| new) {
                let claim = &sized.claim;
                tracing::warn!("claim `{claim}`: {problem}, counting its files instead");
            }
        }
        self.claim_sizes = sizes;
        self.note_claims();
        self.show_configuration();
    }

    /// Tells the planner what claims are now.
    pub(super) fn note_claims(&mut self) {
        let mut claims = Claims::new();
        for sized in &self.claim_sizes {
            let claim = claims.entry(sized.claim.clone()).or_default();
            claim.counted_bytes = sized.counted_bytes;
        }
        for (object, _) in &self.documents {
            if let Object::Claim(claim) = &**object {
                let modes = claim
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.access_modes.as_ref());
                let mut modes = modes.into_iter().flatten();
                let ObjectKey {
                    namespace, name, ..
                } = object.key();
                let claim = claims.entry(PodKey::new(namespace, name)).or_default();
                claim.one_pod = modes.any(|mode| mode == "ReadWriteOncePod");
            }
        }
        if claims != *self.state.claims.all() {
            self.record(&Event::Node(NodeFact::ClaimsChanged(claims)));
        }
    }

    /// What claims are bound to. Counting files takes its time, so it is done beside the loop.
    pub(super) fn list_volumes(&self, reply: Reply<Vec<VolumeRow>>) {
        let layout = self.tools.config.layout.clone();
        let found = claim::find(&layout);
        let lost = found.lost.into_iter().map(|lost| (lost.record, true));
        let all = found.records.into_iter().map(|record| (record, false));
        let records: Vec<(Record, bool)> = all.chain(lost).collect();
        let row = |(record, lost): &(Record, bool)| self.row(record, *lost);
        let rows: Vec<VolumeRow> = records.iter().map(row).collect();
        answer(reply, async move {
            let counted = super::unblock(move || {
                let mut budget = MOST_FILES;
                let mut rows = rows;
                for (row, (record, _)) in rows.iter_mut().zip(&records) {
                    let counted = || {
                        // The path of a local volume may be a symlink.
                        let resolved = std::fs::canonicalize(&row.path).ok();
                        let resolved = resolved.filter(|_| record.bound != Bound::Directory);
                        let path = resolved.as_ref().unwrap_or(&row.path);
                        disk_usage::of(path, None, &mut budget).bytes
                    };
                    let limited = claim_size::used_by_quota(&layout, record);
                    row.used_bytes = limited.unwrap_or_else(counted);
                }
                rows
            });
            Ok(counted.await)
        });
    }

    /// Removes what a claim is bound to, unless a pod uses it.
    pub(super) fn remove_volume(&self, namespace: &str, name: &str, reply: Reply<VolumeRow>) {
        let layout = self.tools.config.layout.clone();
        let is_it = |record: &Record| record.namespace == namespace && record.name == name;
        let found = claim::find(&layout);
        let lost = found.lost.into_iter().map(|lost| lost.record).find(is_it);
        let is_lost = lost.is_some();
        let Some(record) = found.records.into_iter().find(is_it).or(lost) else {
            let message = format!("claim `{namespace}/{name}` is bound to nothing");
            let kind = CommandErrorKind::NotFound;
            let _ = reply.try_send(Err(CommandError { kind, message }));
            return;
        };
        let row = self.row(&record, is_lost);
        if !row.pods.is_empty() {
            let pods = row.pods.join(", ");
            let message = format!(
                "claim `{namespace}/{name}` is in use by {pods}; take the pod's file out of the manifest directory first"
            );
            let kind = CommandErrorKind::Conflict;
            let _ = reply.try_send(Err(CommandError { kind, message }));
            return;
        }
        let store = self.shown.store.clone();
        let documents = self.documents.clone();
        answer(reply, async move {
            let removed = super::unblock(move || {
                claim::remove(&layout, &record.namespace, &record.name)?;
                let found = claim::find(&layout);
                store.set_configuration(&with_state(&documents, &found, &layout));
                Ok::<_, std::io::Error>(())
            });
            removed.await.map_err(|error| CommandError {
                kind: CommandErrorKind::Failed,
                message: format!("could not remove `{}`: {error}", row.path.display()),
            })?;
            Ok(row)
        });
    }

    fn row(&self, record: &Record, is_lost: bool) -> VolumeRow {
        let kind = ObjectKind::PersistentVolumeClaim;
        let key = ObjectKey::new(kind, &record.namespace, &record.name);
        let document = self
            .documents
            .iter()
            .find(|(object, _)| object.key() == key);
        let requested = document.and_then(|(object, _)| match &**object {
            Object::Claim(claim) => Some(requested(claim)?.0),
            _ => None,
        });
        let uses = |pod: &&PodState| {
            *pod.spec.key.namespace == *record.namespace
                && claims_of(pod).any(|c| *c == record.name)
        };
        let pods = self.state.pods.values().filter(uses);
        VolumeRow {
            namespace: record.namespace.clone(),
            claim: record.name.clone(),
            volume: volume_name(record),
            status: match (is_lost, document) {
                (true, _) => LOST,
                (false, Some(_)) => "Bound",
                (false, None) => "Released",
            }
            .to_owned(),
            path: record.path(&self.tools.config.layout),
            requested,
            used_bytes: 0,
            pods: pods.map(|pod| pod.spec.key.name.to_string()).collect(),
        }
    }
}

/// The names of the claims that a pod uses.
fn claims_of(pod: &PodState) -> impl Iterator<Item = &String> {
    let volumes = pod.spec.volumes.iter();
    volumes.filter_map(|volume| match &volume.source {
        VolumeSource::Claim { name, .. } => Some(name),
        _ => None,
    })
}

/// The name of what a claim is bound to. A directory is shown as a volume of its own.
fn volume_name(record: &Record) -> String {
    match &record.bound {
        Bound::Directory => {
            let (namespace, name) = (&record.namespace, &record.name);
            // `a-b` with `c` and `a` with `b-c` are two claims.
            let own = namespace.contains('-').then(|| {
                let hash = uid::of_name("PersistentVolume", namespace, name);
                format!("-{:.5}", hash.as_str())
            });
            format!("pvc-{namespace}-{name}{}", own.unwrap_or_default())
        }
        Bound::Volume { volume, .. } => volume.clone(),
    }
}

fn requested(claim: &core::PersistentVolumeClaim) -> Option<Quantity> {
    binding::storage(claim).cloned()
}

/// The documents with the state of claims and volumes, and a volume for each directory of a claim.
fn with_state(documents: &[Shown], found: &Found, layout: &Layout) -> Vec<Shown> {
    let by_claim: BTreeMap<PodKey, &Record> = found
        .records
        .iter()
        .map(|record| {
            let (namespace, name) = (record.namespace.clone(), record.name.clone());
            (PodKey::new(namespace, name), record)
        })
        .gather();
    let mut shown = Vec::new();
    let claims = documents.iter().filter_map(|(object, created)| {
        let Object::Claim(claim) = &**object else {
            return None;
        };
        let key = object.key();
        Some((PodKey::new(key.namespace, key.name), (&**claim, created)))
    });
    let claims: BTreeMap<PodKey, _> = claims.gather();
    for (object, created) in documents {
        let object = match &**object {
            Object::Claim(claim) => {
                let key = object.key();
                let key = PodKey::new(key.namespace, key.name);
                let record = by_claim.get(&key);
                let size = record.and_then(|record| capacity(record, claim, documents));
                let mut shown = claim_shown(claim, record.copied(), size);
                let mut lost = found.lost.iter().map(|lost| &lost.record);
                let is_it =
                    |lost: &Record| *lost.namespace == *key.namespace && *lost.name == *key.name;
                if let Some(status) = shown.status.as_mut().filter(|_| lost.any(is_it)) {
                    status.phase = Some(LOST.to_owned());
                }
                Arc::new(Object::Claim(Box::new(shown)))
            }
            Object::Volume(volume) => {
                let name = volume.metadata.name.as_deref().unwrap_or_default();
                let mut bound = by_claim.iter();
                let bound = bound.find(|(_, record)| volume_name(record) == name);
                let claim = bound.map(|(key, record)| {
                    let claim = claims.get(key).map(|(claim, _)| *claim);
                    (reference(record, claim), claim.is_some())
                });
                Arc::new(Object::Volume(Box::new(volume_shown(volume, claim))))
            }
            _ => object.clone(),
        };
        shown.push((object, created.clone()));
    }
    let directories = by_claim
        .iter()
        .filter(|(_, record)| record.bound == Bound::Directory);
    for (key, record) in directories {
        let (claim, created) = claims.get(key).copied().unzip();
        let volume = volume_of(record, claim, layout);
        shown.push((
            Arc::new(Object::Volume(Box::new(volume))),
            created.cloned().flatten(),
        ));
    }
    shown
}

/// The size of what a claim is bound to: of its own directory, or of the volume.
fn capacity(
    record: &Record,
    claim: &core::PersistentVolumeClaim,
    documents: &[Shown],
) -> Option<Quantity> {
    let asked = requested(claim);
    match &record.bound {
        Bound::Directory => record.capacity.clone().map(Quantity).or(asked),
        Bound::Volume { volume, .. } => {
            let key = ObjectKey::new(ObjectKind::PersistentVolume, "", volume);
            let found = documents.iter().find(|(object, _)| object.key() == key);
            let size = found.and_then(|(object, _)| match &**object {
                Object::Volume(volume) => volume.spec.as_ref()?.capacity.as_ref()?.get("storage"),
                _ => None,
            });
            size.cloned().or(asked)
        }
    }
}

fn claim_shown(
    claim: &core::PersistentVolumeClaim,
    record: Option<&Record>,
    size: Option<Quantity>,
) -> core::PersistentVolumeClaim {
    let mut claim = claim.clone();
    let mut status = core::PersistentVolumeClaimStatus {
        phase: Some("Pending".to_owned()),
        ..Default::default()
    };
    if let (Some(record), Some(spec)) = (record, &mut claim.spec) {
        spec.volume_name = Some(volume_name(record));
        status.phase = Some("Bound".to_owned());
        status.access_modes.clone_from(&spec.access_modes);
        status.capacity = size.map(|storage| [("storage".to_owned(), storage)].into());
    }
    claim.status = Some(status);
    claim
}

/// `claim`: what it is bound to, and whether a file still asks for that claim.
fn volume_shown(
    volume: &core::PersistentVolume,
    claim: Option<(core::ObjectReference, bool)>,
) -> core::PersistentVolume {
    let mut volume = volume.clone();
    let phase = match claim {
        Some((_, true)) => "Bound",
        Some((_, false)) => "Released",
        None => "Available",
    };
    if let (Some((claim, _)), Some(spec)) = (claim, &mut volume.spec) {
        spec.claim_ref = Some(claim);
    }
    volume.status = Some(core::PersistentVolumeStatus {
        phase: Some(phase.to_owned()),
        ..Default::default()
    });
    volume
}

/// The directory of a claim as a volume.
fn volume_of(
    record: &Record,
    claim: Option<&core::PersistentVolumeClaim>,
    layout: &Layout,
) -> core::PersistentVolume {
    let spec = claim.and_then(|claim| claim.spec.as_ref());
    let storage = record.capacity.clone().map(Quantity);
    let storage = storage.or_else(|| claim.and_then(requested));
    let path = record.path(layout).display().to_string();
    let mut volume = core::PersistentVolume::default();
    volume.metadata.name = Some(volume_name(record));
    volume.spec = Some(core::PersistentVolumeSpec {
        access_modes: spec.and_then(|spec| spec.access_modes.clone()),
        capacity: storage.map(|storage| [("storage".to_owned(), storage)].into()),
        claim_ref: Some(reference(record, claim)),
        local: Some(core::LocalVolumeSource {
            path,
            ..Default::default()
        }),
        persistent_volume_reclaim_policy: Some("Retain".to_owned()),
        storage_class_name: spec.and_then(|spec| spec.storage_class_name.clone()),
        volume_mode: Some("Filesystem".to_owned()),
        ..Default::default()
    });
    let phase = match claim {
        Some(_) => "Bound",
        // Its document is gone; the data stays.
        None => "Released",
    };
    volume.status = Some(core::PersistentVolumeStatus {
        phase: Some(phase.to_owned()),
        ..Default::default()
    });
    volume
}

/// The claim of a record, with the UID that it is shown with.
fn reference(
    record: &Record,
    claim: Option<&core::PersistentVolumeClaim>,
) -> core::ObjectReference {
    let kind = ObjectKind::PersistentVolumeClaim.as_str();
    let uid = match claim {
        Some(claim) => uid::shown(kind, &claim.metadata),
        None => uid::of_name(kind, &record.namespace, &record.name).to_string(),
    };
    core::ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(record.namespace.clone()),
        name: Some(record.name.clone()),
        uid: Some(uid),
        ..Default::default()
    }
}
