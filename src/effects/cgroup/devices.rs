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
    Device::character(1, Some(3)),
    Device::character(1, Some(5)),
    Device::character(1, Some(7)),
    Device::character(1, Some(8)),
    Device::character(1, Some(9)),
    Device::character(5, Some(0)),
    Device::character(5, Some(2)),
    Device::character(136, None),
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

    /// Restricts the device access of a cgroup, given by its folder. `more` are the container's own devices; `None`
    /// if it has none.
    pub(super) fn rule(&self, folder: &Path, more: Option<&[Device]>) -> Result<(), CgroupError> {
        let Self::Program(rules) = self else {
            return Ok(());
        };
        File::open(folder)
            .and_then(|group| match more {
                None => rules.attach(group.as_fd()),
                // Its last run may have had others.
                Some(more) => DeviceRules::load(&[&OWN, more].concat())?.replace(group.as_fd()),
            })
            .map_err(|source| CgroupError::Access {
                action: "attach device rules to".into(),
                path: folder.to_owned(),
                source,
            })
    }
}
