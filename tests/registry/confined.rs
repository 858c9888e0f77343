//! What the workers may do, as the kernel shows it, and what becomes of one that is led outside.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde_json::{Value, json};

use crate::fixture::{Layer, Room, docker_archive, exe};
use crate::proxy::Deed;
use crate::world::{World, assert_layers, last_line};

const SIZES: [usize; 2] = [300_000, 400_000];

/// Capabilities of an import: owners, modes, devices, attributes (`capability.h`).
const OF_IMPORT: [u32; 7] = [0, 1, 3, 4, 21, 27, 31];

/// `/proc/<pid>/status` of each thread.
fn threads(pid: u32) -> Vec<BTreeMap<String, String>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let read = |task: PathBuf| {
        let text = fs::read_to_string(task.join("status")).unwrap();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect()
    };
    tasks.map(|task| read(task.unwrap().path())).collect()
}

fn assert_confined(pid: u32, capabilities: &[u32]) {
    let all = threads(pid);
    assert!(!all.is_empty());
    let mask: u64 = capabilities.iter().map(|number| 1 << number).sum();
    for status in all {
        for (field, expected) in [
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
            ("Seccomp_filters", "1"),
            ("CapInh", "0000000000000000"),
            ("CapPrm", &format!("{mask:016x}")),
            ("CapEff", &format!("{mask:016x}")),
            ("CapAmb", "0000000000000000"),
        ] {
            assert_eq!(status[field], expected, "{field} of {}", status["Name"]);
        }
    }
    assert_eq!(
        fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap(),
        "1000\n"
    );
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max core file size"), "0");
    assert_eq!(limit("Max open files"), "1024");
    let memory = ["Max data size", "Max address space"].map(limit);
    assert!(
        memory.iter().any(|limit| limit != "unlimited"),
        "{memory:?}"
    );
}

fn namespace(pid: &str, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

#[test]
fn the_worker_that_asks_a_registry_has_no_rights_of_root() {
    let world = World::new("bare");
    world.push_layers("a:1", &SIZES);
    let proxy = world.proxy();
    let (say, heard) = mpsc::channel();
    proxy.rule(move |ask| match ask.is_blob() {
        true => {
            let _ = say.send(());
            Deed::Hang
        }
        false => Deed::Pass,
    });
    let name = format!("{}/a:1", proxy.address);
    let mut child = world.start(&world.request(&name, &json!({})), &[]);
    heard.recv().unwrap();
    assert_confined(child.id(), &[]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_worker_that_unpacks_has_no_network_and_no_services_of_the_node() {
    let room = Room::new("alone");
    let archive = docker_archive(&[Layer::default().file("f", &[7; 900_000]).tar()]);
    let mut child = Command::new(exe())
        .args(["image-worker", "import", "--store"])
        .args([&room.store(), Path::new("-")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (half, rest) = archive.split_at(archive.len() / 2);
    let mut input = child.stdin.take().unwrap();
    input.write_all(half).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first["stage"], "receive", "it is at work: {first}");
    assert_confined(child.id(), &OF_IMPORT);
    let pid = child.id().to_string();
    for kind in ["net", "ipc", "uts"] {
        assert_ne!(namespace(&pid, kind), namespace("self", kind), "{kind}");
    }
    let links = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap();
    let links: Vec<_> = links.lines().skip(2).collect();
    assert!(links.iter().all(|line| line.trim().starts_with("lo:")));
    let sockets = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap();
    assert_eq!(sockets.lines().count(), 1, "only the title: {sockets}");
    input.write_all(rest).unwrap();
    drop(input);
    let last = lines.last().unwrap().unwrap();
    assert!(child.wait().unwrap().success(), "{last}");
    assert!(last.contains("docker.io/library/test:1"), "{last}");
}

/// Answers every query for an IPv4 address with that of this machine, until it gets an empty message.
fn serve_names(world: &World) -> UdpSocket {
    let socket = world.netns.run(|| UdpSocket::bind("127.0.0.1:53")).unwrap();
    let server = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = server.recv_from(&mut query) {
            if length == 0 {
                return;
            }
            let name = query[12..].iter().position(|byte| *byte == 0).unwrap();
            let question = &query[12..12 + name + 5];
            let is_a = question[name + 1..name + 3] == [0, 1];
            let mut reply = query[..2].to_vec();
            reply.extend([0x81, 0x80, 0, 1, 0, u8::from(is_a), 0, 0, 0, 0]);
            reply.extend(question);
            if is_a {
                reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
            }
            server.send_to(&reply, from).unwrap();
        }
    });
    socket
}

/// Fetches with other files in the place of some of the system's.
fn fetch_over(world: &World, request: &Value, files: &[(&Path, &str)]) -> Value {
    let mounts: String = files
        .iter()
        .map(|(from, to)| format!("mount --bind {} {to} && ", from.display()))
        .collect();
    let script = format!("{mounts}exec {} image-worker fetch", exe().display());
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = world.netns.run(|| command.spawn()).unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(request.to_string().as_bytes()).unwrap();
    drop(input);
    last_line(child)
}

#[test]
fn names_of_registries_are_found_in_hosts_and_by_dns() {
    let world = World::new("names");
    world.push_layers("a:1", &SIZES);
    let port = world.registry.port();
    let request = |host: &str| {
        let registry = format!("{host}:{port}");
        let plain = json!({ "plain_http": [registry] });
        world.request(&format!("{registry}/a:1"), &plain)
    };
    let resolv = world.room.write("resolv.conf", b"nameserver 127.0.0.1\n");
    let hosts = world.room.write("hosts", b"127.0.0.1 by-hosts.example\n");
    let files: [(&Path, &str); 2] = [(&resolv, "/etc/resolv.conf"), (&hosts, "/etc/hosts")];
    // Nothing answers yet.
    let said = fetch_over(&world, &request("by-dns.example"), &files);
    assert_eq!(said["type"], "error", "{said}");
    let said = fetch_over(&world, &request("by-hosts.example"), &files);
    assert_eq!(said["type"], "fetched", "{said}");
    let server = serve_names(&world);
    let said = fetch_over(&world, &request("by-dns.example"), &files);
    world
        .netns
        .run(|| server.send_to(&[], "127.0.0.1:53"))
        .unwrap();
    assert_eq!(said["type"], "fetched", "{said}");
}

/// The folder of the only pull.
fn pull_folder(store: &Path) -> PathBuf {
    let mut all = fs::read_dir(store.join("pulls")).unwrap();
    let found = all.next().unwrap().unwrap().path();
    assert!(all.next().is_none());
    found
}

#[test]
fn a_fetch_that_is_led_out_of_the_store_writes_nothing_there() {
    let world = World::new("led");
    world.push_layers("a:1", &SIZES);
    let name = format!("{}/a:1", world.registry);
    let fetched = world.fetch(&name);
    let folder = pull_folder(&world.room.store());
    assert_eq!(fetched["folder"], folder.to_str().unwrap(), "{fetched}");
    let outside = world.room.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    symlink(&outside, &folder).unwrap();
    let (message, _) = world.refused(&world.request(&name, &json!({})));
    assert!(message.contains("ermission denied"), "{message}");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // Another part of the store is outside, too.
    let inside = world.room.store().join("refs");
    fs::remove_file(&folder).unwrap();
    symlink(&inside, &folder).unwrap();
    world.refused(&world.request(&name, &json!({})));
    assert_eq!(fs::read_dir(&inside).unwrap().count(), 0);
}

#[test]
fn an_import_that_is_led_out_of_the_store_writes_nothing_there() {
    let room = Room::new("led");
    let archive = room.write("a.tar", &docker_archive(&[Layer::default().dir("d").tar()]));
    room.open();
    let outside = room.path("outside");
    fs::create_dir(&outside).unwrap();
    for part in ["tmp", "layers", "refs"] {
        let part = room.store().join(part);
        fs::remove_dir(&part).unwrap();
        symlink(&outside, &part).unwrap();
        let error = room.import(&archive).unwrap_err();
        let error = coracle::chain(&error);
        assert!(error.contains("ermission denied"), "{part:?}: {error}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{part:?}");
        fs::remove_file(&part).unwrap();
        fs::create_dir(&part).unwrap();
    }
    room.import(&archive).unwrap();
}

#[test]
fn certificates_may_be_links_to_elsewhere() {
    let world = World::new("links");
    let elsewhere = world.room.path("elsewhere");
    fs::create_dir_all(elsewhere.join("folder")).unwrap();
    fs::create_dir_all(world.room.path("certs.d/linked.example")).unwrap();
    fs::write(elsewhere.join("file"), "no certificate").unwrap();
    fs::write(elsewhere.join("folder/ca.crt"), "no certificate").unwrap();
    let links = [
        ("file", "certs.d/linked.example/ca.crt"),
        ("folder", "certs.d/other.example"),
    ];
    for (to, from) in links {
        symlink(elsewhere.join(to), world.room.path(from)).unwrap();
    }
    for name in ["linked.example", "other.example"] {
        let request = world.request(&format!("{name}/a:1"), &json!({}));
        let (message, _) = world.refused(&request);
        assert!(
            message.contains("has no certificate"),
            "it was read: {message}"
        );
    }
}

#[test]
fn a_fetch_does_not_need_to_remove_what_a_killed_import_has_left() {
    let world = World::new("remains");
    world.push_layers("a:1", &SIZES);
    world.room.open();
    let left = world.room.store().join("tmp/1-0/unfinished/diff/home/user");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("file"), "x").unwrap();
    for folder in [&left, left.parent().unwrap()] {
        chown(folder, Some(1000), Some(1000)).unwrap();
    }
    let image = world.pull(&format!("{}/a:1", world.registry));
    assert_layers(&image, &SIZES);
    assert!(!left.exists(), "the import has removed it");
}
