//! The effective settings of one run of a container, from manifest and image.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::DeviceNode;

/// Settings that are only known after the start, because the image contributes to them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effective {
    /// User and groups; `None` if unknown.
    pub user: Option<LinuxUser>,
    /// Name of the stop signal (`SIGQUIT`), if manifest or image set one.
    pub stop_signal: Option<String>,
    /// The devices that the container has, by request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, Vec<DeviceNode>>,
    /// The images of the image volumes that it mounts (config digests), by volume.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
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
