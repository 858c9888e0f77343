//! Files copied to and from containers by `coracle cp`.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::configuration::run;
use super::*;

/// A folder on the node, next to the agent's.
fn folder(agent: &Agent, name: &str) -> PathBuf {
    let folder = agent.root.join(name);
    fs::create_dir_all(&folder).expect("temp dir");
    folder
}

/// Runs `cp` and returns what it said, and its exit code.
fn copy(agent: &Agent, args: &[&str]) -> (String, Option<i32>) {
    let output = agent.cli(&[&["cp"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{said}");
    (said, output.status.code())
}

fn good(agent: &Agent, args: &[&str]) {
    assert_eq!(copy(agent, args), (String::new(), Some(0)), "{args:?}");
}

#[test]
fn files_and_trees_go_both_ways_without_any_program_in_the_container() {
    let agent = Agent::start();
    agent.write(
        "a.yaml",
        &shell_pod("a", SLEEP, "", "    workingDir: /work\n"),
    );
    agent.wait_running("a");
    run(
        &agent,
        "a",
        "mkdir -p /data/sub /empty; echo one >/data/sub/file; chmod 750 /data/sub/file; ln -s sub/file /data/link",
    );
    run(&agent, "a", "rm -rf /bin /usr/bin /sbin");
    assert_ne!(
        agent.cli(&["exec", "a", "--", "tar"]).status.code(),
        Some(0)
    );
    let here = folder(&agent, "here");
    let at = |name: &str| here.join(name).to_str().expect("utf-8").to_owned();

    good(&agent, &["a:/data/sub/file", &at("file")]);
    assert_eq!(fs::read_to_string(at("file")).expect("copied"), "one\n");
    assert_eq!(
        fs::metadata(at("file")).expect("copied").mode() & 0o7777,
        0o750
    );
    good(&agent, &["a:/data/link", &at("")]);
    assert!(fs::symlink_metadata(at("link")).expect("copied").is_file());
    good(&agent, &["default/a:/data", &at("data"), "-c", "main"]);
    good(&agent, &["pod/a:/data", &at("data")]);
    for tree in ["data", "data/data"] {
        assert_eq!(
            fs::read_to_string(at(&format!("{tree}/sub/file"))).expect("copied"),
            "one\n"
        );
        let link = fs::read_link(at(&format!("{tree}/link"))).expect("a link");
        assert_eq!(link, PathBuf::from("sub/file"));
    }

    fs::write(at("new"), "two\n").expect("written");
    fs::set_permissions(at("new"), fs::Permissions::from_mode(0o4666)).expect("own file");
    std::os::unix::fs::chown(at("new"), Some(1234), Some(5678)).expect("root");
    symlink("new", at("data/dangling")).expect("made");
    good(&agent, &[&at("new"), "a:/data/sub"]);
    good(&agent, &[&at("new"), "a:/data/plain", "--no-preserve"]);
    good(&agent, &[&at("new"), "a:relative"]);
    good(&agent, &[&at("data"), "a:/empty"]);
    good(&agent, &[&format!("{}/.", at("data")), "a:/contents"]);
    good(&agent, &["a:/work/relative", &at("relative")]);
    assert_eq!(fs::read_to_string(at("relative")).expect("copied"), "two\n");
    // What the container has now, as seen from the node.
    let inside = |path: &str| {
        PathBuf::from(format!(
            "/proc/{}/root/{path}",
            pid_of(&agent, &agent.pod("a"))
        ))
    };
    let found = |path: &str| {
        let found = fs::symlink_metadata(inside(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        (found.uid(), found.gid(), found.mode() & 0o7777)
    };
    assert_eq!(found("data/sub/new"), (1234, 5678, 0o666));
    assert_eq!(found("data/plain"), (0, 0, 0o644));
    for tree in ["empty/data", "contents"] {
        assert_eq!(
            fs::read_to_string(inside(&format!("{tree}/sub/file"))).expect("copied"),
            "one\n"
        );
        let link = fs::read_link(inside(&format!("{tree}/dangling"))).expect("a link");
        assert_eq!(link, PathBuf::from("new"));
    }
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn archives_go_through_pipes() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    run(
        &agent,
        "a",
        "mkdir /d; echo text >/d/f; truncate -s 3G /d/holes; echo end >>/d/holes",
    );
    let script = "set -e; $C cp a:/d - >$D/t.tar; tar tf $D/t.tar; mkdir $D/x; tar xf $D/t.tar -C $D/x; \
        stat -c %s $D/x/d/holes; $C cp a:/d - | $C cp - a:/e; $C exec a -- tail -c 4 /e/d/holes; $C exec a -- du -s /e";
    let output = Command::new("sh")
        .args(["-c", script])
        .env("C", coracle().get_program())
        .env("D", folder(&agent, "here"))
        .env("CORACLE_SOCKET", agent.socket())
        .output()
        .expect("sh runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines: Vec<&str> = said.lines().collect();
    let (names, rest) = lines.split_at(3);
    assert!(
        names.contains(&"d/") && names.contains(&"d/f") && names.contains(&"d/holes"),
        "{said}"
    );
    assert_eq!(rest[..2], ["3221225476", "end"]);
    let kilobytes: u64 = rest[2]
        .split_whitespace()
        .next()
        .expect("du")
        .parse()
        .expect("a number");
    assert!(kilobytes < 1000, "holes stay holes: {said}");
}

#[test]
fn what_cannot_be_copied_is_named_with_its_exit_code() {
    let agent = Agent::start();
    let user = "    securityContext: {runAsUser: 1000, readOnlyRootFilesystem: true}\n    volumeMounts: [{name: v, mountPath: /v}]\n";
    let volume = "  volumes: [{name: v, emptyDir: {}}]\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, volume, user));
    agent.write(
        "b.yaml",
        &shell_pod("b", "exit 0", "  restartPolicy: Never\n", ""),
    );
    let fixed = "    securityContext: {readOnlyRootFilesystem: true}\n";
    agent.write("fixed.yaml", &shell_pod("fixed", SLEEP, "", fixed));
    agent.wait_running("a");
    agent.wait_running("fixed");
    agent.wait_phase("b", "Succeeded");
    let here = folder(&agent, "here");
    let at = |name: &str| here.join(name).to_str().expect("utf-8").to_owned();
    fs::write(at("file"), "text").expect("written");
    run(
        &agent,
        "a",
        "mkdir /v/d; echo x >/v/d/open; echo x >/v/d/closed; chmod 0 /v/d/closed; mkfifo /v/d/pipe",
    );
    for (args, words, code) in [
        (
            ["a:/absent", "."],
            "error: `/absent`: no such file or directory",
            1,
        ),
        (["./absent", "a:/v"], "could not read `./absent`", 1),
        (["c:/x", "."], "pods \"c\" not found", 3),
        (["b:/x", "."], "container main in pod b is not running", 1),
        (
            [&at("file"), "a:/v/no/such"],
            "error: `/v/no/such`: no such file or directory",
            1,
        ),
        ([&at("file"), "fixed:/root"], "read-only file system", 1),
        (["a:/dev/null", &at("null")], "`/dev/null` is a device", 1),
        (
            [&at("file"), "a:/dev/null"],
            "`/dev/null` is no file or directory",
            1,
        ),
        (["a:/v/d/pipe", "."], "is a pipe", 1),
        (["a:/etc", "a:/v"], "both paths are in containers", 2),
        (["x", "y"], "neither path is in a container", 2),
        (["a:", "y"], "no POD:PATH", 2),
    ] {
        let (said, found) = copy(&agent, &args);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(found, Some(code), "{args:?}: {said}");
    }
    let (said, code) = copy(&agent, &["a:/v", ".", "-c", "other"]);
    assert!(
        said.contains("container \"other\" not found") && code == Some(3),
        "{said}"
    );
    // The container's user may not read everything; the rest arrives.
    let (said, code) = copy(&agent, &["a:/v/d", &at("d")]);
    assert!(
        said.contains("error: `d/closed`: permission denied"),
        "{said}"
    );
    assert!(
        said.contains("warning: `d/pipe` is left out: a pipe"),
        "{said}"
    );
    assert_eq!(code, Some(1));
    assert_eq!(fs::read_dir(at("d")).expect("copied").count(), 1);
    // What arrives belongs to the user, whoever had it here.
    good(&agent, &[&at("file"), "a:/v"]);
    assert_eq!(run(&agent, "a", "stat -c %u:%g /v/file"), "1000:0\n");
}

#[test]
fn a_hostile_container_reaches_nothing_outside_the_copy() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let here = folder(&agent, "here");
    let secret = here.join("secret");
    fs::write(&secret, "secret\n").expect("written");
    let secret = secret.to_str().expect("utf-8");
    // It runs on while it is copied: names that control a terminal, links out, a file that changes, a loop of links.
    let script = format!(
        "mkdir -p /d/sub; cd /d; ln -s {secret} link; ln -s / root; ln -s .. up; ln -s . self; \
         touch \"$(printf 'a\\033[2Jb\\nerror: c')\"; mknod null c 1 3; touch suid; chmod 6777 suid; \
         ln suid hard; dd if=/dev/zero of=grow bs=1k count=300 2>/dev/null; \
         (while :; do echo more >>grow; : >short; echo long >short; done) >/dev/null 2>&1 &"
    );
    run(&agent, "a", &script);
    let to = here.join("to").to_str().expect("utf-8").to_owned();
    for _ in 0..5 {
        let (said, _) = copy(&agent, &["a:/d/.", &to]);
        assert!(!said.contains('\u{1b}'), "{said}");
        assert!(said.contains("`./null` is left out: a device"), "{said}");
        assert!(said.contains("leads out of the copy, to `/`"), "{said}");
    }
    assert_eq!(fs::read_to_string(secret).expect("still there"), "secret\n");
    let mode = fs::metadata(format!("{to}/suid")).expect("copied").mode();
    assert_eq!(mode & 0o7000, 0, "{mode:o}");
    assert!(fs::symlink_metadata(format!("{to}/null")).is_err());
    assert!(fs::metadata(format!("{to}/grow")).expect("copied").len() >= 300 << 10);

    // A link of the container is followed in the container, and nowhere else.
    let (said, code) = copy(&agent, &["a:/d/link", &to]);
    assert!(said.contains("no such file") && code == Some(1), "{said}");
    good(&agent, &[&format!("{to}/suid"), "a:/d/link"]);
    assert_eq!(fs::read_to_string(secret).expect("still there"), "secret\n");
    // The half that runs in the container is hidden from it.
    let mut client = coracle()
        .args(["cp", "-", "a:/d"])
        .env("CORACLE_SOCKET", agent.socket())
        .stdin(Stdio::piped())
        .spawn()
        .expect("coracle runs");
    let mut stdin = client.stdin.take().expect("piped");
    stdin.write_all(&[b'x'; 100]).expect("written");
    let script = "for i in $(seq 600); do for p in /proc/[0-9]*; do if [ -z \"$(readlink $p/exe)\" ]; then \
        cat $p/environ $p/maps 2>&1; exit 0; fi; done; sleep 0.1; done";
    let seen = run(&agent, "a", script);
    assert_eq!(seen.matches("denied").count(), 2, "{seen}");
    drop(stdin);
    assert_eq!(client.wait().expect("own child").code(), Some(1));
}

#[test]
fn a_copy_ends_with_its_container_and_with_its_client() {
    let agent = Agent::start();
    agent.write("a.yaml", &shell_pod("a", SLEEP, "", ""));
    agent.wait_running("a");
    let begin = || {
        let mut client = coracle()
            .args(["cp", "-", "a:/"])
            .env("CORACLE_SOCKET", agent.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("coracle runs");
        let stdin = client.stdin.take().expect("piped");
        (client, stdin)
    };
    let programs = || run(&agent, "a", "ls -d /proc/[0-9]* | wc -l");
    let before = programs();
    let wait = |wanted: &str| {
        let end = std::time::Instant::now() + PATIENCE;
        while programs() != wanted {
            assert!(std::time::Instant::now() < end, "{} are left", programs());
        }
    };
    let (mut client, _stdin) = begin();
    let more = format!("{}\n", before.trim().parse::<u32>().expect("a number") + 1);
    wait(&more);
    client.kill().expect("own child");
    client.wait().expect("own child");
    wait(&before);

    let (client, stdin) = begin();
    wait(&more);
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let output = client.wait_with_output().expect("ends");
    drop(stdin);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
