//! The id of this boot.

/// A new one with each start of the machine; empty if the kernel does not say.
pub fn read() -> String {
    let id = super::file::read_text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}
