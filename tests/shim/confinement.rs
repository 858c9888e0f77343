//! Confinement: what containers cannot do, and what they share.

use super::*;

#[test]
fn a_container_has_the_seccomp_filter_and_no_blocked_or_ignored_signals() {
    let mut world = World::new();
    let script =
        "grep -E 'Sec|Sig[BI]' /proc/self/status; mount -t tmpfs x /tmp && echo mounted; true";
    let request = world.request("c", 0, &["sh", "-c", script], |_| {});
    assert_eq!(world.run(request).code, 0);
    let log = world.log("c").join("\n");
    assert!(log.contains("Seccomp:\t2"), "{log}");
    assert!(log.contains("SigBlk:\t0000000000000000"), "{log}");
    assert!(log.contains("SigIgn:\t0000000000000000"), "{log}");
    assert!(!log.contains("mounted"), "{log}");
    let request = world.request(
        "d",
        0,
        &["grep", "-E", "Sec|NoNew", "/proc/self/status"],
        |config| {
            config["process"]["noNewPrivileges"] = json!(true);
        },
    );
    assert_eq!(world.run(request).code, 0);
    let log = world.log("d").join("\n");
    assert!(
        log.contains("NoNewPrivs:\t1") && log.contains("Seccomp:\t2"),
        "{log}"
    );
}

#[test]
fn the_filter_ignores_upper_bits_of_arguments_and_denies_only_calls_that_it_knows() {
    let mut world = World::new();
    let source = r#"
        #define _GNU_SOURCE
        #include <errno.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        #include <sys/syscall.h>
        static void show(const char *name, long result) {
            printf("%s %s\n", name, result >= 0 ? "ok" : errno == EPERM ? "EPERM" : errno == ENOSYS ? "ENOSYS" : "other");
        }
        int main(void) {
            show("unix", syscall(SYS_socket, 1L, 1L, 0L));
            show("alg", syscall(SYS_socket, 38L, 5L, 0L));
            show("alg with upper bits", syscall(SYS_socket, 0x100000026L, 5L, 0L));
            show("nfc is left to the kernel", syscall(SYS_socket, 39L, 5L, 0L) < 0 && errno == EPERM ? -1 : 0);
            show("decnet", syscall(SYS_socket, 12L, 1L, 0L));
            show("vsock", syscall(SYS_socket, 40L, 1L, 0L));
            show("vsock with upper bits", syscall(SYS_socket, 0x100000028L, 1L, 0L));
            show("unix with upper bits", syscall(SYS_socket, 0x100000001L, 1L, 0L));
            show("family 47", syscall(SYS_socket, 47L, 1L, 0L));
            show("io_uring", syscall(425L, 1L, 0L));
            show("keyctl", syscall(SYS_keyctl, 0L, -3L, 0L));
            show("mount", syscall(SYS_mount, 0L, 0L, 0L, 0L, 0L));
            show("unshare", syscall(SYS_unshare, 0x10000000L));
            show("clone namespaces", syscall(SYS_clone, 0x30000011L, 0L, 0L, 0L, 0L));
            show("clone3", syscall(435L, 0L, 0L));
            show("newer than all", syscall(9999L));
            long child = syscall(SYS_clone, 17L, 0L, 0L, 0L, 0L);
            if (child == 0) _exit(0);
            show("clone", child);
            show("personality", syscall(SYS_personality, 0xffffffffL));
            return 0;
        }"#;
    world.compile("calls", source);
    let expected = [
        "unix ok",
        "alg EPERM",
        "alg with upper bits EPERM",
        "nfc is left to the kernel ok",
        "decnet EPERM",
        "vsock EPERM",
        "vsock with upper bits EPERM",
        "unix with upper bits EPERM",
        "family 47 EPERM",
        "io_uring EPERM",
        "keyctl EPERM",
        "mount EPERM",
        "unshare EPERM",
        "clone namespaces EPERM",
        "clone3 ENOSYS",
        "newer than all ENOSYS",
        "clone ok",
        "personality ok",
    ];
    // The runtime loads filters of profiles on the node, and those for agents before 0.3.
    for own_filter in [false, true] {
        let script = "calls; echo done; exec sleep 1000";
        let name = if own_filter { "c" } else { "older" };
        let mut request = world.request(name, 0, &["sh", "-c", script], |_| {});
        request.own_filter = own_filter;
        world.begin(request);
        world.await_line(name, "done");
        let log = world.log(name);
        let found = log.iter().filter_map(|l| l.strip_prefix("stdout F "));
        let found: Vec<_> = found.take_while(|line| *line != "done").collect();
        assert_eq!(found, expected, "{name}");
    }
    // Programs of `exec`, probes and hooks enter a container that runs, and load the filter themselves.
    let (code, found) = world.exec(&["calls"]);
    assert_eq!((code, found.lines().collect()), (0, expected.to_vec()));
}

/// The process that loads the filter is lent capabilities for that.
#[test]
fn a_program_has_the_capabilities_of_its_container_and_cannot_get_others() {
    let mut world = World::new();
    let script = "grep -E 'Cap|NoNew|Seccomp:' /proc/self/status";
    let run = format!("{script}; echo done; exec sleep 1000");
    let own = "00000000000000e1";
    let expected = [
        "CapInh:\t0000000000000000".to_owned(),
        format!("CapPrm:\t{own}"),
        format!("CapEff:\t{own}"),
        format!("CapBnd:\t{own}"),
        "CapAmb:\t0000000000000000".to_owned(),
        "NoNewPrivs:\t0".to_owned(),
        "Seccomp:\t2".to_owned(),
    ];
    world.start("c", &["sh", "-c", &run]);
    world.await_line("c", "done");
    let log = world.log("c");
    let found = log.iter().filter_map(|l| l.strip_prefix("stdout F "));
    assert_eq!(found.take(7).collect::<Vec<_>>(), expected);
    let (code, found) = world.exec(&["sh", "-c", script]);
    assert_eq!((code, found.trim_end()), (0, &*expected.join("\n")));
}

/// A program for the 32-bit machine beside this one: it writes `small` and ends with the number of the error that
/// `io_uring_setup(1, NULL)` fails with.
#[cfg(target_arch = "x86_64")]
fn program_of_32_bits() -> Vec<u8> {
    let code = [
        &[0xb8, 4, 0, 0, 0, 0xbb, 1, 0, 0, 0][..], // eax = write, ebx = 1
        &[0xb9, 0x84, 0x80, 0x04, 0x08, 0xba, 6, 0, 0, 0], // ecx = the text, edx = 6
        &[
            0xcd, 0x80, 0xb8, 0xa9, 1, 0, 0, 0xbb, 1, 0, 0, 0, 0xb9, 0, 0, 0, 0,
        ], // eax = io_uring_setup
        &[
            0xcd, 0x80, 0xf7, 0xd8, 0x89, 0xc3, 0x31, 0xc0, 0x40, 0xcd, 0x80,
        ], // exit(-eax)
    ];
    elf_of_32_bits(3, &[&code.concat()[..], b"small\n"].concat())
}

#[cfg(target_arch = "aarch64")]
fn program_of_32_bits() -> Vec<u8> {
    let code: [u32; 13] = [
        0xe3a0_7004, // r7 = write
        0xe3a0_0001, // r0 = 1
        0xe28f_1024, // r1 = the text, pc + 36
        0xe3a0_2006, // r2 = 6
        0xef00_0000,
        0xe300_71a9, // r7 = io_uring_setup
        0xe3a0_0001,
        0xe3a0_1000,
        0xef00_0000,
        0xe260_0000, // r0 = -r0
        0xe3a0_7001, // r7 = exit
        0xef00_0000,
        0xef00_0000,
    ];
    let code: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    elf_of_32_bits(40, &[&code[..], b"small\n"].concat())
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn elf_of_32_bits(machine: u16, code: &[u8]) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for half in [2, machine] {
        file.extend(u16::to_le_bytes(half));
    }
    let size = 84 + u32::try_from(code.len()).unwrap();
    // Version, entry, program headers, no sections, flags of ARM's EABI.
    let flags = if machine == 40 { 0x0500_0200 } else { 0 };
    for word in [1, 0x0804_8054, 52, 0, flags] {
        file.extend(u32::to_le_bytes(word));
    }
    for half in [52, 32, 1, 40, 0, 0] {
        file.extend(u16::to_le_bytes(half));
    }
    for word in [1, 0, 0x0804_8000, 0x0804_8000, size, size, 5, 0x1000] {
        file.extend(u32::to_le_bytes(word));
    }
    file.extend(code);
    file
}

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn a_32_bit_program_runs_in_a_64_bit_container_and_is_filtered() {
    use std::os::unix::fs::PermissionsExt;
    let mut world = World::new();
    let file = world.dir.join("layer/bin/small");
    fs::write(&file, program_of_32_bits()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    // Without a filter, the kernel's own errors: EFAULT, or ENOSYS without io_uring.
    let alone = std::process::Command::new(&file).output();
    let alone =
        alone.expect("this kernel runs 32-bit programs (CONFIG_IA32_EMULATION, CONFIG_COMPAT)");
    assert_eq!(alone.stdout, b"small\n");
    assert!(
        [Some(14), Some(38)].contains(&alone.status.code()),
        "{alone:?}"
    );
    let request = world.request("c", 0, &["small"], |_| {});
    assert_eq!(world.run(request).code, nix::Error::EPERM as i32);
    assert_eq!(world.log("c"), ["stdout F small"]);
}

/// With `int 0x80` there is also `socketcall`, whose socket family no filter can see.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_32_bit_call_of_a_64_bit_program_is_filtered() {
    let mut world = World::new();
    let source = r#"
        #include <stdio.h>
        static long call(long number, long first, long second) {
            long result;
            __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second) : "memory");
            return result;
        }
        int main(void) {
            /* socketcall(SYS_SOCKET, {AF_ALG, SOCK_SEQPACKET, 0}): the pointer does not matter. */
            printf("socketcall %ld\n", call(102, 1, 0));
            printf("alg %ld\n", call(359, 38, 5));
            printf("unix %d\n", call(359, 1, 1) >= 0);
            printf("keyctl %ld\n", call(288, 0, -3));
            printf("newer than all %ld\n", call(9999, 0, 0));
            printf("getpid %d\n", call(20, 0, 0) > 0);
            return 0;
        }"#;
    world.compile("old", source);
    let request = world.request("c", 0, &["old"], |_| {});
    assert_eq!(world.run(request).code, 0);
    let expected = [
        "socketcall -1",
        "alg -1",
        "unix 1",
        "keyctl -1",
        "newer than all -38",
        "getpid 1",
    ];
    let log = world.log("c");
    let found: Vec<_> = log
        .iter()
        .filter_map(|l| l.strip_prefix("stdout F "))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn containers_share_network_ipc_and_hostname_but_not_pids() {
    let mut world = World::new();
    let script = "for n in net ipc uts pid mnt; do readlink /proc/self/ns/$n; done; hostname; \
        ip link show lo | grep -c LOWER_UP; cat /proc/sys/net/ipv4/ip_forward";
    for name in ["c", "d"] {
        let request = world.request(name, 0, &["sh", "-c", script], |_| {});
        assert_eq!(world.run(request).code, 0);
    }
    let (c, d) = (world.log("c"), world.log("d"));
    assert_eq!(c[..3], d[..3]);
    let pids = fs::read_link("/proc/self/ns/pid").unwrap();
    assert!(!c[3].contains(pids.to_str().unwrap()));
    assert_eq!(c[5..], ["stdout F podhost", "stdout F 1", "stdout F 1"]);
    let host = fs::read_link("/proc/self/ns/net").unwrap();
    assert!(!c[0].contains(host.to_str().unwrap()));
}

#[test]
fn a_container_killed_for_lack_of_memory_is_reported_as_oom_killed() {
    let mut world = World::new();
    let args = ["dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"];
    let request = world.request("c", 0, &args, |config| {
        config["linux"]["resources"] = json!({ "memory": { "limit": 32 << 20 } });
    });
    let exit = world.run(request);
    assert_eq!((exit.code, exit.oom_killed), (137, true));
}

#[test]
fn processes_left_by_a_container_without_pid_namespace_are_killed() {
    let mut world = World::new();
    let script = "sleep 1000 & echo orphan; exit 2";
    let request = world.request("c", 0, &["sh", "-c", script], |config| {
        config["linux"]["namespaces"] = json!([{ "type": "mount" }]);
    });
    assert_eq!(world.run(request).code, 2);
    assert_eq!(world.log("c"), ["stdout F orphan"]);
    until("the orphan is gone", || {
        world.children().is_empty().then_some(())
    });
}

#[test]
fn a_pod_has_a_session_keyring_of_its_own() {
    let source = r#"
        #include <stdio.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int main(void) {
            printf("%ld\n", syscall(SYS_keyctl, 0L, -3L, 0L));
            return 0;
        }"#;
    let unfiltered = |config: &mut serde_json::Value| config["linux"]["seccomp"] = json!(null);
    let mut keyrings = Vec::new();
    let mut worlds = [World::new(), World::new()];
    for world in &mut worlds {
        world.compile("keyring", source);
        let script = "keyring; sleep 1000";
        let request = world.request("c", 0, &["sh", "-c", script], unfiltered);
        world.begin(request);
        world.await_line("c", "stdout F ");
        let first = world.log("c")[0].replace("stdout F ", "");
        let (code, of_program) = world.exec(&["keyring"]);
        assert_eq!((code, of_program.trim()), (0, first.as_str()));
        keyrings.push(first);
    }
    let own = std::process::Command::new(worlds[0].dir.join("layer/bin/keyring")).output();
    keyrings.push(
        String::from_utf8(own.unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned(),
    );
    let different: std::collections::BTreeSet<_> = keyrings.iter().collect();
    assert_eq!(different.len(), 3, "{keyrings:?}");
}

#[test]
fn a_container_may_use_neither_tun_devices_nor_the_nodes_console() {
    let mut world = World::new();
    let folder = |world: &World, container: &str| {
        let group = format!("{}/{container}", world.group);
        let mut folders = world.hierarchies.iter().map(|h| h.folder(&group));
        folders.find(|folder| folder.join("devices.list").exists())
    };
    for (name, allow) in [("c", false), ("d", true)] {
        let request = world.request(name, 0, &["sleep", "1000"], |config| {
            let rules = json!([{ "allow": allow, "access": "rwm" }]);
            config["linux"]["resources"] = json!({ "devices": rules });
        });
        world.begin(request);
        let Some(folder) = folder(&world, name) else {
            show("cgroup v1 has no devices here: nothing to test");
            return;
        };
        let list = fs::read_to_string(folder.join("devices.list")).unwrap();
        let denied = !list.contains("c 10:200") && !list.contains("c 5:1 ");
        let everything = list.contains("a *:* rwm");
        assert_eq!(
            (denied && !everything, everything),
            (!allow, allow),
            "{list}"
        );
        assert!(allow || list.contains("c 1:3 rwm"), "{list}");
    }
}

#[test]
fn folders_of_device_nodes_are_not_world_writable() {
    let mut world = World::new();
    let script = "stat -c %a /dev/net /dev/a /dev/a/b /dev/net/tun";
    let request = world.request("c", 0, &["sh", "-c", script], |config| {
        let device = |path| {
            json!({ "path": path, "type": "c", "major": 10, "minor": 200, "fileMode": 0o666 })
        };
        config["linux"]["devices"] = json!([device("/dev/net/tun"), device("/dev/a/b/c")]);
    });
    assert_eq!(world.run(request).code, 0, "{:?}", world.log("c"));
    let modes = ["755", "755", "755", "666"].map(|mode| format!("stdout F {mode}"));
    assert_eq!(world.log("c"), modes);
}

#[test]
fn containers_that_share_processes_see_each_other_below_a_first_process_without_rights() {
    let mut world = World::of(true);
    let joined = |config: &mut serde_json::Value| {
        let pid = json!({ "type": "pid", "path": "pid-namespace" });
        config["linux"]["namespaces"] = json!([{ "type": "mount" }, pid]);
        // As of a privileged container: it may look into every process.
        let all = json!([
            "CAP_SYS_PTRACE",
            "CAP_SYS_ADMIN",
            "CAP_KILL",
            "CAP_DAC_OVERRIDE"
        ]);
        config["process"]["capabilities"] = json!({
            "bounding": all, "effective": all, "permitted": all, "inheritable": [], "ambient": [],
        });
    };
    // The agent writes the link's whole path.
    let place = |request: &coracle::shim::protocol::StartRequest| {
        let path = request.bundle.join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        let link = format!("{:?}", request.bundle.join("pid-namespace"));
        fs::write(&path, text.replace("\"pid-namespace\"", &link)).unwrap();
    };
    let first = world.request(
        "c",
        0,
        &["sh", "-c", "sleep 1000 & exec sleep 1000"],
        joined,
    );
    place(&first);
    world.begin(first);
    // The other shell may still be about to start its two programs.
    let script = "cat /proc/1/comm; grep -E 'Uid|CapPrm|NoNew' /proc/1/status; ls -A /proc/1/root | wc -l; \
                  ls /proc/1/fd | wc -l; \
                  until [ \"$(for p in /proc/[0-9]*; do cat $p/comm; done 2>/dev/null | grep -c sleep)\" = 2 ]; do :; done; \
                  kill -9 1; cat /proc/1/comm";
    let second = world.request("d", 0, &["sh", "-c", script], joined);
    place(&second);
    assert_eq!(world.run(second).code, 0, "{:?}", world.log("d"));
    let expected = [
        "pause",
        "Uid:\t65535\t65535\t65535\t65535",
        "CapPrm:\t0000000000000000",
        "NoNewPrivs:\t1",
        "0",
        "0",
        "pause",
    ];
    assert_eq!(
        world.log("d"),
        expected.map(|line| format!("stdout F {line}"))
    );
    // A container's end takes its own orphans along, and leaves the others.
    world.signal("c", StopSignal::Kill);
    assert_eq!(world.exit().code, 137);
    let third = world.request(
        "e",
        0,
        &["sh", "-c", "set -- /proc/[0-9]*; echo $#"],
        joined,
    );
    place(&third);
    assert_eq!(world.run(third).code, 0);
    // The first process and `sh`.
    assert_eq!(world.log("e"), ["stdout F 2"]);
}
