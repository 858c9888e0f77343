//! The files in `examples/`, with the real programs that their images have from Debian packages.

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::pty::openpty;
use nix::unistd::ttyname;

use super::*;
use common::archives::Image;

/// An agent that has these images.
fn agent(images: &[Image]) -> Agent {
    let agent = Agent::start_with(&[]);
    for image in images {
        let archive = image.archive().to_str().expect("utf-8");
        agent.ok(&["image", "import", archive]);
    }
    agent
}

/// A file of an example. Its images are those of the tests.
fn example(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = fs::read_to_string(folder.join(file)).expect("it is in the repository");
    text.replace(":example", ":test")
}

fn start(agent: &Agent, folder: &str, names: &[&str]) {
    for name in names {
        agent.write(
            &format!("{name}.yaml"),
            &example(&format!("{folder}/{name}.yaml")),
        );
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// What the database has, as CSV.
fn readings(agent: &Agent, topic: &str) -> String {
    let query =
        format!("q=SELECT+value+FROM+reading+WHERE+topic='sensors/{topic}'+ORDER+BY+time+LIMIT+1");
    let url = format!("http://127.0.0.1:8086/query?db=site&{query}");
    let asked = [
        "exec",
        "database",
        "--",
        "wget",
        "-qO-",
        "--header",
        "Accept: application/csv",
    ];
    agent.ok(&[&asked[..], &[&url]].concat())
}

#[test]
fn the_gateway_takes_messages_of_devices_to_its_database_which_keeps_them() {
    let agent = agent(&[Image::Gateway]);
    start(&agent, "gateway", &["flow", "sensor", "database", "broker"]);
    // A pseudo-terminal stands for the serial device. No device node leads to one, so it is mounted.
    let line = openpty(None, None).expect("a pseudo-terminal");
    let path = ttyname(&line.slave).expect("its name");
    chown(&path, None, Some(20)).expect("root");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).expect("root");
    let device = "    devices.coracle.dev/reader: /dev/serial/by-id/usb-Acme_Meter-if00:/dev/ttyMETER:rw:restart\n";
    let reader = example("serial/reader.yaml");
    assert!(reader.contains(device), "{reader}");
    let mounted = format!(
        "    volumeMounts: [{{name: d, mountPath: /dev/ttyMETER}}]\n  volumes: [{{name: d, hostPath: {{path: {}}}}}]\n",
        path.display()
    );
    agent.write("reader.yaml", &(reader.replace(device, "") + &mounted));
    agent.wait_running("flow");
    agent.wait_running("reader");
    let mut master = fs::File::from(line.master);
    // The broker retains it until the flow has subscribed.
    master.write_all(b"21.5\n").expect("written");
    agent.wait_line("flow", "sensors/meter is 21.5");
    let before = readings(&agent, "meter");
    assert!(before.contains(",21.5\n"), "{before}");
    let load = readings(&agent, "load");
    assert!(load.contains("reading,"), "{load}");
    // The data is in the claim, not in the pod.
    let uid = |pod: &Value| {
        pod["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let (first, flow) = (uid(&agent.pod("database")), uid(&agent.pod("flow")));
    agent.ok(&["delete", "pod", "database"]);
    agent.wait_pod("database", |pod| uid(pod) != first && is_ready(pod));
    assert_eq!(readings(&agent, "meter"), before);
    // The flow was made again, too, because what it starts after had gone.
    agent.wait_pod("flow", |pod| uid(pod) != flow && is_ready(pod));
    master.write_all(b"22.5\n").expect("written");
    agent.wait_line("flow", "sensors/meter is 22.5");
}

#[test]
fn the_serial_reader_waits_for_its_device() {
    let agent = agent(&[Image::Gateway]);
    start(&agent, "gateway", &["broker"]);
    start(&agent, "serial", &["reader"]);
    let pod = agent.wait_pod("reader", |pod| {
        main_status(pod)["state"]["waiting"]["reason"] == "DeviceMissing"
    });
    let message = main_status(&pod)["state"]["waiting"]["message"].to_string();
    assert!(
        message.contains("/dev/serial/by-id/usb-Acme_Meter-if00"),
        "{message}"
    );
}

#[test]
fn the_camera_pod_has_the_device_that_the_cdi_file_names() {
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let cdi = agent.root.join("cdi");
    fs::create_dir(&cdi).expect("a folder");
    let settings = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncoracle: {{cdiSpecDirs: ['{}']}}\n",
        cdi.display()
    );
    fs::write(agent.root.join("config.d/50-cdi.conf"), settings).expect("written");
    // No camera is here; a device that anyone may read stands for it.
    let file = example("camera/cdi.yaml").replace(
        "{path: /dev/video0}",
        "{path: /dev/video0, hostPath: /dev/zero}",
    );
    fs::write(cdi.join("camera.yaml"), file).expect("written");
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    start(&agent, "camera", &["camera"]);
    agent.wait_running("camera");
    agent.wait_line("camera", "/dev/video0 is open");
    agent.wait_pod("camera", is_ready);
}

#[test]
fn the_kiosk_shows_its_page_and_cannot_write() {
    let agent = agent(&[Image::Kiosk]);
    start(&agent, "kiosk", &["kiosk"]);
    agent.wait_running("kiosk");
    let shown = agent.ok(&["exec", "kiosk", "--", "w3m", "-dump", "/page/index.html"]);
    assert!(
        shown.contains("The next train leaves from platform 2."),
        "{shown}"
    );
    let wrote = agent.cli(&["exec", "kiosk", "--", "touch", "/bin/x"]);
    let error = String::from_utf8_lossy(&wrote.stderr);
    assert!(error.contains("Read-only file system"), "{error}");
}

#[test]
fn the_web_server_answers_over_tls_with_the_secrets_certificate() {
    let agent = agent(&[Image::Nginx]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/web/certificate.sh");
    let made = Command::new(script)
        .arg("box.example")
        .output()
        .expect("openssl is installed");
    assert!(made.status.success(), "{made:?}");
    agent.write("web-tls.yaml", &String::from_utf8_lossy(&made.stdout));
    start(&agent, "web", &["web"]);
    let pod = agent.wait_pod("web", is_ready);
    let address = pod["status"]["podIP"].as_str().expect("an address");
    let asked = format!(
        "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | openssl s_client -quiet -verify_quiet -servername box.example -connect {address}:8443"
    );
    let mut command = Command::new("sh");
    command
        .args(["-c", &asked])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = agent.command_in_netns(&mut command).expect("sh runs");
    let output = child.wait_with_output().expect("it ends");
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(answer.contains("It works, over TLS"), "{output:?}");

    // What the CronJob does at night, now.
    let folder = agent.root.join("backup");
    let backup = example("web/backup.yaml").replace("/srv/backup", &folder.display().to_string());
    agent.write("backup.yaml", &backup);
    agent.ok(&["wait", "cronjob/backup", "--for=create", "--timeout=60s"]);
    let shown = agent.ok(&["get", "cronjobs", "--no-headers"]);
    assert!(shown.contains("30 2 * * *"), "{shown}");
    let mut job: Value = serde_yaml::from_str(&backup).expect("YAML");
    let mut job = job["spec"]["jobTemplate"].take();
    job["apiVersion"] = "batch/v1".into();
    job["kind"] = "Job".into();
    job["metadata"] = serde_json::json!({ "name": "now" });
    agent.write("now.yaml", &job.to_string());
    agent.ok(&["wait", "job/now", "--for=create", "--timeout=60s"]);
    agent.ok(&[
        "wait",
        "job/now",
        "--for=condition=Complete",
        "--timeout=60s",
    ]);
    let archives: Vec<_> = fs::read_dir(&folder).expect("made").flatten().collect();
    let [archive] = &archives[..] else {
        panic!("{archives:?}");
    };
    let listed = Command::new("tar").arg("-tzf").arg(archive.path()).output();
    let listed = String::from_utf8(listed.expect("tar").stdout).expect("utf-8");
    assert!(listed.contains("./index.html"), "{listed}");
}

#[test]
fn a_converted_compose_project_runs() {
    let agent = agent(&[Image::Gateway]);
    let folder = agent.root.join("project");
    fs::create_dir(&folder).expect("a folder");
    let compose = "name: site\nservices:\n  broker:\n    image: ${IMAGE}\n    command: mosquitto -c /mosquitto.conf\n    \
                   restart: unless-stopped\n    user: '1883:1883'\n    read_only: true\n    configs: [{source: conf, \
                   target: /mosquitto.conf}]\n    ports: ['1883:1883']\n    healthcheck:\n      test: mosquitto_sub -t \
                   '$$SYS/#' -C 1 -W 3\n      interval: 1s\n      timeout: 5s\n  seed:\n    image: ${IMAGE}\n    command: \
                   ['sh', '-c', 'echo \"$$GREETING\" > /data/first']\n    env_file: site.env\n    volumes: \
                   ['shared:/data']\n  flow:\n    image: ${IMAGE}\n    restart: always\n    entrypoint: [sh, -c]\n    \
                   command:\n    - |\n      cat /data/first; cat /run/secrets/token; df -m /cache | tail -n 1 | cut -c1-5\n      \
                   exec mosquitto_sub -h broker -t '#' -F '%t %p'\n    secrets: [token]\n    tmpfs: ['/cache:size=4m']\n    \
                   volumes: ['shared:/data:ro']\n    depends_on:\n      broker: {condition: service_healthy}\n      seed: \
                   {condition: service_completed_successfully}\nvolumes: {shared: }\nsecrets: {token: {file: \
                   token.txt}}\nconfigs: {conf: {content: \"listener 1883\\nallow_anonymous true\\n\"}}\n";
    for (name, text) in [
        ("compose.yaml", compose),
        (".env", "IMAGE=docker.io/library/gateway:test\n"),
        ("site.env", "GREETING='hello $(there)'\n"),
        ("token.txt", "s3cret\n"),
    ] {
        fs::write(folder.join(name), text).expect("written");
    }
    let file = folder.join("compose.yaml");
    let manifests = agent.root.join("manifests");
    let path = |path: &Path| path.to_str().expect("utf-8").to_owned();
    let converted = agent.cli(&["convert", &path(&file), "-o", &path(&manifests)]);
    let said = String::from_utf8_lossy(&converted.stderr);
    assert!(converted.status.success() && said.is_empty(), "{said}");
    let names: Vec<_> = fs::read_dir(&manifests).expect("a folder").collect();
    assert_eq!(
        names.len(),
        2,
        "the broker's file and the flow's: {names:?}"
    );
    agent.wait_pod("broker", is_ready);
    agent.wait_running("flow");
    agent.wait_line("flow", "tmpfs");
    let lines = agent.ok(&["logs", "flow", "-c", "flow"]);
    assert_eq!(lines, "hello $(there)\ns3cret\ntmpfs\n");
    // The node's port leads to the broker, and the broker's name to the flow's subscription.
    let publish = [
        "exec",
        "broker",
        "--",
        "mosquitto_pub",
        "-t",
        "a/b",
        "-m",
        "1",
        "-r",
    ];
    agent.ok(&publish);
    agent.wait_line("flow", "a/b 1");
}
