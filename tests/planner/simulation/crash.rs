//! The agent's death at any line: what it has written to disk by then, and how the next agent begins.

use coracle::plan::workload::Workloads;

use super::*;

impl Sim {
    /// The agent may die after any fact and after any decision, and is likelier to in states that are rare.
    pub(super) fn dies_here(&mut self) -> bool {
        let replaced = |k: &Kill| k.reason == KillReason::DefinitionChanged;
        let rare = |p: &PodState| {
            let mut all = p.containers.iter();
            p.finishing().is_some()
                || p.restarts_all()
                || all.any(|c| c.kill().is_some_and(replaced))
        };
        let one_in = match self.state.pods.values().any(rare) {
            true => 4,
            false => 200,
        };
        let dies = self.world.faults && self.world.rng.below(one_in) == 0;
        if dies {
            self.crash_agent();
        }
        dies
    }

    pub(super) fn crash_agent(&mut self) {
        if self.outlives {
            return;
        }
        if self.trace {
            eprintln!("{:>9} agent dies", self.world.now);
        }
        self.stats.agent_dies(&self.state, self.world.now);
        let found = self.world.recover();
        let (jobs, mut rollouts) = self.world.kept.clone();
        self.world.kept_changes = (0, 0);
        if self.world.fault(10) {
            rollouts = "[]".to_owned();
        }
        let jobs: Vec<_> = serde_json::from_str(&jobs).unwrap();
        let now = self.world.stamp();
        self.state = NodeState {
            workloads: Workloads::with_jobs(&jobs, false, now)
                .with_rollouts(serde_json::from_str(&rollouts).unwrap()),
            incarnations: self.world.incarnations(),
            former_holds: self.world.holds.clone(),
            ..NodeState::new(self.state.settings.clone())
        };
        self.agenda = Agenda::new(&self.state);
        self.watch_pressure();
        self.seen = pods::Seen::new(&self.state);
        self.reported.clear();
        self.in_flight.clear();
        self.going.clear();
        self.first_stop.clear();
        self.wake_at = None;
        self.restarts.clear();
        let disk = &self.world.disk;
        self.backoff.retain(|(uid, _), _| disk.contains_key(uid));
        self.kills.retain(|(uid, _, _), _| disk.contains_key(uid));
        self.failed.retain(|(uid, _, _), _| disk.contains_key(uid));
        // An update to a pod that is not on disk yet is lost.
        self.opened.retain(|uid, _| disk.contains_key(uid));
        // A permit for a start that never happened is good for the next one, whatever its number.
        for ((uid, name), (_, _, attempt)) in &mut self.backoff {
            let disk = &disk[uid];
            if let Some(record) = disk.records.get(name)
                && record.highest < Some(*attempt)
            {
                let round = disk.memory.rounds.get(name).copied().unwrap_or_default();
                *attempt = round.first.max(*attempt);
            }
        }
        // The new agent knows what was written to disk after each fact.
        let (shutdown, cordon) = (self.world.shutdown.clone(), self.world.cordon.clone());
        let stops = self.world.stops.clone();
        for event in found {
            self.apply(&event);
        }
        if let Some(shutdown) = shutdown {
            self.apply(&Event::Node(NodeFact::ShutdownRecovered(shutdown)));
        }
        if let Some(cordon) = cordon {
            self.apply(&Event::Node(NodeFact::CordonRecovered(cordon)));
        }
        if !stops.is_empty() {
            self.apply(&Event::Node(NodeFact::StopsRecovered(stops)));
        }
        self.decide();
        assert!(
            self.in_flight.is_empty(),
            "no action begins before the manifests are read"
        );
        for (uid, disk) in &self.world.disk {
            if let Some(stopping) = disk.memory.stopping {
                let since = stopping.since.time.0;
                let grace_ms = stopping.asked_ms.max(2_000);
                self.going.insert(uid.clone(), Going { since, grace_ms });
            }
        }
        self.desire();
    }

    /// Writes the node's files: the pod as admitted and its back-off, before any action.
    pub(super) fn write_down(&mut self, action: &Action) {
        let Some(pod) = self.state.pods.get(action.pod()) else {
            return;
        };
        if matches!(action, Action::CreateSandbox { .. }) {
            let former = self.world.former(&pod.spec);
            self.world
                .disk
                .entry(action.pod().clone())
                .or_insert_with(|| Disk {
                    spec: Arc::clone(&pod.spec),
                    shim: false,
                    lost_said: true,
                    generation: 0,
                    removed: false,
                    memory: PodMemory::of(pod),
                    figures: PodResources::default(),
                    coming: PodResources::default(),
                    records: BTreeMap::new(),
                    former,
                });
        }
        self.checkpoint();
    }

    /// Writes what the node writes after every fact, before any action.
    pub(super) fn checkpoint(&mut self) {
        self.world.shutdown.clone_from(&self.state.shutdown);
        self.world.cordon.clone_from(&self.state.cordon);
        self.world.stops.clone_from(&self.state.stops);
        self.world.write_incarnations(&self.state.incarnations);
        self.world.holds = self.state.holds();
        for (uid, pod) in &self.state.pods {
            let Some(disk) = self.world.disk.get_mut(uid) else {
                continue;
            };
            disk.spec = Arc::clone(&pod.spec);
            disk.memory = PodMemory::of(pod);
            for container in &pod.containers {
                disk.records.entry(container.name.clone()).or_default();
            }
        }
        if self.documents.is_on() {
            let workloads = &self.state.workloads;
            let changes = (workloads.jobs.changes, workloads.rollout_changes);
            if std::mem::replace(&mut self.world.kept_changes, changes) == changes {
                return;
            }
            let jobs = serde_json::to_string(&workloads.jobs.records()).unwrap();
            let rollouts = serde_json::to_string(&workloads.rollouts()).unwrap();
            self.world.kept = (jobs, rollouts);
        }
    }
}
