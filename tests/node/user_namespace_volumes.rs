//! Volumes of pods with `hostUsers: false`: their files have the ids that the container expects.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::configuration::run;
use super::user_namespaces::{OWN, inside, owner, range};
use super::*;

const DOCUMENTS: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: map}\ndata: {key: value}\n---\n\
                         apiVersion: v1\nkind: Secret\nmetadata: {name: secret}\nstringData: {key: hidden}\n---\n\
                         apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: claim}\nspec:\n  accessModes: \
                         [ReadWriteOnce]\n  resources: {requests: {storage: 1Mi}}\n";

#[test]
fn volumes_of_every_kind_have_the_ids_that_the_container_expects() {
    let agent = Agent::start();
    let host = agent.root.join("host");
    fs::create_dir_all(host.join("sub")).expect("made");
    for (name, uid, mode) in [
        ("roots", 0, 0o600),
        ("users", 1000, 0o600),
        ("sub/file", 0, 0o644),
    ] {
        let path = host.join(name);
        fs::write(&path, format!("{name}\n")).expect("written");
        std::os::unix::fs::chown(&path, Some(uid), Some(uid)).expect("root");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root");
    }
    agent.write("0.yaml", DOCUMENTS);
    let place = host.display();
    let pod = format!(
        "{OWN}  securityContext: {{fsGroup: 2000}}\n  volumes:\n  - {{name: disk, emptyDir: {{}}}}\n  \
         - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}\n  \
         - {{name: map, configMap: {{name: map}}}}\n  \
         - {{name: secret, secret: {{secretName: secret, defaultMode: 0400}}}}\n  \
         - {{name: all, projected: {{sources: [{{configMap: {{name: map}}}}, {{downwardAPI: {{items: [{{path: name, \
         fieldRef: {{fieldPath: metadata.name}}}}]}}}}]}}}}\n  \
         - {{name: claim, persistentVolumeClaim: {{claimName: claim}}}}\n  \
         - {{name: host, hostPath: {{path: {place}}}}}\n"
    );
    let container = "    securityContext: {readOnlyRootFilesystem: true}\n    volumeMounts:\n    \
                     - {name: disk, mountPath: /disk}\n    - {name: memory, mountPath: /memory}\n    \
                     - {name: map, mountPath: /map}\n    - {name: map, mountPath: /etc/key, subPath: key}\n    \
                     - {name: secret, mountPath: /secret}\n    - {name: all, mountPath: /new/all}\n    \
                     - {name: claim, mountPath: /claim}\n    - {name: host, mountPath: /host}\n    \
                     - {name: host, mountPath: /host/sub, readOnly: true}\n    \
                     - {name: disk, mountPath: /below, subPath: made/below}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, &pod, container));
    let pod = agent.wait_running("a");
    let (first, _) = range(&agent, "a");
    for (path, expected) in [
        ("/disk", "0:2000"),
        ("/memory", "0:2000"),
        ("/map/key", "0:2000"),
        ("/etc/key", "0:2000"),
        ("/secret/..data/key", "0:2000"),
        ("/new/all/name", "0:2000"),
        ("/claim", "0:2000"),
        ("/host", "0:0"),
        ("/host/roots", "0:0"),
        ("/host/users", "1000:1000"),
        ("/below", "0:2000"),
        ("/etc/hosts", "0:0"),
        ("/etc/hostname", "0:0"),
        ("/etc/resolv.conf", "0:0"),
        ("/dev/termination-log", "0:0"),
        ("/dev/shm", "0:0"),
        ("/dev", "0:0"),
        ("/proc/1", "0:0"),
        ("/", "0:0"),
    ] {
        assert_eq!(
            run(&agent, "a", &format!("stat -Lc %u:%g {path}")),
            format!("{expected}\n"),
            "{path}"
        );
    }
    let read = "cat /map/key /etc/key /secret/key /new/all/key /new/all/name /host/roots";
    assert_eq!(run(&agent, "a", read), "valuevaluehiddenvaluearoots\n");

    // Files of volumes belong to the same ids on the node, those of the sandbox to the pod's.
    run(
        &agent,
        "a",
        "for d in disk memory claim host below dev/shm; do echo x >/$d/file && chown 5:6 /$d/file; done",
    );
    let uid = pod["metadata"]["uid"].as_str().expect("uid");
    let disk = agent.root.join(format!(
        "root/pods/{uid}/volumes/kubernetes.io~empty-dir/disk"
    ));
    let memory = agent.root.join(format!("run/pods/{uid}/volumes/memory"));
    for path in [
        disk.join("file"),
        disk.join("made/below/file"),
        memory.join("file"),
        host.join("file"),
        agent.root.join("root/claims/default_claim/data/file"),
    ] {
        assert_eq!(owner(&path), (5, 6), "{}", path.display());
    }
    assert_eq!(
        owner(&inside(&agent, "a", "/dev/shm/file")),
        (first + 5, first + 6)
    );

    // The root of the container has no more rights there than a root without the node, and others have none at all.
    for attempt in [
        "touch /x",
        "touch /host/sub/x",
        "touch /map/x",
        "echo x >/etc/key",
        "mount -o remount,rw,bind /host/sub",
    ] {
        let said = run(
            &agent,
            "a",
            &format!("if ({attempt}) 2>/dev/null; then echo done; else echo refused; fi"),
        );
        assert_eq!(said, "refused\n", "{attempt}");
    }
    run(&agent, "a", "echo fine >/dev/termination-log");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_user_without_rights_cannot_write_the_files_of_the_nodes_root() {
    let agent = Agent::start();
    let host = agent.root.join("host");
    fs::create_dir_all(&host).expect("made");
    fs::write(host.join("roots"), "untouched\n").expect("written");
    let pod = format!(
        "{OWN}  securityContext: {{runAsUser: 1000, runAsGroup: 1000}}\n  volumes:\n  - {{name: host, hostPath: {{path: \
         {}}}}}\n",
        host.display()
    );
    let container = "    volumeMounts:\n    - {name: host, mountPath: /host}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, &pod, container));
    agent.wait_running("a");
    let (first, _) = range(&agent, "a");
    let pid = pid_of(&agent, &agent.pod("a"));
    assert_eq!(
        owner(Path::new(&format!("/proc/{pid}/root/proc/1/stat"))).0,
        first + 1000
    );
    let script = "id -u; id -G; cat /host/roots; (echo x >>/host/roots) 2>/dev/null || echo refused; \
                  (touch /host/new) 2>/dev/null || echo refused";
    assert_eq!(
        run(&agent, "a", script),
        "1000\n1000\nuntouched\nrefused\nrefused\n"
    );
    assert_eq!(
        fs::read_to_string(host.join("roots")).expect("there"),
        "untouched\n"
    );
}

#[test]
fn a_volume_of_an_image_belongs_to_the_pods_ids() {
    let agent = Agent::start();
    let config = serde_json::json!({"Volumes": {"/data": {}, "/fresh/deep": {}}});
    let image = hostile::archive(&agent, "vol", config, &[("data/given", None)]);
    agent.ok(&["image", "import", &image]);
    let script =
        format!("echo run >>/data/runs; [ $(grep -c run /data/runs) = 1 ] && exit 1; {SLEEP}");
    let pod = shell_pod("a", &script, OWN, "").replace("busybox:test", "vol:1");
    agent.write("a.yaml", &pod);
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    let (first, _) = range(&agent, "a");
    let said = run(
        &agent,
        "a",
        "stat -c %u:%g /data /data/given /data/runs /fresh /fresh/deep; touch /fresh/deep/x",
    );
    assert_eq!(said, "0:0\n".repeat(5));
    assert_eq!(owner(&inside(&agent, "a", "/data/runs")), (first, first));
    // What is written there is the pod's own, also after a reboot: the pod keeps its ids.
    agent.power_cut();
    agent.launch();
    agent.wait_running("a");
    assert_eq!(range(&agent, "a").0, first);
    let again = run(
        &agent,
        "a",
        "stat -c %u:%g /data/runs; grep -c run /data/runs",
    );
    assert_eq!(again, "0:0\n3\n");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

#[test]
fn a_volume_that_cannot_be_shown_with_other_ids_is_named() {
    let agent = Agent::start();
    let volume = format!("{OWN}  volumes: [{{name: v, hostPath: {{path: /proc/sys}}}}]\n");
    let mount = "    volumeMounts: [{name: v, mountPath: /v}]\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, &volume, mount));
    let pod = agent.wait_pod("a", |pod| {
        let waiting = &main_status(pod)["state"]["waiting"];
        waiting["message"]
            .as_str()
            .is_some_and(|text| text.contains("/proc/sys"))
    });
    let message = main_status(&pod)["state"]["waiting"]["message"].to_string();
    let expected = "could not show `/proc/sys` with the ids of the pod's user namespace";
    assert!(message.contains(expected), "{message}");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}

/// Mounts a file system there.
fn mount_at(path: &Path, kind: &str) {
    fs::create_dir_all(path).expect("made");
    let flags = nix::mount::MsFlags::empty();
    nix::mount::mount(Some(kind), path, Some(kind), flags, None::<&str>).expect("mounted");
}

#[test]
fn mounts_below_a_volume_are_shown_with_the_pods_ids_if_all_of_them_can_be() {
    let agent = Agent::start();
    let (all, top) = (agent.root.join("all"), agent.root.join("top"));
    for folder in [&all, &top] {
        mount_at(folder, "tmpfs");
        let (none, shared) = (None::<&str>, nix::mount::MsFlags::MS_SHARED);
        nix::mount::mount(none, folder, none, shared, none).expect("shared");
    }
    mount_at(&all.join("below"), "tmpfs");
    fs::write(all.join("below/file"), "").expect("written");
    mount_at(&top.join("below"), "proc");
    let volumes = [("all", &all), ("top", &top)].map(|(name, path)| {
        format!(
            "  - {{name: {name}, hostPath: {{path: {}}}}}\n",
            path.display()
        )
    });
    let pod = format!("{OWN}  volumes:\n{}", volumes.concat());
    let container = "    volumeMounts:\n    - {name: all, mountPath: /all, mountPropagation: HostToContainer}\n    \
                     - {name: top, mountPath: /top}\n";
    agent.write("a.yaml", &shell_pod("a", SLEEP, &pod, container));
    agent.wait_running("a");
    let seen = run(
        &agent,
        "a",
        "stat -c %u:%g /all /all/below /all/below/file /top /top/below/version",
    );
    assert_eq!(seen, "0:0\n0:0\n0:0\n0:0\n65534:65534\n");
    // What the node mounts later comes as the node has it.
    mount_at(&all.join("late"), "tmpfs");
    fs::write(all.join("late/file"), "there").expect("written");
    let late = "cat /all/late/file; stat -c %u:%g /all/late/file; (echo x >/all/late/file) 2>/dev/null || echo refused";
    assert_eq!(run(&agent, "a", late), "there65534:65534\nrefused\n");
    // A new run of the container begins with the same mounts.
    agent.cli(&["exec", "a", "--", "kill", "1"]);
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    assert_eq!(run(&agent, "a", "stat -c %u:%g /all/below/file"), "0:0\n");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    for folder in [&all, &top] {
        coracle::sys::mount::unmount_below(folder).expect("unmounted");
    }
    assert_eq!(agent.leftovers(), Vec::<String>::new());
}
