//! The images in use, and the containers that use them.

use std::collections::{BTreeMap, BTreeSet};

use super::Node;
use crate::api::ImageUser;
use crate::plan::Action;
use crate::plan::run::Run;
use crate::types::Gather;

/// The containers that use images, by the images' ids.
pub(super) type Users = BTreeMap<String, Vec<ImageUser>>;

impl Node {
    /// The names of images in manifests, also of those that have no pods now.
    pub(super) fn images_named(&self) -> BTreeSet<String> {
        let desired = self.state.desired.iter().flat_map(|d| d.pods.values());
        let pods = self.state.pods.values().map(|pod| &pod.spec);
        let names = desired.chain(pods).flat_map(|pod| pod.image_names());
        let names = names.map(ToString::to_string);
        names.chain(self.state.images_of_documents()).gather()
    }

    /// The config digests of images that must stay: those in use, and those of bundles.
    pub(super) fn images_kept(&self) -> BTreeSet<String> {
        let mut kept = self.images_in_use();
        kept.extend(self.bundles.images().map(str::to_owned));
        kept
    }

    /// The config digests of images that containers run from or mount, or will.
    pub(super) fn images_in_use(&self) -> BTreeSet<String> {
        self.image_users().into_keys().gather()
    }

    /// The config digests of images that containers run from or mount now, or are about to, each with one such container.
    pub(super) fn images_running(&self) -> BTreeMap<String, String> {
        let mut running = BTreeMap::new();
        for pod in self.state.pods.values() {
            let starts = |name: &str| match &pod.in_flight {
                Some(Action::StartContainer { instance, .. }) => instance.container == name,
                _ => false,
            };
            for one in &pod.containers {
                if matches!(one.run, Run::Running(_)) || starts(&one.name) {
                    let user = format!("container `{}` of pod `{}`", one.name, pod.spec.key);
                    running.extend(one.images().map(|id| (id.to_owned(), user.clone())));
                }
            }
        }
        running
    }

    /// The same with the containers that use them.
    pub(super) fn image_users(&self) -> Users {
        let mut users = Users::new();
        for pod in self.state.pods.values() {
            for container in &pod.containers {
                let user = ImageUser {
                    namespace: pod.spec.key.namespace.to_string(),
                    pod: pod.spec.key.name.to_string(),
                    container: container.name.clone(),
                };
                for id in container.images() {
                    let known = users.entry(id.to_owned()).or_default();
                    if known.last() != Some(&user) {
                        known.push(user.clone());
                    }
                }
            }
        }
        users
    }
}
