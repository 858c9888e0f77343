//! Huge pages: a pod gets those that it requests, and no more. All tests share the kernel's pools; only this file
//! changes them.

use std::fs::File;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use super::*;

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// The kernel's pool of 2 MiB pages, as a test sets it until it ends; one test at a time.
struct Pool {
    file: PathBuf,
    before: String,
    _turn: Flock<File>,
}

impl Pool {
    fn of(pages: u32) -> Self {
        let file = Path::new(POOLS).join("hugepages-2048kB/nr_hugepages");
        let open = File::open(&file).expect("a kernel with huge pages of 2 MiB");
        let turn = Flock::lock(open, FlockArg::LockExclusive).expect("a turn");
        let before = fs::read_to_string(&file).expect("there");
        fs::write(&file, pages.to_string()).expect("written");
        let there = fs::read_to_string(&file).expect("there");
        let pool = Self {
            file,
            before,
            _turn: turn,
        };
        assert_eq!(there.trim(), pages.to_string(), "is memory too scattered?");
        pool
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, &self.before);
    }
}

/// A pod that has a volume of huge pages, and this limit of them.
fn pod(name: &str, script: &str, bytes: &str, volume: &str) -> String {
    let spec = format!("  volumes: [{{name: pages, emptyDir: {{{volume}}}}}]\n");
    let container = format!(
        "    volumeMounts: [{{name: pages, mountPath: /pages}}]\n    \
         resources: {{limits: {{memory: 32Mi, hugepages-2Mi: {bytes}}}}}\n    \
         env: [{{name: MINE, valueFrom: {{resourceFieldRef: {{resource: limits.hugepages-2Mi, divisor: 1Mi}}}}}}]\n"
    );
    shell_pod(name, script, &spec, &container)
}

/// Takes as much as it may, then more.
const TAKE: &str = "fallocate -l 4194304 /pages/mine && echo \"$MINE are mine\"; \
                    fallocate -l 2097152 /pages/more || echo no more; echo done";

/// The mount options of a pod's volume.
fn volume_of(agent: &Agent, pod: &Value) -> String {
    let mounts = fs::read_to_string(format!("/proc/{}/mounts", pid_of(agent, pod)));
    let mounts = mounts.expect("it runs");
    let mut pages = mounts.lines().filter(|line| line.contains(" /pages "));
    pages.next().expect("a volume").to_owned()
}

/// The hierarchy that limits huge pages, and the ending of its files' names. On cgroup v1 it may not be mounted.
fn controller() -> (Option<&'static str>, &'static str) {
    match fs::read_to_string("/sys/fs/cgroup/cgroup.controllers") {
        Ok(all) => (all.contains("hugetlb").then_some(""), "max"),
        Err(_) => {
            let mounts = fs::read_to_string("/proc/mounts").expect("there");
            let mut mounts = mounts.lines().filter(|line| line.contains(" cgroup "));
            let mounted = mounts.any(|line| line.contains("hugetlb"));
            (mounted.then_some("hugetlb"), "limit_in_bytes")
        }
    }
}

#[test]
fn a_pod_has_the_huge_pages_that_it_requests_and_no_more() {
    let _pool = Pool::of(4);
    let agent = Agent::start();
    let script = format!("{TAKE}; {SLEEP}");
    agent.write(
        "huge.yaml",
        &pod("huge", &script, "4Mi", "medium: HugePages"),
    );
    let running = agent.wait_running("huge");
    let log = follow_until(&agent, &["logs", "-f", "huge"], "done");
    assert!(log.contains("4 are mine"), "{log}");
    let mount = volume_of(&agent, &running);
    assert!(mount.contains(" hugetlbfs "), "{mount}");
    assert!(mount.contains("pagesize=2M"), "{mount}");
    let uid = running["metadata"]["uid"].as_str().expect("uid");
    let page = agent.ok(&["describe", "pod", "huge"]);
    let (controller, end) = controller();
    let asked = format!("hugetlb.2MB.{end}");
    let Some(controller) = controller else {
        let said =
            format!("{asked} of the pod should be `4194304`, but this kernel has no such file");
        assert!(page.contains(&said), "{page}");
        return;
    };
    assert!(log.contains("no more"), "{log}");
    let pod = format!("burstable/pod{uid}");
    let container = format!("{pod}/c-main");
    let promised = format!("hugetlb.2MB.rsvd.{end}");
    for (below, mib) in [("", 8), (&*pod, 4), (&*container, 4)] {
        for file in [&asked, &promised] {
            let found = agent.cgroup_file(controller, below, file);
            assert_eq!(found, (mib << 20).to_string(), "{below}/{file}");
        }
    }
    assert!(page.contains(&asked), "{page}");
    assert!(!page.contains("is to be"), "{page}");
}

#[test]
fn no_more_huge_pages_are_granted_than_exist() {
    let _pool = Pool::of(4);
    let agent = Agent::start();
    agent.write("huge.yaml", &pod("huge", SLEEP, "4Mi", "medium: HugePages"));
    agent.wait_running("huge");
    // This pod does not run as root, and its volume has a limit.
    let volume = "medium: HugePages-2Mi, sizeLimit: 4Mi";
    let script = format!("{TAKE}; {SLEEP}");
    let more = pod("more", &script, "6Mi", volume) + "    securityContext: {runAsUser: 1000}\n";
    agent.write("more.yaml", &more);
    let held = agent.wait_pod("more", |pod| {
        pod["status"]["reason"] == "OutOfhugepages-2Mi"
    });
    let text = "Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 4194304, capacity: 8388608";
    assert_eq!(held["status"]["message"], text);
    let node = agent.ok(&["describe", "node"]);
    let mut rows = node.lines().map(str::split_whitespace);
    let row: Vec<_> = rows
        .rfind(|row| row.clone().next() == Some("hugepages-2Mi"))
        .expect("a row")
        .collect();
    assert_eq!(row, ["hugepages-2Mi", "10Mi", "(125%)", "10Mi", "(125%)"]);
    agent.remove("huge.yaml");
    let running = agent.wait_running("more");
    let log = follow_until(&agent, &["logs", "-f", "more"], "done");
    assert!(
        log.contains("6 are mine") && log.contains("no more"),
        "{log}"
    );
    let mount = volume_of(&agent, &running);
    assert!(mount.contains("size=4194304"), "{mount}");
    agent.remove("more.yaml");
    agent.wait_gone("more");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
