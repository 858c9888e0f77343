//! What has the simulation really played? Counted over all seeds, so that nobody takes for tested what never happens;
//! `CORACLE_SIM_STATS=1 cargo test --test simulation -- --nocapture` prints it.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};

use coracle::plan::NodeState;

/// How often each kind of thing happened.
#[derive(Debug, Default)]
pub(crate) struct Stats(BTreeMap<(&'static str, String), u64>);

/// What must happen in any ten thousand seeds, as often at least.
const LEAST: u64 = 100;
const EXPECTED: &[(&str, &str)] = &[
    ("action", "CreateSandbox"),
    ("action", "EnsureImage"),
    ("action", "RemoveSandbox"),
    ("action", "Signal"),
    ("action", "StartContainer"),
    ("event", "ConditionsSet"),
    ("event", "ContainerExited"),
    ("event", "ContainerStartFailed"),
    ("event", "ContainerStarted"),
    ("event", "CordonRecovered"),
    ("event", "Cordoned"),
    ("event", "DeleteRequested"),
    ("event", "DesiredChanged"),
    ("event", "DrainBegun"),
    ("event", "DrainTurn"),
    ("event", "EphemeralAdded"),
    ("event", "FormerEnds"),
    ("event", "HookDone"),
    ("event", "ImageFailed"),
    ("event", "ImageReady"),
    ("event", "ImagesChanged"),
    ("event", "NodeAddressesChanged"),
    ("event", "Observed"),
    ("event", "PodEvicted"),
    ("event", "PodRecovered"),
    ("event", "PodRestored"),
    ("event", "ProbeDone"),
    ("event", "RetryRequested"),
    ("event", "SandboxCreated"),
    ("event", "SandboxFailed"),
    ("event", "SandboxLost"),
    ("event", "SandboxRemoved"),
    ("event", "SandboxRemoveFailed"),
    ("event", "SettingsChanged"),
    ("event", "SignalFailed"),
    ("event", "SignalSent"),
    ("event", "Uncordoned"),
    ("order", "Look"),
    ("order", "Reclaim"),
    ("kill", "DefinitionChanged"),
    ("kill", "InPlace"),
    ("kill", "Liveness"),
    ("kill", "PostStartHook"),
    ("kill", "Startup"),
    ("kill", "Stopping"),
    ("pod", "LetIn"),
    ("pod", "Preempted"),
    // The agent dies while
    ("agent dies, action", "CreateSandbox"),
    ("agent dies, action", "EnsureImage"),
    ("agent dies, action", "RemoveSandbox"),
    ("agent dies, action", "Signal"),
    ("agent dies, action", "StartContainer"),
    ("agent dies, kill", "DefinitionChanged"),
    ("agent dies, kill", "InPlace"),
    ("agent dies, kill", "Liveness"),
    ("agent dies, kill", "PostStartHook"),
    ("agent dies, kill", "Startup"),
    ("agent dies, kill", "Stopping"),
    ("agent dies, pod", "finishes"),
    ("agent dies, pod", "goes"),
    ("agent dies, pod", "initializes"),
    ("agent dies, pod", "is done"),
    ("agent dies, pod", "restarts in place"),
    ("agent dies, pod", "waits for a back-off"),
];

impl Stats {
    /// One more of the variant that this is.
    pub(crate) fn count(&mut self, kind: &'static str, variant: &impl Debug) {
        self.add(kind, word(variant), 1);
    }

    fn add(&mut self, kind: &'static str, name: String, times: u64) {
        *self.0.entry((kind, name)).or_default() += times;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for ((kind, name), times) in other.0 {
            self.add(kind, name, times);
        }
    }

    /// What the agent leaves behind when it dies.
    pub(crate) fn agent_dies(&mut self, state: &NodeState, now: u64) {
        for pod in state.pods.values() {
            if let Some(action) = &pod.in_flight {
                self.count("agent dies, action", action);
            }
            for container in &pod.containers {
                if let Some(kill) = container.kill.filter(|_| container.run.is_running()) {
                    self.count("agent dies, kill", &kill.reason);
                }
            }
            let waits = |c: &coracle::plan::state::ContainerState| {
                let ended = c.run.ended().map_or(0, |e| e.exit.finished.time.0);
                pod.wants_start(c) && c.backoff.is_some() && ended + 300_000 > now
            };
            let is = match pod {
                _ if pod.stopping.is_some() => "goes",
                _ if pod.finishing.is_some() => "finishes",
                _ if pod.finished() => "is done",
                _ if pod.restarts_all() => "restarts in place",
                _ if !pod.is_initialized() => "initializes",
                _ if pod.containers.iter().any(waits) => "waits for a back-off",
                _ => "just is",
            };
            self.add("agent dies, pod", is.to_owned(), 1);
        }
    }

    /// Finds out what did not happen often enough in so many seeds.
    pub(crate) fn missing(&self, seeds: u64) -> Vec<String> {
        let times = |kind: &'static str, name: &str| {
            let times = self.0.get(&(kind, name.to_owned()));
            times.copied().unwrap_or(0)
        };
        let rare = EXPECTED
            .iter()
            .map(|(kind, name)| (kind, name, times(kind, name)));
        let rare = rare.filter(|(_, _, times)| times * 10_000 < LEAST * seeds);
        rare.map(|(kind, name, times)| format!("{kind} {name}: {times} times"))
            .collect()
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((kind, name), times) in &self.0 {
            writeln!(f, "{times:>10}  {kind} {name}")?;
        }
        Ok(())
    }
}

/// The name of an enum's variant; the rest is not written.
fn word(variant: &impl Debug) -> String {
    struct Word(String);
    impl Write for Word {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.find(|c: char| !c.is_alphanumeric());
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            end.map_or(Ok(()), |_| Err(fmt::Error))
        }
    }
    let mut word = Word(String::new());
    // The error says that the word is over.
    let _ = write!(word, "{variant:?}");
    word.0
}
