//! Memory protection and throttling of a cgroup, on cgroup v2 with the feature gate `MemoryQoS` (KEP-2570).

use crate::spec::{ContainerResources, PodResources, QosClass};

/// The node's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryProtection {
    /// The position of `memory.high` between request and limit.
    pub throttling_factor: f64,
    /// Whether `memory.min` and `memory.low` protect requests.
    pub tiered: bool,
    /// The memory of all pods together: the limit of containers without one.
    pub allocatable_bytes: u64,
    /// Size of a page.
    pub page_bytes: u64,
}

/// The values of one cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Protected {
    /// `memory.min`: never reclaimed.
    pub(super) min: u64,
    /// `memory.low`: reclaimed only if there is nothing else.
    pub(super) low: u64,
    /// `memory.high`: allocations beyond it are throttled.
    pub(super) high: Option<u64>,
}

impl MemoryProtection {
    /// A pod's values.
    pub(super) fn of_pod(&self, qos: QosClass, resources: PodResources) -> Protected {
        self.reserved(qos, resources.memory_request_bytes)
    }

    /// A container's values.
    pub(super) fn of_container(&self, qos: QosClass, resources: ContainerResources) -> Protected {
        let limit = resources.memory_limit_bytes;
        let request = resources.memory_request_bytes.or(limit).unwrap_or(0);
        Protected {
            high: (limit != Some(request))
                .then(|| self.high(request, limit))
                .flatten(),
            ..self.reserved(qos, request)
        }
    }

    fn reserved(&self, qos: QosClass, request: u64) -> Protected {
        match qos {
            _ if !self.tiered => Protected::default(),
            QosClass::Guaranteed => Protected {
                min: request,
                ..Protected::default()
            },
            QosClass::Burstable | QosClass::BestEffort => Protected {
                low: request,
                ..Protected::default()
            },
        }
    }

    /// Between request and limit, in whole pages; only if that is more than the request.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the kubelet's figure is a float64 that is cut off; it lies between request and limit"
    )]
    fn high(&self, request: u64, limit: Option<u64>) -> Option<u64> {
        let most = limit.unwrap_or(self.allocatable_bytes);
        let room = most.checked_sub(request)? as f64;
        let high = (request as f64 + self.throttling_factor * room) as u64;
        let high = high / self.page_bytes * self.page_bytes;
        (high > request).then_some(high)
    }
}

impl Protected {
    /// File names and values.
    pub(super) fn files(self) -> [(&'static str, String); 3] {
        let high = self.high.map_or("max".to_owned(), |high| high.to_string());
        [
            ("memory.min", self.min.to_string()),
            ("memory.low", self.low.to_string()),
            ("memory.high", high),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MI: u64 = 1 << 20;

    fn rule(tiered: bool) -> MemoryProtection {
        MemoryProtection {
            throttling_factor: 0.9,
            tiered,
            allocatable_bytes: 1000 * MI,
            page_bytes: 4096,
        }
    }

    fn memory(request: Option<u64>, limit: Option<u64>) -> ContainerResources {
        ContainerResources {
            memory_request_bytes: request.map(|mib| mib * MI),
            memory_limit_bytes: limit.map(|mib| mib * MI),
            ..ContainerResources::default()
        }
    }

    #[test]
    fn allocations_are_slowed_down_between_request_and_limit() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        for (qos, request, limit, high) in [
            (Burstable, Some(100), Some(200), Some(190 * MI)),
            // In whole pages: 0.9 of 3 MiB are 691.2.
            (Burstable, Some(1), Some(4), Some(MI + 691 * 4096)),
            (Burstable, Some(100), None, Some(910 * MI)),
            (BestEffort, None, None, Some(900 * MI)),
            (Guaranteed, Some(100), Some(100), None),
            (Burstable, None, Some(100), None),
            // The request is more than the node has.
            (Burstable, Some(2000), None, None),
            (Burstable, Some(1000), None, None),
        ] {
            let got = rule(false).of_container(qos, memory(request, limit));
            let expected = Protected {
                high,
                ..Protected::default()
            };
            assert_eq!(got, expected, "{qos:?} {request:?} {limit:?}");
        }
    }

    #[test]
    fn requests_are_protected_by_class_if_that_is_asked_for() {
        use QosClass::{BestEffort, Burstable, Guaranteed};
        for (qos, min, low) in [(Guaranteed, 10, 0), (Burstable, 0, 10)] {
            let got = rule(true).of_container(qos, memory(Some(10), Some(10)));
            assert_eq!((got.min, got.low), (min * MI, low * MI));
            let pod = PodResources {
                memory_request_bytes: 10 * MI,
                ..PodResources::default()
            };
            let got = rule(true).of_pod(qos, pod);
            assert_eq!((got.min, got.low, got.high), (min * MI, low * MI, None));
        }
        let got = rule(true).of_container(BestEffort, memory(None, None));
        assert_eq!((got.min, got.low), (0, 0));
        let files = rule(true).of_container(Guaranteed, memory(Some(1), Some(1)));
        let [min, low, high] = files.files();
        assert_eq!(min, ("memory.min", MI.to_string()));
        assert_eq!(low, ("memory.low", "0".to_owned()));
        assert_eq!(high, ("memory.high", "max".to_owned()));
    }
}
