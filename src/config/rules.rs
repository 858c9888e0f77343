//! Bounds of single values, with the kubelet's messages (Kubernetes docs: Kubelet Configuration).

use super::given::Given;

/// A numeric setting, its kubelet flag, its minimum and maximum, and the kubelet's phrase.
type Bound = (&'static str, &'static str, i64, i64, &'static str);

const NOT_NEGATIVE: &str = "must not be a negative number";
const ANY: i64 = i64::MAX;

const BOUNDS: &[Bound] = &[
    ("eventBurst", "--event-burst", 0, ANY, NOT_NEGATIVE),
    ("eventRecordQPS", "--event-qps", 0, ANY, NOT_NEGATIVE),
    ("kubeAPIBurst", "--kube-api-burst", 0, ANY, NOT_NEGATIVE),
    ("kubeAPIQPS", "--kube-api-qps", 0, ANY, NOT_NEGATIVE),
    ("maxOpenFiles", "--max-open-files", 0, ANY, NOT_NEGATIVE),
    ("maxPods", "--max-pods", 0, ANY, NOT_NEGATIVE),
    ("podsPerCore", "--pods-per-core", 0, ANY, NOT_NEGATIVE),
    ("registryBurst", "--registry-burst", 0, ANY, NOT_NEGATIVE),
    ("registryPullQPS", "--registry-qps", 0, ANY, NOT_NEGATIVE),
    (
        "healthzPort",
        "--healthz-port",
        0,
        65_535,
        "must be between 1 and 65535, inclusive",
    ),
    (
        "imageGCHighThresholdPercent",
        "--image-gc-high-threshold",
        0,
        100,
        "must be between 0 and 100, inclusive",
    ),
    (
        "imageGCLowThresholdPercent",
        "--image-gc-low-threshold",
        0,
        100,
        "must be between 0 and 100, inclusive",
    ),
    (
        "iptablesDropBit",
        "--iptables-drop-bit",
        0,
        31,
        "must be between 0 and 31, inclusive",
    ),
    (
        "iptablesMasqueradeBit",
        "--iptables-masquerade-bit",
        0,
        31,
        "must be between 0 and 31, inclusive",
    ),
    (
        "nodeStatusMaxImages",
        "--node-status-max-images",
        -1,
        ANY,
        "must be -1 or greater",
    ),
    (
        "oomScoreAdj",
        "--oom-score-adj",
        -1000,
        1000,
        "must be between -1000 and 1000, inclusive",
    ),
    (
        "port",
        "--port",
        0,
        65_535,
        "must be between 1 and 65535, inclusive",
    ),
    (
        "readOnlyPort",
        "--read-only-port",
        0,
        65_535,
        "must be between 0 and 65535, inclusive",
    ),
];

/// Checks rules that concern one or two values.
pub(super) fn check(given: &Given<'_>) {
    for (path, flag, min, max, text) in BOUNDS {
        let value = given.int(path);
        if !(*min..=*max).contains(&value) {
            given.wrong(&[path], format!("{path} ({flag}) {value} {text}"));
        }
    }
    let below = |path: &str, least: i64| given.is_set(path) && given.int(path) < least;
    for (path, least, text) in [
        ("containerLogMaxFiles", 2, "must be greater than 1"),
        (
            "containerLogMaxWorkers",
            1,
            "must be greater than or equal to 1",
        ),
        ("evictionMaxPodGracePeriod", 0, NOT_NEGATIVE),
        ("coracle.maximumDeadContainersPerContainer", 0, NOT_NEGATIVE),
    ] {
        if below(path, least) {
            given.wrong(&[path], format!("{path} {text}"));
        }
    }
    if below("nodeLeaseDurationSeconds", 0) {
        let text = "nodeLeaseDurationSeconds must be greater than 0";
        given.wrong(&["nodeLeaseDurationSeconds"], text);
    }
    let ids = given.int("userNamespaces.idsPerPod");
    if ids < 65_536 || ids % 65_536 != 0 {
        given.wrong(
            &["userNamespaces.idsPerPod"],
            format!(
                "userNamespaces.idsPerPod {ids} must be a multiple of 65536, and at least that"
            ),
        );
    }
    for pattern in given.texts("allowedUnsafeSysctls") {
        if let Some(problem) = crate::spec::sysctl::pattern_problem(&pattern) {
            given.wrong(&["allowedUnsafeSysctls"], problem);
        }
    }
    durations(given);
    paths(given);
    super::registries::check(given);
    if given.bool("runOnce") {
        let text =
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set";
        given.wrong(&["runOnce"], text);
    }
    if !given.text("systemCgroups").is_empty() && given.text("cgroupRoot").is_empty() {
        let text = "systemCgroups (--system-cgroups) was specified and cgroupRoot (--cgroup-root) was not specified";
        given.wrong(&["systemCgroups"], text);
    }
}

fn durations(given: &Given<'_>) {
    const SECOND: i64 = 1_000_000_000;
    let period = given.duration("cpuCFSQuotaPeriod");
    if !(SECOND / 1000..=SECOND).contains(&period.nanos) {
        given.wrong(
            &["cpuCFSQuotaPeriod"],
            format!(
                "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) {period} must be between 1ms and 1sec, inclusive"
            ),
        );
    }
    const INTERVAL: &str = "containerLogMonitorInterval";
    if given.is_set(INTERVAL) && given.duration(INTERVAL).nanos < 3 * SECOND {
        let text =
            format!("{INTERVAL} must be a positive time duration greater than or equal to 3s");
        given.wrong(&[INTERVAL], text);
    }
    const BACKOFF: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let longest = given.duration(BACKOFF);
    if !(SECOND..=300 * SECOND).contains(&(longest.nanos / 1_000_000 * 1_000_000)) {
        let seconds = longest.nanos as f64 / SECOND as f64;
        given.wrong(
            &[BACKOFF],
            format!(
                "CrashLoopBackOff.MaxContainerRestartPeriod (got: {seconds} seconds) must be set between 1s and 300s"
            ),
        );
    }
    for path in ["fileCheckFrequency", "evictionPressureTransitionPeriod"] {
        let value = given.duration(path);
        if value.nanos < 0 {
            given.wrong(&[path], format!("{path} {value} must not be negative"));
        }
    }
}

fn paths(given: &Given<'_>) {
    let logs = given.text("podLogsDir");
    let wrong = |text: &str| given.wrong(&["podLogsDir"], format!("pod logs path {logs:?} {text}"));
    if !logs.starts_with('/') {
        wrong("must be absolute path");
    }
    let bare = logs.strip_prefix('/').unwrap_or(&logs);
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    if !bare.is_empty() && bare.split('/').any(odd) {
        wrong("must be normalized");
    }
    if !logs.is_ascii() {
        wrong("mut contains ASCII characters only");
    }
    for path in [
        "staticPodPath",
        "coracle.rootDir",
        "coracle.runDir",
        "coracle.registryAuthFile",
        "coracle.signaturePolicy",
    ] {
        let value = given.text(path);
        if !value.starts_with('/') {
            given.wrong(
                &[path],
                format!("{path} {value:?} must be an absolute path"),
            );
        }
    }
    let key = given.text("coracle.bundleKey");
    if !key.is_empty() && !key.starts_with('/') {
        given.wrong(
            &["coracle.bundleKey"],
            format!("coracle.bundleKey {key:?} must be an absolute path"),
        );
    }
    for list in [
        "coracle.preload",
        "coracle.cdiSpecDirs",
        "coracle.registryCertificateDirs",
        "coracle.registriesConf",
    ] {
        for (index, value) in given.texts(list).iter().enumerate() {
            if !value.starts_with('/') {
                let path = format!("{list}[{index}]");
                given.wrong(
                    &[&path, list],
                    format!("{path} {value:?} must be an absolute path"),
                );
            }
        }
    }
}
