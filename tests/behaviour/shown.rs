//! What is shown beside states and conditions: addresses, generations, mounts, ports, and the reasons for waiting.

use std::sync::Arc;

use coracle::plan::event::{ImageFailure, ProbeOutcome};
use coracle::plan::recovered::RecoveredSandbox;
use coracle::plan::retry::Wait;
use coracle::plan::status::{self, NodeFacts};
use coracle::plan::{Action, Event, NodeFact, PodFact, RunFact, network};
use coracle::spec::{PodUid, ProbeKind, Protocol, Reason, RestartPolicy, TargetPort};
use coracle::types::{Effective, Exit, LinuxUser, StopSignal};
use k8s_openapi::api::core::v1 as core;

use crate::node::{Node, one, ready, reborn};
use crate::pods::{at, desired, of, pod, probing, recovered, service, with_inits};

#[test]
fn a_status_has_the_nodes_addresses_the_generation_and_the_mounts() {
    for (generation, observed) in [(None, None), (Some(0), None), (Some(3), Some(3))] {
        let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
        let manifest = Arc::make_mut(&mut spec.manifest);
        manifest.change_metadata(|metadata| metadata.generation = generation);
        let mount = core::VolumeMount {
            name: "v".to_owned(),
            mount_path: "/v".to_owned(),
            ..core::VolumeMount::default()
        };
        manifest.change_spec(|spec| spec.containers[0].volume_mounts = Some(vec![mount]));
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
fn endpoints_carry_the_names_of_named_ports() {
    let spec = Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"]));
    let mut wanted = desired(&[&spec]);
    let mut service = service("s", true);
    let mut named = service.ports[0].clone();
    (named.name, named.target) = ("web".to_owned(), TargetPort::Number(80));
    let mut udp = named.clone();
    (udp.name, udp.protocol) = ("dns".to_owned(), Protocol::Udp);
    service.ports.extend([named, udp]);
    wanted.services = [(service.key.clone(), Arc::new(service))].into();
    let mut node = Node::new(300_000);
    node.tell(Event::Node(NodeFact::DesiredChanged(wanted)));
    node.work();
    let view = network::view(&node.state, &[]);
    let shown = status::endpoints(&view.services[0]);
    let ports = shown.subsets.unwrap().remove(0).ports.unwrap();
    let port = |p: &core::EndpointPort| {
        (
            p.name.clone().unwrap_or_default(),
            p.port,
            p.protocol.clone(),
        )
    };
    let ports: Vec<_> = ports.iter().map(port).collect();
    let tcp = || Some("TCP".to_owned());
    assert_eq!(
        ports,
        [
            (String::new(), 8080, tcp()),
            ("web".to_owned(), 80, tcp()),
            ("dns".to_owned(), 80, Some("UDP".to_owned())),
        ]
    );
}

#[test]
fn the_second_loss_of_a_sandbox_in_a_row_waits_a_second_and_the_third_two() {
    let spec = Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"]));
    let mut node = Node::with(&spec);
    node.work();
    let lost = || Event::Pod {
        uid: spec.uid.clone(),
        fact: PodFact::SandboxLost,
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
        "a sandbox that lived for long is replaced at once"
    );
}

#[test]
fn the_end_of_a_wait_is_described() {
    let name = || "c".to_owned();
    for (wait, text) in [
        (Wait::Crash(name()), "starting container c now"),
        (Wait::Create(name()), "creating container c now"),
        (
            Wait::Image(name()),
            "looking for the image of container c now",
        ),
        (Wait::Sandbox, "creating the sandbox now"),
    ] {
        assert_eq!(wait.to_string(), text);
    }
}

#[test]
fn a_new_sandbox_runs_the_containers_that_had_not_done_their_work() {
    use RestartPolicy::{Always, Never, OnFailure};
    for (pods, own, code, again) in [
        (Always, None, 0, true),
        (OnFailure, None, 0, false),
        (OnFailure, None, 1, true),
        (Always, Some(OnFailure), 0, false),
        (Always, Some(OnFailure), 1, true),
        (Always, Some(Never), 0, true),
        (Always, Some(Never), 1, true),
    ] {
        let mut spec = pod("u1", "p", pods, &["c", "d"]);
        of(&mut spec, "c").restart_policy = own;
        let spec = Arc::new(spec);
        let mut node = Node::with(&spec);
        node.work();
        // The second exit leads to a back-off.
        for _ in 0..2 {
            if node.line().contains("; c: running") {
                node.end("c", code);
                node.work();
            }
        }
        assert!(!node.line().contains("; c: running"), "{}", node.line());
        let pod = spec.uid.clone();
        node.tell(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxLost,
        });
        node.work();
        node.wait(300_000);
        node.work();
        let line = node.line();
        assert!(line.contains("; d: running"), "{line}");
        assert_eq!(
            line.contains("; c: running"),
            again,
            "{pods:?} {own:?} {code}: {line}"
        );
    }
}

#[test]
fn a_new_agent_reports_a_lost_sandbox_unless_none_is_needed() {
    let spec = Arc::new(pod("u1", "p", RestartPolicy::OnFailure, &["c"]));
    let reports = |node: &Node, sandbox| {
        let new = reborn(node, &[&spec], sandbox);
        new.state.pods.len() == 1 && {
            let mut again = Node::new(300_000);
            again.now = node.now;
            let pod = node.state.pods.values().next().unwrap();
            let found = recovered(pod, RecoveredSandbox::Lost);
            again.tell(Event::recovered(found));
            again.said().iter().any(|s| s.contains("SandboxChanged"))
        }
    };
    let mut node = Node::with(&spec);
    node.work();
    assert!(reports(&node, ready()));
    let mut done = Node::with(&spec);
    done.work();
    done.end("c", 0);
    done.work();
    assert!(!reports(&done, RecoveredSandbox::Lost), "it has finished");
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    assert!(!reports(&node, RecoveredSandbox::Lost), "it is going away");
}

#[test]
fn an_image_that_fails_again_backs_off() {
    let mut node = Node::with(&Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"])));
    for (failure, backs_off) in [
        (ImageFailure::Pull, false),
        (ImageFailure::Pull, true),
        (ImageFailure::Inspect, false),
    ] {
        while !matches!(node.open[..], [Action::EnsureImage { .. }]) {
            match node.open.is_empty() {
                true => node.wait(node.wake_at().unwrap() - node.now),
                false => node.answer_one(),
            }
        }
        let Action::EnsureImage { pod, container } = node.take() else {
            panic!("the image is ensured");
        };
        node.notices.clear();
        node.tell(Event::Pod {
            uid: pod,
            fact: PodFact::ImageFailed {
                container,
                volume: None,
                failure,
                message: "no".into(),
            },
        });
        let text = "Normal BackOff Back-off pulling image \"img:1\"".to_owned();
        assert_eq!(node.said().contains(&text), backs_off, "{failure:?}");
    }
}

#[test]
fn a_lost_run_and_one_that_never_began_differ_from_programs_that_exit_alike() {
    let (lost, failed) = (
        Exit::lost(at(1), at(2)),
        Exit::not_started("no".into(), at(2)),
    );
    assert!(lost.is_lost() && !lost.is_start_error());
    assert!(failed.is_start_error() && !failed.is_lost());
    let other = || "killed".to_owned();
    for exit in [
        Exit {
            code: 1,
            ..lost.clone()
        },
        Exit {
            signal: Some(9),
            ..lost.clone()
        },
        Exit {
            message: other(),
            ..lost.clone()
        },
        Exit {
            code: 127,
            ..failed.clone()
        },
        Exit {
            signal: Some(9),
            ..failed.clone()
        },
        Exit {
            started: at(1),
            ..failed.clone()
        },
    ] {
        assert!(!exit.is_lost() && !exit.is_start_error(), "{exit:?}");
    }
}

#[test]
fn a_stop_signal_that_could_not_be_sent_is_sent_again_and_does_not_delay_the_kill() {
    let spec = Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"]));
    let mut node = Node::with(&spec);
    node.work();
    let begin = node.now;
    node.tell(Event::Node(NodeFact::DesiredChanged(Default::default())));
    let mut sent = vec![];
    while sent.last() != Some(&StopSignal::Kill) {
        let Action::Signal {
            instance, signal, ..
        } = node.take()
        else {
            panic!("a signal");
        };
        sent.push(signal);
        node.tell(Event::Run {
            instance,
            fact: RunFact::SignalFailed {
                error: "busy".into(),
            },
        });
        if node.open.is_empty() {
            node.wait(node.wake_at().unwrap() - node.now);
        }
    }
    assert!(sent.len() > 2, "{sent:?}");
    assert!(
        sent[..sent.len() - 1]
            .iter()
            .all(|s| *s == StopSignal::Stop)
    );
    assert!(node.now >= begin + 30_000, "after the grace period");
    assert!(node.now < begin + 60_000, "and not much later");
}

#[test]
fn a_pod_in_a_new_sandbox_is_pending_until_its_init_containers_finish_again() {
    for name in ["i1", "s1"] {
        let mut spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &[name]);
        if name == "s1" {
            spec.init_containers[0].probes.startup = Some(probing(1_000, 3));
        }
        let spec = Arc::new(spec);
        let mut node = Node::with(&spec);
        let phase = |node: &Node| node.shown().status.unwrap().phase.unwrap();
        let through = |node: &mut Node| {
            node.work();
            assert_eq!(phase(node), "Pending", "{}", node.line());
            match name {
                "i1" => node.end("i1", 0),
                _ => assert_eq!(node.probe(&ProbeOutcome::Success), [ProbeKind::Startup]),
            }
            node.work();
            assert_eq!(phase(node), "Running", "{}", node.line());
        };
        through(&mut node);
        node.end("c", 1);
        node.tell(Event::Pod {
            uid: spec.uid.clone(),
            fact: PodFact::SandboxLost,
        });
        through(&mut node);
    }
}

#[test]
fn an_endpoint_has_the_pods_host_name_in_the_services_domain() {
    for (subdomain, expected) in [(Some("s"), Some("own")), (Some("t"), None), (None, None)] {
        let mut spec = pod("u1", "p", RestartPolicy::Always, &["c"]);
        spec.hostname = "own".into();
        spec.given_hostname = Some("own".into());
        spec.given_subdomain = subdomain.map(str::to_owned);
        let mut wanted = desired(&[&Arc::new(spec)]);
        let service = service("s", true);
        wanted.services = [(service.key.clone(), Arc::new(service))].into();
        let mut node = Node::new(300_000);
        node.tell(Event::Node(NodeFact::DesiredChanged(wanted)));
        node.work();
        let shown = status::endpoints(&network::view(&node.state, &[]).services[0]);
        let addresses = shown.subsets.unwrap().remove(0).addresses.unwrap();
        assert_eq!(addresses[0].hostname.as_deref(), expected, "{subdomain:?}");
        let of = addresses[0].target_ref.as_ref().unwrap();
        let text = |word: &Option<String>| word.clone().unwrap_or_default();
        let of = [&of.kind, &of.namespace, &of.name].map(text);
        assert_eq!(of, ["Pod", "default", "p"]);
    }
}

#[test]
fn the_effective_settings_of_a_run_survive_an_agent_restart() {
    let effective = Effective {
        images: Default::default(),
        devices: Default::default(),
        user: Some(LinuxUser {
            uid: 1000,
            gid: 2000,
            groups: vec![2000, 3000],
        }),
        stop_signal: Some("SIGQUIT".to_owned()),
    };
    let spec = Arc::new(pod("u1", "p", RestartPolicy::Always, &["c"]));
    let mut node = Node::with(&spec);
    let shown = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        let shown = status::pod(pod, &NodeFacts::default(), &node.state.settings);
        let status = shown.status.unwrap().container_statuses.unwrap().remove(0);
        let linux = status.user.and_then(|user| user.linux);
        let ids = linux.map(|user| (user.uid, user.gid, user.supplemental_groups.unwrap()));
        (ids, status.stop_signal)
    };
    assert_eq!(shown(&node), (None, None));
    node.effective = effective;
    node.work();
    let expected = (
        Some((1000, 2000, vec![2000, 3000])),
        Some("SIGQUIT".to_owned()),
    );
    assert_eq!(shown(&node), expected);
    let next = reborn(&node, &[&spec], RecoveredSandbox::Ready { ips: vec![] });
    assert_eq!(shown(&next), expected);
}

#[test]
fn the_resources_of_a_container_are_shown_from_its_first_start_on() {
    let mut node = Node::with(&Arc::new(pod("u1", "p", RestartPolicy::Never, &["c"])));
    let given = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        let shown = status::pod(pod, &NodeFacts::default(), &node.state.settings);
        let status = shown.status.unwrap().container_statuses.unwrap().remove(0);
        status.resources.is_some()
    };
    assert!(!given(&node), "it waits");
    node.work();
    assert!(given(&node));
    node.end("c", 0);
    node.work();
    assert!(given(&node), "it has ended");
}

#[test]
fn a_warning_is_reported_for_the_container_or_the_pod_and_changes_nothing() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.work();
    let before = node.state.pods.clone();
    for (container, path) in [(None, None), (Some("c"), Some("spec.containers{c}"))] {
        node.notices.clear();
        node.tell(Event::Pod {
            uid: PodUid::from("u1"),
            fact: PodFact::Warned {
                container: container.map(str::to_owned),
                warnings: vec![(Reason::CgroupMismatch, "cpu.max has changed".to_owned())],
            },
        });
        assert_eq!(node.said(), ["Warning CgroupMismatch cpu.max has changed"]);
        assert_eq!(node.notices[0].field_path.as_deref(), path);
    }
    assert_eq!(node.state.pods, before);
}
