//! What clients do to the node: manifests come, change and go; pods are deleted, debugged and tried again, and their
//! conditions are set; settings change, and the node shuts down.

use coracle::plan::Notice;
use coracle::plan::event::Seen;
use coracle::spec::Reason;
use coracle::spec::{ObjectKey, ObjectKind};

use super::*;

impl Sim {
    pub(super) fn disturb(&mut self) {
        self.stimuli += 1;
        match self.world.rng.below(17) {
            16 => self.stop_start_or_restart(),
            15 => self.replug(),
            13 => self.shut_down_or_not(),
            14 => self.cordon_or_not(),
            0..4 => self.edit_manifests(),
            4 => self.delete_a_pod(),
            10 => self.debug_a_pod(),
            11 => {
                self.apply(&Event::Node(NodeFact::AddressesChanged));
                self.change_settings();
            }
            12 => {
                let app = ObjectKey::new(ObjectKind::ConfigMap, "default", "app");
                let objects = [app].into();
                self.apply(&Event::Node(NodeFact::ConfigurationChanged { objects }));
                self.say_something();
            }
            5 | 6 => self.world.kill_a_shim(),
            8 => {
                let there = self.world.rng.chance(70);
                self.look_outside(there);
            }
            7 => {
                self.world.image = !self.world.image;
                if self.world.image {
                    self.apply(&Event::Node(NodeFact::ImagesChanged(None)));
                    self.decide();
                }
            }
            _ => self.crash_agent(),
        }
    }

    /// The node shuts down, or the shutdown is cancelled.
    fn shut_down_or_not(&mut self) {
        if self.state.shutdown.is_some() {
            return self.cancel_shutdown();
        }
        let all = [(0, 20), (1000, 0), (2000, 10), (3000, 60)];
        let mut groups = Vec::new();
        for (priority, seconds) in all {
            if self.world.rng.chance(70) {
                groups.push(Group { priority, seconds });
            }
        }
        let asked_by = AskedBy::Command;
        self.apply(&Event::Node(NodeFact::ShutdownBegun { groups, asked_by }));
        self.decide();
    }

    pub(super) fn cancel_shutdown(&mut self) {
        self.apply(&Event::Node(NodeFact::ShutdownCancelled));
        self.decide();
    }

    pub(super) fn edit_manifests(&mut self) {
        self.edit_documents();
        for name in ["a", "b", "c"] {
            if !self.world.rng.chance(40) {
                continue;
            }
            self.wanted.retain(|_, p| *p.key.name != *name);
            if self.world.rng.chance(30) {
                continue;
            }
            let version = self.world.rng.below(7);
            let policy = match self.world.rng.below(3) {
                0 => RestartPolicy::Always,
                1 => RestartPolicy::OnFailure,
                _ => RestartPolicy::Never,
            };
            let containers: &[&str] = match version {
                0 | 3 => &["x"],
                _ => &["x", "y"],
            };
            let inits: &[&str] = match version {
                3 => &["i1"],
                4 => &["s1", "i2"],
                5 => &["i1", "s2", "s3"],
                6 => &["i1", "s2"],
                _ => &[],
            };
            let uid = format!("{name}{version}");
            let mut spec = pods::with_inits(pods::pod(&uid, name, policy, containers), inits);
            if version >= 2 && version != 5 {
                let probe = |threshold| Some(pods::probing(20_000, threshold));
                let y = containers.last().unwrap();
                let probes = &mut pods::of(&mut spec, y).probes;
                (probes.liveness, probes.readiness) = (probe(2), probe(1));
                if let Some(first) = inits.first().filter(|n| n.starts_with('s')) {
                    pods::of(&mut spec, first).probes.startup = probe(3);
                }
                pods::of(&mut spec, containers[0]).probes.startup = probe(3);
            }
            if version >= 4 {
                spec.readiness_gates = vec![pods::GATE.into()];
            }
            if version >= 5 {
                let x = pods::of(&mut spec, "x");
                x.restart_policy = Some(RestartPolicy::OnFailure);
                let action = match version {
                    5 => RestartAction::Restart,
                    _ => RestartAction::RestartAllContainers,
                };
                x.restart_rules = vec![pods::rule(ExitCodes::In(vec![0, 42]), action)];
                if version == 6 {
                    let rule = pods::rule(ExitCodes::In(vec![42]), action);
                    x.restart_rules = vec![rule];
                }
            }
            for container in containers.iter().chain(inits) {
                if self.world.rng.chance(30) {
                    pods::set_image(&mut spec, container, "img:2");
                }
            }
            if version >= 1 && version != 3 {
                let pre_stop = match version {
                    2 | 5 => Hook::Sleep { ms: 2_000 },
                    _ => Hook::Exec(vec!["true".into()]),
                };
                for name in ["x", "s2"] {
                    if let Some(c) = spec.container(name).map(|c| c.name.clone()) {
                        pods::of(&mut spec, &c).lifecycle.pre_stop = Some(pre_stop.clone());
                    }
                }
                let post_start = Hook::Exec(vec!["true".into()]);
                pods::of(&mut spec, "x").lifecycle.post_start = Some(post_start);
            }
            if let 1 | 2 | 4 | 6 = version {
                let end = if version == 1 { "" } else { ":restart" };
                pods::ask_for_device(&mut spec, &format!("{}{end}", crate::world::PORT));
            }
            if version == 1 || version == 2 {
                pods::of(&mut spec, "x").ports = vec![pods::host_port(80)];
            }
            spec.active_deadline_ms = (version == 4).then_some(900_000);
            if self.world.rng.chance(50) {
                let memory = 1_000 * (1 + self.world.rng.below(4));
                let last = containers.last().unwrap();
                pods::set_resources(&mut spec, last, 100 * memory / 1_000, memory);
                let restarts = policy != RestartPolicy::Never && self.world.rng.chance(50);
                pods::of(&mut spec, last).resize_restarts.memory = restarts;
            }
            spec.priority = i32::try_from(version).unwrap() * 500;
            if self.watches {
                pressure::bound(&mut spec, version);
            }
            spec.grace_ms =
                [0, 1_000, 5_000, 30_000][usize::try_from(self.world.rng.below(4)).unwrap()];
            self.put_in_order(&mut spec);
            let spec = pods::of_template(spec);
            self.wanted.insert(spec.uid.clone(), Arc::new(spec));
        }
        self.desire();
    }

    /// A pod may start after one before it, or after something outside, which comes and goes.
    fn put_in_order(&mut self, spec: &mut PodSpec) {
        let before = match &*spec.key.name {
            "b" => "a",
            "c" => "b:ready",
            _ => "none",
        };
        let text = match self.world.rng.below(8) {
            0 => before.to_owned(),
            1 => format!("{before}?timeout=30s&then=start"),
            2 => format!("{before}?timeout=20s&then=start, mount:/m?again"),
            3 => format!("{before}?timeout=1m, mount:/m"),
            4 if before != "none" => format!("{before}?timeout=5s&then=start&again"),
            _ => return,
        };
        spec.after = coracle::spec::after::parse(&text, "default").expect("valid");
        let manifest = Arc::make_mut(&mut spec.manifest);
        let annotation = coracle::spec::after::ANNOTATION.to_owned();
        manifest.change_metadata(|metadata| {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(annotation, text);
        });
    }

    /// A pod may have to go because it has lost what it started after.
    pub(super) fn note_lost(&mut self, notices: &[Notice]) {
        let lost = notices
            .iter()
            .filter(|n| n.reason == Reason::DependencyLost);
        for uid in lost.map(|notice| &notice.uid) {
            let Some(pod) = self.state.pods.get(uid) else {
                continue;
            };
            let grace_ms = pod.spec.grace_ms.max(2_000);
            let since = self.world.now;
            let going = Going { since, grace_ms };
            self.going.entry(uid.clone()).or_insert(going);
            self.stats.count("pod", &Lost);
        }
    }

    /// What is wanted outside is there or not, as the node would find it.
    pub(super) fn look_outside(&mut self, there: bool) {
        let wanted = self.state.wanted_outside().into_iter();
        let problem = None;
        let seen = wanted.map(|one| {
            (
                one,
                Seen {
                    there,
                    problem: problem.clone(),
                },
            )
        });
        let seen = Event::Node(NodeFact::OutsideSeen(seen.collect()));
        self.apply(&seen);
        self.decide();
    }

    pub(super) fn desire(&mut self) {
        let pods: Vec<&Arc<PodSpec>> = self.wanted.values().collect();
        let mut desired = pods::desired(&pods);
        if self.world.rng.chance(30) {
            desired.services.pop_first();
        }
        self.documents.add_to(&mut desired);
        let event = Event::Node(NodeFact::DesiredChanged(desired));
        let pods = self.state.pods.iter();
        let pods = pods.filter(|(_, p)| p.hold().is_none() && p.spec.workload.is_none());
        for (uid, pod) in pods {
            let wanted = self.wanted.get(&pod.spec.template);
            let changed = wanted.is_none_or(|new| {
                let mut all = new.all_containers().zip(pod.spec.all_containers());
                let other =
                    all.any(|(new, old)| new.image != old.image || new.resources != old.resources);
                // A new image or other resources for a pod that has done its work: it does its work again.
                let again = other && !Arc::ptr_eq(new, pod.wanted()) && pod.complete();
                let class = |p: &PodSpec| p.resources == PodResources::default();
                new.restart_policy != pod.spec.restart_policy
                    || class(new) != class(&pod.spec)
                    || again
            });
            for new in wanted.into_iter().flat_map(|p| p.all_containers()) {
                let old = pod.spec.container(&new.name);
                if old.is_some_and(|old| old.image != new.image) {
                    // The failures of the old image are no reason to wait.
                    self.backoff.remove(&(uid.clone(), new.name.clone()));
                    self.starts
                        .remove(&(pod.spec.key.clone(), new.name.clone()));
                }
            }
            if changed {
                let grace_ms = pod.spec.grace_ms.max(2_000);
                let since = self.world.now;
                let going = Going { since, grace_ms };
                self.going.entry(uid.clone()).or_insert(going);
            }
        }
        self.apply(&event);
        self.decide();
    }

    /// Failures with the old resources are no reason to wait.
    pub(super) fn note_resize(&mut self, old: &Arc<PodSpec>) {
        let pod = self.state.pods.get(&old.uid);
        let Some(pod) = pod.filter(|pod| !Arc::ptr_eq(&pod.spec, old)) else {
            return;
        };
        for new in pod.spec.all_containers() {
            if old
                .container(&new.name)
                .is_some_and(|old| old.resources != new.resources)
            {
                self.backoff.remove(&(old.uid.clone(), new.name.clone()));
                self.starts.remove(&(old.key.clone(), new.name.clone()));
            }
        }
    }

    fn delete_a_pod(&mut self) {
        let uids: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let i = usize::try_from(self.world.rng.below(uids.len() as u64)).unwrap();
        let grace_ms = [None, Some(0), Some(1_000), Some(60_000)]
            [usize::try_from(self.world.rng.below(4)).unwrap()];
        let floor = match grace_ms {
            Some(ms) => ms.max(2_000),
            None => self.state.pods[&uids[i]].spec.grace_ms.max(2_000),
        };
        let going = Going {
            since: self.world.now,
            grace_ms: floor,
        };
        if self.state.pods[&uids[i]].hold().is_none() {
            self.going
                .entry(uids[i].clone())
                .and_modify(|g| g.grace_ms = g.grace_ms.min(floor))
                .or_insert(going);
        }
        let pod = uids[i].clone();
        self.apply(&Event::Pod {
            uid: pod,
            fact: PodFact::DeleteRequested { grace_ms },
        });
        self.decide();
    }

    /// A client adds a container to a pod in any state.
    fn debug_a_pod(&mut self) {
        let uids: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let i = usize::try_from(self.world.rng.below(uids.len() as u64)).unwrap();
        let pod = &self.state.pods[&uids[i]];
        let name = format!("e{}", pod.ephemerals().len());
        let first = pod.spec.containers[0].name.as_str();
        let target = self.world.rng.chance(50).then_some(first);
        let spec = Arc::new(pods::with_ephemeral(&pod.spec, &name, target));
        let pod = uids[i].clone();
        self.apply(&Event::Pod {
            uid: pod,
            fact: PodFact::EphemeralAdded { spec },
        });
        self.decide();
    }

    /// A client sets a condition of a pod, or asks it to try again at once.
    fn say_something(&mut self) {
        let uids: Vec<PodUid> = self.state.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let i = usize::try_from(self.world.rng.below(uids.len() as u64)).unwrap();
        let pod = uids[i].clone();
        let event = if self.world.rng.chance(50) {
            self.retried.insert(pod.clone());
            let container = None;
            Event::Pod {
                uid: pod,
                fact: PodFact::RetryRequested { container },
            }
        } else {
            let open = self.world.rng.chance(50);
            self.opened.insert(pod.clone(), open);
            let changes = vec![pods::gate(open)];
            Event::Pod {
                uid: pod,
                fact: PodFact::ConditionsSet { changes },
            }
        };
        self.apply(&event);
        self.decide();
    }

    /// Changes how long restarts have to wait.
    fn change_settings(&mut self) {
        let settings = match self.world.rng.below(3) {
            0 => settings(),
            1 => Settings {
                capacity: Some(CAPACITY),
                ..Settings::reduced()
            },
            _ => Settings {
                max_restart_period_ms: 5_000,
                ..settings()
            },
        };
        self.apply(&Event::Node(NodeFact::SettingsChanged(settings)));
        self.starts.clear();
        self.decide();
    }
}
