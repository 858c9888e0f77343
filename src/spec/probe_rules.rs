//! The rules for probes, some of which also apply to hooks (Kubernetes docs: Probes).

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Probe as Written, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::error::{Path, Report};
use super::expand::expand;
use super::names;
use super::pod::{ContainerPort, EnvValue, EnvVar};
use super::probe::{HttpGet, Probe, ProbeHandler, Probes};

/// Validates and converts a container's probes. `ports` and `env` are its own.
pub(crate) fn convert(
    container: &Container,
    ports: &[ContainerPort],
    env: &[EnvVar],
    path: &Path<'_>,
    report: &Report,
) -> Probes {
    let convert = |name: &str, written: &Option<Written>| {
        let (written, path) = (written.as_ref()?, path.field(name));
        check_probe(name, written, &path, report);
        let handler = probe_handler(written, ports, env, &path, report)?;
        Some(probe(written, handler))
    };
    Probes {
        liveness: convert("livenessProbe", &container.liveness_probe),
        readiness: convert("readinessProbe", &container.readiness_probe),
        startup: convert("startupProbe", &container.startup_probe),
    }
}

/// Converts a probe. Its figures are already checked: a value that does not fit belongs to a rejected pod.
fn probe(written: &Written, handler: ProbeHandler) -> Probe {
    let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
    let ms = |value: Option<i32>| u64::from(number(value).unwrap_or(0)) * 1000;
    let grace = written.termination_grace_period_seconds;
    let grace = grace.and_then(|seconds| u64::try_from(seconds).ok());
    Probe {
        handler,
        initial_delay_ms: ms(written.initial_delay_seconds),
        period_ms: ms(written.period_seconds),
        timeout_ms: ms(written.timeout_seconds),
        success_threshold: number(written.success_threshold).unwrap_or(1),
        failure_threshold: number(written.failure_threshold).unwrap_or(1),
        grace_ms: grace.map(|seconds| seconds.saturating_mul(1000)),
    }
}

/// Returns the action; `None` after an error.
fn probe_handler(
    written: &Written,
    ports: &[ContainerPort],
    env: &[EnvVar],
    path: &Path<'_>,
    report: &Report,
) -> Option<ProbeHandler> {
    if let Some(exec) = &written.exec {
        let command = exec.command.iter().flatten();
        let command = command.map(|word| expand(word, |name| literal(env, name)));
        return Some(ProbeHandler::Exec(command.collect()));
    }
    if let Some(get) = &written.http_get {
        return Some(ProbeHandler::HttpGet(page(get, ports, path, report)?));
    }
    if let Some(tcp) = &written.tcp_socket {
        let path = path.field("tcpSocket");
        return Some(ProbeHandler::TcpSocket {
            host: named(&tcp.host),
            port: own_port(&tcp.port, ports, &path.field("port"), report)?,
        });
    }
    let grpc = written.grpc.as_ref()?;
    Some(ProbeHandler::Grpc {
        port: u16::try_from(grpc.port).ok()?,
        service: grpc.service.clone().unwrap_or_default(),
    })
}

/// Returns an HTTP GET request; `None` after an error in its port.
pub(super) fn page(
    get: &HTTPGetAction,
    ports: &[ContainerPort],
    path: &Path<'_>,
    report: &Report,
) -> Option<HttpGet> {
    let path = path.field("httpGet");
    let written = get.path.as_deref().unwrap_or_default();
    let headers = get.http_headers.iter().flatten();
    Some(HttpGet {
        tls: get.scheme.as_deref() == Some("HTTPS"),
        host: named(&get.host),
        port: own_port(&get.port, ports, &path.field("port"), report)?,
        path: format!("/{}", written.strip_prefix('/').unwrap_or(written)),
        headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
    })
}

fn named(host: &Option<String>) -> Option<String> {
    host.clone().filter(|host| !host.is_empty())
}

/// Returns the value of a literal variable in the manifest; the last one with that name counts.
fn literal<'v>(env: &'v [EnvVar], name: &str) -> Option<Cow<'v, str>> {
    let variable = env.iter().rev().find(|variable| variable.name == name)?;
    match &variable.value {
        EnvValue::Literal(value) => Some(Cow::from(value.as_str())),
        EnvValue::Metadata(_)
        | EnvValue::Uid
        | EnvValue::Key(_)
        | EnvValue::FileKey(_)
        | EnvValue::HostIp
        | EnvValue::HostIps
        | EnvValue::PodIp
        | EnvValue::PodIps
        | EnvValue::NodeName
        | EnvValue::Resource(_)
        | EnvValue::NodeCpu { .. }
        | EnvValue::NodeMemory { .. }
        | EnvValue::NodeStorage { .. } => None,
    }
}

/// Returns a port by number, or by the name of a port of the container.
fn own_port(
    port: &IntOrString,
    ports: &[ContainerPort],
    path: &Path<'_>,
    report: &Report,
) -> Option<u16> {
    match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        // An invalid name was reported.
        IntOrString::String(name) if names::port_name(name).is_some() => None,
        IntOrString::String(name) => {
            let named = ports.iter().find(|port| port.name.as_ref() == Some(name));
            if named.is_none() {
                report.invalid(path, name, "no port of this container has that name");
            }
            named.map(|port| port.container_port)
        }
    }
}

fn check_probe(name: &str, probe: &Written, path: &Path<'_>, report: &Report) {
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

pub(super) fn exactly_one(given: &[bool], path: &Path<'_>, report: &Report) {
    match given.iter().filter(|given| **given).count() {
        1 => {}
        0 if report.is_wrong_below(path) => {}
        0 => report.error(path, "Required value: must specify a handler type"),
        _ => report.forbidden(path, "may not specify more than 1 handler type"),
    }
}

pub(super) fn exec_action(action: Option<&ExecAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    if action.command.as_ref().is_none_or(Vec::is_empty) {
        report.required(&path.field("exec").field("command"));
    }
}

pub(super) fn http_get(action: Option<&HTTPGetAction>, path: &Path<'_>, report: &Report) {
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

pub(super) fn tcp_socket(action: Option<&TCPSocketAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    port(&action.port, &path.field("tcpSocket").field("port"), report);
}

fn grpc(action: Option<&GRPCAction>, path: &Path<'_>, report: &Report) {
    let Some(action) = action else { return };
    let at = path.field("grpc");
    port_number(action.port, &at.field("port"), report);
}

/// Checks a port: a number, or a valid port name.
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
