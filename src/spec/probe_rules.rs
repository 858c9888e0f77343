//! How is health asked for? The rules for probes and lifecycle hooks (kubelet-behaviour §5.1, §5.9).

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::error::{Path, Report};
use super::names;

/// Checks a container's probes and hooks.
pub(crate) fn check(container: &Container, path: &Path<'_>, report: &Report) {
    for (name, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        if let Some(probe) = probe {
            check_probe(name, probe, &path.field(name), report);
        }
    }
    if let Some(lifecycle) = &container.lifecycle {
        hooks(lifecycle, &path.field("lifecycle"), report);
    }
}

fn check_probe(name: &str, probe: &Probe, path: &Path<'_>, report: &Report) {
    let exec = probe.exec.as_ref();
    let handlers = [
        exec.is_some(),
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
        probe.grpc.is_some(),
    ];
    exactly_one(&handlers, path, report);
    exec_action(exec, path, report);
    http_get(probe.http_get.as_ref(), path, report);
    tcp_socket(probe.tcp_socket.as_ref(), path, report);
    grpc(probe.grpc.as_ref(), path, report);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|value| *value < 0) {
            let detail = "must be greater than or equal to 0";
            report.invalid(&path.field(field), value, detail);
        }
    }
    let readiness = name == "readinessProbe";
    let threshold = probe.success_threshold.unwrap_or(1);
    if !readiness && threshold > 1 {
        report.invalid(&path.field("successThreshold"), threshold, "must be 1");
    }
    if let Some(seconds) = probe.termination_grace_period_seconds {
        let at = path.field("terminationGracePeriodSeconds");
        if readiness {
            report.invalid(&at, seconds, "must not be set for readinessProbes");
        } else if seconds <= 0 {
            report.invalid(&at, seconds, "must be greater than 0");
        }
    }
}

fn hooks(lifecycle: &Lifecycle, path: &Path<'_>, report: &Report) {
    for (name, hook) in [
        ("postStart", &lifecycle.post_start),
        ("preStop", &lifecycle.pre_stop),
    ] {
        let Some(hook) = hook else { continue };
        handler(hook, &path.field(name), report);
    }
}

fn handler(hook: &LifecycleHandler, path: &Path<'_>, report: &Report) {
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
    if let Some(sleep) = hook.sleep.as_ref().filter(|sleep| sleep.seconds < 0) {
        let at = path.field("sleep");
        let detail = "must be greater than or equal to 0";
        report.invalid(&at.field("seconds"), sleep.seconds, detail);
    }
}

fn exactly_one(given: &[bool], path: &Path<'_>, report: &Report) {
    match given.iter().filter(|given| **given).count() {
        1 => {}
        0 if report.is_wrong_below(path) => {}
        0 => report.error(path, "Required value: must specify a handler type"),
        _ => report.forbidden(path, "may not specify more than 1 handler type"),
    }
}

fn exec_action(action: Option<&ExecAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    if action.command.as_ref().is_none_or(Vec::is_empty) {
        report.required(&path.field("exec").field("command"));
    }
}

fn http_get(action: Option<&HTTPGetAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    let path = path.field("httpGet");
    port(&action.port, &path.field("port"), report);
    let scheme = action.scheme.as_deref().unwrap_or("HTTP");
    if !["", "HTTP", "HTTPS"].contains(&scheme) {
        report.unsupported(&path.field("scheme"), scheme, &["HTTP", "HTTPS"]);
    }
    let list = path.field("httpHeaders");
    for (index, header) in action.http_headers.iter().flatten().enumerate() {
        let fits = !header.name.is_empty()
            && header
                .name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !fits {
            let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', \
                          regex used for validation is '[-A-Za-z0-9]+')";
            report.invalid(&list.index(index).field("name"), &header.name, detail);
        }
    }
}

fn tcp_socket(action: Option<&TCPSocketAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    port(&action.port, &path.field("tcpSocket").field("port"), report);
}

fn grpc(action: Option<&GRPCAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    let at = path.field("grpc");
    port_number(action.port, &at.field("port"), report);
}

/// A number, or the name of one of the container's ports.
fn port(port: &IntOrString, path: &Path<'_>, report: &Report) {
    match port {
        IntOrString::Int(number) => port_number(*number, path, report),
        IntOrString::String(name) => {
            if let Some(problem) = names::port_name(name) {
                report.invalid(path, name, problem);
            }
        }
    }
}

fn port_number(number: i32, path: &Path<'_>, report: &Report) {
    if !(1..=65535).contains(&number) {
        report.invalid(path, number, "must be between 1 and 65535, inclusive");
    }
}
