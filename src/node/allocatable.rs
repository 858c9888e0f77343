//! What may pods, the system and the kubelet's programs have, and how is that enforced? By the cgroups above them
//! (kubelet-behaviour §9.4, §9.5, §9.7).

use super::capacity::Machine;
use super::journal::Journal;
use super::{Node, publish};
use crate::api::EventType;
use crate::config::{Amounts, Enforce, Reserved, processes_for_pods};
use crate::effects::cgroup::{CgroupError, Cgroups, NodeLimits, QosRequests};
use crate::plan::classes::{Classes, classes};
use crate::sys::process;

/// What people are told of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Enforced(Vec<(EventType, String)>);

impl Enforced {
    /// Blocking. Bounds pods by what is not kept back, and others as the settings say.
    pub(super) fn begin(cgroups: &Cgroups, machine: &Machine, reserved: &Reserved) -> Self {
        let mut told = Self::default();
        let all = reserved.enforce.contains(&Enforce::Pods);
        let pods = match all {
            true => for_pods(machine, reserved, process::most()),
            // What an earlier agent may have written counts no more. Processes are bounded all the same: without any
            // left, logging in to mend the node fails.
            false => NodeLimits {
                cpu_milli: None,
                memory_bytes: Some(None),
                pids: Some(process::most().map(processes_for_pods)),
                huge_pages: Some(None),
            },
        };
        let done = cgroups.limit_pods(pods);
        if all || done.is_err() {
            let failed = "Failed to update Node Allocatable Limits".to_owned();
            let updated = "Updated Node Allocatable limit across pods".to_owned();
            told.note(done, updated, failed);
        }
        for enforce in &reserved.enforce {
            let (amounts, path, name) = match enforce {
                Enforce::Pods => continue,
                Enforce::SystemReserved | Enforce::SystemReservedCompressible => {
                    (&reserved.system, &reserved.system_cgroup, "System")
                }
                Enforce::KubeReserved | Enforce::KubeReservedCompressible => {
                    (&reserved.kube, &reserved.kube_cgroup, "Kube")
                }
            };
            let whole = matches!(enforce, Enforce::SystemReserved | Enforce::KubeReserved);
            let done = cgroups.limit_others(path, for_others(amounts, whole));
            let lower = name.to_lowercase();
            told.note(
                done,
                format!("Updated limits on {lower} reserved cgroup {path}"),
                format!("Failed to enforce {name} Reserved Cgroup Limits on {path:?}"),
            );
        }
        told
    }

    fn note(&mut self, done: Result<(), CgroupError>, updated: String, failed: String) {
        self.0.push(match done {
            Ok(()) => (EventType::Normal, updated),
            Err(error) => (
                EventType::Warning,
                format!("{failed}: {}", crate::chain(&error)),
            ),
        });
    }

    /// Shows what was done, as events of the node.
    pub(super) fn publish(&self, journal: &mut Journal, node: &str) {
        for (type_, message) in &self.0 {
            let reason = match type_ {
                EventType::Normal => "NodeAllocatableEnforced",
                EventType::Warning => {
                    tracing::warn!("{message}, going on");
                    "FailedNodeAllocatableEnforcement"
                }
            };
            publish::node_event(journal, node, *type_, reason, message);
        }
    }
}

/// What there is but for what is kept back. What pods are evicted for is theirs until then.
fn for_pods(machine: &Machine, reserved: &Reserved, most_processes: Option<u64>) -> NodeLimits {
    let left = |there: u64, name: &str| {
        let kept = |amounts: &Amounts| amounts.get(name).copied().unwrap_or(0);
        there
            .saturating_sub(kept(&reserved.system))
            .saturating_sub(kept(&reserved.kube))
    };
    NodeLimits {
        cpu_milli: Some(left(machine.cpu_milli, "cpu")),
        memory_bytes: Some(Some(left(machine.memory_bytes, "memory"))),
        pids: Some(most_processes.map(|most| left(most, "pid").min(processes_for_pods(most)))),
        huge_pages: Some(Some(machine.huge_pages.clone())),
    }
}

fn for_others(amounts: &Amounts, whole: bool) -> NodeLimits {
    let amount = |name: &str| amounts.get(name).copied();
    let rest = |name: &str| amount(name).filter(|_| whole).map(Some);
    NodeLimits {
        cpu_milli: amount("cpu"),
        memory_bytes: rest("memory"),
        pids: rest("pid"),
        huge_pages: None,
    }
}

/// How the classes of pods share what there is.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// As it was written last.
    written: Option<Classes>,
    /// Writes it; the next one waits for it.
    pub(super) writing: Option<smol::Task<()>>,
}

impl Node {
    /// After each decision: what the classes of pods ask for together may be something else.
    pub(super) fn share_among_classes(&mut self) {
        let now = classes(&self.state);
        if self.classes.written == Some(now) {
            return;
        }
        self.classes.written = Some(now);
        let previous = self.classes.writing.take();
        let cgroups = self.hands.sandboxes.cgroups.clone();
        let requests = QosRequests {
            burstable_cpu_milli: now.burstable_cpu_milli,
            burstable_memory_bytes: now.burstable_memory_bytes,
            guaranteed_memory_bytes: now.guaranteed_memory_bytes,
        };
        self.classes.writing = Some(super::task(async move {
            if let Some(previous) = previous {
                previous.await;
            }
            let wrote = super::unblock(move || cgroups.share_among_classes(requests)).await;
            if let Err(error) = wrote {
                tracing::warn!("{}, going on", crate::chain(&error));
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::PageSize;

    fn amounts(all: &[(&str, u64)]) -> Amounts {
        all.iter()
            .map(|(n, amount)| ((*n).to_owned(), *amount))
            .collect()
    }

    #[test]
    fn pods_have_what_is_not_kept_back() {
        let size = PageSize::from_kib(2048).expect("not 0");
        let machine = Machine {
            cpu_milli: 4_000,
            memory_bytes: 1_000,
            huge_pages: [(size, 4 << 20)].into(),
            ..Machine::default()
        };
        let reserved = Reserved {
            system: amounts(&[("cpu", 500), ("memory", 100)]),
            kube: amounts(&[("cpu", 250), ("pid", 1_024), ("memory", 1_000)]),
            ..Reserved::default()
        };
        let expected = NodeLimits {
            cpu_milli: Some(3_250),
            memory_bytes: Some(Some(0)),
            pids: Some(Some(1_000)),
            // None of them can be kept back, as with a kubelet.
            huge_pages: Some(Some(machine.huge_pages.clone())),
        };
        assert_eq!(for_pods(&machine, &reserved, Some(2_024)), expected);
        // Some are kept back in any case: a fork bomb must not keep people from logging in.
        let all = for_pods(&machine, &Reserved::default(), Some(32_768));
        assert_eq!(all.pids, Some(Some(29_492)));
        let unknown = for_pods(&machine, &Reserved::default(), None);
        assert_eq!(unknown.pids, Some(None));
    }

    #[test]
    fn others_have_what_is_kept_for_them_or_only_the_cpu_of_it() {
        let kept = amounts(&[("cpu", 500), ("memory", 100)]);
        let whole = NodeLimits {
            cpu_milli: Some(500),
            memory_bytes: Some(Some(100)),
            pids: None,
            huge_pages: None,
        };
        assert_eq!(for_others(&kept, true), whole);
        let cpu = NodeLimits {
            memory_bytes: None,
            ..whole
        };
        assert_eq!(for_others(&kept, false), cpu);
    }
}
