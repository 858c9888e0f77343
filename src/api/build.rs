//! What this program was built from, and what it speaks.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::exec_frame;
use super::node::architecture;
use crate::shim::protocol;
use crate::sys::{machine, seccomp};

/// What only another build would change; none of it depends on the kernel.
const FEATURES: [&str; 9] = [
    "apparmor",
    "bundles",
    "cgroup-v1",
    "cgroup-v2",
    "pod-network",
    "registry",
    "seccomp",
    "signatures",
    "user-namespaces",
];

/// The commit of the sources, with `-dirty` after it if they were changed; empty if the build did not know it.
pub const COMMIT: &str = env!("CORACLE_COMMIT");

/// When the sources were last changed, as RFC 3339 in UTC; empty if the build did not know it. It is no clock's time: the
/// same sources give the same program.
pub fn date() -> String {
    let seconds = env!("CORACLE_BUILD_TIME").parse().ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map(|time| time.to_string()).unwrap_or_default()
}

/// All of it: the commit, the date, the architecture (as Go names it), features, and versions of linked libraries and of
/// protocols.
pub fn facts() -> Value {
    json!({
        "gitCommit": COMMIT,
        "buildDate": date(),
        "architecture": architecture(),
        "features": FEATURES,
        "libraries": {
            "libcontainer": env!("CORACLE_LIBCONTAINER"),
            "libseccomp": seccomp::library_version(),
            "libc": machine::c_library_version(),
        },
        "protocols": {
            "shim": protocol::VERSION,
            "exec": exec_frame::PROTOCOL,
            "kubernetes": "v1.36.0",
        },
    })
}
