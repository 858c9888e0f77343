//! What do manifest and image come to, put together, for one run of a container?

use serde::{Deserialize, Serialize};

/// What only its start decided: the image has a say in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// As whom it runs; `None` if nobody has said.
    pub user: Option<LinuxUser>,
    /// The name of the signal that asks it to end (`SIGQUIT`), where manifest or image have chosen one.
    pub stop_signal: Option<String>,
}

/// The ids of a container's first process: `status.containerStatuses[].user.linux` (KEP-3619).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxUser {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Further groups, the primary one among them, in order.
    pub groups: Vec<u32>,
}
