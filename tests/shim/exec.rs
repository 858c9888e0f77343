//! Programs run in running containers.

use coracle::shim::frame::Client;
use coracle::shim::protocol::{Keep, Purpose};
use coracle::spec::{HookKind, ProbeKind};

use super::*;

#[test]
fn a_program_runs_with_the_containers_user_environment_and_confinement() {
    let mut world = World::new();
    let request = world.request("c", 0, &["sleep", "1000"], |config| {
        config["process"]["user"] = json!({ "uid": 1000, "gid": 2000, "additionalGids": [3000] });
    });
    let record = world.begin(request);
    assert_eq!(world.exec(&["sh", "-c", "exit 9"]), (9, String::new()));
    let script = "echo $A $EXTRA $HOME; pwd; id -u; id -G; hostname; ulimit -n";
    let expected = "b yes /\n/made/by/the/shim\n1000\n2000 3000\npodhost\n512\n";
    assert_eq!(world.exec(&["sh", "-c", script]), (0, expected.to_owned()));
    // It has the same capabilities, filter, signals, namespaces, cgroups and OOM score as the first process.
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
fn a_pipe_in_place_of_passwd_does_not_block_a_program() {
    let mut world = World::new();
    let script =
        "mkdir -p /etc; rm -f /etc/passwd; mkfifo /etc/passwd; echo ready; exec sleep 1000";
    world.start("c", &["sh", "-c", script]);
    world.await_line("c", "ready");
    let (code, output) = world.exec(&["sh", "-c", "test -p /etc/passwd && echo home $HOME"]);
    assert_eq!((code, output.trim()), (0, "home /"));
}

#[test]
fn a_missing_program_fails_with_a_message_and_leaks_nothing() {
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
        // The first request may be answered in the turn that notices the end of the other connection.
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
    // The read ends with EIO once the last holder of the other side is gone.
    let _ = terminal.read_to_end(&mut output);
    let output = String::from_utf8(output).unwrap();
    for part in ["/dev/pts/0", "40 100", "xterm", "got hello"] {
        assert!(output.contains(part), "{part} not in {output}");
    }
}

#[test]
fn a_program_is_killed_when_its_connection_closes() {
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
fn a_frozen_container_does_not_block_its_pod() {
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

/// Thaws the group at its end: a frozen process cannot be killed.
struct Thaw(std::path::PathBuf);

impl Drop for Thaw {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "THAWED");
    }
}

/// Requests a kept program in container `c`; returns the answer.
fn keep(
    client: &mut Client,
    argv: &[&str],
    (purpose, timeout_ms): (Purpose, Option<u64>),
) -> Message {
    let Request::Exec(mut request) = exec_request(argv, false) else {
        panic!("an exec")
    };
    request.keep = Some(Keep {
        purpose,
        attempt: 0,
        timeout_ms,
    });
    let null = fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd()];
    client.send(&Request::Exec(request), &fds).unwrap();
    client.receive().unwrap()
}

/// The end of a kept program: code, output and errors.
fn end(client: &mut Client) -> (i32, String, String) {
    match client.receive().unwrap() {
        Message::KeptEnded(end) => (end.code, end.output, end.errors),
        other => panic!("not an end: {other:?}"),
    }
}

fn started(answer: &Message) -> bool {
    matches!(answer, Message::Reply(Reply::ExecStarted { .. }))
}

const PRE_STOP: (Purpose, Option<u64>) = (Purpose::Hook(HookKind::PreStop), None);
const LIVENESS: (Purpose, Option<u64>) = (Purpose::Probe(ProbeKind::Liveness), Some(60_000));

#[test]
fn a_kept_program_survives_its_connection_and_can_be_joined() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    let script = "echo one; read x < /gate; echo two; echo bad >&2; exit 5";
    world.exec(&["sh", "-c", "mkfifo /gate"]);
    for (asked, again) in [(PRE_STOP, true), (LIVENESS, false)] {
        let argv = ["sh", "-c", script];
        let mut first = world.connect();
        assert!(started(&keep(&mut first, &argv, asked)));
        drop(first);
        let mut second = world.connect();
        assert!(started(&keep(&mut second, &argv, asked)));
        assert_eq!(world.children().len(), 2, "the program runs only once");
        world.exec(&["sh", "-c", "echo > /gate"]);
        let outcome = (5, "one\ntwo\n".to_owned(), "bad\n".to_owned());
        assert_eq!(end(&mut second), outcome);
        // A hook's result stays; a probe runs again.
        let mut third = world.connect();
        assert!(started(&keep(&mut third, &argv, asked)));
        if !again {
            world.exec(&["sh", "-c", "echo > /gate"]);
        }
        assert_eq!(end(&mut third), outcome);
    }
    assert_eq!(world.children(), [record.pid.to_string()]);
}

#[test]
fn the_result_of_a_kept_program_that_ends_without_a_connection_is_kept() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let purposes = [PRE_STOP, LIVENESS];
    for asked in purposes {
        let mut client = world.connect();
        assert!(started(&keep(
            &mut client,
            &["sh", "-c", "echo x; exit 2"],
            asked
        )));
    }
    let kept = until("both have ended", || {
        let Reply::Hello { kept, .. } = world.client.hello(false).unwrap() else {
            panic!("a greeting")
        };
        kept.iter().all(|program| program.ended).then_some(kept)
    });
    // The end of the probe may have been reported on its connection before that closed, so only the hook counts.
    assert_eq!(kept[0].purpose, PRE_STOP.0);
    assert_eq!((kept[0].container.as_str(), kept[0].attempt), ("c", 0));
    let mut client = world.connect();
    keep(&mut client, &["sh", "-c", "echo x; exit 2"], PRE_STOP);
    assert_eq!(end(&mut client), (2, "x\n".to_owned(), String::new()));
    // The result of another attempt is not available, and the result is dropped with its container.
    let mut request = exec_request(&["true"], false);
    if let Request::Exec(request) = &mut request {
        request.keep = Some(Keep {
            purpose: PRE_STOP.0,
            attempt: 7,
            timeout_ms: None,
        });
    }
    let null = fs::File::open("/dev/null").unwrap();
    client.send(&request, &[null.as_fd()]).unwrap();
    assert!(matches!(
        client.receive().unwrap(),
        Message::Reply(Reply::Failed { .. })
    ));
    world.signal("c", StopSignal::Kill);
    until("nothing is kept", || match world.client.hello(false) {
        Ok(Reply::Hello { kept, .. }) => kept.is_empty().then_some(()),
        other => panic!("{other:?}"),
    });
}

#[test]
fn the_shim_kills_a_kept_program_at_its_timeout_even_without_an_agent() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    let asked = (LIVENESS.0, Some(300));
    let argv = ["sh", "-c", "echo here; sleep 1000"];
    let mut client = world.connect();
    assert!(started(&keep(&mut client, &argv, asked)));
    drop(client);
    until("it is killed", || {
        (world.children() == [record.pid.to_string()]).then_some(())
    });
    let mut client = world.connect();
    assert!(started(&keep(&mut client, &argv, asked)));
    match client.receive().unwrap() {
        Message::KeptEnded(end) => {
            assert!(end.timed_out, "{end:?}");
            assert_eq!((end.code, &*end.output), (137, "here\n"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kept_program_requested_with_a_different_command_is_replaced() {
    let mut world = World::new();
    let record = world.start("c", &["sleep", "1000"]);
    let mut client = world.connect();
    assert!(started(&keep(&mut client, &["sleep", "1000"], LIVENESS)));
    let mut other = world.connect();
    assert!(started(&keep(
        &mut other,
        &["sh", "-c", "exit 6"],
        LIVENESS
    )));
    assert_eq!(end(&mut other).0, 6);
    until("the first is gone", || {
        (world.children() == [record.pid.to_string()]).then_some(())
    });
}

#[test]
fn a_kept_program_that_writes_without_end_costs_the_shim_little() {
    let mut world = World::new();
    world.start("c", &["sleep", "1000"]);
    let mut client = world.connect();
    assert!(started(&keep(
        &mut client,
        &["yes"],
        (LIVENESS.0, Some(1_000))
    )));
    match client.receive().unwrap() {
        Message::KeptEnded(end) => {
            assert!(end.timed_out);
            assert_eq!(end.output.len(), 10 << 10);
        }
        other => panic!("{other:?}"),
    }
    assert!(
        world.memory("Private_Dirty") < 4096,
        "{}",
        world.memory("Private_Dirty")
    );
}
