//! An agent that is killed two hundred times, at random moments, among pods of every kind that come, go, are edited
//! and lose their shims meanwhile: nothing starts again that should not, nothing is forgotten, nothing is left.
//!
//! The containers themselves record what really ran: each run writes a line to a file of the node.

#![allow(
    clippy::print_stderr,
    reason = "it prints the seed and the time it took"
)]

mod common;

#[path = "kills/checks.rs"]
mod checks;
#[path = "kills/pods.rs"]
mod pods;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::netns::Netns;
use common::{Agent, PATIENCE};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The number of kills, unless `CORACLE_KILLS` sets it, or a slow machine needs longer than `ENOUGH`.
const KILLS: u32 = 200;
/// At least this many, however slow the machine.
const FEWEST: u32 = 40;
const ENOUGH: Duration = Duration::from_secs(60);

/// Two names of the one image there is. An edit from one name to the other counts as a new image.
const IMAGES: [&str; 2] = ["busybox:test", "docker.io/library/busybox:test"];

/// Pods that nothing happens to.
const STEADY: [&str; 10] = [
    "plain-0", "plain-1", "plain-2", "on-node", "inits", "sidecar", "probed", "labelled", "hooked",
    "debugged",
];

/// xorshift: a failure can be repeated with its seed, as far as the machine behaves alike.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 32).expect("32 bits") % n
    }
}

struct World {
    agent: Agent,
    random: Random,
    /// The guest pods whose files are there.
    guests: Vec<String>,
    next_guest: u32,
    /// The number of the newest edit, and the current label, variable and image.
    edits: u32,
    label: String,
    variable: String,
    image: &'static str,
    /// How often the pod `deleted` was deleted; its file stays.
    deleted: usize,
    /// How often the victim's shim was killed.
    orphaned: usize,
    /// The largest restart count seen, by UID and container.
    restarts: BTreeMap<(String, String), i64>,
    /// Process and start time of every container of the steady pods.
    steady: BTreeMap<String, Value>,
}

impl World {
    fn new(seed: u64) -> Self {
        let agent = Agent::prepare(Arc::new(Netns::new()), &[], None);
        let config = agent.root.join("config.yaml");
        let text = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
                    crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n";
        fs::write(&config, text).expect("written");
        let agent = agent.with_flags(&["--config", config.to_str().expect("utf-8")]);
        agent.launch();
        agent.ok(&[
            "image",
            "import",
            common::archive().to_str().expect("utf-8"),
        ]);
        fs::create_dir(agent.root.join("runs")).expect("temp dir");
        Self {
            agent,
            random: Random::new(seed),
            guests: Vec::new(),
            next_guest: 0,
            edits: 0,
            label: String::new(),
            variable: String::new(),
            image: IMAGES[0],
            deleted: 0,
            orphaned: 0,
            restarts: BTreeMap::new(),
            steady: BTreeMap::new(),
        }
    }

    /// Lets a random time pass; the moments of kills and of changes are the test's input.
    fn pass(&mut self, longest: Duration) {
        let longest = usize::try_from(longest.as_micros()).expect("short");
        let micros = self.random.below(longest) as u64;
        std::thread::sleep(Duration::from_micros(micros));
    }

    /// One agent, killed some time after its start; its world changes before or while it works.
    fn round(&mut self, round: u32) {
        let early = self.random.below(2) == 0;
        if early {
            self.disturb();
        }
        if round.is_multiple_of(20) {
            self.agent.launch();
            self.check(round);
            self.delete();
        } else {
            self.agent.spawn();
        }
        // Half of the agents die while they recover, the others at work.
        let longest = [15, 150][self.random.below(2)];
        self.pass(Duration::from_millis(longest));
        if !early {
            self.disturb();
        }
        self.pass(Duration::from_millis(longest));
        assert!(
            self.agent.is_up(),
            "the agent ended by itself: {}",
            self.agent.log()
        );
        self.kill();
    }

    fn kill(&self) {
        self.agent.signal(Signal::SIGKILL);
        self.agent.wait();
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| {
        all.iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
}

/// A number from the environment.
fn given<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let number = text.parse().ok();
    assert!(number.is_some(), "{name}={text} is not a number");
    number
}

#[test]
fn many_kills_change_nothing_but_the_agent() {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    let seed = given("CORACLE_KILL_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos()));
    eprintln!("again with: CORACLE_KILL_SEED={seed} cargo test --test kills");
    let asked: Option<u32> = given("CORACLE_KILLS");
    let mut world = World::new(seed);
    world.begin();
    let events = world.events_of_steady();
    assert!(!events.is_empty());
    world.kill();

    let begin = Instant::now();
    let mut kills = 1;
    while kills < asked.unwrap_or(KILLS) {
        world.round(kills);
        kills += 1;
        if asked.is_none() && kills >= FEWEST && begin.elapsed() > ENOUGH {
            break;
        }
        if kills == FEWEST / 2 {
            world.kill_shim("fallen");
        }
    }
    eprintln!("{kills} kills in {:?}", begin.elapsed());

    world.agent.launch();
    world.check(kills);
    world.check_end();
    assert_eq!(
        world.events_of_steady(),
        events,
        "earlier events stay, each once"
    );
    world.check(kills + 1);

    let files = fs::read_dir(world.agent.root.join("manifests")).expect("there");
    for file in files.flatten() {
        fs::remove_file(file.path()).expect("removed");
    }
    let deadline = Instant::now() + PATIENCE;
    while !world.names().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", world.names());
        std::thread::sleep(Duration::from_millis(20)); // No single event says that all pods are gone.
    }
    assert_eq!(world.agent.leftovers(), Vec::<String>::new());
    let processes = checks::processes_of(&world.agent);
    assert_eq!(processes.len(), 1, "only the agent is left: {processes:#?}");
}
