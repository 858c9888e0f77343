//! Which parts of the kernel will be needed? Left to itself it loads each module when a rule first names it, gives up the
//! whole transaction of rules for that, and begins it again: the first rules after a boot cost some forty runs of
//! `modprobe`, each one slow on a small machine. One run for all of them saves that.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::sys::process;

/// What rules, links and containers of all kinds use. Which of them are built in, or not there at all, does not matter.
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

/// What takes longer goes on without us.
const LIMIT: Duration = Duration::from_secs(30);

/// Has the kernel load what it has not. That it cannot be asked is no error: it then loads them one by one, as above.
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
