//! Each check with what it allows, and its message about what it does not.

use super::*;

/// The refusal without its beginning; empty if the pod is allowed.
fn refusal(level: PodSecurity, yaml: &str) -> String {
    let pod: Pod = serde_yaml::from_str(yaml).expect("a pod");
    let begin = format!(
        "pods \"p\" is forbidden: violates PodSecurity \"{}:latest\": ",
        level.as_str()
    );
    match level.refusal(&pod) {
        None => String::new(),
        Some(text) => text.strip_prefix(&begin).expect(&text).to_owned(),
    }
}

/// A pod with one container `a` that has everything that `restricted` wants, and these fields.
fn pod(spec: &str, context: &str, container: &str, own: &str) -> String {
    let comma = |more: &str| match more.is_empty() {
        true => String::new(),
        false => format!(", {more}"),
    };
    format!(
        "metadata: {{name: p}}\nspec: {{securityContext: {{runAsNonRoot: true, seccompProfile: {{type: RuntimeDefault}}{}}}{}, \
         containers: [{{name: a{}, securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}{}}}}}]}}",
        comma(context),
        comma(spec),
        comma(container),
        comma(own)
    )
}

/// What both levels say about these fields.
fn says(at: [&str; 4]) -> [String; 2] {
    let [spec, context, container, own] = at;
    let yaml = pod(spec, context, container, own);
    assert_eq!(
        PodSecurity::Privileged.refusal(&serde_yaml::from_str(&yaml).expect("a pod")),
        None
    );
    [PodSecurity::Baseline, PodSecurity::Restricted].map(|level| refusal(level, &yaml))
}

#[test]
fn a_pod_that_asks_for_little_is_allowed_at_every_level() {
    for at in [
        ["", "", "", ""],
        [
            "hostNetwork: false, hostPID: false, hostIPC: false",
            "",
            "",
            "",
        ],
        [
            "volumes: [{name: v, emptyDir: {}}, {name: w, secret: {}}, {name: c, configMap: {}}]",
            "",
            "",
            "",
        ],
        [
            "volumes: [{name: v, projected: {}}, {name: d, downwardAPI: {}}]",
            "",
            "",
            "",
        ],
        [
            "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}, {name: x, csi: {driver: d}}]",
            "",
            "",
            "",
        ],
        [
            "",
            "runAsUser: 1000, appArmorProfile: {type: Localhost, localhostProfile: x}",
            "",
            "",
        ],
        [
            "",
            "seLinuxOptions: {type: container_t, level: s0}",
            "",
            "runAsUser: 7",
        ],
        [
            "",
            "sysctls: [{name: net.ipv4.tcp_keepalive_time, value: '1'}]",
            "",
            "",
        ],
        [
            "",
            "",
            "ports: [{containerPort: 80, hostPort: 0}]",
            "procMount: Default, privileged: false",
        ],
        [
            "",
            "",
            "livenessProbe: {httpGet: {port: 80, host: ''}}",
            "seccompProfile: {type: Localhost}",
        ],
    ] {
        assert_eq!(says(at), ["", ""], "{at:?}");
    }
    let yaml = pod(
        "",
        "",
        "",
        "capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}",
    );
    let yaml = yaml.replace("capabilities: {drop: [ALL]}, ", "");
    assert_eq!(refusal(PodSecurity::Restricted, &yaml), "");
}

/// The checks that hold at both levels, in the words of both.
#[test]
fn baseline_checks_hold_at_both_levels() {
    for (at, expected) in [
        (
            [
                "hostPID: true, hostIPC: true, hostNetwork: true",
                "",
                "",
                "",
            ],
            "host namespaces (hostIPC, hostNetwork, hostPID)",
        ),
        (
            [
                "",
                "",
                "ports: [{containerPort: 1, hostPort: 80}, {containerPort: 2, hostPort: 443}]",
                "",
            ],
            "hostPort (container \"a\" uses hostPorts 443, 80)",
        ),
        (
            ["", "", "ports: [{containerPort: 1, hostPort: 80}]", ""],
            "hostPort (container \"a\" uses hostPort 80)",
        ),
        (
            ["", "", "livenessProbe: {httpGet: {port: 80, host: h}}", ""],
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"h\")",
        ),
        (
            [
                "",
                "",
                "startupProbe: {tcpSocket: {port: 80, host: b}}, lifecycle: {preStop: {httpGet: {port: 1, host: a}}}",
                "",
            ],
            "probe or lifecycle host (container \"a\" uses probe or lifecycle hosts \"a\", \"b\")",
        ),
        (
            [
                "",
                "",
                "lifecycle: {postStart: {tcpSocket: {port: 1, host: x}}}",
                "",
            ],
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"x\")",
        ),
        (
            ["", "", "", "privileged: true"],
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (
            ["", "", "", "procMount: Unmasked"],
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            [
                "",
                "sysctls: [{name: kernel.sem, value: '1'}, {name: net.core.somaxconn, value: '1'}]",
                "",
                "",
            ],
            "forbidden sysctls (kernel.sem, net.core.somaxconn)",
        ),
        (
            ["", "appArmorProfile: {type: Unconfined}", "", ""],
            "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            [
                "",
                "appArmorProfile: {type: Unconfined}",
                "",
                "appArmorProfile: {type: Other}",
            ],
            "forbidden AppArmor profiles (pod and container \"a\" must not set AppArmor profile type to \"Other\", \
             \"Unconfined\")",
        ),
        (
            [
                "",
                "seLinuxOptions: {type: spc_t, user: u}",
                "",
                "seLinuxOptions: {role: r}",
            ],
            "seLinuxOptions (pod and container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; \
             user may not be set; role may not be set)",
        ),
        (
            [
                "",
                "windowsOptions: {hostProcess: true}",
                "",
                "windowsOptions: {hostProcess: true}",
            ],
            "hostProcess (pod and container \"a\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ] {
        assert_eq!(says(at), [expected, expected], "{at:?}");
    }
}

/// The checks that `restricted` replaces by stricter ones.
#[test]
fn restricted_checks_take_the_place_of_baseline_checks() {
    for (at, baseline, restricted) in [
        (
            ["volumes: [{name: v, hostPath: {path: /}}]", "", "", ""],
            "hostPath volumes (volume \"v\")",
            "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
        ),
        (
            [
                "volumes: [{name: v, nfs: {server: s, path: /}}, {name: w, image: {reference: i}}]",
                "",
                "",
                "",
            ],
            "",
            "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"nfs\", \"unknown\")",
        ),
        (
            ["", "", "", "seccompProfile: {type: Unconfined}"],
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
            "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            ["", "runAsUser: 0", "", "runAsUser: 0"],
            "",
            "runAsUser=0 (pod and container \"a\" must not set runAsUser=0)",
        ),
        (
            ["", "", "", "runAsNonRoot: false"],
            "",
            "runAsNonRoot != true (container \"a\" must not set securityContext.runAsNonRoot=false)",
        ),
    ] {
        assert_eq!(says(at), [baseline, restricted], "{at:?}");
    }
    let adding = |names: &str| {
        format!(
            "metadata: {{name: p}}\nspec: {{containers: [{{name: a, securityContext: {{capabilities: {{add: [{names}], \
             drop: [ALL]}}, allowPrivilegeEscalation: false, runAsNonRoot: true, seccompProfile: {{type: Localhost}}}}}}]}}"
        )
    };
    for (names, baseline, restricted) in [
        ("NET_BIND_SERVICE", "", ""),
        (
            "CHOWN",
            "",
            "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            "SYS_ADMIN, NET_RAW",
            "non-default capabilities (container \"a\" must not include \"NET_RAW\", \"SYS_ADMIN\" in \
             securityContext.capabilities.add)",
            "unrestricted capabilities (container \"a\" must not include \"NET_RAW\", \"SYS_ADMIN\" in \
             securityContext.capabilities.add)",
        ),
    ] {
        let yaml = adding(names);
        assert_eq!(refusal(PodSecurity::Baseline, &yaml), baseline);
        assert_eq!(refusal(PodSecurity::Restricted, &yaml), restricted);
    }
}

#[test]
fn a_pod_without_any_security_context_violates_only_restricted_and_each_container_is_named() {
    let yaml = "metadata: {name: p}\nspec: {initContainers: [{name: i}], containers: [{name: a}], \
                ephemeralContainers: [{name: e}]}";
    assert_eq!(refusal(PodSecurity::Baseline, yaml), "");
    let all = "containers \"i\", \"a\", \"e\"";
    let expected = format!(
        "allowPrivilegeEscalation != false ({all} must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities ({all} must set securityContext.capabilities.drop=[\"ALL\"]), \
         runAsNonRoot != true (pod or {all} must set securityContext.runAsNonRoot=true), \
         seccompProfile (pod or {all} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
         \"Localhost\")"
    );
    assert_eq!(refusal(PodSecurity::Restricted, yaml), expected);
}

#[test]
fn an_annotation_may_not_take_app_armor_away() {
    const KEY: &str = "container.apparmor.security.beta.kubernetes.io/a";
    for (value, expected) in [
        ("runtime/default", String::new()),
        ("localhost/x", String::new()),
        ("", String::new()),
        (
            "unconfined",
            format!(
                "forbidden AppArmor profile (annotation must not set AppArmor profile type to \"{KEY}=\"unconfined\"\")"
            ),
        ),
    ] {
        let yaml = format!(
            "metadata: {{name: p, annotations: {{{KEY}: '{value}'}}}}\nspec: {{containers: [{{name: a}}]}}"
        );
        assert_eq!(refusal(PodSecurity::Baseline, &yaml), expected);
    }
}

#[test]
fn users_of_its_own_and_windows_make_some_checks_needless() {
    let own = "metadata: {name: p}\nspec: {hostUsers: false, containers: [{name: a, securityContext: {runAsUser: 0, \
               procMount: Unmasked, capabilities: {drop: [ALL]}, allowPrivilegeEscalation: false, seccompProfile: \
               {type: RuntimeDefault}}}]}";
    assert_eq!(refusal(PodSecurity::Restricted, own), "");
    let without = own.replace("hostUsers: false, ", "");
    assert_eq!(
        refusal(PodSecurity::Restricted, &without),
        "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\"), runAsNonRoot != true \
         (pod or container \"a\" must set securityContext.runAsNonRoot=true), runAsUser=0 (container \"a\" must not \
         set runAsUser=0)"
    );
    let windows = "metadata: {name: p}\nspec: {os: {name: windows}, securityContext: {runAsNonRoot: true}, \
                   containers: [{name: a}]}";
    assert_eq!(refusal(PodSecurity::Restricted, windows), "");
}

#[test]
fn levels_have_the_words_of_kubernetes() {
    for (word, level) in [
        ("privileged", Some(PodSecurity::Privileged)),
        ("baseline", Some(PodSecurity::Baseline)),
        ("restricted", Some(PodSecurity::Restricted)),
        ("Restricted", None),
        ("", None),
    ] {
        assert_eq!(PodSecurity::parse(word), level);
    }
}
