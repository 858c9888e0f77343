//! Which pods may use an image that the node has (KEP-2535, kubelet: `pkg/kubelet/images/pullmanager`): those whose
//! credentials its registry has accepted once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The maximum number of pull secrets that an image is recorded with, by repository.
const MAX_SECRETS: usize = 100;

/// The maximum number of repositories that an image is recorded with.
const MAX_REPOSITORIES: usize = 64;

/// Which stored images are for pods with credentials only (`imagePullCredentialsVerificationPolicy`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verification {
    /// `NeverVerify`: none.
    Nothing,
    /// `NeverVerifyPreloadedImages`: those that were pulled for a pod.
    Pulled,
    /// `NeverVerifyAllowlistedImages`: all but those of these repositories, `registry/repository` or `registry/path/*`.
    Unlisted(Vec<String>),
    /// `AlwaysVerify`: all.
    All,
}

impl Verification {
    /// Whether an image of a repository, in full, is for pods with credentials only.
    pub fn covers(&self, repository: &str, held: &Held) -> bool {
        let fits = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => repository.starts_with(prefix),
            None => repository == pattern,
        };
        match self {
            Self::Nothing => false,
            Self::Pulled => !held.preloaded,
            // With a digest, a pod may write any repository.
            Self::Unlisted(patterns) => !held.named || !patterns.iter().any(fits),
            Self::All => true,
        }
    }
}

/// A pull secret that has credentials for an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The digest of the credentials.
    pub credentials: String,
}

impl PullSecret {
    fn is(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name)
    }
}

/// Whose credentials a registry has accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// None, or the node's own: all pods have them.
    Everyone,
    /// None: an archive or a person brought the image.
    Given,
    /// Those of a pull secret.
    Secret(PullSecret),
}

/// The pods that may use an image by the name of one repository. By default none may: it was pulled, and it is not known
/// by whose credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Whether all may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub everyone: bool,
    /// Whether it was there already when it was first pulled for a pod, or a person pulled it by digest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub given: bool,
    /// Else those with one of these, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<PullSecret>,
}

/// By repository, in full: `docker.io/library/busybox`.
pub type Accesses = BTreeMap<String, Access>;

/// Adds what a repository's registry has accepted; `None`: not known yet. Returns whether that is new.
pub fn grant(accesses: &mut Accesses, repository: &str, granted: Option<&Grant>) -> bool {
    let known = accesses.contains_key(repository);
    if !known && accesses.len() >= MAX_REPOSITORIES {
        // Its pods ask the registry once more.
        let rank = |access: &Access| (access.everyone || access.given, !access.secrets.is_empty());
        let least = accesses.iter().min_by_key(|(_, access)| rank(access));
        if let Some(least) = least.map(|(repository, _)| repository.clone()) {
            accesses.remove(&least);
        }
    }
    let access = accesses.entry(repository.to_owned()).or_default();
    granted.is_some_and(|granted| access.add(granted)) || !known
}

impl Access {
    fn add(&mut self, granted: &Grant) -> bool {
        if self.everyone {
            return false;
        }
        match granted {
            Grant::Everyone => {
                self.everyone = true;
                self.secrets.clear();
            }
            Grant::Given if self.given => return false,
            Grant::Given => self.given = true,
            Grant::Secret(secret) if self.secrets.contains(secret) => return false,
            Grant::Secret(secret) => {
                self.secrets.retain(|known| !known.is(secret));
                if self.secrets.len() >= MAX_SECRETS {
                    self.secrets.remove(0);
                }
                self.secrets.push(secret.clone());
            }
        }
        true
    }

    /// Whether a pod with these pull secrets may use the image. A secret that was recorded counts even with other
    /// credentials by now, and credentials that were recorded count in any secret.
    fn knows(&self, secrets: &[PullSecret]) -> Admission {
        let known = |by: fn(&PullSecret, &PullSecret) -> bool| {
            let fits = |secret: &&PullSecret| self.secrets.iter().any(|known| by(known, secret));
            secrets.iter().find(fits)
        };
        if known(|known, secret| known == secret).is_some() {
            return Admission::Yes;
        }
        let same = |known: &PullSecret, secret: &PullSecret| {
            known.is(secret) || known.credentials == secret.credentials
        };
        match known(same) {
            None => Admission::No,
            // Secrets that come and go do not push out those that pulled it.
            Some(_) if self.secrets.len() >= MAX_SECRETS => Admission::Yes,
            Some(secret) => Admission::Learn(secret.clone()),
        }
    }
}

/// Whether a pod may use an image without its registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It may.
    Yes,
    /// It may, and this secret is worth recording.
    Learn(PullSecret),
    /// Only if its registry accepts the pod's credentials.
    No,
}

/// What the store knows of an image by the name that a pod gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// Whether it came from an archive or was pulled by a person, not for a pod.
    pub preloaded: bool,
    /// Whether it has or had a name of the repository, or came without any.
    pub named: bool,
    /// Who may use it if that is verified.
    pub access: Access,
}

/// Decides whether a pod may use an image that the node has. The pod's secrets are looked at only if they count.
pub fn admit(
    verification: &Verification,
    (repository, held): (&str, &Held),
    secrets: impl FnOnce() -> Vec<PullSecret>,
) -> Admission {
    if !verification.covers(repository, held) || held.access.everyone {
        return Admission::Yes;
    }
    match held.access.secrets.is_empty() {
        true => Admission::No,
        false => held.access.knows(&secrets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: &str = "r.example/team/app";

    fn secret(name: &str, credentials: &str) -> PullSecret {
        PullSecret {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            credentials: credentials.to_owned(),
        }
    }

    #[test]
    fn a_policy_says_which_images_are_verified() {
        let listed = |patterns: &[&str]| {
            Verification::Unlisted(patterns.iter().map(ToString::to_string).collect())
        };
        let held = |preloaded, named| Held {
            preloaded,
            named,
            ..Held::default()
        };
        // Whether it covers a preloaded image, and a pulled one.
        for (policy, expected) in [
            (Verification::Nothing, (false, false)),
            (Verification::Pulled, (false, true)),
            (Verification::All, (true, true)),
            (listed(&[]), (true, true)),
            (listed(&["r.example/x", APP]), (false, false)),
            (listed(&["r.example/team"]), (true, true)),
            (listed(&["r.example/team/*"]), (false, false)),
            (listed(&["r.example/*"]), (false, false)),
            (listed(&["r.example/tea/*"]), (true, true)),
            (listed(&["r.example/team/app/*"]), (true, true)),
        ] {
            let covers = |preloaded| policy.covers(APP, &held(preloaded, true));
            assert_eq!((covers(true), covers(false)), expected, "{policy:?}");
        }
        // A repository that the image never had is on no list.
        assert!(listed(&[APP]).covers(APP, &held(false, false)));
        assert!(!Verification::Nothing.covers(APP, &held(false, false)));
    }

    #[test]
    fn a_pod_may_use_what_its_credentials_have_pulled() {
        let everyone = Access {
            everyone: true,
            ..Access::default()
        };
        let by = |secrets: &[&PullSecret]| Access {
            secrets: secrets.iter().copied().cloned().collect(),
            ..Access::default()
        };
        let (one, two) = (secret("one", "a"), secret("two", "b"));
        let many: Vec<_> = (0..MAX_SECRETS)
            .map(|n| secret(&n.to_string(), "a"))
            .collect();
        let other = PullSecret {
            namespace: "other".to_owned(),
            ..secret("one", "c")
        };
        for (what, access, secrets, expected) in [
            ("by the node", everyone, vec![], Admission::Yes),
            (
                "no credentials accepted yet",
                by(&[]),
                vec![one.clone()],
                Admission::No,
            ),
            ("without a secret", by(&[&one]), vec![], Admission::No),
            (
                "the same secret",
                by(&[&two, &one]),
                vec![one.clone()],
                Admission::Yes,
            ),
            (
                "a different secret",
                by(&[&one]),
                vec![two.clone()],
                Admission::No,
            ),
            (
                "the same credentials in a different secret",
                by(&[&one]),
                vec![two.clone(), secret("three", "a")],
                Admission::Learn(secret("three", "a")),
            ),
            (
                "different credentials in the same secret",
                by(&[&one]),
                vec![secret("one", "new")],
                Admission::Learn(secret("one", "new")),
            ),
            (
                "a secret of that name in a different namespace",
                by(&[&one]),
                vec![other],
                Admission::No,
            ),
            (
                "a known secret counts before one to learn",
                by(&[&one]),
                vec![secret("three", "a"), one.clone()],
                Admission::Yes,
            ),
            (
                "nothing is learned beyond the limit",
                by(&many.iter().collect::<Vec<_>>()),
                vec![secret("new", "a")],
                Admission::Yes,
            ),
        ] {
            let held = Held {
                access,
                ..Held::default()
            };
            let admitted = admit(&Verification::Pulled, (APP, &held), || secrets);
            assert_eq!(admitted, expected, "{what}");
        }
    }

    #[test]
    fn secrets_are_not_looked_at_unless_they_count() {
        let by = |secrets: Vec<PullSecret>| Access {
            secrets,
            ..Access::default()
        };
        for (policy, preloaded, access, expected) in [
            (Verification::Nothing, false, by(vec![]), Admission::Yes),
            (Verification::Pulled, true, by(vec![]), Admission::Yes),
            (Verification::Pulled, false, by(vec![]), Admission::No),
            (
                Verification::Pulled,
                true,
                by(vec![secret("a", "a")]),
                Admission::Yes,
            ),
            (Verification::All, true, by(vec![]), Admission::No),
        ] {
            let held = Held {
                preloaded,
                named: true,
                access,
            };
            let admitted = admit(&policy, (APP, &held), || panic!("{policy:?}"));
            assert_eq!(admitted, expected, "{policy:?} {preloaded}");
        }
    }

    #[test]
    fn what_is_granted_is_recorded_once_and_bounded() {
        let mut all = Accesses::new();
        let by = |name: &str, credentials: &str| Some(Grant::Secret(secret(name, credentials)));
        for (granted, new, secrets) in [
            (None, true, 0),
            (None, false, 0),
            (by("one", "a"), true, 1),
            (by("one", "a"), false, 1),
            (by("one", "b"), true, 1),
            (by("two", "b"), true, 2),
            (None, false, 2),
            (Some(Grant::Given), true, 2),
            (Some(Grant::Given), false, 2),
            (Some(Grant::Everyone), true, 0),
            (Some(Grant::Everyone), false, 0),
            (by("one", "a"), false, 0),
        ] {
            assert_eq!(grant(&mut all, APP, granted.as_ref()), new, "{granted:?}");
            assert_eq!(all[APP].secrets.len(), secrets, "{granted:?}");
        }
        assert!(all[APP].everyone);
        grant(&mut all, "a.example/given", Some(&Grant::Given));
        for n in 0..2 * MAX_SECRETS {
            grant(&mut all, "b.example/x", by(&n.to_string(), "a").as_ref());
            grant(&mut all, &format!("r.example/{n}"), None);
        }
        assert_eq!(all.len(), MAX_REPOSITORIES);
        // Those that no pod may use go first, then those of some pods.
        assert_eq!(all["b.example/x"].secrets.len(), MAX_SECRETS);
        for n in 0..2 * MAX_REPOSITORIES {
            grant(&mut all, &format!("r.example/{n}"), by("a", "a").as_ref());
        }
        assert!(!all.contains_key("b.example/x"));
        assert!(all["a.example/given"].given && all[APP].everyone);
        let mut many = Accesses::new();
        for n in 0..2 * MAX_SECRETS {
            grant(&mut many, APP, by(&n.to_string(), "a").as_ref());
        }
        let names: Vec<_> = many[APP].secrets.iter().map(|known| &known.name).collect();
        assert_eq!((names.len(), names[0].as_str()), (MAX_SECRETS, "100"));
    }
}
