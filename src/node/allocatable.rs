//! Node allocatable: the limits of pods, system and kubelet programs, enforced by the cgroups above them
//! (Kubernetes docs: Resource Management, Reserve Compute Resources; KEP-2570).

use super::Node;
use super::capacity::Machine;
use super::publish::Shown;
use crate::config::{Amounts, Enforce, Reserved, processes_for_pods};
use crate::effects::cgroup::{CgroupError, Cgroups, NodeLimits, QosRequests};
use crate::plan::classes::{Classes, classes};
use crate::spec::{Reason, Severity};
use crate::sys::process;

/// The node events about it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Enforced(Vec<(Reason, String)>);

impl Enforced {
    /// Blocking. Limits pods to what is not reserved, and reserved cgroups as the settings say.
    pub(super) fn begin(cgroups: &Cgroups, machine: &Machine, reserved: &Reserved) -> Self {
        let mut report = Self::default();
        let all = reserved.enforce.contains(&Enforce::Pods);
        let pods = match all {
            true => for_pods(machine, reserved, process::most()),
            // Values from before the agent restart no longer count. Processes are limited all the
            // same: without any left, a login to repair the node fails.
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
            report.note(done, updated, failed);
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
            report.note(
                done,
                format!("Updated limits on {lower} reserved cgroup {path}"),
                format!("Failed to enforce {name} Reserved Cgroup Limits on {path:?}"),
            );
        }
        report
    }

    fn note(&mut self, done: Result<(), CgroupError>, updated: String, failed: String) {
        self.0.push(match done {
            Ok(()) => (Reason::NodeAllocatableEnforced, updated),
            Err(error) => (
                Reason::FailedNodeAllocatableEnforcement,
                format!("{failed}: {}", crate::chain(&error)),
            ),
        });
    }

    /// Emits the results as events of the node.
    pub(super) fn publish(&self, shown: &mut Shown) {
        for (reason, message) in &self.0 {
            if reason.severity() == Severity::Warning {
                tracing::warn!("{message}, going on");
            }
            shown.node_event(*reason, message);
        }
    }
}

/// The capacity without the reserves. The eviction threshold still belongs to pods here.
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

/// The shares of the QoS classes.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The shares written last.
    written: Option<Classes>,
    /// The task that writes them; the next one waits for it.
    pub(super) writing: Option<smol::Task<()>>,
}

impl Node {
    /// After each decision: writes the shares if the requests of the QoS classes have changed.
    pub(super) fn share_among_classes(&mut self) {
        let now = classes(&self.state);
        if self.classes.written == Some(now) {
            return;
        }
        self.classes.written = Some(now);
        let previous = self.classes.writing.take();
        let cgroups = self.tools.sandboxes.cgroups.clone();
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
            // None of them can be reserved, as with a kubelet.
            huge_pages: Some(Some(machine.huge_pages.clone())),
        };
        assert_eq!(for_pods(&machine, &reserved, Some(2_024)), expected);
        // Some are reserved in any case: a fork bomb must not prevent a login.
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
