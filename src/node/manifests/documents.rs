//! The documents of all files of the manifest directory together.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{InEffect, Manifests};
use crate::api::FileStatus;
use crate::plan::event::Desired;
use crate::plan::status;
use crate::spec::{Configuration, Object, ObjectKey, ObjectKind};
use crate::types::Gather;

/// The documents of the manifest directory, as the agent acts on them and shows them.
#[derive(Debug)]
pub(in crate::node) struct Documents {
    /// The wanted pods and services.
    pub(in crate::node) desired: Desired,
    /// The services, as they are shown.
    pub(in crate::node) services: Vec<Service>,
    /// The priority classes, as they are shown.
    pub(in crate::node) classes: Vec<PriorityClass>,
    /// The configuration documents.
    pub(in crate::node) configuration: Configuration,
    /// The same, as they are shown: with the time of each one's file, and with all namespaces that objects are in.
    pub(in crate::node) shown: Vec<(Arc<Object>, Option<Time>)>,
    /// The state of each file.
    pub(in crate::node) files: Vec<FileStatus>,
    /// The objects of each file.
    pub(in crate::node) in_effect: InEffect,
    /// Whether every file is in effect, so that objects without a file may be removed.
    pub(in crate::node) complete: bool,
}

impl Manifests {
    fn shown_configuration(&self, all: &Configuration) -> Vec<(Arc<Object>, Option<Time>)> {
        let mut shown = Vec::new();
        let mut namespaces = BTreeSet::from(["default".to_owned()]);
        for loaded in self.entries.values().filter_map(|e| e.applied.as_deref()) {
            let created = status::time(loaded.modified);
            let objects = loaded.configuration.iter();
            for (key, object) in objects {
                namespaces.insert(key.namespace.clone());
                // A template's claim may have a document in another file.
                let in_force = all.get(key.kind, &key.namespace, &key.name);
                if in_force.is_some_and(|it| Arc::ptr_eq(it, object)) {
                    shown.push((object.clone(), Some(created.clone())));
                }
            }
            namespaces.extend(loaded.pods.iter().map(|pod| pod.key.namespace.to_string()));
            let services = loaded.services.iter();
            namespaces.extend(services.map(|s| s.spec.key.namespace.to_string()));
        }
        let written = shown.iter().map(|(object, _)| object.key());
        let written: BTreeSet<ObjectKey> = written.gather();
        namespaces.remove("");
        for name in namespaces {
            if !written.contains(&ObjectKey::new(ObjectKind::Namespace, "", &name)) {
                shown.push((Arc::new(Object::namespace(&name)), None));
            }
        }
        shown
    }

    pub(super) fn all_configuration(&self) -> Configuration {
        let mut all = Configuration::default();
        for (_, own) in self.configuration() {
            all.merge(own);
        }
        all
    }

    /// The documents as of the last scan.
    pub(in crate::node) fn documents(&self) -> Documents {
        let configuration = self.all_configuration();
        Documents {
            desired: self.desired(),
            services: self.services().map(|(_, s)| s.clone()).collect(),
            classes: self.priority_classes(),
            shown: self.shown_configuration(&configuration),
            configuration,
            files: self.status(),
            in_effect: self.in_effect(),
            complete: self.all_in_effect(),
        }
    }
}
