//! StatefulSets: names, claims and files of their own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::demands::wait_until;
use super::rollouts::wait_good;
use super::workloads::{SLEEP, agent, document, pods, wait_status};

#[test]
fn the_claims_of_a_stateful_set_end_as_its_policy_says() {
    let agent = agent();
    let mount = "        volumeMounts: [{name: files, mountPath: /files}]\n";
    let version = |replicas: u64, policy: &str| {
        let spec = format!(
            "  replicas: {replicas}\n  persistentVolumeClaimRetentionPolicy: {policy}\n  volumeClaimTemplates:\n  - \
             metadata: {{name: files}}\n    spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: \
             1Mi}}}}}}\n"
        );
        document("StatefulSet", "db", SLEEP, &spec, mount)
    };
    let wait = |replicas: u64| {
        wait_status(&agent, "statefulsets", "db", |status| {
            status["readyReplicas"] == replicas && status["replicas"] == replicas
        })
    };
    let folder = |ordinal: u64| {
        agent
            .root
            .join(format!("root/claims/default_files-db-{ordinal}"))
    };
    let owned = |ordinal: u64| {
        let record = std::fs::read(folder(ordinal).join("claim.json")).unwrap_or_default();
        let record: Value = serde_json::from_slice(&record).unwrap_or_default();
        record["owner"]["set"] == "db"
    };
    agent.write(
        "db.yaml",
        &version(2, "{whenScaled: Delete, whenDeleted: Delete}"),
    );
    wait(2);
    wait_until("the claims have their owner", || owned(0) && owned(1));
    // One pod fewer, while the agent is killed: its claim ends, and no other.
    agent.write(
        "db.yaml",
        &version(1, "{whenScaled: Delete, whenDeleted: Delete}"),
    );
    agent.kill_and_restart();
    agent.wait_gone("db-1");
    wait_until("its claim ends", || !folder(1).exists());
    assert!(folder(0).join("data").exists());
    // A policy that keeps them counts from the next edit on.
    agent.write("db.yaml", &version(1, "{whenDeleted: Retain}"));
    wait_until("its claim is kept", || !owned(0));
    agent.remove("db.yaml");
    agent.wait_gone("db-0");
    agent.write("db.yaml", &version(1, "{whenDeleted: Delete}"));
    wait(1);
    wait_until("the claim has its owner again", || owned(0));
    agent.remove("db.yaml");
    agent.wait_gone("db-0");
    wait_until("the last claim ends", || !folder(0).exists());
    // Shown once the removal is over.
    wait_until("the claims are not shown", || {
        !agent.ok(&["get", "pv,pvc"]).contains("files-db")
    });
}

#[test]
fn a_stateful_set_has_names_and_claims_of_its_own_and_is_updated_in_place() {
    let agent = agent();
    let claims = "  serviceName: db\n  volumeClaimTemplates:\n  - metadata: {name: files}\n    spec: {accessModes: \
                  [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n";
    let mount = "        volumeMounts: [{name: files, mountPath: /files}]\n";
    let version = |replicas: u64, letter: &str| {
        let spec = format!("  replicas: {replicas}\n  minReadySeconds: 0\n{claims}");
        let env = format!("{mount}        env: [{{name: V, value: {letter}}}]\n");
        document(
            "StatefulSet",
            "db",
            &format!("hostname >> /files/said; {SLEEP}"),
            &spec,
            &env,
        )
    };
    let wait = |replicas: u64| {
        wait_status(&agent, "statefulsets", "db", |status| {
            let all = ["replicas", "updatedReplicas", "readyReplicas"];
            all.iter().all(|field| status[field] == replicas)
        })
    };
    agent.write("db.yaml", &version(2, "a"));
    wait(2);
    let names = BTreeSet::from(["db-0".to_owned(), "db-1".to_owned()]);
    assert_eq!(pods(&agent, "db"), names);
    let table = agent.ok(&["get", "sts,pvc"]);
    assert!(table.contains("statefulset.apps/db   2/2"), "{table}");
    assert!(
        table.contains("persistentvolumeclaim/files-db-1"),
        "{table}"
    );
    assert_eq!(
        agent.ok(&["exec", "db-1", "--", "cat", "/files/said"]),
        "db-1\n"
    );
    // Another template: the same names, the same files.
    agent.write("db.yaml", &version(2, "b"));
    for pod in ["db-1", "db-0"] {
        agent.wait_pod(pod, |pod| {
            pod["spec"]["containers"][0]["env"][0]["value"] == "b"
                && pod["status"]["conditions"].as_array().is_some_and(|all| {
                    all.iter()
                        .any(|c| c["type"] == "Ready" && c["status"] == "True")
                })
        });
    }
    wait(2);
    assert_eq!(
        agent.ok(&["exec", "db-1", "--", "cat", "/files/said"]),
        "db-1\ndb-1\n"
    );
    // Fewer: the highest number goes; its claim's files stay for the day it comes back.
    agent.write("db.yaml", &version(1, "b"));
    agent.wait_gone("db-1");
    wait(1);
    agent.write("db.yaml", &version(2, "b"));
    wait(2);
    let said = agent.ok(&["exec", "db-1", "--", "cat", "/files/said"]);
    assert_eq!(said, "db-1\ndb-1\ndb-1\n");
}

#[test]
fn a_claim_with_a_document_in_another_file_is_the_pods() {
    let agent = agent();
    let spec = "  replicas: 2\n  volumeClaimTemplates:\n  - metadata: {name: files}\n    spec: {accessModes: \
                [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n";
    let mount = "        volumeMounts: [{name: files, mountPath: /files}]\n";
    agent.write(
        "db.yaml",
        &document("StatefulSet", "db", SLEEP, spec, mount),
    );
    agent.write(
        "claim.yaml",
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: files-db-1}\nspec: {accessModes: \
         [ReadWriteOnce], resources: {requests: {storage: 5Mi}}}\n",
    );
    wait_status(&agent, "statefulsets", "db", |status| {
        status["readyReplicas"] == 2
    });
    let sizes = || {
        let claims: Value = serde_json::from_str(&agent.ok(&["get", "pvc", "-o", "json"])).unwrap();
        let size = |claim: &Value| {
            let asked = &claim["spec"]["resources"]["requests"]["storage"];
            format!("{} {asked}", claim["metadata"]["name"])
        };
        let mut all: Vec<_> = claims["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(size)
            .collect();
        all.sort();
        all
    };
    wait_until("each claim has its size", || {
        sizes() == ["\"files-db-0\" \"1Mi\"", "\"files-db-1\" \"5Mi\""]
    });
    agent.kill_and_restart();
    let files = agent.ok(&["get", "files"]);
    assert!(!files.contains("already defined"), "{files}");
    agent.ok(&["exec", "db-1", "--", "touch", "/files/kept"]);
    agent.remove("db.yaml");
    agent.wait_gone("db-1");
    let kept = agent.root.join("root/claims/default_files-db-1/data/kept");
    assert!(kept.exists());
}

#[test]
fn volumes_of_pods_that_come_later_outlive_a_power_cut() {
    let agent = agent();
    let volumes = "        volumeMounts: [{name: d, mountPath: /d}]\n      volumes: [{name: d, emptyDir: {}}]\n";
    let script = "echo x >> /d/n; exec sleep 1000";
    let text = document("StatefulSet", "web", script, "  replicas: 2\n", volumes);
    agent.write("web.yaml", &text);
    let all = |status: &Value| status["availableReplicas"] == 2;
    wait_status(&agent, "statefulsets", "web", all);
    // Its successor has a UID of its own.
    agent.ok(&["delete", "pod", "web-1"]);
    wait_until("the successor of web-1 has written", || {
        agent.cli(&["exec", "web-1", "--", "cat", "/d/n"]).stdout == b"x\n"
    });
    agent.power_cut();
    agent.launch();
    wait_status(&agent, "statefulsets", "web", all);
    for pod in ["web-0", "web-1"] {
        let written = agent.ok(&["exec", pod, "--", "cat", "/d/n"]);
        assert_eq!(written, "x\nx\n", "{pod}");
    }
}

#[test]
fn pods_below_the_partition_keep_their_template_over_power_cuts() {
    let agent = agent();
    let volumes = "        volumeMounts: [{name: d, mountPath: /d}]\n      volumes: [{name: d, emptyDir: {}}]\n";
    let text_of = |version: &str, replicas: u64| {
        let spec = format!(
            "  replicas: {replicas}\n  updateStrategy: {{rollingUpdate: {{partition: 1}}}}\n"
        );
        let script = format!("echo {version} >> /d/n; {SLEEP}");
        document("StatefulSet", "web", &script, &spec, volumes)
    };
    let text = |version: &str| text_of(version, 3);
    let wait = |updated: u64| {
        wait_status(&agent, "statefulsets", "web", |status| {
            status["availableReplicas"] == 3
                && status["updatedReplicas"].as_u64().unwrap_or(0) == updated
        })
    };
    agent.write("web.yaml", &text("old"));
    wait(3);
    wait_good(&agent, "statefulset/web");
    agent.write("web.yaml", &text("new"));
    wait(2);
    let written = |pod: &str| agent.ok(&["exec", pod, "--", "cat", "/d/n"]);
    for times in 1..3 {
        agent.power_cut();
        agent.launch();
        wait(2);
        assert_eq!(written("web-0"), "old\n".repeat(times + 1));
        for pod in ["web-1", "web-2"] {
            assert_eq!(written(pod), "new\n".repeat(times + 1), "{pod}");
        }
    }
    // Its successor has the former template as well.
    agent.ok(&["delete", "pod", "web-0"]);
    wait(2);
    assert_eq!(written("web-0"), "old\n");
    // A time without pods ends no rollout.
    agent.write("web.yaml", &text_of("new", 0));
    wait_status(&agent, "statefulsets", "web", |status| {
        status["replicas"] == 0
    });
    agent.write("web.yaml", &text("new"));
    wait(2);
    assert_eq!(
        ["web-0", "web-1", "web-2"].map(written),
        ["old\n", "new\n", "new\n"]
    );
}

#[test]
fn a_probe_that_fails_takes_one_pod_out_of_service() {
    let agent = agent();
    let text = |more: &str, probe: &str| {
        let spec = format!("  replicas: 3\n{more}");
        document("StatefulSet", "web", SLEEP, &spec, probe)
    };
    let updated = |updated: u64, ready: u64| {
        wait_status(&agent, "statefulsets", "web", |status| {
            status["updatedReplicas"].as_u64().unwrap_or(0) == updated
                && status["readyReplicas"].as_u64().unwrap_or(0) == ready
        })
    };
    let probed = || -> Vec<String> {
        let list = agent.ok(&["get", "pods", "-l", "app=web", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).expect("JSON");
        let pods = list["items"].as_array().expect("a list").iter();
        let probed = pods.filter(|pod| !pod["spec"]["containers"][0]["readinessProbe"].is_null());
        probed
            .map(|pod| pod["metadata"]["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    let first = |agent: &super::common::Agent| {
        agent.ok(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"])
    };
    agent.write("web.yaml", &text("", ""));
    updated(3, 3);
    let before = first(&agent);
    let probe = |command: &str| {
        format!(
            "        readinessProbe: {{exec: {{command: [{command}]}}, periodSeconds: 1, failureThreshold: 1}}\n"
        )
    };
    // One that nothing passes.
    agent.write("web.yaml", &text("", &probe("\"false\"")));
    updated(1, 2);
    for _ in 0..2 {
        agent.ok(&[
            "wait",
            "pod/web-2",
            "--for=condition=Ready=false",
            "--timeout=1m",
        ]);
        assert_eq!(probed(), ["web-2"]);
        agent.kill_and_restart();
        updated(1, 2);
    }
    // Another one that they pass: all get it, but for those below the partition.
    let more = "  updateStrategy: {rollingUpdate: {partition: 1}}\n";
    agent.write("web.yaml", &text(more, &probe("\"true\"")));
    updated(2, 3);
    assert_eq!(probed(), ["web-1", "web-2"]);
    agent.write("web.yaml", &text("", &probe("\"true\"")));
    updated(3, 3);
    assert_eq!(probed().len(), 3);
    assert_eq!(first(&agent), before);
}

#[test]
fn the_status_of_a_stateful_set_has_its_pods_until_they_are_gone() {
    let agent = agent();
    let text = |replicas: u64| {
        let spec = format!("  replicas: {replicas}\n");
        let script = "trap 'sleep 1; exit 0' TERM; sleep 1000 & wait";
        document("StatefulSet", "slow", script, &spec, "")
    };
    let wait = |wanted: [u64; 3]| {
        wait_status(&agent, "statefulsets", "slow", |status| {
            ["replicas", "readyReplicas", "updatedReplicas"].map(|field| status[field].as_u64())
                == wanted.map(Some)
        })
    };
    agent.write("slow.yaml", &text(1));
    let set = wait([1, 1, 1]);
    let revision = set["status"]["updateRevision"].as_str().expect("one");
    let label = format!("controller-revision-hash={revision}");
    let of_revision = || agent.ok(&["get", "pods", "-l", &label, "-o", "name"]);
    assert_eq!(of_revision(), "pod/slow-0\n");
    agent.write("slow.yaml", &text(0));
    // It terminates, and its container is still ready.
    wait([1, 1, 0]);
    wait([0, 0, 0]);
    assert_eq!(of_revision(), "");
}
