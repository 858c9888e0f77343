//! Volumes of files: `configMap`, `secret`, and both in `projected`
//! (`common/storage/{configmap,secrets,projected_*}*.go`).

use super::super::common::{Agent, PATIENCE, shell_pod};
use super::super::configuration::{run, wait_mount_failure};
use super::super::{SLEEP, main_status};
use super::{Answer, Row, ask};

/// A kind of volume, and what the kubelet says if it fails.
struct Kind {
    word: &'static str,
    object: &'static str,
    no_key: &'static str,
}

const KINDS: [Kind; 4] = [
    Kind {
        word: "configMap",
        object: "configmap",
        no_key: "configmap references non-existent config key",
    },
    Kind {
        word: "secret",
        object: "secret",
        no_key: "references non-existent secret key",
    },
    Kind {
        word: "projected configMap",
        object: "configmap",
        no_key: "configmap references non-existent config key",
    },
    Kind {
        word: "projected secret",
        object: "secret",
        no_key: "references non-existent secret key",
    },
];

impl Kind {
    /// The source of a volume with these files. `mode` is the default one, `more` are entries of the source.
    fn source(&self, object: &str, mode: Option<&str>, more: &str) -> String {
        let mode = mode.map_or(String::new(), |mode| format!("defaultMode: {mode}, "));
        match self.word {
            "configMap" => format!("configMap: {{name: {object}, {mode}{more}}}"),
            "secret" => format!("secret: {{secretName: {object}, {mode}{more}}}"),
            word => {
                let kind = word.trim_start_matches("projected ");
                let source = format!("{{{kind}: {{name: {object}, {more}}}}}");
                format!("projected: {{{mode}sources: [{source}]}}")
            }
        }
    }
}

const READ: &str = "cat /v/data-1; echo; stat -Lc '%a %u %g' /v/data-1";
const ITEM: &str = "items: [{key: data-2, path: path/to/data-2}]";
const ITEM_MODE: &str = "items: [{key: data-2, path: path/to/data-2, mode: 0400}]";
const MAPPED: &str = "cd /v; cat path/to/data-2; echo; stat -Lc %a path/to/data-2; ls";
const USER: &str = "securityContext: {runAsUser: 1000}";
const GROUP: &str = "securityContext: {runAsUser: 1000, fsGroup: 1001}";

/// The questions that upstream asks about each of the four.
fn of_kind(kind: &Kind) -> Vec<Row> {
    let title = |rest: &str| {
        format!(
            "[{}] should be consumable from pods in volume {rest}",
            kind.word
        )
    };
    let plain = kind.source("test", None, "");
    let missing = |optional: bool| kind.source("none", None, &format!("optional: {optional}"));
    let key = |more: &str| {
        let items = format!("items: [{{key: none, path: x}}], {more}");
        kind.source("test", None, &items)
    };
    let fails = |what: &str| {
        let title = format!(
            "[{}] Should fail non-optional pod creation due to {what} does not exist",
            kind.word
        );
        move |message: String| Row::of(title, "true", Answer::Unmounted(message))
    };
    vec![
        Row::says(title(""), READ, "value-1\n644 0 0\n").volume(&plain),
        Row::says(title("with defaultMode set"), READ, "value-1\n400 0 0\n").volume(&kind.source(
            "test",
            Some("0400"),
            "",
        )),
        Row::says(
            title("as non-root with defaultMode and fsGroup set"),
            READ,
            "value-1\n440 0 1001\n",
        )
        .volume(&kind.source("test", Some("0440"), ""))
        .pod(GROUP),
        Row::says(title("as non-root"), READ, "value-1\n644 0 0\n")
            .volume(&plain)
            .pod(USER),
        Row::says(
            title("as non-root with FSGroup"),
            READ,
            "value-1\n644 0 1001\n",
        )
        .volume(&plain)
        .pod(GROUP),
        Row::says(title("with mappings"), MAPPED, "value-2\n644\npath\n")
            .volume(&kind.source("test", None, ITEM)),
        Row::says(
            title("with mappings and Item mode set"),
            MAPPED,
            "value-2\n400\npath\n",
        )
        .volume(&kind.source("test", None, ITEM_MODE)),
        Row::says(
            title("with mappings as non-root with FSGroup"),
            MAPPED,
            "value-2\n440\npath\n",
        )
        .volume(&kind.source("test", None, ITEM_MODE))
        .pod(GROUP),
        Row::says(
            format!(
                "[{}] optional updates: an absent object is no file",
                kind.word
            ),
            "ls /v | wc -l",
            "0\n",
        )
        .volume(&missing(true)),
        Row::says(
            format!("[{}] an absent optional key is no file", kind.word),
            "ls /v | wc -l",
            "0\n",
        )
        .volume(&key("optional: true")),
        fails("the object")(format!("\"v\" : {} \"none\" not found", kind.object))
            .volume(&missing(false)),
        fails("the key in the object")(format!("\"v\" : {}: none", kind.no_key)).volume(&key("")),
        Row::says(
            format!(
                "[{}] should be consumable in multiple volumes in the same pod",
                kind.word
            ),
            "cat /v/data-1 /w/data-1",
            "value-1value-1",
        )
        .pod(format!(
            "volumes: [{{name: v, {plain}}}, {{name: w, {plain}}}]"
        ))
        .container("volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]"),
    ]
}

#[test]
fn config_maps_and_secrets_in_volumes() {
    let mut rows: Vec<Row> = KINDS.iter().flat_map(of_kind).collect();
    rows.extend([
        Row::says(
            "binary data should be reflected in volume",
            "cat /v/text; od -An -tx1 /v/dump",
            "text de ad be ef\n",
        )
        .volume("configMap: {name: binary}"),
        Row::says(
            "should project all components that make up the projection API",
            "cd /v; cat name; echo; cat map/data-1; echo; cat secret/data-1; echo; cat labels; echo; ls",
            "POD\nvalue-1\nvalue-1\na=\"b\"\nlabels\nmap\nname\nsecret\n",
        )
        .metadata("labels: {a: b}")
        .volume(
            "projected: {sources: [{configMap: {name: test, items: [{key: data-1, path: map/data-1}]}}, \
             {secret: {name: test, items: [{key: data-1, path: secret/data-1}]}}, {downwardAPI: {items: [\
             {path: name, fieldRef: {fieldPath: metadata.name}}, {path: labels, fieldRef: {fieldPath: metadata.labels}}]}}]}",
        ),
        Row::says(
            "files of a volume cannot be changed by the container",
            "for f in data-1 new ..data/data-1; do (echo x > /v/$f) 2>/dev/null && echo changed; done; \
             rm /v/data-1 2>/dev/null || cat /v/data-1",
            "value-1",
        )
        .volume("secret: {secretName: test}"),
        Row::of(
            "a path of an item must not lead out of the volume",
            "true",
            Answer::Refused("must not contain '..'".to_owned()),
        )
        .volume("configMap: {name: test, items: [{key: data-1, path: ../x}]}"),
    ]);
    ask(&rows);
}

/// A pod with three optional volumes, as upstream's `optional updates should be reflected in volume`.
fn three(kind: &Kind) -> String {
    let volume = |name: &str, more: &str| {
        let source = kind.source(name, None, &format!("optional: true, {more}"));
        format!("{{name: {name}, {source}}}")
    };
    let items = "items: [{key: data-1, path: path/data-1}]";
    let volumes = [
        volume("deleted", ""),
        volume("updated", items),
        volume("created", items),
    ];
    let more = format!("  volumes: [{}]\n", volumes.join(", "));
    let mounts = ["deleted", "updated", "created"]
        .map(|name| format!("{{name: {name}, mountPath: /{name}}}"));
    let container = format!("    volumeMounts: [{}]\n", mounts.join(", "));
    let name = kind.word.replace(' ', "-").to_lowercase();
    shell_pod(&name, SLEEP, &more, &container)
}

fn documents(all: &[(&str, &str)]) -> String {
    let document = |(name, value): &(&str, &str)| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{data-1: {value}}}\n---\n\
             apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData: {{data-1: {value}}}\n---\n"
        )
    };
    all.iter().map(document).collect()
}

#[test]
fn optional_updates_are_reflected_in_volumes_and_nothing_restarts() {
    let agent = Agent::start();
    agent.write(
        "config.yaml",
        &documents(&[("deleted", "one"), ("updated", "one")]),
    );
    let names: Vec<String> = KINDS
        .iter()
        .map(|kind| {
            let name = kind.word.replace(' ', "-").to_lowercase();
            agent.write(&format!("{name}.yaml"), &three(kind));
            name
        })
        .collect();
    let show = "cat /deleted/data-1 /updated/path/data-1 /created/path/data-1 2>/dev/null";
    for name in &names {
        agent.wait_running(name);
        assert_eq!(
            run(&agent, name, &format!("{show}; true")),
            "oneone",
            "{name}"
        );
    }
    agent.write(
        "config.yaml",
        &documents(&[("updated", "two"), ("created", "three")]),
    );
    for name in &names {
        let deadline = std::time::Instant::now() + PATIENCE;
        while run(&agent, name, &format!("{show}; true")) != "twothree" {
            assert!(std::time::Instant::now() < deadline, "{name}");
            // A change of files is not announced.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(main_status(&agent.pod(name))["restartCount"], 0);
    }
}

#[test]
fn an_immutable_config_map_stays_and_a_missing_one_is_waited_for() {
    let agent = Agent::start();
    let map = |value: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{k: {value}}}\n{more}"
        )
    };
    let volumes = "  volumes: [{name: m, configMap: {name: m}}]\n";
    let mounts = "    volumeMounts: [{name: m, mountPath: /m}]\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, mounts));
    wait_mount_failure(&agent, "\"m\" : configmap \"m\" not found");
    agent.write("map.yaml", &map("one", "immutable: true\n"));
    agent.wait_running("a");
    agent.write("map.yaml", &map("two", "immutable: true\n"));
    agent.write("b.yaml", &shell_pod("b", SLEEP, volumes, mounts));
    agent.wait_running("b");
    for pod in ["a", "b"] {
        assert_eq!(run(&agent, pod, "cat /m/k"), "one", "{pod}");
    }
}
