//! What an action does to the node, if nothing goes wrong.

use super::*;

impl World {
    pub(super) fn create(&mut self, pod: PodUid) {
        self.order += 1;
        let generation = self.order;
        let Some(disk) = self.disk.get_mut(&pod) else {
            return;
        };
        disk.generation = generation;
        disk.removed = false;
        // Runs in the earlier sandbox ended with it; that is recorded before a new sandbox is made.
        for record in disk.records.values_mut() {
            record.ends = None;
            if let Some(run) = &mut record.newest
                && run.exit.is_none()
            {
                run.exit = Some(exit(137, run.started, at(self.now)));
            }
        }
        disk.shim = false;
        if self.fault(15) {
            let failure = match self.rng.below(3) {
                0 => SandboxFailure::Volume {
                    volume: "v".into(),
                    error: "no".into(),
                },
                1 => SandboxFailure::HostPort {
                    message: "taken".into(),
                },
                _ => SandboxFailure::Sandbox("no".into()),
            };
            return self.say(Event::Pod {
                uid: pod,
                fact: PodFact::SandboxFailed { failure },
            });
        }
        self.forget(&pod);
        let disk = self.disk.get_mut(&pod).unwrap();
        disk.shim = true;
        disk.figures = disk.coming;
        disk.lost_said = false;
        let former = Event::Pod {
            uid: pod.clone(),
            fact: PodFact::FormerEnds {
                ends: disk.former.clone(),
            },
        };
        let next_attempts = disk
            .records
            .iter()
            .filter_map(|(n, r)| Some((n.clone(), r.highest? + 1)))
            .collect();
        self.order += 1;
        self.inbox.push((self.now, self.order, former));
        let ips = vec![address(&pod)];
        self.say(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxCreated {
                ips,
                next_attempts,
                warnings: vec![],
            },
        });
    }

    pub(super) fn start(&mut self, generation: u64, instance: Instance, image_id: String) {
        let fault = self.rng.below(100);
        let faults = self.faults;
        let (now, sight) = (self.stamp(), self.sight());
        let Some(disk) = self.disk.get_mut(&instance.pod) else {
            return;
        };
        if disk.generation != generation {
            // The order was for a sandbox that is gone; the agent has heard that already.
            return;
        }
        if !disk.shim {
            return self.say_lost(&instance.pod);
        }
        let record = disk.records.entry(instance.container.clone()).or_default();
        let alive = record.newest.as_ref().is_some_and(|r| r.exit.is_none());
        assert!(!alive, "two runs of one container at once: {instance:?}");
        assert!(
            record.highest.is_none_or(|h| h < instance.attempt),
            "attempt numbers grow: {instance:?} after {:?}",
            record.highest
        );
        let mut added = disk.spec.ephemeral_containers.iter();
        let added = added.any(|c| c.name == instance.container);
        let mut effective = Effective::default();
        let lacks = match (&disk.spec.devices, sight) {
            (None, _) => false,
            (Some(_), DeviceSight::There(nodes)) => {
                effective.devices.insert(PORT.to_owned(), nodes);
                false
            }
            (Some(_), DeviceSight::Missing(_) | DeviceSight::Refused(_)) => !added,
        };
        let failure = match fault {
            _ if lacks => Some(StartFailure::Config),
            0..4 => Some(StartFailure::Config),
            4..8 => Some(StartFailure::Create),
            8..14 => Some(StartFailure::Run),
            _ => None,
        }
        .filter(|_| faults || lacks);
        if failure.is_none() || failure == Some(StartFailure::Run) {
            record.highest = Some(instance.attempt);
            record.figures = record.coming;
            record.runs += 1;
            record.previous = record.newest.take().and_then(|r| r.exit);
            record.newest = Some(RecoveredRun {
                attempt: instance.attempt,
                image_id,
                started: now,
                pid: 7,
                effective: effective.clone(),
                exit: (failure.is_some()).then(|| exit(128, Stamp::default(), now)),
                stop_sent: None,
            });
        }
        if let Some(failure) = failure {
            let message = "no".into();
            return self.say(Event::Run {
                instance,
                fact: RunFact::StartFailed { failure, message },
            });
        }
        let end = match habit(self.habits, &instance) {
            Habit::Stays | Habit::StaysAndHangs => None,
            Habit::CrashesAtOnce => Some((self.now, 1)),
            Habit::CrashesLate => Some((self.now + self.rng.below(900_000), 1)),
            Habit::AsksForRestart => Some((self.now + 20_000 + self.rng.below(400_000), 42)),
            Habit::Fails => {
                let code = i32::from(instance.attempt.is_multiple_of(2));
                Some((self.now + self.rng.below(5_000), code))
            }
            Habit::EndsWell => Some((self.now + self.rng.below(5_000), 0)),
        };
        let disk = self.disk.get_mut(&instance.pod).unwrap();
        disk.records.get_mut(&instance.container).unwrap().ends = end;
        self.say(Event::Run {
            instance,
            fact: RunFact::Started {
                pid: 7,
                at: now,
                effective,
            },
        });
    }

    /// Writes all of the values, or half of them.
    pub(super) fn resize(
        &mut self,
        pod: PodUid,
        to: PodResources,
        containers: Vec<(String, ContainerResources)>,
    ) {
        let fails = self.fault(30);
        let half = self.rng.chance(50);
        if let Some(disk) = self.disk.get_mut(&pod).filter(|_| !fails || half) {
            disk.figures = to;
            for (name, figures) in containers.into_iter().filter(|_| !fails) {
                disk.records.entry(name).or_default().figures = figures;
            }
        }
        self.say(match fails {
            true => Event::Pod {
                uid: pod,
                fact: PodFact::ResizeFailed { error: "no".into() },
            },
            false => Event::Pod {
                uid: pod,
                fact: PodFact::Resized,
            },
        });
    }

    pub(super) fn signal(&mut self, generation: u64, instance: Instance, signal: StopSignal) {
        let fails = self.fault(10);
        let slow = self.rng.below(8_000);
        let habit = habit(self.habits, &instance);
        let now = self.now;
        let Some(disk) = self.disk.get_mut(&instance.pod) else {
            return;
        };
        if disk.generation != generation {
            // The order was for a sandbox that is gone; the agent has heard that already.
            return;
        }
        if !disk.shim {
            return self.say_lost(&instance.pod);
        }
        if fails {
            let error = "no".into();
            return self.say(Event::Run {
                instance,
                fact: RunFact::SignalFailed { error },
            });
        }
        let mut sent = Time(now);
        if let Some(record) = disk.records.get_mut(&instance.container)
            && let Some(run) = &mut record.newest
            && run.attempt == instance.attempt
        {
            if signal == StopSignal::Stop {
                sent = *run.stop_sent.get_or_insert(sent);
            }
            if run.exit.is_none() {
                match signal {
                    StopSignal::Stop if habit == Habit::StaysAndHangs => {}
                    StopSignal::Stop => record.ends = Some((now + slow, 143)),
                    StopSignal::Kill => record.ends = Some((now, 137)),
                }
            }
        }
        self.say(Event::Run {
            instance,
            fact: RunFact::SignalSent { signal, at: sent },
        });
    }

    pub(super) fn remove(&mut self, pod: PodUid, keep: Keep) {
        let fails = self.fault(15);
        if let Some(disk) = self.disk.get_mut(&pod) {
            let alive = |r: &Record| r.newest.as_ref().is_some_and(|n| n.exit.is_none());
            assert!(
                !disk.shim || !disk.records.values().any(alive),
                "a sandbox is removed only when nothing runs in it: {pod}"
            );
            disk.shim = false;
            disk.lost_said = true;
            if fails {
                let error = "no".into();
                return self.say(Event::Pod {
                    uid: pod,
                    fact: PodFact::SandboxRemoveFailed { error },
                });
            }
            match keep {
                Keep::Everything | Keep::Logs => disk.removed = true,
                Keep::Nothing => {
                    self.disk.remove(&pod);
                }
            }
        }
        // The connection to the shim is gone: the agent hears nothing more about its containers.
        self.forget(&pod);
        self.say(Event::Pod {
            uid: pod,
            fact: PodFact::SandboxRemoved,
        });
    }
}
