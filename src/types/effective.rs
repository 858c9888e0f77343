//! The effective settings of one run of a container, from manifest and image.

use serde::{Deserialize, Serialize};

/// Settings that are only known after the start, because the image contributes to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// User and groups; `None` if unknown.
    pub user: Option<LinuxUser>,
    /// Name of the stop signal (`SIGQUIT`), if manifest or image set one.
    pub stop_signal: Option<String>,
}

/// The ids of a container's first process: `status.containerStatuses[].user.linux` (KEP-3619).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxUser {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary groups including the primary one, in order.
    pub groups: Vec<u32>,
}
