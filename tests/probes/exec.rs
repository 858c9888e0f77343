use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use coracle::effects::probe::{Outcome, Target, run};
use coracle::shim::protocol::Purpose;
use coracle::spec::{ProbeHandler, ProbeKind};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

use super::shim_world::{World, until};
use super::{failure, success};

/// Runs a program in container `c`.
fn exec(world: &World, command: &[&str], timeout_ms: u64) -> Outcome {
    let target = Target {
        ip: None,
        instead: None,
        shim_socket: world.run_dir.join("shim.sock"),
        container: "c".to_owned(),
        attempt: 0,
        purpose: Purpose::Probe(ProbeKind::Liveness),
    };
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    let handler = ProbeHandler::Exec(command);
    smol::block_on(run(&handler, timeout_ms, &target))
}

#[test]
fn the_exit_code_decides_and_output_comes_before_errors() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let script = |code| format!("echo err >&2; echo out; exit {code}");
    for (code, expected) in [
        (0, success("out\nerr\n")),
        (1, failure("out\nerr\n")),
        (7, failure("out\nerr\n")),
    ] {
        assert_eq!(exec(&world, &["sh", "-c", &script(code)], 5000), expected);
    }
    assert_eq!(exec(&world, &["sh", "-c", "kill -9 $$"], 5000), failure(""));
}

#[test]
fn a_program_that_takes_too_long_is_killed() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let began = Instant::now();
    let outcome = exec(&world, &["sleep", "777"], 1000);
    let text = "command timed out: \"sleep 777\" timed out after 1s";
    assert_eq!(outcome, failure(text));
    assert!(began.elapsed() < Duration::from_secs(3));
    until("the program is gone", || {
        let (_, list) = world.exec(&["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
        (!list.contains("sleep 777")).then_some(())
    });
}

#[test]
fn a_command_that_cannot_run_is_an_error() {
    let mut world = World::new();
    let wrong = |outcome| match outcome {
        Outcome::Error(text) => text,
        other => panic!("{other:?}"),
    };
    // The container does not exist yet.
    wrong(exec(&world, &["true"], 2000));
    world.start("c", &["sleep", "1000"]);
    let text = wrong(exec(&world, &["foo"], 2000));
    assert!(
        text.contains("executable file not found in $PATH"),
        "{text}"
    );
}

#[test]
fn ten_kibibytes_of_endless_output_are_kept() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let much = "head -c 1000000 /dev/zero | tr '\\0' x; exit 3";
    let expected = failure(&"x".repeat(10 << 10));
    assert_eq!(exec(&world, &["sh", "-c", much], 10_000), expected);
    let text = "command timed out: \"yes\" timed out after 1s";
    assert_eq!(exec(&world, &["yes"], 1000), failure(text));
}

#[test]
fn a_child_that_keeps_the_output_open_does_not_delay_the_probe() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let began = Instant::now();
    let outcome = exec(&world, &["sh", "-c", "sleep 30 & echo fine"], 10_000);
    assert_eq!(outcome, success("fine\n"));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_hung_shim_does_not_delay_probes_beyond_their_timeouts() {
    let world = World::new();
    let path = world.dir.join("hung.sock");
    let kind = SockType::Stream;
    let listener = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let target = Target {
        ip: None,
        instead: None,
        shim_socket: path,
        container: "c".to_owned(),
        attempt: 0,
        purpose: Purpose::Probe(ProbeKind::Liveness),
    };
    let handler = ProbeHandler::Exec(vec!["true".to_owned()]);
    let began = Instant::now();
    // These are more connections than the socket's queue has room for.
    let outcomes = smol::block_on(async {
        let tasks = smol::LocalExecutor::new();
        let asked: Vec<_> = (0..8)
            .map(|_| tasks.spawn(run(&handler, 1000, &target)))
            .collect();
        let all = async {
            let mut outcomes = Vec::new();
            for one in asked {
                outcomes.push(one.await);
            }
            outcomes
        };
        tasks.run(all).await
    });
    assert!(began.elapsed() < Duration::from_secs(3));
    let text = "command timed out: \"true\" timed out after 1s";
    assert_eq!(outcomes[0], failure(text));
    for outcome in outcomes {
        assert!(!matches!(outcome, Outcome::Success(_)), "{outcome:?}");
    }
}
