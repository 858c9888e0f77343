//! Bounds of settings, and how settings within settings are printed.

use super::*;

#[test]
fn bounds_are_reported_in_the_kubelets_words() {
    for (text, expected) in [
        (
            "healthzPort: 70000",
            "healthzPort (--healthz-port) 70000 must be between 1 and 65535, inclusive",
        ),
        (
            "oomScoreAdj: -1001",
            "oomScoreAdj (--oom-score-adj) -1001 must be between -1000 and 1000, inclusive",
        ),
        (
            "maxOpenFiles: -1",
            "maxOpenFiles (--max-open-files) -1 must not be a negative number",
        ),
        (
            "podsPerCore: -1",
            "podsPerCore (--pods-per-core) -1 must not be a negative number",
        ),
        (
            "eventBurst: -1",
            "eventBurst (--event-burst) -1 must not be a negative number",
        ),
        (
            "nodeStatusMaxImages: -2",
            "nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater",
        ),
        (
            "containerLogMaxWorkers: 0",
            "containerLogMaxWorkers must be greater than or equal to 1",
        ),
        (
            "containerLogMonitorInterval: 2s",
            "containerLogMonitorInterval must be a positive time duration greater than or equal to 3s",
        ),
        (
            "cpuCFSQuotaPeriod: 2s",
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec, inclusive",
        ),
        (
            "imageGCHighThresholdPercent: 70",
            "imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than imageGCHighThresholdPercent \
             (--image-gc-high-threshold) 70",
        ),
        (
            "imageMinimumGCAge: -1s",
            "imageMinimumGCAge -1s must not be negative",
        ),
        (
            "imageMaximumGCAge: 1m",
            "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: 301 seconds) must be set between 1s and 300s",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 0s}",
            "CrashLoopBackOff.MaxContainerRestartPeriod (got: 0 seconds) must be set between 1s and 300s",
        ),
        (
            "shutdownGracePeriod: 500ms",
            "shutdownGracePeriod 500ms must be either zero or otherwise >= 1 sec",
        ),
        (
            "shutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 10s",
            "shutdownGracePeriodCriticalPods 10s must be <= shutdownGracePeriod 5s",
        ),
        (
            "shutdownGracePeriod: 5s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 2}]",
            "Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time",
        ),
        (
            "shutdownGracePeriod: 5s\nfeatureGates: {GracefulNodeShutdown: false}",
            "specifying shutdownGracePeriod or shutdownGracePeriodCriticalPods requires feature gate GracefulNodeShutdown",
        ),
        (
            "memorySwap: {swapBehavior: Swap}",
            "memorySwap.swapBehavior \"Swap\" must be one of: \"\", \"LimitedSwap\", \"UnlimitedSwap\" or \"NoSwap\"",
        ),
        (
            "coracle: {podSecurity: Strict}",
            "coracle.podSecurity \"Strict\" must be one of: \"privileged\", \"baseline\", \"restricted\"",
        ),
        (
            "coracle: {plainHTTPRegistries: [registry.lan, \"http://r.lan\"]}",
            "coracle.plainHTTPRegistries[1] \"http://r.lan\" must be a registry's host, or host:port",
        ),
        (
            "coracle: {bundleKey: site.pub}",
            "coracle.bundleKey \"site.pub\" must be an absolute path",
        ),
        (
            "coracle: {bundle: {source: registry.lan/site:3}}",
            "coracle.bundle.source must be like oci://registry/site:3 or https://host/site.tar",
        ),
        (
            "coracle: {bundle: {source: \"oci://site:3\"}}",
            "coracle.bundle.source must be like oci://registry/site:3 or https://host/site.tar",
        ),
        (
            "coracle: {bundle: {source: \"https://user:password@host/site.tar\"}}",
            "coracle.bundle.source must be like oci://registry/site:3 or https://host/site.tar",
        ),
        (
            "coracle: {bundle: {source: \"https://host/site\\t.tar\"}}",
            "coracle.bundle.source must be like oci://registry/site:3 or https://host/site.tar",
        ),
        (
            "coracle: {bundle: {interval: 59s}}",
            "coracle.bundle.interval 59s must be between 1m and 168h (7 days)",
        ),
        (
            "coracle: {bundle: {interval: 169h}}",
            "coracle.bundle.interval 169h0m0s must be between 1m and 168h (7 days)",
        ),
        (
            "coracle: {bundle: {key: site.pub}}",
            "coracle.bundle.key \"site.pub\" must be an absolute path",
        ),
        (
            "coracle: {bundle: {readyWithin: 10ms}}",
            "coracle.bundle.readyWithin 10ms must be either zero or at least 1s",
        ),
        (
            "coracle: {pullRate: 2KiB/s}",
            "coracle.pullRate \"2KiB/s\" must be a rate of at least 4KiB/s, like 200KiB/s",
        ),
        (
            "coracle: {pullWindows: [\"01:00-05:00\", \"25:00-26:00\"]}",
            "coracle.pullWindows[1] \"25:00-26:00\" must be two times of day, like 01:00-05:00",
        ),
        (
            "coracle: {pullAlwaysOffline: maybe}",
            "coracle.pullAlwaysOffline \"maybe\" must be one of: \"use\", \"fail\"",
        ),
        (
            "imagePullCredentialsVerificationPolicy: Maybe",
            "option \"Maybe\" specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \
             \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\"",
        ),
        (
            "preloadedImagesVerificationAllowlist: [r.lan/app]",
            "can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVerificationPolicy` is not \
             \"NeverVerifyAllowlistedImages\"",
        ),
        (
            "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n\
             preloadedImagesVerificationAllowlist: [r.lan/*, r.lan/a/*, r.lan:5000/app, 'r.lan/a*']",
            "invalid image pattern in `preloadedImagesVerificationAllowlist`: not a valid wildcard pattern, only patterns \
             ending with '/*' are allowed: r.lan/a*",
        ),
        (
            "staticPodURL: box.lan/pods",
            "staticPodURL must be like https://host/path; a password belongs into staticPodURLHeader",
        ),
        (
            "staticPodURLHeader: {\"X Token\": [a]}",
            "staticPodURLHeader \"X Token\" is no valid HTTP header",
        ),
        (
            "coracle: {registryAuthFile: auth.json}",
            "coracle.registryAuthFile \"auth.json\" must be an absolute path",
        ),
        (
            "memoryThrottlingFactor: 1.5",
            "memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0",
        ),
        (
            "memoryReservationPolicy: TieredReservation",
            "memoryReservationPolicy \"TieredReservation\" requires MemoryQoS feature gate to be enabled",
        ),
        (
            "memoryReservationPolicy: Some",
            "option \"Some\" specified for memoryReservationPolicy. Valid options are \"None\" or \"TieredReservation\"",
        ),
        (
            "evictionHard: {memory.free: 1Mi}",
            "unsupported eviction signal memory.free",
        ),
        (
            "evictionHard: {memory.available: '0'}",
            "eviction threshold memory.available must be positive: 0",
        ),
        (
            "evictionHard: {memory.available: '-5%'}",
            "eviction percentage threshold memory.available must be >= 0%: -5%",
        ),
        (
            "evictionHard: {memory.available: 101%}",
            "eviction percentage threshold memory.available must be <= 100%: 101%",
        ),
        (
            "evictionSoft: {memory.available: 1Mi}",
            "grace period must be specified for the soft eviction threshold memory.available",
        ),
        (
            "enforceNodeAllocatable: [pods, pods]",
            "duplicated enforcements \"pods\" in enforceNodeAllocatable (--enforce-node-allocatable)",
        ),
        (
            "enforceNodeAllocatable: [none, pods]",
            "enforceNodeAllocatable (--enforce-node-allocatable) may not contain additional enforcements when \"none\" is \
             specified",
        ),
        (
            "enforceNodeAllocatable: [system-reserved]",
            "systemReservedCgroup (--system-reserved-cgroup) must be specified when \"system-reserved\" or \
             \"system-reserved-compressible\" included in enforceNodeAllocatable (--enforce-node-allocatable)",
        ),
        (
            "cgroupsPerQOS: false",
            "cgroupsPerQOS (--cgroups-per-qos) must be set to true when \"pods\" contained in enforceNodeAllocatable \
             (--enforce-node-allocatable)",
        ),
        (
            "reservedSystemCPUs: 0-1\nkubeReservedCgroup: /a",
            "can't use reservedSystemCPUs (--reserved-cpus) with systemReservedCgroup (--system-reserved-cgroup) or \
             kubeReservedCgroup (--kube-reserved-cgroup)",
        ),
        (
            "reservedSystemCPUs: x",
            "unable to parse reservedSystemCPUs (--reserved-cpus) x, error: `x` is not a processor's number",
        ),
        (
            "podLogsDir: logs",
            "pod logs path \"logs\" must be absolute path",
        ),
        (
            "podLogsDir: /a/../b",
            "pod logs path \"/a/../b\" must be normalized",
        ),
        (
            "runOnce: true",
            "runOnce (--runOnce) true, Runonce mode has been deprecated and should not be set",
        ),
        (
            "registerWithTaints: [{key: a, effect: Never}]",
            "invalid taint: a=:Never: the effect must be one of NoSchedule, PreferNoSchedule, NoExecute",
        ),
        (
            "registerWithTaints: [{key: a, effect: NoSchedule}, {key: b, effect: NoSchedule}, {key: a, value: x, effect: NoSchedule}]",
            "invalid taint: a=x:NoSchedule: taints must be unique by key and effect",
        ),
        (
            "maxParallelImagePulls: 0",
            "maxParallelImagePulls 0 must be a positive number",
        ),
        (
            "systemReserved: {disk: 1Gi}",
            "cannot reserve \"disk\" resource",
        ),
        (
            "systemReserved: {cpu: '-1'}",
            "resource quantity for \"cpu\" cannot be negative: -1",
        ),
        ("clusterDNS: [a]", "clusterDNS[0]: `a` is not an IP address"),
        (
            "podCIDR: 10.0.0.0",
            "podCIDR: `10.0.0.0` is not a range like 10.77.0.0/20",
        ),
        (
            "coracle: {bridge: 0}",
            "coracle.bridge: must be a string, not a number; quote it: \"0\"",
        ),
        ("a: 1\n---\nb: 1", "must hold one document, not several"),
        (
            "[]",
            "must be a mapping, not a list; settings begin with `kind: KubeletConfiguration`",
        ),
        ("a: [", "not valid YAML: did not find expected node content"),
    ] {
        let found = problems(text);
        let wanted = format!("invalid configuration: {expected}");
        assert!(
            found.iter().any(|problem| problem.ends_with(&wanted)),
            "{text}: {found:#?}"
        );
    }
}

#[test]
fn node_name_and_taints_must_be_valid_names() {
    for (text, problem) in [
        (
            "coracle: {nodeName: my_box}",
            "coracle.nodeName: `my_box` cannot be a node's name: a lowercase RFC 1123",
        ),
        (
            "coracle: {nodeName: a/b}",
            "coracle.nodeName: `a/b` cannot be a node's name: a lowercase RFC 1123",
        ),
        (
            "coracle: {nodeName: ../x}",
            "coracle.nodeName: `../x` cannot be a node's name: a lowercase RFC 1123",
        ),
        (
            "coracle: {nodeName: a2345678901234567890123456789012345678901234567890123456789012345}",
            "cannot be a node's name: must be no more than 63 characters",
        ),
        (
            "registerWithTaints: [{key: a b, effect: NoSchedule}]",
            "invalid taint: a b=:NoSchedule: name part must",
        ),
        (
            "registerWithTaints: [{key: '', effect: NoSchedule}]",
            "invalid taint: =:NoSchedule: name part must be non-empty",
        ),
        (
            "registerWithTaints: [{key: X_/a, effect: NoSchedule}]",
            "invalid taint: X_/a=:NoSchedule: prefix part",
        ),
        (
            "registerWithTaints: [{key: a, value: b c, effect: NoExecute}]",
            "invalid taint: a=b c:NoExecute: a valid label",
        ),
        (
            "registerWithTaints: [{key: a, effect: noschedule}]",
            "invalid taint: a=:noschedule: the effect must be one of",
        ),
        (
            "coracle: {nodeLabels: {a b: c}}",
            "coracle.nodeLabels[a b]: name part must consist",
        ),
        (
            "coracle: {nodeLabels: {a: -c}}",
            "coracle.nodeLabels[a]: a valid label must",
        ),
        (
            "coracle: {nodeLabels: {beta.kubernetes.io/os: plan9}}",
            "must be linux",
        ),
    ] {
        let found = problems(text);
        assert!(
            found.len() == 1 && found[0].contains(problem),
            "{text}: {found:?}"
        );
    }
    assert_eq!(
        good("coracle: {nodeName: ' Box-1.Example '}")
            .config
            .node_name,
        "box-1.example"
    );
    let taints = "registerWithTaints: [{key: example.com/a, value: b, effect: NoSchedule}, {key: example.com/a, effect: NoExecute}]";
    assert_eq!(good(taints).config.taints.len(), 2);
}

#[test]
fn settings_within_settings_are_printed_below_one_another() {
    let shown = as_yaml(&as_json(&good(
        "coracle: {bundle: {source: https://box/site.tar}}",
    )));
    let lines: Vec<&str> = shown
        .lines()
        .map(|line| line.split(" #").next().unwrap_or_default())
        .collect();
    let printed = lines
        .iter()
        .map(|line| line.trim_end())
        .collect::<Vec<_>>()
        .join("\n");
    let expected = "\n  bundleKey: \"\"\n  bundle:\n    source: \"https://box/site.tar\"\n    interval: 15m\n    \
                    key: \"\"\n    readyWithin: 0s\n  pullRate: \"\"\n";
    assert!(printed.contains(expected), "{printed}");
}
