//! Which probes are due?

use super::event::ProbeOrder;
use super::{PodState, Time};

/// What to begin now, and when to ask again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Due {
    /// To be begun now.
    pub orders: Vec<ProbeOrder>,
    /// When the next one is due.
    pub wake_at: Option<Time>,
}

/// Which probes of a pod are due.
pub fn due(_pod: &PodState, _now: Time) -> Due {
    Due::default()
}
