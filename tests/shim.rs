//! Does a shim hold real containers as it should? Needs root and the package `busybox-static`.

mod shim_world;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use coracle::shim::protocol::{ContainerRecord, FailedStep, Message, Reply, Request, SubPath};
use coracle::spec::StopSignal;
use serde_json::json;
use shim_world::{World, exec_request, until};

#[test]
fn a_container_runs_logs_and_its_exit_code_is_told() {
    let mut world = World::new();
    let script = "echo out; echo err >&2; pwd; exit 3";
    let request = world.request("c", 0, &["sh", "-c", script], |_| {});
    let exit = world.run(request);
    assert_eq!((exit.code, exit.signal, exit.oom_killed), (3, None, false));
    assert!(exit.finished.time >= exit.started.time && exit.started.wall.0 > 0);
    let mut log = world.log("c");
    log.sort();
    let expected = ["stderr F err", "stdout F /made/by/the/shim", "stdout F out"];
    assert_eq!(log, expected);
    assert!(exit.message.contains("out\n"), "{:?}", exit.message);
    let record = fs::read_to_string(world.run_dir.join("records/c.json")).unwrap();
    assert!(record.contains("\"code\":3"), "{record}");
}

#[test]
fn a_kill_ends_with_137_and_a_handled_term_with_the_programs_own_code() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let script = "trap 'exit 7' TERM; echo ready; while true; do sleep 0.01; done";
    world.start("d", &["sh", "-c", script]);
    world.await_line("d", "ready");
    world.signal("c", StopSignal::Kill);
    let exit = world.exit();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    world.signal("d", StopSignal::Stop);
    assert_eq!(world.exit().code, 7);
    world.signal("d", StopSignal::Kill);
}

#[test]
fn a_frozen_container_can_be_killed_also_in_a_group_of_its_own() {
    let mut world = World::new();
    for (container, below) in [("c", ""), ("d", "/inner")] {
        let record = world.start(container, &["sleep", "1000"]);
        world.freeze(&format!("{container}{below}"), record.pid);
        world.signal(container, StopSignal::Kill);
        assert_eq!(world.exit().code, 137, "{container}");
    }
}

#[test]
fn the_termination_message_is_the_end_of_its_file() {
    let mut world = World::new();
    let request = world.request("c", 0, &["sh", "-c", "echo log; exit 1"], |_| {});
    fs::write(&request.termination_message, "x".repeat(5000) + "end").unwrap();
    let exit = world.run(request);
    assert_eq!(exit.message.len(), 4096);
    assert!(exit.message.ends_with("xend"));
}

#[test]
fn a_missing_program_fails_to_run_and_leaves_nothing() {
    let mut world = World::new();
    let memory = |world: &World| (world.fds(), world.mounts(&world.shim.id().to_string()));
    // The first start opens what libcontainer keeps for good.
    let request = world.request("c", 0, &["true"], |_| {});
    world.run(request);
    let request = world.request("c", 1, &["nothing"], |_| {});
    world.fail(request);
    let before = memory(&world);
    for (program, message) in [
        ("foo", "exec: \"foo\": executable file not found in $PATH"),
        (
            "/foo",
            "exec: \"/foo\": stat /foo: no such file or directory",
        ),
        ("/bin/noexec", "exec: \"/bin/noexec\": permission denied"),
    ] {
        let request = world.request("c", 1, &[program], |_| {});
        assert_eq!(world.fail(request), (FailedStep::Run, message.to_owned()));
    }
    let request = world.request("c", 1, &["true"], |config| {
        config["mounts"][0]["type"] = json!("nofs");
    });
    let (step, message) = world.fail(request);
    assert_eq!(step, FailedStep::Create);
    assert!(message.contains("ENODEV"), "{message}");
    assert_eq!(memory(&world), before);
    assert_eq!(world.children(), Vec::<String>::new());
    assert_eq!(world.mounts("self"), 0);
    let request = world.request("c", 1, &["true"], |_| {});
    assert_eq!(world.run(request).code, 0);
}

#[test]
fn fifty_restarts_open_nothing_more() {
    let mut world = World::new();
    let mut fds = 0;
    for attempt in 0..50 {
        let request = world.request("c", attempt, &["true"], |_| {});
        assert_eq!(world.run(request).code, 0);
        if attempt == 1 {
            fds = world.fds();
        }
    }
    assert_eq!(world.fds(), fds);
    assert_eq!(world.children(), Vec::<String>::new());
    show(&format!(
        "after 50 restarts: heap {} kB, stack {} kB",
        world.dirty("[heap]"),
        world.dirty("[stack]")
    ));
}

#[test]
fn what_an_ended_container_saw_is_unmounted_and_left_to_the_agent_to_remove() {
    let mut world = World::new();
    let shim = world.shim.id().to_string();
    let request = world.request("c", 0, &["true"], |_| {});
    assert_eq!(world.run(request).code, 0);
    let before = world.mounts(&shim);
    let mounts = fs::read_to_string(format!("/proc/{shim}/mountinfo")).unwrap();
    assert!(!mounts.contains("/rootfs "), "{mounts}");
    assert!(world.dir.join("c/layer-0/upper").exists());
    assert!(world.run_dir.join("records/c.json").exists());
    let again = world.request("c", 1, &["sh", "-c", "exit 5"], |_| {});
    assert_eq!(world.run(again).code, 5, "it may run again all the same");
    assert_eq!(world.mounts(&shim), before);
}

#[test]
fn an_old_attempt_is_refused_and_a_known_one_answered() {
    let mut world = World::new();
    let request = world.request("c", 4, &["sleep", "1000"], |_| {});
    let record = world.begin(request.clone());
    assert_eq!(world.begin(request.clone()), record);
    let mut older = request.clone();
    older.attempt = 3;
    assert_eq!(world.fail(older).0, FailedStep::Request);
    let mut newer = request;
    newer.attempt = 5;
    let (step, message) = world.fail(newer);
    assert_eq!(step, FailedStep::Request);
    assert!(message.contains("still runs"), "{message}");
}

#[test]
fn a_program_runs_in_a_container_as_the_container_does() {
    let mut world = World::new();
    let request = world.request("c", 0, &["sleep", "1000"], |config| {
        config["process"]["user"] = json!({ "uid": 1000, "gid": 2000, "additionalGids": [3000] });
    });
    let record = world.begin(request);
    assert_eq!(world.exec(&["sh", "-c", "exit 9"]), (9, String::new()));
    let script = "echo $A $EXTRA $HOME; pwd; id -u; id -G; hostname; ulimit -n";
    let expected = "b yes /\n/made/by/the/shim\n1000\n2000 3000\npodhost\n512\n";
    assert_eq!(world.exec(&["sh", "-c", script]), (0, expected.to_owned()));
    // Same capabilities, filter, signals, namespaces, cgroups and OOM score as the first process.
    let status = "grep -E 'Cap|Sec|Sig[BI]|NoNew' /proc/$P/status; \
        for n in ipc mnt net pid uts cgroup user; do readlink /proc/$P/ns/$n; done; \
        cat /proc/$P/cgroup /proc/$P/oom_score_adj";
    let (_, own) = world.exec(&["sh", "-c", &status.replace("$P", "self")]);
    let (_, init) = world.exec(&["sh", "-c", &status.replace("$P", "1")]);
    assert_eq!(own, init);
    assert!(own.contains("Seccomp:\t2"), "{own}");
    assert!(own.contains("SigBlk:\t0000000000000000"), "{own}");
    assert!(own.contains("SigIgn:\t0000000000000000"), "{own}");
    assert!(own.ends_with("500\n"), "{own}");
    assert_eq!(world.children(), [record.pid.to_string()]);
}

#[test]
fn a_pipe_for_passwd_in_the_container_does_not_hold_a_program_up() {
    let mut world = World::new();
    let script =
        "mkdir -p /etc; rm -f /etc/passwd; mkfifo /etc/passwd; echo ready; exec sleep 1000";
    world.start("c", &["sh", "-c", script]);
    world.await_line("c", "ready");
    let (code, output) = world.exec(&["sh", "-c", "test -p /etc/passwd && echo home $HOME"]);
    assert_eq!((code, output.trim()), (0, "home /"));
}

#[test]
fn the_container_is_filtered_and_its_signals_are_clean() {
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
fn the_filter_sees_through_upper_bits_and_denies_only_what_it_knows() {
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
            show("vsock", syscall(SYS_socket, 40L, 1L, 0L));
            show("vsock with upper bits", syscall(SYS_socket, 0x100000028L, 1L, 0L));
            show("unix with upper bits", syscall(SYS_socket, 0x100000001L, 1L, 0L));
            show("family 47", syscall(SYS_socket, 47L, 1L, 0L));
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
        "vsock EPERM",
        "vsock with upper bits EPERM",
        "unix with upper bits EPERM",
        "family 47 EPERM",
        "keyctl EPERM",
        "mount EPERM",
        "unshare EPERM",
        "clone namespaces EPERM",
        "clone3 ENOSYS",
        "newer than all ENOSYS",
        "clone ok",
        "personality ok",
    ];
    let request = world.request("c", 0, &["calls"], |_| {});
    assert_eq!(world.run(request).code, 0);
    let log = world.log("c");
    let found: Vec<_> = log
        .iter()
        .filter_map(|l| l.strip_prefix("stdout F "))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn a_program_that_is_not_there_fails_in_words_and_leaks_nothing() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    let mut before = 0;
    for round in 0..3 {
        let null = fs::File::open("/dev/null").unwrap();
        let mut client = world.connect();
        let request = exec_request(&["foo"], false);
        client
            .send(&request, &[null.as_fd(), null.as_fd(), null.as_fd()])
            .unwrap();
        let expected = Message::Reply(Reply::Failed {
            step: FailedStep::Run,
            message: "exec: \"foo\": executable file not found in $PATH".to_owned(),
        });
        assert_eq!(client.receive().unwrap(), expected);
        drop(client);
        // The first may be answered in the turn that notices the end of the other connection.
        world.client.hello(true).unwrap();
        world.client.hello(true).unwrap();
        if round == 0 {
            before = world.fds();
        }
    }
    assert_eq!(world.fds(), before);
    assert_eq!(world.children(), [record.pid.to_string()]);
}

#[test]
fn a_program_gets_a_terminal_of_the_container() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let mut client = world.connect();
    let script = "tty; stty size; echo $TERM; read line; echo got $line; exit 4";
    let request = exec_request(&["sh", "-c", script], true);
    client.send(&request, &[]).unwrap();
    assert!(matches!(
        client.receive().unwrap(),
        Message::Reply(Reply::ExecStarted { .. })
    ));
    let mut terminal = fs::File::from(client.take_fds().pop().unwrap());
    terminal.write_all(b"hello\n").unwrap();
    assert_eq!(client.receive().unwrap(), Message::ExecExited { code: 4 });
    let mut output = Vec::new();
    // Ends with EIO once the last holder of the other side is gone.
    let _ = terminal.read_to_end(&mut output);
    let output = String::from_utf8(output).unwrap();
    for part in ["/dev/pts/0", "40 100", "xterm", "got hello"] {
        assert!(output.contains(part), "{part} not in {output}");
    }
}

#[test]
fn a_program_dies_with_its_connection() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    let null = fs::File::open("/dev/null").unwrap();
    let mut client = world.connect();
    let request = exec_request(&["sleep", "1000"], false);
    client
        .send(&request, &[null.as_fd(), null.as_fd(), null.as_fd()])
        .unwrap();
    client.receive().unwrap();
    assert_eq!(world.children().len(), 2);
    drop(client);
    until("the program is gone", || {
        (world.children() == [record.pid.to_string()]).then_some(())
    });
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
fn an_agent_that_comes_back_is_told_everything() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    world.client = world.connect();
    match world.client.hello(true).unwrap() {
        Reply::Hello {
            pid, containers, ..
        } => {
            assert_eq!(pid, world.shim.id());
            assert_eq!(containers["c"], record);
        }
        other => panic!("{other:?}"),
    }
    world.signal("c", StopSignal::Stop);
    world.signal("c", StopSignal::Kill);
    let exit = world.exit();
    world.client = world.connect();
    match world.client.hello(true).unwrap() {
        Reply::Hello { containers, .. } => {
            assert_eq!(containers["c"].exit, Some(exit));
            assert!(containers["c"].stop_sent.is_some());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_that_failed_is_told_as_a_run_that_ended_and_the_exit_before_it_is_kept() {
    let mut world = World::new();
    let first = world.request("c", 0, &["sh", "-c", "exit 7"], |_| {});
    assert_eq!(world.run(first).code, 7);
    // Twice the same attempt: an agent that never heard the answer asks again.
    for _ in 0..2 {
        let request = world.request("c", 1, &["nothing"], |_| {});
        world.fail(request);
        world.client = world.connect();
        let Reply::Hello { containers, .. } = world.client.hello(true).unwrap() else {
            panic!("no greeting");
        };
        let record = &containers["c"];
        let exit = record.exit.as_ref().unwrap();
        assert_eq!((record.attempt, exit.code), (1, 128));
        assert!(exit.message.contains("\"nothing\""), "{}", exit.message);
        assert_eq!(record.previous.as_ref().map(|e| e.code), Some(7));
        let file = fs::read(world.run_dir.join("records/c.json")).unwrap();
        let written: ContainerRecord = serde_json::from_slice(&file).unwrap();
        assert_eq!(&written, record);
    }
    let request = world.request("c", 2, &["sleep", "1000"], |_| {});
    world
        .client
        .send(&Request::Start(Box::new(request)), &[])
        .unwrap();
    let Message::Reply(Reply::Started(record)) = world.client.receive().unwrap() else {
        panic!("not started");
    };
    assert_eq!(record.previous.map(|e| e.code), Some(128));
    world.client = world.connect();
    let Reply::Hello { containers, .. } = world.client.hello(true).unwrap() else {
        panic!("no greeting");
    };
    assert_eq!((containers["c"].attempt, &containers["c"].exit), (2, &None));
}

#[test]
fn a_bad_frame_closes_only_its_own_connection() {
    let mut world = World::new();
    let socket = world.run_dir.join("shim.sock");
    for garbage in [b"\xff\xff\xff\xff".as_slice(), b"\x00\x00\x00\x02{]"] {
        let mut bad = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        bad.write_all(garbage).unwrap();
        let mut answer = Vec::new();
        bad.read_to_end(&mut answer).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("Failed"));
    }
    assert!(matches!(
        world.client.hello(true).unwrap(),
        Reply::Hello { .. }
    ));
}

#[test]
fn a_container_out_of_memory_says_so() {
    let mut world = World::new();
    let args = ["dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"];
    let request = world.request("c", 0, &args, |config| {
        config["linux"]["resources"] = json!({ "memory": { "limit": 32 << 20 } });
    });
    let exit = world.run(request);
    assert_eq!((exit.code, exit.oom_killed), (137, true));
}

#[test]
fn lines_without_an_end_and_long_lines_are_partial_records() {
    let mut world = World::new();
    let script = "printf tail; head -c 40000 /dev/zero >&2; echo >&2";
    let request = world.request("c", 0, &["sh", "-c", script], |_| {});
    world.run(request);
    let log = world.log("c");
    assert!(log.contains(&"stdout P tail".to_owned()));
    let lengths: Vec<_> = log
        .iter()
        .filter_map(|line| line.strip_prefix("stderr "))
        .map(|line| (line.chars().next().unwrap(), line.len() - 2))
        .collect();
    assert_eq!(lengths, [('P', 16384), ('P', 16384), ('F', 7232)]);
}

#[test]
fn what_a_container_without_pid_namespace_leaves_behind_is_killed() {
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
fn a_terminated_shim_leaves_once_nothing_runs() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let pid = nix::unistd::Pid::from_raw(world.shim.id().try_into().unwrap());
    for signal in [nix::sys::signal::SIGHUP, nix::sys::signal::SIGTERM] {
        nix::sys::signal::kill(pid, signal).unwrap();
    }
    world.signal("c", StopSignal::Kill);
    assert_eq!(world.exit().code, 137);
    assert!(world.shim.wait().unwrap().success());
    assert!(!world.run_dir.join("shim.sock").exists());
}

#[test]
fn what_is_mounted_into_a_host_path_later_is_seen_if_propagated() {
    let mut world = World::new();
    let volume = world.dir.join("shared");
    let script = "until test -e /volume/inner/file; do sleep 0.01; done; cat /volume/inner/file";
    let request = world.request("c", 0, &["sh", "-c", script], |config| {
        config["mounts"].as_array_mut().unwrap().push(json!({
            "destination": "/volume", "type": "bind", "source": volume,
            "options": ["rbind", "rslave"],
        }));
    });
    world.begin(request);
    let inner = volume.join("inner");
    fs::create_dir_all(&inner).unwrap();
    nix::mount::mount(
        Some("tmpfs"),
        &inner,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    fs::write(inner.join("file"), "arrived\n").unwrap();
    assert_eq!(world.exit().code, 0);
    assert_eq!(world.log("c"), ["stdout F arrived"]);
}

#[test]
fn a_flood_of_output_does_not_starve_a_neighbour() {
    let mut world = World::new();
    let mut request = world.request(
        "c",
        0,
        &["yes", "a line of a rather chatty program"],
        |_| {},
    );
    request.log_max_bytes = 4 << 20;
    request.log_max_files = 2;
    world.begin(request);
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; done";
    let request = world.request("d", 0, &["sh", "-c", script], |_| {});
    assert_eq!(world.run(request).code, 0);
    assert_eq!(world.log("d").len(), 10);
    world.signal("c", StopSignal::Kill);
    assert_eq!(world.exit().code, 137);
}

#[test]
fn twenty_programs_cost_little() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let cpu = |world: &World| {
        let text = fs::read_to_string(format!("/proc/{}/stat", world.shim.id())).unwrap();
        let fields: Vec<u64> = text
            .rsplit(") ")
            .next()
            .unwrap()
            .split(' ')
            .map(|field| field.trim().parse().unwrap_or(0))
            .collect();
        fields[11..15].iter().sum::<u64>()
    };
    let (before, start) = (cpu(&world), std::time::Instant::now());
    for _ in 0..20 {
        assert_eq!(world.exec(&["true"]), (0, String::new()));
    }
    show(&format!(
        "a program: {} ms of CPU in shim and children, {} ms in all",
        (cpu(&world) - before) * 10 / 20,
        start.elapsed().as_millis() / 20
    ));
}

#[test]
fn logs_rotate_by_size_alone_and_old_ones_are_compressed() {
    let mut world = World::new();
    let mut request = world.request("c", 0, &["seq", "1", "100000"], |_| {});
    let size = 128 * 1024;
    request.log_max_bytes = size;
    request.log_max_files = 4;
    assert_eq!(world.run(request).code, 0);
    let logs = world.dir.join("c/logs");
    let names = until("all but the newest are compressed", || {
        let mut names: Vec<String> = fs::read_dir(&logs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let plain = names.iter().filter(|name| !name.ends_with(".gz"));
        let plain: u64 = plain
            .filter_map(|name| fs::metadata(logs.join(name)).ok())
            .map(|found| found.len())
            .sum();
        // A compressor that lags may have one file to itself.
        assert!(plain <= 5 * size, "{plain} bytes in {names:?}");
        // The current log sorts before all others, but is the newest.
        names.sort_by_key(|name| (name == "0.log", name.trim_end_matches(".gz").to_owned()));
        let gz = |name: &String| name.ends_with(".gz");
        let done = names.len() == 4 && names.iter().map(gz).eq([true, true, false, false]);
        done.then_some(names)
    });
    let mut text = String::new();
    for name in &names {
        let mut file = fs::File::open(logs.join(name)).unwrap();
        let read = match name.ends_with(".gz") {
            true => flate2::read::GzDecoder::new(file).read_to_string(&mut text),
            false => file.read_to_string(&mut text),
        };
        read.unwrap();
    }
    let numbers: Vec<u32> = text
        .lines()
        .map(|line| line.split_once(" stdout F ").unwrap().1.parse().unwrap())
        .collect();
    let first = numbers[0];
    assert!(numbers.iter().copied().eq(first..=100_000), "{names:?}");
}

#[test]
fn a_full_disk_loses_output_and_says_so_but_never_stops_the_container() {
    let mut world = World::new();
    let script = "seq 1 20000; while true; do echo tick; sleep 0.01; done";
    let request = world.request("c", 0, &["sh", "-c", script], |_| {});
    std::os::unix::fs::symlink(world.dir.join("small"), &request.log_dir).unwrap();
    let log = request.log_dir.join("0.log");
    world.begin(request);
    until("the loss is noticed", || {
        world.shim_log().contains("dropping output").then_some(())
    });
    // Make room, again and again: what the first lines were may fill it once more.
    until("the loss and later lines are logged", || {
        let lines = world.log("c").join("\n");
        let told = lines.contains("bytes of output were lost: No space left on device");
        if told && lines.contains("stdout F tick") {
            return Some(());
        }
        if fs::metadata(&log).unwrap().len() > 60_000 {
            let file = fs::File::options().write(true).open(&log).unwrap();
            file.set_len(0).unwrap();
        }
        None
    });
}

#[test]
fn sub_paths_stay_in_their_volume() {
    let mut world = World::new();
    let volume = world.dir.join("volume");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("file"), "in the volume").unwrap();
    std::os::unix::fs::symlink("/etc", volume.join("escape")).unwrap();
    let script = "cat /file; ls -a /mnt; ls /escape";
    let mut request = world.request("c", 0, &["sh", "-c", script], |_| {});
    let binds = [("file", "file"), ("a/b", "mnt")];
    let path = request.bundle.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (path, name) in binds {
        let target = world.run_dir.join("subpaths/c").join(name);
        config["mounts"].as_array_mut().unwrap().push(json!({
            "destination": format!("/{name}"), "type": "bind", "source": target, "options": ["bind"],
        }));
        request.sub_paths.push(SubPath {
            volume: volume.clone(),
            path: path.into(),
            target,
        });
    }
    fs::write(&path, config.to_string()).unwrap();
    world.run(request.clone());
    assert!(world.log("c").join("\n").contains("in the volume"));
    assert!(volume.join("a/b").is_dir());
    request.attempt = 1;
    request.sub_paths.truncate(1);
    request.sub_paths[0].path = "escape/passwd".into();
    let (step, message) = world.fail(request);
    assert_eq!(step, FailedStep::Create);
    assert!(message.contains("sub-path"), "{message}");
}

#[test]
fn a_hundred_and_fifty_layers_are_stacked_in_order() {
    let mut world = World::new();
    let mut request = world.request("c", 0, &["cat", "/top", "/n149"], |_| {});
    let base = request.layers.pop().unwrap();
    for number in 0..150 {
        let layer = world.dir.join(format!(
            "layers/a-rather-long-name,with:odd-letters-{number}"
        ));
        fs::create_dir_all(&layer).unwrap();
        fs::write(layer.join("top"), format!("layer {number}\n")).unwrap();
        fs::write(layer.join(format!("n{number}")), "lowest\n").unwrap();
        request.layers.push(layer);
    }
    request.layers.push(base);
    assert_eq!(world.run(request).code, 0);
    assert_eq!(world.log("c"), ["stdout F layer 0", "stdout F lowest"]);
}

#[test]
fn a_container_with_a_terminal_logs_what_it_shows() {
    let mut world = World::new();
    let request = world.request("c", 0, &["sh", "-c", "tty; exit 5"], |config| {
        config["process"]["terminal"] = json!(true);
    });
    assert_eq!(world.run(request).code, 5);
    let log = world.log("c").join("\n");
    assert!(
        log.contains("/dev/pts/0") || log.contains("/dev/console"),
        "{log}"
    );
}

#[test]
fn a_terminal_belongs_to_the_containers_user() {
    let mut world = World::new();
    let script = "echo by name > /dev/stdout && echo to tty > /dev/tty";
    let request = world.request("c", 0, &["sh", "-c", script], |config| {
        config["process"]["terminal"] = json!(true);
        config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
    });
    let exit = world.run(request);
    let log = world.log("c").join("\n");
    assert_eq!(exit.code, 0, "{log}");
    assert!(log.contains("by name") && log.contains("to tty"), "{log}");
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
fn a_container_may_use_neither_tunnels_nor_the_nodes_console() {
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
fn folders_of_device_nodes_are_not_writable_for_everybody() {
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
fn a_frozen_container_does_not_hold_up_its_pod() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    let script = "while true; do echo tick; sleep 0.05; done";
    let ticker = world.start("d", &["sh", "-c", script]);
    let group = format!("{}/c", world.group);
    let mut states = world
        .hierarchies
        .iter()
        .map(|h| h.folder(&group).join("freezer.state"));
    let Some(state) = states.find(|state| state.exists()) else {
        show("cgroup v1 has no freezer here: nothing to test");
        return;
    };
    let frozen = Thaw(state);
    fs::write(&frozen.0, "FROZEN").unwrap();
    let null = fs::File::open("/dev/null").unwrap();
    let mut client = world.connect();
    let fds = [null.as_fd(), null.as_fd(), null.as_fd()];
    client.send(&exec_request(&["true"], false), &fds).unwrap();
    match client.receive().unwrap() {
        Message::Reply(Reply::Failed { step, message }) => {
            assert_eq!(step, FailedStep::Create);
            assert!(message.contains("frozen"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    let before = world.log("d").len();
    until("the neighbour's log goes on", || {
        (world.log("d").len() > before).then_some(())
    });
    drop(frozen);
    let left = [record.pid.to_string(), ticker.pid.to_string()];
    until("the courier is gone", || {
        (world.children() == left).then_some(())
    });
    assert_eq!(world.exec(&["true"]), (0, String::new()));
}

/// Thaws at its end: nothing frozen can be killed.
struct Thaw(std::path::PathBuf);

impl Drop for Thaw {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "THAWED");
    }
}

#[test]
fn a_killed_shim_leaves_no_mounts_and_a_shut_down_one_nothing() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    assert!(world.mounts(&world.shim.id().to_string()) > 0);
    assert_eq!(world.mounts("self"), 0);
    show(&format!(
        "one container: private dirty {} kB (PSS {} kB), of it heap {} kB, stack {} kB",
        world.memory("Private_Dirty:"),
        world.memory("Pss:"),
        world.dirty("[heap]"),
        world.dirty("[stack]")
    ));
    world.shim.kill().unwrap();
    world.shim.wait().unwrap();
    assert_eq!(world.mounts("self"), 0);
    drop(world);

    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    assert_eq!(world.client.call(&Request::Shutdown).unwrap(), Reply::Done);
    assert!(world.shim.wait().unwrap().success());
    assert!(!world.run_dir.join("shim.sock").exists());
    assert!(!world.run_dir.join("libcontainer/c").exists());
}

fn show(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
