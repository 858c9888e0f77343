//! The Pod Security Standards (Kubernetes docs: Pod Security Standards): whether a pod asks for no more than a level
//! allows. Checks, their order and their words are those of Kubernetes 1.36 (`k8s.io/pod-security-admission/policy`),
//! version `latest`.

mod host;
mod profiles;
mod rights;
mod users;
mod visit;
mod volumes;

use k8s_openapi::api::core::v1::Pod;

use visit::View;

/// How much pods may ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSecurity {
    /// Everything.
    #[default]
    Privileged,
    /// What usual containers need; known ways to gain privileges are closed.
    Baseline,
    /// Hardened containers.
    Restricted,
}

impl PodSecurity {
    /// All levels, the widest first.
    pub const ALL: [Self; 3] = [Self::Privileged, Self::Baseline, Self::Restricted];

    /// Returns the word for the level.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }

    /// Returns the level with that name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == word)
    }

    /// Returns the message about a pod that asks for more: `pods "web" is forbidden: violates PodSecurity
    /// "baseline:latest": privileged (container "a" must not set securityContext.privileged=true)`.
    pub fn refusal(self, pod: &Pod) -> Option<String> {
        let view = View::of(pod)?;
        let checks = self.checks().into_iter();
        let found: Vec<String> = checks
            .filter_map(|check| check(&view))
            .map(|Violation { reason, detail }| match detail.is_empty() {
                true => reason.to_owned(),
                false => format!("{reason} ({detail})"),
            })
            .collect();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let (level, found) = (self.as_str(), (!found.is_empty()).then_some(found)?);
        let found = found.join(", ");
        Some(format!(
            "pods {name:?} is forbidden: violates PodSecurity \"{level}:latest\": {found}"
        ))
    }

    /// Restricted checks take the place of the baseline checks that they contain.
    fn checks(self) -> Vec<Check> {
        let baseline = |contained: bool| {
            let checks = BASELINE.iter().filter(move |(_, also)| contained || !also);
            checks.map(|(check, _)| *check)
        };
        match self {
            Self::Privileged => Vec::new(),
            Self::Baseline => baseline(true).collect(),
            Self::Restricted => baseline(false).chain(RESTRICTED.iter().copied()).collect(),
        }
    }
}

/// What a pod asks for and must not.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    reason: &'static str,
    /// Who asks for it, and for what.
    detail: String,
}

/// One control of the standards.
type Check = fn(&View<'_>) -> Option<Violation>;

/// The baseline checks, and whether one of the restricted checks contains it.
const BASELINE: &[(Check, bool)] = &[
    (profiles::app_armor, false),
    (rights::capabilities_baseline, true),
    (host::namespaces, false),
    (volumes::host_path, true),
    (host::ports, false),
    (host::handlers, false),
    (rights::privileged, false),
    (rights::proc_mount, false),
    (profiles::se_linux, false),
    (profiles::seccomp_baseline, true),
    (rights::sysctls, false),
    (host::windows_process, false),
];

const RESTRICTED: &[Check] = &[
    rights::escalation,
    rights::capabilities_restricted,
    volumes::restricted,
    users::non_root,
    users::not_zero,
    profiles::seccomp_restricted,
];

#[cfg(test)]
#[path = "pod_security_test.rs"]
mod tests;
