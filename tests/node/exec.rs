//! Programs run in containers by `coracle exec`.

use nix::fcntl::{FcntlArg, OFlag, fcntl};

use super::*;

#[test]
fn exec_runs_with_the_containers_confinement_and_returns_the_commands_code() {
    let agent = Agent::start();
    let security = "    securityContext: {runAsUser: 1000, runAsGroup: 1000, allowPrivilegeEscalation: false}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", security));
    let pod = agent.wait_running("a");
    let ids =
        serde_json::json!({ "linux": { "uid": 1000, "gid": 1000, "supplementalGroups": [1000] } });
    assert_eq!(pod["status"]["containerStatuses"][0]["user"], ids);
    assert_eq!(agent.ok(&["exec", "a", "--", "id", "-u"]), "1000\n");
    assert_eq!(
        agent
            .cli(&["exec", "a", "--", "sh", "-c", "exit 42"])
            .status
            .code(),
        Some(42)
    );
    let status = agent.ok(&["exec", "a", "--", "cat", "/proc/self/status"]);
    assert!(
        status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"),
        "{status}"
    );
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert_eq!(
        agent
            .cli(&["exec", "a", "--", "no-such-program"])
            .status
            .code(),
        Some(127)
    );
    let mut child = coracle()
        .args(["exec", "-i", "a", "--", "cat"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("coracle runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"through and back")
        .expect("written");
    assert_eq!(
        child.wait_with_output().expect("ends").stdout,
        b"through and back"
    );
}

#[test]
fn input_that_is_not_from_a_terminal_goes_to_a_program_without_one() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let debug = ["debug", "-it", "-q", "a", "--image", "busybox:test"];
    for command in [&["exec", "-it", "a"][..], &debug] {
        let mut child = coracle()
            .args(command)
            .args(["--", "sh", "-c", "tty; cat"])
            .env("CORACLE_SOCKET", agent.socket())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("coracle runs");
        let mut input = child.stdin.take().expect("piped");
        std::io::Write::write_all(&mut input, b"through\n").expect("written");
        drop(input);
        let output = child.wait_with_output().expect("ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "not a tty\nthrough\n", "{command:?}");
        let warned = String::from_utf8_lossy(&output.stderr);
        assert_eq!(warned.matches("Unable to use a TTY").count(), 1, "{warned}");
    }
}

#[test]
fn exec_with_a_terminal_uses_a_terminal_of_the_container() {
    use std::io::{Read, Write};
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let size = nix::pty::Winsize {
        ws_row: 33,
        ws_col: 77,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(&size, None).expect("a terminal");
    let stdio = || std::process::Stdio::from(terminal.slave.try_clone().expect("duplicated"));
    let script = "tty; stty size; read line; echo got $line; exit 5";
    let mut child = coracle()
        .args(["exec", "-it", "a", "--", "sh", "-c", script])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(stdio())
        .stdout(stdio())
        .stderr(stdio())
        .spawn()
        .expect("coracle runs");
    drop(terminal.slave);
    let mut master = fs::File::from(terminal.master);
    master.write_all(b"typed\n").expect("written");
    let (mut said, mut buffer) = (String::new(), [0; 1024]);
    // The read ends with EIO when the last holder of the terminal is gone.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert_eq!(child.wait().expect("ends").code(), Some(5), "{said}");
    for expected in ["/dev/pts/", "33 77", "got typed"] {
        assert!(said.contains(expected), "no `{expected}` in {said}");
    }
}

#[test]
fn exec_loses_nothing_when_its_output_is_read_slowly() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    for flags in [OFlag::empty(), OFlag::O_NONBLOCK] {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        fcntl(&write, FcntlArg::F_SETFL(flags)).expect("set");
        let mut child = coracle()
            .args(["exec", "a", "--", "head", "-c", "300000", "/dev/zero"])
            .env("CORACLE_SOCKET", agent.socket())
            .stdout(write)
            .spawn()
            .expect("coracle runs");
        std::thread::sleep(Duration::from_millis(1500)); // How slow the reader is, is the test's input.
        let mut said = Vec::new();
        let read = std::io::Read::read_to_end(&mut fs::File::from(read), &mut said);
        read.expect("read");
        let code = child.wait().expect("own child").code();
        assert_eq!((said.len(), code), (300_000, Some(0)), "{flags:?}");
    }
}

#[test]
fn a_long_command_arrives_and_one_that_is_too_long_is_named_so() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let word = "x y".repeat(30_000);
    let sizes = ["exec", "a", "--", "sh", "-c", "echo ${#1} ${#2}", "sh"];
    let said = agent.ok(&[&sizes[..], &[&word, &word]].concat());
    assert_eq!(said, "90000 90000\n");
    let refused = agent.cli(&[&sizes[..], &[&word, &word, &word]].concat());
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        error.starts_with("error: the command is too long (2700"),
        "{error}"
    );
}

#[test]
fn a_signal_that_is_ignored_at_the_start_stays_ignored() {
    use std::io::Read;
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let script = "trap '' HUP INT TERM; exec \"$0\" exec -i a -- sh -c 'echo up; cat; echo done'";
    let program = coracle().get_program().to_owned();
    let mut child = std::process::Command::new("sh")
        .args(["-c", script])
        .arg(program)
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh runs");
    let mut up = [0; 3];
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut up).expect("the program runs");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).expect("sent");
    drop(child.stdin.take());
    let (said, code) = output_in_time(child);
    assert_eq!((&said[..], code), (&b"done\n"[..], Some(0)));
}

#[test]
fn a_standard_error_that_takes_nothing_changes_no_exit_code() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    for (command, code) in [
        (&["sh", "-c", "echo lost >&2; exit 7"][..], 7),
        (&["no-such-program"], 127),
    ] {
        let full = fs::File::create("/dev/full").expect("opened");
        let status = coracle()
            .args([&["exec", "a", "--"], command].concat())
            .env("CORACLE_SOCKET", agent.socket())
            .stderr(full)
            .status();
        assert_eq!(status.expect("coracle runs").code(), Some(code));
    }
}

#[test]
fn input_that_cannot_be_read_is_named() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let output = coracle()
        .args(["exec", "-i", "a", "--", "cat"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(fs::File::open("/").expect("opened"))
        .output()
        .expect("coracle runs");
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = "error: could not read the standard input\n  caused by: Is a directory";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn exec_ends_with_its_program_although_a_child_keeps_the_output_open() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    for child in ["sleep 1000", "while :; do echo tick; sleep 0.1; done"] {
        let script = format!("({child}) & echo hi; exit 4");
        let (said, code) = output_in_time(exec(&agent, &["a", "--", "sh", "-c", &script]));
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.contains("hi\n"), "{said}");
        assert_eq!(code, Some(4), "{child}");
    }
}

#[test]
fn exec_carries_large_input_and_still_larger_output_at_the_same_time() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let args = ["-i", "a", "--", "od", "-An", "-v", "-tx1"];
    let mut child = exec(&agent, &args);
    let feeder = feed(&mut child, 1_600_000);
    let (said, code) = output_in_time(child);
    // Each line has sixteen bytes, each as a space and two digits.
    assert_eq!((said.len(), code), (100_000 * 49, Some(0)));
    feeder.join().expect("fed");
}

#[test]
fn exec_returns_the_code_of_a_program_that_left_its_input_unread() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    // The child keeps the input open, and never reads it.
    let script = "exec 3<&0; sleep 1000 & echo enough; exit 3";
    let mut child = exec(&agent, &["-i", "a", "--", "sh", "-c", script]);
    let feeder = feed(&mut child, 8_000_000);
    let (said, code) = output_in_time(child);
    assert_eq!((&said[..], code), (&b"enough\n"[..], Some(3)));
    feeder.join().expect("fed");
}

#[test]
fn killing_an_exec_client_ends_its_program_even_if_input_is_unread() {
    use std::io::{Read, Write};
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let before = pipes(&agent);
    // A reader of this pipe sees its end when the program has ended.
    let script = "mkfifo /held; exec 9<>/held; echo up; echo held >&9; exec sleep 777";
    let mut client = exec(&agent, &["-i", "a", "--", "sh", "-c", script]);
    let mut up = [0; 3];
    let mut stdout = client.stdout.take().expect("piped");
    stdout.read_exact(&mut up).expect("the program runs");
    let mut watcher = exec(&agent, &["a", "--", "cat", "/held"]);
    let mut held = [0; 5];
    let seen = watcher.stdout.as_mut().expect("piped");
    seen.read_exact(&mut held).expect("the pipe is open");
    // Two pipes and the client's buffer hold less: the rest has reached the socket, and is more than the program's pipe
    // takes. All buffers together hold it, though.
    let mut stdin = client.stdin.take().expect("piped");
    stdin.write_all(&[b'x'; 256 * 1024]).expect("taken");
    client.kill().expect("own child");
    client.wait().expect("own child");
    assert_eq!(output_in_time(watcher).1, Some(0));
    agent.ok(&["get", "pods"]);
    assert!(pipes(&agent) <= before, "its pipes are closed");
}

#[test]
fn exec_with_a_terminal_but_without_input_gets_the_terminals_size() {
    use std::io::Read;
    use std::process::Stdio;
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let size = nix::pty::Winsize {
        ws_row: 33,
        ws_col: 77,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(&size, None).expect("a terminal");
    let mut child = coracle()
        .args(["exec", "-t", "a", "--", "stty", "size"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::from(terminal.slave))
        .spawn()
        .expect("coracle runs");
    let mut master = fs::File::from(terminal.master);
    let (mut said, mut buffer) = (String::new(), [0; 1024]);
    // The read ends with EIO when the last holder of the terminal is gone.
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        said.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    assert!(child.wait().expect("ends").success(), "{said}");
    assert_eq!(said.trim(), "33 77");
}

#[test]
fn an_agent_survives_a_program_that_ends_before_its_input() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let mut child = exec(&agent, &["-i", "a", "--", "sh", "-c", "exit 3"]);
    let feeder = feed(&mut child, 1_000_000);
    assert_eq!(output_in_time(child).1, Some(3));
    feeder.join().expect("fed");
    agent.ok(&["get", "pods"]);
}
