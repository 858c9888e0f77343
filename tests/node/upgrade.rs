//! `coracle upgrade` without systemd: an init starts the agent again when it ends. `tests/vm/scenarios/upgrade.py` has
//! systemd, power cuts and signatures.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use super::*;

/// A node whose agent runs a program of its own, which an init starts again.
struct Node {
    agent: Agent,
    stop: AtomicBool,
}

impl Node {
    fn program(&self) -> PathBuf {
        self.agent.root.join("bin/coracle")
    }

    fn state(&self) -> PathBuf {
        self.agent.root.join("root/upgrade")
    }

    fn command(&self, within: &str, args: &[&str]) -> Command {
        let mut command = self.plain(within, args);
        command.arg("--state").arg(self.state());
        command
    }

    /// The same for the folder that is found.
    fn plain(&self, within: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.program());
        command
            .env("CORACLE_SOCKET", self.agent.socket())
            .args(["upgrade", "--within", within])
            .args(args);
        command
    }

    /// Runs `coracle upgrade` of the installed program.
    fn upgrade(&self, args: &[&str]) -> Output {
        self.command("8s", args).output().expect("it runs")
    }

    /// Starts `coracle upgrade FILE`.
    fn begin(&self, within: &str, file: &str) -> Begun {
        let mut command = self.command(within, &["--unsigned", file]);
        Begun::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// The processes that watch a trial.
    fn watchers(&self) -> Vec<i32> {
        let state = self.state();
        let state = state.to_str().expect("utf-8");
        let all = fs::read_dir("/proc").expect("proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&b"--watch".as_slice()) && words.contains(&state.as_bytes())
        })
        .collect()
    }

    /// A file beside the agent with this content.
    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.agent.root.join(name);
        fs::write(&path, content).expect("temp dir");
        path.to_str().expect("utf-8").to_owned()
    }
}

/// An upgrade that goes on beside the test.
struct Begun {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Begun {
    fn new(piped: &mut Command) -> Self {
        let mut child = piped.spawn().expect("it runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Waits for a line with this text.
    fn wait_line(&mut self, text: &str) {
        let mut lines = self.lines.by_ref().map(|line| line.expect("text"));
        assert!(lines.any(|line| line.contains(text)), "no line: {text}");
    }

    /// Waits for its end.
    fn end(mut self) -> Output {
        let rest: Vec<String> = self.lines.map_while(Result::ok).collect();
        drop(self.child.stdout.take());
        let output = self.child.wait_with_output().expect("own child");
        let stdout = rest.join("\n").into_bytes();
        Output { stdout, ..output }
    }
}

/// Mounts a tmpfs of this size on a folder, which the agent's clean-up unmounts, or changes the size of the one there.
pub(super) fn sized(folder: &Path, bytes: usize, flags: nix::mount::MsFlags) {
    let (tmpfs, size) = (Some("tmpfs"), format!("size={bytes}"));
    fs::create_dir_all(folder).expect("temp dir");
    nix::mount::mount(tmpfs, folder, tmpfs, flags, Some(size.as_str())).expect("a tmpfs");
}

/// Writes a file until the disk is full.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).expect("a file");
    while file.write_all(&[0; 4096]).is_ok() {}
}

/// Has the test run on a node with a ready pod; its processes are the same in the end.
fn on_a_node(test: impl FnOnce(&Node)) {
    on_a_node_with(&[], test);
}

/// The same, with flags of the agent.
fn on_a_node_with(flags: &[&str], test: impl FnOnce(&Node)) {
    let agent = Agent::prepare(Arc::new(common::netns::Netns::new()), flags, None);
    let node = Node {
        agent,
        stop: AtomicBool::new(false),
    };
    let bin = node.agent.root.join("bin");
    sized(&bin, 1 << 30, nix::mount::MsFlags::empty());
    fs::write(node.program(), &*PROGRAM).expect("temp dir");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(node.program(), executable).expect("own file");
    let agent = &node.agent;
    agent.use_program(&node.program());
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    agent.write("web.yaml", &shell_pod("web", "exec sleep 1000000", "", ""));
    let before = agent.wait_running("web")["status"]["containerStatuses"].clone();
    std::thread::scope(|scope| {
        scope.spawn(|| agent.supervise(&node.stop));
        let tested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            test(&node);
            agent.wait_answer();
            let after = agent.wait_running("web")["status"]["containerStatuses"].clone();
            assert_eq!(after, before, "the pod has not noticed");
        }));
        node.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Err(panic) = tested {
            std::panic::resume_unwind(panic);
        }
    });
}

/// This program without what only debuggers need, which makes it larger than any release.
static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let file = std::env::temp_dir().join(format!("coracle-stripped-{}", std::process::id()));
    let stripped = Command::new("strip")
        .arg("-o")
        .arg(&file)
        .arg(common::coracle().get_program())
        .status();
    assert!(stripped.expect("install binutils").success());
    let bytes = fs::read(&file).expect("it was just made");
    fs::remove_file(&file).expect("own file");
    bytes
});

/// This program, told from itself by a few more bytes.
fn newer() -> Vec<u8> {
    let mut bytes = PROGRAM.clone();
    bytes.extend_from_slice(b"newer");
    bytes
}

/// A program in C that says that it is version 9 and writes state of format 2. When it is to be the agent, it replaces the
/// node's records, one after the other, and ends with 1.
const CRASHING: &str = r#"#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **a) {
    const char record[] = "{\"format\":2,\"version\":\"9.0.0\"}";
    for (int i = 1; i < n; i++)
        if (!strcmp(a[i], "version")) return puts("{\"client\":\"9.0.0\",\"stateFormat\":2}") < 0;
    glob_t all;
    glob("ROOT/root/*.json", 0, 0, &all);
    glob("ROOT/run/*.json", GLOB_APPEND, 0, &all);
    glob("ROOT/root/pods/*/*.json", GLOB_APPEND, 0, &all);
    glob("ROOT/run/pods/*/*.json", GLOB_APPEND, 0, &all);
    for (size_t i = 0; i < all.gl_pathc; i++) {
        FILE *file = fopen("ROOT/record", "w");
        fputs(record, file);
        fclose(file);
        rename("ROOT/record", all.gl_pathv[i]);
        usleep(50000);
    }
    return 1;
}
"#;

/// A program that says that it is version 9, and as an agent never answers.
const HANGING: &str = r#"#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **a) {
    for (int i = 1; i < n; i++)
        if (!strcmp(a[i], "version")) return puts("{\"client\":\"9.0.0\",\"stateFormat\":1}") < 0;
    for (;;) pause();
}
"#;

/// Compiles a program in C.
fn compiled(folder: &Path, text: &str) -> Vec<u8> {
    let (source, program) = (folder.join("program.c"), folder.join("program"));
    let text = text.replace("ROOT", folder.to_str().expect("utf-8"));
    fs::write(&source, text).expect("temp dir");
    let made = Command::new("gcc")
        .args(["-w", "-static", "-s", "-o"])
        .arg(&program)
        .arg(&source)
        .status();
    assert!(made.expect("install gcc").success());
    fs::read(program).expect("made")
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_good_program_stays_and_the_former_one_can_come_back() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        let file = node.file("newer", &newer());
        let done = node.upgrade(&["--unsigned", &file]);
        assert!(done.status.success(), "{}", said(&done));
        assert!(said(&done).contains("confirmed"), "{}", said(&done));
        assert!(fs::read(node.program()).expect("the program") == newer());
        let status = said(&node.upgrade(&["--status"]));
        assert!(status.starts_with("confirmed  version"), "{status}");
        let again = node.upgrade(&["--unsigned", &file]);
        assert!(
            again.status.success() && said(&again).starts_with("unchanged"),
            "{}",
            said(&again)
        );
        let back = node.upgrade(&["--rollback"]);
        assert!(back.status.success(), "{}", said(&back));
        assert!(fs::read(node.program()).expect("the program") == old);
    });
}

#[test]
fn pods_that_stop_with_the_agent_do_not_stop_for_an_upgrade() {
    on_a_node_with(&["--stop-pods-on-exit"], |node| {
        let done = node.upgrade(&["--unsigned", &node.file("newer", &newer())]);
        assert!(done.status.success(), "{}", said(&done));
    });
}

#[test]
fn a_program_that_crashes_gives_way_to_the_former_one_which_has_its_records_again() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        let record = |path: &str| fs::read(node.agent.root.join(path));
        let format = record("root/format.json").expect("a format");
        let file = node.file("crashing", &compiled(&node.agent.root, CRASHING));
        let done = node.upgrade(&["--unsigned", &file]);
        assert_eq!(done.status.code(), Some(1), "{}", said(&done));
        assert!(
            said(&done).contains("version 9.0.0 was not healthy"),
            "{}",
            said(&done)
        );
        assert!(fs::read(node.program()).expect("the program") == old);
        let status = said(&node.upgrade(&["--status"]));
        assert!(status.starts_with("went back"), "{status}");
        assert_eq!(record("root/format.json").expect("a format"), format);
        let log = fs::read_to_string(node.agent.root.join("agent.log")).expect("a log");
        assert!(!log.contains("broken"), "no record is damaged: {log}");
    });
}

#[test]
fn a_program_that_hangs_gives_way_to_the_former_one() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        let is_back = |done: Output| {
            let text = said(&done);
            assert_eq!(done.status.code(), Some(1), "{text}");
            assert!(!text.contains("does not answer yet"), "{text}");
            assert!(fs::read(node.program()).expect("the program") == old);
            node.agent.wait_answer();
        };
        let program = compiled(&node.agent.root, HANGING);
        is_back(node.upgrade(&["--unsigned", &node.file("hanging", &program)]));
        // One that answers first.
        let mut upgrade = node.begin("8s", &node.file("newer", &newer()));
        upgrade.wait_line("has to stay up");
        node.agent.signal(Signal::SIGSTOP);
        is_back(upgrade.end());
    });
}

#[test]
fn what_is_no_program_of_this_machine_changes_nothing() {
    on_a_node(|node| {
        let whole = newer();
        let arm = {
            let mut bytes = whole.clone();
            bytes[18..20].copy_from_slice(&[183, 0]);
            bytes
        };
        let cases = [
            (
                "cut off",
                whole[..whole.len() / 2].to_vec(),
                "its end is missing",
            ),
            (
                "for another machine",
                arm,
                "it is for aarch64, this machine is",
            ),
            (
                "a script",
                b"#!/bin/sh\nexit 0\n".to_vec(),
                "no program of Linux",
            ),
            (
                "another program",
                fs::read("/bin/busybox").expect("busybox-static"),
                "`version -o json` ended with",
            ),
        ];
        for (what, bytes, wanted) in cases {
            let file = node.file("bad", &bytes);
            let done = node.upgrade(&["--unsigned", &file]);
            assert_eq!(done.status.code(), Some(1), "{what}: {}", said(&done));
            assert!(said(&done).contains(wanted), "{what}: {}", said(&done));
        }
        let unsigned = node.upgrade(&[&node.file("newer", &whole)]);
        assert!(
            said(&unsigned).contains("there is no key in"),
            "{}",
            said(&unsigned)
        );
        let beside = fs::read_dir(node.agent.root.join("bin")).expect("a folder");
        assert_eq!(beside.count(), 1, "nothing is left beside the program");
    });
}

#[test]
fn an_upgrade_that_was_cut_off_goes_on_and_can_be_ended_by_hand() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        let file = node.file("newer", &newer());
        // Long enough to be interrupted.
        let mut first = node.begin("1h", &file);
        first.wait_line("has to stay up");
        first.child.kill().expect("own child");
        first.child.wait().expect("own child");
        let second = node.upgrade(&["--unsigned", &file]);
        assert!(said(&second).contains("is on trial"), "{}", said(&second));
        let status = said(&node.upgrade(&["--status"]));
        assert!(status.contains("is on trial, at most 3"), "{status}");
        let back = node.upgrade(&["--rollback"]);
        assert!(
            back.status.success() && said(&back).contains("it was asked for"),
            "{}",
            said(&back)
        );
        assert!(fs::read(node.program()).expect("the program") == old);
    });
}

#[test]
fn an_agent_removes_what_was_cut_off_before_the_trial() {
    on_a_node(|node| {
        let made = |name: &str| node.agent.root.join("bin").join(name);
        fs::create_dir_all(node.state()).expect("temp dir");
        let note = serde_json::to_string(&node.program()).expect("a path");
        fs::write(node.state().join("begun.json"), note).expect("temp dir");
        for (name, content) in [
            ("coracle.new", "new"),
            ("coracle.older", "the one before"),
            ("coracle.former", "this one"),
        ] {
            fs::write(made(name), content).expect("temp dir");
        }
        // Only the next agent makes it again.
        fs::remove_file(node.agent.socket()).expect("a socket");
        node.agent.signal(nix::sys::signal::Signal::SIGKILL);
        node.agent.wait_answer();
        let former = fs::read_to_string(made("coracle.former")).expect("a program");
        assert_eq!(former, "the one before");
        let beside = fs::read_dir(node.agent.root.join("bin")).expect("a folder");
        assert_eq!(beside.count(), 2, "nothing else is left beside the program");
    });
}

#[test]
fn on_a_full_disk_an_upgrade_changes_nothing() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        let bin = node.agent.root.join("bin");
        sized(&bin, old.len() * 3 / 2, nix::mount::MsFlags::MS_REMOUNT);
        let done = node.upgrade(&["--unsigned", &node.file("newer", &newer())]);
        assert_eq!(done.status.code(), Some(1), "{}", said(&done));
        assert!(said(&done).contains("No space left"), "{}", said(&done));
        assert!(fs::read(node.program()).expect("the program") == old);
        let beside = fs::read_dir(bin).expect("a folder");
        assert_eq!(beside.count(), 1, "nothing is left beside the program");
        let status = said(&node.upgrade(&["--status"]));
        assert!(!status.contains("trial"), "{status}");
    });
}

#[test]
fn a_disk_that_fills_up_keeps_no_upgrade_from_going_back() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        sized(&node.state(), 256 * 1024, nix::mount::MsFlags::empty());
        let file = node.file("crashing", &compiled(&node.agent.root, CRASHING));
        let mut upgrade = node.begin("20s", &file);
        upgrade.wait_line("waiting");
        fill(&node.state().join("full"));
        let done = upgrade.end();
        assert_eq!(done.status.code(), Some(1), "{}", said(&done));
        assert!(fs::read(node.program()).expect("the program") == old);
        assert!(!node.state().join("trial.json").exists());
        node.agent.wait_answer();
        fs::remove_file(node.state().join("full")).expect("a file");
        let again = node.upgrade(&["--unsigned", &node.file("newer", &newer())]);
        assert!(again.status.success(), "{}", said(&again));
    });
}

#[test]
fn a_rollback_after_the_trial_needs_no_room_for_the_program() {
    on_a_node(|node| {
        let old = fs::read(node.program()).expect("the program");
        let done = node.upgrade(&["--unsigned", &node.file("newer", &newer())]);
        assert!(done.status.success(), "{}", said(&done));
        let bin = node.agent.root.join("bin");
        let no_third = old.len() * 5 / 2;
        sized(&bin, no_third, nix::mount::MsFlags::MS_REMOUNT);
        fill(&bin.join("full"));
        let back = node.upgrade(&["--rollback"]);
        assert!(back.status.success(), "{}", said(&back));
        assert!(fs::read(node.program()).expect("the program") == old);
        let former = fs::read(bin.join("coracle.former")).expect("the program");
        assert!(former == newer(), "and forth again");
        let forth = node.upgrade(&["--rollback"]);
        assert!(forth.status.success(), "{}", said(&forth));
        assert!(fs::read(node.program()).expect("the program") == newer());
    });
}

#[test]
fn of_upgrades_begun_at_once_one_is_tried() {
    on_a_node(|node| {
        let file = node.file("newer", &newer());
        let begun: Vec<Begun> = (0..4).map(|_| node.begin("8s", &file)).collect();
        let ends: Vec<Output> = begun.into_iter().map(Begun::end).collect();
        let (good, refused): (Vec<_>, Vec<_>) = ends.iter().partition(|end| end.status.success());
        assert_eq!(
            good.len(),
            1,
            "{:?}",
            ends.iter().map(said).collect::<Vec<_>>()
        );
        for end in refused {
            let why = said(end);
            assert!(
                why.contains("is at work") || why.contains("is on trial"),
                "{why}"
            );
        }
        assert!(fs::read(node.program()).expect("the program") == newer());
    });
}

#[test]
fn the_next_watcher_goes_on_where_a_killed_one_was() {
    on_a_node(|node| {
        let file = node.file("newer", &newer());
        let mut upgrade = node.begin("8s", &file);
        for line in ["trying", "has to stay up"] {
            upgrade.wait_line(line);
            for pid in node.watchers() {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        let done = upgrade.end();
        assert!(done.status.success(), "{}", said(&done));
        assert!(said(&done).contains("confirmed"), "{}", said(&done));
        assert!(fs::read(node.program()).expect("the program") == newer());
    });
}

#[test]
fn the_record_of_a_trial_is_below_the_root_of_the_agent() {
    on_a_node(|node| {
        let begin = |content: Vec<u8>| {
            let file = node.file("newer", &content);
            let mut command = node.plain("8s", &["--unsigned", &file]);
            Begun::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
        };
        let mut upgrade = begin(newer());
        upgrade.wait_line("waiting");
        let trial = node.state().join("trial.json");
        let record = fs::read(&trial).expect("it is on trial");
        let done = upgrade.end();
        assert!(done.status.success(), "{}", said(&done));
        let status = node.plain("8s", &["--status"]).output().expect("it runs");
        assert!(said(&status).contains("confirmed"), "{}", said(&status));

        // A package that ends a trial knows only the usual folder, and removes the former program.
        fs::write(&trial, record).expect("own folder");
        fs::remove_file(node.agent.root.join("bin/coracle.former")).expect("there");
        let done = begin([newer(), b"still".to_vec()].concat()).end();
        assert!(done.status.success(), "{}", said(&done));
    });
}
