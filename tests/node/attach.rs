//! Clients attached to a container's input and output by `coracle attach`.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;

fn attach(agent: &Agent, args: &[&str]) -> Child {
    coracle()
        .arg("attach")
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("coracle runs")
}

/// Reads until this text appears.
pub(super) fn read_until(source: &mut (impl Read + AsFd), wanted: &str) -> String {
    let end = Instant::now() + PATIENCE;
    let (mut said, mut buffer) = (String::new(), [0; 1024]);
    while !said.contains(wanted) {
        let left = end.saturating_duration_since(Instant::now()).as_millis();
        let timeout = PollTimeout::try_from(left).expect("a minute at most");
        let mut fds = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
        let ready = poll(&mut fds, timeout).expect("poll");
        assert!(ready > 0, "never `{wanted}`: {said}");
        let count = source.read(&mut buffer).expect("read");
        assert!(count > 0, "ended before `{wanted}`: {said}");
        said.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    said
}

/// A session on a terminal of 33 lines, and the other end of it.
pub(super) fn on_terminal(agent: &Agent, args: &[&str], columns: u16) -> (Child, fs::File) {
    let size = nix::pty::Winsize {
        ws_row: 33,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let terminal = nix::pty::openpty(&size, None).expect("a terminal");
    let stdio = || Stdio::from(terminal.slave.try_clone().expect("duplicated"));
    let child = coracle()
        .args(args)
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(stdio())
        .stdout(stdio())
        .stderr(stdio())
        .spawn()
        .expect("coracle runs");
    drop(terminal.slave);
    (child, fs::File::from(terminal.master))
}

#[test]
fn all_attached_clients_get_the_output_and_each_may_write_to_the_input() {
    let agent = Agent::start();
    let script =
        "while read line; do echo got $line; echo err $line >&2; [ $line = end ] && exit 4; done";
    agent.write(
        "a.yaml",
        &shell_pod("a", script, "  restartPolicy: Never\n", "    stdin: true\n"),
    );
    agent.wait_running("a");
    let base = shim_pipes(&agent, "a");
    let mut speaker = attach(&agent, &["-i", "a"]);
    let mut listener = attach(&agent, &["a"]);
    wait_attached(&agent, "a", base, 2);
    let mut typed = speaker.stdin.take().expect("piped");
    typed.write_all(b"one\n").expect("written");
    for client in [&mut speaker, &mut listener] {
        read_until(client.stdout.as_mut().expect("piped"), "got one\n");
    }
    // Without `stdinOnce` the input stays open when a client's input ends.
    drop(typed);
    let mut other = attach(&agent, &["-i", "a"]);
    wait_attached(&agent, "a", base, 3);
    let typed = other.stdin.as_mut().expect("piped");
    typed.write_all(b"end\n").expect("written");
    for client in [speaker, listener, other] {
        let (said, code) = output_in_time(client);
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!((said.as_str(), code), ("got end\n", Some(4)));
    }
    let log = agent.ok(&["logs", "a"]);
    assert_eq!(log.lines().count(), 4, "{log}");
    let refused = agent.cli(&["attach", "a"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("is not running"), "{error}");
}

#[test]
fn with_stdin_once_the_input_ends_with_the_first_client_that_wrote() {
    let agent = Agent::start();
    let more = "    stdin: true\n    stdinOnce: true\n";
    let once = shell_pod(
        "a",
        "cat; echo over; exit 6",
        "  restartPolicy: Never\n",
        more,
    );
    agent.write("a.yaml", &once);
    agent.wait_running("a");
    let mut client = attach(&agent, &["-i", "a"]);
    client
        .stdin
        .take()
        .expect("piped")
        .write_all(b"text\n")
        .expect("written");
    let (said, code) = output_in_time(client);
    assert_eq!((&said[..], code), (&b"text\nover\n"[..], Some(6)));
}

#[test]
fn a_terminal_is_logged_and_resized_and_a_client_detaches_by_its_keys() {
    let agent = Agent::start();
    let script = "printf 'ready> '; while read line; do stty size; echo got $line; \
                  [ \"$line\" = end ] && exit 5; printf 'ready> '; done";
    let more = "    stdin: true\n    tty: true\n";
    agent.write(
        "a.yaml",
        &shell_pod("a", script, "  restartPolicy: Never\n", more),
    );
    agent.wait_running("a");
    let session = |columns| on_terminal(&agent, &["attach", "-it", "a"], columns);
    let (mut first, mut screen) = session(77);
    // The prompt was written before, and is shown again.
    read_until(&mut screen, "ready> ");
    screen.write_all(b"one\n").expect("typed");
    read_until(&mut screen, "33 77\r\ngot one\r\nready> ");
    screen.write_all(b"\x10\x11").expect("typed");
    read_until(&mut screen, "detached");
    assert_eq!(first.wait().expect("ends").code(), Some(0));
    let (mut second, mut screen) = session(99);
    read_until(&mut screen, "ready> ");
    screen.write_all(b"end\n").expect("typed");
    read_until(&mut screen, "33 99\r\ngot end");
    assert_eq!(second.wait().expect("ends").code(), Some(5));
    let log = agent.ok(&["logs", "a"]);
    assert!(log.contains("got one") && log.contains("got end"), "{log}");
}

#[test]
fn a_client_that_does_not_read_delays_neither_container_nor_log_and_learns_how_much_it_missed() {
    let agent = Agent::start();
    let script = "read go; head -c 6000000 /dev/zero | tr '\\0' 'x' | fold -w 100; echo; echo done; \
                  while read word; do echo $word; [ $word != end ] || exit 0; done";
    let more = "    stdin: true\n";
    agent.write(
        "a.yaml",
        &shell_pod("a", script, "  restartPolicy: Never\n", more),
    );
    agent.wait_running("a");
    let base = shim_pipes(&agent, "a");
    let mut client = attach(&agent, &["-i", "a"]);
    wait_attached(&agent, "a", base, 1);
    let typed = client.stdin.as_mut().expect("piped");
    typed.write_all(b"go\n").expect("written");
    // The client is not read from, yet the log is completed.
    agent.wait_line("a", "done");
    let mut typed = client.stdin.take().expect("piped");
    let mut stdout = client.stdout.take().expect("piped");
    let (sender, pieces) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut piece = vec![0; 1 << 16];
        loop {
            match stdout.read(&mut piece).expect("read") {
                0 => break,
                count => sender.send(piece[..count].to_vec()).expect("heard"),
            }
        }
    });
    // The client gets the note about the missing output with the next output for which there is room.
    let mut said = String::new();
    let deadline = Instant::now() + PATIENCE;
    while !said.contains("bytes were not read in time; `coracle logs` has them]") {
        assert!(Instant::now() < deadline, "{}", said.len());
        match pieces.recv_timeout(Duration::from_millis(100)) {
            Ok(piece) => said += &String::from_utf8_lossy(&piece),
            Err(_) => typed.write_all(b"again\n").expect("written"),
        }
    }
    assert!(said.len() < 6_000_000, "{}", said.len());
    typed.write_all(b"end\n").expect("written");
    assert_eq!(client.wait().expect("ends").code(), Some(0));
    reader.join().expect("read");
}

#[test]
fn a_killed_client_leaves_the_container_running_and_no_open_pipes() {
    let agent = Agent::start();
    let more = "    stdin: true\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", more));
    agent.wait_running("a");
    let before = pipes(&agent);
    let base = shim_pipes(&agent, "a");
    let mut client = attach(&agent, &["-i", "a"]);
    wait_attached(&agent, "a", base, 1);
    client.kill().expect("own child");
    client.wait().expect("own child");
    wait_attached(&agent, "a", base, 0);
    agent.ok(&["get", "pods"]);
    assert!(pipes(&agent) <= before, "its pipes are closed");
    assert_eq!(main_status(&agent.wait_running("a"))["restartCount"], 0);
}

#[test]
fn input_for_a_container_without_stdin_is_refused_with_advice() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let refused = agent.cli(&["attach", "-i", "a"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("does not say `stdin: true`"), "{error}");
}
