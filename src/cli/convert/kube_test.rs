//! Manifests that podman prints or plays.

use super::convert_test::{converted, fixtures, whole};
use super::{Given, Output, validate};

fn manifests(text: &str) -> Output {
    let files = vec![("/somewhere/web.yaml".to_owned(), text.to_owned())];
    let done = converted(&Given::Files(files), &fixtures().join("none"), &[]);
    done.unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// As `podman kube generate` prints it for a container with a named volume, a bind mount and all rights.
const PRINTED: &str = r#"# Save the output of this file and use kubectl create -f to import
# it into Kubernetes.
#
# Created with podman-4.9.3
apiVersion: v1
kind: Pod
metadata:
  annotations:
    bind-mount-options:/home/pi/My.Data: z
    io.kubernetes.cri-o.SandboxID/My_web: 0a1b
    io.podman.annotations.autoremove/My_web: "FALSE"
    io.podman.annotations.seccomp/My_web: unconfined
    io.podman.annotations.volumes-from/My_web: other
    odd key: kept nowhere
    example.com/right: stays
  creationTimestamp: "2026-01-01T00:00:00Z"
  labels:
    app: web_pod
  name: web_pod
spec:
  containers:
  - args:
    - nginx
    - -g
    - daemon off;
    env:
    - name: NUMBER
      value: "010"
    image: docker.io/library/nginx:latest
    name: My_web
    ports:
    - containerPort: 80
      hostPort: 8080
    securityContext:
      capabilities:
        drop:
        - CAP_MKNOD
      privileged: true
      procMount: Unmasked
    volumeMounts:
    - mountPath: /data
      name: home-pi-My.Data-host-0
    - mountPath: /etc/nginx:ro,z
      name: home-pi-my-data-host-0
    - mountPath: /var/lib
      name: Big_data-pvc
  hostname: web_pod
  volumes:
  - hostPath:
      path: /home/pi/My.Data
      type: Directory
    name: home-pi-My.Data-host-0
  - hostPath:
      path: /home/pi/my/data
    name: home-pi-my-data-host-0
  - hostPath:
      path: tmpfs
      type: DirectoryOrCreate
    name: tmpfs-host-1
  - name: Big_data-pvc
    persistentVolumeClaim:
      claimName: Big_data
status: {}
"#;

#[test]
fn what_podman_prints_becomes_what_kubernetes_takes() {
    let output = manifests(PRINTED);
    let text = whole(&output);
    assert_eq!(output.texts()[0].0, "web", "the file keeps its name");
    for expected in [
        "kind: PersistentVolumeClaim\nmetadata:\n  name: big-data\n",
        "its data is to be copied",
        "  name: web-pod\n",
        "  hostname: web-pod\n",
        "    name: my-web\n",
        "    - mountPath: /data\n      name: home-pi-my-data-host-0\n",
        "    - mountPath: /etc/nginx\n      name: home-pi-my-data-host-0-2\n      readOnly: true\n",
        "  - name: tmpfs-host-1\n    emptyDir:\n      medium: Memory\n",
        "      seccompProfile:\n        type: Unconfined\n",
        "not carried over: `io.podman.annotations.volumes-from/My_web: other`",
        "      claimName: big-data\n",
        "      value: \"010\"\n",
        "    example.com/right: stays\n",
        "# kube: Pod web_pod: not carried over: the annotation `odd key`",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    for gone in [
        "procMount",
        "autoremove",
        "cri-o",
        "bind-mount",
        "status",
        "creationTimestamp",
    ] {
        assert!(!text.contains(gone), "{gone}\n{text}");
    }
    let again = manifests(&text);
    assert_eq!(whole(&again), text, "nothing is left to be changed");
    assert!(again.remarks.is_empty());
}

#[test]
fn manifests_that_are_right_stay_as_they_are_written() {
    let text = "# mine\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n";
    let output = manifests(text);
    assert_eq!(output.texts(), [("web".to_owned(), text.to_owned())]);
    assert!(output.remarks.is_empty());
}

#[test]
fn pods_of_workload_documents_are_changed_too() {
    let pod = "{containers: [{name: A_b, image: i, securityContext: {procMount: Unmasked}}], restartPolicy: Never}";
    for (api, kind, spec) in [
        (
            "apps/v1",
            "DaemonSet",
            format!(
                "{{selector: {{matchLabels: {{a: b}}}}, template: {{metadata: {{labels: {{a: b}}}}, spec: {}}}}}",
                pod.replace("Never", "Always")
            ),
        ),
        ("batch/v1", "Job", format!("{{template: {{spec: {pod}}}}}")),
        (
            "batch/v1",
            "CronJob",
            format!(
                "{{schedule: '1 1 * * *', jobTemplate: {{spec: {{template: {{spec: {pod}}}}}}}}}"
            ),
        ),
    ] {
        let text =
            format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n");
        let text = whole(&manifests(&text));
        assert!(
            text.contains("name: a-b\n") && text.contains("needs `hostUsers: false`"),
            "{text}"
        );
    }
}

#[test]
fn a_volume_of_podman_gets_a_size() {
    let text = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a, annotations: {volume.podman.io/driver: local}}\nspec: {}\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}], volumes: [{name: v, persistentVolumeClaim: {claimName: a}}]}\n";
    let text = whole(&manifests(text));
    assert!(text.contains("storage: 10Gi\n"), "{text}");
    assert_eq!(
        text.matches("kind: PersistentVolumeClaim").count(),
        1,
        "{text}"
    );
}

#[test]
fn who_validates_what_podman_printed_is_told_of_the_conversion() {
    let told = |text: &str| {
        let report = validate::validate_bytes("web.yaml", text.as_bytes());
        assert!(!report.errors.is_empty());
        report
            .warnings
            .iter()
            .any(|w| w.contains("coracle convert web.yaml"))
    };
    assert!(told(PRINTED));
    assert!(!told(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: A}\nspec: {containers: [{name: c, image: i}]}"
    ));
}
