//! AppArmor profiles in annotations, as they were written before there was a field. As in the API server they count where
//! a container has no profile of its own, and must not contradict one that it has (KEP-24).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec as Written, SecurityContext};

use super::error::{Path, Report};

/// Prefix of annotations with a container's profile; the container's name follows.
pub(super) const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Begins the value with a profile that is loaded on the node.
const LOCALHOST: &str = "localhost/";

/// Writes the profiles of annotations into the fields of containers that have none.
pub(super) fn fill_in(annotations: Option<&BTreeMap<String, String>>, spec: &mut Written) {
    let context = spec.security_context.as_ref();
    let of_pod = context.is_some_and(|context| context.app_armor_profile.is_some());
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        let value = annotations.and_then(|all| all.get(&format!("{ANNOTATION}{}", container.name)));
        let Some(profile) = value.and_then(|value| read(value)) else {
            continue;
        };
        let has_own = |context: &SecurityContext| context.app_armor_profile.is_some();
        // Without any profile a container is unconfined anyway.
        if container.security_context.as_ref().is_some_and(has_own)
            || profile.type_ == "Unconfined" && !of_pod
        {
            continue;
        }
        let context = container.security_context.get_or_insert_default();
        context.app_armor_profile = Some(profile);
    }
}

/// Checks the annotations of a pod whose fields are filled in. Version 0.1 did not, so an admitted pod goes on.
pub(super) fn check(
    annotations: Option<&BTreeMap<String, String>>,
    spec: &Written,
    path: &Path<'_>,
    report: &Report,
) {
    if report.is_admitted() {
        return;
    }
    let init = || spec.init_containers.iter().flatten();
    for (key, value) in annotations.into_iter().flatten() {
        let Some(name) = key.strip_prefix(ANNOTATION) else {
            continue;
        };
        let at = path.field(key);
        let Some(container) = init().chain(&spec.containers).find(|c| c.name == name) else {
            report.invalid(&at, name, "container not found");
            continue;
        };
        match read(value) {
            Some(profile) => compare(&profile, container, &at, report),
            None if value.is_empty() => {}
            None => {
                let detail = format!("invalid AppArmor profile name: {value:?}");
                report.invalid(&at, value, &detail);
            }
        }
    }
}

/// The annotation and the container's own field must not contradict each other.
fn compare(profile: &AppArmorProfile, container: &Container, path: &Path<'_>, report: &Report) {
    let context = container.security_context.as_ref();
    let Some(field) = context.and_then(|context| context.app_armor_profile.as_ref()) else {
        return;
    };
    if field.type_ != profile.type_ {
        report.forbidden(path, "apparmor type in annotation and field must match");
    } else if field.localhost_profile != profile.localhost_profile {
        report.forbidden(path, "apparmor profile in annotation and field must match");
    }
}

/// The profile that an annotation names, if it names one.
fn read(value: &str) -> Option<AppArmorProfile> {
    let (type_, localhost_profile) = match value {
        "unconfined" => ("Unconfined", None),
        "runtime/default" => ("RuntimeDefault", None),
        other => {
            let name = other
                .strip_prefix(LOCALHOST)
                .filter(|name| !name.is_empty())?;
            ("Localhost", Some(name.to_owned()))
        }
    };
    Some(AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(profile_of_pod: Option<&str>, profile: Option<&str>) -> Written {
        let of = |value: Option<&str>| value.and_then(read);
        Written {
            security_context: Some(k8s_openapi::api::core::v1::PodSecurityContext {
                app_armor_profile: of(profile_of_pod),
                ..Default::default()
            }),
            containers: vec![Container {
                name: "a".to_owned(),
                security_context: of(profile).map(|profile| SecurityContext {
                    app_armor_profile: Some(profile),
                    ..Default::default()
                }),
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    fn annotated(name: &str, value: &str) -> Option<BTreeMap<String, String>> {
        Some(BTreeMap::from([(
            format!("{ANNOTATION}{name}"),
            value.to_owned(),
        )]))
    }

    #[test]
    fn an_annotation_counts_where_the_container_has_no_profile_of_its_own() {
        for (of_pod, own, value, expected) in [
            (None, None, "runtime/default", Some("runtime/default")),
            (None, None, "localhost/web", Some("localhost/web")),
            (None, None, "unconfined", None),
            (
                Some("runtime/default"),
                None,
                "unconfined",
                Some("unconfined"),
            ),
            (
                Some("runtime/default"),
                None,
                "localhost/web",
                Some("localhost/web"),
            ),
            (
                None,
                Some("localhost/own"),
                "localhost/web",
                Some("localhost/own"),
            ),
            (None, None, "localhost/", None),
            (None, None, "", None),
        ] {
            let mut spec = spec(of_pod, own);
            fill_in(annotated("a", value).as_ref(), &mut spec);
            let context = spec.containers[0].security_context.as_ref();
            let found = context.and_then(|context| context.app_armor_profile.clone());
            assert_eq!(found, expected.and_then(read), "{of_pod:?} {own:?} {value}");
        }
    }

    #[test]
    fn annotations_that_name_no_profile_or_another_than_the_field_are_refused() {
        for (name, value, own, expected) in [
            ("a", "runtime/default", None, None),
            ("a", "localhost/web", Some("localhost/web"), None),
            ("a", "", None, None),
            (
                "b",
                "runtime/default",
                None,
                Some("Invalid value: \"b\": container not found"),
            ),
            (
                "a",
                "strict",
                None,
                Some("invalid AppArmor profile name: \"strict\""),
            ),
            (
                "a",
                "localhost/",
                None,
                Some("invalid AppArmor profile name: \"localhost/\""),
            ),
            (
                "a",
                "unconfined",
                Some("runtime/default"),
                Some("apparmor type in annotation and field must match"),
            ),
            (
                "a",
                "localhost/x",
                Some("localhost/y"),
                Some("apparmor profile in annotation and field must match"),
            ),
        ] {
            let report = Report::default();
            let root = Path::Root.field("annotations");
            check(
                annotated(name, value).as_ref(),
                &spec(None, own),
                &root,
                &report,
            );
            let said: String = report
                .into_problems()
                .into_iter()
                .map(|problem| problem.message)
                .collect();
            match expected {
                Some(text) => assert!(said.contains(text), "{said}"),
                None => assert_eq!(said, "", "{name} {value}"),
            }
            let report = Report::admitted();
            check(
                annotated(name, value).as_ref(),
                &spec(None, own),
                &root,
                &report,
            );
            assert!(report.is_clean(), "a running pod goes on: {name} {value}");
        }
    }
}
