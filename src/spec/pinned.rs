//! Images that a pod must run whatever their names mean later: a bundle brings them by their ids. The node writes them
//! into an annotation, so that they outlive the agent; an edit of it alone needs no new pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::pod::{ContainerSpec, ImageName, PodSpec, VolumeSource};

/// The ids of images (config digests) by full names.
pub type Pins = BTreeMap<String, String>;

/// The annotation with the pod's own pins, in JSON; the node writes it.
pub(super) const IMAGES: &str = "coracle.dev/images";

impl PodSpec {
    /// Returns this pod with those of its images pinned that `all` has, and no others. `None` if it is so already.
    pub fn with_pins(&self, all: &Pins) -> Option<Self> {
        let written = self.manifest.annotation(IMAGES);
        if all.is_empty() && written.is_none() {
            return None;
        }
        // A digest is a pin itself.
        let names = self.image_names().filter(|name| name.digest.is_none());
        let names = names.map(ImageName::to_string);
        let own: Pins = names
            .filter_map(|name| Some((name.clone(), all.get(&name)?.clone())))
            .collect();
        let text = match own.is_empty() {
            true => None,
            // A map of texts: this cannot fail.
            false => serde_json::to_string(&own).ok(),
        };
        // What a manifest writes there pins nothing.
        let pinned = self.manifest_containers().all(|c| c.pin_is(&own));
        if written == text && pinned {
            return None;
        }
        let mut pod = self.clone();
        let manifest = Arc::make_mut(&mut pod.manifest);
        manifest.change_metadata(|metadata| {
            let annotations = metadata.annotations.get_or_insert_default();
            match text {
                Some(text) => annotations.insert(IMAGES.to_owned(), text),
                None => annotations.remove(IMAGES),
            };
            if annotations.is_empty() {
                metadata.annotations = None;
            }
        });
        pod.pin(&own);
        Some(pod)
    }

    /// The same pins again, for a pod that was restored from its manifest.
    pub(super) fn restore_pins(&mut self) {
        let written = self.manifest.annotation(IMAGES);
        if let Some(Ok(pins)) = written.as_deref().map(serde_json::from_str) {
            self.pin(&pins);
        }
    }

    fn pin(&mut self, pins: &Pins) {
        let of = |name: &ImageName| pins.get(&name.to_string()).map(|id| id.as_str().into());
        for container in self.init_containers.iter_mut().chain(&mut self.containers) {
            container.pinned = of(&container.image_name);
        }
        for volume in &mut self.volumes {
            if let VolumeSource::Image(image) = &mut volume.source {
                image.pinned = of(&image.image_name);
            }
        }
    }
}

impl ContainerSpec {
    fn pin_is(&self, pins: &Pins) -> bool {
        let pin = pins.get(&self.image_name.to_string());
        self.pinned.as_deref() == pin.map(String::as_str)
    }

    /// Whether both mean the same image, as far as that can be told.
    pub fn has_image_of(&self, other: &Self) -> bool {
        self.image == other.image && !differ(self.pinned.as_ref(), other.pinned.as_ref())
    }
}

/// Whether these are two different images. What is not pinned may be either.
pub(crate) fn differ(one: Option<&Arc<str>>, other: Option<&Arc<str>>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one != other)
}
