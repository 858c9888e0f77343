//! Probes with all defaults filled in and named ports resolved (Kubernetes docs: Probes).
use serde::{Deserialize, Serialize};

/// A container's probes, each optional.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Failure restarts the container.
    pub liveness: Option<Probe>,
    /// Success makes the container ready.
    pub readiness: Option<Probe>,
    /// The other two probes wait for its success.
    pub startup: Option<Probe>,
}

/// Kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ProbeKind {
    /// `livenessProbe`.
    Liveness,
    /// `readinessProbe`.
    Readiness,
    /// `startupProbe`.
    Startup,
}

impl ProbeKind {
    /// Name in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
}

/// A probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Action of the probe.
    pub handler: ProbeHandler,
    /// `initialDelaySeconds`.
    pub initial_delay_ms: u64,
    /// `periodSeconds`.
    pub period_ms: u64,
    /// `timeoutSeconds`.
    pub timeout_ms: u64,
    /// Consecutive successes that count as success.
    pub success_threshold: u32,
    /// Consecutive failures that count as failure.
    pub failure_threshold: u32,
    /// `terminationGracePeriodSeconds`: replaces the pod's when this probe kills the container.
    pub grace_ms: Option<u64>,
}

/// Action of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeHandler {
    /// Runs a program in the container; `$(VAR)` expanded from literal variables.
    Exec(Vec<String>),
    /// Sends an HTTP GET.
    HttpGet(HttpGet),
    /// Opens a TCP connection.
    TcpSocket {
        /// `None`: the pod's address.
        host: Option<String>,
        /// Port.
        port: u16,
    },
    /// Calls `grpc.health.v1.Health/Check`.
    Grpc {
        /// Port at the pod's address.
        port: u16,
        /// `service`; empty for the server as a whole.
        service: String,
    },
}

/// An HTTP GET request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// `scheme: HTTPS`; certificates are not verified.
    pub tls: bool,
    /// `None`: the pod's address.
    pub host: Option<String>,
    /// Port.
    pub port: u16,
    /// Path with query, begins with `/`.
    pub path: String,
    /// Headers in order, names as written.
    pub headers: Vec<(String, String)>,
}
