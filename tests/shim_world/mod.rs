//! The surroundings of a shim: folders, cgroups and bundles of its own, made and removed for one test.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use coracle::effects::seccomp;
use coracle::shim::frame::Client;
use coracle::shim::protocol::{
    ContainerRecord, ExecRequest, FILTER_FILE, FailedStep, Message, Reply, Request, ShimConfig,
    StartRequest,
};
use coracle::sys::cgroup::{Hierarchy, hierarchies};
use coracle::types::{Effective, Exit, StopSignal};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

/// The limit of any wait: only a hang takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A shim with surroundings of its own.
pub(crate) struct World {
    pub(crate) dir: PathBuf,
    pub(crate) run_dir: PathBuf,
    pub(crate) group: String,
    pub(crate) hierarchies: Vec<Hierarchy>,
    pub(crate) shim: Child,
    pub(crate) client: Client,
}

impl World {
    /// Starts a shim with its own network, IPC and UTS namespaces.
    pub(crate) fn new() -> Self {
        Self::of(false)
    }

    /// Like [`World::new`]; with `share_processes` the pod has one process namespace.
    pub(crate) fn of(share_processes: bool) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test must run as root"
        );
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("coracle-shim-test-{}", std::process::id());
        let dir = std::env::temp_dir().join(format!("{name}-{number}"));
        let group = format!("/{name}/{number}");
        let pods = dir.join("pods");
        let run_dir = pods.join("p");
        fs::create_dir_all(&pods).unwrap();
        mount(
            Some(&pods),
            &pods,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .unwrap();
        mount(
            None::<&str>,
            &pods,
            None::<&str>,
            MsFlags::MS_PRIVATE,
            None::<&str>,
        )
        .unwrap();
        fs::create_dir_all(&run_dir).unwrap();
        let small = dir.join("small");
        fs::create_dir_all(&small).unwrap();
        let tmpfs = Some("tmpfs");
        mount(tmpfs, &small, tmpfs, MsFlags::empty(), Some("size=64k")).unwrap();
        let shared = dir.join("shared");
        fs::create_dir_all(&shared).unwrap();
        let none = None::<&str>;
        mount(Some(&shared), &shared, none, MsFlags::MS_BIND, none).unwrap();
        mount(none, &shared, none, MsFlags::MS_SHARED, none).unwrap();
        make_layer(&dir.join("layer"));
        let hierarchies = hierarchies().unwrap();
        let make = |leaf: &str| {
            for hierarchy in &hierarchies {
                make_group(hierarchy, &format!("{group}{leaf}"));
            }
        };
        make("");
        make("/shim");
        let network = network_namespace();
        let netns = PathBuf::from(format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            network.as_raw_fd()
        ));
        let config = ShimConfig {
            pod: "p".to_owned(),
            run_dir: run_dir.clone(),
            cgroup: group.clone(),
            network: Some(netns.clone()),
            netns_dir: dir.join("netns"),
            new_ipc: true,
            share_processes,
            users: None,
            hostname: Some("podhost".to_owned()),
            sysctls: vec![("net.ipv4.ip_forward".to_owned(), "1".to_owned())],
        };
        let path = run_dir.join("shim.json");
        fs::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
        let log = fs::File::create(run_dir.join("shim.log")).unwrap();
        let mut shim = Command::new(env!("CARGO_BIN_EXE_coracle"))
            .arg("shim")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let socket = run_dir.join("shim.sock");
        until("the shim listens", || {
            let ended = shim.try_wait().unwrap();
            let log = || fs::read_to_string(run_dir.join("shim.log")).unwrap();
            assert!(ended.is_none(), "shim ended early: {}", log());
            socket.exists().then_some(())
        });
        let mut client = Client::connect(&socket, DEADLINE).unwrap();
        client.hello(true).unwrap();
        Self {
            dir,
            run_dir,
            group,
            hierarchies,
            shim,
            client,
        }
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(&self.run_dir.join("shim.sock"), DEADLINE).unwrap()
    }

    /// A bundle that runs `args`, altered by `change`, and the request that starts it.
    pub(crate) fn request(
        &self,
        container: &str,
        attempt: u32,
        args: &[&str],
        change: impl FnOnce(&mut Value),
    ) -> StartRequest {
        let group = format!("{}/{container}", self.group);
        for hierarchy in &self.hierarchies {
            make_group(hierarchy, &group);
        }
        let bundle = self.run_dir.join("bundles").join(container);
        fs::create_dir_all(bundle.join("rootfs")).unwrap();
        let mut config = bundle_config(args, &group);
        change(&mut config);
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        let profile = &config["linux"]["seccomp"];
        let own_filter = !profile.is_null();
        if own_filter {
            let profile = serde_json::from_value(profile.clone()).unwrap();
            fs::write(bundle.join(FILTER_FILE), seccomp::filter(&profile)).unwrap();
        }
        let own = self.dir.join(container);
        fs::create_dir_all(&own).unwrap();
        StartRequest {
            container: container.to_owned(),
            attempt,
            image_id: "sha256:test".to_owned(),
            bundle,
            fixed_mounts: Some(FIXED_MOUNTS),
            layers: vec![self.dir.join("layer")],
            writable_layer: own.join(format!("layer-{attempt}")),
            sub_paths: Vec::new(),
            volume_images: Vec::new(),
            image_volumes: None,
            log_dir: own.join("logs"),
            log_max_bytes: 0,
            log_max_files: 5,
            termination_message: own.join("message"),
            termination_message_from_logs: true,
            stop_signal: libc::SIGTERM,
            effective: Effective::default(),
            oom_score_adj: 500,
            stdin: false,
            tty: config_is_tty(&config),
            stdin_once: false,
            device_files: Vec::new(),
            target: None,
            own_filter,
        }
    }

    /// Starts a container with these arguments and expects success.
    pub(crate) fn start(&mut self, container: &str, args: &[&str]) -> ContainerRecord {
        let request = self.request(container, 0, args, |_| {});
        self.begin(request)
    }

    /// Sends a start request and expects success.
    pub(crate) fn begin(&mut self, request: StartRequest) -> ContainerRecord {
        match self
            .client
            .call(&Request::Start(Box::new(request)))
            .unwrap()
        {
            Reply::Started(record) => *record,
            other => panic!("not started: {other:?}\n{}", self.shim_log()),
        }
    }

    /// Sends a start request and expects failure.
    pub(crate) fn fail(&mut self, request: StartRequest) -> (FailedStep, String) {
        match self
            .client
            .call(&Request::Start(Box::new(request)))
            .unwrap()
        {
            Reply::Failed { step, message } => (step, message),
            other => panic!("not failed: {other:?}"),
        }
    }

    /// Runs a container to its end.
    pub(crate) fn run(&mut self, request: StartRequest) -> Exit {
        let container = request.container.clone();
        self.client
            .send(&Request::Start(Box::new(request)), &[])
            .unwrap();
        loop {
            match self.client.receive().unwrap() {
                Message::Reply(Reply::Started(_)) => {}
                Message::Exited {
                    container: name,
                    exit,
                    ..
                } if name == container => return exit,
                other => panic!("not expected: {other:?}"),
            }
        }
    }

    /// Waits for the report of a container's exit.
    pub(crate) fn exit(&mut self) -> Exit {
        match self.client.receive().unwrap() {
            Message::Exited { exit, .. } => exit,
            other => panic!("not an exit: {other:?}"),
        }
    }

    /// Signals attempt 0.
    pub(crate) fn signal(&mut self, container: &str, signal: StopSignal) {
        self.client
            .send(
                &Request::Signal {
                    container: container.to_owned(),
                    attempt: 0,
                    signal,
                },
                &[],
            )
            .unwrap();
        match self.client.receive().unwrap() {
            Message::Reply(Reply::Signalled { .. }) => {}
            other => panic!("not signalled: {other:?}"),
        }
    }

    /// Compiles a static program from C source into the layer of all containers.
    pub(crate) fn compile(&self, name: &str, source: &str) {
        let file = self.dir.join(format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let done = Command::new("cc")
            .args(["-static", "-O1", "-w", "-o"])
            .arg(self.dir.join("layer/bin").join(name))
            .arg(&file)
            .status();
        assert!(done.unwrap().success(), "needs gcc and libc6-dev");
    }

    /// Moves a process to `group` below the pod's in the hierarchy with a freezer, and freezes that.
    pub(crate) fn freeze(&self, group: &str, pid: u32) {
        let group = format!("{}/{group}", self.group);
        let v1 =
            |hierarchy: &&Hierarchy| hierarchy.folder(&self.group).join("freezer.state").exists();
        let freezer = self.hierarchies.iter().find(v1);
        let unified = || self.hierarchies.iter().find(|hierarchy| hierarchy.v2);
        let hierarchy = freezer.or_else(unified).expect("some hierarchy can freeze");
        let folder = hierarchy.folder(&group);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), pid.to_string()).unwrap();
        let (file, value, seen, done) = match freezer {
            Some(_) => ("freezer.state", "FROZEN", "freezer.state", "FROZEN"),
            None => ("cgroup.freeze", "1", "cgroup.events", "frozen 1"),
        };
        fs::write(folder.join(file), value).unwrap();
        until("the group is frozen", || {
            let text = fs::read_to_string(folder.join(seen)).unwrap();
            text.contains(done).then_some(())
        });
    }

    /// The lines of a container's log, without timestamps.
    pub(crate) fn log(&self, container: &str) -> Vec<String> {
        let path = self.dir.join(container).join("logs/0.log");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(|line| line.split_once(' ').map_or("", |parts| parts.1).to_owned())
            .collect()
    }

    /// Waits for a log line.
    pub(crate) fn await_line(&self, container: &str, line: &str) {
        until(line, || {
            let found = self.log(container).iter().any(|have| have.contains(line));
            found.then_some(())
        });
    }

    pub(crate) fn shim_log(&self) -> String {
        fs::read_to_string(self.run_dir.join("shim.log")).unwrap_or_default()
    }

    /// The number of the shim's open files.
    pub(crate) fn fds(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.shim.id()))
            .unwrap()
            .count()
    }

    /// Runs a program in container `c`; returns exit code and output.
    pub(crate) fn exec(&self, argv: &[&str]) -> (i32, String) {
        use std::os::fd::AsFd;
        let null = fs::File::open("/dev/null").unwrap();
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let mut read = fs::File::from(read);
        let mut client = self.connect();
        let request = exec_request(argv, false);
        client
            .send(&request, &[null.as_fd(), write.as_fd(), write.as_fd()])
            .unwrap();
        drop(write);
        match client.receive().unwrap() {
            Message::Reply(Reply::ExecStarted { .. }) => {}
            other => panic!("exec failed: {other:?}"),
        }
        let mut output = String::new();
        std::io::Read::read_to_string(&mut read, &mut output).unwrap();
        match client.receive().unwrap() {
            Message::ExecExited { code } => (code, output),
            other => panic!("not an end: {other:?}"),
        }
    }

    /// A field of the shim's memory figures, in kilobytes.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.shim.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The private dirty memory of one named mapping of the shim, in kilobytes.
    pub(crate) fn dirty(&self, mapping: &str) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/smaps", self.shim.id())).unwrap();
        let (_, after) = text.split_once(mapping).unwrap();
        let line = after
            .lines()
            .find(|line| line.starts_with("Private_Dirty:"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap()
    }

    /// The number of mounts of a process below this world.
    pub(crate) fn mounts(&self, pid: &str) -> usize {
        let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        let below = format!("{}/", self.run_dir.display());
        text.lines().filter(|line| line.contains(&below)).count()
    }

    /// The children of the shim.
    pub(crate) fn children(&self) -> Vec<String> {
        let pid = self.shim.id();
        let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Ok(mut client) = Client::connect(&self.run_dir.join("shim.sock"), DEADLINE) {
            let _ = client.call(&Request::Shutdown);
        } else {
            let _ = self.shim.kill();
            for hierarchy in &self.hierarchies {
                coracle::sys::cgroup::kill(std::slice::from_ref(hierarchy), &self.group);
            }
        }
        let _ = self.shim.wait();
        for name in ["pods", "small", "shared/inner", "shared"] {
            let _ = umount2(&self.dir.join(name), MntFlags::MNT_DETACH);
        }
        let _ = fs::remove_dir_all(&self.dir);
        let group = self.group.clone();
        let removed = || {
            coracle::sys::cgroup::remove(&self.hierarchies, &group);
            let left = |hierarchy: &Hierarchy| hierarchy.folder(&group).exists();
            (!self.hierarchies.iter().any(left)).then_some(())
        };
        until("the cgroups are empty", removed);
        let parent = Path::new(&group).parent().unwrap();
        for hierarchy in &self.hierarchies {
            let _ = fs::remove_dir(hierarchy.folder(parent.to_str().unwrap()));
        }
    }
}

/// An exec request for container `c`.
pub(crate) fn exec_request(argv: &[&str], tty: bool) -> Request {
    Request::Exec(Box::new(ExecRequest {
        container: "c".to_owned(),
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        env: vec!["EXTRA=yes".to_owned()],
        tty,
        size: tty.then_some((100, 40)),
        keep: None,
        copy: None,
    }))
}

/// Waits for something that has no event to wait for.
pub(crate) fn until<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn config_is_tty(config: &Value) -> bool {
    config["process"]["terminal"] == json!(true)
}

fn make_group(hierarchy: &Hierarchy, group: &str) {
    let folder = hierarchy.folder(group);
    fs::create_dir_all(&folder).unwrap();
    // A v1 cpuset accepts no process until it has processors and memory.
    let mut at = hierarchy.mount.clone();
    for part in Path::new(group).components().skip(1) {
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read_to_string(at.join(file)) {
                let _ = fs::write(at.join(part).join(file), value);
            }
        }
        at.push(part);
    }
}

/// A fresh network namespace with `lo` up, for as long as the file is open.
fn network_namespace() -> File {
    std::thread::spawn(|| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        coracle::sys::loopback::up().unwrap();
        File::open("/proc/thread-self/ns/net").unwrap()
    })
    .join()
    .unwrap()
}

fn make_layer(layer: &Path) {
    let busybox = Path::new("/bin/busybox");
    assert!(busybox.exists(), "install the package `busybox-static`");
    for folder in ["bin", "proc", "dev", "sys", "tmp", "etc"] {
        fs::create_dir_all(layer.join(folder)).unwrap();
    }
    fs::copy(busybox, layer.join("bin/busybox")).unwrap();
    let applets = "sh cat echo sleep ls grep kill tty id true false stty hostname ip dd yes head seq printf mkdir \
        sysctl readlink touch pwd env mount test stat";
    for applet in applets.split_whitespace() {
        symlink("busybox", layer.join("bin").join(applet)).unwrap();
    }
    fs::write(layer.join("bin/noexec"), "x").unwrap();
    fs::write(layer.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").unwrap();
}

/// The number of mounts in [`bundle_config`] that are the runtime's own.
const FIXED_MOUNTS: usize = 3;

fn bundle_config(args: &[&str], group: &str) -> Value {
    let capabilities = ["CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID"];
    let set: BTreeSet<String> = capabilities.iter().map(|c| (*c).to_owned()).collect();
    json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs" },
        "process": {
            "user": { "uid": 0, "gid": 0 },
            "args": args,
            "env": ["PATH=/bin", "A=b"],
            "cwd": "/made/by/the/shim",
            "rlimits": [{ "type": "RLIMIT_NOFILE", "soft": 512, "hard": 512 }],
            "capabilities": {
                "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
            },
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
              "options": ["nosuid", "mode=755", "size=64k"] },
            { "destination": "/dev/pts", "type": "devpts", "source": "devpts",
              "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"] },
        ],
        "linux": {
            "cgroupsPath": group,
            "namespaces": [{ "type": "pid" }, { "type": "mount" }],
            "seccomp": seccomp::runtime_default(&set),
        },
    })
}
