//! The documents of all files of the manifest directory together.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{InEffect, Manifests};
use crate::api::FileStatus;
use crate::plan::event::Desired;

/// The documents of the manifest directory, as the agent acts on them and shows them.
#[derive(Debug)]
pub(in crate::node) struct Documents {
    /// The wanted pods and services.
    pub(in crate::node) desired: Desired,
    /// The services, as they are shown.
    pub(in crate::node) services: Vec<Service>,
    /// The priority classes, as they are shown.
    pub(in crate::node) classes: Vec<PriorityClass>,
    /// The state of each file.
    pub(in crate::node) files: Vec<FileStatus>,
    /// The objects of each file.
    pub(in crate::node) in_effect: InEffect,
    /// Whether every file is in effect, so that objects without a file may be removed.
    pub(in crate::node) complete: bool,
}

impl Manifests {
    /// The documents as of the last scan.
    pub(in crate::node) fn documents(&self) -> Documents {
        Documents {
            desired: self.desired(),
            services: self.services().map(|(_, s)| s.clone()).collect(),
            classes: self.priority_classes(),
            files: self.status(),
            in_effect: self.in_effect(),
            complete: self.all_in_effect(),
        }
    }
}
