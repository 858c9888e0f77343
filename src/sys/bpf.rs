//! Device access of a cgroup on v2, restricted by a small program in the kernel (bpf(2),
//! `BPF_PROG_TYPE_CGROUP_DEVICE`). What a group may not access, groups below it may not either.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Devices that processes may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Whether it is a block device; otherwise it is a character device.
    pub block: bool,
    /// The kernel's driver.
    pub major: u32,
    /// `None`: all of that driver.
    pub minor: Option<u32>,
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
}

impl Device {
    /// A character device for reading and writing.
    pub const fn character(major: u32, minor: Option<u32>) -> Self {
        Self {
            block: false,
            major,
            minor,
            read: true,
            write: true,
        }
    }
}

// Values of linux/bpf.h.
const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_DETACH: libc::c_int = 9;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const PROG_QUERY: libc::c_int = 16;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;
/// The kind of access is in the upper half of the context's first word, the kind of device in the lower.
const ACCESS_MKNOD: i32 = 1;
const ACCESS_READ: i32 = 2;
const ACCESS_WRITE: i32 = 4;
const KIND_BLOCK: i32 = 1;
const KIND_CHARACTER: i32 = 2;
/// The kernel attaches no more programs than this to a cgroup.
const MOST_PROGRAMS: u32 = 64;

/// An instruction, as the kernel reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// Destination in the lower four bits, source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

#[repr(C)]
#[derive(Default)]
struct LoadArguments {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct AttachArguments {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct QueryArguments {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    /// In: the room for ids. Out: their number.
    prog_cnt: u32,
    padding: u32,
}

#[repr(C)]
#[derive(Default)]
struct IdArguments {
    prog_id: u32,
    next_id: u32,
    open_flags: u32,
}

/// A program in the kernel that lets processes open `devices` and no others. Device nodes of all kinds may be made:
/// only opening them matters.
#[derive(Debug)]
pub struct DeviceRules {
    program: OwnedFd,
}

impl DeviceRules {
    /// Loads the program. Fails if the kernel has no such programs, or forbids it.
    pub fn load(devices: &[Device]) -> io::Result<Self> {
        let code = program(devices);
        let license = c"Apache-2.0";
        let mut arguments = LoadArguments {
            prog_type: PROG_TYPE_CGROUP_DEVICE,
            insn_cnt: u32::try_from(code.len()).unwrap_or(u32::MAX),
            insns: code.as_ptr() as u64,
            license: license.as_ptr() as u64,
            ..Default::default()
        };
        let program = bpf(PROG_LOAD, &mut arguments)?;
        // SAFETY: the kernel just made this descriptor for us.
        let program = unsafe { OwnedFd::from_raw_fd(program) };
        Ok(Self { program })
    }

    /// Attaches the program to a cgroup, given by its folder, for as long as that exists. If one is attached
    /// already, as after a restart of its container, that one stays: all programs must agree, and there is room for
    /// 64.
    pub fn attach(&self, group: BorrowedFd<'_>) -> io::Result<()> {
        match attached(group)?.is_empty() {
            true => self.add(group),
            false => Ok(()),
        }
    }

    /// Makes this program, which is attached nowhere yet, the only one of a cgroup. Meanwhile all must agree, so that
    /// processes never have more devices than before and after.
    pub fn replace(&self, group: BorrowedFd<'_>) -> io::Result<()> {
        let others = attached(group)?;
        self.add(group)?;
        for id in others {
            let mut arguments = IdArguments {
                prog_id: id,
                ..Default::default()
            };
            let other = bpf(PROG_GET_FD_BY_ID, &mut arguments)?;
            // SAFETY: the kernel just made this descriptor for us.
            let other = unsafe { OwnedFd::from_raw_fd(other) };
            let mut arguments = AttachArguments {
                target_fd: number(group),
                attach_bpf_fd: number(other.as_fd()),
                attach_type: ATTACH_CGROUP_DEVICE,
                attach_flags: 0,
            };
            bpf(PROG_DETACH, &mut arguments)?;
        }
        Ok(())
    }

    fn add(&self, group: BorrowedFd<'_>) -> io::Result<()> {
        let mut arguments = AttachArguments {
            target_fd: number(group),
            attach_bpf_fd: number(self.program.as_fd()),
            attach_type: ATTACH_CGROUP_DEVICE,
            attach_flags: ALLOW_MULTI,
        };
        bpf(PROG_ATTACH, &mut arguments).map(|_| ())
    }
}

/// The ids of the programs attached to a cgroup.
fn attached(group: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; MOST_PROGRAMS as usize];
    let mut query = QueryArguments {
        target_fd: number(group),
        attach_type: ATTACH_CGROUP_DEVICE,
        prog_ids: ids.as_mut_ptr() as u64,
        prog_cnt: MOST_PROGRAMS,
        ..Default::default()
    };
    bpf(PROG_QUERY, &mut query)?;
    let found = query.prog_cnt.min(MOST_PROGRAMS);
    Ok(ids[..found as usize].to_vec())
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX)
}

fn bpf<T>(command: libc::c_int, arguments: &mut T) -> io::Result<i32> {
    // SAFETY: `arguments` is the command's own structure, of the size that is said, all of it initialised, and what it
    // points to outlives the call; the kernel writes to no other place.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(arguments),
            size_of::<T>(),
        )
    };
    match i32::try_from(result) {
        Ok(number) if number >= 0 => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The program: a test that succeeds jumps to the end, where the answer is yes.
fn program(devices: &[Device]) -> Vec<Instruction> {
    /// Continues if the register is not equal; otherwise jumps this far, counted from the next instruction.
    fn if_equal(register: u8, value: i32, offset: i16) -> Instruction {
        instruction(0x15, register, offset, value)
    }
    fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
        Instruction {
            code,
            registers,
            offset,
            immediate,
        }
    }
    const YES: i16 = i16::MAX;
    // From the context (r1): r2 kind of device, r3 major, r4 minor, r5 kind of access.
    let mut code = vec![
        instruction(0x61, 0x12, 0, 0),
        instruction(0x61, 0x13, 4, 0),
        instruction(0x61, 0x14, 8, 0),
        instruction(0xbf, 0x25, 0, 0),
        instruction(0x77, 5, 0, 16),
        if_equal(5, ACCESS_MKNOD, YES),
        instruction(0x57, 2, 0, 0xffff),
    ];
    // The kernel has 12 bits for a major and 20 for a minor.
    let value = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    for device in devices {
        let kind = if device.block {
            KIND_BLOCK
        } else {
            KIND_CHARACTER
        };
        let mut tests = vec![(0x55, 2, kind), (0x55, 3, value(device.major))];
        tests.extend(device.minor.map(|minor| (0x55, 4, value(minor))));
        for (yes, access) in [(device.read, ACCESS_READ), (device.write, ACCESS_WRITE)] {
            // If any of these bits is set.
            tests.extend((!yes).then_some((0x45, 5, access)));
        }
        // A test that fails skips to the next device.
        let mut left = i16::try_from(tests.len()).expect("there are few");
        for (test, register, value) in tests {
            code.push(instruction(test, register, left, value));
            left -= 1;
        }
        code.push(instruction(0x05, 0, YES, 0));
    }
    let no = code.len();
    code.extend([
        instruction(0xb7, 0, 0, 0),
        instruction(0x95, 0, 0, 0),
        instruction(0xb7, 0, 0, 1),
        instruction(0x95, 0, 0, 0),
    ]);
    for (place, instruction) in code.iter_mut().enumerate() {
        let to = match instruction.offset {
            YES => no + 2,
            _ => continue,
        };
        instruction.offset = i16::try_from(to - place - 1).expect("the program is short");
    }
    code
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::sys::cgroup;

    struct Group(PathBuf);

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn processes_of_a_cgroup_open_the_devices_they_may_and_no_others() {
        let hierarchies = cgroup::hierarchies().unwrap();
        let unified = hierarchies
            .iter()
            .find(|hierarchy| hierarchy.v2)
            .expect("cgroup2 is mounted");
        let group = Group(unified.folder(&format!("coracle-devices-{}", std::process::id())));
        fs::create_dir(&group.0).unwrap();
        let folder = File::open(&group.0).unwrap();
        let some = [
            Device::character(1, Some(3)),
            Device::character(5, None),
            Device {
                block: true,
                major: 7,
                minor: Some(3),
                read: true,
                write: false,
            },
        ];
        // What a former run of the container was allowed does not count.
        let former = DeviceRules::load(&[]).unwrap();
        former.attach(folder.as_fd()).unwrap();
        for _ in 0..2 {
            let rules = DeviceRules::load(&some).unwrap();
            rules.replace(folder.as_fd()).unwrap();
            assert_eq!(attached(folder.as_fd()).unwrap().len(), 1);
        }
        // A program from before the agent restart, for a container that starts again: nothing changes.
        let others = DeviceRules::load(&[]).unwrap();
        others.attach(folder.as_fd()).unwrap();
        let nodes = std::env::temp_dir().join(format!("coracle-devices-{}", std::process::id()));
        fs::create_dir(&nodes).unwrap();
        // null, zero, the terminal, a disk with the numbers of null, a disk for reading and a disk beside it.
        let script = "read start; cd \"$0\"; \
            for node in 'c 1 3' 'c 1 5' 'c 5 0' 'b 1 3' 'b 7 3' 'b 7 4'; do \
                rm -f node; mknod node $node || exit 1; \
                (: <node) 2>read; (: >>node) 2>write; said=; \
                for way in read write; do grep -q 'not permitted' $way || said=\"$said $way\"; done; \
                echo \"$node:$said\"; \
            done";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .arg(&nodes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        fs::write(group.0.join("cgroup.procs"), shell.id().to_string()).unwrap();
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let out = shell.wait_with_output().unwrap();
        fs::remove_dir_all(&nodes).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&out.stdout),
            "c 1 3: read write\nc 1 5:\nc 5 0: read write\nb 1 3:\nb 7 3: read\nb 7 4:\n"
        );
    }
}
