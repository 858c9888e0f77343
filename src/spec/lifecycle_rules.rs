//! Validation and conversion of a container's `lifecycle` (Kubernetes docs: Container Lifecycle Hooks, Termination of
//! Pods).

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, PodSpec};

use super::error::{Path, Report};
use super::lifecycle::{Hook, Lifecycle, StopSignalName};
use super::pod::ContainerPort;
use super::probe_rules::{exactly_one, exec_action, http_get, page, tcp_socket};

/// Validates and converts `lifecycle`. `ports` are the container's own.
pub(crate) fn convert(
    container: &Container,
    spec: &PodSpec,
    ports: &[ContainerPort],
    path: &Path<'_>,
    report: &Report,
) -> Lifecycle {
    let Some(written) = &container.lifecycle else {
        return Lifecycle::default();
    };
    let path = path.field("lifecycle");
    let grace = spec.termination_grace_period_seconds;
    let convert = |name: &str, hook: &Option<LifecycleHandler>| {
        let (hook, path) = (hook.as_ref()?, path.field(name));
        check(hook, grace, &path, report);
        handler(hook, ports, &path, report)
    };
    Lifecycle {
        post_start: convert("postStart", &written.post_start),
        pre_stop: convert("preStop", &written.pre_stop),
        stop_signal: stop_signal(written.stop_signal.as_deref(), spec, &path, report),
    }
}

fn check(hook: &LifecycleHandler, grace: Option<i64>, path: &Path<'_>, report: &Report) {
    let handlers = [
        hook.exec.is_some(),
        hook.http_get.is_some(),
        hook.tcp_socket.is_some(),
        hook.sleep.is_some(),
    ];
    exactly_one(&handlers, path, report);
    exec_action(hook.exec.as_ref(), path, report);
    http_get(hook.http_get.as_ref(), path, report);
    tcp_socket(hook.tcp_socket.as_ref(), path, report);
    let Some(sleep) = &hook.sleep else { return };
    // An invalid grace period is reported elsewhere.
    let grace = grace.filter(|seconds| *seconds >= 0).unwrap_or(i64::MAX);
    if !(0..=grace).contains(&sleep.seconds) {
        let at = path.field("sleep");
        let detail = format_args!(
            "must be non-negative and less than terminationGracePeriodSeconds ({grace})"
        );
        report.invalid(&at.field("seconds"), sleep.seconds, detail);
    }
}

/// Returns the action; `None` after an error.
fn handler(
    hook: &LifecycleHandler,
    ports: &[ContainerPort],
    path: &Path<'_>,
    report: &Report,
) -> Option<Hook> {
    if let Some(exec) = &hook.exec {
        return Some(Hook::Exec(exec.command.clone().unwrap_or_default()));
    }
    if let Some(get) = &hook.http_get {
        return Some(Hook::HttpGet(page(get, ports, path, report)?));
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).ok()?;
        return Some(Hook::Sleep {
            ms: seconds.saturating_mul(1000),
        });
    }
    hook.tcp_socket.as_ref().map(|_| Hook::TcpSocket)
}

fn stop_signal(
    written: Option<&str>,
    spec: &PodSpec,
    path: &Path<'_>,
    report: &Report,
) -> Option<StopSignalName> {
    let (written, path) = (written?, path.field("stopSignal"));
    if spec.os.as_ref().is_none_or(|os| os.name.is_empty()) {
        let detail = "may not be set for containers with empty `spec.os.name`";
        report.forbidden(&path, detail);
    }
    let signal = StopSignalName::parse(written);
    if signal.is_none() {
        let names = StopSignalName::all();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        report.unsupported(&path, written, &names);
    }
    signal
}
