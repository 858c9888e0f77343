//! Kernel modules for the packet rules, loaded ahead. The kernel loads each module when a rule first names it,
//! drops the whole transaction for that, and begins it again: the first rules after a boot cost some forty runs of
//! `modprobe`, each one slow on a small machine. One run for all of them saves that.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::sys::process;

/// The modules that rules, links and containers of all kinds use. Modules that are built in or missing do no harm.
const MODULES: [&str; 13] = [
    "bridge",
    "veth",
    "overlay",
    "nf_tables",
    "nft_chain_nat",
    "nft_ct",
    "nft_fib_inet",
    "nft_hash",
    "nft_masq",
    "nft_meta_bridge",
    "nft_nat",
    "nft_numgen",
    "nft_reject_inet",
];

/// A longer run continues without being waited for.
const LIMIT: Duration = Duration::from_secs(30);

/// Loads missing modules. A failure is no error: the kernel then loads them one by one, as above.
pub(super) fn load() {
    let missing: Vec<&str> = MODULES
        .into_iter()
        .filter(|name| !Path::new("/sys/module").join(name).exists())
        .collect();
    let Some(modprobe) = process::find_program("modprobe").filter(|_| !missing.is_empty()) else {
        return;
    };
    let started = Command::new(modprobe)
        .args(["-a", "-b", "-q"])
        .args(missing)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Ok(mut child) = started {
        process::wait_at_most(&mut child, LIMIT);
    }
}
