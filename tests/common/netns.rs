//! Network namespaces of the tests: each node and each host beside it has its own, and none is the machine's.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Output};
use std::sync::mpsc;

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace with `lo` up. It ends when this is dropped and nothing runs in it.
#[derive(Debug)]
pub struct Netns {
    fd: File,
}

impl Netns {
    pub fn new() -> Self {
        let (give, take) = mpsc::channel();
        // In a separate thread: the caller stays in its own namespace.
        let maker = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("network namespaces: run as root");
            coracle::sys::loopback::up().expect("lo comes up");
            let fd = File::open("/proc/thread-self/ns/net").expect("own namespace");
            give.send(fd).expect("the caller waits");
        });
        let fd = take.recv().expect("the namespace is made");
        maker.join().expect("ends");
        Self { fd }
    }

    /// Runs a function in the namespace, on a separate thread; what it opens or starts stays there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(&self.fd, CloneFlags::CLONE_NEWNET).expect("the namespace is there");
                work()
            });
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A path of the namespace that `ip link … netns` takes.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }

    /// Output of a program that must succeed in the namespace.
    pub fn ok(&self, program: &str, args: &[&str]) -> String {
        let output = self.output(program, args);
        assert!(
            output.status.success(),
            "{program} {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn output(&self, program: &str, args: &[&str]) -> Output {
        self.run(|| Command::new(program).args(args).output())
            .unwrap_or_else(|error| panic!("{program}: {error}"))
    }

    /// `ip`, its arguments as one line.
    pub fn ip(&self, line: &str) -> String {
        self.ok("ip", &line.split(' ').collect::<Vec<_>>())
    }

    /// A sysctl below `net/` of the namespace.
    pub fn sysctl(&self, name: &str) -> String {
        self.run(|| std::fs::read_to_string(format!("/proc/sys/net/{name}")))
            .unwrap_or_else(|error| panic!("{name}: {error}"))
            .trim()
            .to_owned()
    }

    pub fn set_sysctl(&self, name: &str, value: &str) {
        self.run(|| std::fs::write(format!("/proc/sys/net/{name}"), value))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }

    /// The names of the interfaces, without `lo`.
    pub fn links(&self) -> Vec<String> {
        let text = self.ok("ip", &["-br", "link"]);
        let names = text
            .lines()
            .filter_map(|line| line.split([' ', '@']).next());
        names
            .filter(|name| *name != "lo")
            .map(str::to_owned)
            .collect()
    }
}
