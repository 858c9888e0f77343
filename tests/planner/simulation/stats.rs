//! What the simulation has really played, counted over all seeds: a thing that never happens is not tested.
//! `CORACLE_SIM_STATS=1 cargo test --test simulation -- --nocapture` prints it.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Write};

use coracle::plan::NodeState;

/// How often each kind of thing happened.
#[derive(Debug, Default)]
pub(crate) struct Stats(BTreeMap<(&'static str, String), u64>);

/// What must happen, at least `LEAST` times in ten thousand seeds.
const LEAST: u64 = 100;
const EXPECTED: &[(&str, &str)] = &[
    ("action", "CreateSandbox"),
    ("action", "EnsureImage"),
    ("action", "RemoveSandbox"),
    ("action", "Signal"),
    ("action", "StartContainer"),
    ("node fact", "AddressesChanged"),
    ("node fact", "ConfigurationChanged"),
    ("node fact", "CordonRecovered"),
    ("node fact", "Cordoned"),
    ("node fact", "DesiredChanged"),
    ("node fact", "DrainBegun"),
    ("node fact", "DrainTurn"),
    ("node fact", "ImagesChanged"),
    ("node fact", "Observed"),
    ("node fact", "SettingsChanged"),
    ("node fact", "StartRequested"),
    ("node fact", "StopRequested"),
    ("node fact", "StopsRecovered"),
    ("node fact", "Uncordoned"),
    ("pod fact", "ConditionsSet"),
    ("pod fact", "DeleteRequested"),
    ("pod fact", "DevicesSeen"),
    ("pod fact", "EphemeralAdded"),
    ("pod fact", "Evicted"),
    ("pod fact", "FormerEnds"),
    ("pod fact", "ImageFailed"),
    ("pod fact", "ImageReady"),
    ("pod fact", "Pulling"),
    ("pod fact", "Recovered"),
    ("pod fact", "RestartRequested"),
    ("pod fact", "Restored"),
    ("pod fact", "RetryRequested"),
    ("pod fact", "SandboxCreated"),
    ("pod fact", "SandboxFailed"),
    ("pod fact", "SandboxLost"),
    ("pod fact", "SandboxRemoveFailed"),
    ("pod fact", "SandboxRemoved"),
    ("run fact", "Exited"),
    ("run fact", "HookDone"),
    ("run fact", "ProbeDone"),
    ("run fact", "SignalFailed"),
    ("run fact", "SignalSent"),
    ("run fact", "StartFailed"),
    ("run fact", "Started"),
    ("order", "Look"),
    ("order", "Reclaim"),
    ("kill", "Device"),
    ("kill", "DefinitionChanged"),
    ("kill", "InPlace"),
    ("kill", "Liveness"),
    ("kill", "PostStartHook"),
    ("kill", "Requested"),
    ("kill", "Startup"),
    ("kill", "Stopping"),
    ("pod", "LetIn"),
    ("pod", "Lost"),
    ("pod", "Preempted"),
    // The agent dies while
    ("agent dies, action", "CreateSandbox"),
    ("agent dies, action", "EnsureImage"),
    ("agent dies, action", "RemoveSandbox"),
    ("agent dies, action", "Signal"),
    ("agent dies, action", "StartContainer"),
    ("agent dies, kill", "DefinitionChanged"),
    ("agent dies, kill", "Device"),
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
    ("document", "Complete"),
    ("document", "RolledOut"),
];

impl Stats {
    /// Counts one more of this enum variant.
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

    /// Counts what the agent leaves behind when it dies.
    pub(crate) fn agent_dies(&mut self, state: &NodeState, now: u64) {
        for pod in state.pods.values() {
            if let Some(action) = &pod.in_flight {
                self.count("agent dies, action", action);
            }
            for container in &pod.containers {
                if let Some(kill) = container.kill() {
                    self.count("agent dies, kill", &kill.reason);
                }
            }
            let waits = |c: &coracle::plan::state::ContainerState| {
                let ended = c.run.ended().map_or(0, |e| e.exit.finished.time.0);
                pod.wants_start(c) && c.backoff.is_some() && ended + 300_000 > now
            };
            let is = match pod {
                _ if pod.stopping().is_some() => "goes",
                _ if pod.finishing().is_some() => "finishes",
                _ if pod.finished() => "is done",
                _ if pod.restarts_all() => "restarts in place",
                _ if !pod.is_initialized() => "initializes",
                _ if pod.containers.iter().any(waits) => "waits for a back-off",
                _ => "just is",
            };
            self.add("agent dies, pod", is.to_owned(), 1);
        }
    }

    /// What did not happen often enough in this many seeds.
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

/// The name of an enum's variant, without its fields.
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
    // The error stops the formatter once the name is complete.
    let _ = write!(word, "{variant:?}");
    word.0
}
