//! The figures of `/proc/meminfo`.

use super::file;

/// The figures at one moment.
#[derive(Debug, Clone, Default)]
pub struct MemInfo(String);

impl MemInfo {
    /// Reads them; empty without `/proc`.
    pub fn read() -> Self {
        Self(file::read_text("/proc/meminfo").unwrap_or_default())
    }

    /// One figure in bytes: `MemTotal`, `SwapFree`. `None` if the kernel does not have it.
    pub fn bytes(&self, name: &str) -> Option<u64> {
        let mut lines = self.0.lines();
        let figure = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib = figure.trim().strip_suffix("kB")?.trim();
        kib.parse::<u64>().ok()?.checked_mul(1024)
    }
}

impl From<&str> for MemInfo {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// The current value of one figure in bytes; 0 if the kernel does not have it.
pub fn now(name: &str) -> u64 {
    MemInfo::read().bytes(name).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_whole_name_and_given_in_bytes() {
        let info = MemInfo::from(
            "MemTotal:       24684092 kB\nMemFree:         2875464 kB\nHugePages_Total:       0\n",
        );
        assert_eq!(info.bytes("MemFree"), Some(2_875_464 * 1024));
        assert_eq!(info.bytes("Mem"), None);
        assert_eq!(info.bytes("SwapFree"), None);
        assert_eq!(info.bytes("HugePages_Total"), None);
        assert!(now("MemTotal") > now("MemFree"));
    }
}
