//! The format of a kubelet's `/stats/summary` (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`).

use serde_json::{Map, Value, json};

use super::{AGENT, Container, Depth, MACHINE, Measured, Pod, Rates};
use crate::effects::cgroup::{Memory, Pressure, Stall, Swap, Usage};
use crate::effects::figures::Taken;
use crate::network::Traffic;
use crate::plan::status;
use crate::sys::clock;
use crate::sys::file_system::FileSystem;
use crate::types::Gather;
use crate::types::Wall;

/// The page with all measurements.
pub(super) fn of(node: &str, measured: &Measured, rates: &Rates, depth: Depth) -> Value {
    let page = Page {
        at: rfc3339(measured.at),
        rates,
        measured,
        whole: depth == Depth::Whole,
    };
    let pods: Vec<Value> = measured.pods.iter().map(|pod| page.pod(pod)).collect();
    json!({ "node": page.node(node), "pods": pods })
}

struct Page<'a> {
    at: String,
    rates: &'a Rates,
    measured: &'a Measured,
    whole: bool,
}

fn rfc3339(wall: Wall) -> String {
    status::time(wall).0.to_string()
}

/// An object of the known values.
fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let known = fields.into_iter();
    let known = known.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(known.gather::<Map<_, _>>())
}

impl Page<'_> {
    fn node(&self, name: &str) -> Value {
        let (m, usage) = (self.measured, &self.measured.machine);
        let up_us = i64::try_from(clock::boot_ms().saturating_mul(1000)).unwrap_or(0);
        let [state, images] = m.disks;
        let disk = |disk: Option<FileSystem>| disk.map(|disk| self.file_system(disk, None));
        let system = |name: &str, path: &str, usage: &Usage| {
            object([
                ("name", Some(name.into())),
                ("cpu", self.cpu(path, usage)),
                ("memory", self.memory(usage)),
                ("swap", self.swap(usage)),
            ])
        };
        object([
            ("nodeName", Some(name.into())),
            (
                "systemContainers",
                Some(json!([
                    system("kubelet", AGENT, &m.agent),
                    system("pods", &m.all_pods_path, &m.all_pods)
                ])),
            ),
            ("startTime", Some(rfc3339(Wall(m.at.0 - up_us)).into())),
            ("cpu", self.cpu(MACHINE, usage)),
            ("memory", self.memory(usage)),
            ("io", self.io(usage)),
            ("swap", self.swap(usage)),
            ("network", self.network(&m.interfaces)),
            ("fs", disk(state)),
            (
                "runtime",
                disk(images).map(|fs| json!({ "imageFs": fs, "containerFs": disk(state) })),
            ),
            ("rlimit", self.processes()),
        ])
    }

    fn pod(&self, pod: &Pod) -> Value {
        let spec = &pod.target.spec;
        let containers: Vec<Value> = pod.containers.iter().map(|c| self.container(c)).collect();
        let volumes: Vec<Value> = pod
            .volumes
            .iter()
            .filter_map(|(name, taken)| {
                let mut volume = self.file_system(self.measured.disks[0]?, Some(*taken));
                volume["name"] = name.as_str().into();
                Some(volume)
            })
            .collect();
        let traffic = pod.traffic.map(|traffic| ("eth0".to_owned(), traffic));
        let processes = pod.usage.processes.filter(|_| self.whole);
        object([
            (
                "podRef",
                Some(
                    json!({ "name": spec.key.name, "namespace": spec.key.namespace, "uid": spec.uid.as_str() }),
                ),
            ),
            ("startTime", Some(rfc3339(pod.target.created).into())),
            ("containers", Some(containers.into())),
            ("cpu", self.cpu(&pod.path, &pod.usage)),
            ("memory", self.memory(&pod.usage)),
            ("io", self.io(&pod.usage)),
            ("swap", self.swap(&pod.usage)),
            ("network", self.network(traffic.as_slice())),
            ("volume", (!volumes.is_empty()).then(|| volumes.into())),
            ("ephemeral-storage", self.storage(pod)),
            (
                "process_stats",
                processes.map(|count| json!({ "process_count": count })),
            ),
        ])
    }

    fn container(&self, container: &Container) -> Value {
        let disk =
            |taken: Option<Taken>| Some(self.file_system(self.measured.disks[0]?, Some(taken?)));
        object([
            ("name", Some(container.name.as_str().into())),
            ("startTime", Some(rfc3339(container.started).into())),
            ("cpu", self.cpu(&container.path, &container.usage)),
            ("memory", self.memory(&container.usage)),
            ("io", self.io(&container.usage)),
            ("swap", self.swap(&container.usage)),
            ("rootfs", disk(container.layer)),
            ("logs", disk(container.logs)),
        ])
    }

    /// Writable layers, logs, volumes and single files together.
    fn storage(&self, pod: &Pod) -> Option<Value> {
        let disk = self.measured.disks[0]?;
        let own = pod.containers.iter().flat_map(|c| [c.layer, c.logs]);
        let volumes = pod.volumes.iter().map(|(_, taken)| Some(*taken));
        let mut sum = Taken::default();
        for taken in own.chain(volumes).chain([Some(pod.files)]).flatten() {
            sum.bytes = sum.bytes.saturating_add(taken.bytes);
            sum.inodes = sum.inodes.saturating_add(taken.inodes);
        }
        Some(self.file_system(disk, Some(sum)))
    }

    fn time(&self) -> Option<Value> {
        Some(self.at.as_str().into())
    }

    fn cpu(&self, path: &str, usage: &Usage) -> Option<Value> {
        let cpu = usage.cpu?;
        Some(object([
            ("time", self.time()),
            ("usageNanoCores", self.rates.of(path).map(Value::from)),
            ("usageCoreNanoSeconds", Some(cpu.ns.into())),
            ("psi", usage.cpu_pressure.map(pressure)),
        ]))
    }

    fn memory(&self, usage: &Usage) -> Option<Value> {
        let memory: Memory = usage.memory?;
        let limit = memory.limit_bytes;
        let available = limit.map(|limit| limit.saturating_sub(memory.working_set_bytes));
        Some(object([
            ("time", self.time()),
            ("availableBytes", available.map(Value::from)),
            ("usageBytes", Some(memory.usage_bytes.into())),
            ("workingSetBytes", Some(memory.working_set_bytes.into())),
            ("rssBytes", Some(memory.rss_bytes.into())),
            ("pageFaults", Some(memory.page_faults.into())),
            ("majorPageFaults", Some(memory.major_page_faults.into())),
            ("psi", usage.memory_pressure.map(pressure)),
        ]))
    }

    fn io(&self, usage: &Usage) -> Option<Value> {
        let psi = usage.io_pressure.map(pressure)?;
        Some(object([("time", self.time()), ("psi", Some(psi))]))
    }

    fn swap(&self, usage: &Usage) -> Option<Value> {
        let swap: Swap = usage.swap?;
        let available = swap.limit_bytes;
        let available = available.map(|limit| limit.saturating_sub(swap.usage_bytes));
        Some(object([
            ("time", self.time()),
            ("swapAvailableBytes", available.map(Value::from)),
            ("swapUsageBytes", Some(swap.usage_bytes.into())),
        ]))
    }

    /// The first interface stands for all, which are listed.
    fn network(&self, interfaces: &[(String, Traffic)]) -> Option<Value> {
        let one = |(name, traffic): &(String, Traffic)| {
            json!({ "name": name, "rxBytes": traffic.rx_bytes, "rxErrors": traffic.rx_errors,
                    "txBytes": traffic.tx_bytes, "txErrors": traffic.tx_errors })
        };
        let mut network = one(interfaces.first()?);
        network["time"] = self.at.as_str().into();
        network["interfaces"] = interfaces.iter().map(one).collect();
        Some(network)
    }

    /// Everything that is not free counts as used, unless one user's share is known.
    fn file_system(&self, disk: FileSystem, taken: Option<Taken>) -> Value {
        let all = Taken {
            bytes: disk.capacity_bytes.saturating_sub(disk.available_bytes),
            inodes: disk.inodes.saturating_sub(disk.inodes_free),
        };
        let used = taken.unwrap_or(all);
        json!({ "time": self.at, "availableBytes": disk.available_bytes, "capacityBytes": disk.capacity_bytes,
                "usedBytes": used.bytes, "inodesFree": disk.inodes_free, "inodes": disk.inodes,
                "inodesUsed": used.inodes })
    }

    fn processes(&self) -> Option<Value> {
        let most = self.measured.most_processes?;
        Some(object([
            ("time", self.time()),
            ("maxpid", Some(most.into())),
            ("curproc", self.measured.machine.processes.map(Value::from)),
        ]))
    }
}

fn pressure(pressure: Pressure) -> Value {
    let stall = |stall: Stall| {
        let [ten, sixty, three_hundred] = stall.averages;
        // The kernel counts microseconds, the kubelet shows nanoseconds.
        json!({ "total": stall.total_us.saturating_mul(1000), "avg10": ten, "avg60": sixty, "avg300": three_hundred })
    };
    json!({ "full": stall(pressure.full), "some": stall(pressure.some) })
}
