//! The id range of a pod with a user namespace (`hostUsers: false`): where it lies, and whether the node can have such
//! pods at all.

use super::NodeState;
use super::hold::Rejection;
use crate::spec::{IdRange, PodSpec, Reason};

/// The lowest id of the node that a pod may have, as of the kubelet: all below belong to the node.
const LOWEST: u64 = 65_536;

/// The lowest free range of `count` ids: a multiple of `count`, as of the kubelet, that has no id in common with those
/// `taken`. `None` if there is none left.
pub fn free_range(taken: &[IdRange], count: u32) -> Option<IdRange> {
    let mut first = LOWEST.next_multiple_of(u64::from(count.max(1)));
    loop {
        let range = IdRange {
            first: u32::try_from(first).ok()?,
            count,
        };
        // The last id of all means "no id" to the kernel.
        if first + u64::from(count) > u64::from(u32::MAX) {
            return None;
        }
        // From the range in the way on, not one by one: there may be one that takes nearly all ids.
        let Some(other) = taken.iter().find(|other| range.overlaps(**other)) else {
            return Some(range);
        };
        let end = u64::from(other.first) + u64::from(other.count);
        first = end.next_multiple_of(u64::from(count.max(1)));
    }
}

impl NodeState {
    /// Refuses a pod with a user namespace on a node that cannot make one.
    pub(super) fn without_user_namespaces(&self, pod: &PodSpec) -> Option<Rejection> {
        let why = self.node.no_user_namespaces.as_ref()?;
        pod.own_users.then(|| Rejection {
            reason: Reason::UserNamespaces,
            message: format!("Cannot run a pod with `hostUsers: false`: {why}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_the_lowest_aligned_range_that_is_free() {
        const K64: u32 = 65_536;
        let range = |first, count| IdRange { first, count };
        for (what, taken, count, expected) in [
            ("the first pod", vec![], K64, Some(K64)),
            ("the second", vec![range(K64, K64)], K64, Some(2 * K64)),
            (
                "a gap is used",
                vec![range(K64, K64), range(3 * K64, K64)],
                K64,
                Some(2 * K64),
            ),
            (
                "in any order",
                vec![range(2 * K64, K64), range(K64, K64)],
                K64,
                Some(3 * K64),
            ),
            ("larger ranges", vec![], 2 * K64, Some(2 * K64)),
            (
                "after smaller ones",
                vec![range(2 * K64, K64)],
                2 * K64,
                Some(4 * K64),
            ),
            (
                "another program's range",
                vec![range(100_000, 65_536)],
                K64,
                Some(3 * K64),
            ),
            (
                "a vast one",
                vec![range(1_000_000, 1_000_000_000), range(K64, 1_000_000)],
                K64,
                Some(1_001_062_400),
            ),
            ("all taken", vec![range(1, u32::MAX)], K64, None),
            (
                "the last one has the id that means none",
                vec![range(K64, u32::MAX - 2 * K64)],
                K64,
                None,
            ),
            (
                "the one before it",
                vec![range(K64, u32::MAX - 3 * K64)],
                K64,
                Some(u32::MAX - 2 * K64 + 1),
            ),
            ("too many at once", vec![], 1 << 31, None),
        ] {
            let found = free_range(&taken, count);
            let expected = expected.map(|first| range(first, count));
            assert_eq!(found, expected, "{what}");
        }
    }
}
