//! A container starts when its devices are there, and restarts when one is back if its manifest asks for that. Its pod
//! shows what is missing.

use std::sync::Arc;

use coracle::plan::event::*;
use coracle::plan::memory::PodMemory;
use coracle::plan::{Action, Event, PodFact, RunFact};
use coracle::spec::convert::{ConvertContext, documents};
use coracle::spec::{PodSpec, PodUid};
use coracle::types::{DeviceNode, DeviceSight};

use crate::node::Node;
use crate::pods::{at, exit};

/// A pod whose container asks for this; `more` are lines of its spec.
fn asking(devices: &str, more: &str) -> Arc<PodSpec> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, annotations: {{coracle.dev/devices: '{devices}'}}}}\n\
         spec:\n{more}  containers: [{{name: c, image: 'img:1'}}]\n"
    );
    let context = ConvertContext::of("node1");
    let mut found = documents(text.as_bytes(), "f", &context).expect("valid");
    Arc::new(found.pods.remove(0))
}

/// `there 1`: the port with this inode and minor; `gone`, or `refused`.
fn sight(text: &str) -> DeviceSight {
    match text.split_once(' ') {
        Some((_, inode)) => DeviceSight::There(vec![port(inode.parse().unwrap(), 0)]),
        None if text == "gone" => DeviceSight::Missing("`/dev/port` is not there".to_owned()),
        None => DeviceSight::Refused("`/dev/port` is a pipe, not a device".to_owned()),
    }
}

fn port(inode: u64, minor: u32) -> DeviceNode {
    DeviceNode {
        path: "/dev/port".to_owned(),
        block: false,
        major: 188,
        minor,
        inode,
    }
}

fn uid(node: &Node) -> PodUid {
    node.state.pods.keys().next().unwrap().clone()
}

/// The node finds this, and acts on it.
fn see(node: &mut Node, sight: DeviceSight) {
    node.now += 10;
    if let DeviceSight::There(nodes) = &sight {
        // What a container would be started with.
        node.effective.devices = [("/dev/port".to_owned(), nodes.clone())].into();
    }
    let sights = [("/dev/port".to_owned(), sight)].into();
    let fact = PodFact::DevicesSeen { sights };
    let uid = uid(node);
    node.tell(Event::Pod { uid, fact });
    node.work();
}

/// What is shown of the container and of the condition, and what has been said since the last time.
fn shown(node: &mut Node) -> String {
    let status = node.shown().status.unwrap();
    let all = status.conditions.unwrap();
    let devices = all.iter().find(|c| c.type_ == "DevicesReady").unwrap();
    let parts = [devices.reason.clone(), devices.message.clone()];
    let why: Vec<String> = parts.into_iter().flatten().collect();
    let c = &status.container_statuses.unwrap()[0];
    let state = crate::node::word(c.state.as_ref().unwrap());
    let said: Vec<String> = node
        .notices
        .drain(..)
        .map(|n| n.reason.to_string())
        .collect();
    format!(
        "{} {state}; {} {}; {}",
        c.restart_count,
        devices.status,
        why.join(": "),
        said.join(" ")
    )
}

const HELD: &str = "waiting for a device: `/dev/port` is not there";

#[test]
fn a_container_waits_for_its_device_and_the_pod_shows_when_it_goes() {
    let held = format!("0 DeviceMissing: {HELD}; False DeviceMissing: container c: {HELD}");
    let gone = "False DeviceMissing: container c: `/dev/port` is gone";
    // The manifest's entry, what the node sees in turn, and what is shown after each.
    let table: &[(&str, &[(&str, &str)])] = &[
        (
            "/dev/port",
            &[
                ("gone", &format!("{held}; DeviceMissing")),
                ("gone", &format!("{held}; ")),
                ("there 1", "0 running; True ; DevicesReady Created Started"),
                ("gone", &format!("0 running; {gone}; DeviceMissing")),
                ("refused", &format!("0 running; {gone}; ")),
                ("there 2", "0 running; True ; DevicesReady"),
            ],
        ),
        (
            "/dev/port:restart",
            &[
                ("there 1", "0 running; True ; Created Started"),
                ("gone", &format!("0 running; {gone}; DeviceMissing")),
                ("there 2", "0 running; True ; DevicesReady Killing"),
            ],
        ),
        (
            "/dev/port:optional",
            &[
                ("gone", "0 running; True ; Created Started"),
                ("there 1", "0 running; True ; "),
            ],
        ),
        (
            "/dev/port:optional:restart",
            &[
                ("gone", "0 running; True ; Created Started"),
                ("there 1", "0 running; True ; Killing"),
            ],
        ),
        (
            "/dev/port:optional",
            &[(
                "refused",
                "0 DeviceRefused: `/dev/port` is a pipe, not a device; \
                 False DeviceRefused: container c: `/dev/port` is a pipe, not a device; DeviceRefused",
            )],
        ),
    ];
    for (devices, steps) in table {
        let mut node = Node::with(&asking(devices, ""));
        node.work();
        // The image is looked for meanwhile.
        let unknown = "0 ContainerCreating; False DevicesUnknown; Pulled";
        assert_eq!(shown(&mut node), unknown, "{devices}");
        assert_eq!(node.foresee().1, None, "nothing is asked again and again");
        for (seen, expected) in *steps {
            see(&mut node, sight(seen));
            assert_eq!(shown(&mut node), *expected, "{devices}: {seen}");
        }
    }
}

#[test]
fn a_container_restarts_for_a_device_that_is_back_whatever_its_policy() {
    for policy in ["Always", "Never"] {
        let more = format!("  restartPolicy: {policy}\n");
        let mut node = Node::with(&asking("/dev/port:restart", &more));
        node.work();
        see(&mut node, sight("there 1"));
        see(&mut node, sight("gone"));
        see(&mut node, sight("there 1"));
        assert!(
            shown(&mut node).starts_with("0 running; True"),
            "the same file"
        );
        see(&mut node, sight("there 2"));
        let instance = node.state.pods.values().next().unwrap().instance("c", 0);
        let exit = exit(143, at(node.now), at(node.now));
        let fact = RunFact::Exited { exit };
        node.tell(Event::Run { instance, fact });
        node.work();
        let now = shown(&mut node);
        assert!(now.starts_with("1 running; True"), "{policy}: {now}");
        // The same report, as after an agent restart, restarts nothing.
        see(&mut node, sight("there 2"));
        assert_eq!(shown(&mut node), "1 running; True ; ", "{policy}");
    }
}

#[test]
fn a_device_with_other_numbers_is_not_the_one_that_the_container_has() {
    let mut node = Node::with(&asking("/dev/port", ""));
    node.work();
    see(&mut node, sight("there 1"));
    shown(&mut node);
    see(&mut node, DeviceSight::There(vec![port(2, 1)]));
    assert_eq!(
        shown(&mut node),
        "0 running; False DeviceMissing: container c: `/dev/port` is now c 188:1, \
         and the container has c 188:0; DeviceMissing"
    );
}

#[test]
fn a_start_that_failed_for_want_of_a_device_is_tried_again_when_something_changes() {
    let mut node = Node::with(&asking("/dev/port", ""));
    node.work();
    node.now += 10;
    let sights = [("/dev/port".to_owned(), sight("there 1"))].into();
    let pod = uid(&node);
    let fact = PodFact::DevicesSeen { sights };
    node.tell(Event::Pod { uid: pod, fact });
    let Action::StartContainer { instance, .. } = node.take() else {
        panic!("it starts");
    };
    let fact = RunFact::StartFailed {
        failure: StartFailure::Config,
        message: "`/dev/port` is not there".to_owned(),
    };
    node.tell(Event::Run { instance, fact });
    node.work();
    assert!(shown(&mut node).contains("CreateContainerConfigError"));
    see(&mut node, sight("gone"));
    see(&mut node, sight("there 2"));
    assert!(
        shown(&mut node).starts_with("0 running; True"),
        "{}",
        node.now
    );
}

#[test]
fn an_ephemeral_container_waits_for_nothing_and_an_init_container_does() {
    let inits = "  initContainers: [{name: i, image: 'img:1'}]\n";
    let spec = asking("/dev/port", inits);
    let mut node = Node::with(&spec);
    node.work();
    see(&mut node, sight("gone"));
    let status = node.shown().status.unwrap();
    let init = &status.init_container_statuses.unwrap()[0];
    let word = crate::node::word(init.state.as_ref().unwrap());
    assert_eq!(word, format!("DeviceMissing: {HELD}"));
    assert!(shown(&mut node).starts_with("0 PodInitializing"));
    let added = crate::pods::with_ephemeral(&spec, "e", None);
    let uid = uid(&node);
    node.tell(Event::Pod {
        uid,
        fact: PodFact::EphemeralAdded {
            spec: Arc::new(added),
        },
    });
    node.work();
    let state = node.state.pods.values().next().unwrap();
    assert!(state.container("e").unwrap().run.is_running());
    assert!(!state.container("i").unwrap().run.is_running());
}

#[test]
fn what_is_known_of_a_device_survives_an_agent_restart() {
    let spec = asking("/dev/port:restart", "");
    let mut node = Node::with(&spec);
    node.work();
    see(&mut node, sight("there 1"));
    see(&mut node, sight("gone"));
    let memory = PodMemory::of(node.state.pods.values().next().unwrap());
    let text = serde_json::to_string(&memory).expect("JSON");
    let again: PodMemory = serde_json::from_str(&text).expect("JSON");
    assert_eq!(again, memory);
    let mut node = crate::node::reborn(&node, &[&spec], crate::node::ready());
    // Until the node has looked.
    assert!(shown(&mut node).starts_with("0 running; False DevicesUnknown"));
    see(&mut node, sight("gone"));
    assert!(shown(&mut node).contains("container c: `/dev/port` is gone"));
    see(&mut node, sight("there 1"));
    assert!(shown(&mut node).starts_with("0 running; True"));
    see(&mut node, sight("there 2"));
    assert!(shown(&mut node).contains("Killing"));
}

#[test]
fn an_edit_of_the_devices_needs_a_new_pod() {
    use coracle::plan::edit::{self, Edit};
    let (old, new) = (asking("/dev/port", ""), asking("/dev/other", ""));
    let paths = vec!["metadata.annotations[coracle.dev/devices]".to_owned()];
    assert_eq!(edit::between(&old, &new), Edit::Replace(paths));
    assert_ne!(old.template, new.template);
}
