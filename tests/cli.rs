//! The real binary on the command line, without an agent.

#[path = "cli/create.rs"]
mod create;
#[path = "cli/explain.rs"]
mod explain;
#[path = "cli/foreign.rs"]
mod foreign;
#[path = "cli/install.rs"]
mod install;

use std::process::{Command, Output};

fn coracle(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_coracle"))
        .args(args)
        .env_remove("CORACLE_SOCKET")
        .output()
        .expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn help_names_every_command_and_the_exit_codes() {
    let out = coracle(&["--help"]);
    let help = text(&out.stdout);
    assert!(out.status.success());
    for word in [
        "run",
        "get",
        "describe",
        "logs",
        "exec",
        "delete",
        "image",
        "config",
        "validate",
        "doctor",
        "install",
        "uninstall",
        "version",
        "completion",
        "Exit codes",
    ] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
}

#[test]
fn without_an_agent_the_error_says_how_to_start_one() {
    let out = coracle(&["--socket", "/nonexistent/coracle.sock", "get", "pods"]);
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(
        error.starts_with("error: could not reach the agent at `/nonexistent/coracle.sock`"),
        "{error}"
    );
    assert!(
        error.contains("\n  caused by: ") && error.contains("\n  hint: start the agent"),
        "{error}"
    );
}

#[test]
fn a_black_box_that_is_named_has_to_be_there() {
    let text_file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    for (file, why) in [
        ("/nonexistent/black-box", "No such file"),
        (text_file, "there is no black box in it"),
    ] {
        let out = coracle(&["blackbox", "--file", file]);
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{error}");
        assert!(error.contains(file) && error.contains(why), "{error}");
    }
    let out = coracle(&["blackbox", "--file", "/dev/null"]);
    assert!(!out.status.success());
    let empty = std::env::temp_dir().join(format!("coracle-cli-empty-{}", std::process::id()));
    std::fs::write(&empty, "").unwrap();
    let out = coracle(&["blackbox", "--file", empty.to_str().unwrap()]);
    std::fs::remove_file(&empty).unwrap();
    assert!(out.status.success());
    assert_eq!(text(&out.stdout), "nothing is recorded\n");
}

#[test]
fn a_name_without_its_kind_is_answered_with_the_whole_command() {
    let out = coracle(&["delete", "web"]);
    let error = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{error}");
    assert!(error.contains("coracle delete pod web"), "{error}");
    let error = text(&coracle(&["delete", "crash", "fails"]).stderr);
    assert!(error.contains("coracle delete pod crash fails"), "{error}");
    for line in [
        &["delete", "images", "web"][..],
        &["delete", "web", "pod/db"],
    ] {
        let error = text(&coracle(line).stderr);
        assert!(!error.contains("coracle delete pod"), "{line:?}: {error}");
    }
    let error = text(&coracle(&["delete", "pdo"]).stderr);
    assert!(error.contains("did you mean `pod`?"), "{error}");
    let error = text(&coracle(&["stop", "svc/shop"]).stderr);
    assert!(error.contains("deployment/NAME"), "{error}");
}

#[test]
fn help_says_what_commands_take() {
    for (line, words) in [
        ("get", &["jobs", "cronjobs"][..]),
        (
            "describe",
            &["job,", "cronjob", "replicationcontroller", "pvc", "pv"],
        ),
        ("drain", &["pods of DaemonSets are evicted"]),
        ("plan", &["--strict"]),
    ] {
        let help = text(&coracle(&[line, "--help"]).stdout);
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for word in words {
            assert!(help.contains(word), "{word}: {help}");
        }
    }
    // The agent's own level counts there.
    let out = coracle(&["plan", "--pod-security", "baseline", "x.yaml"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}

#[test]
fn the_agent_takes_no_socket() {
    let help = coracle(&["run", "--help"]);
    assert!(!text(&help.stdout).contains("--socket"));
    for args in [
        ["run", "--socket", "/nowhere/x"],
        ["--socket", "/nowhere/x", "run"],
    ] {
        let output = coracle(&args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("--run-dir"), "{error}");
    }
}

#[test]
fn an_invalid_command_line_exits_with_two() {
    assert_eq!(coracle(&["get", "cheese"]).status.code(), Some(2));
    assert_eq!(
        coracle(&["get", "pods", "-o", "cheese"]).status.code(),
        Some(2)
    );
}

#[test]
fn the_version_needs_no_agent() {
    let out = coracle(&["--socket", "/nonexistent/s", "version", "-o", "json"]);
    assert!(out.status.success());
    let version: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!(version["client"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["agent"], serde_json::Value::Null);
    let build = &version["build"];
    let lock = include_str!("../Cargo.lock");
    let libcontainer = build["libraries"]["libcontainer"].as_str().unwrap();
    assert!(lock.contains(&format!(
        "name = \"libcontainer\"\nversion = \"{libcontainer}\"\n"
    )));
    for library in ["libseccomp", "libc"] {
        let version = build["libraries"][library].as_str().unwrap();
        assert!(version.starts_with("2."), "{library} {version}");
    }
    assert_eq!(build["protocols"]["shim"], 1);
    let features = build["features"].as_array().unwrap();
    assert!(features.contains(&"seccomp".into()), "{features:?}");
    assert_eq!(version["stateFormat"], 1);
}

#[test]
fn doctor_says_how_to_fix_what_fails() {
    let out = coracle(&["doctor", "-o", "json"]);
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&out.stdout).expect("JSON");
    let failed = findings.iter().filter(|f| f["level"] == "fail");
    assert!(
        failed.clone().all(|f| f["hint"].is_string()),
        "{findings:?}"
    );
    assert_eq!(out.status.code(), Some(i32::from(failed.count() > 0)));
}

#[test]
fn validate_exits_with_one_on_errors() {
    let dir = std::env::temp_dir().join(format!("coracle-validate-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    let good = dir.join("good.yaml");
    let bad = dir.join("bad.yaml");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\n";
    std::fs::write(&good, pod).expect("written");
    std::fs::write(&bad, "apiVersion: v1\nkind: [").expect("written");
    let fine = coracle(&["validate", &good.display().to_string()]);
    let wrong = coracle(&["validate", &dir.display().to_string()]);
    let good = good.display().to_string();
    let strict = coracle(&["validate", "--pod-security", "restricted", &good]);
    let unknown = coracle(&["validate", "--pod-security", "strict", &good]);
    std::fs::remove_dir_all(&dir).expect("removed");
    assert!(fine.status.success(), "{}", text(&fine.stdout));
    assert!(text(&fine.stdout).contains("ok: default/web"));
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stdout).starts_with("error: "));
    assert_eq!(strict.status.code(), Some(1));
    let why = "pods \"web\" is forbidden: violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false";
    assert!(
        text(&strict.stdout).contains(why),
        "{}",
        text(&strict.stdout)
    );
    assert_eq!(unknown.status.code(), Some(2));
    let levels = "levels are: privileged, baseline, restricted";
    assert!(
        text(&unknown.stderr).contains(levels),
        "{}",
        text(&unknown.stderr)
    );
}

#[test]
fn validate_says_what_would_show_only_on_a_node() {
    let dir = std::env::temp_dir().join(format!("coracle-validate-more-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a temporary folder");
    let file = |name: &str, content: &str| {
        let path = dir.join(name);
        std::fs::write(&path, content).expect("written");
        path.to_str().expect("utf-8").to_owned()
    };
    let pod = |name: &str, spec: &str, port: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}containers: [{{name: c, image: i, ports: \
             [{{containerPort: 80{port}}}]}}]}}\n"
        )
    };
    let web = file("web.yaml", &pod("web", "", ", hostPort: 8080"));
    let pinned = "nodeSelector: {kubernetes.io/hostname: some-other-node}, ";
    let other = file("other.yaml", &pod("other", pinned, ", hostPort: 8080"));
    let again = file("web-again.yaml", &pod("web", "", ""));
    let service = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{clusterIP: 10.96.0.9, ports: [{{port: 80}}]}}\n"
        )
    };
    let twins = file("twins.yaml", &(service("a") + &service("b")));
    std::fs::create_dir(dir.join("empty")).expect("made");
    std::fs::create_dir(dir.join("empty/inside")).expect("made");
    let empty = dir.join("empty");
    let warned = coracle(&["validate", &web, &other]);
    let clash = coracle(&["validate", &web, &again]);
    let within = coracle(&["validate", &twins]);
    let outer = coracle(&["validate", empty.to_str().expect("utf-8")]);
    std::fs::remove_dir_all(&dir).expect("removed");
    assert!(warned.status.success());
    let said = text(&warned.stdout);
    for words in [
        "pod default/other: its hostPort 8080/TCP is that of pod default/web, too",
        "pod default/other: its nodeSelector or affinity does not match this machine",
    ] {
        assert_eq!(said.matches(words).count(), 1, "{words}: {said}");
    }
    assert!(clash.status.success());
    let why = "pod `default/web` is already defined by `web.yaml`";
    assert!(text(&clash.stdout).contains(why), "{}", text(&clash.stdout));
    let why = "cluster IP 10.96.0.9";
    assert_eq!(within.status.code(), Some(1), "{}", text(&within.stdout));
    assert!(
        text(&within.stdout).contains(why),
        "{}",
        text(&within.stdout)
    );
    assert_eq!(outer.status.code(), Some(3));
    let hint = "folders inside are not read: name them";
    assert!(
        text(&outer.stderr).contains(hint),
        "{}",
        text(&outer.stderr)
    );
}

#[test]
fn settings_are_checked_and_printed_without_an_agent() {
    let folder = std::env::temp_dir().join(format!("coracle-cli-config-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("d")).expect("temp dir");
    let file = |name: &str, content: &str| {
        let path = folder.join(name);
        std::fs::write(&path, content).expect("written");
        path.to_str().expect("utf-8").to_owned()
    };
    let good = file(
        "good.yaml",
        "kind: KubeletConfiguration\nmaxPods: 7\nport: 1\n",
    );
    let bad = file("bad.yaml", "maxPods: -1\nmaxPodz: 1\n");
    file("d/1.conf", "podsPerCore: 3\n");
    let dir = folder.join("d");
    let dir = dir.to_str().expect("utf-8");

    let out = coracle(&["config", "check", &good]);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(text(&out.stdout), format!("{good}: ok\n"));
    assert!(text(&out.stderr).starts_with("warning: settings without effect here: port"));

    let out = coracle(&["config", "check", &bad]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        text(&out.stderr),
        format!(
            "error: 2 problems in the settings:\n  {bad}:1:1: invalid configuration: maxPods (--max-pods) -1 must not be a \
             negative number\n  {bad}:2:1: invalid configuration: maxPodz: unknown field; did you mean `maxPods`?\n"
        )
    );
    assert_eq!(
        coracle(&["config", "check", "/nonexistent"]).status.code(),
        Some(1)
    );

    let out = coracle(&["config", "print", "--config", &good, "--config-dir", dir]);
    let shown = text(&out.stdout);
    let line = |name: &str| {
        shown
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default()
    };
    assert!(
        line("maxPods: 7 ").ends_with(&format!("# {good}:2")),
        "{shown}"
    );
    assert!(
        line("podsPerCore: 3 ").ends_with(&format!("# {dir}/1.conf:1")),
        "{shown}"
    );
    assert!(line("podPidsLimit: ").ends_with("# default"), "{shown}");

    // The printed settings can be used as a settings file.
    let out = coracle(&["config", "print", "--defaults"]);
    let defaults = file("defaults.yaml", &text(&out.stdout));
    assert_eq!(
        coracle(&["config", "check", &defaults]).status.code(),
        Some(0)
    );
    let json = |args: &[&str]| {
        let out = coracle(&[&["config", "print", "-o", "json"], args].concat());
        let all: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        all["kubeletconfig"].clone()
    };
    assert_eq!(json(&["--defaults"]), json(&["--config", &defaults]));
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// An agent that answers one request with the start of an archive, and then what `then` does.
fn saving_agent(
    name: &str,
    then: impl FnOnce(std::os::unix::net::UnixStream) + Send + 'static,
) -> (std::path::PathBuf, std::thread::JoinHandle<()>) {
    use std::io::{BufRead, BufReader, Write};
    let dir = std::env::temp_dir().join(format!("coracle-cli-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("made");
    let listener = std::os::unix::net::UnixListener::bind(dir.join("sock")).expect("bound");
    let agent = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut request = BufReader::new(stream.try_clone().expect("cloned")).lines();
        let first = request.next().expect("a line").expect("text");
        assert!(
            first.starts_with("GET /coracle/v1/images/save?name=a%3A1&name=b "),
            "{first}"
        );
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n";
        stream.write_all(head).expect("sent");
        stream.write_all(&[7; 100_000]).expect("sent");
        then(stream);
    });
    (dir, agent)
}

fn save_command(dir: &std::path::Path, file: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coracle"));
    command.arg("--socket").arg(dir.join("sock"));
    command.args(["image", "save", "a:1", "b", "-o", file]);
    command
        .current_dir(dir)
        .stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    command
}

fn files(dir: &std::path::Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("listed");
    let names = entries.map(|e| text(e.expect("read").file_name().as_encoded_bytes()));
    let mut names: Vec<String> = names.filter(|name| name != "sock").collect();
    names.sort();
    names
}

#[test]
fn a_saved_archive_appears_when_it_is_complete() {
    use std::io::Write;
    let (dir, agent) = saving_agent("whole", |mut stream| {
        stream.write_all(&[8; 100_000]).expect("sent");
    });
    std::fs::write(dir.join("x.tar"), "the old one").expect("written");
    let out = save_command(&dir, "x.tar").output().expect("run");
    agent.join().expect("it was asked");
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout), "saved a:1, b to x.tar (195.3KiB)\n");
    let written = std::fs::read(dir.join("x.tar")).expect("read");
    assert_eq!(
        (written.len(), written[99_999], written[100_000]),
        (200_000, 7, 8)
    );
    assert_eq!(files(&dir), ["x.tar"]);
    std::fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn a_saved_archive_that_is_cut_off_leaves_the_old_one() {
    let (dir, agent) = saving_agent("cut", drop);
    std::fs::write(dir.join("x.tar"), "the old one").expect("written");
    let out = save_command(&dir, "x.tar").output().expect("run");
    agent.join().expect("it was asked");
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(
        error.contains("could not save a:1, b") && error.contains("coracle fsck"),
        "{error}"
    );
    assert_eq!(
        std::fs::read(dir.join("x.tar")).expect("read"),
        b"the old one"
    );
    assert_eq!(files(&dir), ["x.tar"]);
    std::fs::remove_dir_all(dir).expect("removed");
}

/// Has what a test starts heed SIGINT, which a job in the background of a script ignores, and so do its children.
fn heed_interrupts() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: there is no handler, only the default action.
    unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }.expect("a valid signal");
}

#[test]
fn an_interrupted_save_leaves_nothing() {
    heed_interrupts();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let (dir, agent) = saving_agent("interrupted", move |_stream| {
        let _ = wait.recv();
    });
    let child = save_command(&dir, "x.tar").spawn().expect("run");
    let arrived = || {
        let mut parts = std::fs::read_dir(&dir).expect("listed").flatten();
        parts.any(|part| part.metadata().is_ok_and(|found| found.len() >= 100_000))
    };
    while !arrived() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).expect("sent");
    let out = child.wait_with_output().expect("ended");
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    assert_eq!(files(&dir), [""; 0]);
    drop(done);
    agent.join().expect("it was asked");
    std::fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn a_saved_archive_goes_to_pipes_and_devices_as_it_comes() {
    use std::io::Write;
    for file in ["-", "/dev/stdout"] {
        let (dir, agent) = saving_agent("pipe", |mut stream| {
            stream.write_all(&[8; 100_000]).expect("sent");
        });
        let out = save_command(&dir, file).output().expect("run");
        agent.join().expect("it was asked");
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert!(out.stdout.len() >= 200_000, "{file}: {}", out.stdout.len());
        assert_eq!(files(&dir), [""; 0]);
        std::fs::remove_dir_all(dir).expect("removed");
    }
}

/// A folder with a link to a file, and that file.
fn linked(name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    let dir = std::env::temp_dir().join(format!("coracle-cli-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("made");
    std::fs::write(dir.join("behind"), "the old one").expect("written");
    std::os::unix::fs::symlink("behind", dir.join("link")).expect("linked");
    (dir.clone(), dir.join("link"))
}

#[test]
fn archives_go_through_links_and_into_devices_and_pipes() {
    use std::os::unix::fs::FileTypeExt;
    let pod = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {a: b}}\n";
    let nowhere = "/nonexistent/coracle.sock";
    for (name, words) in [
        ("report", &["report", "-o"][..]),
        (
            "bundle",
            &["bundle", "create", "--name", "site", "a.yaml", "-o"],
        ),
    ] {
        let (dir, link) = linked(name);
        std::fs::write(dir.join("a.yaml"), pod).expect("written");
        let into = |file: &str| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_coracle"));
            command.args(["--socket", nowhere]).args(words).arg(file);
            let out = command.current_dir(&dir).output().expect("run");
            assert!(out.status.success(), "{name}: {}", text(&out.stderr));
            out.stdout
        };
        into("link");
        assert!(link.is_symlink(), "{name}");
        let written = std::fs::read(dir.join("behind")).expect("read");
        assert!(written.len() > 500, "{name}");
        into("/dev/null");
        let null = std::fs::metadata("/dev/null").expect("there");
        assert!(null.file_type().is_char_device(), "{name}");
        assert!(into("-").len() > 500, "{name}");
        assert_eq!(files(&dir), ["a.yaml", "behind", "link"], "{name}");
        std::fs::remove_dir_all(dir).expect("removed");
    }
}
