//! Every way the agent can be killed in a story: at every stage of its action, with or without the shim.
//! The next agent knows what shims and records report and what was written to disk.

use coracle::plan::action::Keep;
use coracle::plan::event::{Instance, Kill};
use coracle::plan::recovered::{Recovered, RecoveredRun, RecoveredSandbox};
use coracle::plan::state::{ContainerState, Sandbox};
use coracle::plan::{Action, Agenda, Event, NodeFact, NodeState, PodState, Step};
use coracle::types::{Effective, Exit, Stamp, StopSignal, Time};

use super::pods::{self, at};
use super::{Search, Story};

/// The number of agents killed in one story; each further one doubles the search.
const MOST: u8 = 1;

impl Search {
    /// The ways in which the story continues with a new agent.
    pub(super) fn killed(&self, story: &Story) -> Vec<Story> {
        if story.kills == MOST {
            return vec![];
        }
        let left = match story.state.pods.get(&self.uid()) {
            Some(pod) => left_behind(pod, at(story.now)),
            None => vec![None],
        };
        let next = left
            .into_iter()
            .map(|left| self.with_new_agent(story, left));
        next.collect()
    }

    fn with_new_agent(&self, story: &Story, left: Option<Recovered>) -> Story {
        let mut next = story.clone();
        next.kills += 1;
        next.probing.clear();
        next.hooking.clear();
        next.going = left.as_ref().is_some_and(|l| l.memory.stopping.is_some());
        next.state = NodeState::new(story.state.settings.clone());
        next.agenda = Agenda::new(&next.state);
        match left {
            Some(left) => {
                let event = Event::recovered(left);
                next.agenda.record(&mut next.state, &event, at(next.now));
                let old = &story.state.pods[&self.uid()];
                check_memory(old, &next.state.pods[&self.uid()]);
            }
            // The pod is gone, or was never written to disk.
            None => next.ran.fill(None),
        }
        let step = next.agenda.next(&next.state, Time(next.now));
        assert!(
            !matches!(step, Step::Begin(_)),
            "no manifests yet: {step:?}"
        );
        next.seen = pods::Seen::new(&next.state);
        let wanted: &[_] = if story.wanted { &[&self.spec] } else { &[] };
        self.apply(
            &mut next,
            &Event::Node(NodeFact::DesiredChanged(pods::desired(wanted))),
        );
        next
    }
}

/// Checks what the next agent must still know.
fn check_memory(old: &PodState, new: &PodState) {
    assert_eq!(old.stopping(), new.stopping());
    assert_eq!(old.verdict, new.verdict);
    assert_eq!(old.created, new.created);
    assert_eq!(old.foreign, new.foreign);
    // If the old agent had heard of everything, the new one knows as much.
    let known = |c: &ContainerState| {
        let live = c.run.running().map(|run| (run.pid, run.began));
        let image_id = c.run.image_id().map(str::to_owned);
        (c.run.attempt(), image_id, live, c.run.ended().cloned())
    };
    let runs = |pod: &PodState| pod.containers.iter().map(known).collect::<Vec<_>>();
    let same = runs(old) == runs(new)
        && old.in_flight.is_none()
        && matches!(new.sandbox, Sandbox::Ready { .. });
    for (old, new) in old.containers.iter().zip(&new.containers) {
        assert!(old.next_attempt <= new.next_attempt, "{old:?}, {new:?}");
        assert!(old.round.first <= new.round.first);
        if same {
            assert_eq!((old.backoff, old.round), (new.backoff, new.round));
            assert_eq!(old.health(), new.health());
            assert_eq!(old.start_error, new.start_error);
            // The reason may differ as long as no signal was sent.
            let terms = |kill: &Kill| (kill.grace_ms, kill.at_once);
            assert_eq!(old.kill().map(terms), new.kill().map(terms));
            if let (Some(old), Some(new)) = (old.kill(), new.kill()) {
                let again = new.again - old.again;
                assert!(again == 1 || again == 0 && old.since == new.since);
            }
        }
        match old.run.ended() {
            Some(ended) if old.run.attempt() == new.run.attempt() => {
                assert_eq!(new.run.ended(), Some(ended));
            }
            Some(ended) => assert_eq!(new.previous.as_ref().map(|e| &e.exit), Some(&ended.exit)),
            None => {}
        }
    }
}

/// What an agent that is killed now may have left on the node; `None` where nothing of the pod is found.
fn left_behind(pod: &PodState, now: Stamp) -> Vec<Option<Recovered>> {
    if pod.hold().is_some() {
        return vec![None];
    }
    let sandbox = match pod.sandbox {
        Sandbox::Ready { .. } => ready(pod),
        Sandbox::Removed => RecoveredSandbox::Removed,
        Sandbox::None | Sandbox::Lost => RecoveredSandbox::Lost,
    };
    let base = pods::recovered(pod, sandbox);
    let in_sandbox = |sandbox| Recovered {
        sandbox,
        ..base.clone()
    };
    // Nothing of the action was done, and the shim may be gone with the agent.
    let mut left = vec![Some(base.clone())];
    if matches!(pod.sandbox, Sandbox::Ready { .. }) {
        left.push(Some(in_sandbox(RecoveredSandbox::Lost)));
    }
    if pod.sandbox == Sandbox::None {
        left.push(None);
    }
    match &pod.in_flight {
        // A new agent writes the values of a resize again.
        None | Some(Action::EnsureImage { .. } | Action::Resize { .. }) => {}
        Some(Action::CreateSandbox { .. }) => left.push(Some(in_sandbox(ready(pod)))),
        Some(Action::StartContainer {
            instance, image_id, ..
        }) => {
            let known = base.containers[&instance.container].newest.as_ref();
            // The agent may have heard of its exit before its start.
            if known.is_none_or(|run| run.attempt < instance.attempt) {
                left.extend(begun(&base, instance, image_id, now).into_iter().map(Some));
            }
        }
        Some(Action::Signal {
            instance, signal, ..
        }) => {
            for ended in [false, true] {
                let mut done = base.clone();
                let container = done.containers.get_mut(&instance.container).unwrap();
                if let Some(run) = container.newest.as_mut().filter(|r| r.exit.is_none()) {
                    if *signal == StopSignal::Stop {
                        run.stop_sent.get_or_insert(now.time);
                    }
                    run.exit = ended.then(|| pods::exit(137, run.started, now));
                }
                left.push(Some(done));
            }
        }
        Some(Action::RemoveSandbox { keep, .. }) => {
            left.push(Some(in_sandbox(RecoveredSandbox::Lost)));
            left.push(match keep {
                Keep::Nothing => None,
                Keep::Logs => Some(in_sandbox(RecoveredSandbox::Removed)),
                Keep::Everything if pod.finished() => Some(in_sandbox(RecoveredSandbox::Removed)),
                Keep::Everything => Some(in_sandbox(RecoveredSandbox::Lost)),
            });
        }
    }
    left
}

/// The start was carried out, with any outcome.
fn begun(base: &Recovered, instance: &Instance, image_id: &str, now: Stamp) -> Vec<Recovered> {
    let ends = [
        None,
        Some(pods::exit(0, now, now)),
        Some(pods::exit(1, now, now)),
        Some(Exit::not_started("no".into(), now)),
    ];
    let mut all = Vec::new();
    for exit in ends {
        let mut done = base.clone();
        let container = done.containers.get_mut(&instance.container).unwrap();
        let before = container.newest.replace(RecoveredRun {
            attempt: instance.attempt,
            image_id: image_id.to_owned(),
            started: exit.as_ref().map_or(now, |e| e.started),
            pid: 7,
            effective: Effective::default(),
            exit,
            stop_sent: None,
        });
        container.previous = before.and_then(|run| run.exit);
        all.push(Recovered {
            sandbox: RecoveredSandbox::Lost,
            ..done.clone()
        });
        all.push(done);
    }
    all
}

fn ready(pod: &PodState) -> RecoveredSandbox {
    let ips = match pod.ips.is_empty() {
        true => vec!["10.0.0.2".parse().unwrap()],
        false => pod.ips.clone(),
    };
    RecoveredSandbox::Ready { ips }
}
