//! What becomes of a pod whose manifest is edited? What can change does so in the running pod, all else makes it anew.

use std::sync::Arc;

use coracle::plan::edit::{Changes, Edit, between};
use coracle::plan::event::{ImageFailure, ProbeOrder, ProbeOutcome};
use coracle::plan::{Action, Event, Time, probe};
use coracle::spec::convert::{ConvertContext, documents};
use coracle::spec::{PodSpec, RestartPolicy};

use crate::node::{Node, one, ready, reborn};
use crate::pods::{desired, of, pod, probing, set_image, with_inits};

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
    for early in [true, false] {
        let order = node.begin_probe();
        node.answer(&order, false);
        assert!(node.is_ready(), "once is not twice: {early}");
        assert_eq!(node.due_at(), Err(5_000));
        node.wait(5_000);
    }
    let order = node.begin_probe();
    node.edit(&probe(5_000, 1));
    node.answer(&order, false);
    assert!(
        node.is_ready(),
        "the outcome of a former probe says nothing"
    );
    for early in [true, false] {
        let order = node.begin_probe();
        node.answer(&order, false);
        assert_eq!(node.is_ready(), early);
        node.wait(5_000);
    }
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
    for early in [true, false] {
        let order = node.begin_probe();
        node.answer(&order, false);
        assert_eq!(node.is_ready(), early);
        node.wait(5_000);
    }
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
    node.fail();
    assert_eq!(node.open.len(), 1, "{:?}", node.open);
    node.edit(&probe(3));
    node.work();
    node.end("c", 143);
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 143, 1");
}

/// The pod with another image for this container.
fn from_image(spec: &PodSpec, name: &str, image: &str) -> Arc<PodSpec> {
    let mut spec = spec.clone();
    set_image(&mut spec, name, image);
    Arc::new(spec)
}

impl Node {
    /// Says that the image being looked for is not there.
    fn no_image(&mut self) {
        let Action::EnsureImage { pod, container } = self.take() else {
            panic!("an image: {:?}", self.open);
        };
        self.tell(Event::ImageFailed {
            pod,
            container,
            failure: ImageFailure::Pull,
            message: "gone".into(),
        });
    }

    /// Does what is open and what follows, but for the end of what is signalled; whom that is.
    fn work_till_signal(&mut self) -> String {
        loop {
            if let Some(Action::Signal { instance, .. }) = self.open.first().cloned() {
                self.answer_one();
                return instance.container;
            }
            self.answer_one();
        }
    }

    fn image_of(&self, name: &str) -> String {
        let status = self.shown().status.unwrap();
        let inits = status.init_container_statuses.into_iter().flatten();
        let mut all = inits.chain(status.container_statuses.unwrap());
        all.find(|c| c.name == name).unwrap().image
    }
}

#[test]
fn another_image_restarts_that_container_alone_whatever_the_policy() {
    for policy in [
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ] {
        let spec = with_inits(pod("u1", "p", policy, &["c", "d"]), &["i1", "s2"]);
        let mut node = Node::with(&Arc::new(spec.clone()));
        node.work();
        node.end("i1", 0);
        node.work();
        node.edit(&from_image(&spec, "c", "img:2"));
        assert_eq!(node.image_of("c"), "img:1", "what runs");
        assert_eq!(node.work_till_signal(), "c");
        let text = "Normal Killing Container c definition changed, will be restarted";
        assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
        node.end("c", 0);
        node.work();
        assert_eq!(node.image_of("c"), "img:2");
        let shown = "Running; i1: Completed 0 < -, 0, ready=true started=false; s2: running < -, 0; \
                     c: running < Completed 0, 1; d: running < -, 0";
        assert_eq!(node.line(), shown, "{policy:?}");
        let pulled = node.said().iter().filter(|s| s.contains("img:2")).count();
        assert_eq!(pulled, 1, "looked for once: {:?}", node.said());
        node.edit(&from_image(&spec, "s2", "img:2"));
        assert_eq!(node.work_till_signal(), "s2");
        assert_eq!(node.work_till_signal(), "c", "back to the old one");
        let text = "Normal Killing Init container s2 definition changed";
        assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
    }
}

#[test]
fn what_runs_is_not_given_up_for_an_image_that_is_not_there() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.edit(&from_image(&spec, "c", "img:2"));
    node.no_image();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    let text = "Warning Failed Failed to pull image \"img:2\": gone";
    assert!(node.said().contains(&text.to_owned()), "{:?}", node.said());
    assert_eq!(node.wake_at(), Some(node.now + 10_000));
    node.tell(Event::ImagesChanged);
    assert_eq!(node.work_till_signal(), "c");
    node.end("c", 143);
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 143, 1");
}

#[test]
fn an_image_edited_away_again_changes_nothing() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.edit(&from_image(&spec, "c", "img:2"));
    node.edit(&spec);
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn the_answer_about_an_image_that_is_not_wanted_any_more_says_nothing() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.answer_one();
    node.edit(&from_image(&spec, "c", "img:2"));
    node.answer_one();
    let looks = matches!(&node.open[..], [Action::EnsureImage { .. }]);
    assert!(looks, "again: {:?}", node.open);
    node.work();
    assert_eq!(node.image_of("c"), "img:2");
    assert_eq!(node.line(), "Running; c: running < -, 0");
}

#[test]
fn an_image_edited_during_the_start_takes_its_turn_after_it() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.answer_one();
    node.answer_one();
    node.edit(&from_image(&spec, "c", "img:2"));
    assert_eq!(node.work_till_signal(), "c");
    node.end("c", 143);
    node.work();
    assert_eq!(node.image_of("c"), "img:2");
}

#[test]
fn a_wrong_image_is_mended_without_waiting_for_its_back_off() {
    let spec = one(RestartPolicy::Always, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    for _ in 0..3 {
        node.end("c", 1);
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
    }
    node.end("c", 1);
    assert_eq!(node.wake_at(), Some(node.now + 40_000));
    node.edit(&from_image(&spec, "c", "img:2"));
    node.work();
    assert_eq!(node.line(), "Running; c: running < Error 1, 4");
}

#[test]
fn an_agent_that_dies_at_any_moment_of_it_has_the_new_image_run_in_the_end() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let edited = from_image(&spec, "c", "img:2");
    for steps in 0..8 {
        let mut node = Node::with(&spec);
        node.work();
        node.edit(&edited);
        let mut told = false;
        for _ in 0..steps {
            if node.open.is_empty() && !told {
                node.end("c", 0);
                told = true;
            } else if !node.open.is_empty() {
                node.answer_one();
            }
        }
        let mut node = reborn(&node, &[&edited], ready());
        // It cannot know that the start it may find permitted came to nothing.
        let wait = node.wake_at().map_or(0, |at| at - node.now);
        node.wait(wait);
        node.work();
        if !told {
            node.end("c", 0);
            node.work();
        }
        assert_eq!(node.image_of("c"), "img:2", "after {steps} steps");
        let shown = "Running; c: running < Completed 0, 1";
        assert_eq!(node.line(), shown, "after {steps} steps");
    }
}

#[test]
fn a_finished_pod_runs_again_from_another_image_as_a_new_one() {
    let spec = one(RestartPolicy::Never, &["c"]);
    let mut node = Node::with(&spec);
    node.work();
    node.end("c", 0);
    node.work();
    assert_eq!(node.line().split(';').next(), Some("Succeeded"));
    node.edit(&from_image(&spec, "c", "img:2"));
    node.work();
    assert_eq!(node.line(), "Running; c: running < -, 0");
    assert_eq!(node.image_of("c"), "img:2");
}

#[test]
fn init_containers_that_are_through_are_not_run_again_for_another_image() {
    let spec = with_inits(pod("u1", "p", RestartPolicy::Always, &["c"]), &["i1"]);
    let mut node = Node::with(&Arc::new(spec.clone()));
    node.work();
    let edited = from_image(&spec, "i1", "img:2");
    node.edit(&edited);
    node.work();
    assert_eq!(node.image_of("i1"), "img:1", "not while it works");
    node.end("i1", 0);
    node.work();
    node.edit(&Arc::new(spec));
    node.work();
    let shown = "Running; i1: Completed 0 < -, 0, ready=true started=false; c: running < -, 0";
    assert_eq!(node.line(), shown);
}

#[test]
fn for_what_is_being_ended_anyway_no_image_is_looked_for_before_it_has() {
    let spec = with(|spec| of(spec, "c").probes.liveness = Some(probing(1_000, 1)));
    let mut node = Node::with(&spec);
    node.work();
    node.fail();
    node.work();
    node.edit(&from_image(&spec, "c", "img:2"));
    assert!(node.open.is_empty(), "{:?}", node.open);
    node.end("c", 0);
    assert!(matches!(&node.open[..], [Action::EnsureImage { .. }]));
}
