//! Network sysctls. Only wrong values are written, so that a read-only `/proc/sys` with right values does no harm.
//! `/proc/sys/net` is that of the calling thread's namespace.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::NetworkError;

use crate::sys::file;

/// The folder of all of them.
const ROOT: &str = "/proc/sys/net";

/// Whether the node has IPv6, and new interfaces get it.
pub(super) fn ipv6_is_on() -> bool {
    let off = |name: &str| read(&format!("ipv6/conf/{name}/disable_ipv6")).as_deref() == Some("1");
    exists("ipv6") && !off("all") && !off("default")
}

/// Whether this interface has IPv6.
pub(super) fn ipv6_is_on_at(name: &str) -> bool {
    let switch = format!("ipv6/conf/{name}/disable_ipv6");
    ipv6_is_on() && read(&switch).as_deref() != Some("1")
}

/// Whether the kernel has this sysctl or folder.
pub(super) fn exists(path: &str) -> bool {
    Path::new(ROOT).join(path).exists()
}

/// A sysctl's value.
pub(super) fn read(path: &str) -> Option<String> {
    let text = file::read_text(Path::new(ROOT).join(path)).ok()?;
    Some(text.trim().to_owned())
}

/// Sets a required value.
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

/// Sets a preferred value, if the sysctl exists.
pub(super) fn prefer(path: &str, value: &'static str) {
    if read(path).is_some_and(|now| now != value) {
        let _only_better = fs::write(full(path), value);
    }
}

/// Enables forwarding of both families. A forwarding node ignores router advertisements unless `accept_ra` is 2,
/// and would lose its own default route: interfaces that accept them are set first.
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
