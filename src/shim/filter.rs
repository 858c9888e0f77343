//! The seccomp filter that the agent made for a container. The runtime would make one from the profile, for milliseconds
//! at each start, and load it before it gives the capabilities up: the kernel asks for CAP_SYS_ADMIN or `no_new_privs`.
//! Here the container's process loads it as the last thing before its program. Until then it is lent what it lacks for
//! that.

use std::io;
use std::path::Path;

use super::ShimError;
use super::bundle::Bundle;
use super::protocol::{FILTER_FILE, StartRequest};
use crate::sys::{capability, file, seccomp};

/// Needed to load a filter, and to give the first one up for good.
const NEEDED: [(&str, u32); 2] = [
    ("CAP_SYS_ADMIN", capability::SYS_ADMIN),
    ("CAP_SETPCAP", capability::SETPCAP),
];

/// A filter, and the capabilities lent to the process that loads it.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    program: Vec<u8>,
    lent: Vec<u32>,
}

impl Filter {
    /// Takes it from the request's bundle, if it brings one, and the profile out of the runtime's document.
    pub(super) fn take(
        request: &StartRequest,
        bundle: &mut Bundle<'_>,
    ) -> Result<Option<Self>, ShimError> {
        if !request.own_filter {
            return Ok(None);
        }
        if !seccomp::is_supported() {
            return Err(ShimError::Create(
                "the kernel has no seccomp filters (CONFIG_SECCOMP_FILTER): only a container with \
                 `seccompProfile: {type: Unconfined}` runs on it"
                    .to_owned(),
            ));
        }
        let lent = bundle.take_seccomp(&NEEDED.map(|(name, _)| name))?;
        let lent = NEEDED.iter().filter(|(name, _)| lent.contains(name));
        Self::read(&request.bundle, lent.map(|(_, number)| *number).collect()).map(Some)
    }

    /// Reads it again for a further program of the container.
    pub(super) fn read(bundle: &Path, lent: Vec<u32>) -> Result<Self, ShimError> {
        let path = bundle.join(FILTER_FILE);
        let program = file::read_record(&path).map_err(ShimError::path("read", &path))?;
        Ok(Self { program, lent })
    }

    /// What the process must give back.
    pub(super) fn lent(&self) -> &[u32] {
        &self.lent
    }

    /// Loads it, and gives the lent capabilities back. Afterwards only the exec is left to do.
    pub(super) fn enter(&self) -> io::Result<()> {
        capability::drop_from_bounding(&self.lent)?;
        seccomp::load(&self.program)?;
        capability::drop_these(&self.lent)
    }
}
