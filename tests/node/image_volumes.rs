//! Volumes with the files of an image, in real containers.

use super::common::{Agent, archive, shell_pod};
use super::configuration::run;
use super::hostile::save;
use super::{SLEEP, main_status};

/// A layer. A path that ends in `/` is a folder, `path -> target` a symlink, `path:mode` has a mode; files contain their
/// path and `mark`.
fn layer(entries: &[&str], mark: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_mode(0o755);
        if let Some((path, target)) = entry.split_once(" -> ") {
            header.set_entry_type(tar::EntryType::Symlink);
            tar.append_link(&mut header, path, target)
                .expect("into memory");
        } else if entry.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut header, entry, &b""[..])
                .expect("into memory");
        } else {
            let (path, mode) = entry.split_once(':').unwrap_or((entry, "644"));
            let text = format!("#!/bin/sh\n# {path} {mark}\necho ran\n");
            header.set_size(text.len() as u64);
            header.set_mode(u32::from_str_radix(mode, 8).expect("octal"));
            tar.append_data(&mut header, path, text.as_bytes())
                .expect("into memory");
        }
    }
    tar.into_inner().expect("into memory")
}

/// Imports an image of these layers.
fn import(agent: &Agent, name: &str, layers: &[Vec<u8>]) {
    let file = save(agent, name, serde_json::json!({}), layers);
    agent.ok(&["image", "import", &file]);
}

/// The two layers of most tests; the upper one hides `old`.
fn layers(mark: &str) -> [Vec<u8>; 2] {
    let lower = [
        "old",
        "kept",
        "dir/",
        "dir/f",
        "run.sh:755",
        "root:4755",
        "out -> /etc",
    ];
    [
        layer(&lower, mark),
        layer(&[".wh.old", "new", "dir/g"], mark),
    ]
}

const MOUNTS: &str = "    volumeMounts:\n    - {name: v, mountPath: /data}\n    - {name: v, mountPath: /sub, subPath: dir}\n    - {name: v, mountPath: /one, subPath: new}\n    - {name: v, mountPath: /data/dir, subPathExpr: dir}\n";

fn pod(name: &str, script: &str, image: &str, mounts: &str) -> String {
    let volume = format!("  volumes: [{{name: v, image: {{{image}}}}}]\n");
    shell_pod(name, script, &volume, mounts)
}

#[test]
fn an_image_volume_has_the_files_of_all_layers_and_nothing_in_it_changes_or_runs() {
    let agent = Agent::start();
    import(&agent, "data", &layers("first"));
    let more = "reference: 'data:1'";
    let group = pod("a", SLEEP, more, MOUNTS).replace(
        "spec:\n",
        "spec:\n  securityContext: {fsGroup: 1234, runAsUser: 0}\n",
    );
    agent.write("a.yaml", &group);
    agent.wait_running("a");
    let sh = |script: &str| run(&agent, "a", script);
    assert_eq!(
        sh("cd /data; echo *; echo dir/*; echo /sub/*"),
        "dir kept new out root run.sh\ndir/f dir/g\n/sub/f /sub/g\n"
    );
    assert_eq!(
        sh("grep first /one; readlink /data/out"),
        "# new first\n/etc\n"
    );
    // The group of the pod's volumes has no effect on it.
    assert_eq!(
        sh("stat -c '%a %u %g' /data/kept /data/root"),
        "644 0 0\n4755 0 0\n"
    );
    for (script, why) in [
        ("touch /data/x", "Read-only file system"),
        ("rm /data/kept", "Read-only file system"),
        ("echo >/one", "Read-only file system"),
        ("touch /sub/x", "Read-only file system"),
        ("touch /data/dir/x", "Read-only file system"),
        ("/data/run.sh", "Permission denied"),
        ("/sub/../data/root", "Permission denied"),
    ] {
        let refused = agent.cli(&["exec", "a", "--", "sh", "-c", script]);
        assert!(!refused.status.success(), "{script}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(why), "{script}: {said}");
    }
    let options = "for m in /data /sub /one /data/dir; do for o in ro nosuid nodev noexec; do \
                   awk -v m=$m '$2 == m {print \",\" $4 \",\"}' /proc/mounts | grep -c \",$o,\"; done; done | sort -u";
    assert_eq!(sh(options), "1\n");
}

#[test]
fn the_image_of_a_volume_stays_until_its_pod_is_gone_over_agents_and_restarts() {
    let agent = Agent::start();
    import(&agent, "data", &layers("first"));
    agent.write("a.yaml", &pod("a", SLEEP, "reference: 'data:1'", MOUNTS));
    agent.wait_running("a");
    let in_use = || {
        agent.ok(&["image", "prune", "-a", "-f"]);
        agent.ok(&["image", "ls"])
    };
    assert!(in_use().contains("data"));
    assert!(!agent.cli(&["image", "rm", "data:1"]).status.success());
    agent.kill_and_restart();
    assert!(in_use().contains("data"), "a new agent knows it");
    assert_eq!(run(&agent, "a", "grep -c first /one"), "1\n");
    // The tag moves to another image: the run keeps what it has, the next one gets the new files.
    import(&agent, "data", &layers("second"));
    agent.ok(&["image", "prune", "-f"]);
    assert_eq!(run(&agent, "a", "cat /data/kept | grep -c first"), "1\n");
    agent.cli(&["exec", "a", "--", "sh", "-c", "kill -TERM 1"]);
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && !main_status(pod)["state"]["running"].is_null()
    });
    assert_eq!(run(&agent, "a", "cat /data/kept | grep -c second"), "1\n");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    assert_eq!(agent.leftovers(), Vec::<String>::new());
    agent.ok(&["image", "rm", "data:1"]);
    assert!(!in_use().contains("data"));
}

#[test]
fn a_container_waits_for_the_image_of_its_volume_and_others_do_not() {
    let agent = Agent::start_with(&[]);
    agent.ok(&["image", "import", archive().to_str().expect("utf-8")]);
    let mounts = "    volumeMounts: [{name: v, mountPath: /data}]\n";
    let other = "  - {name: other, image: 'busybox:test', command: [sleep, '1000']}\n";
    for (name, policy) in [("never", "Never"), ("pull", "IfNotPresent")] {
        let image = format!("reference: 'data:1', pullPolicy: {policy}");
        let text = pod(name, SLEEP, &image, mounts) + other;
        agent.write(&format!("{name}.yaml"), &text);
    }
    let waits = |name: &str, reasons: &[&str], text: &str| {
        agent.wait_pod(name, |pod| {
            let statuses = pod["status"]["containerStatuses"].as_array();
            let state = |of: &str| {
                let mut all = statuses.into_iter().flatten();
                all.find(|status| status["name"] == of)
                    .map(|status| status["state"].clone())
                    .unwrap_or_default()
            };
            let waiting = &state("main")["waiting"];
            reasons.iter().any(|reason| waiting["reason"] == *reason)
                && waiting["message"].to_string().contains(text)
                && !state("other")["running"].is_null()
        })
    };
    waits(
        "never",
        &["ErrImageNeverPull"],
        "Container image \\\"data:1\\\" is not present with pull policy of Never",
    );
    waits("pull", &["ErrImagePull", "ImagePullBackOff"], "data:1");
    import(&agent, "data", &layers("first"));
    for name in ["never", "pull"] {
        agent.wait_running(name);
    }
}

#[test]
fn a_sub_path_that_an_image_lacks_or_that_leads_out_of_it_is_reported() {
    let agent = Agent::start();
    import(&agent, "data", &layers("first"));
    // An image of one layer, and one that only hides files.
    import(&agent, "single", &[layer(&["only", ".wh.gone"], "")]);
    for (name, path) in [("missing", "none"), ("out", "out"), ("below", "out/passwd")] {
        let mounts =
            format!("    volumeMounts: [{{name: v, mountPath: /data, subPath: {path}}}]\n");
        agent.write(
            &format!("{name}.yaml"),
            &pod(name, SLEEP, "reference: 'data:1'", &mounts),
        );
    }
    let mounts = "    volumeMounts: [{name: v, mountPath: /data}]\n";
    agent.write(
        "single.yaml",
        &pod("single", SLEEP, "reference: 'single:1'", mounts),
    );
    for name in ["missing", "out", "below"] {
        agent.wait_pod(name, |pod| {
            let waiting = &main_status(pod)["state"]["waiting"];
            let message = waiting["message"].as_str().unwrap_or_default();
            waiting["reason"] == "CreateContainerConfigError"
                && message.starts_with("failed to prepare subPath for volumeMount \"v\"")
        });
    }
    agent.wait_running("single");
    assert_eq!(run(&agent, "single", "ls -A /data"), "only\n");
}

#[test]
fn a_pod_with_ids_of_its_own_sees_an_image_with_them() {
    let agent = Agent::start();
    import(&agent, "data", &layers("first"));
    let text = pod("a", SLEEP, "reference: 'data:1'", MOUNTS);
    let own = text.replace("spec:\n", "spec:\n  hostUsers: false\n");
    agent.write("a.yaml", &own);
    agent.wait_running("a");
    let sh = |script: &str| run(&agent, "a", script);
    assert_eq!(
        sh("stat -c '%u %g' /data/new /data/kept /sub/f /one /data/dir/g"),
        "0 0\n".repeat(5)
    );
    assert_eq!(
        sh("ls /data /sub"),
        "/data:\ndir\nkept\nnew\nout\nroot\nrun.sh\n\n/sub:\nf\ng\n"
    );
    assert_eq!(
        sh("touch /data/x 2>/dev/null || echo no; /data/run.sh 2>/dev/null || echo no"),
        "no\nno\n"
    );
    // A restart mounts them again.
    agent.cli(&["exec", "a", "--", "kill", "1"]);
    agent.wait_pod("a", |pod| {
        main_status(pod)["restartCount"] == 1 && main_status(pod)["ready"] == true
    });
    assert_eq!(sh("stat -c '%u %g' /sub/f"), "0 0\n");
}
