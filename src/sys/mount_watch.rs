//! The watch on the mount table of this process. The kernel reports each change on `/proc/self/mountinfo`
//! (`proc_pid_mountinfo(5)`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

/// It is readable after a change, until [`MountWatch::clear`].
#[derive(Debug)]
pub struct MountWatch {
    epoll: Epoll,
    /// Open as long as it is watched.
    _table: File,
}

impl MountWatch {
    /// A watch that reports a change at once.
    pub fn new() -> io::Result<Self> {
        let table = File::open("/proc/self/mountinfo")?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        // The table is always readable, so this reports the changes alone, and a poll of the descriptor loses none. With
        // EPOLLPRI each poll would take the change away.
        let changes = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&table, EpollEvent::new(changes, 0))?;
        Ok(Self {
            epoll,
            _table: table,
        })
    }

    /// Makes it report the next change. To be called before the table is read.
    pub fn clear(&self) {
        let _ = self
            .epoll
            .wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO);
    }
}

impl AsFd for MountWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}
