//! Programs, their variables, their rights, and how they end (`common/node/{configmap,secrets,expansion,containers,
//! security_context,runtime,kubelet,sysctl}.go`).

use super::super::SLEEP;
use super::super::common::{Agent, shell_pod};
use super::super::main_status;
use super::{Answer, Row, ask};

fn variables() -> Vec<Row> {
    let of_key = |kind: &str, key: &str, more: &str| {
        format!(
            "env: [{{name: F, valueFrom: {{{kind}KeyRef: {{name: test, key: {key}, {more}}}}}}}]"
        )
    };
    let mut rows = Vec::new();
    for (kind, word) in [("configMap", "ConfigMap"), ("secret", "Secret")] {
        let title = |rest: &str| format!("[{word}] {rest}");
        let object = word.to_lowercase();
        rows.extend([
            Row::says(title("should be consumable via environment variable"), "echo $F", "value-1\n")
                .container(of_key(kind, "data-1", "")),
            Row::says(
                title("should be consumable via the environment"),
                "tr '\\0' '\\n' < /proc/1/environ | grep data | sort",
                "data-1=value-1\ndata-2=value-2\ndata-3=value-3\np-data-1=value-1\np-data-2=value-2\np-data-3=value-3\n",
            )
            .container(format!(
                "envFrom: [{{{kind}Ref: {{name: test}}}}, {{prefix: p-, {kind}Ref: {{name: test}}}}]"
            )),
            Row::says(title("an absent optional key is no variable"), "echo ${F-unset}", "unset\n")
                .container(of_key(kind, "none", "optional: true")),
            Row::of(
                title("an absent key is waited for"),
                "true",
                Answer::Waits(
                    "CreateContainerConfigError",
                    format!("couldn't find key none in {word} default/test"),
                ),
            )
            .container(of_key(kind, "none", "")),
            Row::of(
                title("an absent object is waited for"),
                "true",
                Answer::Waits("CreateContainerConfigError", format!("{object} \"none\" not found")),
            )
            .container(format!("envFrom: [{{{kind}Ref: {{name: none}}}}]")),
            Row::of(
                title("a key that is none is refused"),
                "true",
                Answer::Refused("a valid config key must consist of".to_owned()),
            )
            .container(of_key(kind, "a/b", "")),
        ]);
    }
    rows
}

fn expansion() -> Vec<Row> {
    let sub = |value: &str| {
        format!(
            "env: [{{name: POD_NAME, value: '{value}'}}], volumeMounts: [{{name: v, mountPath: /v, subPathExpr: $(POD_NAME)}}]"
        )
    };
    let volume = "volumes: [{name: v, emptyDir: {}}]";
    let fails = |title: &str, value: &str, message: &str| {
        let answer = Answer::Waits("CreateContainerConfigError", message.to_owned());
        Row::of(format!("[Variable Expansion] {title}"), "true", answer)
            .pod(volume)
            .container(sub(value))
    };
    vec![
        Row::says(
            "[Variable Expansion] should allow composing env vars into new env vars",
            "echo \"$FOOBAR\"",
            "foo-value;;bar-value\n",
        )
        .container(
            "env: [{name: FOO, value: foo-value}, {name: BAR, value: bar-value}, \
             {name: FOOBAR, value: '$(FOO);;$(BAR)'}]",
        ),
        Row::says(
            "[Variable Expansion] should allow substituting values in a container's command",
            "TEST_VAR=wrong echo \"$(TEST_VAR)\"",
            "test-value\n",
        )
        .container("env: [{name: TEST_VAR, value: test-value}]"),
        Row::says(
            "[Variable Expansion] should allow substituting values in a container's args",
            "echo \"$0 $1\"",
            "test-value $(NONE)\n",
        )
        .container("env: [{name: TEST_VAR, value: test-value}], args: [$(TEST_VAR), $(NONE)]"),
        Row::says(
            "[Variable Expansion] two dollars are one, and nothing expands twice",
            "for v in \"$A\" \"$B\" \"$C\"; do echo \"$v\"; done",
            "$(X)\n$x\n$(X)\n",
        )
        .container("env: [{name: X, value: x}, {name: A, value: $$(X)}, {name: B, value: $$x}, {name: C, value: $(A)}]"),
        Row::says(
            "[Variable Expansion] should allow substituting values in a volume subpath",
            "[ -d /all/$POD_NAME ] && echo there",
            "there\n",
        )
        .pod(volume)
        .container(
            "env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], volumeMounts: [\
             {name: v, mountPath: /v, subPathExpr: $(POD_NAME)}, {name: v, mountPath: /all}]",
        ),
        fails(
            "should fail substituting values in a volume subpath with backticks",
            "..",
            "unable to provision SubPath `..`: must not contain '..'",
        ),
        fails(
            "should fail substituting values in a volume subpath with absolute path",
            "/tmp",
            "error SubPath `/tmp` must not be an absolute path",
        ),
        Row::of(
            "[Variable Expansion] a variable that is missing in a subpath is named",
            "true",
            Answer::Waits("CreateContainerConfigError", "missing value for NONE".to_owned()),
        )
        .pod(volume)
        .container("volumeMounts: [{name: v, mountPath: /v, subPathExpr: a/$(NONE)}]"),
    ]
}

fn rights() -> Vec<Row> {
    let context = |text: &str| format!("securityContext: {{{text}}}");
    vec![
        Row::says("[Security Context] should run the container with uid 65534", "id -u", "65534\n")
            .container(context("runAsUser: 65534")),
        Row::says("[Security Context] should run the container with uid 0", "id -u", "0\n").container(context("runAsUser: 0")),
        Row::says(
            "[Security Context] the container's user wins over the pod's",
            "id -u; id -g; id -G",
            "1002\n2000\n2000 3000\n",
        )
        .pod("securityContext: {runAsUser: 1001, runAsGroup: 2000, supplementalGroups: [3000]}")
        .container(context("runAsUser: 1002")),
        Row::says(
            "[Security Context] should run the container with readonly rootfs when readOnlyRootFilesystem=true",
            "touch /f 2>/dev/null || echo refused",
            "refused\n",
        )
        .container(context("readOnlyRootFilesystem: true")),
        Row::says(
            "[Security Context] should run the container with writable rootfs when readOnlyRootFilesystem=false",
            "touch /f && echo written",
            "written\n",
        )
        .container(context("readOnlyRootFilesystem: false")),
        Row::says(
            "[Security Context] should run the container as unprivileged when false",
            "ip link add dummy0 type dummy 2>/dev/null || echo refused",
            "refused\n",
        )
        .container(context("privileged: false")),
        Row::says(
            "[Security Context] should not allow privilege escalation when false",
            "grep NoNewPrivs /proc/self/status | tr -d '\\t'",
            "NoNewPrivs:1\n",
        )
        .container(context("runAsUser: 1000, allowPrivilegeEscalation: false")),
        Row::says(
            "[Security Context] should allow privilege escalation when true",
            "grep NoNewPrivs /proc/self/status | tr -d '\\t'",
            "NoNewPrivs:0\n",
        )
        .container(context("runAsUser: 1000, allowPrivilegeEscalation: true")),
        Row::says("[Security Context] should run with an explicit non-root user ID", "id -u", "1234\n")
            .container(context("runAsNonRoot: true, runAsUser: 1234")),
        Row::of(
            "[Security Context] should not run with an explicit root user ID",
            "true",
            Answer::Refused("user 0 is root, which runAsNonRoot forbids".to_owned()),
        )
        .container(context("runAsNonRoot: true, runAsUser: 0")),
        Row::of(
            "[Security Context] should not run without a specified user ID",
            "true",
            Answer::Waits(
                "CreateContainerConfigError",
                "container has runAsNonRoot and image will run as root".to_owned(),
            ),
        )
        .container(context("runAsNonRoot: true")),
        Row::says(
            "[Security Context] dropped capabilities are gone",
            "grep CapEff /proc/self/status | tr -d '\\t'",
            "CapEff:0000000000000400\n",
        )
        .container(context("capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}")),
        Row::says(
            "[Sysctls] should support sysctls",
            "cat /proc/sys/kernel/shm_rmid_forced",
            "1\n",
        )
        .pod("securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}"),
    ]
}

fn ends() -> Vec<Row> {
    let message = |title: &str, script: &str, code: i64, text: &str| {
        let title = format!("[Container Runtime] should report termination message {title}");
        Row::of(title, script, Answer::Ends(code, text.to_owned()))
    };
    let logs = "terminationMessagePolicy: FallbackToLogsOnError";
    vec![
        message(
            "if TerminationMessagePath is set",
            "printf DONE > /dev/termination-log",
            0,
            "DONE",
        ),
        message(
            "if TerminationMessagePath is set as non-root user and at a non-default path",
            "printf DONE > /dev/termination-custom-log",
            0,
            "DONE",
        )
        .container("terminationMessagePath: /dev/termination-custom-log, securityContext: {runAsUser: 1000}"),
        message(
            "from log output if TerminationMessagePolicy FallbackToLogsOnError is set",
            "printf DONE; exit 1",
            1,
            "DONE",
        )
        .container(logs),
        message(
            "as empty when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set",
            "printf DONE",
            0,
            "",
        )
        .container(logs),
        message(
            "from file when pod succeeds and TerminationMessagePolicy FallbackToLogsOnError is set",
            "printf OK > /dev/termination-log; printf DONE",
            0,
            "OK",
        )
        .container(logs),
        message(
            "of a container that fails",
            "printf DONE > /dev/termination-log; exit 3",
            3,
            "DONE",
        ),
        Row::says(
            "[Kubelet] should write entries to /etc/hosts",
            "grep foo.local /etc/hosts | tr '\\t' ' '",
            "123.45.67.89 foo.local bar.local\n",
        )
        .pod("hostAliases: [{ip: 123.45.67.89, hostnames: [foo.local, bar.local]}]"),
        Row::says(
            "[KubeletManagedEtcHosts] a mount of the manifest takes the place of the file",
            "cat /etc/hosts",
            "value-1",
        )
        .pod("volumes: [{name: v, configMap: {name: test}}]")
        .container("volumeMounts: [{name: v, mountPath: /etc/hosts, subPath: data-1}]"),
        Row::says(
            "[Containers] should be able to override the image's working directory",
            "pwd",
            "/tmp/work\n",
        )
        .container("workingDir: /tmp/work"),
        Row::says(
            "[PrivilegedPod] a privileged container may make devices of any kind",
            "mknod /tmp/null c 1 3 && echo x > /tmp/null && echo made",
            "made\n",
        )
        .container("securityContext: {privileged: true}"),
    ]
}

#[test]
fn variables_expansion_rights_and_ends_of_programs() {
    let rows = [variables(), expansion(), rights(), ends()];
    ask(&rows.into_iter().flatten().collect::<Vec<_>>());
}

/// `should verify that a failing subpath expansion can be modified during the lifecycle of a container`.
#[test]
fn a_failing_subpath_expansion_can_be_mended_by_an_annotation() {
    let agent = Agent::start();
    let env = "    env: [{name: A, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['mysubpath']\"}}}]\n";
    let container =
        format!("{env}    volumeMounts: [{{name: v, mountPath: /v, subPathExpr: $(A)/x}}]\n");
    let pod = |annotation: &str| {
        let metadata = format!("metadata:\n  annotations: {{{annotation}: mypath}}");
        let pod = shell_pod(
            "a",
            SLEEP,
            "  volumes: [{name: v, emptyDir: {}}]\n",
            &container,
        );
        pod.replacen("metadata:", &metadata, 1)
    };
    agent.write("a.yaml", &pod("notmysubpath"));
    agent.wait_pod("a", |pod| {
        let waiting = &main_status(pod)["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError"
            && waiting["message"] == "error SubPath `/x` must not be an absolute path"
    });
    agent.write("a.yaml", &pod("mysubpath"));
    agent.wait_running("a");
}
