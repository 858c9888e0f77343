//! Device access of containers. On v1 libcontainer configures the devices controller; v2 has none, so a BPF program
//! is attached to the container's cgroup before there is any process in it.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use super::{CgroupError, Mode};
use crate::sys::bpf::{Device, DeviceRules};

/// The devices of every container: null, zero, full, random, urandom, tty, ptmx and pseudo-terminals.
const OWN: [Device; 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

/// How device access is restricted.
#[derive(Debug, Clone)]
pub(super) enum Devices {
    /// By the devices controller.
    Controller,
    /// By this program.
    Program(Arc<DeviceRules>),
    /// Not at all, for this reason.
    Unruled(Arc<str>),
}

impl Devices {
    pub(super) fn of(mode: Mode) -> Self {
        match mode {
            Mode::V1 => Self::Controller,
            Mode::V2 => match DeviceRules::load(&OWN) {
                Ok(rules) => Self::Program(Arc::new(rules)),
                Err(error) => Self::Unruled(error.to_string().into()),
            },
        }
    }

    pub(super) fn unruled(&self) -> Option<&str> {
        match self {
            Self::Controller | Self::Program(_) => None,
            Self::Unruled(why) => Some(why),
        }
    }

    /// Restricts the device access of a cgroup, given by its folder.
    pub(super) fn rule(&self, folder: &Path) -> Result<(), CgroupError> {
        let Self::Program(rules) = self else {
            return Ok(());
        };
        File::open(folder)
            .and_then(|group| rules.attach(group.as_fd()))
            .map_err(|source| CgroupError::Access {
                action: "attach device rules to".into(),
                path: folder.to_owned(),
                source,
            })
    }
}
