//! `coracle create`: what it prints passes `coracle validate`, and wrong command lines are answered.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{coracle, text};

/// The manifest that a command line makes.
fn made(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let out = coracle(&words);
    assert!(out.status.success(), "{line}: {}", text(&out.stderr));
    text(&out.stdout)
}

fn refused(line: &str) -> (Option<i32>, String) {
    let words: Vec<&str> = line.split(' ').collect();
    let out = coracle(&words);
    assert!(!out.status.success(), "{line}: {}", text(&out.stdout));
    (out.status.code(), text(&out.stderr))
}

fn validate(manifest: &str) -> String {
    let mut process = Command::new(env!("CARGO_BIN_EXE_coracle"))
        .args(["validate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(manifest.as_bytes()).unwrap();
    drop(stdin);
    let out = process.wait_with_output().unwrap();
    assert!(out.status.success(), "{manifest}\n{}", text(&out.stdout));
    text(&out.stdout)
}

/// A folder with files for ConfigMaps and Secrets.
fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("coracle-create-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (file, content) in [
        ("app.conf", b"fast = yes\n".as_slice()),
        ("raw", b"\xff\xfe".as_slice()),
        ("app.env", b"# comment\n\nA=1\nB=x=y\n".as_slice()),
        ("site.crt", b"-----BEGIN CERTIFICATE-----\n".as_slice()),
        ("site.key", b"-----BEGIN PRIVATE KEY-----\n".as_slice()),
    ] {
        std::fs::write(folder.join(file), content).unwrap();
    }
    folder
}

#[test]
fn a_deployment_is_printed_as_kubectl_prints_it() {
    let line = "create deployment web --image docker.io/library/nginx:1.27 --port 80 --replicas 2 --dry-run=client -o yaml";
    let expected = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  labels:
    app: web
  name: web
spec:
  replicas: 2
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
      containers:
      - image: docker.io/library/nginx:1.27
        name: nginx
        ports:
        - containerPort: 80
";
    assert_eq!(made(line), expected);
}

#[test]
fn everything_that_is_printed_is_valid() {
    let folder = folder("valid");
    let at = folder.display();
    for (line, ok) in [
        ("pod web --image nginx --env A=1 --restart Never".to_owned(), "default/web"),
        ("po web -n shop --image nginx -l tier=front,team=a -- sleep 9".to_owned(), "shop/web"),
        ("deploy web --image a --image b:1".to_owned(), "deployment default/web"),
        ("statefulset db --image postgres --replicas 3".to_owned(), "statefulset default/db"),
        ("daemonset agent --image agent".to_owned(), "daemonset default/agent"),
        ("job hello --image busybox -- echo hello".to_owned(), "job default/hello"),
        (
            format!("configmap app --from-file {at}/app.conf --from-file r={at}/raw --from-literal mode=fast"),
            "configmap default/app",
        ),
        (format!("cm all --from-file {at}"), "configmap default/all"),
        (format!("cm vars --from-env-file {at}/app.env"), "configmap default/vars"),
        ("secret generic db --from-literal password=a=b".to_owned(), "secret default/db"),
        (format!("secret tls site --cert {at}/site.crt --key {at}/site.key"), "secret default/site"),
        (
            "secret docker-registry login --docker-server r.lan --docker-username u --docker-password p".to_owned(),
            "secret default/login",
        ),
        ("service clusterip web --tcp 80:8080".to_owned(), "service default/web"),
        ("svc clusterip db --clusterip None".to_owned(), "service default/db"),
        ("service nodeport web --tcp 80:http --node-port 30080".to_owned(), "service default/web"),
        ("service loadbalancer web --tcp 80,443:8443".to_owned(), "service default/web"),
        ("service externalname db --external-name db.lan".to_owned(), "service default/db"),
        ("pvc data --size 1Gi".to_owned(), "persistentvolumeclaim default/data"),
        ("namespace shop".to_owned(), "namespace shop"),
        ("sa robot".to_owned(), "serviceaccount default/robot"),
        ("priorityclass high --value 1000 --description x --global-default".to_owned(), "priorityclass high"),
    ] {
        // The words after `--` are the container's.
        let line = match line.split_once(" -- ") {
            Some((line, command)) => format!("create {line} -o yaml -- {command}"),
            None => format!("create {line} --dry-run=client"),
        };
        let shown = validate(&made(&line));
        assert!(shown.contains(ok), "{line}: {shown}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn content_of_files_and_literals_is_what_they_hold() {
    let folder = folder("content");
    let at = folder.display();
    let line = format!(
        "create configmap app --from-file {at}/app.conf --from-file r={at}/raw --from-env-file {at}/app.env -o json"
    );
    let map: Value = serde_json::from_str(&made(&line)).unwrap();
    assert_eq!(map["data"]["app.conf"], "fast = yes\n");
    assert_eq!(
        (&map["data"]["A"], &map["data"]["B"]),
        (&"1".into(), &"x=y".into())
    );
    assert_eq!(map["binaryData"]["r"], "//4=");
    // Of a directory the regular files, as kubectl has it.
    std::fs::create_dir(folder.join("sub")).unwrap();
    std::fs::write(folder.join("sub/app.conf"), "other\n").unwrap();
    std::os::unix::fs::symlink(folder.join("raw"), folder.join("link")).unwrap();
    let at = format!("--from-file={at}");
    let out = coracle(&["create", "configmap", "app", &at, "-o", "json"]);
    let map: Value = serde_json::from_slice(&out.stdout).unwrap();
    let keys: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["app.conf", "app.env", "site.crt", "site.key"]);
    assert_eq!(map["binaryData"].as_object().unwrap().len(), 1, "{map}");
    let said = text(&out.stderr);
    assert!(said.contains("/link` is left out"), "{said}");
    let line = "create secret docker-registry login --docker-server r.lan --docker-username u --docker-password p -o json";
    let secret: Value = serde_json::from_str(&made(line)).unwrap();
    assert_eq!(secret["type"], "kubernetes.io/dockerconfigjson");
    // {"auths":{"r.lan":{"auth":"dTpw","password":"p","username":"u"}}}
    assert_eq!(
        secret["data"][".dockerconfigjson"],
        "eyJhdXRocyI6eyJyLmxhbiI6eyJhdXRoIjoiZFRwdyIsInBhc3N3b3JkIjoicCIsInVzZXJuYW1lIjoidSJ9fX0="
    );
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn without_a_format_it_says_what_to_do() {
    let (code, error) = refused("create deployment web --image nginx");
    assert_eq!(code, Some(2));
    assert!(error.contains("there is no API to create it in"), "{error}");
    assert!(
        error.contains("--dry-run=client -o yaml > /") && error.contains("/web.yaml"),
        "{error}"
    );
    assert!(error.contains("--save"), "{error}");
}

#[test]
fn wrong_command_lines_are_answered() {
    for (line, words) in [
        (
            "create deploymnt web --image x",
            "did you mean `deployment`?",
        ),
        ("create cheese x", "`coracle create --help` lists the kinds"),
        (
            "create deployment --image x",
            "`coracle create deployment NAME`",
        ),
        (
            "create secret db",
            "types are generic, tls, docker-registry",
        ),
        ("create secret generik db", "did you mean `generic`?"),
        ("create deployment web", "--image is needed"),
        ("create job x --from pod/y", "write it as `cronjob/NAME`"),
        (
            "create job x --from cronjob/y --image z",
            "--image does not go with --from",
        ),
        (
            "create pod x --from cronjob/y",
            "--from means nothing for a pod",
        ),
        (
            "create deployment web --image x --schedule @daily",
            "it takes --image",
        ),
        (
            "create pod web --image x --image y -- sh",
            "one --image only",
        ),
        ("create cm x --from-literal a", "is not like KEY=VALUE"),
        (
            "create cm x --from-literal a=1 --from-literal a=2",
            "given twice",
        ),
        (
            "create cm x --from-file /nowhere",
            "could not read `/nowhere`",
        ),
        (
            "create secret tls x --cert /etc/hostname --key /etc/hostname",
            "CERTIFICATE",
        ),
        (
            "create pod Web --image x -o yaml",
            "metadata.name: Invalid value",
        ),
        ("create service clusterip x", "--tcp is needed"),
        ("create service clusterip x --tcp http", "is not like 80"),
        ("create namespace a -n b", "is in no namespace"),
        ("create -f web.yaml", "`coracle create` makes manifests"),
        ("run web --image nginx", "`coracle create pod NAME"),
    ] {
        let (_, error) = refused(line);
        assert!(error.contains(words), "{line}: {error}");
    }
}
