//! Services among the files of the manifest directory.

use std::fs;
use std::path::PathBuf;

use super::Manifests;
use super::tests::{Folder, errors, scan_all};
use crate::layout::Layout;
use crate::node::sources;
use crate::spec::convert::ConvertContext;

fn service(folder: &Folder, file: &str, name: &str, spec: &str) -> PathBuf {
    let path = folder.0.join(file);
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{selector: {{a: b}}, {spec}}}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

/// Name, first port and its port on the node.
fn services(manifests: &Manifests) -> Vec<(String, u16, Option<u16>)> {
    let services = manifests.desired().services.into_values();
    services
        .map(|s| {
            (
                s.key.name.to_string(),
                s.ports[0].port,
                s.ports[0].node_port,
            )
        })
        .collect()
}

#[test]
fn a_broken_edit_leaves_the_service_and_removing_the_file_removes_it() {
    let folder = Folder::new();
    let path = service(&folder, "s.yaml", "web", "ports: [{port: 80}]");
    let mut manifests = folder.manifests();
    scan_all(&mut manifests);
    assert_eq!(services(&manifests), [("web".into(), 80, None)]);
    fs::write(&path, "kind: Service").unwrap();
    scan_all(&mut manifests);
    assert_eq!(services(&manifests), [("web".into(), 80, None)]);
    service(&folder, "s.yaml", "web", "ports: [{port: 8080}]");
    scan_all(&mut manifests);
    assert_eq!(services(&manifests), [("web".into(), 8080, None)]);
    fs::remove_file(&path).unwrap();
    scan_all(&mut manifests);
    assert_eq!(services(&manifests), []);
}

#[test]
fn services_that_want_the_same_are_a_conflict_that_names_both_files() {
    for (sentence, first, second, what) in [
        (
            "name",
            ("web", "ports: [{port: 80}]"),
            ("web", "ports: [{port: 81}]"),
            "service `default/web`",
        ),
        (
            "node port",
            ("a", "type: NodePort, ports: [{port: 80, nodePort: 30080}]"),
            ("b", "type: NodePort, ports: [{port: 81, nodePort: 30080}]"),
            "node port 30080 of service `default/b` (also of service `default/a`)",
        ),
        (
            "address",
            ("a", "clusterIP: 10.96.0.7, ports: [{port: 80}]"),
            ("b", "clusterIP: 10.96.0.7, ports: [{port: 81}]"),
            "cluster IP 10.96.0.7 of service `default/b` (also of service `default/a`)",
        ),
    ] {
        let folder = Folder::new();
        service(&folder, "1.yaml", first.0, first.1);
        let mut manifests = folder.manifests();
        scan_all(&mut manifests);
        service(&folder, "2.yaml", second.0, second.1);
        scan_all(&mut manifests);
        assert_eq!(services(&manifests).len(), 1, "{sentence}");
        let expected = format!("2.yaml: {what} is already defined by `1.yaml`");
        assert_eq!(errors(&manifests), [expected], "{sentence}");
        fs::remove_file(folder.0.join("1.yaml")).unwrap();
        scan_all(&mut manifests);
        assert_eq!(services(&manifests)[0].1, 81, "{sentence}");
    }
}

#[test]
fn services_of_a_former_agent_stay_while_their_file_is_broken_or_away() {
    let (folder, run) = (Folder::new(), Folder::new());
    let layout = Layout {
        root: run.0.clone(),
        run_dir: run.0.clone(),
        log_dir: run.0.clone(),
    };
    let path = service(
        &folder,
        "s.yaml",
        "web",
        "type: NodePort, ports: [{port: 80}]",
    );
    let mut first = folder.manifests();
    scan_all(&mut first);
    sources::write(&layout, &first);
    let before = services(&first);
    assert!(before[0].2.is_some());

    fs::write(&path, "broken: [").unwrap();
    let inherited = sources::inherited(&layout, vec![], &ConvertContext::of("n"));
    let mut second = Manifests::new(folder.0.clone(), "n".into(), inherited);
    scan_all(&mut second);
    assert_eq!(services(&second), before, "broken");

    let inherited = sources::inherited(&layout, vec![], &ConvertContext::of("n"));
    let mut second = Manifests::new(folder.0.join("away"), "n".into(), inherited);
    scan_all(&mut second);
    assert_eq!(services(&second), before, "away");

    fs::remove_file(&path).unwrap();
    let inherited = sources::inherited(&layout, vec![], &ConvertContext::of("n"));
    let mut second = Manifests::new(folder.0.clone(), "n".into(), inherited);
    scan_all(&mut second);
    assert_eq!(services(&second), [], "removed meanwhile");
}

/// Documents of all kinds that stand for pods.
const WORKLOADS: &str = "apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {b: '1', a: '2'}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {z: x, app: web}}
    spec:
      priorityClassName: system-node-critical
      containers: [{name: c, image: x, env: [{name: B, value: b}, {name: A, value: a}]}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: x, volumeMounts: [{name: data, mountPath: /d}]}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: ds, namespace: other}
spec:
  selector: {matchLabels: {app: ds}}
  template: {metadata: {labels: {app: ds}}, spec: {containers: [{name: c, image: x}]}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec: {completions: 3, parallelism: 2, completionMode: Indexed, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: cron}
spec: {schedule: '@hourly', jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}}}
";

#[test]
fn documents_that_stand_for_pods_and_their_pods_are_the_same_after_an_agent_restart_with_a_broken_file()
 {
    let (folder, run) = (Folder::new(), Folder::new());
    let layout = Layout {
        root: run.0.clone(),
        run_dir: run.0.clone(),
        log_dir: run.0.clone(),
    };
    let path = folder.0.join("w.yaml");
    fs::write(&path, WORKLOADS).unwrap();
    let mut first = folder.manifests();
    scan_all(&mut first);
    sources::write(&layout, &first);
    let before = first.desired();
    assert_eq!((before.workloads.len(), before.pods.len()), (5, 6));

    fs::write(&path, format!("{WORKLOADS}broken: [")).unwrap();
    let inherited = sources::inherited(&layout, vec![], &ConvertContext::of("n"));
    let mut second = Manifests::new(folder.0.clone(), "n".into(), inherited);
    scan_all(&mut second);
    assert_eq!(errors(&second).len(), 1);
    let after = second.desired();
    for (key, workload) in before.workloads.iter() {
        let after = after.workloads.get(key).unwrap();
        assert_eq!(after.edition, workload.edition, "{key}");
        assert!(after == workload, "{key}");
    }
    assert!(after.pods == before.pods);
}
