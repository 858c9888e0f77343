//! The images of a container: found in the store, or pulled by their policies.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::execute::Tools;
use super::pulls::Wanted;
use crate::images::{Image, ImageError, KeepFree};
use crate::plan::event::{self, ImageFailure};
use crate::plan::pull::{self, Source, Stored, Way};
use crate::plan::retry::IMPORT_PATIENCE_MS;
use crate::plan::{Event, PodFact};
use crate::spec::{PodSpec, PodUid};

/// Why the image that the node has is no way out.
const NOT_FOR_ALL: &str = "the node has the image, but only for pods whose credentials its registry has accepted: \
                           `imagePullCredentialsVerificationPolicy`";

/// The text behind the name of an image that is in the store and cannot be used.
pub(super) const DAMAGED: &str =
    "is damaged: check it with `coracle fsck`, and pull or import it again";

impl Tools {
    /// Finds the images that a container needs, its own and those of its volumes, and pulls what the node lacks.
    pub(super) async fn ensure_image(
        &self,
        pod: PodUid,
        container: String,
        spec: &Arc<PodSpec>,
    ) -> Option<Event> {
        let wanted = spec.container(&container)?;
        let images = spec.image_volumes_of(wanted).map(|(volume, image)| {
            let wanted = Wanted {
                name: &image.image_name,
                written: &image.image,
                pinned: image.pinned.as_deref(),
                policy: image.pull_policy,
            };
            (Some(volume), wanted)
        });
        let own = Wanted {
            name: &wanted.image_name,
            written: &wanted.image,
            pinned: wanted.pinned.as_deref(),
            policy: wanted.pull_policy,
        };
        let (mut volumes, mut image_id) = (BTreeMap::new(), String::new());
        let mut pulled = BTreeMap::new();
        for (volume, wanted) in images.chain([(None, own)]) {
            match self.find_trusted_image(spec, &container, wanted).await {
                Ok((image, just_pulled)) => {
                    pulled.extend(just_pulled.map(|pulled| (wanted.written.to_owned(), pulled)));
                    match volume {
                        Some(volume) => drop(volumes.insert(volume.to_owned(), image.id)),
                        None => image_id = image.id,
                    }
                }
                Err(failed) => {
                    let fact = not_found(container, volume.map(str::to_owned), failed);
                    return Some(Event::Pod { uid: pod, fact });
                }
            }
        }
        let fact = PodFact::ImageReady {
            container,
            image_id,
            volumes,
            pulled,
        };
        Some(Event::Pod { uid: pod, fact })
    }

    /// Finds an image, and pulls it if its policy says so. One that came with a bundle is that very image.
    pub(super) async fn find_image(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
    ) -> Result<(Image, Option<event::Pulled>), (ImageFailure, String)> {
        let Some(id) = wanted.pinned else {
            return self.find_named(pod, container, wanted).await;
        };
        match self.look_up(id).await {
            Ok(Some(image)) => return Ok((image, None)),
            Ok(None) => {}
            Err(error) => return Err((ImageFailure::Inspect, crate::chain(&error))),
        }
        // It was removed by force; its registry may have it.
        let (failure, why) = match self.find_named(pod, container, wanted).await {
            Ok((found, pulled)) if found.id == id => return Ok((found, pulled)),
            Ok(_) => (
                ImageFailure::Pull,
                "the name means another image".to_owned(),
            ),
            Err(failed) => failed,
        };
        let message = format!("{why}; image {id} came with its bundle: apply that again");
        Err((failure, message))
    }

    async fn find_named(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
    ) -> Result<(Image, Option<event::Pulled>), (ImageFailure, String)> {
        let name = wanted.name.to_string();
        let mut found = self.look_up(&name).await;
        if matches!(found, Ok(None)) {
            // An archive may still be importing: at the first start all of them are.
            let patience = async {
                smol::Timer::after(Duration::from_millis(IMPORT_PATIENCE_MS)).await;
            };
            let imported = async {
                let _turn = self.importing.lock().await;
            };
            smol::future::or(imported, patience).await;
            found = self.look_up(&name).await;
        }
        let stored = match found {
            Ok(Some(image)) => {
                let usable = self.may_use(pod, wanted, &image).await;
                let source = self.source(&name).await;
                Some((image, Stored { source, usable }))
            }
            Ok(None) => None,
            Err(error) => return Err((ImageFailure::Inspect, crate::chain(&error))),
        };
        let of = stored.as_ref().map(|(_, of)| *of);
        match (pull::way(wanted.policy, of), stored) {
            (Way::Use, Some((image, _))) => Ok((image, None)),
            (Way::Pull, stored) => self.pull_or_use(pod, container, wanted, stored).await,
            (Way::Use | Way::Refuse, _) if self.is_damaged(name.clone()).await => {
                Err((ImageFailure::Inspect, format!("it {DAMAGED}")))
            }
            (Way::Use | Way::Refuse, _) => Err((
                ImageFailure::NeverPull,
                format!(
                    "Container image \"{}\" is not present with pull policy of Never",
                    wanted.written
                ),
            )),
        }
    }

    /// Pulls an image, or takes the stored one if its registry cannot be asked and the settings allow that.
    async fn pull_or_use(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
        stored: Option<(Image, Stored)>,
    ) -> Result<(Image, Option<event::Pulled>), (ImageFailure, String)> {
        let is_there = stored.is_some();
        let usable = stored.filter(|(_, of)| of.usable).map(|(image, _)| image);
        let pulled = self.pull_for_pod(pod, container, wanted, usable.is_some());
        let failed = match pulled.await {
            Ok((image, pulled)) => return Ok((image, Some(pulled))),
            Err(failed) => failed,
        };
        let may_use = failed.offline && self.config.registries.use_offline;
        let refused = is_there && usable.is_none();
        match (usable.filter(|_| may_use), failed.failure) {
            (Some(image), _) => {
                let pulled = event::Pulled::Unreachable(failed.message);
                Ok((image, Some(pulled)))
            }
            (None, failure) if refused => {
                let message = format!("{} ({NOT_FOR_ALL})", failed.message);
                Err((failure, message))
            }
            (None, ImageFailure::Pull) => {
                let mut message = with_way_out(failed.message, &self.config.preload);
                if self.is_damaged(wanted.name.to_string()).await {
                    message = format!("{message} (the stored image {DAMAGED})");
                }
                Err((ImageFailure::Pull, message))
            }
            (None, failure) => Err((failure, failed.message)),
        }
    }

    /// Where the stored image of a name came from. One that cannot be told is used as it is.
    pub(super) async fn source(&self, name: &str) -> Source {
        let (images, name) = (self.images.clone(), name.to_owned());
        match super::unblock(move || images.is_pulled(&name)).await {
            Ok(true) => Source::Registry,
            Ok(false) | Err(_) => Source::Archive,
        }
    }

    /// The disk space that imports leave free.
    pub(super) fn keep_free(&self) -> KeepFree {
        let settings = self.sandboxes.settings.now();
        KeepFree::of(
            &settings.eviction,
            self.images.dir(),
            &self.config.layout.root,
        )
    }

    /// Removes the remains of an interrupted import.
    pub(super) async fn clear_up_after_import(&self) {
        let images = self.images.clone();
        let cleared = super::unblock(move || images.remove_leftovers()).await;
        if let Err(error) = cleared {
            tracing::warn!(
                "could not clear up after an import: {}, trying again at the next one",
                crate::chain(&error)
            );
        }
    }

    /// Whether the store has an image that cannot be used.
    async fn is_damaged(&self, name: String) -> bool {
        let images = self.images.clone();
        super::unblock(move || images.is_damaged(&name)).await
    }

    pub(super) async fn look_up(&self, name: &str) -> Result<Option<Image>, ImageError> {
        let (images, name) = (self.images.clone(), name.to_owned());
        super::unblock(move || images.lookup(&name)).await
    }
}

fn not_found(
    container: String,
    volume: Option<String>,
    (failure, message): (ImageFailure, String),
) -> PodFact {
    PodFact::ImageFailed {
        container,
        volume,
        failure,
        message,
    }
}

/// The error of a pull, and how an image gets here without a registry.
fn with_way_out(why: String, preload: &[PathBuf]) -> String {
    let folders: Vec<String> = preload
        .iter()
        .map(|folder| format!("`{}`", folder.display()))
        .collect();
    let or_put = match folders.is_empty() {
        true => String::new(),
        false => format!(", or put it into {}", folders.join(" or ")),
    };
    format!("{why} (without a registry: `coracle image import FILE`{or_put})")
}
