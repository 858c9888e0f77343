//! Endpoints of services, as tables over pods that start, become ready and terminate.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::view;
use crate::plan::event::Desired;
use crate::plan::{Action, Event, NodeFact, NodeState, PodFact, RunFact, Step, Task, decide};
use crate::spec::PodUid;
use crate::spec::cluster::{ClusterView, Endpoint};
use crate::spec::convert::{ConvertContext, documents};
use crate::types::{Effective, Exit};
use crate::types::{Stamp, Time, Wall};

const NOW: Stamp = Stamp {
    time: Time(1_000),
    wall: Wall(0),
};

struct Node(NodeState);

impl Node {
    /// A node that has just read these manifests.
    fn new(text: &str) -> Self {
        let mut node = Self(NodeState::default());
        node.read(text);
        node
    }

    fn read(&mut self, text: &str) {
        let context = ConvertContext::of("n");
        let found = documents(text.as_bytes(), "f", &context).unwrap();
        let desired = Desired {
            pods: found
                .pods
                .into_iter()
                .map(|p| (p.uid.clone(), Arc::new(p)))
                .collect(),
            services: found
                .services
                .into_iter()
                .map(|s| (s.spec.key.clone(), Arc::new(s.spec)))
                .collect(),
            ..Desired::default()
        };
        self.tell(Event::Node(NodeFact::DesiredChanged(desired)));
    }

    fn tell(&mut self, event: Event) {
        let before = (self.0.network_changes, self.view());
        self.0.apply(&event, NOW);
        assert!(
            before.0 != self.0.network_changes || before.1 == self.view(),
            "unsaid: {event:?}"
        );
    }

    fn uid(&self, name: &str) -> PodUid {
        let pods = self.0.pods.values();
        let found = pods.filter(|p| *p.spec.key.name == *name);
        found.map(|p| p.spec.uid.clone()).next().unwrap()
    }

    /// Begins the due actions, only this pod's if one is given.
    fn begin(&mut self, only: Option<&PodUid>) -> Vec<Action> {
        let steps = self.0.pods.values();
        let steps = steps.map(|pod| decide::next(pod, &self.0.settings, NOW.time));
        let actions = steps.filter_map(|step| match step {
            Step::Begin(Task::Act(action)) => Some(action),
            Step::Begin(_) | Step::Record(_) | Step::WakeAt(_) | Step::Rest => None,
        });
        let mut actions: Vec<Action> = actions.collect();
        actions.retain(|action| only.is_none_or(|uid| action.pod() == uid));
        for action in &actions {
            self.tell(Event::action_started(action.clone()));
        }
        actions
    }

    /// Makes the sandboxes of all pods, with these addresses.
    fn sandboxes(&mut self, ips: &[(&str, &[&str])]) {
        for action in self.begin(None) {
            let Action::CreateSandbox { pod } = action else {
                continue;
            };
            let name = self.0.pods[&pod].spec.key.name.clone();
            let ips = ips.iter().find(|(of, _)| *of == &*name);
            self.tell(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxCreated {
                    ips: ips.map_or(vec![], |(_, ips)| {
                        ips.iter().map(|ip| ip.parse().unwrap()).collect()
                    }),
                    next_attempts: BTreeMap::new(),
                    warnings: vec![],
                },
            });
        }
    }

    /// Starts the containers of this pod.
    fn start(&mut self, name: &str) {
        let uid = self.uid(name);
        for _ in 0..2 {
            for action in self.begin(Some(&uid)) {
                match action {
                    Action::EnsureImage { pod, container } => self.tell(Event::Pod {
                        uid: pod,
                        fact: PodFact::ImageReady {
                            container,
                            image_id: "i".into(),
                            volumes: Default::default(),
                            pulled: Default::default(),
                        },
                    }),
                    Action::StartContainer { instance, .. } => {
                        self.tell(Event::Run {
                            instance,
                            fact: RunFact::Started {
                                pid: 1,
                                at: NOW,
                                effective: Effective::default(),
                            },
                        });
                    }
                    _ => {}
                }
            }
        }
    }

    fn exit(&mut self, name: &str) {
        let pod = &self.0.pods[&self.uid(name)];
        let instance = pod.instance("c", pod.containers[0].run.attempt().unwrap());
        let exit = Exit {
            code: 0,
            signal: None,
            oom_killed: false,
            message: String::new(),
            started: NOW,
            finished: NOW,
        };
        self.tell(Event::Run {
            instance,
            fact: RunFact::Exited { exit },
        });
    }

    fn view(&self) -> ClusterView {
        let node = ["192.0.2.1", "fd00::1", "192.0.2.2"];
        view(&self.0, &node.map(|ip| ip.parse().unwrap()))
    }

    fn endpoints(&self, service: &str) -> Vec<Endpoint> {
        let services = self.view().services.into_iter();
        let mut found = services.filter(|s| *s.spec.key.name == *service);
        found.next().unwrap().endpoints
    }

    /// `pod@address` of each endpoint.
    fn behind(&self, service: &str) -> Vec<String> {
        let endpoints = self.endpoints(service).into_iter();
        endpoints
            .map(|e| format!("{}@{:?}", e.pod.name, e.ips))
            .collect()
    }
}

fn pod(name: &str, labels: &str, more: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{{labels}}}}}\nspec:\n  {more}\n  containers: [{{name: c, image: i, ports: [{{name: http, containerPort: 8080}}, {{name: dns, containerPort: 53, protocol: UDP}}]}}]\n"
    )
}

fn service(name: &str, spec: &str) -> String {
    format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

const WEB: &str = "selector: {app: web}, ports: [{port: 80}]";

#[test]
fn a_pod_is_behind_a_service_from_ready_until_it_goes() {
    let any = format!("{WEB}, publishNotReadyAddresses: true");
    let text = service("s", WEB) + &service("any", &any);
    let mut node = Node::new(&(pod("a", "app: web", "") + &text));
    assert!(node.behind("any").is_empty(), "no address yet");
    node.sandboxes(&[("a", &["10.0.0.2"])]);
    assert!(node.behind("s").is_empty(), "not ready yet");
    assert_eq!(node.behind("any"), ["a@[10.0.0.2]"]);
    node.start("a");
    assert_eq!(node.behind("s"), ["a@[10.0.0.2]"]);
    node.exit("a");
    assert!(node.behind("s").is_empty(), "about to be restarted");
    assert_eq!(node.behind("any"), ["a@[10.0.0.2]"]);
    node.start("a");
    assert_eq!(node.behind("s"), ["a@[10.0.0.2]"]);
    let headless = service("headless", &format!("{WEB}, clusterIP: None"));
    let text = text + &headless;
    node.read(&(pod("b", "app: web", "") + &text));
    assert_eq!(node.behind("s"), ["a@[10.0.0.2]"], "it still serves");
    assert!(
        node.behind("headless").is_empty(),
        "a pod that goes is not ready"
    );
    assert_eq!(node.behind("any"), ["a@[10.0.0.2]"]);
    assert!(!node.view().pods[0].ready);
    node.sandboxes(&[("b", &["10.0.0.3"])]);
    node.start("b");
    assert_eq!(node.behind("s"), ["b@[10.0.0.3]"], "another one is ready");
    node.exit("b");
    assert_eq!(node.behind("s"), ["a@[10.0.0.2]"]);
    node.read(&text);
    node.exit("a");
    assert!(node.behind("s").is_empty(), "it does not serve any more");
    for name in ["a", "b"] {
        let uid = node.uid(name);
        node.tell(Event::Pod {
            uid,
            fact: PodFact::SandboxLost,
        });
    }
    assert!(node.behind("any").is_empty());
    assert!(node.view().pods.is_empty());
}

#[test]
fn a_finished_pod_is_behind_no_service() {
    let any = format!("{WEB}, publishNotReadyAddresses: true");
    let text = pod("a", "app: web", "restartPolicy: Never") + &service("any", &any);
    let mut node = Node::new(&text);
    node.sandboxes(&[("a", &["10.0.0.2"])]);
    node.start("a");
    assert_eq!(node.behind("any"), ["a@[10.0.0.2]"]);
    node.exit("a");
    assert!(node.behind("any").is_empty());
}

#[test]
fn all_labels_of_the_selector_must_match_in_the_same_namespace() {
    let labels = "app: web, tier: front";
    let other = pod("x", labels, "").replace("{name: x,", "{name: x, namespace: other,");
    let pods = pod("b", labels, "") + &pod("a", "app: web", "") + &pod("c", labels, "") + &other;
    for (selector, expected) in [
        (
            "selector: {app: web}",
            vec!["a@[10.0.0.2]", "b@[10.0.0.3]", "c@[10.0.0.4]"],
        ),
        (
            "selector: {app: web, tier: front}",
            vec!["b@[10.0.0.3]", "c@[10.0.0.4]"],
        ),
        ("selector: {app: db}", vec![]),
        ("selector: {}", vec![]),
        (
            "type: ExternalName, externalName: a.b, selector: {app: web}",
            vec![],
        ),
    ] {
        let spec = format!("{selector}, ports: [{{port: 80}}]");
        let mut node = Node::new(&(pods.clone() + &service("s", &spec)));
        node.sandboxes(&[
            ("a", &["10.0.0.2"]),
            ("b", &["10.0.0.3"]),
            ("c", &["10.0.0.4"]),
            ("x", &["10.0.0.5"]),
        ]);
        for name in ["a", "b", "c", "x"] {
            node.start(name);
        }
        assert_eq!(node.behind("s"), expected, "{selector}");
        assert_eq!(node.view().pods.len(), 4);
    }
}

#[test]
fn ports_are_found_by_number_or_by_name_and_protocol() {
    let ports = "[{name: a, port: 80}, {name: b, port: 81, targetPort: http}, \
                 {name: c, port: 82, targetPort: dns}, {name: d, port: 83, targetPort: dns, protocol: UDP}, \
                 {name: e, port: 84, targetPort: 9}]";
    let spec = format!("selector: {{app: web}}, ports: {ports}");
    let mut node = Node::new(&(pod("a", "app: web", "") + &service("s", &spec)));
    node.sandboxes(&[("a", &["10.0.0.2"])]);
    node.start("a");
    let expected = [Some(80), Some(8080), None, Some(53), Some(9)];
    assert_eq!(node.endpoints("s")[0].ports, expected);
}

#[test]
fn ports_of_sidecars_have_names_too_and_those_of_other_init_containers_are_gone() {
    let inits = "initContainers: [{name: i, image: i, ports: [{name: http, containerPort: 1}, {name: once, containerPort: 2}]}, \
                 {name: s, image: s, restartPolicy: Always, ports: [{name: side, containerPort: 3}]}]";
    let ports = "[{name: a, port: 80, targetPort: http}, {name: b, port: 81, targetPort: once}, \
                 {name: c, port: 82, targetPort: side}]";
    let spec = format!("selector: {{app: web}}, publishNotReadyAddresses: true, ports: {ports}");
    let mut node = Node::new(&(pod("a", "app: web", inits) + &service("s", &spec)));
    node.sandboxes(&[("a", &["10.0.0.2"])]);
    let expected = [Some(8080), None, Some(3)];
    assert_eq!(node.endpoints("s")[0].ports, expected);
}

#[test]
fn addresses_are_one_a_family_ipv4_first_and_the_nodes_for_pods_on_its_network() {
    let text = pod("a", "app: web", "")
        + &pod("h", "app: web", "hostNetwork: true")
        + &pod("none", "app: web", "")
        + &service("s", WEB);
    let mut node = Node::new(&text);
    node.sandboxes(&[("a", &["fd00::2", "10.0.0.2"])]);
    for name in ["a", "h", "none"] {
        node.start(name);
    }
    let expected = ["a@[10.0.0.2, fd00::2]", "h@[192.0.2.1, fd00::1]"];
    assert_eq!(node.behind("s"), expected);
    let alone = view(&node.0, &[]);
    assert_eq!(alone.pods.len(), 1, "no address, no entry");
}

#[test]
fn an_endpoint_has_a_name_only_with_hostname_and_this_service_as_subdomain() {
    for (more, name, subdomain) in [
        ("", None, None),
        ("hostname: web-0", None, None),
        ("subdomain: s", None, Some("s")),
        ("{hostname: web-0, subdomain: other}", None, Some("other")),
        ("{hostname: web-0, subdomain: s}", Some("web-0"), Some("s")),
        (
            "{hostname: web-0, subdomain: s, hostnameOverride: other}",
            Some("web-0"),
            Some("s"),
        ),
    ] {
        let lines = more.trim_matches(['{', '}']).replace(", ", "\n  ");
        let text = pod("a", "app: web", &lines) + &service("s", WEB);
        let mut node = Node::new(&text);
        node.sandboxes(&[("a", &["10.0.0.2"])]);
        node.start("a");
        assert_eq!(node.endpoints("s")[0].hostname.as_deref(), name, "{more}");
        let entry = node.view().pods.remove(0);
        assert_eq!(entry.subdomain.as_deref(), subdomain, "{more}");
        let own = match more {
            more if more.contains("Override") => "other",
            more if more.contains("web-0") => "web-0",
            _ => "a",
        };
        assert_eq!(entry.hostname, own, "{more}");
    }
}

#[test]
fn changed_labels_apply_to_a_running_pod() {
    let mut node = Node::new(&(pod("a", "app: db", "") + &service("s", WEB)));
    node.sandboxes(&[("a", &["10.0.0.2"])]);
    node.start("a");
    assert!(node.behind("s").is_empty());
    node.read(&(pod("a", "app: web", "") + &service("s", WEB)));
    assert_eq!(node.behind("s"), ["a@[10.0.0.2]"]);
}
