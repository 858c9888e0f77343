//! Profiles of the kernel's security modules: seccomp, AppArmor, SELinux.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{SELinuxOptions, SeccompProfile};

use super::Violation;
use super::visit::{Each, View, containers, plural, quoted, setters, violation};
use crate::spec::app_armor;

/// Who sets a profile of another type, and the types.
struct Bad<'a> {
    setters: Vec<String>,
    types: BTreeSet<&'a str>,
}

impl<'a> Bad<'a> {
    fn of(
        of_pod: Option<&'a str>,
        pod: &View<'a>,
        own: impl Fn(&Each<'a>) -> Option<&'a str>,
    ) -> Self {
        let bad = |kind: &&str| !["Localhost", "RuntimeDefault"].contains(kind);
        let of_pod = of_pod.filter(bad);
        let (names, mut types) = pod.offenders(|each| own(each).filter(bad).into_iter().collect());
        types.extend(of_pod);
        Self {
            setters: setters(of_pod.is_some(), &names),
            types,
        }
    }
}

fn type_of(profile: &SeccompProfile) -> &str {
    &profile.type_
}

fn own_seccomp<'a>(each: &Each<'a>) -> Option<&'a str> {
    let profile = each.context.and_then(|c| c.seccomp_profile.as_ref());
    profile.map(type_of)
}

pub(super) fn seccomp_baseline(pod: &View<'_>) -> Option<Violation> {
    let of_pod = pod.context.and_then(|c| c.seccomp_profile.as_ref());
    let bad = Bad::of(of_pod.map(type_of), pod, own_seccomp);
    violation("seccompProfile", !bad.setters.is_empty(), || {
        let (setters, types) = (bad.setters.join(" and "), quoted(&bad.types));
        format!("{setters} must not set securityContext.seccompProfile.type to {types}")
    })
}

/// No profile is none of the allowed ones, although `RuntimeDefault` applies without asking: the pod would be open
/// elsewhere.
pub(super) fn seccomp_restricted(pod: &View<'_>) -> Option<Violation> {
    if pod.is_windows() {
        return None;
    }
    if let Some(explicit) = seccomp_baseline(pod) {
        return Some(explicit);
    }
    let of_pod = pod.context.is_some_and(|c| c.seccomp_profile.is_some());
    let names = pod.named(|each| !of_pod && own_seccomp(each).is_none());
    violation("seccompProfile", !names.is_empty(), || {
        let names = containers(&names);
        format!(
            "pod or {names} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
        )
    })
}

pub(super) fn app_armor(pod: &View<'_>) -> Option<Violation> {
    let of_pod = pod.context.and_then(|c| c.app_armor_profile.as_ref());
    let mut bad = Bad::of(of_pod.map(|profile| profile.type_.as_str()), pod, |each| {
        let profile = each.context.and_then(|c| c.app_armor_profile.as_ref());
        profile.map(|profile| profile.type_.as_str())
    });
    let annotations = pod.pod.metadata.annotations.iter().flatten();
    let annotations: Vec<String> = annotations
        .filter(|(key, _)| key.starts_with(app_armor::ANNOTATION))
        .filter(|(_, value)| {
            let allowed = value.is_empty() || *value == "runtime/default";
            !allowed && !value.starts_with("localhost/")
        })
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    if !annotations.is_empty() {
        let word = plural(annotations.len(), "annotation", "annotations");
        bad.setters.push(word.to_owned());
    }
    let count = bad.types.len() + annotations.len();
    let reason = plural(
        count,
        "forbidden AppArmor profile",
        "forbidden AppArmor profiles",
    );
    violation(reason, !bad.setters.is_empty(), || {
        let types = bad.types.iter().map(|kind| (*kind).to_owned());
        let values = quoted(types.chain(annotations));
        let setters = bad.setters.join(" and ");
        format!("{setters} must not set AppArmor profile type to {values}")
    })
}

/// SELinux types that may be set.
const TYPES: [&str; 5] = [
    "",
    "container_engine_t",
    "container_init_t",
    "container_kvm_t",
    "container_t",
];

/// A part of `seLinuxOptions` that may not be set. Ordered as in messages.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Type(String),
    User,
    Role,
}

pub(super) fn se_linux(pod: &View<'_>) -> Option<Violation> {
    let given = |word: &Option<String>| word.as_ref().is_some_and(|word| !word.is_empty());
    let labels = |options: &SELinuxOptions| {
        let kind = options.type_.clone().unwrap_or_default();
        let kind = (!TYPES.contains(&kind.as_str())).then_some(Label::Type(kind));
        let user = given(&options.user).then_some(Label::User);
        let role = given(&options.role).then_some(Label::Role);
        [kind, user, role].into_iter().flatten().collect::<Vec<_>>()
    };
    let of_pod = pod.context.and_then(|c| c.se_linux_options.as_ref());
    let of_pod = of_pod.map(labels).unwrap_or_default();
    let (names, mut found) = pod.offenders(|each| {
        let options = each.context.and_then(|c| c.se_linux_options.as_ref());
        options.map(labels).unwrap_or_default()
    });
    let setters = setters(!of_pod.is_empty(), &names);
    found.extend(of_pod);
    violation("seLinuxOptions", !setters.is_empty(), || {
        let types = found.iter().filter_map(|label| match label {
            Label::Type(kind) => Some(kind.as_str()),
            Label::User | Label::Role => None,
        });
        let types: Vec<&str> = types.collect();
        let mut data = Vec::new();
        if !types.is_empty() {
            let word = plural(types.len(), "type", "types");
            data.push(format!("{word} {}", quoted(&types)));
        }
        for (label, text) in [
            (Label::User, "user may not be set"),
            (Label::Role, "role may not be set"),
        ] {
            if found.contains(&label) {
                data.push(text.to_owned());
            }
        }
        let (setters, data) = (setters.join(" and "), data.join("; "));
        format!("{setters} set forbidden securityContext.seLinuxOptions: {data}")
    })
}
