//! How are the kernel's switches set? Only those that are not as they should be are written, so that a read-only
//! `/proc/sys` that is right does no harm. `/proc/sys/net` is that of the calling thread's namespace.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::NetworkError;

use crate::sys::file;

/// Where all of them are.
const ROOT: &str = "/proc/sys/net";

/// Whether the node has IPv6, and interfaces made from now on get it.
pub(super) fn ipv6_is_on() -> bool {
    let off = |name: &str| read(&format!("ipv6/conf/{name}/disable_ipv6")).as_deref() == Some("1");
    exists("ipv6") && !off("all") && !off("default")
}

/// Whether this interface takes part in it.
pub(super) fn ipv6_is_on_at(name: &str) -> bool {
    let switch = format!("ipv6/conf/{name}/disable_ipv6");
    ipv6_is_on() && read(&switch).as_deref() != Some("1")
}

/// Whether the kernel has such a switch or folder.
pub(super) fn exists(path: &str) -> bool {
    Path::new(ROOT).join(path).exists()
}

/// A switch's value.
pub(super) fn read(path: &str) -> Option<String> {
    let text = file::read_text(Path::new(ROOT).join(path)).ok()?;
    Some(text.trim().to_owned())
}

/// Sets a switch that must be so.
pub(super) fn require(path: &str, value: &'static str) -> Result<(), NetworkError> {
    if read(path).as_deref() == Some(value) {
        return Ok(());
    }
    fs::write(full(path), value).map_err(|source| NetworkError::Sysctl {
        path: full(path).display().to_string(),
        value,
        source,
    })
}

/// Sets a switch that had better be so, if it is there.
pub(super) fn prefer(path: &str, value: &'static str) {
    if read(path).is_some_and(|now| now != value) {
        let _only_better = fs::write(full(path), value);
    }
}

/// Lets the node pass on packets of both families. A node that does so ignores router advertisements unless told
/// otherwise, and with them would lose its own default route: interfaces that listen to them are told first.
pub(super) fn forward(ipv6: bool, own: impl Fn(&str) -> bool) -> Result<(), NetworkError> {
    require("ipv4/ip_forward", "1")?;
    if !ipv6 || read("ipv6/conf/all/forwarding").as_deref() == Some("1") {
        return Ok(());
    }
    for name in interfaces() {
        let path = format!("ipv6/conf/{name}/accept_ra");
        let special = name == "all" || name == "lo" || own(&name);
        if !special && read(&path).as_deref() == Some("1") {
            prefer(&path, "2");
        }
    }
    require("ipv6/conf/all/forwarding", "1")
}

/// `all`, `default` and every interface.
fn interfaces() -> Vec<String> {
    let Ok(entries) = fs::read_dir(full("ipv6/conf")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn full(path: &str) -> PathBuf {
    Path::new(ROOT).join(path)
}
