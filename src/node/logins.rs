//! Credentials for the places that an image can be fetched from, whose they are, and which pods may use an image that
//! is there already.

use super::execute::Tools;
use super::pulls::Wanted;
use crate::config::Registries;
use crate::images::registry::{AuthError, AuthFile, Credentials, Place, RegistriesConf, Source};
use crate::images::{Cause, Image, ImageError};
use crate::spec::{ImageName, PodSpec, pull_secrets};
use crate::types::image_access::{self, Admission, Grant, PullSecret};

/// A pull secret of a pod.
#[derive(Debug)]
pub(super) struct Login {
    namespace: String,
    name: String,
    file: AuthFile,
}

impl Login {
    /// Its credentials for an image at a place.
    fn credentials(
        &self,
        image: &ImageName,
        place: &Place,
    ) -> Result<Vec<(Credentials, PullSecret)>, AuthError> {
        let found = self.file.all_credentials(&place.name)?.into_iter();
        let found = found.map(|found| {
            let secret = PullSecret {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                credentials: found.fingerprint(&image.in_full()),
            };
            (found, secret)
        });
        Ok(found.collect())
    }
}

/// Where an image can be fetched from.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Each place with its credentials.
    pub(super) sources: Vec<Source>,
    /// Whose they are, for all sources in turn. A source without any counts as one.
    pub(super) owners: Vec<Grant>,
}

/// The pull secrets that have credentials for an image. What else is wrong takes it from no pod.
fn secrets_for(
    registries: &Registries,
    (image, written): (&ImageName, &str),
    logins: &[Login],
) -> Vec<PullSecret> {
    let conf = RegistriesConf::read(&registries.conf);
    let found = conf.and_then(|conf| conf.places(image, written));
    let found = found.unwrap_or_else(|_| {
        vec![Place {
            name: image.clone(),
            insecure: false,
        }]
    });
    let at = |place| {
        let all = logins.iter();
        all.flat_map(move |login| login.credentials(image, place).unwrap_or_default())
    };
    found
        .iter()
        .flat_map(at)
        .map(|(_, secret)| secret)
        .collect()
}

/// Finds where an image can be fetched from, with the credentials of pods before those of the node's file. `own` is for
/// the registry alone.
pub(super) fn places(
    registries: &Registries,
    (image, written): (&ImageName, &str),
    logins: &[Login],
    own: Option<&Credentials>,
) -> Result<Places, ImageError> {
    let failed = |whose: &str, why: &AuthError| ImageError::Pull {
        message: format!("{whose}: {}", crate::chain(why)),
        hint: None,
        cause: Cause::Other,
    };
    let conf = RegistriesConf::read(&registries.conf)?;
    let found = conf.places(image, written)?;
    let file = format!("the credentials in `{}`", registries.auth_file.display());
    let node = AuthFile::read(&registries.auth_file).map_err(|why| failed(&file, &why))?;
    let last = found.len().saturating_sub(1);
    let mut places = Places::default();
    for (number, place) in found.into_iter().enumerate() {
        let mut credentials = Vec::new();
        let mut unusable = None;
        if let Some(login) = own.filter(|_| number == last) {
            credentials.push((login.clone(), Grant::Everyone));
        } else {
            for login in logins {
                match login.credentials(image, &place) {
                    Ok(found) => {
                        let found = found.into_iter();
                        let found = found.map(|(found, secret)| (found, Grant::Secret(secret)));
                        credentials.extend(found);
                    }
                    Err(why) => {
                        let whose = format!("the image pull secret \"{}\"", login.name);
                        unusable = Some(failed(&whose, &why));
                    }
                }
            }
            if let Some(node) = &node {
                let found = node.credentials(&place.name);
                let found = found.map_err(|why| failed(&file, &why))?;
                credentials.extend(found.map(|found| (found, Grant::Everyone)));
            }
        }
        // Others may do.
        if let Some(why) = unusable.filter(|_| credentials.is_empty()) {
            return Err(why);
        }
        if credentials.is_empty() {
            places.owners.push(Grant::Everyone);
        }
        let (credentials, owners): (Vec<_>, Vec<_>) = credentials.into_iter().unzip();
        places.owners.extend(owners);
        places.sources.push(Source {
            name: place.name.to_string(),
            insecure: place.insecure,
            credentials,
        });
    }
    Ok(places)
}

impl Tools {
    /// The pull secrets of a pod, or what is wrong with them, and the names of those that are not there.
    pub(super) fn logins_of(&self, pod: &PodSpec) -> (Vec<Result<Login, String>>, Vec<String>) {
        let configuration = self.sandboxes.configuration.now();
        let secrets = pull_secrets::of(pod, &configuration);
        let mut logins = Vec::new();
        for (name, document) in secrets.found {
            let failed = |why| format!("the image pull secret \"{name}\": {}", crate::chain(&why));
            let file = AuthFile::parse(&document).map_err(failed);
            logins.push(file.map(|file| Login {
                namespace: pod.key.namespace.to_string(),
                name,
                file,
            }));
        }
        (logins, secrets.missing)
    }

    /// Whether a pod may use a stored image without its registry. What cannot be read lets no pod use it.
    pub(super) async fn may_use(&self, pod: &PodSpec, wanted: Wanted<'_>, image: &Image) -> bool {
        let settings = self.sandboxes.settings.now();
        let registries = self.config.registries.clone();
        // A pull says which are damaged.
        let logins: Vec<_> = self.logins_of(pod).0.into_iter().flatten().collect();
        let (images, id) = (self.images.clone(), image.id.clone());
        let (name, written) = (wanted.name.clone(), wanted.written.to_owned());
        let decide = move || {
            let held = images.held(&id, &name)?;
            let secrets = || secrets_for(&registries, (&name, &written), &logins);
            let of = (name.in_full(), held);
            let admitted =
                image_access::admit(&settings.image_verification, (&of.0, &of.1), secrets);
            match admitted {
                Admission::Yes => Ok(true),
                Admission::No => Ok(false),
                Admission::Learn(secret) => {
                    let learned = images.grant(&id, &name, &Grant::Secret(secret));
                    if let Err(why) = learned {
                        tracing::warn!(
                            "could not record who may use `{name}`: {}, ignoring",
                            crate::chain(&why)
                        );
                    }
                    Ok(true)
                }
            }
        };
        let decided: Result<bool, ImageError> = super::unblock(decide).await;
        decided.unwrap_or_else(|why| {
            tracing::warn!(
                "could not read who may use `{}`: {}, asking its registry",
                wanted.name,
                crate::chain(&why)
            );
            false
        })
    }

    /// Records whose credentials a registry has accepted; `None`: those of a person. Returns whether pods that wait for
    /// the image may have it by now.
    pub(super) async fn note_pulled(
        &self,
        id: &str,
        image: &ImageName,
        owner: Option<Grant>,
    ) -> bool {
        let (images, id, name) = (self.images.clone(), id.to_owned(), image.clone());
        let write = move || match owner {
            Some(owner) => images.grant(&id, &name, &owner).map(|_| false),
            None => images.open_to_all(&id, &name),
        };
        super::unblock(write).await.unwrap_or_else(|why| {
            tracing::warn!(
                "could not record who may use `{image}`: {}, asking its registry again",
                crate::chain(&why)
            );
            false
        })
    }
}
