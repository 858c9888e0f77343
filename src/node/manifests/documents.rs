//! The documents of all files of the manifest directory together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{InEffect, Manifests};
use crate::api::FileStatus;
use crate::plan::event::Desired;
use crate::plan::status;
use crate::spec::{Configuration, Object, ObjectKey, ObjectKind};
use crate::types::{Gather, Wall};

/// The namespace of objects that name none.
const DEFAULT: &str = "default";

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
        // Each with the oldest file that has objects in it.
        let mut namespaces: BTreeMap<String, Wall> = BTreeMap::new();
        for loaded in self.entries.values().filter_map(|e| e.applied.as_deref()) {
            let created = status::time(loaded.modified);
            let mut holds = |namespace: &str| {
                let since = namespaces.entry(namespace.to_owned());
                let since = since.or_insert(loaded.modified);
                *since = loaded.modified.min(*since);
            };
            let objects = loaded.configuration.iter();
            for (key, object) in objects {
                holds(&key.namespace);
                // A template's claim may have a document in another file.
                let in_force = all.get(key.kind, &key.namespace, &key.name);
                if in_force.is_some_and(|it| Arc::ptr_eq(it, object)) {
                    shown.push((object.clone(), Some(created.clone())));
                }
            }
            loaded.pods.iter().for_each(|pod| holds(&pod.key.namespace));
            let services = loaded.services.iter();
            services.for_each(|service| holds(&service.spec.key.namespace));
        }
        let written = shown.iter().map(|(object, _)| object.key());
        let written: BTreeSet<ObjectKey> = written.gather();
        let times = namespaces.into_iter();
        let mut times: BTreeMap<String, Option<Time>> = times
            .map(|(name, since)| (name, Some(status::time(since))))
            .gather();
        // It is there without any object, too.
        times.insert(DEFAULT.to_owned(), None);
        times.remove("");
        for (name, created) in times {
            if !written.contains(&ObjectKey::new(ObjectKind::Namespace, "", &name)) {
                shown.push((Arc::new(Object::namespace(&name)), created));
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
