//! Whether images may run: the policy is read for each, so that a change counts from then on.

use super::execute::Tools;
use super::pulls::Wanted;
use crate::images::trust::{Demand, Policy};
use crate::images::{Cause, Image, ImageError};
use crate::plan::event::{self, ImageFailure};
use crate::plan::pull::Source;
use crate::spec::{ImageName, PodSpec, PullPolicy};

impl Tools {
    /// The signatures that the image of a pull must have.
    pub(super) async fn demand(&self, image: &ImageName) -> Result<Option<Demand>, ImageError> {
        let (path, image) = (self.config.registries.policy.clone(), image.clone());
        super::unblock(move || Policy::read(&path)?.demand_of(&image)).await
    }

    /// Finds an image that the policy lets run. One from a registry that lacks the signatures is pulled once more: they
    /// may be there by now.
    pub(super) async fn find_trusted_image(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
    ) -> Result<(Image, Option<event::Pulled>), (ImageFailure, String)> {
        let (image, pulled) = self.find_image(pod, container, wanted).await?;
        let Err(why) = self.check_trust(&image, wanted.name).await else {
            return Ok((image, pulled));
        };
        let may_pull = pulled.is_none() && wanted.policy != PullPolicy::Never;
        // What a digest means does not tell where it came from.
        let archived = wanted.pinned.is_some()
            || wanted.name.digest.is_none()
                && self.source(&wanted.name.to_string()).await == Source::Archive;
        if !may_pull || archived {
            return Err(failure(&why));
        }
        let anew = Wanted {
            policy: PullPolicy::Always,
            ..wanted
        };
        let (image, pulled) = match self.pull_for_pod(pod, container, anew, false).await {
            Ok(done) => done,
            Err(failed) if failed.failure == ImageFailure::Signature => {
                return Err((failed.failure, failed.message));
            }
            Err(failed) => {
                let (failure, message) = failure(&why);
                let message = format!("{message}; pulling it again failed: {}", failed.message);
                return Err((failure, message));
            }
        };
        let checked = self.check_trust(&image, wanted.name).await;
        checked.map_err(|why| failure(&why))?;
        Ok((image, Some(pulled)))
    }

    async fn check_trust(&self, image: &Image, name: &ImageName) -> Result<(), ImageError> {
        let path = self.config.registries.policy.clone();
        let (images, id, name) = (self.images.clone(), image.id.clone(), name.clone());
        super::unblock(move || images.check_trust(&Policy::read(&path)?, &id, &name)).await
    }
}

/// What a pod shows about an image that may not run, or that could not be checked.
fn failure(why: &ImageError) -> (ImageFailure, String) {
    let text = match why.hint() {
        Some(hint) => format!("{}; {hint}", crate::chain(why)),
        None => crate::chain(why),
    };
    match why {
        ImageError::Pull {
            cause: Cause::Signature,
            ..
        } => (ImageFailure::Signature, text),
        _ => (ImageFailure::Inspect, text),
    }
}
