//! The support of each field of Kubernetes: it works, or it is refused by name, or a warning says why it is harmless to
//! ignore. The tables are compared with the fields of the generated types, so that a new field cannot be forgotten.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use coracle::spec::ephemeral;
use k8s_openapi::api::core::v1 as core;
use serde::de::{Deserialize, Deserializer, Visitor};

use super::*;

/// The support of a field.
enum What {
    /// It works: the word occurs in this file below `src`.
    Works(&'static str, &'static str),
    /// It has no effect, because its request is met anyway.
    Met(&'static str),
    /// This makes the file invalid, with an error that names the field.
    Refused(&'static str),
    /// This is accepted with a warning that names the field.
    Warned(&'static str),
}

use What::{Met, Refused, Warned, Works};

type Table = &'static [(&'static str, What)];

const POD_SPEC: Table = &[
    (
        "activeDeadlineSeconds",
        Works("plan/verdict.rs", "active_deadline_ms"),
    ),
    ("affinity", Works("spec/placement.rs", "node_affinity")),
    ("affinity", Warned("affinity: {podAffinity: {}}")),
    ("affinity", Warned("affinity: {podAntiAffinity: {}}")),
    (
        "automountServiceAccountToken",
        Warned("automountServiceAccountToken: true"),
    ),
    ("containers", Works("plan/decide.rs", "container")),
    (
        "dnsConfig",
        Works("effects/sandbox/resolver.rs", "dns_config"),
    ),
    (
        "dnsPolicy",
        Works("effects/sandbox/resolver.rs", "dns_policy"),
    ),
    (
        "enableServiceLinks",
        Works("effects/sandbox/container.rs", "service_links"),
    ),
    (
        "ephemeralContainers",
        Refused("ephemeralContainers: [{name: d, image: i}]"),
    ),
    (
        "hostAliases",
        Works("effects/sandbox/etc_files.rs", "host_aliases"),
    ),
    ("hostIPC", Works("effects/sandbox/container.rs", "host_ipc")),
    (
        "hostNetwork",
        Works("effects/sandbox/mod.rs", "host_network"),
    ),
    ("hostPID", Works("effects/sandbox/oci.rs", "host_pid")),
    ("hostUsers", Works("effects/sandbox/oci.rs", "own_users")),
    (
        "hostname",
        Works("effects/sandbox/etc_files.rs", "hostname"),
    ),
    (
        "hostnameOverride",
        Works("spec/network.rs", "hostname_override"),
    ),
    (
        "imagePullSecrets",
        Works("spec/pull_secrets.rs", "image_pull_secrets"),
    ),
    ("initContainers", Works("plan/stage.rs", "init")),
    ("nodeName", Warned("nodeName: elsewhere")),
    ("nodeSelector", Works("spec/placement.rs", "node_selector")),
    ("os", Works("plan/fit.rs", "other_os")),
    ("overhead", Works("spec/assemble.rs", "overhead")),
    ("preemptionPolicy", Works("plan/preempt.rs", "may_preempt")),
    ("priority", Works("plan/agenda.rs", "priority")),
    (
        "priorityClassName",
        Works("spec/priority.rs", "priority_class_name"),
    ),
    (
        "readinessGates",
        Works("plan/condition.rs", "readiness_gates"),
    ),
    ("resourceClaims", Refused("resourceClaims: [{name: r}]")),
    ("resources", Works("spec/pod_level.rs", "spec.resources")),
    ("restartPolicy", Works("plan/restart.rs", "RestartPolicy")),
    ("runtimeClassName", Refused("runtimeClassName: kata")),
    ("runtimeClassName", Refused("runtimeClassName: gvisor")),
    ("runtimeClassName", Warned("runtimeClassName: runc")),
    ("schedulerName", Warned("schedulerName: mine")),
    (
        "schedulingGates",
        Warned("schedulingGates: [{name: a.b/c}]"),
    ),
    ("schedulingGroup", Refused("schedulingGroup: {}")),
    (
        "securityContext",
        Works("spec/security.rs", "PodSecurityContext"),
    ),
    ("serviceAccount", Warned("serviceAccount: robot")),
    ("serviceAccountName", Warned("serviceAccountName: robot")),
    (
        "setHostnameAsFQDN",
        Works("effects/sandbox/etc_files.rs", "hostname_as_fqdn"),
    ),
    (
        "shareProcessNamespace",
        Works("shim/pod.rs", "share_processes"),
    ),
    (
        "shareProcessNamespace",
        Refused("shareProcessNamespace: true, hostPID: true"),
    ),
    ("subdomain", Works("plan/network.rs", "subdomain")),
    (
        "terminationGracePeriodSeconds",
        Works("plan/kill.rs", "grace_ms"),
    ),
    ("tolerations", Works("plan/pressure/admit.rs", "tolerat")),
    (
        "topologySpreadConstraints",
        Warned(
            "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]",
        ),
    ),
    ("volumes", Works("effects/volume/mod.rs", "volume")),
];

/// Fields of containers of every kind.
const CONTAINER: Table = &[
    ("args", Works("effects/sandbox/environment.rs", "args")),
    (
        "command",
        Works("effects/sandbox/environment.rs", "command"),
    ),
    ("env", Works("effects/sandbox/environment.rs", "env")),
    (
        "envFrom",
        Works("effects/sandbox/references.rs", "env_from"),
    ),
    ("image", Works("node/execute.rs", "image")),
    (
        "imagePullPolicy",
        Works("node/ensure_image.rs", "pull_policy"),
    ),
    ("lifecycle", Works("plan/hook.rs", "lifecycle")),
    ("livenessProbe", Works("plan/probe.rs", "liveness")),
    ("name", Works("plan/state.rs", "name")),
    ("ports", Works("network/ports.rs", "ports")),
    ("readinessProbe", Works("plan/probe.rs", "readiness")),
    ("resizePolicy", Works("plan/resize.rs", "resize_restarts")),
    ("resources", Works("effects/cgroup/resize.rs", "resources")),
    ("resources", Refused("resources: {claims: [{name: x}]}")),
    (
        "resources",
        Warned("resources: {limits: {example.com/gpu: 1}}"),
    ),
    (
        "restartPolicy",
        Works("spec/container.rs", "restart_policy"),
    ),
    (
        "restartPolicyRules",
        Works("plan/stage.rs", "restart_rules"),
    ),
    (
        "securityContext",
        Works("spec/security.rs", "SecurityContext"),
    ),
    ("startupProbe", Works("plan/probe.rs", "startup")),
    ("stdin", Works("effects/sandbox/container.rs", "stdin")),
    ("stdinOnce", Works("shim/attach.rs", "stdin_once")),
    (
        "terminationMessagePath",
        Works("effects/sandbox/container.rs", "termination_message_path"),
    ),
    (
        "terminationMessagePolicy",
        Works("shim/exit.rs", "termination_message_from_logs"),
    ),
    ("tty", Works("effects/sandbox/container.rs", "tty")),
    (
        "volumeDevices",
        Refused("volumeDevices: [{name: v, devicePath: /x}]"),
    ),
    (
        "volumeMounts",
        Works("effects/sandbox/container.rs", "mounts"),
    ),
    (
        "workingDir",
        Works("effects/sandbox/environment.rs", "working_dir"),
    ),
];

/// Fields that differ in an ephemeral container.
const EPHEMERAL: Table = &[
    ("lifecycle", Refused("lifecycle: {}")),
    (
        "livenessProbe",
        Refused("livenessProbe: {exec: {command: [a]}}"),
    ),
    ("ports", Refused("ports: [{containerPort: 80}]")),
    (
        "readinessProbe",
        Refused("readinessProbe: {exec: {command: [a]}}"),
    ),
    (
        "resizePolicy",
        Refused("resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]"),
    ),
    ("resources", Refused("resources: {limits: {cpu: 1}}")),
    ("restartPolicy", Refused("restartPolicy: Always")),
    (
        "restartPolicyRules",
        Refused("restartPolicyRules: [{action: Restart}]"),
    ),
    (
        "startupProbe",
        Refused("startupProbe: {exec: {command: [a]}}"),
    ),
    (
        "targetContainerName",
        Works("effects/sandbox/container.rs", "target"),
    ),
];

/// Fields of a container's security context.
const SECURITY: Table = &[
    (
        "allowPrivilegeEscalation",
        Works("effects/sandbox/oci.rs", "allow_privilege_escalation"),
    ),
    (
        "appArmorProfile",
        Works("effects/app_armor.rs", "app_armor"),
    ),
    (
        "appArmorProfile",
        Refused("appArmorProfile: {type: Localhost}"),
    ),
    (
        "appArmorProfile",
        Refused("appArmorProfile: {type: RuntimeDefault, localhostProfile: x}"),
    ),
    (
        "capabilities",
        Works("effects/sandbox/capabilities.rs", "cap_add"),
    ),
    ("privileged", Works("effects/sandbox/oci.rs", "privileged")),
    (
        "procMount",
        Works("effects/sandbox/oci.rs", "unmasked_proc"),
    ),
    ("procMount", Refused("procMount: Unmasked")),
    (
        "readOnlyRootFilesystem",
        Works("effects/sandbox/oci.rs", "read_only_root"),
    ),
    (
        "runAsGroup",
        Works("effects/sandbox/user.rs", "run_as_group"),
    ),
    (
        "runAsNonRoot",
        Works("effects/sandbox/user.rs", "run_as_non_root"),
    ),
    ("runAsUser", Works("effects/sandbox/user.rs", "run_as_user")),
    (
        "seLinuxOptions",
        Refused("seLinuxOptions: {level: 's0:c1'}"),
    ),
    (
        "seLinuxOptions",
        Refused("seLinuxOptions: {type: container_t}"),
    ),
    (
        "seLinuxOptions",
        Warned("seLinuxOptions: {type: spc_t, level: s0}"),
    ),
    ("seccompProfile", Works("effects/sandbox/oci.rs", "seccomp")),
    (
        "windowsOptions",
        Refused("windowsOptions: {runAsUserName: x}"),
    ),
];

/// Fields of a pod's security context.
const POD_SECURITY: Table = &[
    ("appArmorProfile", Works("spec/security.rs", "app_armor")),
    (
        "appArmorProfile",
        Refused("appArmorProfile: {type: Localhost, localhostProfile: ' x'}"),
    ),
    (
        "appArmorProfile",
        Refused("appArmorProfile: {type: Strict}"),
    ),
    ("fsGroup", Works("effects/volume/mod.rs", "fs_group")),
    (
        "fsGroupChangePolicy",
        Works("effects/volume/claim.rs", "fs_group_on_mismatch"),
    ),
    ("fsGroupChangePolicy", Refused("fsGroupChangePolicy: Never")),
    (
        "runAsGroup",
        Works("effects/sandbox/user.rs", "run_as_group"),
    ),
    (
        "runAsNonRoot",
        Works("effects/sandbox/user.rs", "run_as_non_root"),
    ),
    ("runAsUser", Works("effects/sandbox/user.rs", "run_as_user")),
    (
        "seLinuxChangePolicy",
        Warned("seLinuxChangePolicy: MountOption"),
    ),
    ("seLinuxOptions", Refused("seLinuxOptions: {user: u}")),
    ("seccompProfile", Works("effects/sandbox/oci.rs", "seccomp")),
    (
        "supplementalGroups",
        Works("effects/sandbox/user.rs", "supplemental_groups"),
    ),
    (
        "supplementalGroupsPolicy",
        Works("effects/sandbox/user.rs", "strict_groups"),
    ),
    (
        "supplementalGroupsPolicy",
        Refused("supplementalGroupsPolicy: Loose"),
    ),
    ("sysctls", Works("shim/setup.rs", "sysctls")),
    (
        "sysctls",
        Warned("sysctls: [{name: net.core.somaxconn, value: '1'}]"),
    ),
    ("windowsOptions", Refused("windowsOptions: {}")),
];

/// All other fields of a volume are refused.
const VOLUME: [&str; 10] = [
    "name",
    "configMap",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "hostPath",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const MOUNT: Table = &[
    ("mountPath", Works("effects/sandbox/container.rs", "path")),
    (
        "mountPropagation",
        Works("effects/sandbox/oci.rs", "propagation"),
    ),
    ("name", Works("effects/sandbox/container.rs", "volume")),
    ("readOnly", Works("effects/sandbox/oci.rs", "read_only")),
    (
        "recursiveReadOnly",
        Works("effects/sandbox/container.rs", "recursive_read_only"),
    ),
    (
        "recursiveReadOnly",
        Refused("recursiveReadOnly: Enabled, mountPropagation: HostToContainer"),
    ),
    ("recursiveReadOnly", Refused("recursiveReadOnly: Always")),
    ("subPath", Works("effects/sandbox/container.rs", "sub_path")),
    (
        "subPathExpr",
        Works("effects/sandbox/container.rs", "sub_path_expr"),
    ),
];

const PROBE: Table = &[
    ("exec", Works("effects/probe/exec.rs", "exec")),
    (
        "failureThreshold",
        Works("plan/probe.rs", "failure_threshold"),
    ),
    ("grpc", Works("effects/probe/mod.rs", "Grpc")),
    ("httpGet", Works("effects/probe/mod.rs", "HttpGet")),
    (
        "initialDelaySeconds",
        Works("plan/probe.rs", "initial_delay_ms"),
    ),
    ("periodSeconds", Works("plan/probe.rs", "period_ms")),
    (
        "successThreshold",
        Works("plan/probe.rs", "success_threshold"),
    ),
    ("tcpSocket", Works("effects/probe/mod.rs", "TcpSocket")),
    (
        "terminationGracePeriodSeconds",
        Works("plan/kill.rs", "grace_ms"),
    ),
    (
        "timeoutSeconds",
        Works("effects/probe/mod.rs", "timeout_ms"),
    ),
];

const LIFECYCLE: Table = &[
    ("postStart", Works("plan/hook.rs", "post_start")),
    ("preStop", Works("plan/hook.rs", "pre_stop")),
    (
        "stopSignal",
        Works("effects/sandbox/container.rs", "stop_signal"),
    ),
];

const HANDLER: Table = &[
    ("exec", Works("effects/probe/hook.rs", "Exec")),
    ("httpGet", Works("effects/probe/hook.rs", "HttpGet")),
    ("sleep", Works("plan/hook.rs", "Sleep")),
    ("tcpSocket", Works("effects/probe/hook.rs", "TcpSocket")),
];

const PORT: Table = &[
    ("containerPort", Works("network/ports.rs", "container_port")),
    ("hostIP", Works("network/ports.rs", "host_ip")),
    ("hostPort", Works("network/ports.rs", "host_port")),
    ("name", Works("plan/network.rs", "name")),
    ("protocol", Works("network/ports.rs", "protocol")),
];

const ENV_SOURCE: Table = &[
    (
        "configMapKeyRef",
        Works("effects/sandbox/references.rs", "ConfigMap"),
    ),
    ("fieldRef", Works("spec/env.rs", "field_ref")),
    (
        "fileKeyRef",
        Works("effects/sandbox/references.rs", "file_key"),
    ),
    ("resourceFieldRef", Works("spec/env.rs", "resource_ref")),
    (
        "secretKeyRef",
        Works("effects/sandbox/references.rs", "Secret"),
    ),
];

const SERVICE: Table = &[
    (
        "allocateLoadBalancerNodePorts",
        Works("spec/service.rs", "allocate_load_balancer_node_ports"),
    ),
    (
        "allocateLoadBalancerNodePorts",
        Warned("allocateLoadBalancerNodePorts: true"),
    ),
    ("clusterIP", Works("spec/service_rules.rs", "cluster_ip")),
    ("clusterIPs", Works("spec/service_rules.rs", "cluster_ips")),
    ("externalIPs", Warned("externalIPs: [192.0.2.1]")),
    (
        "externalName",
        Works("spec/service_rules.rs", "external_name"),
    ),
    ("externalName", Warned("externalName: a.example")),
    (
        "externalTrafficPolicy",
        Met("all endpoints are on this node"),
    ),
    (
        "externalTrafficPolicy",
        Refused("type: NodePort, externalTrafficPolicy: Some"),
    ),
    (
        "externalTrafficPolicy",
        Warned("externalTrafficPolicy: Local"),
    ),
    (
        "healthCheckNodePort",
        Warned("type: LoadBalancer, healthCheckNodePort: 30123"),
    ),
    (
        "internalTrafficPolicy",
        Met("all endpoints are on this node"),
    ),
    (
        "internalTrafficPolicy",
        Refused("internalTrafficPolicy: Some"),
    ),
    ("ipFamilies", Works("spec/service_rules.rs", "ip_families")),
    (
        "ipFamilyPolicy",
        Works("spec/service_rules.rs", "ip_family_policy"),
    ),
    ("ipFamilyPolicy", Refused("ipFamilyPolicy: Some")),
    (
        "loadBalancerClass",
        Warned("type: LoadBalancer, loadBalancerClass: a.b/c"),
    ),
    (
        "loadBalancerIP",
        Warned("type: LoadBalancer, loadBalancerIP: 192.0.2.1"),
    ),
    (
        "loadBalancerSourceRanges",
        Refused("type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]"),
    ),
    ("ports", Works("network/services.rs", "ports")),
    (
        "publishNotReadyAddresses",
        Works("plan/network.rs", "with_unready"),
    ),
    ("selector", Works("plan/network.rs", "selector")),
    (
        "sessionAffinity",
        Works("network/services.rs", "client_affinity"),
    ),
    (
        "sessionAffinityConfig",
        Warned(
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}",
        ),
    ),
    ("trafficDistribution", Met("all endpoints are on this node")),
    (
        "trafficDistribution",
        Refused("trafficDistribution: PreferFar"),
    ),
    ("type", Works("spec/service_rules.rs", "ExternalName")),
    ("type", Warned("type: LoadBalancer")),
];

const SERVICE_PORT: Table = &[
    (
        "appProtocol",
        Met("only clients that read the service see it"),
    ),
    ("name", Works("network/services.rs", "name")),
    ("nodePort", Works("network/services.rs", "node_port")),
    ("port", Works("network/services.rs", "port")),
    ("protocol", Works("network/services.rs", "protocol")),
    ("targetPort", Works("plan/network.rs", "TargetPort")),
];

#[test]
fn each_field_works_or_is_refused_or_a_warning_says_why_it_is_harmless() {
    check::<core::PodSpec>("PodSpec", POD_SPEC, |yaml| pod(yaml, "", ""));
    check::<core::Container>("Container", CONTAINER, |yaml| pod("", yaml, ""));
    let init = |yaml: &str| {
        pod(
            &format!("initContainers: [{{name: i, image: i, {yaml}}}]"),
            "",
            "",
        )
    };
    truths("init container", CONTAINER, init);
    let security = |yaml: &str| pod("", &format!("securityContext: {{{yaml}}}"), "");
    check::<core::SecurityContext>("SecurityContext", SECURITY, security);
    let security = |yaml: &str| pod(&format!("securityContext: {{{yaml}}}"), "", "");
    check::<core::PodSecurityContext>("PodSecurityContext", POD_SECURITY, security);
    let mount = |yaml: &str| {
        let mount = format!("volumeMounts: [{{name: v, mountPath: /m, readOnly: true, {yaml}}}]");
        pod("volumes: [{name: v}]", &mount, "")
    };
    check::<core::VolumeMount>("VolumeMount", MOUNT, mount);
    check::<core::Probe>("Probe", PROBE, none);
    check::<core::Lifecycle>("Lifecycle", LIFECYCLE, none);
    check::<core::LifecycleHandler>("LifecycleHandler", HANDLER, none);
    check::<core::ContainerPort>("ContainerPort", PORT, none);
    let variable = |yaml: &str| {
        pod(
            "",
            &format!("env: [{{name: A, valueFrom: {{{yaml}}}}}]"),
            "",
        )
    };
    check::<core::EnvVarSource>("EnvVarSource", ENV_SOURCE, variable);
    check::<core::ServiceSpec>("ServiceSpec", SERVICE, service);
    check::<core::ServicePort>("ServicePort", SERVICE_PORT, none);
}

#[test]
fn every_other_kind_of_volume_is_refused_with_what_to_use_instead() {
    for field in fields::<core::Volume>() {
        if VOLUME.contains(&field) {
            continue;
        }
        let (errors, _) = pod(&format!("volumes: [{{name: v, {field}: {{}}}}]"), "", "");
        assert_eq!(errors.len(), 1, "{field}: {errors:?}");
        let named =
            format!("spec.volumes[0].{field}: Forbidden: {field} volumes are not supported");
        assert!(errors[0].contains(&named), "{errors:?}");
        assert!(errors[0].contains("; "), "no advice: {errors:?}");
    }
}

#[test]
fn an_ephemeral_container_has_the_same_fields_or_is_refused() {
    let rows = || CONTAINER.iter().chain(EPHEMERAL).map(|(field, _)| *field);
    let known: BTreeSet<&str> = rows().collect();
    let written: BTreeSet<&str> = fields::<core::EphemeralContainer>().into_iter().collect();
    assert_eq!(written, known);
    let refused_anyway: BTreeSet<&str> = EPHEMERAL.iter().map(|(field, _)| *field).collect();
    for (field, what) in CONTAINER
        .iter()
        .filter(|row| !refused_anyway.contains(row.0))
    {
        truth("EphemeralContainer", field, what, ephemeral);
    }
    truths("EphemeralContainer", EPHEMERAL, ephemeral);
    for (field, what) in SECURITY {
        if let Refused(_) = what {
            let context = |yaml: &str| ephemeral(&format!("securityContext: {{{yaml}}}"));
            truth("ephemeral SecurityContext", field, what, context);
        }
    }
}

#[test]
fn fields_with_their_default_meaning_are_accepted_without_a_warning() {
    for (spec, container) in [
        ("hostUsers: true, shareProcessNamespace: false", ""),
        (
            "securityContext: {appArmorProfile: {type: Unconfined}, seLinuxOptions: {}, supplementalGroupsPolicy: Merge}",
            "",
        ),
        (
            "",
            "securityContext: {appArmorProfile: {type: Unconfined}, procMount: Default}",
        ),
        (
            "schedulerName: default-scheduler, serviceAccountName: default, automountServiceAccountToken: false",
            "",
        ),
        ("nodeName: 'n'", ""),
        (
            "securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '0'}]}",
            "",
        ),
    ] {
        let (errors, warnings) = pod(spec, container, "");
        assert!(
            errors.is_empty() && warnings.is_empty(),
            "{spec} {container}: {errors:?} {warnings:?}"
        );
    }
}

#[test]
fn annotations_that_confine_count_or_are_refused_and_our_own_are_checked() {
    const ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/c";
    const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/c";
    for (key, value, errors, warnings) in [
        (ARMOR, "unconfined", "", ""),
        (
            ARMOR,
            "localhost/",
            "invalid AppArmor profile name: \"localhost/\"",
            "",
        ),
        (ARMOR, "runtime/default", "", ""),
        (ARMOR, "localhost/x", "", ""),
        (SECCOMP, "runtime/default", "", "not read any more"),
        (SECCOMP, "unconfined", "", "`RuntimeDefault` applies"),
        (
            SECCOMP,
            "localhost/x",
            "not read from annotations any more",
            "",
        ),
        (CONTAINER, "docker/default", "", "not read any more"),
        (
            CONTAINER,
            "localhost/x",
            "not read from annotations any more",
            "",
        ),
        ("coracle.dev/after", "db:ready?timeout=1m", "", ""),
        ("coracle.dev/after", "db?time=1m", "item 1", ""),
        (
            "coracle.dev/afer",
            "db",
            "",
            "did you mean `coracle.dev/after`?",
        ),
        ("coracle.dev/required", "true", "", ""),
        ("coracle.dev/required", "yes", "Unsupported value", ""),
        ("coracle.dev/restart-backoff", "max=1m", "", ""),
        ("coracle.dev/restart-backoff", "soon", "must look like", ""),
        (
            "coracle.dev/restart-back-off",
            "max=1m",
            "",
            "did you mean `coracle.dev/restart-backoff`?",
        ),
        (
            "coracle.dev/memory-swap",
            "1Mi",
            "",
            "did you mean `coracle.dev/memory-swap-max`?",
        ),
        (
            "coracle.dev/memory-swap-max",
            "-1",
            "must be a quantity",
            "",
        ),
        (
            "Coracle.dev/restart-backoff",
            "max=1m",
            "",
            "did you mean `coracle.dev/restart-backoff`?",
        ),
        (
            "coracle.dev/colour",
            "red",
            "",
            "unknown to coracle, without effect",
        ),
        ("example.com/restart-backof", "x", "", ""),
        ("restart-backoff", "x", "", ""),
    ] {
        let (found, warned) = pod("", "", &format!(", annotations: {{{key}: '{value}'}}"));
        for (found, expected) in [(found, errors), (warned, warnings)] {
            let named = format!("metadata.annotations[{key}]: ");
            match (found.as_slice(), expected) {
                ([], "") => {}
                ([one], text) if !text.is_empty() => {
                    let named = one.contains(&named) || key == "restart-backoff";
                    assert!(named && one.contains(text), "{key}: {value}: {one}");
                }
                (all, text) => panic!("{key}: {value}: {all:?}, not {text:?}"),
            }
        }
    }
    let (_, warned) = pod("", "", ", labels: {coracle.dev/restart-backoff: x}");
    assert_eq!(
        warned,
        [
            "metadata.labels[coracle.dev/restart-backoff]: has no effect as a label: it is an annotation"
        ]
    );
    let text = SERVICE_DOCUMENT.replace(
        "{name: s}",
        "{name: s, annotations: {coracle.dev/restart-backoff: x}}",
    );
    let found = convert::documents(text.as_bytes(), "f", &CONTEXT).unwrap();
    assert_eq!(
        found.services[0].spec.warnings,
        [
            "metadata.annotations[coracle.dev/restart-backoff]: unknown to coracle, without effect; it is one of pods"
        ]
    );
}

/// A pod that was admitted by a version with fewer features goes on.
#[test]
fn a_running_pod_survives_even_if_its_manifest_would_be_refused_now() {
    let text = pod_text("", "", "").replace(
        "spec: {",
        "spec: {resourceClaims: [{name: r}], runtimeClassName: kata, tolerations: [{}], ",
    );
    assert!(convert::documents(text.as_bytes(), "f", &CONTEXT).is_err());
    let json: serde_json::Value = serde_yaml::from_str(&text).unwrap();
    let pod = convert::admitted(json.to_string().as_bytes()).unwrap();
    assert_eq!(pod.key.name, "p".into());
}

/// Checks that the table has each field of the type, and that each entry is true.
fn check<T: Deserialize<'static>>(name: &str, table: Table, convert: impl Fn(&str) -> Found) {
    let listed: BTreeSet<&str> = table.iter().map(|(field, _)| *field).collect();
    let there: BTreeSet<&str> = fields::<T>().into_iter().collect();
    assert_eq!(
        listed, there,
        "{name}: fields in the table, and those there are"
    );
    truths(name, table, convert);
}

fn truths(name: &str, table: Table, convert: impl Fn(&str) -> Found) {
    for (field, what) in table {
        truth(name, field, what, &convert);
    }
}

/// Errors and warnings.
type Found = (Vec<String>, Vec<String>);

fn truth(name: &str, field: &str, what: &What, convert: impl Fn(&str) -> Found) {
    let names = |text: &String| {
        let path = text.split(": ").find(|part| part.contains("spec"));
        path.is_some_and(|path| path.contains(field))
    };
    match what {
        Works(file, word) => {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
            let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert!(text.contains(word), "{name}.{field}: no `{word}` in {file}");
        }
        Met(why) => assert!(!why.is_empty()),
        Refused(yaml) => {
            let (errors, _) = convert(yaml);
            assert!(
                errors.iter().any(names),
                "{name}.{field} is not refused: {errors:?}"
            );
        }
        Warned(yaml) => {
            let (errors, warnings) = convert(yaml);
            assert!(errors.is_empty(), "{name}.{field}: {errors:?}");
            assert!(
                warnings.iter().any(names),
                "{name}.{field}: no warning: {warnings:?}"
            );
        }
    }
}

fn pod_text(spec: &str, container: &str, metadata: &str) -> String {
    let comma = if spec.is_empty() { "" } else { ", " };
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: p{metadata}}}, spec: {{{spec}{comma}\
         containers: [{{name: c, image: i, {container}}}]}}}}"
    )
}

fn pod(spec: &str, container: &str, metadata: &str) -> Found {
    let text = pod_text(spec, container, metadata);
    match convert::documents(text.as_bytes(), "f", &CONTEXT) {
        Ok(found) => (Vec::new(), found.pods[0].warnings.clone()),
        Err(errors) => (errors.iter().map(ToString::to_string).collect(), Vec::new()),
    }
}

const SERVICE_DOCUMENT: &str = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {selector: {a: b}, ports: [{port: 80}]}}";

fn service(yaml: &str) -> Found {
    let text = SERVICE_DOCUMENT.replace("spec: {", &format!("spec: {{{yaml}, "));
    match convert::documents(text.as_bytes(), "f", &CONTEXT) {
        Ok(found) => (Vec::new(), found.services[0].spec.warnings.clone()),
        Err(errors) => (errors.iter().map(ToString::to_string).collect(), Vec::new()),
    }
}

fn ephemeral(yaml: &str) -> Found {
    let text = pod_text("volumes: [{name: v}]", "", "");
    let found = convert::documents(text.as_bytes(), "f", &CONTEXT).unwrap();
    let json: serde_json::Value =
        serde_yaml::from_str(&format!("[{{name: d, image: i, {yaml}}}]")).unwrap();
    let errors = match ephemeral::parse(&json.to_string()) {
        Ok(list) => ephemeral::replace(&found.pods[0], &list).err(),
        Err(errors) => Some(errors),
    };
    (errors.unwrap_or_default(), Vec::new())
}

fn none(_: &str) -> Found {
    (Vec::new(), Vec::new())
}

/// The names of a type's fields, as it passes them to a deserializer.
fn fields<T: Deserialize<'static>>() -> Vec<&'static str> {
    match T::deserialize(Ask) {
        Ok(_) => Vec::new(),
        Err(Answer(fields)) => fields.to_vec(),
    }
}

struct Ask;

#[derive(Debug)]
struct Answer(&'static [&'static str]);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Answer {}

impl serde::de::Error for Answer {
    fn custom<T: fmt::Display>(message: T) -> Self {
        panic!("{message}")
    }
}

impl<'de> Deserializer<'de> for Ask {
    type Error = Answer;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Answer> {
        panic!("only objects have fields")
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Answer> {
        Err(Answer(fields))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
