//! What a pod refers to: ConfigMaps, Secrets and claims of its namespace.

use std::collections::BTreeSet;

use super::configuration::{ObjectKey, ObjectKind};
use super::pod::{EnvValue, PodSpec, Projection, VolumeSource};

impl PodSpec {
    /// The ConfigMaps, Secrets and claims that its variables and volumes come from, also optional ones.
    pub fn references(&self) -> BTreeSet<ObjectKey> {
        let key = |kind: ObjectKind, name: &str| ObjectKey::new(kind, &self.key.namespace, name);
        let mut found = self.references_of_volumes();
        for container in self.all_containers() {
            found.extend(
                container
                    .env_from
                    .iter()
                    .map(|from| key(from.kind, &from.name)),
            );
            for variable in &container.env {
                if let EnvValue::Key(reference) = &variable.value {
                    found.insert(key(reference.kind, &reference.name));
                }
            }
        }
        found
    }

    /// Those that its volumes come from.
    pub fn references_of_volumes(&self) -> BTreeSet<ObjectKey> {
        let mut found = BTreeSet::new();
        for volume in &self.volumes {
            if let VolumeSource::Claim { name, .. } = &volume.source {
                let kind = ObjectKind::PersistentVolumeClaim;
                found.insert(ObjectKey::new(kind, &self.key.namespace, name));
            }
            let VolumeSource::Projected(files) = &volume.source else {
                continue;
            };
            for source in &files.sources {
                if let Projection::Keys { kind, name, .. } = source {
                    found.insert(ObjectKey::new(*kind, &self.key.namespace, name));
                }
            }
        }
        found
    }

    /// Whether a volume has files with the pod's own fields, which an edit may change.
    pub fn has_downward_files(&self) -> bool {
        self.volumes.iter().any(|volume| match &volume.source {
            VolumeSource::Projected(files) => {
                let mut sources = files.sources.iter();
                sources.any(|source| matches!(source, Projection::Downward(_)))
            }
            VolumeSource::EmptyDir { .. }
            | VolumeSource::MemoryDir { .. }
            | VolumeSource::HugePageDir { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Image(_)
            | VolumeSource::Claim { .. } => false,
        })
    }
}
