//! What the simulation remembers of kills, to check later how the runs end.

use super::*;

impl Sim {
    /// Counts the kills that this event began. Remembers runs killed for a new image, which must be on the node already,
    /// and runs killed at once because their pod restarts in place, also if the pod has to go before they end.
    pub(super) fn note_kills(&mut self, event: &Event) {
        for (uid, pod) in &self.state.pods {
            let other = event.pod().is_some_and(|about| about != uid);
            for c in &pod.containers {
                let (Some(kill), Some(attempt)) = (c.kill(), c.run.attempt()) else {
                    continue;
                };
                // The room that one pod leaves may allow the resize of another.
                if other && kill.reason != KillReason::Resize {
                    continue;
                }
                if kill.since.0 == self.world.now {
                    self.stats.count("kill", &kill.reason);
                }
                let run = (uid.clone(), c.name.clone(), attempt);
                if kill.reason == KillReason::DefinitionChanged {
                    self.failed.entry(run).or_insert_with(|| {
                        let spec = pod.spec.container(&c.name).unwrap();
                        assert!(c.is_outdated(spec), "{kill:?}");
                        assert!(matches!(c.image, Image::Ready { .. }), "{kill:?}");
                        kill.grace_ms.max(2_000)
                    });
                } else if kill.reason == KillReason::Resize {
                    let world = &self.world;
                    self.failed.entry(run).or_insert_with(|| {
                        let spec = pod.spec.container(&c.name).unwrap();
                        let has = world.disk[uid].records[&c.name].figures;
                        assert!(spec.resize_restarts.memory, "{kill:?}");
                        assert_ne!(has, spec.resources, "{kill:?}");
                        kill.grace_ms.max(2_000)
                    });
                } else if kill.reason == KillReason::Device {
                    self.failed.entry(run).or_insert_with(|| {
                        let asked = c.run.course().unwrap().asked.as_ref().unwrap();
                        let had = asked.effective.devices.get(crate::world::PORT);
                        let had = had.map_or(&[][..], Vec::as_slice);
                        assert!(Self::is_replugged(pod, had), "{kill:?}");
                        kill.grace_ms.max(2_000)
                    });
                } else if kill.reason == KillReason::InPlace && pod.restarts_all() {
                    self.failed.insert(run, 0);
                } else if pod.finishing().is_some() && pod.stopping().is_none() {
                    // A container that ends with its pod gets no more time if the pod has to go meanwhile.
                    let grace_ms = kill.grace_ms.max(2_000);
                    self.failed.entry(run).or_insert(grace_ms);
                }
            }
        }
    }

    /// A shutdown leaves less time to pods that are going away.
    pub(super) fn note_shorter_graces(&mut self) {
        for (uid, going) in &mut self.going {
            let pod = self.state.pods.get(uid).and_then(|pod| pod.stopping());
            if let Some(stopping) = pod.filter(|_| self.state.shutdown.is_some()) {
                going.grace_ms = going.grace_ms.min(stopping.grace_ms().max(2_000));
            }
        }
    }

    /// Remembers, also across agent restarts, the runs that a failed probe or hook kills.
    pub(super) fn note_failures(&mut self, event: &Event) {
        let Event::Run {
            instance,
            fact: RunFact::ProbeDone { .. } | RunFact::HookDone { .. },
        } = event
        else {
            return;
        };
        let Instance { pod, container, .. } = instance;
        let Some(state) = self.state.pods.get(pod) else {
            return;
        };
        let Some(run) = state.container(container).unwrap().run.running() else {
            return;
        };
        let probes = [&run.tracks.liveness, &run.tracks.startup];
        let failed = probes.iter().any(|track| track.result == Some(false));
        if failed || run.course.hooks.failure.is_some() {
            let run = (pod.clone(), container.clone(), run.attempt);
            let grace_ms = state.spec.grace_ms.max(2_000);
            self.failed.entry(run).or_insert(grace_ms);
        }
    }
}
