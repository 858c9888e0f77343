//! Do pods get the huge pages that they ask for, and no more? With pools of the kernel that all tests share: only this file
//! changes them.

use std::path::{Path, PathBuf};

use super::*;

const POOLS: &str = "/sys/kernel/mm/hugepages";

/// What becomes of the kernel's pool of 2 MiB pages, until the end of the test.
struct Pool {
    file: PathBuf,
    before: String,
}

impl Pool {
    fn of(pages: u32) -> Self {
        let file = Path::new(POOLS).join("hugepages-2048kB/nr_hugepages");
        let before = fs::read_to_string(&file).expect("a kernel with huge pages of 2 MiB");
        fs::write(&file, pages.to_string()).expect("written");
        let there = fs::read_to_string(&file).expect("there");
        assert_eq!(there.trim(), pages.to_string(), "is memory too scattered?");
        Self { file, before }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, &self.before);
    }
}

/// A pod that has a volume of huge pages.
fn pod(name: &str, script: &str, bytes: &str) -> String {
    let spec = "  volumes: [{name: pages, emptyDir: {medium: HugePages}}]\n";
    let container = format!(
        "    volumeMounts: [{{name: pages, mountPath: /pages}}]\n    \
         resources: {{limits: {{memory: 32Mi, hugepages-2Mi: {bytes}}}}}\n    \
         env: [{{name: MINE, valueFrom: {{resourceFieldRef: {{resource: limits.hugepages-2Mi, divisor: 1Mi}}}}}}]\n"
    );
    shell_pod(name, script, spec, &container)
}

#[test]
fn a_pod_has_the_huge_pages_it_asks_for_and_no_more_are_given_than_there_are() {
    let _pool = Pool::of(4);
    let agent = Agent::start();
    let table = fs::read_to_string("/proc/mounts").expect("there");
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    // On cgroup v1 nobody may have mounted the controller.
    let bounded = v2
        || table
            .lines()
            .any(|line| line.contains(" cgroup ") && line.contains("hugetlb"));
    let take = "fallocate -l 4194304 /pages/mine && echo \"$MINE are mine\"; \
                fallocate -l 2097152 /pages/more || echo no more; echo done";
    agent.write(
        "huge.yaml",
        &pod("huge", &format!("{take}; {SLEEP}"), "4Mi"),
    );
    let running = agent.wait_running("huge");
    let log = follow_until(&agent, &["logs", "-f", "huge"], "done");
    assert!(log.contains("4 are mine"), "{log}");
    let uid = running["metadata"]["uid"].as_str().expect("uid");
    let mounts = fs::read_to_string(format!("/proc/{}/mounts", pid_of(&agent, &running)));
    let mounts = mounts.expect("it runs");
    let mount = mounts.lines().find(|line| line.contains(" /pages "));
    let mount = mount.expect("a volume");
    assert!(
        mount.contains(" hugetlbfs ") && mount.contains("pagesize=2M"),
        "{mount}"
    );
    let page = agent.ok(&["describe", "pod", "huge"]);
    let end = if v2 { "max" } else { "limit_in_bytes" };
    let asked = format!("hugetlb.2MB.{end}");
    if bounded {
        assert!(log.contains("no more"), "{log}");
        let file = |below: &str, file: &str| {
            agent.cgroup_file(if v2 { "" } else { "hugetlb" }, below, file)
        };
        for below in [
            format!("burstable/pod{uid}"),
            format!("burstable/pod{uid}/c-main"),
        ] {
            assert_eq!(file(&below, &asked), (4 << 20).to_string(), "{below}");
            assert_eq!(
                file(&below, &format!("hugetlb.2MB.rsvd.{end}")),
                (4 << 20).to_string()
            );
        }
        assert_eq!(file("", &asked), (8 << 20).to_string());
        assert!(
            page.contains(&asked) && !page.contains("is to be"),
            "{page}"
        );
    } else {
        let said =
            format!("{asked} of the pod is to be `4194304`, but this kernel has no such file");
        assert!(page.contains(&said), "{page}");
    }
    // Beside it there is room for two pages more.
    agent.write("more.yaml", &pod("more", SLEEP, "6Mi"));
    let held = agent.wait_pod("more", |pod| {
        pod["status"]["reason"] == "OutOfhugepages-2Mi"
    });
    let text = "Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 4194304, capacity: 8388608";
    assert_eq!(held["status"]["message"], text);
    let node = agent.ok(&["describe", "node"]);
    let row = node
        .lines()
        .rfind(|line| line.trim_start().starts_with("hugepages-2Mi"));
    let row: Vec<_> = row.expect("a row").split_whitespace().collect();
    assert_eq!(row, ["hugepages-2Mi", "10Mi", "(125%)", "10Mi", "(125%)"]);
    agent.remove("huge.yaml");
    agent.wait_running("more");
    agent.remove("more.yaml");
    agent.wait_gone("more");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
