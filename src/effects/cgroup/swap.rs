//! The swap limit of a container by the kubelet's formula (KEP-2400; `coracle help differences`).

use super::Mode;
use crate::spec::priority::CRITICAL;
use crate::spec::{ContainerResources, QosClass};
use crate::types::Swapping;

/// The node's swap settings and amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapSettings {
    /// The pods that may swap.
    pub behavior: Swapping,
    /// Memory of the node in bytes.
    pub memory_bytes: u64,
    /// Swap of the node in bytes.
    pub swap_bytes: u64,
}

/// A pod's own swap limit, if it counts: its containers then have no shares.
pub(super) fn own(settings: SwapSettings, priority: i32, asked: Option<u64>) -> Option<u64> {
    match settings.behavior {
        Swapping::Off => None,
        Swapping::Burstable | Swapping::All => asked.filter(|_| priority < CRITICAL),
    }
}

/// How much a container may swap, in bytes; `None` without a limit.
pub(super) fn share(
    settings: SwapSettings,
    priority: i32,
    qos: QosClass,
    resources: ContainerResources,
) -> Option<u64> {
    if priority >= CRITICAL {
        return Some(0);
    }
    match settings.behavior {
        Swapping::Off => Some(0),
        Swapping::All => None,
        Swapping::Burstable => Some(limited(settings, qos, resources)),
    }
}

/// The container's share of the node's swap, in proportion to its memory request. Only Burstable containers whose
/// request is not their limit can use it: those may use more than they request.
fn limited(settings: SwapSettings, qos: QosClass, resources: ContainerResources) -> u64 {
    let limit = resources.memory_limit_bytes.unwrap_or(0);
    let request = resources.memory_request_bytes.unwrap_or(limit);
    if qos != QosClass::Burstable || request == limit || request > settings.memory_bytes {
        return 0;
    }
    proportion(request, settings)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the kubelet's figure is a float64 that is cut off; it lies between 0 and the swap there is"
)]
fn proportion(request: u64, settings: SwapSettings) -> u64 {
    if settings.memory_bytes == 0 {
        return 0;
    }
    (request as f64 / settings.memory_bytes as f64 * settings.swap_bytes as f64) as u64
}

/// File names and values of a container with these limits of memory and swap, in an order that works whatever was
/// written before.
pub(super) fn files(
    mode: Mode,
    memory: Option<u64>,
    swap: Option<u64>,
) -> Vec<(&'static str, String)> {
    let or = |value: Option<u64>, none: &str| value.map_or(none.to_owned(), |v| v.to_string());
    match mode {
        Mode::V2 => vec![
            ("memory.max", or(memory, "max")),
            ("memory.swap.max", or(swap, "max")),
        ],
        // v1 limits memory and swap together, never below the memory limit. Without a memory limit this one would
        // limit memory.
        Mode::V1 => {
            let both = memory.and_then(|m| Some(m.saturating_add(swap?)));
            let mut files = vec![("memory.memsw.limit_in_bytes", "-1".to_owned())];
            files.push(("memory.limit_in_bytes", or(memory, "-1")));
            files.extend(both.map(|both| ("memory.memsw.limit_in_bytes", both.to_string())));
            files
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;
    const MI: u64 = 1 << 20;

    fn memory(request: u64, limit: u64) -> ContainerResources {
        let some = |value: u64| (value > 0).then_some(value);
        ContainerResources {
            memory_request_bytes: some(request),
            memory_limit_bytes: some(limit),
            ..ContainerResources::default()
        }
    }

    #[test]
    fn swap_is_shared_out_as_a_kubelet_does() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        use Swapping::{All as UnlimitedSwap, Burstable as LimitedSwap, Off as NoSwap};
        for (sentence, behavior, priority, qos, resources, expected) in [
            ("none", NoSwap, 0, Burstable, memory(GI, 2 * GI), Some(0)),
            (
                "a quarter of memory, a quarter of swap",
                LimitedSwap,
                0,
                Burstable,
                memory(GI, 2 * GI),
                Some(GI / 2),
            ),
            (
                "a request without a limit",
                LimitedSwap,
                0,
                Burstable,
                memory(GI, 0),
                Some(GI / 2),
            ),
            (
                "cut off, not rounded",
                LimitedSwap,
                0,
                Burstable,
                memory(3, 8),
                Some(1),
            ),
            (
                "a request that is the limit",
                LimitedSwap,
                0,
                Burstable,
                memory(GI, GI),
                Some(0),
            ),
            (
                "a limit alone is a request, too",
                LimitedSwap,
                0,
                Burstable,
                memory(0, GI),
                Some(0),
            ),
            (
                "no figure of memory",
                LimitedSwap,
                0,
                Burstable,
                memory(0, 0),
                Some(0),
            ),
            (
                "more than the node has",
                LimitedSwap,
                0,
                Burstable,
                memory(5 * GI, 6 * GI),
                Some(0),
            ),
            (
                "guaranteed",
                LimitedSwap,
                0,
                Guaranteed,
                memory(GI, GI),
                Some(0),
            ),
            (
                "best effort",
                LimitedSwap,
                0,
                BestEffort,
                memory(0, 0),
                Some(0),
            ),
            (
                "nearly critical",
                LimitedSwap,
                CRITICAL - 1,
                Burstable,
                memory(GI, 2 * GI),
                Some(GI / 2),
            ),
            (
                "critical",
                LimitedSwap,
                CRITICAL,
                Burstable,
                memory(GI, 2 * GI),
                Some(0),
            ),
            (
                "all there is",
                UnlimitedSwap,
                0,
                BestEffort,
                memory(0, 0),
                None,
            ),
            (
                "critical where all may swap",
                UnlimitedSwap,
                CRITICAL,
                Burstable,
                memory(GI, 2 * GI),
                Some(0),
            ),
        ] {
            let settings = SwapSettings {
                behavior,
                memory_bytes: 4 * GI,
                swap_bytes: 2 * GI,
            };
            let found = share(settings, priority, qos, resources);
            assert_eq!(found, expected, "{sentence}");
        }
    }

    #[test]
    fn a_pods_own_figure_counts_where_it_may_swap_at_all() {
        for (behavior, priority, expected) in [
            (Swapping::Off, 0, None),
            (Swapping::Burstable, 0, Some(MI)),
            (Swapping::All, 0, Some(MI)),
            (Swapping::Burstable, CRITICAL, None),
        ] {
            let settings = SwapSettings {
                behavior,
                memory_bytes: GI,
                swap_bytes: GI,
            };
            assert_eq!(own(settings, priority, Some(MI)), expected, "{behavior:?}");
            assert_eq!(own(settings, priority, None), None);
        }
    }

    #[test]
    fn on_v1_memory_and_swap_are_limited_together_if_memory_is() {
        const BOTH: &str = "memory.memsw.limit_in_bytes";
        const MEMORY: &str = "memory.limit_in_bytes";
        for (memory, swap, expected) in [
            (
                Some(64 * MI),
                Some(0),
                vec![(BOTH, "-1"), (MEMORY, "67108864"), (BOTH, "67108864")],
            ),
            (
                Some(64 * MI),
                Some(16 * MI),
                vec![(BOTH, "-1"), (MEMORY, "67108864"), (BOTH, "83886080")],
            ),
            (
                Some(64 * MI),
                None,
                vec![(BOTH, "-1"), (MEMORY, "67108864")],
            ),
            (None, Some(MI), vec![(BOTH, "-1"), (MEMORY, "-1")]),
        ] {
            let found = files(Mode::V1, memory, swap);
            let found: Vec<_> = found.iter().map(|(n, v)| (*n, v.as_str())).collect();
            assert_eq!(found, expected);
        }
        let v2 = files(Mode::V2, None, Some(MI));
        assert_eq!(v2[1], ("memory.swap.max", "1048576".to_owned()));
    }
}
