//! `hostUsers: false` (KEP-127): what a pod with a user namespace of its own cannot have, by the API server's rules, and
//! the range of the node's ids that it gets.

use k8s_openapi::api::core::v1::PodSpec;
use serde::{Deserialize, Serialize};

use super::error::{Path, Report};
use super::security::Security;

/// A range of ids of the node: those of the ids 0 to `count` - 1 in a pod, for users as for groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IdRange {
    /// The node's id that is 0 in the pod; never 0.
    pub first: u32,
    /// The number of ids.
    pub count: u32,
}

impl IdRange {
    /// The node's id of one in the pod; `None` for an id that the pod does not have.
    pub fn on_node(self, id: u32) -> Option<u32> {
        (id < self.count).then(|| self.first.saturating_add(id))
    }

    /// Whether an id belongs to both.
    pub fn overlaps(self, other: Self) -> bool {
        let end = |range: Self| u64::from(range.first) + u64::from(range.count);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

/// Refuses to share the node's namespaces with a pod whose ids mean nothing there.
pub(super) fn pod(spec: &PodSpec, path: &Path<'_>, report: &Report) {
    if spec.host_users != Some(false) {
        return;
    }
    let shared = [
        ("hostNetwork", spec.host_network),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
    ];
    for (field, shared) in shared {
        if shared == Some(true) {
            report.forbidden(&path.field(field), "when `hostUsers` is false");
        }
    }
}

/// Refuses what only a pod with a user namespace may have, and what it cannot have.
pub(super) fn container(security: &Security, spec: &PodSpec, path: &Path<'_>, report: &Report) {
    let path = path.field("securityContext");
    if spec.host_users == Some(false) {
        if security.privileged {
            let detail = "a privileged container has the node's devices and kernel settings, which belong to no user \
                          of a pod with `hostUsers: false`";
            let instead = "add the capabilities that it needs, and name its devices in an annotation (`coracle help \
                           devices`)";
            report.refuse(&path.field("privileged"), detail, instead);
        }
    } else if security.unmasked_proc {
        let instead = "remove it: a pod without a user namespace sees the usual `/proc`";
        let detail = "`hostUsers` must be false to use `Unmasked`";
        report.refuse(&path.field("procMount"), detail, instead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_the_pod_is_one_of_the_node_if_the_range_has_it() {
        let range = IdRange {
            first: 131_072,
            count: 65_536,
        };
        for (id, expected) in [
            (0, Some(131_072)),
            (1000, Some(132_072)),
            (65_535, Some(196_607)),
            (65_536, None),
            (u32::MAX, None),
        ] {
            assert_eq!(range.on_node(id), expected, "{id}");
        }
    }

    #[test]
    fn ranges_overlap_if_they_have_an_id_in_common() {
        let range = |first, count| IdRange { first, count };
        for (one, other, expected) in [
            (range(65_536, 65_536), range(131_072, 65_536), false),
            (range(65_536, 65_537), range(131_072, 65_536), true),
            (range(100_000, 1), range(65_536, 65_536), true),
            (range(0, u32::MAX), range(u32::MAX, u32::MAX), false),
            (range(1, u32::MAX), range(u32::MAX, 1), true),
            (range(65_536, 0), range(65_536, 65_536), false),
        ] {
            assert_eq!(one.overlaps(other), expected, "{one:?} {other:?}");
            assert_eq!(other.overlaps(one), expected, "{other:?} {one:?}");
        }
    }
}
