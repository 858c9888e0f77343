//! What is fuzzed: each function takes arbitrary bytes as coracle would from outside, and panics if something is wrong
//! with what it makes of them. Shared by `cargo test --test fuzz` and by `cargo fuzz` (`fuzz_targets/`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use coracle::images::import_here;
use coracle::images::registry::{AuthFile, RegistriesConf, entrances};
use coracle::images::trust::{
    MAX_PAYLOAD_BYTES, MAX_SIGNATURES, Payload, Policy, PublicKey, signature_layers,
    signature_list, signatures_of,
};
use coracle::network::names::{Zone, say};
use coracle::spec::cluster::{ClusterView, Endpoint, PodEntry, ServiceEntry};
use coracle::spec::convert::{self, ConvertContext};
use coracle::spec::{ImageName, PodKey, ServiceAddress, ServiceSpec};
use domain::base::Message;

/// Names of images that files are asked about.
const IMAGES: [&str; 5] = [
    "busybox",
    "docker.io/acme/web:1",
    "r.example:5000/a/b/c:2",
    "10.0.0.1/x@sha256:0000000000000000000000000000000000000000000000000000000000000000",
    "sub.r.example/a",
];

fn text(input: &[u8]) -> String {
    String::from_utf8_lossy(input).into_owned()
}

fn assert_url(url: &str) {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let rest = rest.unwrap_or_else(|| panic!("`{url}` is of another scheme"));
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    assert!(!host.is_empty() && !host.contains('@'), "{url}");
    // Nothing that could end the first line of a request.
    assert!(url.bytes().all(|b| b.is_ascii_graphic()), "{url:?}");
    assert!(url.len() < 64 << 10, "{} bytes", url.len());
}

/// `WWW-Authenticate`, and `Location` relative to a registry. Returns whether it leads anywhere.
pub fn headers(input: &[u8]) -> bool {
    let header = text(input);
    let token = entrances::challenge(&header);
    token.iter().for_each(|url| assert_url(url));
    let next = entrances::location("https://r.example:5000/v2/a/b/blobs/x?y=z", &header);
    if let Some((elsewhere, url)) = &next {
        assert_url(url);
        let here = url.starts_with("https://r.example:5000/");
        assert_eq!(here, !elsewhere, "{url}");
    }
    token.is_some() || next.is_some()
}

/// The answer of a token server, a manifest or index, a config. Returns whether it is one of them.
pub fn documents(input: &[u8]) -> bool {
    let token = entrances::token(input);
    if let Some(token) = &token {
        let graphic = token.bytes().all(|b| b == b' ' || b.is_ascii_graphic());
        assert!(token.starts_with("Bearer ") && graphic, "{token:?}");
    }
    let manifest = entrances::manifest(input);
    if let Err(why) = &manifest {
        assert!(!coracle::chain(why).is_empty());
    }
    let config = entrances::config(input);
    if let Ok(config) = &config {
        let lists = [&config.entrypoint, &config.cmd].map(|list| list.iter().flatten().count());
        assert!(lists.iter().all(|length| *length <= 1000), "{lists:?}");
        for volume in config.usable_volumes() {
            assert!(volume.is_absolute() && volume != Path::new("/"));
            let climbs = volume.components().any(|part| part.as_os_str() == "..");
            assert!(!climbs, "{volume:?}");
        }
        assert!(config.warnings().len() <= 12);
    }
    token.is_some() || manifest.is_ok_and(|found| !found.is_empty()) || config.is_ok()
}

/// The name of an image. Returns whether it is one.
pub fn image_names(input: &[u8]) -> bool {
    let text = text(input);
    let Ok(name) = ImageName::parse(&text) else {
        return false;
    };
    let full = name.to_string();
    let again = ImageName::parse(&full).expect("a full name is a name");
    assert_eq!(again.to_string(), full);
    assert_eq!(
        (&name.registry, &name.repository, &name.tag, &name.digest),
        (
            &again.registry,
            &again.repository,
            &again.tag,
            &again.digest
        )
    );
    assert!(full.len() < 1000, "{} bytes", full.len());
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@[]".contains(&b);
    assert!(full.bytes().all(safe), "{full:?}");
    let mut parts = name.repository.split('/');
    assert!(parts.all(|part| !["", ".", ".."].contains(&part)), "{full}");
    true
}

/// `registries.conf`. Returns whether it is valid.
pub fn registries_conf(input: &[u8]) -> bool {
    let mut conf = RegistriesConf::default();
    if let Err(why) = conf.add(input) {
        assert!(!why.is_empty());
        return false;
    }
    for written in IMAGES {
        let name = ImageName::parse(written).expect("a name");
        match conf.places(&name, written) {
            Ok(places) => {
                assert!((1..=17).contains(&places.len()), "{} places", places.len());
                let wanted = &name.digest;
                assert!(places.iter().all(|place| place.name.digest == *wanted));
            }
            Err(why) => assert!(!coracle::chain(&why).is_empty()),
        }
    }
    true
}

/// `auth.json`. Returns whether it is valid.
pub fn auth_file(input: &[u8]) -> bool {
    let file = match AuthFile::parse(input) {
        Ok(file) => file,
        Err(why) => {
            assert!(coracle::chain(&why).starts_with("it is not valid: line"));
            return false;
        }
    };
    for written in IMAGES {
        let name = ImageName::parse(written).expect("a name");
        let found = file.credentials(&name);
        if let Ok(Some(found)) = &found {
            assert_eq!(format!("{found:?}"), "Credentials(…)");
        }
    }
    true
}

/// `policy.json`. Returns whether it is valid.
pub fn policy(input: &[u8]) -> bool {
    let policy = match Policy::parse(input) {
        Ok(policy) => policy,
        Err(why) => {
            assert!(!why.is_empty());
            return false;
        }
    };
    assert!(policy.is_there() && policy.fingerprint().is_some());
    for written in IMAGES {
        let name = ImageName::parse(written).expect("a name");
        if let Err(why) = policy.demand_of(&name) {
            assert!(!coracle::chain(&why).is_empty());
        }
    }
    true
}

/// A key, a list of signatures, the manifest of some, or what is signed. Returns whether it is one of them.
pub fn signatures(input: &[u8]) -> bool {
    let key = PublicKey::parse(input);
    if let Ok(key) = &key {
        assert!(!key.verifies(b"x", input));
    }
    let list = signatures_of(input).unwrap_or_default();
    assert!(list.len() <= MAX_SIGNATURES);
    for signature in &list {
        assert!(signature.payload.len() as u64 <= MAX_PAYLOAD_BYTES);
        assert!(
            signature.verify(&[]).is_err(),
            "nothing is signed by no key"
        );
    }
    let again = signatures_of(&signature_list(&list)).expect("a list that was written");
    assert_eq!(again, list);
    let layers = signature_layers(input).unwrap_or_default();
    assert!(layers.len() <= MAX_SIGNATURES);
    let payload = Payload::parse(input);
    if let Ok(payload) = &payload {
        let again = Payload::parse(&payload.to_json()).expect("a document that was written");
        assert_eq!(again, *payload);
    }
    key.is_ok() || !list.is_empty() || !layers.is_empty() || payload.is_ok()
}

/// A file of manifests. Returns the number of pods in it.
pub fn manifests(input: &[u8]) -> usize {
    static CONTEXT: LazyLock<ConvertContext> = LazyLock::new(|| ConvertContext::of("n"));
    match convert::documents(input, "f.yaml", &CONTEXT) {
        Ok(found) => {
            for pod in &found.pods {
                // A stored manifest of an admitted pod is read again after an agent restart.
                let bytes = pod.manifest.json().into_bytes();
                let again = convert::admitted(&bytes).expect("it was admitted");
                assert_eq!(again.key, pod.key);
            }
            found.pods.len()
        }
        Err(errors) => {
            assert!(!errors.is_empty(), "refused without an error");
            for error in errors {
                assert!(error.to_string().starts_with("f.yaml:"), "{error}");
            }
            0
        }
    }
}

/// An archive, imported below an empty folder `room`. Returns whether it has an image.
pub fn images(room: &Path, input: &[u8]) -> bool {
    let (archive, store) = (room.join("in.tar"), room.join("in/store"));
    fs::create_dir_all(&store).expect("a folder");
    fs::write(&archive, input).expect("a file");
    let imported = import_here(&store, &archive);
    if let Err(error) = &imported {
        assert!(!coracle::chain(error).is_empty());
    }
    let entries = fs::read_dir(room).expect("a folder");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["in", "in.tar"], "nothing is written outside");
    assert!(
        fs::symlink_metadata("/out").is_err(),
        "nothing is written to the root"
    );
    assert_eq!(fs::read_dir(room.join("in")).expect("a folder").count(), 1);
    let left = fs::read_dir(store.join("tmp")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "nothing incomplete stays");
    fs::remove_dir_all(room.join("in")).expect("a folder");
    imported.is_ok()
}

/// A query of a name and the answer of another server to it, the first after its length.
pub fn names(input: &[u8]) {
    static ZONE: LazyLock<Zone> = LazyLock::new(zone);
    let Some((length, rest)) = input.split_first_chunk() else {
        return;
    };
    let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
    let (question, said) = rest.split_at(length);
    for by_tcp in [false, true] {
        let Some(reply) = say(&ZONE, question, said, by_tcp) else {
            continue;
        };
        if reply == said {
            continue;
        }
        let most = if by_tcp { 65_535 } else { 4_096 };
        assert!(reply.len() <= most, "{} bytes", reply.len());
        let reply = Message::from_octets(reply).expect("a message");
        assert!(reply.header().qr(), "an answer");
        assert_eq!(
            &question[..2],
            &reply.as_slice()[..2],
            "the answer has the id of this question"
        );
    }
}

fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

fn zone() -> Zone {
    let service = |name: &str, address| ServiceEntry {
        spec: Arc::new(ServiceSpec {
            families: coracle::spec::Families::All { v6_first: false },
            key: key(name),
            selector: BTreeMap::new(),
            address,
            ports: Vec::new(),
            aliases: Vec::new(),
            with_unready: false,
            client_affinity: false,
            warnings: Vec::new(),
        }),
        endpoints: (0..60)
            .map(|n| Endpoint {
                pod: key("web"),
                hostname: Some(format!("h{n}")),
                ips: vec![[10, 88, 0, n].into()],
                ports: Vec::new(),
            })
            .collect(),
    };
    let external =
        |name: &str, target: &str| service(name, ServiceAddress::External(target.to_owned()));
    let view = ClusterView {
        pods: vec![PodEntry {
            key: key("web"),
            ips: vec![[10, 88, 0, 2].into()],
            host_network: false,
            hostname: "web".to_owned(),
            subdomain: None,
            ready: true,
        }],
        services: vec![
            service("db", ServiceAddress::Headless),
            service("web", ServiceAddress::Any),
            external("out", "example.org"),
            external("loop", "loop.default.svc.cluster.local"),
            external("on", "out.default.svc.cluster.local"),
        ],
    };
    let addresses = BTreeMap::from([(key("web"), vec![[10, 96, 0, 9].into()])]);
    Zone::new("cluster.local", &view, &addresses)
}
