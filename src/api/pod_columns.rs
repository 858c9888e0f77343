//! kubectl's columns of a pod, by its printer's rules (`pkg/printers/internalversion/printers.go`); used for Tables of
//! the API and by the command line.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodReadinessGate};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;

/// The columns of `kubectl get pods -o wide`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRow {
    /// NAMESPACE
    pub namespace: String,
    /// NAME
    pub name: String,
    /// READY, `1/2`
    pub ready: String,
    /// STATUS
    pub status: String,
    /// RESTARTS, `2 (3m ago)`
    pub restarts: String,
    /// AGE
    pub age: String,
    /// IP
    pub ip: String,
    /// NODE
    pub node: String,
    /// READINESS GATES, `1/2`
    pub gates: String,
    /// `Pulling 34%`, while an image is pulled for it: more than kubectl's STATUS says.
    pub pulling: Option<String>,
}

/// Sums over the containers.
#[derive(Default)]
struct Tally {
    ready: usize,
    restarts: i32,
    last_restart: Option<Timestamp>,
}

impl Tally {
    fn add(&mut self, status: &ContainerStatus) {
        self.restarts += status.restart_count;
        let last = status.last_state.as_ref().and_then(finished);
        self.last_restart = self.last_restart.max(last);
    }
}

/// Formats one pod.
pub fn row(pod: &Pod, now: Timestamp) -> PodRow {
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let or_none = |text: Option<String>| {
        text.filter(|t| !t.is_empty())
            .unwrap_or_else(|| "<none>".to_owned())
    };
    let mut total = spec.containers.len();
    let sidecars: Vec<&str> = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"))
        .map(|c| c.name.as_str())
        .collect();
    total += sidecars.len();
    let mut reason = status
        .reason
        .clone()
        .or(status.phase.clone())
        .unwrap_or_default();
    let mut tally = Tally::default();
    let mut lasting = Tally::default();
    let initializing = init_reason(pod, &sidecars, (&mut tally, &mut lasting), &mut reason);
    if !initializing || is_initialized(pod) {
        // Restarts of init containers no longer count once regular containers run; those of sidecars do.
        lasting.ready = tally.ready;
        tally = lasting;
        container_reason(pod, &mut tally, &mut reason);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        reason = match status.reason.as_deref() {
            Some("NodeLost") => "Unknown".to_owned(),
            _ if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) => reason,
            _ => "Terminating".to_owned(),
        };
    }
    let restarts = match tally.last_restart {
        Some(at) if tally.restarts != 0 => {
            format!("{} ({} ago)", tally.restarts, human_age(at, now))
        }
        _ => tally.restarts.to_string(),
    };
    PodRow {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        ready: format!("{}/{total}", tally.ready),
        status: reason,
        restarts,
        age: age_of(pod.metadata.creation_timestamp.as_ref().map(|t| t.0), now),
        ip: or_none(status.pod_ip),
        node: or_none(spec.node_name),
        gates: gates(pod),
        pulling: pulling(pod),
    }
}

/// How far the first pull is, by the message of the container that waits for it.
fn pulling(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let all = lists.into_iter().flatten().flatten();
    all.filter_map(|one| one.state.as_ref()?.waiting.as_ref()?.message.as_deref())
        .filter_map(|message| message.strip_prefix("Pulling image \""))
        .find_map(|message| {
            let (_, progress) = message.rsplit_once("\": ")?;
            let (percent, _) = progress.split_once("% of ")?;
            Some(format!("Pulling {percent}%"))
        })
}

/// Formats how many of a pod's readiness gates are true.
fn gates(pod: &Pod) -> String {
    let gates = pod.spec.as_ref().and_then(|s| s.readiness_gates.as_ref());
    let Some(gates) = gates.filter(|g| !g.is_empty()) else {
        return "<none>".to_owned();
    };
    let open = |gate: &&PodReadinessGate| condition(pod, &gate.condition_type) == Some("True");
    format!("{}/{}", gates.iter().filter(open).count(), gates.len())
}

fn is_initialized(pod: &Pod) -> bool {
    condition(pod, "Initialized") == Some("True")
}

fn condition<'a>(pod: &'a Pod, wanted: &str) -> Option<&'a str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == wanted)?;
    Some(&found.status)
}

/// Counts init containers; `true` if one of them determines the status. `lasting` counts sidecars only.
fn init_reason(
    pod: &Pod,
    sidecars: &[&str],
    (tally, lasting): (&mut Tally, &mut Tally),
    reason: &mut String,
) -> bool {
    let spec_inits = pod
        .spec
        .iter()
        .flat_map(|s| s.init_containers.iter().flatten());
    let count = spec_inits.count();
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.init_container_statuses.iter().flatten());
    for (index, one) in statuses.enumerate() {
        tally.add(one);
        let sidecar = sidecars.contains(&one.name.as_str());
        if sidecar {
            lasting.add(one);
        }
        let state = one.state.clone().unwrap_or_default();
        if let Some(ended) = &state.terminated {
            if ended.exit_code == 0 {
                continue;
            }
            let why = ended.reason.clone().filter(|r| !r.is_empty());
            *reason = format!(
                "Init:{}",
                why.unwrap_or_else(|| code(ended.signal, ended.exit_code))
            );
            return true;
        }
        if sidecar && one.started == Some(true) {
            tally.ready += usize::from(one.ready);
            continue;
        }
        let waiting = state.waiting.and_then(|w| w.reason);
        *reason = match waiting.filter(|r| !r.is_empty() && r != "PodInitializing") {
            Some(why) => format!("Init:{why}"),
            None => format!("Init:{index}/{count}"),
        };
        return true;
    }
    false
}

fn container_reason(pod: &Pod, tally: &mut Tally, reason: &mut String) {
    let mut running = false;
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    let statuses: Vec<&ContainerStatus> = statuses.collect();
    for one in statuses.into_iter().rev() {
        tally.add(one);
        let state = one.state.clone().unwrap_or_default();
        let said = |r: &Option<String>| r.clone().filter(|r| !r.is_empty());
        if let Some(why) = state.waiting.as_ref().and_then(|w| said(&w.reason)) {
            *reason = why;
        } else if let Some(ended) = &state.terminated {
            *reason = said(&ended.reason).unwrap_or_else(|| code(ended.signal, ended.exit_code));
        } else if one.ready && state.running.is_some() {
            running = true;
            tally.ready += 1;
        }
    }
    if reason == "Completed" && running {
        *reason = match condition(pod, "Ready") {
            Some("True") => "Running",
            _ => "NotReady",
        }
        .to_owned();
    }
}

fn code(signal: Option<i32>, exit_code: i32) -> String {
    match signal.filter(|s| *s != 0) {
        Some(signal) => format!("Signal:{signal}"),
        None => format!("ExitCode:{exit_code}"),
    }
}

fn finished(state: &ContainerState) -> Option<Timestamp> {
    Some(state.terminated.as_ref()?.finished_at.as_ref()?.0)
}

/// NAME, VALUE, GLOBAL-DEFAULT, AGE, PREEMPTIONPOLICY.
pub fn priority_class(class: &PriorityClass, now: Timestamp) -> [String; 5] {
    let created = class.metadata.creation_timestamp.as_ref();
    [
        class.metadata.name.clone().unwrap_or_default(),
        class.value.unwrap_or_default().to_string(),
        (class.global_default == Some(true)).to_string(),
        age_of(created.map(|t| t.0), now),
        class.preemption_policy.clone().unwrap_or_default(),
    ]
}

/// Formats AGE; the time may be missing.
pub fn age_of(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or_else(|| "<unknown>".to_owned(), |at| human_age(at, now))
}

/// Formats the time since `at` with kubectl's rounding.
pub fn human_age(at: Timestamp, now: Timestamp) -> String {
    human_duration(now.as_second() - at.as_second())
}

/// Formats at most two significant units, as `k8s.io/apimachinery/pkg/util/duration.HumanDuration`.
pub fn human_duration(seconds: i64) -> String {
    let with = |big: i64, unit: char, small: i64, part: char| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{part}"),
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    match seconds {
        i64::MIN..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => with(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => with(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => with(days, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => with(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}
