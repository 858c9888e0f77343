//! `lo` brought up in a fresh network namespace. By ioctl, so that no netlink code is needed.

use std::io;
use std::os::fd::AsRawFd;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Sets IFF_UP on `lo` of the caller's network namespace.
pub fn up() -> io::Result<()> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is a valid value of this plain C struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    // SAFETY: the request is valid for reading and writing, and of the type both calls take.
    unsafe {
        if libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFFLAGS as _, &mut request) < 0 {
            return Err(io::Error::last_os_error());
        }
        request.ifr_ifru.ifru_flags |= 1; // IFF_UP
        if libc::ioctl(fd.as_raw_fd(), libc::SIOCSIFFLAGS as _, &mut request) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
