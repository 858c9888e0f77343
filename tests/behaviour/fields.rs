//! What is shown of a pod besides its states: messages, addresses, mounts, times (Kubernetes docs: Pod Lifecycle).

use std::sync::Arc;

use coracle::plan::run::Ended;
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{Action, Event, PodFact, RunFact, former};
use coracle::spec::{PodSpec, RestartPolicy};

use crate::node::{Node, one};
use crate::pods::{at, exit, of, pod, with_inits};
use crate::statuses::play;

#[test]
fn a_programs_termination_message_is_shown_with_its_exit() {
    let mut node = Node::with(&one(RestartPolicy::Never, &["c"]));
    node.work();
    let pod = node.state.pods.values().next().expect("the pod");
    let instance = pod.instance("c", 0);
    let mut exit = exit(3, at(node.now), at(node.now + 1_000));
    exit.message = "disk full".into();
    node.tell(Event::Run {
        instance,
        fact: RunFact::Exited { exit },
    });
    let status = node.shown().status.expect("a status");
    let ended = status.container_statuses.expect("statuses")[0]
        .state
        .clone();
    let ended = ended.and_then(|s| s.terminated).expect("an end");
    assert_eq!(ended.message.as_deref(), Some("disk full"));
    assert_eq!((ended.exit_code, ended.signal), (3, None));
    assert!(
        ended
            .container_id
            .is_some_and(|id| id.starts_with("coracle://"))
    );
    let second = |t: Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        t.map(|t| t.0.as_second())
    };
    let (from, to) = (second(ended.started_at), second(ended.finished_at));
    assert_eq!(to, from.map(|s| s + 1));
}

/// `lastState` and restart count of the container.
fn last(node: &Node) -> (Option<(i32, String)>, i32) {
    let status = node.shown().status.expect("a status");
    let container = &status.container_statuses.expect("statuses")[0];
    let last = container.last_state.clone().and_then(|s| s.terminated);
    let last = last.map(|end| (end.exit_code, end.reason.unwrap_or_default()));
    (last, container.restart_count)
}

#[test]
fn an_exit_from_before_the_reboot_is_shown_until_the_next_exit_and_decides_nothing() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut killed = exit(137, at(0), at(0));
    killed.oom_killed = true;
    let former = |attempt, exit| Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::FormerEnds {
            ends: [(
                "c".to_owned(),
                Ended {
                    attempt,
                    image_id: "sha256:1".into(),
                    exit,
                    on_request: false,
                },
            )]
            .into(),
        },
    };
    let shows = |node: &Node, phase: &str, end: &str| {
        let line = node.line();
        assert!(line.starts_with(phase) && line.ends_with(end), "{line}");
    };
    let oom = Some((137, "OOMKilled".to_owned()));
    let mut node = Node::with(&spec);
    node.tell(former(4, killed.clone()));
    assert_eq!(last(&node), (oom.clone(), 5));
    shows(&node, "Pending;", "c: ContainerCreating < OOMKilled 137, 5");
    node.work();
    shows(&node, "Running;", "c: running < OOMKilled 137, 5");
    // A new agent of the same boot reads it again; newer facts stay.
    node.tell(former(4, killed));
    assert_eq!(last(&node), (oom.clone(), 5));
    node.tell(former(5, exit(0, at(0), at(0))));
    assert_eq!(last(&node), (oom, 5), "attempt 5 is a run of this boot");
    node.end("c", 3);
    shows(&node, "Failed;", "c: Error 3 < OOMKilled 137, 5");

    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.tell(former(0, exit(3, at(0), at(0))));
    node.work();
    node.end("c", 1);
    node.work();
    // The first restart is immediate, as if there had been no boot before, and the newest exit counts.
    shows(&node, "Running;", "c: running < Error 1, 2");
}

#[test]
fn the_newest_exit_of_each_container_is_remembered_while_its_pod_exists() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c", "d"]));
    let remembered = |node: &Node| -> Vec<(String, u32, i32)> {
        let pod = node.state.pods.values().next().expect("the pod");
        former::ends(pod)
            .map(|(name, end)| (name.to_owned(), end.attempt, end.exit.code))
            .collect()
    };
    node.work();
    assert_eq!(remembered(&node), []);
    node.end("c", 1);
    assert_eq!(remembered(&node), [("c".to_owned(), 0, 1)]);
    node.work();
    assert_eq!(remembered(&node), [("c".to_owned(), 0, 1)], "while it runs");
    node.end("c", 2);
    node.end("d", 0);
    let both = [("c".to_owned(), 1, 2), ("d".to_owned(), 0, 0)];
    assert_eq!(remembered(&node), both);
    play(&mut node, "delete");
    assert_eq!(remembered(&node), [], "a deleted pod's exits are forgotten");
}

#[test]
fn addresses_are_the_pods_or_the_nodes_one_of_each_family() {
    let facts = NodeFacts {
        name: "n".into(),
        ips: ["192.168.1.2", "192.168.1.3", "fd00::2"]
            .map(|ip| ip.parse().expect("an address"))
            .into(),
    };
    let of_pod = ["10.88.0.5", "fd88::5", "fd88::6"].map(|ip| ip.parse().expect("an address"));
    for (host_network, expected) in [
        (false, ["10.88.0.5", "fd88::5"]),
        (true, ["192.168.1.2", "fd00::2"]),
    ] {
        let mut spec: PodSpec = pod("u1", "p", RestartPolicy::Always, &["c"]);
        spec.host_network = host_network;
        let mut node = Node::with(&Arc::new(spec));
        let Action::CreateSandbox { pod } = node.take() else {
            panic!("the sandbox comes first");
        };
        let ips = if host_network {
            vec![]
        } else {
            of_pod.to_vec()
        };
        node.tell(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxCreated {
                ips,
                next_attempts: Default::default(),
                warnings: vec![],
            },
        });
        let state = node.state.pods.values().next().expect("the pod");
        let status = status::pod(state, &facts, &node.state.settings)
            .status
            .expect("a status");
        let ips: Vec<String> = status
            .pod_ips
            .expect("addresses")
            .into_iter()
            .map(|ip| ip.ip)
            .collect();
        assert_eq!(ips, expected);
        assert_eq!(status.pod_ip.as_deref(), Some(expected[0]));
        assert_eq!(status.host_ip.as_deref(), Some("192.168.1.2"));
        let hosts: Vec<String> = status
            .host_ips
            .expect("addresses")
            .into_iter()
            .map(|ip| ip.ip)
            .collect();
        assert_eq!(hosts, ["192.168.1.2", "fd00::2"]);
    }
}

#[test]
fn mounts_say_whether_submounts_are_read_only_too() {
    let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
    let mount =
        |path: &str, read_only, below: Option<&str>| k8s_openapi::api::core::v1::VolumeMount {
            name: "v".into(),
            mount_path: path.into(),
            read_only,
            recursive_read_only: below.map(str::to_owned),
            ..Default::default()
        };
    let mounts = vec![
        mount("/a", None, None),
        mount("/b", Some(true), None),
        mount("/c", Some(true), Some("IfPossible")),
        mount("/d", Some(true), Some("Disabled")),
    ];
    Arc::make_mut(&mut spec.manifest)
        .change_spec(|spec| spec.containers[0].volume_mounts = Some(mounts));
    let node = Node::with(&Arc::new(spec));
    let shown = serde_json::to_value(node.shown()).expect("JSON");
    let shown = &shown["status"]["containerStatuses"][0]["volumeMounts"];
    let expected = serde_json::json!([
        { "name": "v", "mountPath": "/a" },
        { "name": "v", "mountPath": "/b", "readOnly": true, "recursiveReadOnly": "Disabled" },
        { "name": "v", "mountPath": "/c", "readOnly": true, "recursiveReadOnly": "Enabled" },
        { "name": "v", "mountPath": "/d", "readOnly": true, "recursiveReadOnly": "Disabled" },
    ]);
    assert_eq!(shown, &expected);
}

#[test]
fn a_stopping_pod_shows_its_deadline_and_a_restarted_container_its_count() {
    let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["i1"]);
    of(&mut spec, "c").restart_policy = Some(RestartPolicy::Never);
    let mut node = Node::with(&Arc::new(spec));
    play(&mut node, "i1=2 i1=0");
    // The container's own policy comes before the pod's.
    let line = "Running; i1: Completed 0 < Error 2, 1, ready=true started=false; c: running < -, 0";
    assert_eq!(node.line(), line);
    let begin = node.now;
    play(&mut node, "delete");
    let meta = node.shown().metadata;
    assert_eq!(meta.deletion_grace_period_seconds, Some(30));
    let until = meta.deletion_timestamp.expect("a time").0.as_second();
    assert_eq!(
        until,
        1_767_225_600 + i64::try_from(begin / 1000).expect("small") + 30
    );
}
