//! A real agent in its own directories, cgroups and network namespace, with an image. It leaves no trace when
//! dropped.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test crate uses a part of it"
)]
#![allow(clippy::print_stderr, reason = "a failing test shows the agent's log")]

pub mod archives;
pub mod bus;
mod leftovers;
pub mod netns;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use coracle::sys::{dbus, fdpass};
use netns::Netns;
use serde_json::Value;

/// How long anything may take on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The bridge that an agent makes by default.
pub const BRIDGE: &str = "coracle0";

/// The prefix of pods' interfaces on the node.
pub const VETH_PREFIX: &str = "vc";

/// The image every test starts from.
pub const IMAGE: &str = "docker.io/library/busybox:test";

/// Settings that make the fill level of the test machine irrelevant, unless a test gives a `--config-dir` of its own.
pub const NEVER_SHORT: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n\
    evictionHard: {memory.available: 16Mi}\nimageGCHighThresholdPercent: 100\n";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Has what a test starts heed SIGINT, which a job in the background of a script ignores, and so do its children.
pub fn heed_interrupts() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: there is no handler, only the default action.
    unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) }.expect("a valid signal");
}

/// The program under test.
pub fn coracle() -> Command {
    Command::new(env!("CARGO_BIN_EXE_coracle"))
}

/// The busybox archive.
pub fn archive() -> &'static Path {
    archives::Image::Busybox.archive()
}

/// One agent and everything it touches.
pub struct Agent {
    pub root: PathBuf,
    pub cgroup: String,
    /// The node's network; never the machine's.
    pub netns: Arc<Netns>,
    flags: Vec<String>,
    /// A script that starts the agent in its own mount namespace; it ends with `exec "$@"`.
    wrapper: Option<&'static str>,
    /// The socket of the system bus, if there is one.
    bus: Option<PathBuf>,
    /// Variables of the agent's environment.
    env: Vec<(&'static str, std::ffi::OsString)>,
    child: Mutex<Option<Child>>,
    /// The agent's program, from the next launch on.
    program: Mutex<PathBuf>,
}

impl Agent {
    /// Starts an agent that has the busybox image.
    pub fn start() -> Self {
        let agent = Self::start_with(&[]);
        agent.ok(&["image", "import", archive().to_str().expect("utf-8")]);
        agent
    }

    /// Starts an agent with more flags and an empty image store.
    pub fn start_with(flags: &[&str]) -> Self {
        let agent = Self::prepare(Arc::new(Netns::new()), flags, None);
        agent.launch();
        agent
    }

    /// Prepares an agent's directories without starting it.
    pub fn prepare(netns: Arc<Netns>, flags: &[&str], wrapper: Option<&'static str>) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests make containers: run them as root"
        );
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("coracle-test-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(&name);
        for part in ["manifests", "preload", "config.d"] {
            fs::create_dir_all(root.join(part)).expect("temp dir");
        }
        share(&root);
        fs::write(root.join("config.d/00-never-short.conf"), NEVER_SHORT).expect("temp dir");
        if wrapper.is_some() {
            // A wrapped agent has mounts of its own; live shims and the next agent must see this one, as on any node.
            let shared = root.join("run/configuration");
            fs::create_dir_all(&shared).expect("temp dir");
            let (tmpfs, none) = (Some("tmpfs"), nix::mount::MsFlags::empty());
            nix::mount::mount(tmpfs, &shared, tmpfs, none, None::<&str>).expect("a tmpfs");
        }
        Self {
            root,
            cgroup: format!("/{name}"),
            netns,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            wrapper,
            bus: None,
            env: Vec::new(),
            child: Mutex::new(None),
            program: Mutex::new(coracle().get_program().into()),
        }
    }

    /// Has another program be the agent from the next launch on.
    pub fn use_program(&self, path: &Path) {
        *self.program.lock().expect("lock") = path.to_owned();
    }

    /// Adds flags for the next launch.
    #[must_use]
    pub fn with_flags(mut self, flags: &[&str]) -> Self {
        self.flags
            .extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Gives the agent a system bus for the next launch.
    #[must_use]
    pub fn with_bus(mut self, bus: &bus::Bus) -> Self {
        self.bus = Some(bus.socket());
        self
    }

    /// Sets a variable of the agent's environment for the next launch.
    #[must_use]
    pub fn with_env(mut self, name: &'static str, value: impl Into<std::ffi::OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Starts a program in the node's network.
    pub fn command_in_netns(&self, command: &mut Command) -> std::io::Result<Child> {
        self.netns.run(|| command.spawn())
    }

    /// Starts the agent (again) and waits until it answers.
    pub fn launch(&self) {
        self.spawn();
        let mut child = self.child.lock().expect("lock");
        let child = child.as_mut().expect("started");
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(self.socket()).is_err() {
            if let Some(status) = child.try_wait().expect("own child") {
                panic!("the agent ended with {status}: {}", self.log());
            }
            assert!(
                Instant::now() < deadline,
                "the agent does not listen: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5)); // No event says that a socket will appear.
        }
    }

    /// Whether the agent was started and has not ended.
    pub fn is_up(&self) -> bool {
        let mut child = self.child.lock().expect("lock");
        let ended = child.as_mut().map(|c| c.try_wait().expect("own child"));
        matches!(ended, Some(None))
    }

    /// Starts the agent (again) without waiting for it.
    pub fn spawn(&self) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.try_spawn() {
            // Another test's program that is about to start still has this one's file open, which was just written.
            let busy = error.kind() == std::io::ErrorKind::ExecutableFileBusy;
            assert!(
                busy && Instant::now() < deadline,
                "the agent does not start: {error}"
            );
            std::thread::sleep(Duration::from_millis(5)); // No event says that it was closed.
        }
    }

    /// Starts the agent, if its program can be executed.
    fn try_spawn(&self) -> std::io::Result<()> {
        // From before the agent restart: a program that the killed agent was about to start may still hold it open.
        let _ = fs::remove_file(self.socket());
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.root.join("agent.log"))
            .expect("log");
        let mut command = self.command();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let started = self.command_in_netns(&mut command);
        let (child, result) = match started {
            Ok(child) => (Some(child), Ok(())),
            Err(error) => (None, Err(error)),
        };
        *self.child.lock().expect("lock") = child;
        result
    }

    pub fn command(&self) -> Command {
        let program = self.program.lock().expect("lock").clone();
        let mut command = match self.wrapper {
            None => Command::new(program),
            Some(script) => {
                let mut command = Command::new("unshare");
                let words = [
                    "--mount",
                    "--propagation",
                    "slave",
                    "sh",
                    "-c",
                    script,
                    "sh",
                ];
                command.args(words).arg(program);
                command
            }
        };
        // The agent must not use the machine's own logind.
        let bus = self.bus.as_deref().unwrap_or(Path::new("/nowhere"));
        command.env(
            "DBUS_SYSTEM_BUS_ADDRESS",
            format!("unix:path={}", bus.display()),
        );
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.arg("run").args(&self.flags).args([
            "--node-name",
            "test-node",
            "--cgroup-parent",
            &self.cgroup,
        ]);
        if !self.flags.iter().any(|flag| flag == "--config-dir") {
            command.arg("--config-dir").arg(self.root.join("config.d"));
        }
        for (flag, part) in [
            ("--manifests", "manifests"),
            ("--root", "root"),
            ("--run-dir", "run"),
            ("--log-dir", "logs"),
            ("--preload", "preload"),
        ] {
            command.arg(flag).arg(self.root.join(part));
        }
        command
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.lock().expect("lock");
        i32::try_from(child.as_ref().expect("runs").id()).expect("pid")
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal)
            .expect("the agent is there");
    }

    /// Starts the agent again whenever it ends, as an init does; kills it once `stop` is set.
    pub fn supervise(&self, stop: &std::sync::atomic::AtomicBool) {
        // An init that never waits would only burn the processor while a program cannot start.
        let pause = || std::thread::sleep(Duration::from_millis(50));
        while !stop.load(Ordering::Relaxed) {
            pause();
            if !self.is_up() {
                let _ = self.try_spawn();
            }
        }
        if let Some(mut child) = self.child.lock().expect("lock").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until a supervised agent answers.
    pub fn wait_answer(&self) {
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(self.socket()).is_err() {
            assert!(
                Instant::now() < deadline,
                "no agent answers: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20)); // No event says that a socket will appear.
        }
    }

    /// Waits for the agent's end.
    pub fn wait(&self) -> std::process::ExitStatus {
        let mut child = self.child.lock().expect("lock").take().expect("runs");
        child.wait().expect("own child")
    }

    /// Kills the agent with SIGKILL and starts a new one.
    pub fn kill_and_restart(&self) {
        self.kill();
        self.launch();
    }

    /// Kills the agent only.
    pub fn kill(&self) {
        self.signal(nix::sys::signal::Signal::SIGKILL);
        self.wait();
    }

    /// Kills everything and removes what is on tmpfs, as a reboot would.
    pub fn power_cut(&self) {
        self.signal(nix::sys::signal::Signal::SIGKILL);
        self.wait();
        self.machine_goes_down();
    }

    /// The rest of a power cut, after the agent has ended.
    pub fn machine_goes_down(&self) {
        self.kill_pods();
        self.unmount();
        fs::remove_dir_all(self.root.join("run")).expect("removed");
        // A machine that boots has neither bridges nor rules; the uplink belongs to the test.
        for link in self.netns.links() {
            if link == BRIDGE || link.starts_with(VETH_PREFIX) {
                // An interface may go by itself when its pod is killed.
                self.netns.output("ip", &["link", "del", &link]);
            }
        }
        self.netns.ok("nft", &["flush", "ruleset"]);
        // The next boot has a new id.
        fs::write(
            self.root.join("root/boot.json"),
            r#"{"boot_id":"of an earlier boot","ended":false}"#,
        )
        .expect("written");
    }

    pub fn socket(&self) -> PathBuf {
        self.root.join("run/coracle.sock")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.join("agent.log")).unwrap_or_default()
    }

    /// Writes a manifest, in one step.
    pub fn write(&self, file: &str, text: &str) {
        let temporary = self.root.join("manifests").join(format!(".{file}"));
        fs::write(&temporary, text).expect("temp dir");
        fs::rename(temporary, self.root.join("manifests").join(file)).expect("rename");
    }

    pub fn remove(&self, file: &str) {
        fs::remove_file(self.root.join("manifests").join(file)).expect("the file is there");
    }

    /// Runs a client command.
    pub fn cli(&self, args: &[&str]) -> Output {
        coracle()
            .args(args)
            .env("CORACLE_SOCKET", self.socket())
            .output()
            .expect("coracle runs")
    }

    /// Runs a client command that must succeed; returns its output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "coracle {args:?}: {text}{errors}\nagent:\n{}",
            self.log()
        );
        text
    }

    /// Waits until a pod's container prints a line.
    pub fn wait_line(&self, pod: &str, line: &str) {
        let mut child = coracle()
            .args(["logs", "-f", pod])
            .env("CORACLE_SOCKET", self.socket())
            .stdout(Stdio::piped())
            .spawn()
            .expect("coracle runs");
        let stdout = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let said = lines.any(|found| found == line);
        let _ = child.kill();
        let _ = child.wait();
        assert!(
            said,
            "pod {pod} never printed `{line}`\nagent:\n{}",
            self.log()
        );
    }

    pub fn pod(&self, name: &str) -> Value {
        serde_json::from_str(&self.ok(&["get", "pod", name, "-o", "json"])).expect("JSON")
    }

    /// Waits, by watching, until the pod is as wanted; returns it.
    pub fn wait_pod(&self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let path = format!(
            "/api/v1/namespaces/default/pods?watch=true&fieldSelector=metadata.name%3D{name}"
        );
        let mut last = Value::Null;
        for event in self.watch(&path) {
            last = event["object"].clone();
            if event["type"] != "DELETED" && wanted(&last) {
                return last;
            }
        }
        panic!(
            "pod {name} never got into the wanted state: {last:#}\nagent:\n{}",
            self.log()
        );
    }

    /// Waits until no pod has that name.
    pub fn wait_gone(&self, name: &str) {
        let selector = format!("fieldSelector=metadata.name%3D{name}");
        let (list, _) = self.request(&format!("/api/v1/namespaces/default/pods?{selector}"));
        let list: Value = serde_json::from_str(&list).expect("JSON");
        if list["items"].as_array().is_some_and(Vec::is_empty) {
            return;
        }
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .expect("a version")
            .to_owned();
        let path = format!(
            "/api/v1/namespaces/default/pods?watch=true&{selector}&resourceVersion={version}"
        );
        assert!(
            self.watch(&path).any(|event| event["type"] == "DELETED"),
            "pod {name} stays: {}",
            self.log()
        );
    }

    pub fn wait_running(&self, name: &str) -> Value {
        self.wait_pod(name, |pod| {
            let statuses = pod["status"]["containerStatuses"].as_array();
            pod["metadata"]["deletionTimestamp"].is_null()
                && statuses.is_some_and(|all| {
                    !all.is_empty() && all.iter().all(|c| !c["state"]["running"].is_null())
                })
        })
    }

    pub fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait_pod(name, |pod| pod["status"]["phase"] == phase)
    }

    /// The events of a watch, until it is silent for longer than `PATIENCE`.
    pub fn watch(&self, path: &str) -> impl Iterator<Item = Value> + use<> {
        let mut stream = UnixStream::connect(self.socket()).expect("the agent listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: coracle\r\n\r\n").expect("written");
        // Chunk sizes and headers are lines that are not JSON objects.
        BufReader::new(stream)
            .lines()
            .map_while(Result::ok)
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(&line).expect("one event on each line"))
    }

    /// A GET request: body and status line.
    pub fn request(&self, path: &str) -> (String, String) {
        let mut stream = UnixStream::connect(self.socket()).expect("the agent listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: coracle\r\nConnection: close\r\n\r\n"
        )
        .expect("written");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        (
            body.to_owned(),
            head.lines().next().unwrap_or_default().to_owned(),
        )
    }

    /// Reads a file of a pod's cgroup in the hierarchy of a controller.
    pub fn cgroup_file(&self, controller: &str, below: &str, file: &str) -> String {
        let path = self.cgroup_path(controller, below, file);
        fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
            .trim()
            .to_owned()
    }

    /// The path of that file.
    pub fn cgroup_path(&self, controller: &str, below: &str, file: &str) -> PathBuf {
        let v1 = Path::new("/sys/fs/cgroup").join(controller);
        let base = if v1.is_dir() {
            v1
        } else {
            PathBuf::from("/sys/fs/cgroup")
        };
        base.join(self.cgroup.trim_start_matches('/'))
            .join("pods")
            .join(below)
            .join(file)
    }
}

/// Has mounts in a folder spread to other mount namespaces and back, as systemd does for the whole node.
fn share(folder: &Path) {
    use nix::mount::{MsFlags, mount};
    let none = None::<&str>;
    mount(Some(folder), folder, none, MsFlags::MS_BIND, none).expect("mounted");
    mount(none, folder, none, MsFlags::MS_SHARED, none).expect("shared");
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().expect("lock").take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.kill_pods();
        self.unmount();
        if std::thread::panicking() {
            let tail = self.log();
            eprintln!("--- agent log of {}\n{tail}", self.root.display());
        }
        // Some tests make trees deeper than the standard library can remove.
        let _ = coracle::sys::tree::remove(&self.root);
    }
}

/// A pod of one busybox container that runs a shell script. `more` is YAML put below `spec`, `container` below the
/// container, both indented by the caller.
pub fn shell_pod(name: &str, script: &str, more: &str, container: &str) -> String {
    let script = serde_json::to_string(script).expect("a string");
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 2\n{more}  \
         containers:\n  - name: main\n    image: busybox:test\n    command: [\"sh\", \"-c\", {script}]\n{container}"
    )
}
