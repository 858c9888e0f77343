//! Project quotas of ext4 and xfs: the size of directories. A directory belongs to a project, what is made in it inherits
//! that, and the file system limits the blocks of each project. Needs quotactl_fd (Linux 5.14).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// The kind of quota (`PRJQUOTA` of `linux/quota.h`).
const PROJECTS: u32 = 2;

/// Commands of `linux/quota.h` and `linux/dqblk_xfs.h`; every file system with quotas knows both families.
const GET: u32 = 0x80_0007;
const SET: u32 = 0x80_0008;
const STATE: u32 = 0x5808;

/// Limits of projects are enforced, and not only counted (`FS_QUOTA_PDQ_ENFD`).
const ENFORCED: u16 = 1 << 5;

/// Only the limits of blocks are set (`QIF_BLIMITS`).
const BLOCK_LIMITS: u32 = 1;

/// Limits are in units of 1 KiB (`QIF_DQBLKSIZE`).
const UNIT: u64 = 1024;

/// What is made in a directory belongs to its project (`FS_XFLAG_PROJINHERIT`).
const INHERIT: u32 = 0x200;

/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = nix::request_code_read!(b'X', 31, size_of::<Attributes>());
const SET_ATTRIBUTES: libc::Ioctl = nix::request_code_write!(b'X', 32, size_of::<Attributes>());

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_dqblk`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Limits {
    blocks_hard: u64,
    blocks_soft: u64,
    used_bytes: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    used_inodes: u64,
    blocks_grace: u64,
    inodes_grace: u64,
    valid: u32,
}

/// The limit and the use of a project.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Project {
    /// The limit; 0 is none.
    pub limit_bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
    /// The number of its files and directories: xfs keeps small directories without a block.
    pub inodes: u64,
}

fn quotactl(
    place: BorrowedFd<'_>,
    command: u32,
    project: u32,
    data: *mut libc::c_void,
) -> io::Result<()> {
    let command = command << 8 | PROJECTS;
    // SAFETY: each caller passes a buffer of the size that the kernel reads or writes for its command.
    let done = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            place.as_raw_fd(),
            command,
            project,
            data,
        )
    };
    Errno::result(done)?;
    Ok(())
}

/// Whether the file system limits projects. One without quotas, and a kernel that does not know them, do not.
pub fn limits_projects(place: impl AsFd) -> bool {
    // `struct fs_quota_statv`: a version, a padding byte, the flags, and more that is not looked at.
    let mut state = [0_u64; 32];
    state[0] = u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]);
    let buffer = state.as_mut_ptr().cast();
    if quotactl(place.as_fd(), STATE, 0, buffer).is_err() {
        return false;
    }
    let bytes = state[0].to_ne_bytes();
    u16::from_ne_bytes([bytes[2], bytes[3]]) & ENFORCED != 0
}

/// The limit and the use of a project.
pub fn project(place: impl AsFd, project: u32) -> io::Result<Project> {
    let mut limits = Limits::default();
    match quotactl(place.as_fd(), GET, project, (&raw mut limits).cast()) {
        Ok(()) => Ok(Project {
            limit_bytes: limits.blocks_hard.saturating_mul(UNIT),
            used_bytes: limits.used_bytes,
            inodes: limits.used_inodes,
        }),
        // Never used: xfs has no record of it.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Project::default()),
        Err(error) => Err(error),
    }
}

/// Limits a project to so many bytes; 0 takes its limit away.
pub fn limit(place: impl AsFd, project: u32, bytes: u64) -> io::Result<()> {
    let mut limits = Limits {
        blocks_hard: bytes.div_ceil(UNIT),
        valid: BLOCK_LIMITS,
        ..Limits::default()
    };
    quotactl(place.as_fd(), SET, project, (&raw mut limits).cast())
}

/// The project of a file or directory.
pub fn project_of(file: impl AsFd) -> io::Result<u32> {
    Ok(attributes(file.as_fd())?.project)
}

fn attributes(file: BorrowedFd<'_>) -> io::Result<Attributes> {
    let mut found = Attributes::default();
    // SAFETY: the kernel writes one `struct fsxattr`.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, &raw mut found) };
    Errno::result(done)?;
    Ok(found)
}

/// Moves a file or directory to a project. What is made in the directory later belongs to it, too.
pub fn move_to(file: impl AsFd, project: u32, directory: bool) -> io::Result<()> {
    let mut wanted = attributes(file.as_fd())?;
    let inherit = if directory { INHERIT } else { 0 };
    if wanted.project == project && wanted.flags & INHERIT == inherit {
        return Ok(());
    }
    wanted.project = project;
    wanted.flags |= inherit;
    // SAFETY: the kernel reads one `struct fsxattr`.
    let done = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), SET_ATTRIBUTES, &raw const wanted) };
    Errno::result(done)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_quotas_limits_no_project() {
        let proc = std::fs::File::open("/proc").expect("Linux");
        assert!(!limits_projects(&proc));
        assert!(project(&proc, 7).is_err() && limit(&proc, 7, 0).is_err());
    }

    #[test]
    fn the_structures_are_as_large_as_the_kernels() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!(size_of::<Limits>(), 72);
    }
}
