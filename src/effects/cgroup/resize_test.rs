//! Resizes on files that stand for cgroup files: only the necessary writes, in the right order.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::{Cgroups, LimitSettings, Mode};
use super::*;
use crate::spec::convert::{ConvertContext, documents};

const MIB: u64 = 1 << 20;

struct Tree {
    root: PathBuf,
    cgroups: Cgroups,
    spec: PodSpec,
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Tree {
    /// A pod of 100m and 100 MiB with the containers `a` and `b`, half of it each, and this memory in use in each.
    fn new(mode: Mode, used: u64) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("coracle-resize-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let settings = LimitSettings::default();
        let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  \
                    - {name: a, image: i, resources: {limits: {cpu: 50m, memory: 50Mi}}}\n  \
                    - {name: b, image: i, resources: {limits: {cpu: 50m, memory: 50Mi}}}\n";
        let context = ConvertContext::of("n");
        let found = documents(text.as_bytes(), "f", &context);
        let spec = found.expect("valid").pods.remove(0);
        let tree = Self {
            cgroups: Cgroups::in_folder(&root, mode, settings),
            root,
            spec,
        };
        let pod = tree.folder("");
        for folder in [&pod, &pod.join("c-a"), &pod.join("c-b")] {
            fs::create_dir_all(folder).expect("temp dir");
            // As the kernel makes them.
            let resources = tree.spec.containers[0].resources;
            let own = Limits::container(&tree.spec, "a", resources, tree.spec.resources, settings);
            for (file, _) in own.files(mode).iter().chain(&[("pids.max", String::new())]) {
                fs::write(folder.join(file), "").expect("file");
            }
            fs::write(folder.join("cgroup.procs"), "1\n").expect("file");
            fs::write(folder.join(mode.usage()), format!("{used}\n")).expect("file");
        }
        tree.cgroups.write_limits(&tree.spec);
        tree
    }

    fn folder(&self, container: &str) -> PathBuf {
        let path = self.cgroups.pod_path(self.spec.qos, &self.spec.uid);
        let below = self.root.join(path.trim_start_matches('/'));
        match container {
            "" => below,
            name => below.join(format!("c-{name}")),
        }
    }

    fn value(&self, container: &str, file: &str) -> String {
        let text = fs::read_to_string(self.folder(container).join(file)).expect("a file");
        text.trim().to_owned()
    }

    /// Sets the cpu and memory limits of `a` and `b`, and the pod to their sum.
    fn resize(&self, a: (u64, u64), b: (u64, u64)) -> Result<(), ResizeError> {
        let figures = |(cpu, memory): (u64, u64)| ContainerResources {
            cpu_request_milli: Some(cpu),
            cpu_limit_milli: Some(cpu),
            memory_request_bytes: Some(memory),
            memory_limit_bytes: Some(memory),
        };
        let pod = PodResources {
            cpu_request_milli: a.0 + b.0,
            cpu_limit_milli: Some(a.0 + b.0),
            memory_request_bytes: a.1 + b.1,
            memory_limit_bytes: Some(a.1 + b.1),
        };
        let containers = [("a", a), ("b", b), ("never-started", a)];
        let containers = containers.map(|(name, of)| (name.to_owned(), figures(of)));
        self.cgroups.resize(&self.spec, pod, &containers)
    }

    /// The files written, in order.
    fn written(&self) -> Vec<String> {
        let log = self.cgroups.hierarchies.take_log();
        let pod = self.cgroups.pod_path(self.spec.qos, &self.spec.uid);
        let short = |line: &String| line.replace(&pod, "").trim_start_matches('/').to_owned();
        log.iter().map(short).collect()
    }
}

#[test]
fn the_pod_grows_before_its_containers_and_shrinks_after_them() {
    let tree = Tree::new(Mode::V2, MIB);
    tree.written();
    tree.resize((100, 100 * MIB), (50, 50 * MIB)).expect("done");
    let up = [
        "memory.max",
        "c-b/memory.max",
        "c-b/memory.swap.max",
        "c-a/memory.max",
        "c-a/memory.swap.max",
        "cpu.max",
        "cpu.weight",
        "c-b/cpu.weight",
        "c-b/cpu.max",
        "c-a/cpu.weight",
        "c-a/cpu.max",
    ];
    assert_eq!(tree.written(), up);
    assert_eq!(tree.value("a", "cpu.max"), "10000 100000");
    assert_eq!(tree.value("", "memory.max"), (150 * MIB).to_string());
    tree.resize((50, 50 * MIB), (50, 50 * MIB)).expect("done");
    let down = [
        "c-a/memory.max",
        "c-a/memory.swap.max",
        "c-b/memory.max",
        "c-b/memory.swap.max",
        "memory.max",
        "c-a/cpu.weight",
        "c-a/cpu.max",
        "c-b/cpu.weight",
        "c-b/cpu.max",
        "cpu.weight",
        "cpu.max",
    ];
    assert_eq!(tree.written(), down);
    tree.resize((50, 50 * MIB), (50, 50 * MIB))
        .expect("the same again");
}

#[test]
fn decreases_come_before_increases() {
    let tree = Tree::new(Mode::V1, MIB);
    tree.written();
    tree.resize((90, 90 * MIB), (10, 10 * MIB)).expect("done");
    let written = tree.written();
    let at = |text: &str| {
        written
            .iter()
            .position(|line| line == text)
            .expect("written")
    };
    assert!(at("c-b/memory.limit_in_bytes") < at("c-a/memory.limit_in_bytes"));
    assert!(at("c-b/cpu.cfs_quota_us") < at("c-a/cpu.cfs_quota_us"));
    assert_eq!(tree.value("b", "cpu.cfs_quota_us"), "1000");
    assert_eq!(tree.value("b", "cpu.shares"), "10");
    let both = tree.value("a", "memory.memsw.limit_in_bytes");
    assert_eq!(both, (90 * MIB).to_string(), "no swap");
}

#[test]
fn a_limit_below_what_is_in_use_is_refused_and_nothing_changes() {
    for (mode, file) in [
        (Mode::V1, "memory.limit_in_bytes"),
        (Mode::V2, "memory.max"),
    ] {
        let tree = Tree::new(mode, 40 * MIB);
        tree.written();
        let error = tree
            .resize((10, 30 * MIB), (50, 50 * MIB))
            .expect_err("in use");
        let text = format!(
            "cannot decrease memory limits: attempting to set container \"a\" memory limit ({}) below current usage ({})",
            30 * MIB,
            40 * MIB
        );
        assert_eq!(error.to_string(), text);
        assert_eq!(tree.written(), [""; 0]);
        assert_eq!(tree.value("a", file), (50 * MIB).to_string());
        let error = tree
            .resize((10, 10 * MIB), (10, 10 * MIB))
            .expect_err("in use");
        assert!(
            error
                .to_string()
                .contains("[attempting to set pod memory limit ("),
            "{error}"
        );
        let procs = tree.folder("a").join("cgroup.procs");
        fs::write(procs, "").expect("file");
        tree.resize((10, 30 * MIB), (50, 50 * MIB))
            .expect("nothing runs in it");
    }
}

#[test]
fn a_value_the_kernel_does_not_keep_is_an_error() {
    assert!(same("memory.max", "4097", "4096\n"));
    assert!(!same("memory.max", "40960000", "4096\n"));
    assert!(same("memory.limit_in_bytes", "-1", "9223372036854771712\n"));
    assert!(same("memory.max", "max", "max\n"));
    assert!(!same("memory.max", "max", "4096\n"));
    assert!(same("cpu.max", "max 100000", "max 100000\n"));
    assert!(!same("cpu.max", "1000 100000", "2000 100000\n"));
}

#[test]
fn a_kernel_without_cpu_limits_is_told_from_a_cgroup_that_is_gone() {
    let tree = Tree::new(Mode::V2, 0);
    let path = tree.cgroups.pod_path(tree.spec.qos, &tree.spec.uid);
    let limits = Limits::pod(&tree.spec, tree.spec.resources, LimitSettings::default());
    let why = || {
        tree.cgroups
            .write(&path, &limits)
            .expect_err("no file")
            .to_string()
    };
    fs::remove_file(tree.folder("").join("cpu.max")).expect("it is there");
    assert!(why().contains("CONFIG_CFS_BANDWIDTH"), "{}", why());
    fs::remove_dir_all(tree.folder("")).expect("it is there");
    assert!(!why().contains("CONFIG_CFS_BANDWIDTH"), "{}", why());
}
