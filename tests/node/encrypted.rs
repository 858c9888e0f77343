//! Secrets that lie encrypted in the manifest directory, with the real `systemd-creds` and a key of each test's own.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::SLEEP;
use super::common::netns::Netns;
use super::common::{Agent, PATIENCE, archive, coracle, shell_pod};
use super::configuration::{run, wait_for, wait_rejected};

/// Where `systemd-creds` looks for the host's key.
const KEY: &str = "SYSTEMD_CREDENTIAL_SECRET";

const PASSWORD: &str = "correct-horse-battery";
/// The same in base64, without its last group.
const ENCODED: &str = "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5";

const MAP: &str =
    "---\n# stays\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: map}\ndata: {a: one}\n";

fn secret(password: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: db}}\nstringData: {{password: {password}}}\n"
    )
}

/// An agent that is not started yet, with the key `key` of its own.
fn agent() -> Agent {
    assert!(
        Path::new("/usr/bin/systemd-creds").exists(),
        "install the package `systemd`"
    );
    let agent = Agent::prepare(Arc::new(Netns::new()), &[], None);
    let key = agent.root.join("key");
    agent.with_env(KEY, key)
}

fn launch(agent: &Agent) {
    agent.launch();
    agent.ok(&["image", "import", archive().to_str().expect("utf-8")]);
}

/// `coracle` with this key, and with this input.
fn with_key(agent: &Agent, key: &str, args: &[&str], input: &str) -> Output {
    let mut child = coracle()
        .args(args)
        .arg("--socket")
        .arg(agent.socket())
        .env(KEY, agent.root.join(key))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("coracle");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that is refused does not read.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("coracle")
}

/// The manifest with its Secrets encrypted.
fn encrypted(agent: &Agent, text: &str) -> String {
    let args = ["secret", "encrypt", "-", "--with-key", "host"];
    let output = with_key(agent, "key", &args, text);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("a manifest")
}

/// A `systemd-creds` that writes down how it is called and runs the real one.
fn spy(agent: &Agent) -> PathBuf {
    let folder = agent.root.join("bin");
    fs::create_dir(&folder).expect("folder");
    let calls = agent.root.join("calls");
    let script = format!(
        "#!/bin/sh\n{{ echo \"$@\"; tr '\\0' '\\n' </proc/$$/environ; }} >>{}\nexec /usr/bin/systemd-creds \"$@\"\n",
        calls.display()
    );
    let program = folder.join("systemd-creds");
    fs::write(&program, script).expect("script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    folder
}

fn calls(agent: &Agent) -> usize {
    let text = fs::read_to_string(agent.root.join("calls")).unwrap_or_default();
    text.lines().filter(|l| l.starts_with("decrypt ")).count()
}

/// Files of the agent that contain the text, except on other file systems (the tmpfs that holds documents).
fn files_with(agent: &Agent, text: &str) -> String {
    let found = Command::new("find")
        .arg(&agent.root)
        .args(["-xdev", "-type", "f", "-exec", "grep", "-lF", "--", text])
        .args(["{}", "+"])
        .output()
        .expect("find");
    String::from_utf8_lossy(&found.stdout).into_owned()
}

#[test]
fn an_encrypted_secret_reaches_the_pod_and_its_plain_text_nothing_else() {
    let agent = agent();
    let path = format!(
        "{}:{}",
        spy(&agent).display(),
        std::env::var("PATH").expect("a path")
    );
    let agent = agent.with_env("PATH", path);
    launch(&agent);
    let plain = format!("{}{MAP}", secret(PASSWORD));
    let text = encrypted(&agent, &plain);
    assert!(
        !text.contains(PASSWORD) && !text.contains(ENCODED),
        "{text}"
    );
    assert!(
        text.starts_with(
            "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\nencryptedData: |-\n  "
        )
    );
    assert!(text.ends_with(MAP), "{text}");
    agent.write("db.yaml", &text);
    let volumes = "  volumes:\n  - {name: v, secret: {secretName: db}}\n";
    let mounts = "    volumeMounts: [{name: v, mountPath: /v}]\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, volumes, mounts));
    agent.wait_running("a");
    assert_eq!(run(&agent, "a", "cat /v/password"), PASSWORD);
    assert_eq!(calls(&agent), 1);

    // Other documents of the file may change: nothing is decrypted again.
    agent.write("db.yaml", &text.replace("a: one", "a: two"));
    agent.write(
        "b.yaml",
        &shell_pod("b", "exit 0", "  restartPolicy: Never\n", ""),
    );
    agent.wait_phase("b", "Succeeded");
    assert!(
        agent
            .ok(&["get", "cm", "map", "-o", "yaml"])
            .contains("a: two")
    );
    assert_eq!(calls(&agent), 1);

    // The agent knows it by itself after a restart, and follows another content.
    agent.kill_and_restart();
    agent.wait_running("a");
    agent.write("db.yaml", &encrypted(&agent, &secret("staple-of-changes")));
    wait_for(&agent, "a", "cat /v/password", "staple-of-changes");

    let mut shown = String::new();
    for args in [
        &["get", "secret", "db", "-o", "yaml"][..],
        &["get", "secrets", "-o", "json"],
        &["describe", "secret", "db"],
        &["get", "events", "-o", "json"],
        &["get", "files", "-o", "json"],
        &["get", "pods", "-o", "json"],
    ] {
        shown += &agent.ok(args);
    }
    for path in ["/api/v1/namespaces/default/secrets/db", "/api/v1/secrets"] {
        shown += &agent.request(path).1;
    }
    assert!(shown.contains("password"), "{shown}");
    for word in [
        PASSWORD,
        ENCODED,
        "staple-of-changes",
        "c3RhcGxlLW9mLWNoYW5nZXM",
    ] {
        assert!(!shown.contains(word), "{shown}");
        // The state root, logs, manifests, what the program was called with.
        assert_eq!(files_with(&agent, word), "", "{word}");
    }
}

/// Waits until there is this Secret.
fn wait_secret(agent: &Agent, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while !agent.cli(&["get", "secret", name]).status.success() {
        assert!(
            Instant::now() < deadline,
            "{}",
            agent.ok(&["get", "files", "-o", "json"])
        );
        std::thread::sleep(Duration::from_millis(20)); // The command cannot wait for it.
    }
}

#[test]
fn without_the_program_or_the_key_it_is_refused_with_the_reason() {
    let agent = agent();
    let text = encrypted(&agent, &secret(PASSWORD));
    let agent = agent.with_env("PATH", "/nowhere");
    launch(&agent);
    agent.write("db.yaml", &text);
    wait_rejected(&agent, "db.yaml");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    let missing = "db.yaml:5:1: encryptedData: could not be decrypted: there is no program `systemd-creds` on this \
                   node; install systemd 250 or newer";
    assert!(files.contains(missing), "{files}");
    let plan = with_key(&agent, "key", &["plan", "-"], &text);
    let planned = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert_eq!(plan.status.code(), Some(2));
    assert!(
        planned.contains("there is no program `systemd-creds`"),
        "{planned}"
    );
    // The agent of another machine has the program and another key.
    drop(agent);
    let other = self::agent();
    let own = encrypted(&other, &secret(PASSWORD));
    launch(&other);
    other.write("db.yaml", &text);
    wait_rejected(&other, "db.yaml");
    let files = other.ok(&["get", "files", "-o", "json"]);
    let refused = "db.yaml:5:1: encryptedData: could not be decrypted: systemd-creds: ";
    assert!(files.contains(refused), "{files}");
    // Nor is one read under the name of another Secret.
    other.write("db.yaml", &own.replace("name: db", "name: web"));
    other.write("own.yaml", &own);
    wait_secret(&other, "db");
    let files = other.ok(&["get", "files", "-o", "json"]);
    assert!(files.contains("does not match"), "{files}");
    assert!(!files.contains(PASSWORD) && !other.log().contains(PASSWORD));
    // A preview decrypts beside the loop.
    let plan = with_key(
        &other,
        "key",
        &["plan", "-"],
        &encrypted(&other, &secret("other")),
    );
    let planned = String::from_utf8_lossy(&plan.stdout).into_owned();
    assert_eq!(plan.status.code(), Some(1), "{planned}");
    assert!(planned.contains("secret default/db: changed"), "{planned}");
}

#[test]
fn a_machine_without_the_key_validates_what_it_can() {
    let agent = agent();
    let text = encrypted(&agent, &secret(PASSWORD));
    let validate = |key: &str, text: &str| {
        let output = with_key(&agent, key, &["validate", "-"], text);
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let here = (Some(0), "stdin: ok: secret default/db\n".to_owned());
    assert_eq!(validate("key", &text), here);
    let (code, said) = validate("other", &text);
    assert_eq!(code, Some(0), "{said}");
    let warning =
        "warning: stdin: secret default/db: its encrypted content was not checked: systemd-creds: ";
    assert!(
        said.starts_with(warning) && said.ends_with(&here.1),
        "{said}"
    );
    assert!(
        said.contains("; an agent on this machine would refuse it\n"),
        "{said}"
    );
    // A machine with a key cannot tell damage from content for another one.
    let tail = text
        .trim_end()
        .rfind(|c: char| c.is_ascii_lowercase())
        .expect("base64");
    let mut changed = text.clone();
    changed.replace_range(tail..=tail, "A");
    assert_eq!(validate("key", &changed).0, Some(0));
    // What is wrong on every machine is an error, as it is for the agent.
    let (code, said) = validate("key", &text.replace("name: db", "name: db9"));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("does not match") && !said.contains("ok"),
        "{said}"
    );
    let (code, said) = validate("other", &text.replace("name: db", "name: D_B"));
    assert_eq!(code, Some(1), "{said}");
    // What can be decrypted is checked.
    let tls = encrypted(
        &agent,
        &secret(PASSWORD).replace("stringData", "type: Opaque\nstringData"),
    );
    let (code, said) = validate("key", &tls.replace("Opaque", "kubernetes.io/tls"));
    assert!(code == Some(1) && said.contains("tls.crt"), "{said}");
}

#[test]
fn the_file_is_written_whole_for_its_owner_only() {
    let agent = agent();
    let file = agent.root.join("db.yaml");
    let name = file.to_str().expect("utf-8");
    let encrypt = |key: &str| {
        let args = ["secret", "encrypt", name, "-o", name, "--with-key", key];
        let output = with_key(&agent, "key", &args, "");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    fs::write(&file, secret(PASSWORD)).expect("file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("mode");
    assert_eq!(encrypt("host"), (true, String::new()));
    assert_eq!(fs::metadata(&file).expect("file").mode() & 0o777, 0o600);
    let text = fs::read_to_string(&file).expect("file");
    assert!(
        text.contains("encryptedData") && !text.contains(PASSWORD),
        "{text}"
    );
    let (fine, said) = encrypt("host");
    assert!(
        !fine && said.contains("no Secret that is not encrypted already"),
        "{said}"
    );
    // What fails leaves the file alone.
    let broken = secret(PASSWORD).replace("name: db", "name: D_B");
    fs::write(&file, &broken).expect("file");
    let (fine, said) = encrypt("host");
    assert!(!fine && said.contains("db.yaml:3:"), "{said}");
    assert!(!said.contains(PASSWORD), "{said}");
    assert_eq!(fs::read_to_string(&file).expect("file"), broken);
    let left = fs::read_dir(&agent.root).expect("folder").flatten();
    let left = left.filter(|f| f.file_name().to_string_lossy().ends_with(".tmp"));
    assert_eq!(left.count(), 0);
}
