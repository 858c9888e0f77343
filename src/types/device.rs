//! What is found of the devices that containers ask for.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A device node below `/dev`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its path on the node as asked for: maybe a link, or what a pattern matched.
    pub path: String,
    /// Whether it is a block device; otherwise it is a character device.
    pub block: bool,
    /// The kernel's driver.
    pub major: u32,
    /// The device among those of its driver.
    pub minor: u32,
    /// The file: another one after the device was unplugged and plugged in again.
    pub inode: u64,
}

impl DeviceNode {
    /// Whether the other node has the same path and stands for the same device of the kernel.
    pub fn is_same_device(&self, other: &Self) -> bool {
        let parts = |node: &Self| (node.block, node.major, node.minor);
        self.path == other.path && parts(self) == parts(other)
    }

    /// `c 188:0`, as in the devices controller's files.
    pub fn numbers(&self) -> String {
        let kind = if self.block { 'b' } else { 'c' };
        format!("{kind} {}:{}", self.major, self.minor)
    }
}

/// What is found of one request for devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceSight {
    /// It can be granted. In order, each once; CDI devices may have no nodes.
    There(Vec<DeviceNode>),
    /// Something is not there, as a sentence that names the path.
    Missing(String),
    /// It cannot be granted, as a sentence that names the path.
    Refused(String),
}

impl DeviceSight {
    /// The nodes, if the request can be granted.
    pub fn nodes(&self) -> Option<&[DeviceNode]> {
        match self {
            Self::There(nodes) => Some(nodes),
            Self::Missing(_) | Self::Refused(_) => None,
        }
    }
}

/// Why it cannot be granted; nothing if it can.
impl fmt::Display for DeviceSight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::There(_) => Ok(()),
            Self::Missing(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}
