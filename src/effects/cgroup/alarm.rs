//! The kernel's memory alarm. The kernel signals when the charge of all pods reaches a level, on v2 by
//! `memory.high` and `memory.events`, on v1 by `cgroup.event_control` (kernel documentation `cgroup-v1/memory`); on
//! v2 also when pods wait for memory (PSI, kernel documentation `accounting/psi`).

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{CgroupError, Cgroups, Mode};

/// A task waited for memory for 70 ms of a second.
const STALL: &str = "some 70000 1000000";

/// The alarm. Its descriptor becomes readable when the kernel signals.
#[derive(Debug)]
pub struct Alarm {
    mode: Mode,
    /// An epoll of the watched files; a cgroup file by itself is always readable.
    epoll: Epoll,
    /// v2: PSI, and events of the pods' cgroup.
    files: Vec<File>,
    /// v1: the current level, and its eventfd.
    level: Option<(u64, EventFd)>,
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Cgroups {
    /// Blocking. Sets up the alarm; a kernel without it is an error.
    pub fn alarm(&self) -> Result<Alarm, CgroupError> {
        let flags = EpollCreateFlags::EPOLL_CLOEXEC;
        let epoll = Epoll::new(flags).map_err(|errno| self.alarm_error(errno.into()))?;
        let mut alarm = Alarm {
            mode: self.mode(),
            epoll,
            files: Vec::new(),
            level: None,
        };
        if self.mode() == Mode::V2 {
            let pressure = self.watched("memory.pressure", true).and_then(|mut file| {
                file.write_all(STALL.as_bytes())?;
                Ok(file)
            });
            // Kernels without PSI, or with `psi=0`, still signal when a limit is reached.
            let mut events = self.watched("memory.events", false);
            if let Ok(file) = &mut events {
                read_again(file);
            }
            for file in pressure.into_iter().chain(events) {
                let event = EpollEvent::new(EpollFlags::EPOLLPRI, 0);
                let added = alarm.epoll.add(&file, event);
                added.map_err(|errno| self.alarm_error(errno.into()))?;
                alarm.files.push(file);
            }
        }
        Ok(alarm)
    }

    fn watched(&self, file: &str, write: bool) -> std::io::Result<File> {
        let folder = self.hierarchies.mounts().next();
        let folder = folder.map(|mount| super::join(mount, &self.pods_path()));
        OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(folder.unwrap_or_default().join(file))
    }

    fn alarm_error(&self, source: std::io::Error) -> CgroupError {
        CgroupError::Access {
            action: "watch memory of".into(),
            path: self.pods_path().into(),
            source,
        }
    }

    /// Blocking. Sets the charge of all pods together at which the kernel signals; `None`: no level. On v2 this is
    /// `memory.high`, which also slows down processes that take more (kernel documentation `cgroup-v2`: for an
    /// agent that watches it and then acts).
    pub fn set_alarm(&self, alarm: &mut Alarm, bytes: Option<u64>) -> Result<(), CgroupError> {
        if alarm.mode == Mode::V2 {
            let value = bytes.map_or("max".to_owned(), |bytes| bytes.to_string());
            return self
                .hierarchies
                .write(&self.pods_path(), "memory.high", &value);
        }
        if alarm.level.as_ref().map(|(level, _)| *level) == bytes {
            return Ok(());
        }
        // The kernel forgets the level with its descriptor.
        alarm.level = None;
        let Some(bytes) = bytes else { return Ok(()) };
        let failed = |source| self.alarm_error(source);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_value_and_flags(0, flags);
        let event = event.map_err(|errno| failed(errno.into()))?;
        let usage = self.v1_file("memory.usage_in_bytes");
        let usage = File::open(usage).map_err(failed)?;
        let wish = format!("{} {} {bytes}", event.as_raw_fd(), usage.as_raw_fd());
        std::fs::write(self.v1_file("cgroup.event_control"), &wish).map_err(failed)?;
        let interest = EpollEvent::new(EpollFlags::EPOLLIN, 0);
        let added = alarm.epoll.add(&event, interest);
        added.map_err(|errno| failed(errno.into()))?;
        alarm.level = Some((bytes, event));
        Ok(())
    }

    fn v1_file(&self, file: &str) -> std::path::PathBuf {
        let folders = self.hierarchies.v1_folders(&self.pods_path());
        let folder = folders.into_iter().find(|(name, _)| name == "memory");
        folder
            .map(|(_, folder)| folder)
            .unwrap_or_default()
            .join(file)
    }
}

impl Alarm {
    /// Acknowledges a signal, so that the next one arrives; returns whether there was one.
    pub fn fired(&mut self) -> bool {
        let mut events = [EpollEvent::empty(); 4];
        let count = self
            .epoll
            .wait(&mut events, EpollTimeout::ZERO)
            .unwrap_or(0);
        self.files.iter_mut().for_each(read_again);
        // On v1, memory near the level would signal all the time: the level is set again after the next inspection.
        self.level = None;
        count > 0
    }
}

/// Events that were read before do not count.
fn read_again(file: &mut File) {
    let mut text = [0; 512];
    let _ = file.rewind();
    let _ = file.read(&mut text);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::LimitSettings;
    use super::*;

    #[test]
    fn on_v2_pods_are_slowed_down_from_the_level_on() {
        let dir = std::env::temp_dir().join(format!("coracle-alarm-{}", std::process::id()));
        let high = dir.join("coracle/pods/memory.high");
        fs::create_dir_all(dir.join("coracle/pods")).unwrap();
        fs::write(&high, "").unwrap();
        let settings = LimitSettings::default();
        let cgroups = Cgroups::in_folder(&dir, Mode::V2, settings);
        // Without PSI and `memory.events` no signal comes, and nothing else fails.
        let mut alarm = cgroups.alarm().unwrap();
        for (bytes, expected) in [(Some(7), "7"), (None, "max")] {
            cgroups.set_alarm(&mut alarm, bytes).unwrap();
            assert_eq!(fs::read_to_string(&high).unwrap(), expected);
        }
        assert!(!alarm.fired());
        fs::remove_dir_all(dir).unwrap();
    }
}
