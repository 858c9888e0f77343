//! Ephemeral containers, by the API server's rules: they are only added, through the pod's subresource, and have no
//! ports, probes, hooks, limits or restarts of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, ResourceRequirements};

use super::assemble::MAX_CONTAINERS;
use super::container::{self, List};
use super::error::{Path, Problem, Report};
use super::pod::{ContainerSpec, PodSpec};
use super::value::Value;
use super::{decode, default, parse};
use crate::types::Gather;

const FIELD: &str = "ephemeralContainers";

/// Returns the pod with exactly these ephemeral containers; the existing ones come first.
///
/// Errors: every broken rule in the API server's words, such as `spec.ephemeralContainers[0].image: Required value`.
/// Existing containers may neither change nor be missing.
pub fn replace(pod: &PodSpec, wanted: &[EphemeralContainer]) -> Result<PodSpec, Vec<String>> {
    let report = Report::new(0);
    let root = Path::Root;
    let spec = root.field("spec");
    let new = checked(pod, wanted, &spec.field(FIELD), &report);
    match report.is_clean() {
        true => Ok(new),
        false => Err(report.into_problems().into_iter().map(said).collect()),
    }
}

/// Parses a list of ephemeral containers from JSON, as strictly as a manifest.
///
/// Errors: every wrong type and unknown field.
pub fn parse(json: &str) -> Result<Vec<EphemeralContainer>, Vec<String>> {
    let mut values = parse::parse(json).map_err(|problem| vec![problem.message])?;
    let report = Report::new(0);
    let root = Path::Root;
    let spec = root.field("spec");
    let path = spec.field(FIELD);
    let value = values.pop().unwrap_or(Value::Null);
    decode::duplicate_keys(&value, &path, &report);
    let list = decode::decode::<Vec<EphemeralContainer>>(&value, &path, &report);
    match list.filter(|_| report.is_clean()) {
        Some(list) => Ok(list),
        None => Err(report.into_problems().into_iter().map(said).collect()),
    }
}

fn said(problem: Problem) -> String {
    format!("{}: {}", problem.path, problem.message)
}

/// Like [`replace`]; errors go to the report.
pub(crate) fn checked(
    pod: &PodSpec,
    wanted: &[EphemeralContainer],
    path: &Path<'_>,
    report: &Report,
) -> PodSpec {
    if wanted.len() > MAX_CONTAINERS {
        let number = wanted.len();
        let detail = format!("Too many: {number}: must have at most {MAX_CONTAINERS} items");
        report.error(path, detail);
        return pod.clone();
    }
    let known = pod.written_ephemeral();
    let mut written = known.to_vec();
    let mut specs = pod.ephemeral_containers.clone();
    let mut names: BTreeSet<String> = pod.manifest_containers().map(|c| c.name.clone()).gather();
    for (index, each) in wanted.iter().enumerate() {
        let at = path.index(index);
        let mut each = each.clone();
        let common = defaulted(&mut each);
        if !each.name.is_empty() && !names.insert(each.name.clone()) {
            report.duplicate(&at.field("name"), &each.name);
            continue;
        }
        match known.iter().find(|old| old.name == each.name) {
            Some(old) if *old == each => {}
            Some(old) => {
                let name = &old.name;
                let detail = format!("existing ephemeral containers {name:?} may not be changed");
                report.forbidden(&at, detail);
            }
            None => {
                specs.extend(convert(pod, &each, &common, &at, report));
                written.push(each);
            }
        }
    }
    for (index, old) in known.iter().enumerate() {
        if !wanted.iter().any(|new| new.name == old.name) {
            let name = &old.name;
            let detail = format!("existing ephemeral containers {name:?} may not be removed");
            report.forbidden(&path.index(index), detail);
        }
    }
    with(pod, written, specs)
}

impl PodSpec {
    /// Returns the ephemeral containers as shown.
    pub fn written_ephemeral(&self) -> Vec<EphemeralContainer> {
        self.manifest
            .spec()
            .ephemeral_containers
            .unwrap_or_default()
    }

    /// Returns this pod with the ephemeral containers of another one, usually of itself before an edit.
    pub fn with_ephemeral_of(&self, other: &Self) -> Self {
        let specs = other.ephemeral_containers.clone();
        with(self, other.written_ephemeral(), specs)
    }

    /// Returns this pod without ephemeral containers, as in its manifest file.
    pub fn without_ephemeral(&self) -> Self {
        with(self, Vec::new(), Vec::new())
    }
}

fn with(pod: &PodSpec, written: Vec<EphemeralContainer>, specs: Vec<ContainerSpec>) -> PodSpec {
    let mut manifest = (*pod.manifest).clone();
    manifest.change_spec(|spec| {
        spec.ephemeral_containers = (!written.is_empty()).then_some(written);
    });
    PodSpec {
        manifest: Arc::new(manifest),
        ephemeral_containers: specs,
        ..pod.clone()
    }
}

fn convert(
    pod: &PodSpec,
    written: &EphemeralContainer,
    common: &Container,
    path: &Path<'_>,
    report: &Report,
) -> Option<ContainerSpec> {
    refuse(written, path, report);
    let target = written.target_container_name.clone();
    let target = target.filter(|name| !name.is_empty());
    if let Some(name) = &target
        && !pod.manifest_containers().any(|c| c.name == *name)
    {
        report.not_found(&path.field("targetContainerName"), name);
    }
    let list = (List::Ephemeral, common);
    let manifest = pod.manifest.pod();
    let spec = manifest.spec.as_ref()?;
    let converted = container::convert(&manifest, spec, list, path, report)?;
    Some(ContainerSpec {
        target,
        ..converted
    })
}

/// Refuses fields that ephemeral containers may not have.
fn refuse(written: &EphemeralContainer, path: &Path<'_>, report: &Report) {
    const DETAIL: &str = "cannot be set for an Ephemeral Container";
    let list = |given: Option<usize>| given.is_some_and(|length| length > 0);
    let resources = written.resources.as_ref();
    for (field, given) in [
        ("ports", list(written.ports.as_ref().map(Vec::len))),
        ("livenessProbe", written.liveness_probe.is_some()),
        ("readinessProbe", written.readiness_probe.is_some()),
        ("startupProbe", written.startup_probe.is_some()),
        ("lifecycle", written.lifecycle.is_some()),
        (
            "resources",
            resources.is_some_and(|r| *r != ResourceRequirements::default()),
        ),
        (
            "resizePolicy",
            list(written.resize_policy.as_ref().map(Vec::len)),
        ),
        ("restartPolicy", written.restart_policy.is_some()),
        (
            "restartPolicyRules",
            list(written.restart_policy_rules.as_ref().map(Vec::len)),
        ),
    ] {
        if given {
            report.forbidden(&path.field(field), DETAIL);
        }
    }
    let mounts = path.field("volumeMounts");
    for (index, mount) in written.volume_mounts.iter().flatten().enumerate() {
        let at = mounts.index(index);
        for (field, given) in [
            ("subPath", &mount.sub_path),
            ("subPathExpr", &mount.sub_path_expr),
        ] {
            if given.as_ref().is_some_and(|path| !path.is_empty()) {
                report.forbidden(&at.field(field), DETAIL);
            }
        }
    }
}

/// Returns the fields that all kinds of containers share.
pub fn as_container(written: &EphemeralContainer) -> Container {
    Container {
        name: written.name.clone(),
        image: written.image.clone(),
        image_pull_policy: written.image_pull_policy.clone(),
        command: written.command.clone(),
        args: written.args.clone(),
        working_dir: written.working_dir.clone(),
        env: written.env.clone(),
        env_from: written.env_from.clone(),
        volume_mounts: written.volume_mounts.clone(),
        volume_devices: written.volume_devices.clone(),
        security_context: written.security_context.clone(),
        stdin: written.stdin,
        stdin_once: written.stdin_once,
        tty: written.tty,
        termination_message_path: written.termination_message_path.clone(),
        termination_message_policy: written.termination_message_policy.clone(),
        ..Container::default()
    }
}

/// Fills in defaults; returns the fields shared with other containers.
fn defaulted(written: &mut EphemeralContainer) -> Container {
    let mut common = as_container(written);
    default::container(&mut common, false);
    written.image_pull_policy = common.image_pull_policy.clone();
    written.env = common.env.clone();
    written.termination_message_path = common.termination_message_path.clone();
    written.termination_message_policy = common.termination_message_policy.clone();
    written.resources.get_or_insert_default();
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, admitted, documents};

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  \
                       volumes: [{name: data}]\n  \
                       initContainers: [{name: init, image: i}]\n  \
                       containers: [{name: app, image: i}]\n";

    fn pod() -> PodSpec {
        let context = ConvertContext::of("n");
        let found = documents(POD.as_bytes(), "f", &context).expect("valid");
        found.pods.into_iter().next().expect("one")
    }

    fn add(pod: &PodSpec, json: &str) -> Result<PodSpec, String> {
        let wanted = parse(json).map_err(|e| e.join("\n"))?;
        replace(pod, &wanted).map_err(|e| e.join("\n"))
    }

    #[test]
    fn empty_lists_are_as_good_as_none() {
        let json = r#"[{"name": "d", "image": "i", "ports": [], "resizePolicy": []}]"#;
        assert!(add(&pod(), json).is_ok());
        let json = r#"[{"name": "d", "image": "i", "ports": [{"containerPort": 80}]}]"#;
        assert!(add(&pod(), json).is_err());
    }

    #[test]
    fn broken_rules_are_reported_in_the_api_servers_words() {
        const AT: &str = "spec.ephemeralContainers[0]";
        let cannot = "Forbidden: cannot be set for an Ephemeral Container";
        for (json, expected) in [
            (r#"[{"name": "d"}]"#, format!("{AT}.image: Required value")),
            (r#"[{"image": "i"}]"#, format!("{AT}.name: Required value")),
            (
                r#"[{"name": "app", "image": "i"}]"#,
                format!("{AT}.name: Duplicate value: \"app\""),
            ),
            (
                r#"[{"name": "init", "image": "i"}]"#,
                format!("{AT}.name: Duplicate value: \"init\""),
            ),
            (
                r#"[{"name": "d", "image": "i", "targetContainerName": "no"}]"#,
                format!("{AT}.targetContainerName: Not found: \"no\""),
            ),
            (
                r#"[{"name": "d", "image": "i", "ports": [{"containerPort": 1}]}]"#,
                format!("{AT}.ports: {cannot}"),
            ),
            (
                r#"[{"name": "d", "image": "i", "resources": {"limits": {"cpu": "1"}}}]"#,
                format!("{AT}.resources: {cannot}"),
            ),
            (
                r#"[{"name": "d", "image": "i", "restartPolicy": "Always"}]"#,
                format!("{AT}.restartPolicy: {cannot}"),
            ),
            (
                r#"[{"name": "d", "image": "i", "lifecycle": {}, "livenessProbe": {"exec": {"command": ["a"]}}}]"#,
                format!("{AT}.livenessProbe: {cannot}\n{AT}.lifecycle: {cannot}"),
            ),
            (
                r#"[{"name": "d", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "s"}]}]"#,
                format!("{AT}.volumeMounts[0].subPath: {cannot}"),
            ),
            (
                r#"[{"name": "d", "image": "i", "volumeMounts": [{"name": "no", "mountPath": "/d"}]}]"#,
                format!("{AT}.volumeMounts[0].name: Not found: \"no\""),
            ),
            (
                r#"[{"name": "d", "imag": "i"}]"#,
                format!("{AT}.imag: unknown field"),
            ),
            (
                r#"{"name": "d"}"#,
                "spec.ephemeralContainers: must be a list, not a mapping".to_owned(),
            ),
        ] {
            assert_eq!(add(&pod(), json).err(), Some(expected), "{json}");
        }
    }

    #[test]
    fn existing_containers_may_neither_change_nor_go() {
        let json = r#"[{"name": "d", "image": "i", "targetContainerName": "app"}]"#;
        let with = add(&pod(), json).expect("valid");
        assert_eq!(with.ephemeral_containers[0].target.as_deref(), Some("app"));
        assert_eq!(add(&with, json).expect("the same"), with);
        let shown = serde_json::to_string(&with.written_ephemeral()).expect("plain data");
        assert_eq!(add(&with, &shown).expect("as shown"), with);
        let changed = add(&with, r#"[{"name": "d", "image": "other"}]"#);
        let refusal = "spec.ephemeralContainers[0]: Forbidden: existing ephemeral containers \"d\" may not be";
        assert_eq!(changed.err(), Some(format!("{refusal} changed")));
        assert_eq!(add(&with, "[]").err(), Some(format!("{refusal} removed")));
        let both = add(
            &with,
            r#"[{"name": "e", "image": "i"}, {"name": "d", "image": "i", "targetContainerName": "app"}]"#,
        );
        let names: Vec<String> = both
            .expect("valid")
            .all_containers()
            .map(|c| c.name.clone())
            .collect();
        assert_eq!(names, ["init", "app", "d", "e"]);
        assert_eq!(with.without_ephemeral(), pod());
    }

    #[test]
    fn an_admitted_pod_keeps_ephemeral_containers_and_no_manifest_may_have_any() {
        let with = add(&pod(), r#"[{"name": "d", "image": "i"}]"#).expect("valid");
        let json = with.manifest.json().into_bytes();
        assert_eq!(admitted(&json).expect("valid"), with);
        let context = ConvertContext::of("n");
        let text = format!("{POD}  ephemeralContainers: [{{name: d, image: i}}]\n");
        let refused = documents(text.as_bytes(), "f", &context).expect_err("on create");
        assert!(
            refused[0]
                .message
                .starts_with("Forbidden: cannot be set on create"),
            "{refused:?}"
        );
    }
}
