//! Validation and conversion of one entry of `containers`, `initContainers` or `ephemeralContainers`.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::error::{Path, Report};
use super::huge_pages::HugePages;
use super::names;
use super::pod::{ContainerSpec, ImageName, PullPolicy};
use super::{
    env, env_from, huge_pages, lifecycle_rules, network, probe_rules, resize, resources, restart,
    security, support, user_namespace, volume,
};

/// The list of the pod that a container is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum List {
    /// `containers`.
    Regular,
    /// `initContainers`, sidecars among them.
    Init,
    /// `ephemeralContainers`.
    Ephemeral,
}

impl List {
    /// Returns the field's name.
    pub(crate) fn field(self) -> &'static str {
        match self {
            Self::Regular => "containers",
            Self::Init => "initContainers",
            Self::Ephemeral => "ephemeralContainers",
        }
    }
}

/// Validates and converts a container; `None` if it has no image.
pub(crate) fn convert(
    pod: &Pod,
    spec: &PodSpec,
    (list, container): (List, &Container),
    path: &Path<'_>,
    report: &Report,
) -> Option<ContainerSpec> {
    name(container, path, report);
    support::container(container, path, report);
    let own_policy = container.restart_policy.as_deref();
    let restart_policy = restart::policy(own_policy, path, report);
    let restart_rules = restart::rules(container, path, report);
    let once = list == List::Init && own_policy != Some("Always");
    if once {
        not_for_init(container, path, report);
    }
    let context = container.security_context.as_ref();
    let security = security::container(context, spec.security_context.as_ref(), path, report);
    user_namespace::container(&security, spec, path, report);
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let resources = container.resources.clone().unwrap_or_default();
    arguments(container, path, report);
    let working_dir = container.working_dir.clone().filter(|dir| !dir.is_empty());
    absolute(working_dir.as_deref(), &path.field("workingDir"), report);
    let termination_message_path = message_path(container, path, report);
    let image = container.image.clone().unwrap_or_default();
    let image_name = image_name(&image, &path.field("image"), report);
    let policy = container.image_pull_policy.as_deref();
    let pull_policy = pull_policy(policy, &path.field("imagePullPolicy"), report);
    let mounts = volume::mounts(container, volumes, security.privileged, path, report);
    // Check everything else before returning for a missing image.
    let env_from = env_from::convert(container, path, report);
    let env = env::convert(pod, container, path, report);
    let ports = network::ports(container, spec.host_network == Some(true), path, report);
    let probes = probe_rules::convert(container, &ports, &env, path, report);
    let lifecycle = lifecycle_rules::convert(container, spec, &ports, path, report);
    let storage = resources::storage(&resources);
    let huge_pages = match list {
        // An ephemeral container has no resources.
        List::Ephemeral => HugePages::new(),
        List::Init | List::Regular => huge_pages::of_container(spec, container),
    };
    let resources = resources::convert(&resources, &path.field("resources"), report);
    let resize_restarts = resize::policy(spec, container, once, path, report);
    let termination_message_from_logs = message_from_logs(container, path, report);
    Some(ContainerSpec {
        name: container.name.clone(),
        image,
        image_name: image_name?,
        pinned: None,
        pull_policy,
        command: container.command.clone().filter(|c| !c.is_empty()),
        args: container.args.clone().filter(|a| !a.is_empty()),
        working_dir,
        env_from,
        env,
        mounts,
        ports,
        resources,
        storage,
        huge_pages,
        resize_restarts,
        security,
        termination_message_path,
        termination_message_from_logs,
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        restart_policy,
        restart_rules,
        probes,
        lifecycle,
        target: None,
    })
}

fn name(container: &Container, path: &Path<'_>, report: &Report) {
    let at = path.field("name");
    if container.name.is_empty() {
        report.required(&at);
    } else if let Some(problem) = names::dns_label(&container.name) {
        report.invalid(&at, &container.name, problem);
    }
}

/// Refuses fields that make no sense for init containers that must end before others start.
fn not_for_init(container: &Container, path: &Path<'_>, report: &Report) {
    for (field, given) in [
        ("lifecycle", container.lifecycle.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
    ] {
        if given {
            let detail = "may not be set for init containers without restartPolicy=Always";
            report.forbidden(&path.field(field), detail);
            report.settle(&path.field(field));
        }
    }
}

fn arguments(container: &Container, path: &Path<'_>, report: &Report) {
    for (field, texts) in [("command", &container.command), ("args", &container.args)] {
        let list = path.field(field);
        for (index, text) in texts.iter().flatten().enumerate() {
            if text.contains('\0') {
                report.invalid(&list.index(index), text, "must not contain a zero byte");
            }
        }
    }
}

/// Checks the name of an image.
pub(super) fn image_name(image: &str, path: &Path<'_>, report: &Report) -> Option<ImageName> {
    if image.is_empty() {
        report.required(path);
        return None;
    }
    if image.trim() != image {
        report.invalid(path, image, "must not have leading or trailing whitespace");
        return None;
    }
    match ImageName::parse(image) {
        Ok(name) => Some(name),
        Err(error) => {
            report.invalid(path, image, error);
            None
        }
    }
}

/// Checks and converts a pull policy.
pub(super) fn pull_policy(word: Option<&str>, path: &Path<'_>, report: &Report) -> PullPolicy {
    match word {
        Some("Always") => PullPolicy::Always,
        // Empty only if the image name was refused.
        None | Some("" | "IfNotPresent") => PullPolicy::IfNotPresent,
        Some("Never") => PullPolicy::Never,
        Some(other) => {
            let words = ["Always", "IfNotPresent", "Never"];
            report.unsupported(path, other, &words);
            PullPolicy::IfNotPresent
        }
    }
}

fn message_path(container: &Container, path: &Path<'_>, report: &Report) -> String {
    let written = container.termination_message_path.as_deref();
    let at = path.field("terminationMessagePath");
    absolute(written, &at, report);
    if let Some(written) = written.filter(|written| written.starts_with('/')) {
        // The file is mounted, so the rules for mounts apply.
        let target = volume::mount_path(written, &at, report);
        volume::refuse_proc(&target, written, &at, report);
    }
    written.unwrap_or("/dev/termination-log").to_owned()
}

fn message_from_logs(container: &Container, path: &Path<'_>, report: &Report) -> bool {
    match container.termination_message_policy.as_deref() {
        None | Some("File") => false,
        Some("FallbackToLogsOnError") => true,
        Some(other) => {
            let words = ["FallbackToLogsOnError", "File"];
            report.unsupported(&path.field("terminationMessagePolicy"), other, &words);
            false
        }
    }
}

fn absolute(given: Option<&str>, path: &Path<'_>, report: &Report) {
    let Some(text) = given else { return };
    if !text.starts_with('/') {
        report.invalid_path(path, text, "must be an absolute path");
    } else if text.contains('\0') {
        report.invalid(path, text, "must not contain a zero byte");
    }
}
