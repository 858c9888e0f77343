//! Shims that hold real containers. Needs root and the package `busybox-static`.

#[path = "shim/confinement.rs"]
mod confinement;
#[path = "shim/exec.rs"]
mod exec;
#[path = "shim/files.rs"]
mod files;
#[path = "shim/hostile.rs"]
mod hostile;
#[path = "shim/image_volumes.rs"]
mod image_volumes;
#[path = "shim/logs.rs"]
mod logs;
mod shim_world;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use coracle::shim::protocol::{ContainerRecord, FailedStep, Message, Reply, Request, SubPath};
use coracle::types::StopSignal;
use serde_json::json;
use shim_world::{World, exec_request, until};

#[test]
fn a_container_runs_and_logs_and_its_exit_code_is_reported() {
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
fn a_killed_container_ends_with_137_and_one_that_handles_term_with_its_own_code() {
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
fn a_frozen_container_can_be_killed_even_in_a_cgroup_of_its_own() {
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
    // The first start opens what libcontainer keeps open permanently.
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
fn fifty_restarts_leave_no_open_files() {
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
fn a_request_for_an_old_attempt_is_refused_and_a_repeated_one_gets_the_same_answer() {
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
fn an_agent_that_connects_again_gets_the_whole_state() {
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
fn a_failed_start_is_reported_as_an_ended_run_and_the_previous_exit_is_kept() {
    let mut world = World::new();
    let first = world.request("c", 0, &["sh", "-c", "exit 7"], |_| {});
    assert_eq!(world.run(first).code, 7);
    // The same attempt is requested twice: an agent that did not get the answer repeats its request.
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
fn a_terminated_shim_ends_once_no_container_runs() {
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
fn a_killed_shim_leaves_no_mounts_and_one_that_was_shut_down_leaves_nothing() {
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
