//! The downward API, as variables and as files (`common/node/downwardapi.go`, `common/storage/*downwardapi*.go`).

use super::super::SLEEP;
use super::super::common::{Agent, PATIENCE, shell_pod};
use super::super::configuration::run;
use super::{Row, ask};

const RESOURCES: &str = "resources: {requests: {cpu: 250m, memory: 32Mi, ephemeral-storage: 16Mi}, \
                         limits: {cpu: 1250m, memory: 64Mi, ephemeral-storage: 32Mi}}";

/// The source of a volume of that word with these items.
fn source(word: &str, mode: &str, items: &str) -> String {
    match word {
        "projected" => {
            format!("projected: {{{mode} sources: [{{downwardAPI: {{items: [{items}]}}}}]}}")
        }
        _ => format!("downwardAPI: {{{mode} items: [{items}]}}"),
    }
}

/// The questions about files, which upstream asks of both kinds of volume.
fn files(word: &str) -> Vec<Row> {
    const NAME: &str = "{path: f, fieldRef: {fieldPath: metadata.name}}";
    let title = |rest: &str| format!("[{word} downwardAPI] should {rest}");
    let resource = |rest: &str, resource: &str, said: &str| {
        let item =
            format!("{{path: f, resourceFieldRef: {{containerName: main, resource: {resource}}}}}");
        Row::says(title(rest), "cat /v/f", said)
            .volume(&source(word, "", &item))
            .container(RESOURCES)
    };
    let default = |resource: &str| {
        let item =
            format!("{{path: f, resourceFieldRef: {{containerName: main, resource: {resource}}}}}");
        let rest =
            format!("provide node allocatable as default {resource} if the limit is not set");
        Row::says(title(&rest), "[ $(cat /v/f) -gt 0 ] && echo some", "some\n")
            .volume(&source(word, "", &item))
    };
    let mode = "{path: f, mode: 0400, fieldRef: {fieldPath: metadata.name}}";
    let group = "securityContext: {runAsUser: 1000, fsGroup: 1234}";
    vec![
        Row::says(title("provide podname only"), "cat /v/f", "POD").volume(&source(word, "", NAME)),
        Row::says(
            title("set DefaultMode on files"),
            "stat -Lc %a /v/f",
            "400\n",
        )
        .volume(&source(word, "defaultMode: 0400,", NAME)),
        Row::says(title("set mode on item file"), "stat -Lc %a /v/f", "400\n")
            .volume(&source(word, "", mode)),
        Row::says(
            title("provide podname as non-root with fsgroup"),
            "cat /v/f; stat -Lc ' %a %g' /v/f",
            "POD 644 1234\n",
        )
        .volume(&source(word, "", NAME))
        .pod(group),
        Row::says(
            title("provide podname as non-root with fsgroup and defaultMode"),
            "cat /v/f; stat -Lc ' %a %g' /v/f",
            "POD 440 1234\n",
        )
        .volume(&source(word, "defaultMode: 0440,", NAME))
        .pod(group),
        resource("provide container's cpu limit", "limits.cpu", "2"),
        resource(
            "provide container's memory limit",
            "limits.memory",
            "67108864",
        ),
        resource("provide container's cpu request", "requests.cpu", "1"),
        resource(
            "provide container's memory request",
            "requests.memory",
            "33554432",
        ),
        default("limits.cpu"),
        default("limits.memory"),
        default("limits.ephemeral-storage"),
    ]
}

fn variables() -> Vec<Row> {
    let field =
        |path: &str| format!("env: [{{name: F, valueFrom: {{fieldRef: {{fieldPath: {path}}}}}}}]");
    let resource = |name: &str, divisor: &str| {
        format!(
            "env: [{{name: F, valueFrom: {{resourceFieldRef: {{resource: {name}, divisor: {divisor}}}}}}}]"
        )
    };
    let of_field = |title: &str, path: &str, script: &str, said: &str| {
        Row::says(format!("[downward variables] {title}"), script, said).container(field(path))
    };
    let of_resource = |name: &str, divisor: &str, said: &str| {
        let title =
            format!("[downward variables] should provide container's {name} in units of {divisor}");
        Row::says(title, "echo $F", format!("{said}\n"))
            .container(resource(name, divisor))
            .container(RESOURCES)
    };
    let is_address = "echo $F | grep -Ec '^[0-9.]+(,[0-9a-f:.]+)*$'";
    vec![
        of_field(
            "should provide pod name",
            "metadata.name",
            "echo $F",
            "POD\n",
        ),
        of_field(
            "should provide pod namespace",
            "metadata.namespace",
            "echo $F",
            "default\n",
        ),
        of_field(
            "should provide pod UID",
            "metadata.uid",
            "echo ${#F}",
            "32\n",
        ),
        of_field(
            "should provide the node's name",
            "spec.nodeName",
            "echo $F",
            "test-node\n",
        ),
        of_field(
            "should provide pod IP",
            "status.podIP",
            "[ \"$F\" = $(hostname -i) ] && echo same",
            "same\n",
        ),
        of_field("should provide pod IPs", "status.podIPs", is_address, "1\n"),
        of_field(
            "should provide a label",
            "\"metadata.labels['a']\"",
            "echo $F",
            "b\n",
        )
        .metadata("labels: {a: b}"),
        of_field(
            "should provide an absent annotation as nothing",
            "\"metadata.annotations['none']\"",
            "echo [$F]",
            "[]\n",
        ),
        of_resource("limits.cpu", "1", "2"),
        of_resource("limits.cpu", "1m", "1250"),
        of_resource("requests.cpu", "1", "1"),
        of_resource("limits.memory", "1", "67108864"),
        of_resource("limits.memory", "1Mi", "64"),
        of_resource("requests.memory", "1", "33554432"),
        of_resource("limits.ephemeral-storage", "1", "33554432"),
        of_resource("requests.ephemeral-storage", "1Mi", "16"),
        Row::says(
            "[downward variables] should provide default limits from node allocatable",
            "[ $C -gt 0 ] && [ $M -gt 1000000 ] && [ $E -gt 1000000 ] && echo some",
            "some\n",
        )
        .container(
            "env: [{name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}, \
             {name: M, valueFrom: {resourceFieldRef: {resource: limits.memory}}}, \
             {name: E, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage}}}]",
        ),
    ]
}

#[test]
fn the_downward_api_as_files_and_variables() {
    let mut rows = Vec::from_iter(
        [files("plain"), files("projected"), variables()]
            .into_iter()
            .flatten(),
    );
    rows.push(
        Row::says(
            "annotations are lines that are sorted and escaped",
            "grep -v kubernetes.io /v/f",
            "a=\"1\\n2\"\nb=\"say \\\"x\\\"\"\n",
        )
        .metadata("annotations: {b: 'say \"x\"', a: \"1\\n2\"}")
        .volume(&source(
            "",
            "",
            "{path: f, fieldRef: {fieldPath: metadata.annotations}}",
        )),
    );
    ask(&rows);
}

/// `should update labels on modification`, `should update annotations on modification`.
#[test]
fn files_follow_labels_and_annotations() {
    let agent = Agent::start();
    let items = "{path: labels, fieldRef: {fieldPath: metadata.labels}}, \
                 {path: annotations, fieldRef: {fieldPath: metadata.annotations}}";
    let volumes = format!(
        "  volumes: [{{name: v, {}}}, {{name: w, {}}}]\n",
        source("", "", items),
        source("projected", "", items)
    );
    let mounts = "    volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]\n";
    let pod = |value: &str| {
        let metadata =
            format!("metadata:\n  labels: {{key: {value}}}\n  annotations: {{builder: {value}}}");
        shell_pod("a", SLEEP, &volumes, mounts).replacen("metadata:", &metadata, 1)
    };
    let show = "for v in /v /w; do cat $v/labels; grep builder $v/annotations; done";
    let of = |value: &str| format!("key=\"{value}\"builder=\"{value}\"").repeat(2);
    agent.write("a.yaml", &pod("bar"));
    agent.wait_running("a");
    let shown = || run(&agent, "a", show).replace('\n', "");
    assert_eq!(shown(), of("bar"));
    agent.write("a.yaml", &pod("foo"));
    let deadline = std::time::Instant::now() + PATIENCE;
    while shown() != of("foo") {
        assert!(std::time::Instant::now() < deadline, "{}", shown());
        // A change of files is not announced.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(
        agent.pod("a")["status"]["containerStatuses"][0]["restartCount"],
        0
    );
}
