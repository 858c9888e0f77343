//! Programs run in containers.

use super::*;

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
