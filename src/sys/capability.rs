//! Capabilities of this process. Only the calling thread is changed: call it before other threads exist.

use std::io;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// `CAP_CHOWN`.
pub const CHOWN: u32 = 0;
/// `CAP_DAC_OVERRIDE`.
pub const DAC_OVERRIDE: u32 = 1;
/// `CAP_FOWNER`.
pub const FOWNER: u32 = 3;
/// `CAP_FSETID`.
pub const FSETID: u32 = 4;
/// `CAP_SETPCAP`.
pub const SETPCAP: u32 = 8;
/// `CAP_SYS_ADMIN`.
pub const SYS_ADMIN: u32 = 21;
/// `CAP_MKNOD`.
pub const MKNOD: u32 = 27;
/// `CAP_SETFCAP`.
pub const SETFCAP: u32 = 31;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops every capability of the calling thread that is not in `keep`; those it does not have stay absent.
pub fn keep_only(keep: &[u32]) -> io::Result<()> {
    retain(bits(keep), 0)
}

/// Drops capabilities of the calling thread.
pub fn drop_these(these: &[u32]) -> io::Result<()> {
    retain(!bits(these), !bits(these))
}

/// Takes capabilities from what programs of the calling thread can get; needs CAP_SETPCAP.
pub fn drop_from_bounding(these: &[u32]) -> io::Result<()> {
    for capability in these {
        // SAFETY: the operation takes an integer.
        let done = unsafe {
            libc::prctl(
                libc::PR_CAPBSET_DROP,
                libc::c_ulong::from(*capability),
                0,
                0,
                0,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn bits(capabilities: &[u32]) -> u64 {
    capabilities.iter().fold(0, |mask, cap| mask | 1 << cap)
}

fn retain(keep: u64, keep_inheritable: u64) -> io::Result<()> {
    let mut header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 reads one header and writes two data structures, which is what both pointers refer to.
    let got = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    for (word, half) in data.iter_mut().enumerate() {
        let bits = |mask: u64| u32::try_from((mask >> (32 * word)) & 0xffff_ffff).unwrap_or(0);
        half.permitted &= bits(keep);
        half.effective &= bits(keep);
        half.inheritable &= bits(keep_inheritable);
    }
    // SAFETY: as above; the kernel only reads.
    let set = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
