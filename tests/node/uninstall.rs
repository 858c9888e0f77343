//! `coracle uninstall` on a machine without systemd: in a mount namespace of its own, where the directories that it
//! would remove from are empty. `tests/vm/scenarios/install.py` has systemd.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use super::netns::Netns;
use super::*;

/// The program where `install` puts it.
const PROGRAM: &str = "/usr/local/bin/coracle";

/// A machine with nothing of coracle but what a test puts there.
struct Machine {
    mounts: fs::File,
    netns: Netns,
    cgroup: String,
    agent: Option<Child>,
    /// The machine's directories as this process sees them.
    root: PathBuf,
    /// What has them open.
    _holder: Holder,
}

/// A process that does nothing.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Machine {
    /// A machine on which coracle is installed.
    fn installed() -> Self {
        let (mounts, holder) = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("mount namespaces: run as root");
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).expect("mounts of its own");
            for place in ["/usr/local", "/etc", "/var/lib", "/var/log", "/run"] {
                mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), none)
                    .expect("a tmpfs");
            }
            let mounts = fs::File::open("/proc/thread-self/ns/mnt").expect("own namespace");
            let holder = Command::new("sleep").arg("infinity").spawn();
            (mounts, Holder(holder.expect("it runs")))
        })
        .join()
        .expect("ends");
        let machine = Self {
            mounts,
            netns: Netns::new(),
            cgroup: format!("/coracle-uninstall-{}", holder.0.id()),
            agent: None,
            root: PathBuf::from(format!("/proc/{}/root", holder.0.id())),
            _holder: holder,
        };
        machine.install();
        machine
    }

    /// Runs a function that sees the machine's files and network.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.netns.run(|| {
            unshare(CloneFlags::CLONE_FS).expect("run as root");
            setns(&self.mounts, CloneFlags::CLONE_NEWNS).expect("the namespace is there");
            work()
        })
    }

    fn coracle(&self, args: &[&str]) -> Output {
        let program = common::coracle();
        self.run(|| {
            let mut command = Command::new(program.get_program());
            command.args(args).current_dir("/").output().expect("runs")
        })
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.coracle(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        said(&output)
    }

    /// The error of a command that has to fail.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.coracle(args);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    }

    fn install(&self) {
        self.ok(&["install"]);
    }

    /// A path of the machine.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn has(&self, path: &str) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.at(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    /// The entries of a folder; none without it.
    fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Starts the installed agent and waits until it listens on this socket.
    fn start(&mut self, socket: &str) {
        let log = fs::File::create(self.at("/usr/local/agent.log")).expect("a log");
        let agent = self.run(|| {
            Command::new(PROGRAM)
                .args(["run", "--node-name", "test-node", "--cgroup-parent"])
                .arg(&self.cgroup)
                .env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nowhere")
                .current_dir("/")
                .stdin(Stdio::null())
                .stderr(log)
                .spawn()
        });
        let mut agent = agent.expect("it starts");
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(self.at(socket)).is_err() {
            let ended = agent.try_wait().expect("own child").is_some();
            let log = || fs::read_to_string(self.at("/usr/local/agent.log"));
            assert!(!ended && Instant::now() < deadline, "{:?}", log());
            std::thread::sleep(Duration::from_millis(5)); // No event says that a socket will appear.
        }
        self.agent = Some(agent);
    }

    /// Ends the agent, and leaves its pods.
    fn stop(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        agent.kill().expect("own child");
        agent.wait().expect("own child");
    }

    fn end_pods(&self) {
        self.ok(&["end-pods", "--grace=0", "--cgroup-parent", &self.cgroup]);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.agent.is_some() {
            self.stop();
        }
        if !std::thread::panicking() {
            self.end_pods();
        } else {
            let _ = self.coracle(&["end-pods", "--grace=0", "--cgroup-parent", &self.cgroup]);
        }
    }
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn an_agent_that_runs_without_systemd_is_not_uninstalled() {
    let mut machine = Machine::installed();
    machine.start("/run/coracle/coracle.sock");
    let why = machine.refused(&["uninstall", "--stop-pods", "--purge"]);
    assert!(
        why.contains("the agent is running, but not under systemd"),
        "{why}"
    );
    assert!(machine.has(PROGRAM) && machine.has("/etc/coracle/config.yaml"));
    machine.stop();
    machine.ok(&["uninstall", "--purge"]);
    assert!(!machine.has(PROGRAM) && !machine.has("/etc/coracle"));
}

const MOVED: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: /var/log/mine
coracle: {rootDir: /var/lib/data/coracle, runDir: /run/mine}
";

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  volumes:
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: claim, persistentVolumeClaim: {claimName: data}}
  containers:
  - name: main
    image: docker.io/library/busybox:test
    command: [sleep, infinity]
    volumeMounts: [{name: memory, mountPath: /memory}, {name: claim, mountPath: /claim}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

#[test]
fn the_directories_of_the_settings_are_uninstalled() {
    let mut machine = Machine::installed();
    machine.write("/etc/coracle/config.yaml", MOVED);
    machine.write("/etc/coracle/manifests/web.yaml", POD);
    machine.write("/var/lib/other", "");
    machine.write("/var/log/other", "");
    machine.start("/run/mine/coracle.sock");
    let socket = ["--socket", "/run/mine/coracle.sock"];
    let archive = common::archive().to_str().expect("utf-8");
    machine.ok(&[&socket[..], &["image", "import", archive]].concat());
    let ready = ["wait", "--for=condition=Ready", "pod/web"];
    machine.ok(&[&socket[..], &ready].concat());

    // The agent does not listen in the usual place.
    let why = machine.refused(&["uninstall", "--purge"]);
    assert!(why.contains("pods are running: web"), "{why}");
    let why = machine.refused(&["uninstall", "--stop-pods", "--purge"]);
    assert!(why.contains("the agent is running"), "{why}");
    machine.stop();
    let why = machine.refused(&["uninstall", "--purge"]);
    assert!(why.contains("pods are running: "), "{why}");
    machine.end_pods();

    let kept = machine.ok(&["uninstall"]);
    let places = "/var/lib/data/coracle, /var/log/mine";
    assert!(kept.contains(places) && !machine.has("/run/mine"), "{kept}");
    assert!(machine.has("/var/lib/data/coracle/claims/default_data"));
    machine.install();
    let said = machine.ok(&["uninstall", "--purge"]);
    assert!(said.contains("removed    /var/lib/data/coracle"), "{said}");
    assert_eq!(machine.list("/var/lib"), ["data", "other"], "{said}");
    assert_eq!(machine.list("/var/lib/data"), [""; 0], "{said}");
    assert_eq!(machine.list("/var/log"), ["other"], "{said}");
    assert_eq!(machine.list("/run"), [""; 0], "{said}");
    assert!(!machine.has("/etc/coracle"), "{said}");
}

#[test]
fn nothing_is_uninstalled_while_invalid_settings_hide_where_it_is() {
    let machine = Machine::installed();
    machine.write(
        "/etc/coracle/config.yaml",
        &MOVED.replace("runDir", "runDri"),
    );
    let why = machine.refused(&["uninstall", "--purge"]);
    assert!(why.contains("runDri") && machine.has(PROGRAM), "{why}");
}

#[test]
fn a_program_that_cannot_be_removed_keeps_its_units() {
    let machine = Machine::installed();
    let remount = |flags: MsFlags| {
        machine.run(|| {
            let flags = flags | MsFlags::MS_REMOUNT;
            mount(
                None::<&str>,
                "/usr/local",
                None::<&str>,
                flags,
                None::<&str>,
            )
            .expect("own mount")
        })
    };
    remount(MsFlags::MS_RDONLY);
    let why = machine.refused(&["uninstall", "--purge"]);
    assert!(why.contains("Read-only file system"), "{why}");
    assert!(!why.contains("removed"), "{why}");
    assert!(machine.has("/etc/systemd/system/coracle.service"));
    remount(MsFlags::empty());
    machine.ok(&["uninstall", "--purge"]);
    assert!(!machine.has("/etc/systemd/system/coracle.service") && !machine.has(PROGRAM));
}

#[test]
fn a_disk_of_its_own_is_emptied_and_what_is_mounted_below_stays() {
    let machine = Machine::installed();
    machine.write("/usr/local/data/photo", "of a person");
    machine.run(|| {
        let (tmpfs, none) = (Some("tmpfs"), None::<&str>);
        let flags = MsFlags::empty();
        mount(tmpfs, "/var/lib/coracle", tmpfs, flags, none).expect("a disk");
        let volume = "/var/lib/coracle/pods/0123/volume";
        fs::create_dir_all(volume).expect("made");
        mount(
            Some("/usr/local/data"),
            volume,
            none,
            MsFlags::MS_BIND,
            none,
        )
        .expect("bound");
    });
    machine.ok(&["uninstall", "--purge"]);
    assert_eq!(machine.list("/var/lib/coracle"), [""; 0]);
    assert!(machine.has("/usr/local/data/photo"));
}
