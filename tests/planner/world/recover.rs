//! What a new agent finds: shims and what they hold, and the disk of the agent before it.

use super::*;

impl World {
    /// What a new agent finds. Requests in progress were finished by the shims, or never arrived.
    pub(crate) fn recover(&mut self) -> Vec<Event> {
        let running = std::mem::take(&mut self.running);
        for (_, generation, action) in running {
            if self.rng.chance(50) {
                self.execute(generation, action);
            }
        }
        self.hold_hooks();
        self.inbox.retain(|(_, _, e)| {
            matches!(
                e,
                Event::Node(NodeFact::DesiredChanged(_))
                    | Event::Node(NodeFact::ImagesChanged(None))
            )
        });
        let mut found = Vec::new();
        for disk in self.disk.values_mut() {
            disk.lost_said = !disk.shim;
            let sandbox = if disk.removed {
                RecoveredSandbox::Removed
            } else if disk.shim {
                let ips = vec![address(&disk.spec.uid)];
                RecoveredSandbox::Ready { ips }
            } else {
                RecoveredSandbox::Lost
            };
            let containers = disk.records.iter().map(|(name, record)| {
                let known = RecoveredContainer {
                    newest: record.newest.clone(),
                    previous: record.previous.clone(),
                    held_hooks: held_hooks(&self.held, (&disk.spec.uid, name), self.now),
                    ..RecoveredContainer::default()
                };
                (name.clone(), known)
            });
            found.push(Event::recovered(Recovered {
                spec: Arc::clone(&disk.spec),
                sandbox,
                containers: containers.collect(),
                memory: written(&disk.memory),
            }));
            found.push(Event::Pod {
                uid: disk.spec.uid.clone(),
                fact: PodFact::FormerEnds {
                    ends: disk.former.clone(),
                },
            });
        }
        found
    }
}

/// What the shim holds of a container's hooks.
fn held_hooks(
    held: &[(u64, HookOrder, HookOutcome)],
    (pod, container): (&PodUid, &str),
    now: u64,
) -> BTreeMap<HookKind, HeldHook> {
    let of_container = held.iter().filter(|(_, order, _)| {
        order.instance.pod == *pod && order.instance.container == container
    });
    let held = of_container.map(|(due, order, outcome)| {
        let held = match *due <= now {
            true => HeldHook::Done(outcome.clone()),
            false => HeldHook::Running,
        };
        (order.hook, held)
    });
    held.collect()
}
