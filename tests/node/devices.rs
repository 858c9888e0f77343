//! Devices without `privileged`: a container has those that it asks for and no others, waits for them, and learns when
//! one goes. The nodes are in a folder of the test in `/dev`.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::*;

/// Devices that no container has by itself, and that anyone may open: loop-control, fuse and a loop device.
const CONTROL: (SFlag, u64, u64) = (SFlag::S_IFCHR, 10, 237);
const FUSE: (SFlag, u64, u64) = (SFlag::S_IFCHR, 10, 229);
const DISK: (SFlag, u64, u64) = (SFlag::S_IFBLK, 7, 7);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A folder in `/dev` that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("coracle-test-{}-{number}", std::process::id());
        let path = PathBuf::from("/dev").join(name);
        fs::create_dir(&path).expect("a folder in /dev");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Plugs a device in.
    fn plug(&self, name: &str, (kind, major, minor): (SFlag, u64, u64)) {
        let mode = Mode::from_bits_truncate(0o640);
        mknod(&self.0.join(name), kind, mode, makedev(major, minor)).expect("a device node");
    }

    fn unplug(&self, name: &str) {
        fs::remove_file(self.0.join(name)).expect("it is there");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A pod with this annotation for its devices.
fn pod(name: &str, devices: &str, script: &str) -> String {
    annotated(name, &format!("coracle.dev/devices: '{devices}'"), script)
}

fn annotated(name: &str, annotation: &str, script: &str) -> String {
    let pod = shell_pod(name, script, "", "");
    pod.replace(
        "\nspec:",
        &format!("\n  annotations: {{{annotation}}}\nspec:"),
    )
}

/// Says how each device can be opened.
const TRY: &str = "try() { for d in \"$@\"; do said=; (: <$d) 2>/dev/null && said=\"$said r\"; \
                   (: >>$d) 2>/dev/null && said=\"$said w\"; echo \"$d:$said\"; done; }; ";

fn waiting<'p>(pod: &'p Value, reason: &str) -> Option<&'p str> {
    let waiting = &main_status(pod)["state"]["waiting"];
    (waiting["reason"] == reason).then(|| waiting["message"].as_str().unwrap_or_default())
}

/// Status, reason and message of the condition.
fn condition(pod: &Value) -> String {
    let all = pod["status"]["conditions"].as_array().expect("conditions");
    let mut all = all.iter().filter(|c| c["type"] == "DevicesReady");
    let found = all.next().expect("it asks for devices");
    let text = |name: &str| found[name].as_str().unwrap_or_default();
    format!("{} {} {}", text("status"), text("reason"), text("message"))
}

#[test]
fn a_container_has_the_devices_that_it_asks_for_and_no_others() {
    let folder = Folder::new();
    folder.plug("control", CONTROL);
    folder.plug("disk", DISK);
    fs::create_dir(folder.0.join("by-id")).expect("a folder");
    symlink("../disk", folder.0.join("by-id/usb-one")).expect("a link");
    let agent = Agent::start();
    let asked = format!(
        "{}:/dev/rule:r, {}:/dev/disks/",
        folder.path("control"),
        folder.path("by-id/*")
    );
    let script = format!(
        "{TRY} mknod /dev/made c 10 229; mknod /tmp/rule c 10 237; \
         try /dev/rule /dev/disks/usb-one /dev/made /tmp/rule /dev/null; \
         stat -c '%a %t:%T' /dev/rule; stat -c '%a' /dev/disks; {SLEEP}"
    );
    agent.write("dev.yaml", &pod("dev", &asked, &script));
    let running = agent.wait_running("dev");
    assert_eq!(condition(&running), "True  ");
    agent.wait_line("dev", "755");
    let log = agent.ok(&["logs", "dev"]);
    let expected = "/dev/rule: r\n/dev/disks/usb-one: r w\n/dev/made:\n/tmp/rule: r\n/dev/null: r w\n640 a:ed\n755\n";
    assert_eq!(log, expected);
    let try_again = format!("{TRY} try /dev/rule /dev/disks/usb-one /dev/made");
    let said = agent.ok(&["exec", "dev", "--", "sh", "-c", &try_again]);
    assert_eq!(said, "/dev/rule: r\n/dev/disks/usb-one: r w\n/dev/made:\n");
}

#[test]
fn a_container_starts_when_its_device_is_there_and_restarts_when_it_is_back() {
    let folder = Folder::new();
    let agent = Agent::start();
    let path = folder.path("serial/port");
    let script = format!("echo started; {SLEEP}");
    agent.write(
        "dev.yaml",
        &pod("dev", &format!("{path}:/dev/port:restart"), &script),
    );
    let held = agent.wait_pod("dev", |pod| waiting(pod, "DeviceMissing").is_some());
    assert_eq!(held["status"]["phase"], "Pending");
    let why = format!("waiting for a device: `{path}` is not there");
    assert_eq!(waiting(&held, "DeviceMissing"), Some(&*why));
    assert_eq!(
        condition(&held),
        format!("False DeviceMissing container main: {why}")
    );
    fs::create_dir(folder.0.join("serial")).expect("a folder");
    folder.plug("serial/port", CONTROL);
    let running = agent.wait_running("dev");
    assert_eq!(main_status(&running)["restartCount"], 0);
    assert_eq!(condition(&running), "True  ");
    folder.unplug("serial/port");
    let lost = format!("False DeviceMissing container main: `{path}` is gone");
    let without = agent.wait_pod("dev", |pod| condition(pod) == lost);
    assert!(main_status(&without)["state"]["running"].is_object());
    folder.plug("serial/port", FUSE);
    let back = agent.wait_pod("dev", |pod| {
        let main = main_status(pod);
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    });
    assert_eq!(condition(&back), "True  ");
    let said = agent.ok(&["exec", "dev", "--", "stat", "-c", "%t:%T", "/dev/port"]);
    assert_eq!(said, "a:e5\n");
    let events = agent.ok(&["get", "events"]);
    for word in [
        "DeviceMissing",
        "DevicesReady",
        "restarts: its device is back",
    ] {
        assert!(events.contains(word), "{word}: {events}");
    }
    // While no agent runs, the device is unplugged and plugged in again with the same numbers.
    agent.kill();
    folder.unplug("serial/port");
    folder.plug("serial/port", FUSE);
    agent.launch();
    agent.wait_pod("dev", |pod| {
        let main = main_status(pod);
        main["restartCount"] == 2 && main["state"]["running"].is_object()
    });
    let edited = pod("dev", &format!("{path}:/dev/other"), &script);
    let uid = back["metadata"]["uid"].clone();
    agent.write("dev.yaml", &edited);
    let running = |pod: &Value| main_status(pod)["state"]["running"].is_object();
    agent.wait_pod("dev", |pod| pod["metadata"]["uid"] != uid && running(pod));
}

#[test]
fn only_device_nodes_below_dev_are_granted() {
    let folder = Folder::new();
    let agent = Agent::start();
    nix::unistd::mkfifo(&folder.0.join("pipe"), Mode::from_bits_truncate(0o600)).expect("a pipe");
    fs::write(folder.0.join("file"), "").expect("a file");
    symlink("/proc/self/root/dev/kmsg", folder.0.join("out")).expect("a link");
    symlink("../../dev/kmsg", folder.0.join("dots")).expect("a link");
    for (name, why) in [
        ("pipe", "a pipe"),
        ("file", "a regular file"),
        ("out", "a link that leads out of it"),
        ("dots", "a link that leads out of it"),
    ] {
        let path = folder.path(name);
        agent.write(&format!("{name}.yaml"), &pod(name, &path, SLEEP));
        let held = agent.wait_pod(name, |pod| waiting(pod, "DeviceRefused").is_some());
        let text = format!("`{path}` is {why}, not a device");
        assert_eq!(waiting(&held, "DeviceRefused"), Some(&*text));
    }
    // A device takes the place of the pipe.
    folder.plug("new", CONTROL);
    fs::rename(folder.0.join("new"), folder.0.join("pipe")).expect("renamed");
    agent.wait_running("pipe");
    // What is optional holds up nothing.
    let optional = format!("{}:optional", folder.path("none"));
    agent.write("optional.yaml", &pod("optional", &optional, SLEEP));
    agent.wait_running("optional");
}

#[test]
fn a_cdi_device_adds_what_its_file_says() {
    let folder = Folder::new();
    let agent = Agent::prepare(std::sync::Arc::new(common::netns::Netns::new()), &[], None);
    let cdi = agent.root.join("cdi");
    let library = agent.root.join("library");
    fs::write(&library, "from the vendor\n").expect("written");
    let settings = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         coracle: {{cdiSpecDirs: ['{}']}}\n",
        cdi.display()
    );
    fs::write(agent.root.join("config.d/50-cdi.conf"), settings).expect("written");
    agent.launch();
    agent.ok(&[
        "image",
        "import",
        common::archive().to_str().expect("utf-8"),
    ]);
    let script = format!(
        "{TRY} try /dev/camera; echo $CAMERA; cat /lib/vendor; (echo x >/lib/vendor) 2>/dev/null || echo fixed; \
         id -G; echo done; {SLEEP}"
    );
    let annotation = "cdi.k8s.io/any: acme.com/camera=front";
    agent.write("cam.yaml", &annotated("cam", annotation, &script));
    let missing = agent.wait_pod("cam", |pod| waiting(pod, "DeviceMissing").is_some());
    let why = waiting(&missing, "DeviceMissing").unwrap_or_default();
    assert!(
        why.contains("describes CDI device `acme.com/camera=front`"),
        "{why}"
    );
    // The folder appears, with a file, and at last the device.
    fs::create_dir(&cdi).expect("a folder");
    let file = |hooks: &str| {
        format!(
            "cdiVersion: 0.6.0\nkind: acme.com/camera\ncontainerEdits: {{env: [CAMERA=front]}}\ndevices:\n\
             - name: front\n  containerEdits:\n    deviceNodes:\n    \
             - {{path: /dev/camera, hostPath: {}, permissions: r}}\n    mounts:\n    \
             - {{hostPath: {}, containerPath: /lib/vendor, options: [ro, nosuid, nodev, bind]}}\n    \
             additionalGids: [44]\n{hooks}",
            folder.path("video"),
            library.display()
        )
    };
    fs::write(
        cdi.join("acme.yaml"),
        file("    hooks: [{hookName: x, path: /x}]\n"),
    )
    .expect("written");
    let refused = agent.wait_pod("cam", |pod| waiting(pod, "DeviceRefused").is_some());
    let why = waiting(&refused, "DeviceRefused").unwrap_or_default();
    assert!(
        why.contains("it has `hooks`, which coracle does not carry out"),
        "{why}"
    );
    fs::write(cdi.join("acme.yaml"), file("")).expect("written");
    let path = folder.path("video");
    agent.wait_pod("cam", |pod| {
        let why = waiting(pod, "DeviceMissing");
        why.is_some_and(|why| why.contains(&format!("`{path}` is not there")))
    });
    folder.plug("video", CONTROL);
    agent.wait_running("cam");
    agent.wait_line("cam", "done");
    let log = agent.ok(&["logs", "cam"]);
    assert_eq!(
        log,
        "/dev/camera: r\nfront\nfrom the vendor\nfixed\n0 44\ndone\n"
    );
}
