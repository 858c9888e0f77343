//! Supplementary groups on a kernel without user namespaces. libcontainer looks into `/proc/self/setgroups` before it sets
//! them, and fails because there is no such file. There the shim takes the groups for as long as it starts the container,
//! whose first process inherits them.

use std::path::Path;

use nix::unistd::{Gid, getgroups, setgroups};

use super::bundle::Bundle;
use super::{ShimError, warn};

/// The shim's own groups, which it takes back in the end.
pub(super) struct Lent(Vec<Gid>);

impl Lent {
    /// Takes the groups of the bundle, and leaves them out of what is written of it, if the runtime cannot set them.
    pub(super) fn take(bundle: &mut Bundle<'_>) -> Result<Option<Self>, ShimError> {
        let groups = bundle.groups()?;
        if groups.is_empty() || Path::new("/proc/self/setgroups").exists() {
            return Ok(None);
        }
        let failed =
            |errno: nix::Error| ShimError::system("set supplementary groups")(errno.into());
        let own = getgroups().map_err(failed)?;
        let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(failed)?;
        bundle.groups_are_inherited = true;
        Ok(Some(Self(own)))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Err(errno) = setgroups(&self.0) {
            warn(format_args!(
                "could not take back the shim's own groups: {errno}, ignoring"
            ));
        }
    }
}
