//! A registry in a network namespace of its own, images to push, and workers that fetch them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coracle::images::Image;
use serde_json::{Value, json};

use crate::fixture::{Layer, Room, docker_archive, exe, run};
use crate::netns::Netns;
use crate::proxy::Proxy;

/// How long a server may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// How the registry is set up.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// Port 5000 if 0.
    pub port: u16,
    /// More of `http:`, indented by two spaces.
    pub http: String,
    /// More at the top level.
    pub more: String,
}

/// A registry, and a store to fetch into.
pub struct World {
    pub room: Room,
    pub netns: Arc<Netns>,
    pub registry: SocketAddr,
    server: Child,
}

impl World {
    pub fn new(name: &str) -> Self {
        Self::with(name, &Setup::default())
    }

    pub fn with(name: &str, setup: &Setup) -> Self {
        let room = Room::new(name);
        Self::inside(room, setup)
    }

    /// The same in a room that has the files of the setup.
    pub fn inside(room: Room, setup: &Setup) -> Self {
        let netns = Arc::new(Netns::new());
        let port = if setup.port == 0 { 5000 } else { setup.port };
        let config = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\nstorage:\n  filesystem: \
             {{rootdirectory: {}}}\nhttp:\n  addr: 127.0.0.1:{port}\n{}\n{}\n",
            room.path("registry").display(),
            setup.http,
            setup.more,
        );
        let config = room.write("registry.yml", config.as_bytes());
        let log = std::fs::File::create(room.path("registry.log")).unwrap();
        let mut command = Command::new("docker-registry");
        command
            .arg("serve")
            .arg(config)
            .stdout(Stdio::null())
            .stderr(log);
        let mut server = netns.run(|| command.spawn()).unwrap_or_else(|why| {
            panic!("docker-registry: {why}; apt-get install docker-registry")
        });
        let registry: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while netns.run(|| TcpStream::connect(registry)).is_err() {
            let log = std::fs::read_to_string(room.path("registry.log")).unwrap_or_default();
            assert!(server.try_wait().unwrap().is_none(), "{log}");
            assert!(
                Instant::now() < deadline,
                "the registry does not start: {log}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Self {
            room,
            netns,
            registry,
            server,
        }
    }

    pub fn proxy(&self) -> Proxy {
        Proxy::start(&self.netns, Some(self.registry))
    }

    /// Pushes an archive by skopeo.
    pub fn push(&self, archive: &Path, name: &str, more: &[&str]) {
        let to = format!("docker://{}/{name}", self.registry);
        let from = format!("docker-archive:{}", archive.display());
        let tls = "--dest-tls-verify=false";
        let mut args = vec!["--insecure-policy", "copy", "--quiet", tls];
        args.extend(more);
        args.extend([from.as_str(), to.as_str()]);
        self.netns.run(|| run("skopeo", &args));
    }

    /// Pushes an image of several layers that do not compress, of `sizes` bytes; returns the layers' tars.
    pub fn push_layers(&self, name: &str, sizes: &[usize]) -> Vec<Vec<u8>> {
        let layers: Vec<Vec<u8>> = (1..)
            .zip(sizes)
            .map(|(n, size)| noise_layer(n, *size))
            .collect();
        let archive = self.room.write("pushed.tar", &docker_archive(&layers));
        self.push(&archive, name, &[]);
        layers
    }

    /// The request of a fetch; `more` replaces or adds fields.
    pub fn request(&self, name: &str, more: &Value) -> Value {
        let mut request = json!({
            "store": self.room.store(),
            "name": name,
            "sources": [{ "name": name }],
            "certificates": [self.room.path("certs.d")],
            // Long enough for a busy machine, short enough for a test.
            "patience": { "stall_ms": 10_000, "connect_ms": 10_000 },
        });
        for (field, value) in more.as_object().into_iter().flatten() {
            match field.as_str() {
                "credentials" => request["sources"][0][field] = value.clone(),
                _ => request[field] = value.clone(),
            }
        }
        request
    }

    /// Starts a worker and gives it its request.
    pub fn start(&self, request: &Value, environment: &[(&str, &str)]) -> Child {
        let mut command = Command::new(exe());
        command
            .args(["image-worker", "fetch"])
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.netns.run(|| command.spawn()).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(request.to_string().as_bytes()).unwrap();
        child
    }

    /// Runs a worker; its last line.
    pub fn fetch_by(&self, request: &Value) -> Value {
        last_line(self.start(request, &[]))
    }

    /// Fetches an image; the worker's last line.
    pub fn fetch(&self, name: &str) -> Value {
        self.fetch_by(&self.request(name, &json!({})))
    }

    /// Imports what was fetched, under a name.
    pub fn import(&self, fetched: &Value, name: &str) -> Image {
        assert_eq!(fetched["type"], "fetched", "{fetched}");
        let folder = fetched["folder"]
            .as_str()
            .unwrap_or_else(|| panic!("{fetched}"));
        let store = self.room.store();
        let output = Command::new(exe())
            .args(["image-worker", "import", "--pulled", "--store"])
            .arg(&store)
            .args(["--name", name, "--", folder])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        assert!(!Path::new(folder).exists(), "the folder is removed");
        self.room.open().lookup(name).unwrap().unwrap()
    }

    /// Fetches and imports.
    pub fn pull(&self, name: &str) -> Image {
        self.import(&self.fetch(name), name)
    }

    /// The error of a fetch that must fail, with its hint.
    pub fn refused(&self, request: &Value) -> (String, String) {
        let said = self.fetch_by(request);
        assert_eq!(said["type"], "error", "{said}");
        let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
        (text("message"), text("hint"))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// The last line of a worker, which has ended.
pub fn last_line(mut child: Child) -> Value {
    let stdout = child.stdout.take().unwrap();
    let lines: Vec<String> = BufReader::new(stdout).lines().map(Result::unwrap).collect();
    let mut noise = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut noise)
        .unwrap();
    child.wait().unwrap();
    let last = lines.last().unwrap_or_else(|| panic!("no output: {noise}"));
    serde_json::from_str(last).unwrap_or_else(|why| panic!("{last}: {why}"))
}

/// A layer with one file of bytes that do not compress.
pub fn noise_layer(seed: u64, size: usize) -> Vec<u8> {
    Layer::default()
        .file(&format!("file{seed}"), &noise(seed, size))
        .tar()
}

/// Bytes of a generator (splitmix64).
pub fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let words = std::iter::repeat_with(|| random.next().to_le_bytes());
    words.flatten().take(size).collect()
}

/// Numbers that repeat from the same seed.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Asserts that an image's layers hold the files of [`World::push_layers`].
pub fn assert_layers(image: &Image, sizes: &[usize]) {
    for (number, size) in (1..).zip(sizes) {
        let name = format!("file{number}");
        let found: Option<PathBuf> = image
            .layers
            .iter()
            .map(|l| l.join(&name))
            .find(|p| p.exists());
        let found = std::fs::read(found.unwrap_or_else(|| panic!("{name} is missing"))).unwrap();
        assert!(found == noise(number, *size), "{name} differs");
    }
}
