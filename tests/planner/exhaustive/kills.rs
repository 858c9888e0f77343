//! Every way the agent can be killed in a story: wherever it was with its action, and whether or not the shim dies too.
//! What the next agent knows is what shims and records tell and what was written down.

use coracle::plan::action::Keep;
use coracle::plan::event::{Instance, Kill, Recovered, RecoveredRun, RecoveredSandbox};
use coracle::plan::state::{Run, Sandbox};
use coracle::plan::{Action, Event, NodeState, PodState, Stamp, Time, plan};
use coracle::spec::{Effective, Exit, StopSignal};

use super::pods::{self, at};
use super::{Search, Story};

/// So many agents are killed in one story; each more doubles the search.
const MOST: u8 = 1;

impl Search {
    /// The story as it goes on with another agent, in every way.
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
        next.going = left.as_ref().is_some_and(|l| l.stopping.is_some());
        next.state = NodeState::new(story.state.settings.clone());
        match left {
            Some(left) => {
                let event = Event::PodRecovered(Box::new(left));
                next.state.apply(&event, at(next.now));
                let old = &story.state.pods[&self.uid()];
                check_memory(old, &next.state.pods[&self.uid()]);
            }
            // It is gone, or never got as far as being written down.
            None => next.ran.fill(None),
        }
        let decided = plan(&next.state, Time(next.now));
        assert!(decided.actions.is_empty(), "no manifests yet: {decided:?}");
        next.seen = pods::Seen::new(&next.state);
        let wanted: &[_] = if story.wanted { &[&self.spec] } else { &[] };
        self.apply(&mut next, &Event::DesiredChanged(pods::desired(wanted)));
        next
    }
}

/// What the next agent must not have forgotten.
fn check_memory(old: &PodState, new: &PodState) {
    assert_eq!(old.stopping, new.stopping);
    assert_eq!(old.verdict, new.verdict);
    assert_eq!(old.created, new.created);
    assert_eq!(old.foreign, new.foreign);
    // Where the old agent had heard of everything, the new one knows as much.
    let runs =
        |pod: &PodState| -> Vec<Run> { pod.containers.iter().map(|c| c.run.clone()).collect() };
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
            // Why may be seen in another way as long as no signal was sent.
            let terms = |kill: &Kill| (kill.attempt, kill.grace_ms, kill.at_once);
            assert_eq!(old.kill.as_ref().map(terms), new.kill.as_ref().map(terms));
            if let (Some(old), Some(new)) = (old.kill, new.kill) {
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

/// What an agent that is killed now can have left; `None` where nothing of the pod is found.
fn left_behind(pod: &PodState, now: Stamp) -> Vec<Option<Recovered>> {
    if pod.hold.is_some() {
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
        // What was written of a resize is written again.
        None | Some(Action::EnsureImage { .. } | Action::Resize { .. }) => {}
        Some(Action::CreateSandbox { .. }) => left.push(Some(in_sandbox(ready(pod)))),
        Some(Action::StartContainer { instance, image_id }) => {
            let known = base.containers[&instance.container].newest.as_ref();
            // Its end may have been heard before its start.
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

/// The start was carried out, and who knows what came of it.
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
