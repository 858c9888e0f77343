//! Edits of a pod's manifest: what can change in place does so in the running pod, anything else replaces the pod.

use std::sync::Arc;

use coracle::plan::edit::{Changes, Edit, between};
use coracle::plan::event::{ProbeOrder, ProbeOutcome};
use coracle::plan::{Event, NodeFact, Task};
use coracle::spec::convert::{ConvertContext, admitted, documents};
use coracle::spec::{Pins, PodSpec, RestartPolicy};

use crate::node::{Node, one};
use crate::pods::{desired, of, probing};

const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: p
  labels: {app: p}
spec:
  initContainers:
  - {name: i, image: 'img:1'}
  containers:
  - name: c
    image: img:1
    args: [a]
    resources:
      requests: {cpu: 100m, memory: 16Mi}
    livenessProbe: {exec: {command: ['true']}}
  - {name: d, image: 'img:1'}
";

fn read(text: &str) -> PodSpec {
    let context = ConvertContext::of("n");
    let found = documents(text.as_bytes(), "f", &context);
    found.expect("valid").pods.remove(0)
}

/// The edit in words, one part for each change.
fn words(edit: Edit) -> String {
    match edit {
        Edit::None => "nothing".to_owned(),
        Edit::Replace(paths) => format!("replace: {}", paths.join(" ")),
        Edit::InPlace(Changes {
            live,
            images,
            resizes,
        }) => {
            let resizes = resizes.iter().map(|r| {
                let how = if r.restarts { " with a restart" } else { "" };
                let (from, to) = (r.from.as_deref(), r.to.as_deref());
                format!(
                    "{} of {}: {} to {}{how}",
                    r.field,
                    r.container,
                    from.unwrap_or("-"),
                    to.unwrap_or("-")
                )
            });
            let images = images.iter().map(|i| {
                let how = if i.restarts { " with a restart" } else { "" };
                format!("image of {}: {} to {}{how}", i.container, i.from, i.to)
            });
            live.into_iter()
                .chain(images)
                .chain(resizes)
                .collect::<Vec<_>>()
                .join("; ")
        }
    }
}

#[test]
fn each_edit_changes_as_little_as_possible() {
    for (from, to, expected) in [
        ("args: [a]", "args: ['a']", "nothing"),
        ("args: [a]", "tty: false\n    args: [a]", "nothing"),
        ("kind: Pod", "kind: Pod\n# a word", "nothing"),
        (
            "labels: {app: p}",
            "labels: {app: q}",
            "metadata.labels.app",
        ),
        ("  labels: {app: p}\n", "", "metadata.labels"),
        (
            "labels: {app: p}",
            "labels: {app: p}\n  annotations: {example.com/a: b}",
            "metadata.annotations[example.com/a]",
        ),
        (
            "spec:",
            "spec:\n  terminationGracePeriodSeconds: 5",
            "spec.terminationGracePeriodSeconds",
        ),
        (
            "spec:",
            "spec:\n  activeDeadlineSeconds: 5",
            "spec.activeDeadlineSeconds",
        ),
        ("spec:", "spec:\n  priority: 5", "spec.priority"),
        (
            "spec:",
            "spec:\n  priority: 5\n  priorityClassName: some",
            "spec.priority; spec.priorityClassName",
        ),
        (
            "spec:",
            "spec:\n  priorityClassName: system-node-critical",
            "replace: spec.priority",
        ),
        (
            "{exec: {command: ['true']}}",
            "{exec: {command: ['true']}, periodSeconds: 3}",
            "spec.containers[0].livenessProbe.periodSeconds",
        ),
        (
            "args: [a]",
            "readinessProbe: {tcpSocket: {port: 80}}\n    args: [a]",
            "spec.containers[0].readinessProbe",
        ),
        (
            "args: [a]",
            "args: [b]",
            "replace: spec.containers[0].args[0]",
        ),
        (
            "args: [a]",
            "args: [a, b]",
            "replace: spec.containers[0].args",
        ),
        (
            "args: [a]",
            "args: [a]\n    tty: true\n    env: [{name: X, value: y}]",
            "replace: spec.containers[0].env spec.containers[0].tty",
        ),
        (
            "spec:",
            "spec:\n  hostNetwork: true",
            "replace: spec.hostNetwork",
        ),
        (
            "spec:",
            "spec:\n  restartPolicy: Never",
            "replace: spec.restartPolicy",
        ),
        (
            "  - {name: d, image: 'img:1'}\n",
            "",
            "replace: spec.containers",
        ),
        (
            "image: img:1",
            "image: img:2",
            "image of c: img:1 to img:2 with a restart",
        ),
        (
            "image: 'img:1'",
            "image: 'img:latest'",
            "spec.initContainers[0].imagePullPolicy; image of i: img:1 to img:latest",
        ),
        ("name: d", "name: e", "replace: spec.containers[1].name"),
        ("cpu: 100m", "cpu: 200m", "requests.cpu of c: 100m to 200m"),
        ("cpu: 100m", "cpu: '0.1'", "nothing"),
        (
            "requests: {cpu: 100m, memory: 16Mi}",
            "requests: {cpu: 100m}\n      limits: {memory: 32Mi}",
            "requests.memory of c: 16Mi to 32Mi; limits.memory of c: - to 32Mi",
        ),
        (
            "requests: {cpu: 100m, memory: 16Mi}",
            "requests: {cpu: 100m, memory: 17Mi}\n    resizePolicy:\n    \
             - {resourceName: memory, restartPolicy: RestartContainer}",
            "spec.containers[0].resizePolicy; requests.memory of c: 16Mi to 17Mi with a restart",
        ),
        (
            "      requests: {cpu: 100m, memory: 16Mi}\n",
            "      requests: {}\n",
            "replace: status.qosClass",
        ),
        (
            "requests: {cpu: 100m, memory: 16Mi}",
            "requests: {cpu: 100m, memory: 16Mi, ephemeral-storage: 1Gi}",
            "replace: spec.containers[0].resources.requests.ephemeral-storage",
        ),
        (
            "name: p\n",
            "name: p\n  uid: mine\n",
            "replace: metadata.uid",
        ),
    ] {
        let edited = POD.replacen(from, to, 1);
        assert_ne!(edited, POD, "{to}");
        let (old, new) = (read(POD), read(&edited));
        let edit = between(&old, &new);
        let replaced = matches!(edit, Edit::Replace(_));
        assert_eq!(words(edit), expected, "{from} to {to}");
        assert_eq!(replaced, old.uid != new.uid, "{to}: the UID agrees");
    }
}

#[test]
fn a_given_uid_does_not_hide_what_cannot_change_in_place() {
    let given = POD.replacen("name: p\n", "name: p\n  uid: mine\n", 1);
    let (old, new) = (read(&given), read(&given.replacen("[a]", "[b]", 1)));
    assert_eq!(old.uid, new.uid);
    assert_eq!(
        words(between(&old, &new)),
        "replace: spec.containers[0].args[0]"
    );
    let other = read(&given.replacen("uid: mine", "uid: yours", 1));
    assert_eq!(words(between(&old, &other)), "replace: metadata.uid");
}

#[test]
fn another_image_behind_the_same_name_is_an_edit_and_the_same_image_is_none() {
    const VOLUME: &str = "
  volumes:
  - {name: v, image: {reference: 'vol:1'}}
";
    let pins = |of: &[(&str, &str)]| {
        let of = of.iter();
        of.map(|(name, id)| (format!("docker.io/library/{name}"), format!("sha256:{id}")))
            .collect::<Pins>()
    };
    let plain = read(&format!("{POD}{VOLUME}"));
    assert_eq!(plain.with_pins(&Pins::new()), None);
    assert_eq!(plain.with_pins(&pins(&[("other:1", "a")])), None);
    let one = plain.with_pins(&pins(&[("img:1", "a")])).expect("pinned");
    assert_eq!(
        one.with_pins(&pins(&[("img:1", "a"), ("other:1", "b")])),
        None
    );
    let json = one.manifest.json().into_bytes();
    assert_eq!(admitted(&json).expect("valid"), one);
    // A manifest that has the annotation pins nothing.
    let annotated = POD.replacen(
        "labels:",
        "annotations: {coracle.dev/images: '{}'}\n  labels:",
        1,
    );
    let stripped = read(&annotated).with_pins(&Pins::new()).expect("changed");
    assert_eq!(*stripped.manifest, *read(POD).manifest);
    for (from, to, expected) in [
        (pins(&[]), pins(&[("img:1", "a")]), "nothing"),
        (pins(&[("img:1", "a")]), pins(&[]), "nothing"),
        (
            pins(&[("img:1", "a")]),
            pins(&[("img:1", "b")]),
            "image of i: img:1 (a) to img:1 (b); image of c: img:1 (a) to img:1 (b) with a restart; \
             image of d: img:1 (a) to img:1 (b) with a restart",
        ),
        (
            pins(&[("vol:1", "a")]),
            pins(&[("vol:1", "b")]),
            "replace: spec.volumes[0].image",
        ),
    ] {
        let of = |pins: &Pins| plain.with_pins(pins).unwrap_or_else(|| plain.clone());
        assert_eq!(words(between(&of(&from), &of(&to))), expected);
    }
}

pub(crate) fn with(edit: impl FnOnce(&mut PodSpec)) -> Arc<PodSpec> {
    let mut spec = (*one(RestartPolicy::Always, &["c"])).clone();
    edit(&mut spec);
    Arc::new(spec)
}

impl Node {
    pub(crate) fn edit(&mut self, spec: &Arc<PodSpec>) {
        self.tell(Event::Node(NodeFact::DesiredChanged(desired(&[spec]))));
    }

    fn due_at(&self) -> Result<Vec<ProbeOrder>, u64> {
        let (tasks, wake_at) = self.foresee();
        let probes = tasks.into_iter().filter_map(|task| match task {
            Task::Probe(order) => Some(order),
            Task::Act(_) | Task::Hook(_) | Task::Relieve(_) => None,
        });
        let orders: Vec<ProbeOrder> = probes.collect();
        match wake_at {
            Some(at) if orders.is_empty() => Err(at.0 - self.now),
            Some(_) | None => Ok(orders),
        }
    }

    fn answer(&mut self, order: &ProbeOrder, well: bool) {
        let outcome = match well {
            true => ProbeOutcome::Success,
            false => ProbeOutcome::Failure("no".into()),
        };
        self.tell(order.clone().done(outcome));
    }

    fn begin_probe(&mut self) -> ProbeOrder {
        let order = self.due_at().expect("due")[0].clone();
        self.tell(order.clone().started());
        order
    }

    fn is_ready(&self) -> bool {
        self.state.pods.values().next().unwrap().flags.ready.yes
    }
}

#[test]
fn labels_and_grace_period_change_in_the_running_pod_and_are_shown_at_once() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.work();
    let before = node.state.network_changes;
    let edited = with(|spec| {
        spec.grace_ms = 5_000;
        let manifest = Arc::make_mut(&mut spec.manifest);
        let labels = [("app".into(), "new".into())].into();
        manifest.change_metadata(|metadata| metadata.labels = Some(labels));
    });
    node.edit(&edited);
    assert!(
        node.open.is_empty(),
        "there is nothing to do: {:?}",
        node.open
    );
    assert_eq!(node.shown().metadata.labels.unwrap()["app"], "new");
    assert!(node.state.network_changes > before, "services select again");
    node.tell(Event::Node(NodeFact::DesiredChanged(desired(&[]))));
    let pod = node.state.pods.values().next().unwrap();
    assert_eq!(pod.stopping().unwrap().grace_ms(), 5_000);
}

#[test]
fn an_edited_readiness_probe_counts_from_its_first_outcome_and_the_pod_stays_ready_until_then() {
    let probe = |period, threshold| {
        with(|spec| of(spec, "c").probes.readiness = Some(probing(period, threshold)))
    };
    let mut node = Node::with(&probe(60_000, 1));
    node.work();
    let order = node.begin_probe();
    node.answer(&order, true);
    assert!(node.is_ready());
    assert_eq!(node.due_at(), Err(60_000));
    node.edit(&probe(5_000, 2));
    assert!(node.is_ready(), "ready until the new probe says otherwise");
    for early in [true, false] {
        let order = node.begin_probe();
        node.answer(&order, false);
        assert!(node.is_ready(), "one failure is not enough: {early}");
        assert_eq!(node.due_at(), Err(5_000));
        node.wait(5_000);
    }
    let order = node.begin_probe();
    node.edit(&probe(5_000, 1));
    node.answer(&order, false);
    assert!(
        node.is_ready(),
        "the outcome of the old probe does not count"
    );
    for early in [true, false] {
        let order = node.begin_probe();
        node.answer(&order, false);
        assert_eq!(node.is_ready(), early);
        node.wait(5_000);
    }
    node.edit(&with(|_| {}));
    assert!(node.is_ready(), "without a probe it is ready");
    assert_eq!(node.due_at(), Ok(vec![]));
}

#[test]
fn a_probe_that_is_removed_while_one_runs_can_come_back() {
    let probe = with(|spec| of(spec, "c").probes.readiness = Some(probing(5_000, 1)));
    let mut node = Node::with(&probe);
    node.work();
    let order = node.begin_probe();
    node.edit(&with(|_| {}));
    node.edit(&probe);
    assert_eq!(node.due_at(), Ok(vec![]), "only one probe runs at a time");
    node.answer(&order, false);
    assert!(
        node.is_ready(),
        "the outcome of the removed probe does not count"
    );
    for early in [true, false] {
        let order = node.begin_probe();
        node.answer(&order, false);
        assert_eq!(node.is_ready(), early);
        node.wait(5_000);
    }
}

#[test]
fn a_startup_probe_added_to_a_running_container_does_not_make_it_unstarted() {
    let startup = with(|spec| of(spec, "c").probes.startup = Some(probing(1_000, 1)));
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.work();
    node.edit(&startup);
    assert!(node.is_ready());
    assert_eq!(node.due_at(), Ok(vec![]));
    let mut node = Node::with(&startup);
    node.work();
    assert!(!node.is_ready());
    let slower = with(|spec| {
        let mut probe = probing(1_000, 1);
        probe.initial_delay_ms = 7_000;
        of(spec, "c").probes.startup = Some(probe);
    });
    node.edit(&slower);
    assert_eq!(node.due_at(), Err(7_000), "counted from the start");
    node.edit(&one(RestartPolicy::Always, &["c"]));
    assert!(node.is_ready(), "there is no probe to wait for");
}

#[test]
fn a_failed_liveness_probe_kills_even_if_it_is_edited_afterwards() {
    let probe =
        |threshold| with(|spec| of(spec, "c").probes.liveness = Some(probing(1_000, threshold)));
    let mut node = Node::with(&probe(1));
    node.work();
    node.fail();
    assert_eq!(node.open.len(), 1, "{:?}", node.open);
    node.edit(&probe(3));
    node.work();
    node.end("c", 143);
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 143, 1");
}
