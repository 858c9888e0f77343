//! Probes: one attempt, by one of four handlers, with the kubelet's texts (Kubernetes docs: Probes).
//!
//! Invariants: an attempt never exceeds its timeout, whatever the other side does; dropping its future ends it; no
//! answer takes more memory than the limits here. No state is kept between attempts.

mod dial;
mod exec;
mod grpc;
mod hook;
mod http;
mod tcp;
mod tls;
mod url;

pub use hook::{HookResult, run_hook};

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::shim::protocol::Purpose;
use crate::spec::probe::ProbeHandler;

/// The maximum kept of an answer.
const OUTPUT_BYTES: usize = 10 << 10;

/// The user agent.
const USER_AGENT: &str = "kube-probe/1.36";

/// The outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Healthy, with the answer.
    Success(String),
    /// Healthy, with a warning for people.
    Warning(String),
    /// Unhealthy, with the reason.
    Failure(String),
    /// The probe could not run, with the reason.
    Error(String),
    /// The body of an answer by HTTP could not be read, with the reason.
    Unread(String),
}

/// The container to probe.
#[derive(Debug, Clone)]
pub struct Target {
    /// The container's address when the handler names no host; `None`: it has no network.
    pub ip: Option<IpAddr>,
    /// Why that is not the pod's own address, if so: added to each failure.
    pub instead: Option<&'static str>,
    /// The socket of its pod's shim.
    pub shim_socket: PathBuf,
    /// Its name.
    pub container: String,
    /// Its attempt number.
    pub attempt: u32,
    /// The purpose of the probe or hook.
    pub purpose: Purpose,
}

impl Target {
    /// Adds the reason why the address is not the pod's own to a failure to reach it.
    fn explain(&self, text: String) -> String {
        match self.instead {
            Some(why) => format!("{text} ({why})"),
            None => text,
        }
    }
}

/// Probes once.
pub async fn run(handler: &ProbeHandler, timeout_ms: u64, target: &Target) -> Outcome {
    let outcome = ask(handler, timeout_ms, target).await;
    match outcome {
        Outcome::Failure(text) if asks_pod_ip(handler) => Outcome::Failure(target.explain(text)),
        Outcome::Error(text) if asks_pod_ip(handler) => Outcome::Error(target.explain(text)),
        Outcome::Unread(text) if asks_pod_ip(handler) => Outcome::Unread(target.explain(text)),
        other => other,
    }
}

/// Whether the handler asks the address of the pod, because it names no host.
pub fn asks_pod_ip(handler: &ProbeHandler) -> bool {
    match handler {
        ProbeHandler::Exec(_) => false,
        ProbeHandler::HttpGet(get) => get.host.is_none(),
        ProbeHandler::TcpSocket { host, .. } => host.is_none(),
        ProbeHandler::Grpc { .. } => true,
    }
}

async fn ask(handler: &ProbeHandler, timeout_ms: u64, target: &Target) -> Outcome {
    let timeout = Duration::from_millis(timeout_ms);
    let host_of = |named: Option<&String>| named.cloned().or(Some(target.ip?.to_string()));
    let nowhere = || Outcome::Error("the pod has no address".to_owned());
    match handler {
        ProbeHandler::Exec(command) => exec::run(command, timeout, target).await,
        ProbeHandler::HttpGet(get) => match host_of(get.host.as_ref()) {
            Some(host) => http::run(get, &host, timeout).await,
            None => nowhere(),
        },
        ProbeHandler::TcpSocket { host, port } => match host_of(host.as_ref()) {
            Some(host) => tcp::run(&host, *port, timeout).await,
            None => nowhere(),
        },
        ProbeHandler::Grpc { port, service } => match target.ip {
            Some(ip) => grpc::run(*port, service, timeout, ip).await,
            None => nowhere(),
        },
    }
}

/// `None` once the timeout is over.
async fn within<T>(timeout: Duration, work: impl Future<Output = T>) -> Option<T> {
    let work = async { Some(work.await) };
    let over = async {
        smol::Timer::after(timeout).await;
        None
    };
    smol::future::or(work, over).await
}

/// A duration as Go writes it: `1s`, `1m30s`, `1h0m0s`, `500ms`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let millis = duration.subsec_millis();
    if seconds == 0 {
        return match millis {
            0 => "0s".to_owned(),
            millis => format!("{millis}ms"),
        };
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = match millis {
        0 => format!("{}s", seconds % 60),
        millis => {
            let text = format!("{}.{millis:03}", seconds % 60);
            format!("{}s", text.trim_end_matches('0'))
        }
    };
    match (hours, minutes) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_does() {
        let table = [
            (0, "0s"),
            (500, "500ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (60_000, "1m0s"),
            (90_000, "1m30s"),
            (3_600_000, "1h0m0s"),
        ];
        for (ms, expected) in table {
            assert_eq!(go_duration(Duration::from_millis(ms)), expected);
        }
    }
}
