//! What becomes of a pod whose manifest is edited? What can change does so in the running pod, all else makes it anew.

use std::sync::Arc;

use coracle::plan::edit::{Changes, Edit, between};
use coracle::plan::event::{ProbeOrder, ProbeOutcome};
use coracle::plan::{Event, Time, probe};
use coracle::spec::convert::{ConvertContext, documents};
use coracle::spec::{PodSpec, RestartPolicy};

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
    let context = ConvertContext { node_name: "n" };
    let found = documents(text.as_bytes(), "f", &context);
    found.expect("valid").pods.remove(0)
}

/// Each change in a word.
fn words(edit: Edit) -> String {
    match edit {
        Edit::None => "nothing".to_owned(),
        Edit::Replace(paths) => format!("replace: {}", paths.join(" ")),
        Edit::InPlace(Changes { live, images }) => {
            let images = images
                .iter()
                .map(|i| format!("image of {}: {} to {}", i.container, i.from, i.to));
            live.into_iter()
                .chain(images)
                .collect::<Vec<_>>()
                .join("; ")
        }
    }
}

#[test]
fn each_edit_is_as_small_as_it_can_be() {
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
        ("name: d", "name: e", "replace: spec.containers[1].name"),
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
        assert_eq!(replaced, old.uid != new.uid, "{to}: the UID says the same");
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

fn with(edit: impl FnOnce(&mut PodSpec)) -> Arc<PodSpec> {
    let mut spec = (*one(RestartPolicy::Always, &["c"])).clone();
    edit(&mut spec);
    Arc::new(spec)
}

impl Node {
    fn edit(&mut self, spec: &Arc<PodSpec>) {
        self.tell(Event::DesiredChanged(desired(&[spec])));
    }

    fn due_at(&self) -> Result<Vec<ProbeOrder>, u64> {
        let due = probe::due(self.state.pods.values().next().unwrap(), Time(self.now));
        match due.wake_at {
            Some(at) if due.orders.is_empty() => Err(at.0 - self.now),
            Some(_) | None => Ok(due.orders),
        }
    }

    fn answer(&mut self, order: &ProbeOrder, well: bool) {
        let outcome = match well {
            true => ProbeOutcome::Success,
            false => ProbeOutcome::Failure("no".into()),
        };
        self.tell(Event::ProbeDone {
            order: order.clone(),
            outcome,
        });
    }

    fn begin_probe(&mut self) -> ProbeOrder {
        let order = self.due_at().expect("due")[0].clone();
        self.tell(Event::ProbeStarted(order.clone()));
        order
    }

    fn is_ready(&self) -> bool {
        self.state.pods.values().next().unwrap().flags.ready.yes
    }
}

#[test]
fn labels_and_grace_change_in_the_running_pod_and_are_shown_at_once() {
    let mut node = Node::with(&one(RestartPolicy::Always, &["c"]));
    node.work();
    let before = node.state.network_changes;
    let edited = with(|spec| {
        spec.grace_ms = 5_000;
        let manifest = Arc::make_mut(&mut spec.manifest);
        manifest.metadata.labels = Some([("app".into(), "new".into())].into());
    });
    node.edit(&edited);
    assert!(
        node.open.is_empty(),
        "nothing is to be done: {:?}",
        node.open
    );
    assert_eq!(node.shown().metadata.labels.unwrap()["app"], "new");
    assert!(node.state.network_changes > before, "services select anew");
    node.tell(Event::DesiredChanged(desired(&[])));
    let pod = node.state.pods.values().next().unwrap();
    assert_eq!(pod.stopping.unwrap().grace_ms(), 5_000);
}

#[test]
fn another_readiness_probe_counts_from_its_first_outcome_and_takes_nobody_out_of_service_before() {
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
    assert!(node.is_ready(), "until the new one says otherwise");
    let order = node.begin_probe();
    node.answer(&order, false);
    assert!(node.is_ready(), "once is not twice");
    assert_eq!(node.due_at(), Err(5_000));
    node.wait(5_000);
    let order = node.begin_probe();
    node.edit(&probe(5_000, 1));
    node.answer(&order, false);
    assert!(
        node.is_ready(),
        "the outcome of a former probe says nothing"
    );
    let order = node.begin_probe();
    node.answer(&order, false);
    assert!(!node.is_ready());
    node.edit(&with(|_| {}));
    assert!(node.is_ready(), "without a probe it is");
    assert_eq!(node.due_at(), Ok(vec![]));
}

#[test]
fn a_probe_that_goes_while_one_is_under_way_can_come_back() {
    let probe = with(|spec| of(spec, "c").probes.readiness = Some(probing(5_000, 1)));
    let mut node = Node::with(&probe);
    node.work();
    let order = node.begin_probe();
    node.edit(&with(|_| {}));
    node.edit(&probe);
    assert_eq!(node.due_at(), Ok(vec![]), "one at a time");
    node.answer(&order, false);
    assert!(node.is_ready(), "as it was without the probe");
    let order = node.begin_probe();
    node.answer(&order, false);
    assert!(!node.is_ready());
}

#[test]
fn a_startup_probe_added_to_what_runs_does_not_start_it_over() {
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
    assert!(node.is_ready(), "nothing to wait for any more");
}

#[test]
fn a_liveness_probe_that_has_failed_kills_although_it_is_edited_then() {
    let probe =
        |threshold| with(|spec| of(spec, "c").probes.liveness = Some(probing(1_000, threshold)));
    let mut node = Node::with(&probe(1));
    node.work();
    let order = node.begin_probe();
    node.answer(&order, false);
    assert_eq!(node.open.len(), 1, "{:?}", node.open);
    node.edit(&probe(3));
    node.work();
    node.end("c", 143);
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 143, 1");
}
