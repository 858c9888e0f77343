//! Resizes: cpu and memory that are edited while the pod runs.

#[path = "resize/refused.rs"]
mod refused;

use std::sync::Arc;

use coracle::plan::resize::Swapping;
use coracle::plan::{Action, Event, NodeFact, PodFact, Settings, status};
use coracle::spec::convert::{ConvertContext, documents};
use coracle::spec::{EnvValue, Hook, PodSpec, QosClass, RestartPolicy};
use k8s_openapi::api::core::v1::ContainerStatus;

use crate::node::{Node, ready, reborn, small};
use crate::pods::{desired, of, pod, set_image, set_resources, with_inits};

pub(crate) const MIB: u64 = 1 << 20;

/// A pod with this much for `c`, and 100m and 10 MiB for `d`.
pub(crate) fn sized(uid: &str, cpu_milli: u64, mib: u64) -> PodSpec {
    let mut spec = pod(uid, uid, RestartPolicy::Always, &["c", "d"]);
    set_resources(&mut spec, "d", 100, 10 * MIB);
    set_resources(&mut spec, "c", cpu_milli, mib * MIB);
    spec
}

/// A pod of one container.
pub(crate) fn alone(uid: &str, mib: u64) -> PodSpec {
    let mut spec = pod(uid, uid, RestartPolicy::Always, &["c"]);
    set_resources(&mut spec, "c", 100, mib * MIB);
    spec
}

fn restarting(mut spec: PodSpec) -> PodSpec {
    of(&mut spec, "c").resize_restarts.memory = true;
    spec
}

impl Node {
    pub(crate) fn small(pods: &[&Arc<PodSpec>]) -> Self {
        let mut node = Self::new(300_000);
        node.tell(Event::Node(NodeFact::SettingsChanged(small())));
        node.want(pods);
        node.work();
        node
    }

    pub(crate) fn want(&mut self, pods: &[&Arc<PodSpec>]) {
        self.tell(Event::Node(NodeFact::DesiredChanged(desired(pods))));
    }

    /// Answers that the open resize failed.
    pub(crate) fn fail_resize(&mut self, error: &str) {
        let Action::Resize { pod, .. } = self.take() else {
            panic!("a resize");
        };
        let error = error.to_owned();
        self.tell(Event::Pod {
            uid: pod,
            fact: PodFact::ResizeFailed { error },
        });
    }

    pub(crate) fn container(&self, name: &str) -> ContainerStatus {
        let mut all = self
            .shown()
            .status
            .unwrap()
            .container_statuses
            .unwrap()
            .into_iter();
        all.find(|c| c.name == name).unwrap()
    }

    /// Memory of `c`: requested in the spec, allocated, and actual.
    pub(crate) fn memory(&self) -> [u64; 3] {
        let bytes = |q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
            let text = &q.0;
            match text.strip_suffix("Mi") {
                Some(mib) => mib.parse().unwrap(),
                None => text.parse::<u64>().unwrap() / MIB,
            }
        };
        let status = self.container("c");
        let spec = self.shown().spec.unwrap().containers[0].resources.clone();
        [
            bytes(&spec.unwrap().requests.unwrap()["memory"]),
            bytes(&status.allocated_resources.unwrap()["memory"]),
            bytes(&status.resources.unwrap().requests.unwrap()["memory"]),
        ]
    }

    /// The conditions about resizes.
    pub(crate) fn resizing(&self) -> String {
        let conditions = self.shown().status.unwrap().conditions.unwrap();
        let some = conditions
            .into_iter()
            .filter(|c| c.type_.starts_with("PodResize"));
        let words = some.map(|c| {
            let why = [c.reason, c.message].into_iter().flatten();
            format!("{} {}", c.type_, why.collect::<Vec<_>>().join(": "))
        });
        let words: Vec<_> = words.collect();
        words.join("; ").trim_end().to_owned()
    }

    pub(crate) fn reasons(&self) -> Vec<String> {
        let all = self.notices.iter().map(|n| n.reason.to_string());
        all.filter(|r| r.starts_with("Resize") || r == "Killing")
            .collect()
    }
}

#[test]
fn containers_are_resized_without_a_restart() {
    let mut node = Node::small(&[&Arc::new(sized("u1", 200, 20))]);
    let wanted = Arc::new(sized("u1", 300, 30));
    node.want(&[&wanted]);
    let containers = wanted.containers.iter();
    let containers = containers.map(|c| (c.name.clone(), c.resources));
    let order = Action::Resize {
        pod: wanted.uid.clone(),
        to: wanted.resources,
        containers: containers.collect(),
    };
    assert_eq!(node.open, [order]);
    assert_eq!(node.resizing(), "PodResizeInProgress");
    assert_eq!(node.memory(), [30, 30, 20]);
    node.work();
    assert_eq!(node.resizing(), "");
    assert_eq!(node.memory(), [30, 30, 30]);
    assert_eq!(node.line(), "Running; c: running < -, 0; d: running < -, 0");
    assert_eq!(node.reasons(), ["ResizeStarted", "ResizeCompleted"]);
    let said = node.said().pop().unwrap();
    let text = "Normal ResizeCompleted Pod resize completed: {\"containers\":[{\"name\":\"c\",";
    assert!(said.starts_with(text), "{said}");
    // Later runs have it from the start.
    node.end("c", 1);
    node.work();
    assert_eq!(node.memory(), [30, 30, 30]);
    assert_eq!(node.reasons().len(), 2);
}

#[test]
fn a_resize_restarts_the_container_if_its_policy_says_so() {
    let mut node = Node::small(&[&Arc::new(restarting(sized("u1", 200, 30)))]);
    // Only memory needs a restart.
    node.want(&[&Arc::new(restarting(sized("u1", 300, 30)))]);
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0; d: running < -, 0");
    for (restarts, mib) in [(1, 40), (2, 20)] {
        node.want(&[&Arc::new(restarting(sized("u1", 300, mib)))]);
        assert!(
            matches!(&node.open[..], [Action::Signal { instance, .. }] if instance.container == "c"),
            "{:?}",
            node.open
        );
        assert_eq!(node.memory()[1], mib);
        node.answer_one();
        assert!(
            node.open.is_empty(),
            "the pod waits for its exit: {:?}",
            node.open
        );
        node.end("c", 0);
        // The crash back-off applies, as on the kubelet.
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
        let shown = format!("Running; c: running < Completed 0, {restarts}; d: running < -, 0");
        assert_eq!(node.line(), shown);
        assert_eq!(node.memory(), [mib, mib, mib]);
    }
    let text = "Normal Killing Container c resize requires restart";
    assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
}

#[test]
fn a_failed_resize_is_shown_reported_once_and_tried_again_with_back_off() {
    let mut node = Node::small(&[&Arc::new(sized("u1", 200, 40))]);
    node.want(&[&Arc::new(sized("u1", 200, 20))]);
    let mut waits = vec![];
    for _ in 0..7 {
        node.fail_resize("no way");
        assert_eq!(node.resizing(), "PodResizeInProgress Error: no way");
        assert_eq!(node.memory(), [20, 20, 40]);
        let wait = node.wake_at().expect("it is tried again") - node.now;
        waits.push(wait / 1000);
        node.wait(wait);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
    node.work();
    assert_eq!(node.memory(), [20, 20, 20]);
    assert_eq!(
        node.reasons(),
        ["ResizeStarted", "ResizeError", "ResizeCompleted"]
    );
    // A new edit does not wait for the one that failed.
    node.want(&[&Arc::new(sized("u1", 200, 10))]);
    node.fail_resize("no way");
    node.want(&[&Arc::new(sized("u1", 200, 15))]);
    assert!(matches!(&node.open[..], [Action::Resize { .. }]));
}

#[test]
fn a_resize_survives_an_agent_restart_at_any_step() {
    for restarts in [false, true] {
        let size = |mib| {
            let spec = sized("u1", 200, mib);
            Arc::new(if restarts { restarting(spec) } else { spec })
        };
        for steps in 0..6 {
            let mut node = Node::small(&[&size(20)]);
            node.want(&[&size(30)]);
            let mut ended = !restarts;
            for _ in 0..steps {
                if !node.open.is_empty() {
                    node.answer_one();
                } else if !ended {
                    node.end("c", 0);
                    ended = true;
                }
            }
            let mut node = reborn(&node, &[&size(30)], ready());
            let wait = node.wake_at().map_or(0, |at| at - node.now);
            node.wait(wait);
            node.work();
            if !ended {
                node.end("c", 0);
                node.work();
            }
            let pod = node.state.pods.values().next().unwrap();
            assert!(!pod.is_resizing(), "{steps}: {pod:?}");
            assert_eq!(pod.resizing.actuated, pod.spec.resources);
            assert_eq!(node.memory(), [30, 30, 30], "after {steps} steps");
            let shown = match restarts {
                true => "Running; c: running < Completed 0, 1; d: running < -, 0",
                false => "Running; c: running < -, 0; d: running < -, 0",
            };
            assert_eq!(node.line(), shown, "after {steps} steps");
        }
    }
}

#[test]
fn an_agent_restart_does_not_change_the_times_of_resize_conditions() {
    let (a, b) = (
        |mib| Arc::new(sized("u1", 200, mib)),
        Arc::new(alone("u2", 50)),
    );
    let resize = |node: &Node| {
        let mut pods = node.state.pods.values();
        let pod = pods.find(|p| p.spec.uid.as_str() == "u1").unwrap();
        let shown = status::pod(pod, &status::NodeFacts::default(), &node.state.settings);
        let all = shown.status.unwrap().conditions.unwrap().into_iter();
        let some = all.filter(|c| c.type_.starts_with("PodResize"));
        some.map(|c| (c.type_, c.last_transition_time.unwrap().0))
            .collect::<Vec<_>>()
    };
    let mut node = Node::small(&[&a(20), &b]);
    node.wait(5_000);
    node.want(&[&a(60), &b]);
    node.wait(5_000);
    let pending = resize(&node);
    assert_eq!(pending[0].0, "PodResizePending");
    let mut new = reborn(&node, &[&a(60), &b], ready());
    assert_eq!(resize(&new), pending);
    new = reborn(&new, &[&a(60), &b], ready());
    assert_eq!(resize(&new), pending);
    // The condition ends, and a new one begins later.
    new.want(&[&a(20), &b]);
    assert_eq!(resize(&new), []);
    new.wait(5_000);
    new.want(&[&a(60), &b]);
    assert!(resize(&new)[0].1 > pending[0].1);
    // Meanwhile the edit was reverted.
    let mut new = reborn(&node, &[&a(20), &b], ready());
    assert_eq!(resize(&new), []);
    new.wait(5_000);
    new.want(&[&a(60), &b]);
    assert!(resize(&new)[0].1 > pending[0].1);

    node.want(&[&a(30), &b]);
    let begun = resize(&node);
    assert_eq!(begun[0].0, "PodResizeInProgress");
    node.now += 5_000;
    let mut new = reborn(&node, &[&a(30), &b], ready());
    assert_eq!(resize(&new), begun);
    new.work();
    assert_eq!(resize(&new), []);
}

#[test]
fn a_stopping_pod_is_not_resized() {
    let mut node = Node::small(&[&Arc::new(sized("u1", 200, 20))]);
    node.want(&[&Arc::new(sized("u1", 200, 30))]);
    node.fail_resize("no way");
    node.want(&[]);
    node.work();
    node.wait(5_000);
    assert!(node.open.is_empty(), "{:?}", node.open);
    assert_eq!(node.resizing(), "");
}

#[test]
fn a_container_that_crashed_for_lack_of_memory_does_not_wait_after_a_resize() {
    let spec = Arc::new(alone("p", 16));
    let mut node = Node::small(&[&spec]);
    for _ in 0..3 {
        node.end("c", 137);
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
    }
    node.end("c", 137);
    assert_eq!(node.wake_at(), Some(node.now + 40_000));
    // As long as there is no room, nothing has changed.
    let most = Arc::new(alone("p", 200));
    node.want(&[&most]);
    node.work();
    assert!(node.line().contains("CrashLoopBackOff"), "{}", node.line());
    let more = Arc::new(alone("p", 32));
    node.want(&[&more]);
    node.work();
    assert!(node.line().contains("c: running"), "{}", node.line());
    assert_eq!(node.container("c").restart_count, 4);
}

#[test]
fn a_resize_waits_for_a_kill_in_progress_and_is_reported_with_all_containers() {
    let mut spec = with_inits(sized("u1", 200, 20), &["i1"]);
    let hook = Some(Hook::Sleep { ms: 5_000 });
    of(&mut spec, "c").lifecycle.pre_stop = hook;
    let mut node = Node::small(&[&Arc::new(spec.clone())]);
    node.end("i1", 0);
    node.work();
    set_image(&mut spec, "c", "img:2");
    node.want(&[&Arc::new(spec.clone())]);
    node.answer_one();
    assert!(
        node.open.is_empty(),
        "its hook comes first: {:?}",
        node.open
    );
    set_resources(&mut spec, "d", 150, 10 * MIB);
    node.want(&[&Arc::new(spec)]);
    assert!(node.open.is_empty(), "{:?}", node.open);
    node.end("c", 0);
    let begun = |action: &Action| matches!(action, Action::Resize { .. });
    assert!(node.open.iter().any(begun), "{:?}", node.open);
    let said = node.said();
    let started = said.iter().find(|text| text.contains("ResizeStarted"));
    let started = started.expect("the start of the resize is reported");
    let inits = "\"initContainers\":[{\"name\":\"i1\"";
    assert!(started.contains(inits), "{started}");
}

#[test]
fn a_resize_policy_for_cpu_does_not_apply_to_memory_and_vice_versa() {
    for (restarts_cpu, restarts_memory, cpu, mib, killed) in [
        (true, false, 300, 20, true),
        (true, false, 200, 30, false),
        (false, true, 300, 20, false),
        (false, true, 200, 30, true),
    ] {
        let size = |cpu, mib| {
            let mut spec = sized("u1", cpu, mib);
            let restarts = &mut of(&mut spec, "c").resize_restarts;
            (restarts.cpu, restarts.memory) = (restarts_cpu, restarts_memory);
            Arc::new(spec)
        };
        let mut node = Node::small(&[&size(200, 20)]);
        node.want(&[&size(cpu, mib)]);
        let signalled = matches!(node.open[..], [Action::Signal { .. }]);
        assert_eq!(
            signalled, killed,
            "{restarts_cpu} {restarts_memory} {cpu} {mib}"
        );
    }
}

#[test]
fn a_variable_with_a_limit_keeps_its_value_until_the_resize_begins() {
    let read = |memory: &str| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{containers: [{{name: c, image: 'img:1',
              resources: {{limits: {{memory: {memory}}}}}, env: [{{name: A, value: a}}, {{name: LIMIT,
              valueFrom: {{resourceFieldRef: {{resource: limits.memory}}}}}}]}}]}}}}"
        );
        let context = ConvertContext::of("n");
        let found = documents(text.as_bytes(), "f", &context).expect("valid");
        Arc::new(found.pods.into_iter().next().expect("a pod"))
    };
    let mut node = Node::small(&[&read("20Mi")]);
    let env = |node: &Node| {
        let pod = node.state.pods.values().next().unwrap();
        let env = pod.spec.containers[0].env.iter();
        env.map(|e| e.value.clone()).collect::<Vec<_>>()
    };
    let value = |mib: u64| {
        let limit = EnvValue::Resource((mib * MIB).to_string());
        vec![EnvValue::Literal("a".into()), limit]
    };
    node.want(&[&read("200Mi")]);
    assert_eq!(env(&node), value(20), "there is no room");
    node.want(&[&read("30Mi")]);
    assert_eq!(env(&node), value(30));
}

#[test]
fn a_container_restarted_for_a_resize_starts_again_however_it_ended() {
    let size = |mib| {
        let mut spec = restarting(sized("u1", 200, mib));
        spec.restart_policy = RestartPolicy::OnFailure;
        Arc::new(spec)
    };
    let mut node = Node::small(&[&size(20)]);
    node.want(&[&size(30)]);
    node.work();
    node.end("c", 0);
    node.work();
    assert_eq!(
        node.line(),
        "Running; c: running < Completed 0, 1; d: running < -, 0"
    );
}

#[test]
fn resources_are_shown_as_written_in_the_manifest_while_the_container_has_them() {
    let mut node = Node::small(&[&Arc::new(alone("u1", 20))]);
    let shown = |node: &Node| {
        let resources = node.container("c").resources.unwrap();
        resources.limits.unwrap()["memory"].0.clone()
    };
    assert_eq!(shown(&node), (20 * MIB).to_string());
    node.want(&[&Arc::new(alone("u1", 30))]);
    assert_eq!(shown(&node), "20Mi", "as the kernel reports it");
    node.work();
    assert_eq!(shown(&node), (30 * MIB).to_string());
}

#[test]
fn moving_resources_between_containers_is_a_resize_even_if_the_pods_sum_is_the_same() {
    let size = |c, d| {
        let mut spec = pod("u1", "u1", RestartPolicy::Always, &["c", "d"]);
        set_resources(&mut spec, "c", 100, c * MIB);
        set_resources(&mut spec, "d", 100, d * MIB);
        Arc::new(spec)
    };
    let mut node = Node::small(&[&size(20, 30)]);
    node.want(&[&size(30, 20)]);
    node.work();
    assert_eq!(node.memory(), [30, 30, 30]);
    assert_eq!(node.reasons(), ["ResizeStarted", "ResizeCompleted"]);
}
