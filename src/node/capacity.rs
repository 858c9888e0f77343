//! The node's capacity and allocatable resources: amounts by resource, and what is reserved for the system, for
//! coracle, and by the eviction thresholds (Kubernetes docs: Reserve Compute Resources).

use std::fs;
use std::path::Path;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::config::{Amounts, Reserved, Settings, Signal};
use crate::spec::{HugePages, PageSize};
use crate::sys::file;
use crate::types::Gather;

/// The kernel's folder of huge page pools.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// The machine's resources, read once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Machine {
    /// Processors, in thousandths.
    pub(super) cpu_milli: u64,
    /// Memory in bytes.
    pub(super) memory_bytes: u64,
    /// The size of the file system with pods' state and images, in bytes.
    pub(super) storage_bytes: u64,
    /// Huge pages in bytes, of every size that the kernel has.
    pub(super) huge_pages: HugePages,
}

impl Machine {
    /// Blocking. Reads the machine's resources; `root` is on the file system of pods' state. What cannot be read
    /// counts as zero.
    pub(super) fn look(root: &Path) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        Self {
            cpu_milli: cores * 1000,
            memory_bytes: crate::sys::meminfo::now("MemTotal"),
            storage_bytes: storage(root),
            huge_pages: huge_pages(Path::new(HUGE_PAGES)),
        }
    }
}

/// Capacity and its shares: thousandths of `cpu`, bytes or numbers of everything else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shares {
    /// All resources of the node.
    pub(super) capacity: Amounts,
    /// What pods may request together.
    pub(super) allocatable: Amounts,
    /// What is reserved.
    kept: Amounts,
}

/// A reserve exceeds the capacity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid Node Allocatable configuration. Resource {resource:?} has a reservation of {reservation} but capacity of \
     {capacity}. Expected capacity >= reservation."
)]
pub struct OverReserved {
    resource: String,
    reservation: String,
    capacity: String,
}

impl Shares {
    /// Checks that the reserves fit the capacity.
    pub(super) fn check(&self) -> Result<(), OverReserved> {
        let none = 0;
        for (name, kept) in &self.kept {
            let there = *self.capacity.get(name).unwrap_or(&none);
            if *kept > there && self.capacity.contains_key(name) {
                return Err(OverReserved {
                    resource: name.clone(),
                    reservation: quantity(name, *kept).0,
                    capacity: quantity(name, there).0,
                });
            }
        }
        Ok(())
    }
}

/// Divides the machine's resources as the settings say.
pub(super) fn share_out(machine: &Machine, reserved: &Reserved, settings: &Settings) -> Shares {
    let per_core = u64::from(settings.pods_per_core) * (machine.cpu_milli / 1000);
    let most = u64::from(settings.max_pods);
    let pods = if per_core > 0 {
        most.min(per_core)
    } else {
        most
    };
    let mut capacity = Amounts::from([
        ("cpu".to_owned(), machine.cpu_milli),
        ("memory".to_owned(), machine.memory_bytes),
        ("ephemeral-storage".to_owned(), machine.storage_bytes),
        ("pods".to_owned(), pods),
    ]);
    let huge = machine.huge_pages.iter();
    capacity.extend(huge.map(|(size, bytes)| (size.resource(), *bytes)));
    let mut kept = Amounts::new();
    for (name, amount) in reserved.system.iter().chain(&reserved.kube) {
        let sum = kept.entry(name.clone()).or_default();
        *sum = sum.saturating_add(*amount);
    }
    for threshold in &settings.eviction.hard {
        let name = match threshold.signal {
            Signal::MemoryAvailable => "memory",
            Signal::NodefsAvailable => "ephemeral-storage",
            Signal::NodefsInodesFree
            | Signal::ImagefsAvailable
            | Signal::ImagefsInodesFree
            | Signal::ContainerfsAvailable
            | Signal::ContainerfsInodesFree
            | Signal::PidAvailable => continue,
        };
        let sum = kept.entry(name.to_owned()).or_default();
        let whole = capacity.get(name).copied().unwrap_or(0);
        *sum = sum.saturating_add(threshold.below.of(whole));
    }
    let huge: u64 = machine.huge_pages.values().sum();
    let allocatable = capacity.iter().map(|(name, there)| {
        let kept = kept.get(name).copied().unwrap_or(0);
        // Huge pages are not available as ordinary memory.
        let kept = kept.saturating_add(if name == "memory" { huge } else { 0 });
        (name.clone(), there.saturating_sub(kept))
    });
    Shares {
        allocatable: allocatable.gather(),
        capacity,
        kept,
    }
}

/// An amount as the Kubernetes API writes it: `2`, `1500m`, `8010Ki`, `2Gi`.
pub(super) fn quantity(resource: &str, amount: u64) -> Quantity {
    let (scale, suffix) = match resource {
        "cpu" => (1000, "m"),
        "pods" | "pid" => (1, ""),
        _ => return Quantity(bytes(amount)),
    };
    Quantity(match amount % scale {
        0 => (amount / scale).to_string(),
        _ => format!("{amount}{suffix}"),
    })
}

/// With the largest binary suffix that divides it, as Kubernetes writes it.
fn bytes(amount: u64) -> String {
    let (mut number, mut suffix) = (amount, "");
    for larger in ["Ki", "Mi", "Gi", "Ti"] {
        if number == 0 || number % 1024 != 0 {
            break;
        }
        (number, suffix) = (number / 1024, larger);
    }
    format!("{number}{suffix}")
}

/// The size of the file system that `path` is on, in bytes.
#[allow(
    clippy::unnecessary_cast,
    clippy::useless_conversion,
    reason = "the types of statvfs are narrower on 32-bit machines"
)]
fn storage(path: &Path) -> u64 {
    nix::sys::statvfs::statvfs(path).map_or(0, |fs| fs.blocks() as u64 * fs.fragment_size() as u64)
}

/// All pools, including empty ones.
fn huge_pages(folder: &Path) -> HugePages {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let pool = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kib = name.to_str()?.strip_prefix("hugepages-")?;
        let kib: u64 = kib.strip_suffix("kB")?.parse().ok()?;
        let pages = file::read_text(entry.path().join("nr_hugepages")).ok()?;
        let pages: u64 = pages.trim().parse().ok()?;
        let size = PageSize::from_kib(kib)?;
        Some((size, pages.saturating_mul(size.bytes())))
    };
    entries.filter_map(pool).gather()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Amount, Eviction, Threshold};

    const GI: u64 = 1 << 30;
    const MI: u64 = 1 << 20;

    fn machine() -> Machine {
        Machine {
            cpu_milli: 4000,
            memory_bytes: 8 * GI,
            storage_bytes: 100 * GI,
            huge_pages: [(PageSize::from_kib(2048).expect("not 0"), GI)].into(),
        }
    }

    fn settings(hard: &[(Signal, Amount)]) -> Settings {
        let hard = hard.iter().map(|(signal, below)| Threshold {
            signal: *signal,
            below: *below,
            grace_ms: 0,
            min_reclaim: None,
        });
        let settings = Settings::default();
        Settings {
            eviction: Eviction {
                hard: hard.collect(),
                ..settings.eviction
            },
            ..settings
        }
    }

    fn amounts(list: &[(&str, u64)]) -> Amounts {
        list.iter()
            .map(|(name, amount)| ((*name).to_owned(), *amount))
            .collect()
    }

    #[test]
    fn pods_may_have_what_nothing_else_is_to_have() {
        let reserved = Reserved {
            system: amounts(&[("cpu", 250), ("memory", GI), ("pid", 100)]),
            kube: amounts(&[("cpu", 100), ("ephemeral-storage", 5 * GI)]),
            ..Reserved::default()
        };
        let settings = settings(&[
            (Signal::MemoryAvailable, Amount::Count(100 * MI)),
            (Signal::NodefsAvailable, Amount::Share(0.1)),
            (Signal::ImagefsAvailable, Amount::Share(0.15)),
        ]);
        let shares = share_out(&machine(), &reserved, &settings);
        assert_eq!(shares.capacity["pods"], 110);
        assert_eq!(shares.capacity["memory"], 8 * GI);
        assert_eq!(
            shares.allocatable,
            amounts(&[
                ("cpu", 3650),
                ("memory", 6 * GI - 100 * MI),
                ("ephemeral-storage", 85 * GI),
                ("hugepages-2Mi", GI),
                ("pods", 110),
            ])
        );
        assert_eq!(shares.check(), Ok(()));
    }

    #[test]
    fn more_cannot_be_kept_back_than_there_is() {
        let reserved = Reserved {
            system: amounts(&[("memory", 5 * GI)]),
            kube: amounts(&[("memory", 4 * GI)]),
            ..Reserved::default()
        };
        let shares = share_out(&machine(), &reserved, &settings(&[]));
        assert_eq!(shares.allocatable["memory"], 0);
        let error = shares.check().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of 9Gi but capacity of 8Gi. \
             Expected capacity >= reservation."
        );
    }

    #[test]
    fn few_cores_take_few_pods_if_they_are_counted() {
        for (per_core, most, expected) in [(0, 110, 110), (10, 110, 40), (50, 110, 110)] {
            let settings = Settings {
                pods_per_core: per_core,
                max_pods: most,
                ..settings(&[])
            };
            let shares = share_out(&machine(), &Reserved::default(), &settings);
            assert_eq!(shares.allocatable["pods"], expected, "{per_core} a core");
        }
    }

    #[test]
    fn amounts_are_said_as_kubernetes_does() {
        for (resource, amount, expected) in [
            ("cpu", 2000, "2"),
            ("cpu", 1900, "1900m"),
            ("memory", 8 * GI, "8Gi"),
            ("memory", 8 * GI - 1024, "8388607Ki"),
            ("ephemeral-storage", 1001, "1001"),
            ("hugepages-1Gi", 0, "0"),
            ("pods", 110, "110"),
        ] {
            assert_eq!(quantity(resource, amount).0, expected);
        }
    }

    #[test]
    fn pools_of_huge_pages_have_kubernetes_names() {
        let folder = std::env::temp_dir().join(format!("coracle-pages-{}", std::process::id()));
        for (name, pages) in [
            ("hugepages-2048kB", "3\n"),
            ("hugepages-1048576kB", "0\n"),
            ("hugepages-64kB", "1\n"),
        ] {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("nr_hugepages"), pages).unwrap();
        }
        let found = huge_pages(&folder);
        fs::remove_dir_all(&folder).unwrap();
        let expected = [
            ("hugepages-1Gi", 0),
            ("hugepages-2Mi", 6 * MI),
            ("hugepages-64Ki", 65_536),
        ];
        let size = |name| PageSize::of_resource(name).expect(name);
        let expected = expected.map(|(name, bytes)| (size(name), bytes));
        assert_eq!(found, HugePages::from(expected));
    }
}
