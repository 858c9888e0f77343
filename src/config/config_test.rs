//! Accepted settings, their effective values, and the errors about invalid ones.

#[path = "bounds_test.rs"]
mod bounds;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proptest::prelude::*;

use super::fields::{FIELDS, NOT_YET, Role, ZERO_IS_DEFAULT, find};
use super::*;

fn build(text: &str) -> Result<Effective, ConfigError> {
    Effective::build(&[("c.yaml".into(), text.to_owned())], &[])
}

pub(super) fn good(text: &str) -> Effective {
    build(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

pub(super) fn problems(text: &str) -> Vec<String> {
    match build(text) {
        Err(ConfigError::Invalid(problems)) => problems.iter().map(Problem::to_string).collect(),
        Err(error) => panic!("{error}"),
        Ok(_) => Vec::new(),
    }
}

#[test]
fn the_defaults_are_valid_and_those_of_the_specification() {
    let effective = good("");
    assert_eq!(effective, Effective::default());
    assert_eq!(effective.warning, None);
    let (config, settings) = (effective.config, effective.settings);
    assert_eq!(config.swap, Swapping::Off);
    assert!(!config.fail_swap_on && !config.fail_cgroup_v1);
    assert!(config.pod_pids_limit.is_some_and(|limit| limit <= 4096));
    assert_eq!(config.cpu_cfs_quota_period_us, 100_000);
    assert_eq!(config.reserved.enforce, [Enforce::Pods]);
    assert_eq!(config.memory_qos, None);
    assert_eq!(config.own_oom_score_adj, -999);
    assert_eq!(config.max_open_files, 1_000_000);
    assert_eq!(settings.max_pods, 110);
    assert_eq!(settings.max_container_restart_period_ms, 300_000);
    assert_eq!(periods(&settings), [(0, 20), (2_000_000_000, 10)]);
    assert_eq!(settings.eviction.transition_ms, 300_000);
    let hard: Vec<_> = settings
        .eviction
        .hard
        .iter()
        .map(|t| (t.signal.name(), t.below))
        .collect();
    assert_eq!(
        hard,
        [
            ("memory.available", Amount::Count(100 << 20)),
            ("nodefs.available", Amount::Share(0.1)),
            ("nodefs.inodesFree", Amount::Share(0.05)),
            ("imagefs.available", Amount::Share(0.15)),
            ("imagefs.inodesFree", Amount::Share(0.05)),
        ]
    );
}

fn periods(settings: &Settings) -> Vec<(i32, u64)> {
    let groups = settings.shutdown.iter();
    groups
        .map(|group| (group.priority, group.seconds))
        .collect()
}

#[test]
fn the_table_names_each_setting_once_and_no_list_names_another() {
    let mut seen = BTreeSet::new();
    for field in FIELDS {
        assert!(seen.insert(field.path), "{} twice", field.path);
        let known = field.default.is_empty() == (field.role == Role::Idle);
        assert!(
            known || ["singleProcessOOMKill", "maxParallelImagePulls"].contains(&field.path),
            "{}",
            field.path
        );
    }
    for path in NOT_YET.iter().chain(ZERO_IS_DEFAULT) {
        let field = find(path).unwrap_or_else(|| panic!("{path} is no setting"));
        assert_ne!(field.role, Role::Idle, "{path}");
    }
}

/// A value other than the default for each setting with an effect; some require others beside them.
const OTHERS: &[(&str, &str, &str)] = &[
    ("staticPodPath", "/p", ""),
    ("fileCheckFrequency", "1m30s", ""),
    ("staticPodURL", "https://box/pods", ""),
    (
        "staticPodURLHeader",
        "{X-Token: [a, b]}",
        "staticPodURL: https://box/pods",
    ),
    ("httpCheckFrequency", "1m", "staticPodURL: https://box/pods"),
    ("podLogsDir", "/logs", ""),
    ("containerLogMaxSize", "1Mi", ""),
    ("containerLogMaxFiles", "2", ""),
    ("podCIDR", "10.9.0.0/20", ""),
    ("clusterDNS", "[10.0.0.10]", ""),
    ("clusterDomain", "box", ""),
    ("resolvConf", "/r", ""),
    ("crashLoopBackOff.maxContainerRestartPeriod", "60s", ""),
    ("allowedUnsafeSysctls", "['net.*']", ""),
    ("podPidsLimit", "77", ""),
    ("cpuCFSQuota", "false", ""),
    ("cpuCFSQuotaPeriod", "10ms", ""),
    ("singleProcessOOMKill", "true", ""),
    (
        "memoryThrottlingFactor",
        "0.8",
        "featureGates: {MemoryQoS: true}",
    ),
    (
        "memoryReservationPolicy",
        "TieredReservation",
        "featureGates: {MemoryQoS: true}",
    ),
    ("userNamespaces.idsPerPod", "131072", ""),
    ("maxPods", "20", ""),
    ("podsPerCore", "4", ""),
    ("coracle.nodeLabels", "{a/b: c}", ""),
    ("systemReserved", "{cpu: 200m, memory: 100Mi}", ""),
    ("kubeReserved", "{cpu: '1', pid: '100'}", ""),
    ("systemReservedCgroup", "/sys", ""),
    ("kubeReservedCgroup", "/kube", ""),
    ("reservedSystemCPUs", "0-1,3", ""),
    ("enforceNodeAllocatable", "[none]", ""),
    ("failCgroupV1", "true", ""),
    ("failSwapOn", "true", ""),
    ("memorySwap.swapBehavior", "LimitedSwap", ""),
    ("oomScoreAdj", "-500", ""),
    ("maxOpenFiles", "1000", ""),
    ("registerWithTaints", "[{key: a, effect: NoSchedule}]", ""),
    ("providerID", "x", ""),
    ("nodeStatusMaxImages", "-1", ""),
    ("evictionHard", "{memory.available: 5%}", ""),
    (
        "evictionSoft",
        "{memory.available: 200Mi}",
        "evictionSoftGracePeriod: {memory.available: 30s}",
    ),
    ("evictionMinimumReclaim", "{memory.available: 10Mi}", ""),
    ("evictionPressureTransitionPeriod", "30s", ""),
    ("evictionMaxPodGracePeriod", "9", ""),
    ("localStorageCapacityIsolation", "false", ""),
    ("imageMinimumGCAge", "1m", ""),
    ("imageMaximumGCAge", "1h", ""),
    ("imageGCHighThresholdPercent", "90", ""),
    ("imageGCLowThresholdPercent", "70", ""),
    ("shutdownGracePeriod", "1m", ""),
    ("shutdownGracePeriodCriticalPods", "20s", ""),
    (
        "shutdownGracePeriodByPodPriority",
        "[{priority: 5, shutdownGracePeriodSeconds: 7}]",
        "",
    ),
    (
        "featureGates",
        "{ReduceDefaultCrashLoopBackOffDecay: true}",
        "",
    ),
    ("serializeImagePulls", "false", ""),
    ("maxParallelImagePulls", "3", "serializeImagePulls: false"),
    ("registryPullQPS", "7", ""),
    ("registryBurst", "8", ""),
    ("imagePullCredentialsVerificationPolicy", "AlwaysVerify", ""),
    (
        "preloadedImagesVerificationAllowlist",
        "[r.lan/app]",
        "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
    ),
    ("coracle.rootDir", "/root-dir", ""),
    ("coracle.runDir", "/run-dir", ""),
    ("coracle.preload", "[/images]", ""),
    ("coracle.cdiSpecDirs", "[/cdi]", ""),
    ("coracle.nodeName", "box", ""),
    ("coracle.cgroupParent", "/box", ""),
    ("coracle.bridge", "br7", ""),
    ("coracle.serviceCIDR", "10.8.0.0/20", ""),
    ("coracle.maximumDeadContainersPerContainer", "3", ""),
    ("coracle.stopPodsOnExit", "true", ""),
    ("coracle.podSecurity", "baseline", ""),
    ("coracle.registryAuthFile", "/auth.json", ""),
    ("coracle.registryCertificateDirs", "[/certs.d]", ""),
    ("coracle.registriesConf", "[/registries.conf]", ""),
    ("coracle.signaturePolicy", "/policy.json", ""),
    ("coracle.plainHTTPRegistries", "[registry.lan:5000]", ""),
    ("coracle.bundleKey", "/bundle.pub", ""),
    ("coracle.bundle.source", "oci://registry.lan/site:3", ""),
    ("coracle.bundle.interval", "1h", ""),
    ("coracle.bundle.key", "/site.pub", ""),
    ("coracle.bundle.readyWithin", "5m", ""),
    ("coracle.pullRate", "200KiB/s", ""),
    ("coracle.pullWindows", "[\"01:00-05:00\"]", ""),
    ("coracle.pullAlwaysOffline", "fail", ""),
];

/// Returns the innermost members of a structure, as `{:#?}` prints it, each with its lines.
fn members(printed: &str) -> BTreeSet<(String, usize, String)> {
    let mut around: Vec<(usize, &str)> = Vec::new();
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for line in printed.lines() {
        let text = line.trim_start();
        let depth = line.len() - text.len();
        around.retain(|(outer, _)| *outer < depth);
        if let Some((name, _)) = text.split_once(": ") {
            let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.chars().all(word) {
                around.push((depth, name));
            }
        }
        if text.starts_with([']', '}', ')']) {
            continue;
        }
        let inner = around.last().map_or("", |(_, name)| name);
        let number = lines.entry(inner).or_default();
        *number += 1;
        found.insert((inner.to_owned(), *number, text.to_owned()));
    }
    found
}

/// Returns all code outside this room that is not a test.
fn code_of_others() -> String {
    fn collect(folder: &std::path::Path, all: &mut String) {
        for entry in std::fs::read_dir(folder).expect("sources").flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "config" {
                    collect(&path, all);
                }
            } else if name.ends_with(".rs") && !name.ends_with("_test.rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                let code = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
                let lines = code.lines().filter(|l| !l.trim_start().starts_with("//"));
                all.extend(lines.flat_map(|line| [line, "\n"]));
            }
        }
    }
    let mut all = String::new();
    collect(
        &std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut all,
    );
    all
}

#[test]
fn the_warning_names_exactly_the_settings_that_no_code_reads() {
    let code = code_of_others();
    let read = |member: &str| {
        let access = format!(".{member}");
        code.match_indices(&access).any(|(at, _)| {
            let next = code[at + access.len()..].chars().next();
            !next.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '(')
        })
    };
    for (path, value, beside) in OTHERS {
        let before = good(beside);
        let after = good(&format!("{beside}\n{}", yaml(path, value)));
        let printed = |e: &Effective| members(&format!("{:#?}\n{:#?}", e.config, e.settings));
        let (before, after) = (printed(&before), printed(&after));
        let changed: BTreeSet<&str> = before
            .symmetric_difference(&after)
            .map(|(member, ..)| member.as_str())
            .collect();
        assert!(
            !changed.is_empty() && !changed.contains(""),
            "{path}: {changed:?}"
        );
        let acted_on = changed.iter().any(|member| read(member));
        assert_eq!(acted_on, !NOT_YET.contains(path), "{path}: {changed:?}");
    }
}

#[test]
fn a_pod_gets_at_most_half_of_all_processes_and_some_are_reserved() {
    for (most, all, one) in [
        (4_194_304, 3_774_874, 4_096),
        (32_768, 29_492, 4_096),
        // 256 MB of memory.
        (1_900, 1_388, 694),
        (600, 300, 150),
    ] {
        assert_eq!(processes_for_pods(most), all);
        assert_eq!(node::default_pod_pids(Some(most)), one);
    }
    assert_eq!(node::default_pod_pids(None), 4_096);
    let limit = |text: &str| good(text).config.pod_pids_limit;
    assert_eq!(limit("podPidsLimit: -1"), None);
    assert_eq!(limit("podPidsLimit: 100000"), Some(100_000));
    let shown = as_yaml(&as_json(&good("")));
    let line = format!("podPidsLimit: {} ", limit("").expect("bounded"));
    assert!(shown.contains(&line), "{shown}");
}

/// Two fields only count together with others, and one field has only one possible value.
const ALONE: [&str; 4] = [
    "evictionSoftGracePeriod",
    "mergeDefaultEvictionSettings",
    "cgroupsPerQOS",
    "seccompDefault",
];

fn yaml(path: &str, value: &str) -> String {
    let mut names = path.rsplit('.');
    let own = names.next().unwrap_or_default();
    let own = format!("{own}: {value}");
    format!(
        "{}\n",
        names.fold(own, |inner, outer| format!("{outer}: {{{inner}}}"))
    )
}

#[test]
fn each_setting_changes_what_its_role_says_and_is_shown_with_its_line() {
    for field in FIELDS.iter().filter(|field| field.role != Role::Idle) {
        let Some((path, value, beside)) = OTHERS.iter().find(|(path, ..)| *path == field.path)
        else {
            assert!(ALONE.contains(&field.path), "{} is not tried", field.path);
            continue;
        };
        let before = good(beside);
        let after = good(&format!("{beside}\n{}", yaml(path, value)));
        let live = field.role == Role::Live;
        assert_eq!(before.settings != after.settings, live, "{path}");
        assert_eq!(before.config != after.config, !live, "{path}");
        let shown = &after.shown[path];
        let origin = Origin::File {
            path: "c.yaml".into(),
            line: 2,
        };
        assert_eq!(shown.origin, origin, "{path}");
        // A live setting takes effect when the file is read again; any other is reported as pending.
        let again = reload(&before, after.clone());
        assert_eq!(again.effective.settings, after.settings, "{path}");
        assert_eq!(again.effective.config, before.config, "{path}");
        assert_eq!(again.changed.is_empty(), !live, "{path}");
        let pending: Vec<&str> = again
            .pending
            .iter()
            .map(|(path, _)| path.as_str())
            .collect();
        let expected: &[&str] = if live { &[] } else { &[path] };
        assert_eq!(pending, expected);
        // The printed settings are valid input with the same result.
        let printed = as_yaml(&as_json(&after));
        if *path == "staticPodURLHeader" {
            assert!(printed.contains("<masked>"), "{printed}");
            continue;
        }
        let reread = good(&printed);
        assert_eq!(reread.config, after.config, "{path}\n{printed}");
        if *path != "shutdownGracePeriodByPodPriority" {
            assert_eq!(reread.settings, after.settings, "{path}\n{printed}");
        }
    }
}

#[test]
fn all_errors_are_reported_at_once_with_their_positions() {
    assert_eq!(
        problems(
            "kind: Kubelet\nfileCheckFrequency: fast\ncontainerLogMaxFile: 3\ncontainerLogMaxFiles: 1\n\
             syncFrequency: 30\nmaxPods: -1\nmaxPods: -1\ncpuCFSQuota: \"true\"\nclusterDomain: 7\nmemorySwap: {swapBehaviour: x}\n\
             systemReserved:\n  cpu: 1\n"
        ),
        [
            "c.yaml:1:1: invalid configuration: kind: must be `KubeletConfiguration`",
            "c.yaml:2:1: invalid configuration: fileCheckFrequency: `fast` is not a duration like 1m30s",
            "c.yaml:3:1: invalid configuration: containerLogMaxFile: unknown field; did you mean `containerLogMaxFiles`?",
            "c.yaml:4:1: invalid configuration: containerLogMaxFiles must be greater than 1",
            "c.yaml:5:1: invalid configuration: syncFrequency: must be a duration like 1m30s, not a number; write it with \
             its unit",
            "c.yaml:6:1: invalid configuration: maxPods (--max-pods) -1 must not be a negative number",
            "c.yaml:7:1: invalid configuration: maxPods: duplicate key: given more than once in this mapping",
            "c.yaml:8:1: invalid configuration: cpuCFSQuota: must be true or false, not a string; write true without quotes",
            "c.yaml:9:1: invalid configuration: clusterDomain: must be a string, not a number; quote it: \"7\"",
            "c.yaml:10:14: invalid configuration: memorySwap.swapBehaviour: unknown field; did you mean `swapBehavior`?",
            "c.yaml:12:3: invalid configuration: systemReserved.cpu: must be a string, not a number; quote it: \"1\"",
        ]
    );
}

#[test]
fn shutdown_times_follow_what_was_given() {
    for (sentence, text, expected) in [
        ("nothing given", "", vec![(0, 20), (2_000_000_000, 10)]),
        ("switched off", "shutdownGracePeriod: 0s", vec![]),
        (
            "as kubeadm writes it",
            "shutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s",
            vec![],
        ),
        (
            "the gate is off",
            "featureGates: {GracefulNodeShutdown: false}",
            vec![],
        ),
        (
            "only the whole",
            "shutdownGracePeriod: 60s",
            vec![(0, 60), (2_000_000_000, 0)],
        ),
        (
            "only the end of it",
            "shutdownGracePeriodCriticalPods: 5s",
            vec![(0, 25), (2_000_000_000, 5)],
        ),
        (
            "seconds are cut off",
            "shutdownGracePeriod: 2500ms",
            vec![(0, 2), (2_000_000_000, 0)],
        ),
        (
            "by priority, sorted",
            "shutdownGracePeriodByPodPriority:\n- {priority: 100, shutdownGracePeriodSeconds: 10}\n\
             - {priority: -5, shutdownGracePeriodSeconds: 0}\n",
            vec![(-5, 0), (100, 10)],
        ),
    ] {
        assert_eq!(periods(&good(text).settings), expected, "{sentence}");
    }
}

#[test]
fn back_off_has_the_documented_cap_with_the_reduced_mode() {
    const GATE: &str = "featureGates: {ReduceDefaultCrashLoopBackOffDecay: true}";
    for (text, cap, reduced) in [
        ("", 300_000, false),
        (GATE, 60_000, true),
        (
            &format!("{GATE}\ncrashLoopBackOff: {{maxContainerRestartPeriod: 300s}}"),
            300_000,
            true,
        ),
        ("crashLoopBackOff: {}", 300_000, false),
    ] {
        let settings = good(text).settings;
        let found = (
            settings.max_container_restart_period_ms,
            settings.reduced_restart_decay,
        );
        assert_eq!(found, (cap, reduced), "{text}");
    }
}

#[test]
fn eviction_thresholds_replace_the_defaults_unless_they_are_to_be_merged() {
    let hard = |text: &str| -> Vec<&str> {
        let thresholds = good(text).settings.eviction.hard;
        thresholds.iter().map(|t| t.signal.name()).collect()
    };
    assert_eq!(
        hard("evictionHard: {pid.available: 10%}"),
        ["pid.available"]
    );
    assert_eq!(
        hard("evictionHard: {memory.available: 0%, nodefs.available: 100%}"),
        [""; 0]
    );
    assert_eq!(
        hard("evictionHard: {nodefs.available: 0%}\nmergeDefaultEvictionSettings: true"),
        [
            "memory.available",
            "nodefs.inodesFree",
            "imagefs.available",
            "imagefs.inodesFree"
        ]
    );
}

#[test]
fn a_cluster_configuration_is_accepted_with_one_warning() {
    let text = include_str!("../../tests/fixtures/config/kubelet.yaml");
    let effective = good(text);
    let warning = effective.warning.expect("some mean nothing here");
    for word in [
        "authentication",
        "webhook",
        "streamingConnectionIdleTimeout",
        "featureGates.KubeletPSI",
    ] {
        assert_eq!(
            warning.contains(word),
            word != "webhook",
            "{word}: {warning}"
        );
    }
    assert_eq!(effective.config.reserved.system["memory"], 256 << 20);
    assert_eq!(effective.config.swap, Swapping::Burstable);
    assert_eq!(
        periods(&effective.settings),
        [(0, 60), (10_000, 120), (2_000_000_000, 30)]
    );
}

#[test]
fn drop_ins_win_over_the_file_by_name_flags_over_all_and_mappings_are_joined() {
    let file = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
    let files = [
        file(
            "config.yaml",
            "maxPods: 10\npodsPerCore: 1\nevictionHard: {memory.available: 1Mi}\npodCIDR: 10.1.0.0/20",
        ),
        file(
            "config.d/10.conf",
            "maxPods: 20\nevictionHard: {pid.available: 5%}\nclusterDNS: [10.0.0.1]",
        ),
        file(
            "config.d/20.yaml",
            "# nothing\n\nmaxPods: 30\npodsPerCore: ~\nclusterDNS: [10.0.0.2]",
        ),
    ];
    let flags = [Flag {
        field: "podCIDR",
        flag: "--pod-cidr",
        value: FlagValue::Text("10.2.0.0/20".to_owned()),
    }];
    let effective = Effective::build(&files, &flags).expect("valid");
    let (config, settings) = (&effective.config, &effective.settings);
    assert_eq!((settings.max_pods, settings.pods_per_core), (30, 0));
    assert_eq!(settings.eviction.hard.len(), 2);
    assert_eq!(
        config.cluster_dns,
        ["10.0.0.2".parse::<std::net::IpAddr>().expect("an address")]
    );
    assert_eq!(config.pod_cidrs[0].to_string(), "10.2.0.0/20");
    let origin = |path: &str| effective.shown[path].origin.to_string();
    assert_eq!(origin("maxPods"), "config.d/20.yaml:3");
    assert_eq!(origin("podsPerCore"), "default");
    assert_eq!(origin("podCIDR"), "--pod-cidr");
    assert_eq!(origin("evictionHard"), "config.d/10.conf:2");
    let files = [
        file("a.yaml", "maxPods: -1"),
        file("b.conf", "clusterDNS: [x]"),
    ];
    let error = Effective::build(&files, &flags)
        .expect_err("both wrong")
        .to_string();
    assert_eq!(
        error,
        "2 problems in the settings:\n  a.yaml:1:1: invalid configuration: maxPods (--max-pods) -1 must not be a \
         negative number\n  b.conf:1:14: invalid configuration: clusterDNS[0]: `x` is not an IP address"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_input_panics_and_accepted_settings_can_be_printed_and_read(
        index in 0..FIELDS.len(),
        value in "[-0-9a-z%{}\\[\\]:., ~'\"]{0,12}|-?[0-9]{1,22}(ns|ms|s|m|h|%|Mi)?",
        junk in "\\PC{0,40}",
    ) {
        let _ = build(&junk);
        let text = yaml(FIELDS[index].path, &value);
        if let Ok(effective) = build(&text) {
            let printed = as_yaml(&as_json(&effective));
            let reread = build(&printed);
            prop_assert!(reread.is_ok(), "{text}\n{printed}\n{:?}", reread.err());
            prop_assert_eq!(reread.expect("checked above").config, effective.config);
        }
    }
}

#[test]
fn installed_settings_and_their_commented_values_are_the_defaults() {
    let installed = include_str!("../cli/install/config.yaml");
    let in_force: String = installed
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest,
            _ => line,
        })
        .flat_map(|line| [line, "\n"])
        .collect();
    assert!(in_force.contains("\nclusterDomain: cluster.local\n"));
    for text in [installed, &in_force] {
        let effective = good(text);
        assert_eq!(effective.config, Config::default());
        assert_eq!(effective.warning, None);
    }
}
