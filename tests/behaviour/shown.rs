//! What is shown beside states and conditions: addresses, generations, mounts, ports, and what waits for what.

use std::sync::Arc;

use coracle::plan::retry::Wait;
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{Event, network};
use coracle::spec::{RestartPolicy, TargetPort};
use k8s_openapi::api::core::v1 as core;

use crate::node::Node;
use crate::pods::{desired, pod, service};

#[test]
fn a_status_has_the_nodes_addresses_the_generation_and_the_mounts() {
    for (generation, observed) in [(None, None), (Some(0), None), (Some(3), Some(3))] {
        let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
        let manifest = Arc::make_mut(&mut spec.manifest);
        manifest.metadata.generation = generation;
        let containers = &mut manifest.spec.as_mut().unwrap().containers;
        containers[0].volume_mounts = Some(vec![core::VolumeMount {
            name: "v".to_owned(),
            mount_path: "/v".to_owned(),
            ..core::VolumeMount::default()
        }]);
        let mut node = Node::with(&Arc::new(spec));
        node.work();
        let pod = node.state.pods.values().next().unwrap();
        let ips = ["192.168.1.2", "fd00::2"].map(|ip| ip.parse().unwrap());
        let facts = NodeFacts {
            name: "node1".to_owned(),
            ips: ips.to_vec(),
        };
        let shown = status::pod(pod, &facts, &node.state.settings);
        let status = shown.status.unwrap();
        assert_eq!(status.observed_generation, observed);
        let hosts = status.host_ips.unwrap();
        let hosts: Vec<_> = hosts.iter().map(|host| host.ip.as_str()).collect();
        assert_eq!(hosts, ["192.168.1.2", "fd00::2"]);
        let mounts = &status.container_statuses.unwrap()[0].volume_mounts;
        let mount = &mounts.as_ref().unwrap()[0];
        assert_eq!(
            (mount.name.as_str(), mount.mount_path.as_str()),
            ("v", "/v")
        );
    }
}

#[test]
fn endpoints_have_the_names_of_ports_that_have_one() {
    let spec = Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"]));
    let mut wanted = desired(&[&spec]);
    let mut service = service("s", true);
    let mut named = service.ports[0].clone();
    (named.name, named.target) = ("web".to_owned(), TargetPort::Number(80));
    service.ports.push(named);
    wanted.services = [(service.key.clone(), Arc::new(service))].into();
    let mut node = Node::new(300_000);
    node.tell(Event::DesiredChanged(wanted));
    node.work();
    let view = network::view(&node.state, &[]);
    let shown = status::endpoints(&view.services[0]);
    let ports = shown.subsets.unwrap().remove(0).ports.unwrap();
    let ports: Vec<_> = ports.iter().map(|p| (p.name.as_deref(), p.port)).collect();
    assert_eq!(ports, [(None, 8080), (Some("web"), 80)]);
}

#[test]
fn the_second_loss_of_a_sandbox_in_a_row_waits_a_second_and_the_third_two() {
    let spec = Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"]));
    let mut node = Node::with(&spec);
    node.work();
    let lost = || Event::SandboxLost {
        pod: spec.uid.clone(),
    };
    node.tell(lost());
    node.work();
    for waits in [1_000, 2_000, 4_000] {
        node.tell(lost());
        assert_eq!(node.wake_at(), Some(node.now + waits));
        node.wait(waits);
        node.work();
    }
    node.wait(60_000);
    node.tell(lost());
    assert!(
        !node.open.is_empty(),
        "one that lived for long is replaced at once"
    );
}

#[test]
fn what_does_not_wait_any_more_is_said() {
    let name = || "c".to_owned();
    for (wait, text) in [
        (Wait::Crash(name()), "container c is started now"),
        (Wait::Create(name()), "container c is created now"),
        (
            Wait::Image(name()),
            "the image of container c is looked for now",
        ),
        (Wait::Sandbox, "the sandbox is made now"),
    ] {
        assert_eq!(wait.to_string(), text);
    }
}
