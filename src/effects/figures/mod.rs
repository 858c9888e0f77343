//! The resource usage of the machine, read from the kernel on request. What the kernel does not report is `None`.

mod disk;

pub use disk::{Taken, taken, taken_by_files};

use super::cgroup::{CpuTime, Memory, Pressure, Swap, Usage, field};
use crate::network::Traffic;

use crate::sys::clock;
use crate::sys::file;
use crate::sys::meminfo::MemInfo;

/// Ticks for each second: the unit of cpu time that the kernel shows to user space.
const TICKS: u64 = 100;

/// Blocking. The usage of the whole machine.
pub fn machine() -> Usage {
    let read = |path: &str| file::read_text(path).unwrap_or_default();
    let pressure = |what: &str| Pressure::parse(&read(&format!("/proc/pressure/{what}")));
    let info = MemInfo::read();
    Usage {
        cpu: machine_cpu(),
        memory: memory(&info, &read("/proc/vmstat")),
        swap: swap(&info),
        processes: threads(&read("/proc/loadavg")),
        cpu_pressure: pressure("cpu"),
        memory_pressure: pressure("memory"),
        io_pressure: pressure("io"),
    }
}

/// Blocking. The cpu time of the whole machine.
pub fn machine_cpu() -> Option<CpuTime> {
    let stat = file::read_text("/proc/stat").ok()?;
    let at = clock::now();
    Some(CpuTime {
        ns: busy_ticks(&stat)? * (1_000_000_000 / TICKS),
        at,
    })
}

/// Blocking. The usage of this process.
pub fn own_process() -> Usage {
    let stat = file::read_text("/proc/self/stat").unwrap_or_default();
    let at = clock::now();
    // The name in parentheses may contain anything. Counted after it, from the third field on: user and system time
    // are the 14th and 15th, faults the 10th and 12th, memory in pages the 24th.
    let fields: Vec<u64> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .map(|field| field.trim().parse().unwrap_or(0))
        .collect();
    let of = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
    let page = page
        .ok()
        .flatten()
        .and_then(|size| u64::try_from(size).ok());
    let bytes = of(24).saturating_mul(page.unwrap_or(4096));
    Usage {
        cpu: Some(CpuTime {
            ns: (of(14) + of(15)) * (1_000_000_000 / TICKS),
            at,
        }),
        memory: Some(Memory {
            usage_bytes: bytes,
            working_set_bytes: bytes,
            rss_bytes: bytes,
            limit_bytes: None,
            page_faults: of(10),
            major_page_faults: of(12),
        }),
        ..Usage::default()
    }
}

/// Blocking. The number of processes and threads on the machine.
pub fn running_threads() -> Option<u64> {
    threads(&file::read_text("/proc/loadavg").ok()?)
}

/// Blocking. The interfaces of the node except `lo`, and their traffic.
pub fn interfaces() -> Vec<(String, Traffic)> {
    parse_interfaces(&file::read_text("/proc/net/dev").unwrap_or_default())
}

/// cpu time in user and kernel mode, guests included; without idle and I/O wait.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq; guests' time is in user's.
    let busy = ticks.iter().take(7).enumerate();
    let busy = busy.filter(|(index, _)| !matches!(index, 3 | 4));
    Some(busy.map(|(_, ticks)| ticks).sum())
}

fn memory(info: &MemInfo, vmstat: &str) -> Option<Memory> {
    let of = |name: &str| info.bytes(name);
    let total = of("MemTotal")?;
    let usage_bytes = total.saturating_sub(of("MemFree")?);
    Some(Memory {
        usage_bytes,
        working_set_bytes: usage_bytes.saturating_sub(of("Inactive(file)").unwrap_or(0)),
        rss_bytes: of("AnonPages").unwrap_or(0),
        limit_bytes: Some(total),
        page_faults: field(vmstat, "pgfault").unwrap_or(0),
        major_page_faults: field(vmstat, "pgmajfault").unwrap_or(0),
    })
}

/// `None` without swap.
fn swap(info: &MemInfo) -> Option<Swap> {
    let total = info.bytes("SwapTotal").filter(|total| *total > 0)?;
    Some(Swap {
        usage_bytes: total.saturating_sub(info.bytes("SwapFree")?),
        limit_bytes: Some(total),
    })
}

/// `0.01 0.02 0.03 1/234 5678`: the number behind the slash.
fn threads(loadavg: &str) -> Option<u64> {
    loadavg.split('/').nth(1)?.split(' ').next()?.parse().ok()
}

fn parse_interfaces(text: &str) -> Vec<(String, Traffic)> {
    let line = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect();
        let [
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            _,
            _,
            _,
            _,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
            ..,
        ] = numbers[..]
        else {
            return None;
        };
        let traffic = Traffic {
            rx_bytes,
            rx_packets,
            rx_dropped,
            rx_errors,
            tx_bytes,
            tx_packets,
            tx_dropped,
            tx_errors,
        };
        Some((name.trim().to_owned(), traffic))
    };
    let all = text.lines().filter_map(line);
    all.filter(|(name, _)| name != "lo").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_figures_are_those_of_proc() {
        assert_eq!(
            busy_ticks("cpu  10 2 30 4000 500 6 7 80 9 9\ncpu0 1 1 1 1\n"),
            Some(55)
        );
        let info = "MemTotal:        1000 kB\nMemFree:          400 kB\nInactive(file):   100 kB\nAnonPages:        50 kB\n\
                    SwapTotal:       200 kB\nSwapFree:        150 kB\n";
        let info = &MemInfo::from(info);
        let found = memory(info, "pgfault 12\npgmajfault 3\n").unwrap();
        assert_eq!(found.usage_bytes, 600 * 1024);
        assert_eq!(found.working_set_bytes, 500 * 1024);
        assert_eq!((found.page_faults, found.major_page_faults), (12, 3));
        let swap_found = swap(info).unwrap();
        assert_eq!(swap_found.usage_bytes, 50 * 1024);
        assert_eq!(
            swap(&MemInfo::from("SwapTotal: 0 kB\nSwapFree: 0 kB\n")),
            None
        );
        assert_eq!(threads("4.72 3.52 2.65 3/138 28457\n"), Some(138));
    }

    #[test]
    fn interfaces_are_named_with_what_went_through_them() {
        let text = "Inter-|   Receive |  Transmit\n face |bytes packets\n    lo: 1 2 0 0 0 0 0 0 1 2 0 0 0 0 0 0\n\
                    eth0: 100 2 3 4 0 0 0 0 200 6 7 8 0 0 0 0\n";
        let found = parse_interfaces(text);
        assert_eq!(found.len(), 1);
        let (name, traffic) = &found[0];
        assert_eq!((name.as_str(), traffic.rx_bytes), ("eth0", 100));
        assert_eq!((traffic.rx_errors, traffic.rx_dropped), (3, 4));
        assert_eq!((traffic.tx_bytes, traffic.tx_packets), (200, 6));
        assert_eq!((traffic.tx_errors, traffic.tx_dropped), (7, 8));
    }

    #[test]
    fn this_process_uses_memory_and_the_machine_processors() {
        let own = own_process();
        assert!(own.memory.is_some_and(|memory| memory.rss_bytes > 100_000));
        let whole = machine();
        assert!(whole.cpu.is_some_and(|cpu| cpu.ns > 0));
        let memory = whole.memory.expect("every Linux tells");
        assert!(
            memory
                .limit_bytes
                .is_some_and(|all| all > memory.usage_bytes)
        );
        assert!(crate::sys::process::most() > whole.processes);
    }
}
