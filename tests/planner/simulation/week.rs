//! A node that runs for long keeps nothing of what is gone.

use super::*;

const DAY_MS: u64 = 86_400_000;

impl Sim {
    /// Plays days in which everything happens, then removes all manifests; returns how much the planner knows after that.
    fn days(&mut self, days: u64) -> usize {
        self.world.faults = true;
        let end = self.world.now + days * DAY_MS;
        while self.world.now < end {
            self.step();
        }
        self.wanted.clear();
        self.documents.clear();
        self.desire();
        self.calm_down();
        // One UID is kept for each name, as long as there are few names; see `behaviour/incarnations.rs`.
        let gone = serde_json::to_value(&self.state.incarnations).unwrap();
        assert!(gone.as_array().unwrap().len() <= 3, "{gone}");
        let known = std::mem::take(&mut self.state.incarnations);
        let text = format!("{:?}", self.state);
        let length = text.len();
        self.state.incarnations = known;
        length
    }
}

/// A new agent would know nothing of what is gone, so one agent lives through all of it.
#[test]
fn after_a_week_the_planner_knows_no_more_than_after_a_day() {
    for seed in [1, 8] {
        let mut sim = Sim::new(seed, false);
        sim.outlives = true;
        // Their pods have names without number.
        sim.documents = workloads::Documents::default();
        sim.watch_pressure();
        let day = sim.days(1);
        let week = sim.days(6);
        // Counters have more digits and may exist for one more resource; the last observation may have found pods that went,
        // three at most.
        assert!(week < day + 700, "{day} characters, then {week}");
        assert!(sim.actions > 6_000, "{}", sim.actions);
    }
}
