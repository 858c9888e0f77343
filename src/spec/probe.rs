//! How is a container's health asked for? Probes as they are carried out: all defaults filled in, named ports resolved
//! (kubelet-behaviour §5).

/// What a container's probes are, each at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Probes {
    /// Is it to be restarted?
    pub liveness: Option<Probe>,
    /// May it be sent work?
    pub readiness: Option<Probe>,
    /// Has it come up? The other two wait for that.
    pub startup: Option<Probe>,
}

/// Which of a container's probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// `livenessProbe`.
    Liveness,
    /// `readinessProbe`.
    Readiness,
    /// `startupProbe`.
    Startup,
}

impl ProbeKind {
    /// As events name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }
}

/// One probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What is done.
    pub handler: ProbeHandler,
    /// `initialDelaySeconds`.
    pub initial_delay_ms: u64,
    /// `periodSeconds`.
    pub period_ms: u64,
    /// `timeoutSeconds`.
    pub timeout_ms: u64,
    /// So many in a row count as success.
    pub success_threshold: u32,
    /// So many in a row count as failure.
    pub failure_threshold: u32,
    /// `terminationGracePeriodSeconds`: instead of the pod's when this probe kills.
    pub grace_ms: Option<u64>,
}

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeHandler {
    /// Runs a program in the container; `$(VAR)` expanded from literal variables.
    Exec(Vec<String>),
    /// Asks for a page.
    HttpGet(HttpGet),
    /// Opens a connection.
    TcpSocket {
        /// `None`: the pod's address.
        host: Option<String>,
        /// Where.
        port: u16,
    },
    /// Asks `grpc.health.v1.Health/Check`.
    Grpc {
        /// Where, at the pod's address.
        port: u16,
        /// `service`, empty for the server as a whole.
        service: String,
    },
}

/// A page to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// `scheme: HTTPS`; certificates are not verified.
    pub tls: bool,
    /// `None`: the pod's address.
    pub host: Option<String>,
    /// Where.
    pub port: u16,
    /// With query, begins with `/`.
    pub path: String,
    /// In order, names as written.
    pub headers: Vec<(String, String)>,
}
