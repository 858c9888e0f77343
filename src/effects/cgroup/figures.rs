//! The resource usage of a cgroup, read on request. What the kernel does not report is `None`.

use std::time::Instant;

use super::values::bound;
use super::{Cgroups, Mode};
use crate::sys::clock;

/// cpu time, and when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTime {
    /// Nanoseconds since the cgroup was made.
    pub ns: u64,
    /// When it was read.
    pub at: Instant,
}

/// Memory in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bytes charged, including the page cache.
    pub usage_bytes: u64,
    /// The working set: the same without inactive page cache.
    pub working_set_bytes: u64,
    /// Anonymous memory in bytes.
    pub rss_bytes: u64,
    /// The memory limit in bytes.
    pub limit_bytes: Option<u64>,
    /// The number of page faults.
    pub page_faults: u64,
    /// The number of page faults that read from a disk.
    pub major_page_faults: u64,
}

/// Swap in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    /// Bytes in use.
    pub usage_bytes: u64,
    /// The limit in bytes, if there is one.
    pub limit_bytes: Option<u64>,
}

/// Pressure stall information (the kernel's Documentation/accounting/psi.rst).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Some processes waited.
    pub some: Stall,
    /// All processes waited at once.
    pub full: Stall,
}

/// One line of a pressure file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 s, 60 s and 300 s.
    pub averages: [f64; 3],
    /// Microseconds in all.
    pub total_us: u64,
}

/// The usage of a cgroup and all below it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// cpu time.
    pub cpu: Option<CpuTime>,
    /// Memory in use.
    pub memory: Option<Memory>,
    /// Swap in use.
    pub swap: Option<Swap>,
    /// The number of processes and threads.
    pub processes: Option<u64>,
    /// cpu pressure; only on v2, as the next two.
    pub cpu_pressure: Option<Pressure>,
    /// Memory pressure.
    pub memory_pressure: Option<Pressure>,
    /// I/O pressure.
    pub io_pressure: Option<Pressure>,
}

impl Cgroups {
    /// The cgroup of all pods.
    pub fn pods_path(&self) -> String {
        format!("{}/pods", self.root)
    }

    /// Blocking. The cpu time of a cgroup.
    pub fn cpu_time(&self, path: &str) -> Option<CpuTime> {
        let ns = match self.mode() {
            Mode::V1 => number(&self.text(path, "cpuacct.usage")?)?,
            Mode::V2 => field(&self.text(path, "cpu.stat")?, "usage_usec")?.checked_mul(1000)?,
        };
        let at = clock::now();
        Some(CpuTime { ns, at })
    }

    /// Blocking. All usage of a cgroup.
    pub fn usage(&self, path: &str) -> Usage {
        let pressure = |file| match self.mode() {
            Mode::V1 => None,
            Mode::V2 => Pressure::parse(&self.text(path, file)?),
        };
        let memory = self.text(path, "memory.stat");
        let memory = memory.as_deref();
        Usage {
            cpu: self.cpu_time(path),
            memory: memory.and_then(|stat| self.memory(path, stat)),
            swap: memory.and_then(|stat| self.swap(path, stat)),
            processes: self
                .text(path, "pids.current")
                .and_then(|text| number(&text)),
            cpu_pressure: pressure("cpu.pressure"),
            memory_pressure: pressure("memory.pressure"),
            io_pressure: pressure("io.pressure"),
        }
    }

    /// Blocking. The memory of a cgroup.
    pub(super) fn memory_of(&self, path: &str) -> Option<Memory> {
        self.memory(path, &self.text(path, "memory.stat")?)
    }

    fn memory(&self, path: &str, stat: &str) -> Option<Memory> {
        let mode = self.mode();
        let [inactive, rss, faults, major] = match mode {
            Mode::V1 => [
                "total_inactive_file",
                "total_rss",
                "total_pgfault",
                "total_pgmajfault",
            ],
            Mode::V2 => ["inactive_file", "anon", "pgfault", "pgmajfault"],
        };
        let of = |name| field(stat, name).unwrap_or(0);
        let usage_bytes = number(&self.text(path, mode.usage())?)?;
        let limit = self.text(path, mode.limit_file(super::limits::Resource::Memory));
        Some(Memory {
            usage_bytes,
            working_set_bytes: usage_bytes.saturating_sub(of(inactive)),
            rss_bytes: of(rss),
            limit_bytes: limit.as_deref().and_then(bound),
            page_faults: of(faults),
            major_page_faults: of(major),
        })
    }

    fn swap(&self, path: &str, stat: &str) -> Option<Swap> {
        let limit = |file| self.text(path, file).as_deref().and_then(bound);
        match self.mode() {
            // v1 limits both together, and knows neither where swap is not counted.
            Mode::V1 => Some(Swap {
                usage_bytes: field(stat, "total_swap")?,
                limit_bytes: limit("memory.memsw.limit_in_bytes")
                    .and_then(|both| Some(both.saturating_sub(limit("memory.limit_in_bytes")?))),
            }),
            Mode::V2 => Some(Swap {
                usage_bytes: number(&self.text(path, "memory.swap.current")?)?,
                limit_bytes: limit("memory.swap.max"),
            }),
        }
    }

    pub(super) fn text(&self, path: &str, file: &str) -> Option<String> {
        self.hierarchies.read(path, file).ok()
    }
}

impl Pressure {
    /// Reads a pressure file. A kernel without a `full` line reports zero for it.
    pub fn parse(text: &str) -> Option<Self> {
        let line = |name: &str| {
            let mut lines = text.lines();
            lines.find_map(|line| Stall::parse(line.strip_prefix(name)?))
        };
        Some(Self {
            some: line("some ")?,
            full: line("full ").unwrap_or_default(),
        })
    }
}

impl Stall {
    /// `avg10=0.00 avg60=0.00 avg300=0.00 total=0`
    fn parse(fields: &str) -> Option<Self> {
        let of = |name: &str| {
            let mut all = fields.split(' ');
            all.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let average = |name: &str| of(name)?.parse::<f64>().ok();
        Some(Self {
            averages: [average("avg10")?, average("avg60")?, average("avg300")?],
            total_us: of("total")?.trim().parse().ok()?,
        })
    }
}

pub(super) fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind a name, of lines `name number`.
pub(in crate::effects) fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| number(line.strip_prefix(name)?.strip_prefix(' ')?))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::super::LimitSettings;
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        /// A cgroup `/coracle/pods/x` with these files.
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let dir = std::env::temp_dir().join(format!("coracle-{name}-{}", std::process::id()));
            let group = dir.join("coracle/pods/x");
            fs::create_dir_all(&group).unwrap();
            for (file, text) in files {
                fs::write(group.join(file), text).unwrap();
            }
            Self(dir)
        }

        fn usage(&self, mode: Mode) -> Usage {
            let settings = LimitSettings::default();
            Cgroups::in_folder(&self.0, mode, settings).usage("/coracle/pods/x")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn everything_is_read_on_v2() {
        let some = "some avg10=1.50 avg60=0.25 avg300=0.00 total=42\n";
        let both = format!("{some}full avg10=0.50 avg60=0.00 avg300=0.00 total=7\n");
        let folder = Folder::new(
            "figures2",
            &[
                ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
                ("memory.current", "1000\n"),
                ("memory.max", "max\n"),
                (
                    "memory.stat",
                    "anon 300\nfile 600\nfile_mapped 1\ninactive_file 250\npgfault 9\npgmajfault 2\n",
                ),
                ("memory.swap.current", "64\n"),
                ("memory.swap.max", "128\n"),
                ("pids.current", "3\n"),
                ("cpu.pressure", some),
                ("memory.pressure", &both),
            ],
        );
        let usage = folder.usage(Mode::V2);
        assert_eq!(usage.cpu.map(|cpu| cpu.ns), Some(1_500_000));
        let memory = Memory {
            usage_bytes: 1000,
            working_set_bytes: 750,
            rss_bytes: 300,
            limit_bytes: None,
            page_faults: 9,
            major_page_faults: 2,
        };
        assert_eq!(usage.memory, Some(memory));
        let swap = Swap {
            usage_bytes: 64,
            limit_bytes: Some(128),
        };
        assert_eq!(usage.swap, Some(swap));
        assert_eq!(usage.processes, Some(3));
        let cpu = usage.cpu_pressure.unwrap();
        assert_eq!(cpu.some.averages, [1.5, 0.25, 0.0]);
        assert_eq!(cpu.full, Stall::default());
        assert_eq!(usage.memory_pressure.unwrap().full.total_us, 7);
        assert_eq!(usage.io_pressure, None);
    }

    #[test]
    fn what_v1_calls_otherwise_is_found() {
        let folder = Folder::new(
            "figures1",
            &[
                ("cpuacct.usage", "1500000\n"),
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.limit_in_bytes", "4096\n"),
                ("memory.memsw.limit_in_bytes", "5120\n"),
                (
                    "memory.stat",
                    "cache 1\nrss 1\ntotal_inactive_file 2000\ntotal_rss 300\ntotal_pgfault 9\ntotal_pgmajfault 2\ntotal_swap 5\n",
                ),
                ("cpu.pressure", "some avg10=0 avg60=0 avg300=0 total=0\n"),
            ],
        );
        let usage = folder.usage(Mode::V1);
        assert_eq!(usage.cpu.map(|cpu| cpu.ns), Some(1_500_000));
        let memory = usage.memory.unwrap();
        assert_eq!((memory.working_set_bytes, memory.rss_bytes), (0, 300));
        assert_eq!(memory.limit_bytes, Some(4096));
        let swap = Swap {
            usage_bytes: 5,
            limit_bytes: Some(1024),
        };
        assert_eq!(usage.swap, Some(swap));
        assert_eq!((usage.processes, usage.cpu_pressure), (None, None));
    }

    #[test]
    fn a_cgroup_that_is_gone_uses_nothing_that_is_known() {
        let folder = Folder::new("figures0", &[]);
        assert_eq!(folder.usage(Mode::V2), Usage::default());
    }
}
