//! Claims: directories that outlive pods, files and agents, and volumes that manifests describe.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::SLEEP;
use super::common::{Agent, shell_pod};
use super::configuration::{run, wait_mount_failure};

const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec:\n  accessModes: [ReadWriteOnce]\n  resources: {requests: {storage: 1Gi}}\n";

fn pod(name: &str, claim: &str, more: &str) -> String {
    let volumes = format!(
        "{more}  volumes:\n  - {{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}\n"
    );
    let mounts = "    volumeMounts: [{name: v, mountPath: /data}]\n";
    shell_pod(name, SLEEP, &volumes, mounts)
}

/// The cells of a command's table, line by line.
fn cells(agent: &Agent, args: &[&str]) -> Vec<Vec<String>> {
    let table = agent.ok(args);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    table.lines().map(words).collect()
}

#[test]
fn an_ephemeral_volume_outlives_containers_and_ends_with_its_pod() {
    let agent = Agent::start();
    let volume = "  volumes:\n  - name: v\n    ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}\n";
    let mount = "    volumeMounts: [{name: v, mountPath: /data}]\n";
    agent.write("web.yaml", &shell_pod("web", SLEEP, volume, mount));
    agent.wait_running("web");
    assert_eq!(run(&agent, "web", "ls /data; echo kept >/data/file"), "");
    agent.ok(&["restart", "web"]);
    assert_eq!(run(&agent, "web", "cat /data/file"), "kept\n");
    agent.ok(&["delete", "pod", "web"]);
    agent.wait_running("web");
    assert_eq!(run(&agent, "web", "ls /data"), "");
    assert!(!agent.ok(&["get", "pvc"]).contains("web"));
}

#[test]
fn a_claim_whose_record_cannot_be_read_is_not_bound_anew() {
    let agent = Agent::start();
    // Claims do not mind stray files.
    let all = agent.root.join("root/claims");
    fs::create_dir_all(&all).expect("temp dir");
    fs::write(all.join("stray"), "").expect("written");
    agent.write("claim.yaml", CLAIM);
    agent.write("a.yaml", &pod("a", "data", ""));
    agent.wait_running("a");
    run(&agent, "a", "echo kept >/data/file");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let folder = all.join("default_data");
    let record = fs::read(folder.join("claim.json")).expect("a record");
    fs::write(folder.join("claim.json"), "{").expect("written");
    agent.write("a.yaml", &pod("a", "data", ""));
    super::events::wait_event(&agent, |event| {
        let said = event["message"].as_str().unwrap_or_default();
        event["reason"] == "FailedMount" && said.contains("delete it to bind the claim again")
    });
    fs::write(folder.join("claim.json"), record).expect("written");
    agent.wait_running("a");
    assert_eq!(run(&agent, "a", "cat /data/file"), "kept\n");
}

#[test]
fn a_claim_whose_record_cannot_be_read_is_shown_and_can_be_removed() {
    let agent = Agent::start();
    agent.write("claim.yaml", CLAIM);
    agent.write("a.yaml", &pod("a", "data", ""));
    agent.wait_running("a");
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let folder = agent.root.join("root/claims/default_data");
    fs::write(folder.join("claim.json"), "").expect("written");
    agent.kill_and_restart();
    agent.write("other.yaml", &shell_pod("other", SLEEP, "", ""));
    agent.wait_running("other");
    let log = agent.log();
    assert!(
        log.contains("claim `default/data` is lost: could not read"),
        "{log}"
    );
    let path = folder.join("data").display().to_string();
    let row = cells(&agent, &["volume", "ls"]).remove(1);
    assert_eq!(row[1], "data");
    assert_eq!(row[row.len() - 3..], ["Lost", "<none>", &path]);
    assert!(agent.ok(&["get", "pvc", "data"]).contains("Lost"));
    assert!(agent.ok(&["describe", "pvc", "data"]).contains("Lost"));
    let removed = agent.ok(&["volume", "rm", "data", "--force"]);
    assert_eq!(removed, format!("removed {path}\n"));
    assert!(!folder.exists());
    agent.write("a.yaml", &pod("a", "data", ""));
    agent.wait_running("a");
}

#[test]
fn data_of_a_claim_outlives_pods_files_agents_and_is_removed_on_request_only() {
    let agent = Agent::start();
    agent.write(
        "a.yaml",
        &pod("a", "data", "  securityContext: {runAsUser: 1883}\n"),
    );
    wait_mount_failure(&agent, "\"v\" : persistentvolumeclaim \"data\" not found");
    // Another one waits outside, as the claim may be for one pod only.
    agent.write("b.yaml", &pod("b", "data", ""));
    agent.wait_pod("b", |pod| pod["status"]["reason"] == "VolumeBinding");
    agent.write("claim.yaml", CLAIM);
    agent.wait_running("a");
    agent.wait_running("b");
    agent.remove("b.yaml");
    agent.wait_gone("b");
    run(&agent, "a", "echo kept >/data/file; mkdir -m 700 /data/own");
    let pvc = cells(&agent, &["get", "pvc", "--no-headers"]);
    assert_eq!(
        pvc[0][..5],
        ["data", "Bound", "pvc-default-data", "1Gi", "RWO"]
    );
    let pv = cells(&agent, &["get", "pv", "--no-headers"]);
    assert_eq!(
        pv[0][..6],
        [
            "pvc-default-data",
            "1Gi",
            "RWO",
            "Retain",
            "Bound",
            "default/data"
        ]
    );
    let volume = cells(&agent, &["volume", "ls"]);
    assert_eq!(
        volume[1][..4],
        ["default", "data", "pvc-default-data", "1Gi"]
    );
    assert_eq!(volume[1][volume[1].len() - 2], "a");
    let in_use = agent.cli(&["volume", "rm", "--force", "data"]);
    let says = String::from_utf8_lossy(&in_use.stderr).into_owned();
    assert!(
        !in_use.status.success() && says.contains("in use by a"),
        "{says}"
    );

    // A new pod, a new agent and a new boot find the data as they were left.
    agent.remove("a.yaml");
    agent.wait_gone("a");
    agent.write(
        "b.yaml",
        &pod("b", "data", "  securityContext: {runAsUser: 1883}\n"),
    );
    agent.wait_running("b");
    assert_eq!(
        run(&agent, "b", "cat /data/file; stat -c %a /data/own"),
        "kept\n700\n"
    );
    agent.power_cut();
    agent.launch();
    agent.wait_running("b");
    assert_eq!(run(&agent, "b", "cat /data/file"), "kept\n");

    // Without a document the data stays.
    agent.remove("b.yaml");
    agent.remove("claim.yaml");
    agent.wait_gone("b");
    let pv = cells(&agent, &["get", "pv", "--no-headers"]);
    assert!(pv[0].contains(&"Released".to_owned()), "{pv:?}");
    let folder = agent.root.join("root/claims/default_data");
    assert!(folder.join("data/file").exists());
    assert_eq!(fs::metadata(&folder).expect("folder").mode() & 0o777, 0o700);
    let removed = agent.ok(&["volume", "rm", "--force", "data"]);
    assert!(removed.contains("claims/default_data/data"), "{removed}");
    assert!(!folder.exists());
    assert_eq!(
        fs::read_dir(agent.root.join("root/claims"))
            .expect("claims")
            .count(),
        0
    );
    let again = agent.cli(&["volume", "rm", "--force", "data"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("bound to nothing"));
}

#[test]
fn a_claim_is_bound_to_the_volume_that_fits_and_stays_so() {
    let agent = Agent::start();
    let place = agent.root.join("disk");
    let volume = |name: &str, size: &str, path: &str| {
        format!(
            "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: {size}}}\n  accessModes: [ReadWriteOnce]\n  storageClassName: manual\n  hostPath: {{path: {}/{path}}}\n",
            place.display()
        )
    };
    let claim = CLAIM.replace("spec:\n", "spec:\n  storageClassName: manual\n");
    let large = format!("{claim}{}", volume("large", "9Gi", "large"));
    agent.write("claim.yaml", &large);
    agent.write("a.yaml", &pod("a", "data", ""));
    agent.wait_running("a");
    run(&agent, "a", "echo here >/data/file");
    assert_eq!(
        fs::read_to_string(place.join("large/file")).expect("file"),
        "here\n"
    );
    // One that would fit better comes too late.
    agent.write(
        "claim.yaml",
        &format!("{large}{}", volume("small", "2Gi", "small")),
    );
    agent.write("b.yaml", &pod("b", "data", ""));
    agent.wait_running("b");
    assert_eq!(run(&agent, "b", "cat /data/file"), "here\n");
    let mut pv = cells(&agent, &["get", "pv", "--no-headers"]);
    pv.sort();
    assert_eq!((pv[0][0].as_str(), pv[0][4].as_str()), ("large", "Bound"));
    assert_eq!(
        (pv[1][0].as_str(), pv[1][4].as_str()),
        ("small", "Available")
    );
    // What cannot be bound says why, and what to write instead.
    let other = CLAIM
        .replace("{name: data}", "{name: other}")
        .replace("spec:\n", "spec:\n  storageClassName: \"\"\n");
    agent.write(
        "other.yaml",
        &format!("{other}---\n{}", pod("c", "other", "")),
    );
    let text =
        "persistentvolumeclaim \"other\" is not bound: no PersistentVolume fits by class \"\"";
    super::events::wait_event(&agent, |event| {
        event["message"]
            .as_str()
            .is_some_and(|message| message.contains(text))
    });
}

#[test]
fn files_of_a_claim_belong_to_the_group_of_the_pod() {
    let agent = Agent::start();
    agent.write("claim.yaml", CLAIM);
    let root = pod("a", "data", "");
    agent.write("a.yaml", &root);
    agent.wait_running("a");
    run(
        &agent,
        "a",
        "umask 077; mkdir /data/sub; echo x >/data/sub/file",
    );
    agent.remove("a.yaml");
    agent.wait_gone("a");
    let group = |policy: &str| {
        let context = format!(
            "  securityContext: {{runAsUser: 1883, fsGroup: 2000, fsGroupChangePolicy: {policy}}}\n"
        );
        pod("b", "data", &context)
    };
    agent.write("b.yaml", &group("Always"));
    agent.wait_running("b");
    let stat = "stat -c '%g %a' /data /data/sub /data/sub/file; cat /data/sub/file; echo y >/data/sub/file";
    assert_eq!(
        run(&agent, "b", stat),
        "2000 2777\n2000 2770\n2000 660\nx\n"
    );
    agent.remove("b.yaml");
    agent.wait_gone("b");
    // The directory itself has the group: its files are not looked at.
    let file = agent.root.join("root/claims/default_data/data/sub/file");
    std::os::unix::fs::chown(&file, None, Some(7)).expect("root");
    agent.write("b.yaml", &group("OnRootMismatch"));
    agent.wait_running("b");
    assert_eq!(run(&agent, "b", "stat -c %g /data/sub/file"), "7\n");
}

/// The claim `name` of this size.
pub(crate) fn sized(name: &str, size: &str) -> String {
    CLAIM
        .replace("{name: data}", &format!("{{name: {name}}}"))
        .replace("1Gi", size)
}

/// A pod that fills its claim with 3 MiB when it starts for the first time.
fn filler(name: &str, claim: &str) -> String {
    let script = format!(
        "[ -e /data/been ] || {{ touch /data/been; dd if=/dev/zero of=/data/big bs=1M count=3; }}; {SLEEP}"
    );
    let volumes =
        format!("  volumes:\n  - {{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}\n");
    let mounts = "    volumeMounts: [{name: v, mountPath: /data}]\n";
    shell_pod(name, &script, &volumes, mounts)
}

fn wait_held(agent: &Agent, pod: &str, reason: &str) -> String {
    let held = agent.wait_pod(pod, |pod| pod["status"]["reason"] == reason);
    let message = held["status"]["message"].as_str();
    message.unwrap_or_default().to_owned()
}

#[test]
fn a_claim_over_its_size_evicts_its_pods_and_holds_them_until_there_is_room() {
    let agent = Agent::start();
    for (pod, claim) in [("cured", "small"), ("grown", "tight")] {
        agent.write(&format!("{claim}.yaml"), &sized(claim, "2Mi"));
        agent.write(&format!("{pod}.yaml"), &filler(pod, claim));
    }
    for (pod, claim) in [("cured", "small"), ("grown", "tight")] {
        let message =
            format!("Usage of PersistentVolumeClaim \"{claim}\" exceeds its size \"2Mi\". ");
        super::events::wait_event(&agent, |event| {
            event["reason"] == "Evicted" && event["message"] == *message
        });
        let message = wait_held(&agent, pod, "ClaimOverSize");
        let begin = format!("persistentvolumeclaim \"{claim}\" takes more than its size \"2Mi\": ");
        assert!(message.starts_with(&begin), "{message}");
    }
    let volumes = cells(&agent, &["volume", "ls"]);
    let used = |claim: &str| volumes.iter().find(|row| row[1] == claim).expect("a row")[4].clone();
    assert!(used("small").starts_with('3'), "{volumes:?}");
    let pvc = cells(&agent, &["get", "pvc", "--no-headers"]);
    assert!(
        pvc.iter()
            .all(|row| row[3] == "2Mi" && row.last().expect("cells").starts_with('3')),
        "{pvc:?}"
    );
    // A bound claim does not get smaller.
    agent.write("tight.yaml", &sized("tight", "1Mi"));
    super::configuration::wait_rejected(&agent, "tight.yaml");
    let files = agent.ok(&["get", "files", "-o", "json"]);
    let refused = "tight.yaml: claim `default/tight`: spec.resources.requests.storage: Forbidden: field can not be less \
                   than status.capacity (2Mi)";
    assert!(files.contains(refused), "{files}");
    let pvc = cells(&agent, &["get", "pvc", "tight", "--no-headers"]);
    assert_eq!(pvc[0][3], "2Mi");
    // It gets larger at once, without any restart.
    let begin = std::time::Instant::now();
    agent.write("tight.yaml", &sized("tight", "5Mi"));
    agent.wait_running("grown");
    assert!(
        begin.elapsed() < std::time::Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    let pvc = cells(&agent, &["get", "pvc", "tight", "--no-headers"]);
    assert_eq!(pvc[0][3], "5Mi");
    assert_eq!(agent.pod("cured")["status"]["reason"], "ClaimOverSize");
    // It does not start for an agent restart.
    agent.kill_and_restart();
    assert!(wait_held(&agent, "cured", "ClaimOverSize").contains("\"2Mi\""));
    // Someone makes room.
    fs::remove_file(agent.root.join("root/claims/default_small/data/big")).expect("file");
    agent.wait_running("cured");
    let events = agent.ok(&[
        "get",
        "events",
        "--field-selector",
        "involvedObject.name=cured,reason=Evicted",
        "--no-headers",
    ]);
    assert_eq!(events.lines().count(), 1, "{events}");
    // The size is part of what lasts.
    agent.kill_and_restart();
    agent.write("tight.yaml", &sized("tight", "4Mi"));
    super::configuration::wait_rejected(&agent, "tight.yaml");
}

#[test]
fn only_one_pod_at_a_time_has_a_read_write_once_pod_claim_and_is_named_as_its_user() {
    let agent = Agent::start();
    let claim = CLAIM.replace("ReadWriteOnce]", "ReadWriteOncePod]");
    agent.write("claim.yaml", &claim);
    agent.write("a.yaml", &pod("a", "data", ""));
    agent.wait_running("a");
    agent.write("b.yaml", &pod("b", "data", ""));
    let message = wait_held(&agent, "b", "VolumeRestrictions");
    assert_eq!(
        message,
        "Predicate VolumeRestrictions failed: node has pod using PersistentVolumeClaim with the same \
         name and ReadWriteOncePod access mode (data is in use by pod default/a)"
    );
    // The one that has it keeps it over an agent restart.
    agent.kill_and_restart();
    agent.wait_running("a");
    wait_held(&agent, "b", "VolumeRestrictions");
    let pvc = cells(&agent, &["get", "pvc", "--no-headers"]);
    assert_eq!(pvc[0][4], "RWOP");
    let page = agent.ok(&["describe", "pvc", "data"]);
    for line in [
        "Volume:        pvc-default-data\n",
        "Capacity:      1Gi\nAccess Modes:  RWOP\n",
        "Used By:       a\n               b\nEvents:        <none>\n",
    ] {
        assert!(page.contains(line), "{page}");
    }
    let page = agent.ok(&["describe", "pv", "pvc-default-data"]);
    assert!(page.contains("Claim:           default/data\n"), "{page}");
    let place = agent.root.join("root/claims/default_data/data");
    assert!(
        page.contains(&format!("    Path:  {}\n", place.display())),
        "{page}"
    );
    agent.remove("a.yaml");
    agent.wait_running("b");
}

#[test]
fn the_group_of_a_pod_gets_local_volumes_and_no_host_paths() {
    let agent = Agent::start();
    let mut text = String::new();
    for kind in ["local", "hostPath"] {
        let (name, path) = (kind.to_lowercase(), agent.root.join(kind));
        fs::create_dir(&path).expect("folder");
        fs::write(path.join("file"), "x").expect("file");
        text += &format!(
            "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  capacity: {{storage: 1Gi}}\n  accessModes: [ReadWriteOnce]\n  {kind}: {{path: {}}}\n---\n{}",
            path.display(),
            CLAIM
                .replace("{name: data}", &format!("{{name: {name}}}"))
                .replace("spec:\n", &format!("spec:\n  volumeName: {name}\n")),
        );
    }
    agent.write("volumes.yaml", &text);
    let context = "  securityContext: {runAsUser: 1883, fsGroup: 2000}\n";
    for (claim, expected) in [("local", "2000\n2000\n"), ("hostpath", "0\n0\n")] {
        agent.write("a.yaml", &pod(claim, claim, context));
        agent.wait_running(claim);
        assert_eq!(
            run(&agent, claim, "stat -c %g /data /data/file"),
            expected,
            "{claim}"
        );
    }
    let files = cells(&agent, &["get", "files", "--no-headers"]);
    let documents = |file: &str| {
        let row = files
            .iter()
            .find(|row| row[0].ends_with(file))
            .expect("a row");
        row[3].clone()
    };
    assert_eq!(
        (documents("volumes.yaml"), documents("a.yaml")),
        ("4".to_owned(), "1".to_owned())
    );
    let wide = agent.ok(&["get", "files", "-o", "wide"]);
    assert!(
        wide.contains("2 PersistentVolume, 2 PersistentVolumeClaim"),
        "{wide}"
    );
}
