//! Edges of the allowed values: the last one that is accepted and the first one that is not.

use std::collections::BTreeMap;

use coracle::spec::condition::{self, MAX_CONDITIONS};
use coracle::spec::{PodUid, QosClass, VolumeSource, convert};
use coracle::types;

use super::{CONTEXT, POD, one, service, with};

/// The errors of a manifest, joined.
fn errors(text: &str) -> String {
    let found = convert::documents(text.as_bytes(), "f.yaml", &CONTEXT);
    let errors: Vec<_> = found.err().into_iter().flatten().collect();
    let messages: Vec<_> = errors.iter().map(|e| e.message.as_str()).collect();
    messages.join("; ")
}

fn check(table: &[(String, Option<&str>)]) {
    for (text, refused) in table {
        let shown: String = text.chars().take(600).collect();
        match (refused, errors(text)) {
            (None, errors) => assert_eq!(errors, "", "{shown}"),
            (Some(words), errors) => {
                assert!(errors.contains(words), "{shown}\n{words}: {errors:?}");
            }
        }
    }
}

/// The pod with these lines in its spec.
fn spec(lines: &str) -> String {
    POD.replacen("spec:", &format!("spec:\n  {lines}"), 1)
}

/// The pod with this metadata beside its name.
fn metadata(more: &str) -> String {
    POD.replacen("{name: a}", &format!("{{name: a, {more}}}"), 1)
}

/// A domain of this many letters, which must be even.
fn domain(length: usize) -> String {
    "a.".repeat(length / 2 - 1) + "aa"
}

#[test]
fn names_and_addresses() {
    let chosen = |length| spec(&format!("hostnameOverride: {}", domain(length)));
    let servers = |count: usize| {
        let list = vec!["192.0.2.1"; count].join(", ");
        spec(&format!("dnsConfig: {{nameservers: [{list}]}}"))
    };
    let searches = |list: &[String]| {
        let list = list.join(", ");
        spec(&format!("dnsConfig: {{searches: [{list}]}}"))
    };
    // The length is 2048 letters with the spaces between them, or two more.
    let long = |last| {
        let mut list = vec![domain(250); 8];
        list.push(domain(last));
        searches(&list)
    };
    let at = |ip: &str| {
        let text = service("{port: 80}");
        text.replacen("spec: {", &format!("spec: {{clusterIP: {ip}, "), 1)
    };
    let special = Some("must be the address of a host");
    check(&[
        (chosen(64), None),
        (chosen(66), Some("must be no more than 64 characters")),
        (
            spec("hostnameOverride: b\n  setHostnameAsFQDN: true"),
            Some("setHostnameAsFQDN must be false"),
        ),
        (
            spec("hostnameOverride: b\n  setHostnameAsFQDN: false"),
            None,
        ),
        (
            spec("hostnameOverride: b\n  hostNetwork: true"),
            Some("hostNetwork must be false"),
        ),
        (servers(3), None),
        (servers(4), Some("must not have more than 3 nameservers")),
        (searches(&vec![domain(4); 32]), None),
        (
            searches(&vec![domain(4); 33]),
            Some("must not have more than 32 search paths"),
        ),
        (long(40), None),
        (long(42), Some("must not have more than 2048 characters")),
        (at("10.0.0.9"), None),
        (at("169.254.0.9"), special),
        (at("255.255.255.255"), special),
        (at("127.0.0.1"), special),
        (at("224.0.0.1"), special),
        (at("0.0.0.0"), special),
        (at("'fe80::1'"), special),
        (at("'::1'"), special),
    ]);
}

#[test]
fn sizes_and_counts() {
    let annotated = |length| metadata(&format!("annotations: {{a: {}}}", "b".repeat(length)));
    let two = |length| {
        metadata(&format!(
            "annotations: {{a: '', b: {}}}",
            "b".repeat(length)
        ))
    };
    let conditions = |count: usize| {
        let one = |i| format!("{{type: a.example/c{i}, status: 'True'}}");
        let all: Vec<_> = (0..count).map(one).collect();
        let status = format!("status: {{conditions: [{}]}}\nspec:", all.join(", "));
        POD.replacen("spec:", &status, 1)
    };
    let sysctl = |length: usize| {
        let name = format!("net.{}", "a".repeat(length - 4));
        spec(&format!(
            "securityContext: {{sysctls: [{{name: {name}, value: '1'}}]}}"
        ))
    };
    let pod_resources = |cpu: &str| spec(&format!("resources: {{requests: {{cpu: {cpu}}}}}"));
    let resources = |text: &str| POD.replace("{limits: {cpu: 500m, memory: 1Gi}}", text);
    let named = |length| {
        let text = service("{port: 80}");
        text.replacen("{name: s}", &format!("{{name: {}}}", "s".repeat(length)), 1)
    };
    let codes = |count: usize| {
        let codes: Vec<_> = (0..count).map(|code| code.to_string()).collect();
        let codes = codes.join(", ");
        let rule = format!("{{action: Restart, exitCodes: {{operator: In, values: [{codes}]}}}}");
        with(&format!(
            "restartPolicy: Never\n    restartPolicyRules: [{rule}]"
        ))
    };
    let tag = |length| POD.replace("c:1", &format!("c:{}", "t".repeat(length)));
    check(&[
        (with("command: [sh]"), None),
        (
            with("command: [\"a\\0\"]"),
            Some("must not contain a zero byte"),
        ),
        (
            with("args: [\"a\\0\"]"),
            Some("must not contain a zero byte"),
        ),
        (named(63), None),
        (named(64), Some("must be no more than 63 characters")),
        (codes(255), None),
        (
            codes(256),
            Some("Too many: 256: must have at most 255 items"),
        ),
        (tag(128), None),
        (tag(129), Some("is no tag")),
        (annotated(256 * 1024 - 1), None),
        (annotated(256 * 1024), Some("may not be more than 262144")),
        (two(256 * 1024 - 2), None),
        (two(256 * 1024 - 1), Some("may not be more than 262144")),
        (conditions(MAX_CONDITIONS), None),
        (conditions(MAX_CONDITIONS + 1), Some("Too many: 65")),
        (sysctl(253), None),
        (sysctl(254), Some("must have at most 253 characters")),
        (pod_resources("500m"), None),
        (
            pod_resources("499m"),
            Some("must be greater than or equal to aggregate container requests of 500m"),
        ),
        (resources("{claims: []}"), None),
        (
            resources("{claims: [{name: x}]}"),
            Some("device claims are not supported"),
        ),
        (resources("{limits: {memory: 9223372036854775807}}"), None),
        (
            resources("{limits: {memory: 9223372036854775808}}"),
            Some("must be a quantity below 2^63"),
        ),
    ]);
}

#[test]
fn only_sidecars_among_init_containers_restart_for_a_resize() {
    let with = |policy: &str| {
        let resize = "resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]";
        spec(&format!(
            "initContainers: [{{name: i, image: 'i:1', {policy} {resize}}}]"
        ))
    };
    let refused = "must be 'NotRequired' for init containers without restartPolicy=Always";
    check(&[
        (with("restartPolicy: Always,"), None),
        (with("restartPolicy: OnFailure,"), Some(refused)),
        (with(""), Some(refused)),
    ]);
}

#[test]
fn services_that_are_reached_from_outside_need_ports_of_the_node() {
    for (kind, wants) in [
        ("", false),
        ("type: ClusterIP, ", false),
        ("type: NodePort, ", true),
        ("type: LoadBalancer, ", true),
    ] {
        let text = service("{port: 80}").replacen("spec: {", &format!("spec: {{{kind}"), 1);
        let found = convert::documents(text.as_bytes(), "f.yaml", &CONTEXT).expect("valid");
        assert_eq!(found.services[0].wants_node_ports(), wants, "{kind}");
    }
}

#[test]
fn a_pod_without_requests_is_best_effort() {
    for (resources, class) in [
        ("{limits: {cpu: 0, memory: 0}}", QosClass::BestEffort),
        ("{requests: {memory: 1}}", QosClass::Burstable),
        ("{limits: {cpu: 1m}}", QosClass::Burstable),
        ("{limits: {cpu: 1m, memory: 0}}", QosClass::Burstable),
        ("{limits: {cpu: 1m, memory: 1}}", QosClass::Guaranteed),
        ("{limits: {cpu: ~}}", QosClass::BestEffort),
    ] {
        let text = POD.replace("{limits: {cpu: 500m, memory: 1Gi}}", resources);
        let pod = one(&text);
        assert_eq!(pod.qos, class, "{resources}");
        let limited = class == QosClass::Guaranteed;
        let limit = pod.resources.memory_limit_bytes;
        assert_eq!(limit, limited.then_some(1), "0 is no limit: {resources}");
    }
}

#[test]
fn scalars_mean_what_they_mean_to_kubectl() {
    let pod = |lines: &str| {
        let read = convert::documents(spec(lines).as_bytes(), "f", &CONTEXT);
        read.map(|mut found| found.pods.remove(0))
    };
    for word in ["true", "yes", "On", "y"] {
        assert!(pod(&format!("hostPID: {word}")).unwrap().host_pid, "{word}");
    }
    for word in ["false", "no", "OFF", "n"] {
        assert!(
            !pod(&format!("hostPID: {word}")).unwrap().host_pid,
            "{word}"
        );
    }
    for whole in ["30", "30.0", "3e1"] {
        let read = pod(&format!("terminationGracePeriodSeconds: {whole}")).unwrap();
        assert_eq!(read.grace_ms, 30_000, "{whole}");
    }
    for wrong in [
        "hostPID: 'true'",
        "hostPID: maybe",
        "terminationGracePeriodSeconds: 1.5",
        "terminationGracePeriodSeconds: 1e30",
    ] {
        assert!(pod(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_null_in_a_list_is_an_empty_element() {
    let groups = one(&spec("securityContext: {supplementalGroups: [~, 5]}")).supplemental_groups;
    assert_eq!(groups, [0, 5]);
    let text = POD.replace("  containers:\n", "  containers:\n  -\n");
    assert!(
        errors(&text).contains("Required value"),
        "{}",
        errors(&text)
    );
    assert!(!errors(&text).contains("must be"), "{}", errors(&text));
}

#[test]
fn a_size_limit_of_zero_is_no_limit() {
    for (limit, expected) in [("0", None), ("1", Some(1))] {
        let text = spec(&format!(
            "volumes: [{{name: v, emptyDir: {{sizeLimit: {limit}}}}}]"
        ));
        let VolumeSource::EmptyDir { size_limit_bytes } = one(&text).volumes[0].source else {
            panic!("an emptyDir");
        };
        assert_eq!(size_limit_bytes, expected, "{limit}");
    }
}

#[test]
fn a_service_account_gets_a_warning_unless_it_is_the_default_one() {
    for (name, warned) in [("default", false), ("''", false), ("other", true)] {
        let pod = one(&spec(&format!("serviceAccountName: {name}")));
        let warnings = pod.warnings.join("; ");
        assert_eq!(
            warnings.contains("serviceAccountName"),
            warned,
            "{name}: {warnings}"
        );
    }
}

#[test]
fn regular_containers_and_sidecars_are_long_running() {
    let inits =
        "initContainers: [{name: i, image: 'i:1'}, {name: s, image: 'i:1', restartPolicy: Always}]";
    let pod = one(&spec(inits));
    let names: Vec<_> = pod.lasting_containers().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["c", "s"]);
}

#[test]
fn a_pod_can_be_looked_up_by_the_text_of_its_uid() {
    let pods: BTreeMap<PodUid, u8> = [(PodUid::from("a"), 1), (PodUid::from("b"), 2)].into();
    assert_eq!((pods.get("b"), pods.get("c")), (Some(&2), None));
}

#[test]
fn conditions_of_coracles_own_and_invalid_types_cannot_be_set() {
    for (type_, fine) in [
        ("Ready", false),
        ("a.example/x", true),
        ("a b", false),
        ("", false),
    ] {
        assert_eq!(condition::check_type(type_).is_ok(), fine, "{type_}");
    }
}

#[test]
fn a_stored_manifest_must_be_exactly_one_pod() {
    let json = |items: usize| {
        let pod = |name: usize| {
            format!(
                r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p{name}"}},
                "spec":{{"containers":[{{"name":"c","image":"c"}}]}}}}"#
            )
        };
        let pods: Vec<_> = (0..items).map(pod).collect();
        format!(
            r#"{{"apiVersion":"v1","kind":"List","items":[{}]}}"#,
            pods.join(",")
        )
    };
    for (items, fine) in [(0, false), (1, true), (2, false)] {
        assert_eq!(
            convert::admitted(json(items).as_bytes()).is_ok(),
            fine,
            "{items}"
        );
    }
}

#[test]
fn go_durations_have_small_units_too() {
    for (text, ms) in [("2500us", 3), ("1400µs", 1), ("1ms500us", 2)] {
        assert_eq!(types::duration_ms(text), Some(ms), "{text}");
    }
}

#[test]
fn a_health_check_port_gets_a_warning_unless_it_is_zero() {
    for (number, warned) in [(0, false), (30_000, true)] {
        let kind = format!(
            "spec: {{type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: {number}, "
        );
        let text = service("{port: 80}").replacen("spec: {", &kind, 1);
        let found = convert::documents(text.as_bytes(), "f.yaml", &CONTEXT).expect("valid");
        let warnings = found.services[0].spec.warnings.join("; ");
        assert_eq!(
            warnings.contains("healthCheckNodePort"),
            warned,
            "{warnings}"
        );
    }
}

#[test]
fn a_pods_own_limit_of_zero_leaves_those_of_its_containers_in_force() {
    for (own, expected) in [("0", Some(1 << 30)), ("2Gi", Some(2 << 30))] {
        let text = spec(&format!("resources: {{limits: {{memory: {own}}}}}"));
        let limited = "{requests: {memory: 0}, limits: {memory: 1Gi}}";
        let pod = one(&text.replace("{limits: {cpu: 500m, memory: 1Gi}}", limited));
        assert_eq!(pod.resources.memory_limit_bytes, expected, "{own}");
    }
}

#[test]
fn a_pod_that_violates_the_nodes_standard_is_an_error_with_its_place_beside_all_others() {
    use coracle::spec::PodSecurity;
    let list = "kind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: \
                {containers: [{name: c, image: i}]}}\n- {apiVersion: v1, kind: Pod, metadata: {name: b}, spec: \
                {hostPID: true, containers: [{name: c, image: '', ports: [{containerPort: 1, hostPort: 2}]}]}}\n";
    let baseline = convert::ConvertContext {
        pod_security: PodSecurity::Baseline,
        ..convert::ConvertContext::of("n")
    };
    let errors = convert::documents(list.as_bytes(), "l.yaml", &baseline).expect_err("refused");
    let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let refusal = "l.yaml:5:3: items[1]: pods \"b\" is forbidden: violates PodSecurity \"baseline:latest\": host \
                   namespaces (hostPID), hostPort (container \"c\" uses hostPort 2)";
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!(shown[0], refusal);
    assert!(
        shown[1].contains("items[1].spec.containers[0].image: Required value"),
        "{shown:?}"
    );
    // What was admitted once stays so.
    let pods = convert::documents(
        list.replace("image: ''", "image: i").as_bytes(),
        "l",
        &CONTEXT,
    );
    let pod = &pods.expect("valid elsewhere").pods[1];
    let json = pod.manifest.json().into_bytes();
    assert_eq!(
        convert::admitted(&json).expect("admitted").key.name,
        "b".into()
    );
}

#[test]
fn what_an_earlier_version_admitted_stays_admitted_and_a_writable_mount_stays_writable() {
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"volumes":
        [{"name": "v", "emptyDir": {}}], "containers": [{"name": "c", "image": "i", "securityContext":
        {"procMount": "Unmasked"}, "volumeMounts": [{"name": "v", "mountPath": "/v", "recursiveReadOnly":
        "IfPossible"}]}]}}"#;
    let pod = convert::admitted(json.as_bytes()).expect("admitted");
    let container = &pod.containers[0];
    assert!(container.security.unmasked_proc);
    let mount = &container.mounts[0];
    assert!(!mount.read_only && !mount.recursive_read_only);
    let errors = convert::documents(json.as_bytes(), "f", &CONTEXT).expect_err("refused");
    assert_eq!(errors.len(), 2, "{errors:?}");
}

#[test]
fn a_few_lines_cannot_stand_for_more_pods_than_a_node_can_have() {
    let document = |name: usize, replicas: usize| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d{name}}}\nspec:\n  replicas: {replicas}\n  selector: \
             {{matchLabels: {{app: a}}}}\n  template:\n    metadata: {{labels: {{app: a}}}}\n    spec: {{containers: \
             [{{name: c, image: i}}]}}\n---\n"
        )
    };
    let text: String = (0..11).map(|name| document(name, 1_000)).collect();
    let found = errors(&text);
    assert!(
        found.contains("more than 10000 pods in one file"),
        "{found}"
    );
    assert_eq!(found.matches("; ").count(), 0, "{found}");
    let found = errors(&document(0, 1_001));
    assert!(
        found.contains("must be less than or equal to 1000"),
        "{found}"
    );
}
