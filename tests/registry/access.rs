//! Who may fetch, and what goes over which wire: TLS, passwords, tokens, proxies.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::fixture::{Room, run};
use crate::proxy::{Deed, Proxy};
use crate::world::{Setup, World, assert_layers, last_line};

const SIZES: [usize; 2] = [200_000, 300_000];

/// `user`, `open sesame`; bcrypt, as `htpasswd -B` writes it.
const HTPASSWD: &[u8] = b"user:$2b$04$p6S4YdsQ0lYcpwEKGAO7B.akBKl6kVIT3USP9fD51.Kq5fixSNF12\n";

fn openssl(room: &Room, line: &str) {
    let args: Vec<String> = line
        .split(' ')
        .map(|arg| arg.replace("ROOM", room.0.to_str().unwrap()))
        .collect();
    run("openssl", &args);
}

/// An authority, a certificate for the registry, and one for a client: `ca.crt`, `server.*`, `client.*`.
pub fn certificates(room: &Room) {
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    openssl(
        room,
        &format!("req -x509 {ec} -subj /CN=authority -keyout ROOM/ca.key -out ROOM/ca.crt"),
    );
    for (name, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
        openssl(
            room,
            &format!("req {ec} -subj /CN={name} -keyout ROOM/{name}.key -out ROOM/{name}.csr")
                .replace(" -days 2", ""),
        );
        let names = format!(
            "subjectAltName=IP:127.0.0.1,IP:10.9.9.9,DNS:localhost\nextendedKeyUsage={usage}\n"
        );
        room.write("names.txt", names.as_bytes());
        let signed = format!(
            "x509 -req -in ROOM/{name}.csr -CA ROOM/ca.crt -CAkey ROOM/ca.key -CAcreateserial -days 2 -extfile \
             ROOM/names.txt -out ROOM/{name}.crt"
        );
        openssl(room, &signed);
    }
}

/// Puts files into the folder of certificates of a registry.
pub fn trust(room: &Room, registry: &str, files: &[(&str, &str)]) {
    let folder = room.path("certs.d").join(registry);
    std::fs::create_dir_all(&folder).unwrap();
    for (from, to) in files {
        std::fs::copy(room.path(from), folder.join(to)).unwrap();
    }
}

pub fn tls(room: &Room, more: &str) -> Setup {
    let at = |name: &str| room.path(name).display().to_string();
    Setup {
        http: format!(
            "  tls:\n    certificate: {}\n    key: {}\n{}",
            at("server.crt"),
            at("server.key"),
            more.replace("ROOM", room.0.to_str().unwrap()),
        ),
        ..Setup::default()
    }
}

fn password(text: &str) -> serde_json::Value {
    json!({ "credentials": [{ "username": "user", "password": text }] })
}

#[test]
fn a_registry_with_tls_needs_an_authority_that_is_trusted() {
    let room = Room::new("tls");
    certificates(&room);
    let setup = tls(&room, "");
    let world = World::inside(room, &setup);
    world.push_layers("a:1", &SIZES);
    let name = format!("{}/a:1", world.registry);
    let (message, hint) = world.refused(&world.request(&name, &json!({})));
    assert!(
        message.contains("invalid peer certificate: UnknownIssuer"),
        "{message}"
    );
    assert!(hint.contains("/etc/containers/certs.d"), "{hint}");
    trust(&world.room, "127.0.0.1:5000", &[("ca.crt", "ca.crt")]);
    assert_layers(&world.pull(&name), &SIZES);
    // Without `/etc/hosts` in a minimal system.
    trust(&world.room, "localhost:5000", &[("ca.crt", "ca.crt")]);
    assert_layers(&world.pull("localhost:5000/a:1"), &SIZES);
}

#[test]
fn a_registry_may_have_a_certificate_that_it_signed_itself() {
    let room = Room::new("self-signed");
    // As `openssl req -x509` makes them, they say that they are authorities.
    for name in ["server", "other"] {
        openssl(
            &room,
            &format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=registry -addext \
                 subjectAltName=IP:127.0.0.1 -keyout ROOM/{name}.key -out ROOM/{name}.crt"
            ),
        );
    }
    let setup = tls(&room, "");
    let world = World::inside(room, &setup);
    world.push_layers("a:1", &SIZES);
    let name = format!("{}/a:1", world.registry);
    trust(&world.room, "127.0.0.1:5000", &[("other.crt", "ca.crt")]);
    let (message, _) = world.refused(&world.request(&name, &json!({})));
    assert!(message.contains("invalid peer certificate"), "{message}");
    trust(&world.room, "127.0.0.1:5000", &[("server.crt", "ca.crt")]);
    assert_layers(&world.pull(&name), &SIZES);
    trust(&world.room, "localhost:5000", &[("server.crt", "ca.crt")]);
    let elsewhere = world.request("localhost:5000/a:1", &json!({}));
    let (message, _) = world.refused(&elsewhere);
    assert!(
        message.contains("not valid for name \"localhost\""),
        "{message}"
    );
}

#[test]
fn a_registry_may_ask_for_a_client_certificate() {
    let room = Room::new("client");
    certificates(&room);
    // skopeo pushes through a second server without TLS on the same files.
    let open = World::inside(room, &Setup::default());
    open.push_layers("a:1", &SIZES);
    let guarded = {
        let setup = tls(&open.room, "    clientcas: [ROOM/ca.crt]\n");
        let setup = Setup {
            port: 5443,
            ..setup
        };
        let room = Room::new("client-guarded");
        std::fs::create_dir_all(room.path("registry")).unwrap();
        copy_tree(&open.room.path("registry"), &room.path("registry"));
        for file in ["ca.crt", "client.crt", "client.key", "server.key"] {
            std::fs::copy(open.room.path(file), room.path(file)).unwrap();
        }
        World::inside(room, &setup)
    };
    let name = format!("{}/a:1", guarded.registry);
    trust(&guarded.room, "127.0.0.1:5443", &[("ca.crt", "ca.crt")]);
    let (message, _) = guarded.refused(&guarded.request(&name, &json!({})));
    assert!(message.contains("127.0.0.1:5443"), "{message}");
    trust(
        &guarded.room,
        "127.0.0.1:5443",
        &[("client.crt", "client.cert"), ("server.key", "client.key")],
    );
    let (message, _) = guarded.refused(&guarded.request(&name, &json!({})));
    assert!(
        message.contains("client.key` cannot be used"),
        "the key of another: {message}"
    );
    trust(
        &guarded.room,
        "127.0.0.1:5443",
        &[("client.key", "client.key")],
    );
    assert_layers(&guarded.pull(&name), &SIZES);
    // Without extensions openssl makes one of version 1.
    openssl(
        &open.room,
        "x509 -req -in ROOM/client.csr -CA ROOM/ca.crt -CAkey ROOM/ca.key -CAcreateserial -days 2 -out ROOM/v1.crt",
    );
    std::fs::copy(open.room.path("v1.crt"), guarded.room.path("v1.crt")).unwrap();
    trust(
        &guarded.room,
        "127.0.0.1:5443",
        &[("v1.crt", "client.cert")],
    );
    let said = guarded.fetch_by(&guarded.request(&name, &json!({})));
    assert_ne!(said["type"], "error", "{said}");
}

fn copy_tree(from: &Path, to: &Path) {
    let (from, to) = (format!("{}/.", from.display()), to.display().to_string());
    run("cp", &["-r".to_owned(), from, to]);
}

#[test]
fn a_password_is_needed_right_and_seen_by_nobody() {
    let room = Room::new("basic");
    room.write("htpasswd", HTPASSWD);
    let more = format!(
        "auth: {{htpasswd: {{realm: r, path: {}}}}}",
        room.path("htpasswd").display()
    );
    let world = World::inside(
        room,
        &Setup {
            more,
            ..Setup::default()
        },
    );
    let archive = crate::fixture::busybox(&world.room);
    world.push(&archive, "a/b:1", &["--dest-creds", "user:open sesame"]);
    let name = format!("{}/a/b:1", world.registry);
    let (message, hint) = world.refused(&world.request(&name, &json!({})));
    let expected = format!(
        "the registry `{}` refuses access to `a/b`: unauthorized",
        world.registry
    );
    assert!(message.starts_with(&expected), "{message}");
    assert!(hint.contains("/etc/coracle/auth.json"), "{hint}");
    let (message, hint) = world.refused(&world.request(&name, &password("wrong")));
    assert!(
        message.starts_with(&expected) && !message.contains("wrong"),
        "{message}"
    );
    assert!(
        hint.starts_with("check the name, and the credentials"),
        "{hint}"
    );

    let child = world.start(&world.request(&name, &password("open sesame")), &[]);
    for file in ["cmdline", "environ"] {
        let seen = std::fs::read(format!("/proc/{}/{file}", child.id())).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&seen).contains("sesame"), "{file}");
    }
    let fetched = last_line(child);
    assert!(
        world.import(&fetched, &name).layers[0]
            .join("bin/busybox")
            .exists()
    );
    for entry in walk(&world.room.store()) {
        let text = std::fs::read(&entry).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&text).contains("open sesame"),
            "{}",
            entry.display()
        );
    }
}

fn walk(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(walk(&entry.path())),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// Serves tokens that count up, and remembers what it was asked with.
fn token_server(world: &World) -> (Proxy, Arc<AtomicUsize>) {
    let server = Proxy::start(&world.netns, None);
    let issued = Arc::new(AtomicUsize::new(0));
    let count = issued.clone();
    server.rule(move |ask| {
        let wanted = "Basic dXNlcjpvcGVuIHNlc2FtZQ==";
        if ask
            .header("authorization")
            .is_some_and(|sent| sent != wanted)
        {
            return Deed::Answer(401, vec![], b"{}".to_vec());
        }
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        let body = json!({ "token": format!("token{number}"), "expires_in": 60 });
        Deed::Answer(200, vec![], body.to_string().into_bytes())
    });
    (server, issued)
}

#[test]
fn tokens_are_fetched_with_credentials_and_again_when_they_expire() {
    let world = World::new("token");
    world.push_layers("a/b:1", &SIZES);
    let (server, issued) = token_server(&world);
    let proxy = world.proxy();
    let realm = format!("http://{}/token", server.address);
    let counts = issued.clone();
    proxy.rule(move |ask| {
        // The second half needs a newer token.
        let newest = counts.load(Ordering::SeqCst);
        let needed = if ask.is_blob() {
            newest.max(2)
        } else {
            newest.max(1)
        };
        if ask.header("authorization") == Some(&format!("Bearer token{needed}")) {
            return Deed::Pass;
        }
        let challenge = format!(
            r#"Bearer realm="{realm}",service="registry.test",scope="repository:a/b:pull""#
        );
        Deed::Answer(401, vec![("WWW-Authenticate", challenge)], b"{}".to_vec())
    });
    let name = format!("{}/a/b:1", proxy.address);
    let fetched = world.fetch_by(&world.request(&name, &password("open sesame")));
    assert_layers(&world.import(&fetched, &name), &SIZES);
    assert_eq!(
        issued.load(Ordering::SeqCst),
        2,
        "one at first, one when it had expired, for all layers"
    );
    for ask in server.asked() {
        assert_eq!(
            ask.path,
            "/token?scope=repository%3Aa%2Fb%3Apull&service=registry.test"
        );
        assert_eq!(
            ask.header("authorization"),
            Some("Basic dXNlcjpvcGVuIHNlc2FtZQ==")
        );
    }
    assert!(
        proxy.asked().iter().all(|ask| {
            ask.header("authorization")
                .is_none_or(|sent| sent.starts_with("Bearer "))
        }),
        "the password goes to the token server only"
    );

    let (message, _) =
        world.refused(&world.request(&format!("{}/a/b:2", proxy.address), &password("wrong")));
    assert!(message.contains("refuses access to `a/b`"), "{message}");
}

#[test]
fn a_token_server_that_is_not_encrypted_gets_no_password() {
    let world = World::new("plainrealm");
    world.push_layers("a:1", &SIZES);
    let proxy = world.proxy();
    for (realm, part) in [
        (
            "http://10.9.8.7/token",
            "`http://10.9.8.7` would be asked without encryption",
        ),
        (
            "file:///etc/shadow",
            "its scheme is neither `https` nor `http`",
        ),
    ] {
        proxy.rule(move |_| {
            let challenge = format!(r#"Bearer realm="{realm}""#);
            Deed::Answer(401, vec![("WWW-Authenticate", challenge)], b"{}".to_vec())
        });
        let name = format!("{}/a:1", proxy.address);
        let (message, _) = world.refused(&world.request(&name, &password("secret")));
        assert!(
            message.contains(part) && !message.contains("secret"),
            "{message}"
        );
    }
}

#[test]
fn credentials_never_follow_a_redirect_to_another_host() {
    let world = World::new("redirect");
    world.push_layers("a:1", &SIZES);
    let (front, storage) = (world.proxy(), world.proxy());
    let to = storage.address;
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    front.rule(move |ask| {
        if ask.header("authorization").is_none() {
            let headers = vec![("WWW-Authenticate", "Basic realm=r".to_owned())];
            return Deed::Answer(401, headers, b"{}".to_vec());
        }
        *count.lock().unwrap() += 1;
        match ask.is_blob() {
            true => Deed::Answer(
                307,
                vec![("Location", format!("http://{to}{}?sig=secret", ask.path))],
                Vec::new(),
            ),
            false => Deed::Pass,
        }
    });
    let name = format!("{}/a:1", front.address);
    let fetched = world.fetch_by(&world.request(&name, &password("open sesame")));
    assert_layers(&world.import(&fetched, &name), &SIZES);
    assert!(*asked.lock().unwrap() >= 4);
    let seen = storage.asked();
    assert!(seen.len() >= 3, "config and layers: {seen:?}");
    assert!(seen.iter().all(|ask| ask.header("authorization").is_none()));
    // The query of a storage service is a secret, too.
    storage.rule(|_| Deed::Answer(403, vec![], b"{}".to_vec()));
    world
        .room
        .open()
        .prune(&std::collections::BTreeSet::new(), true)
        .unwrap();
    let (message, _) = world.refused(&world.request(&name, &password("open sesame")));
    assert!(
        message.contains("the server answered 403") && !message.contains("sig"),
        "{message}"
    );
}

#[test]
fn plain_http_is_for_this_machine_or_for_registries_that_are_listed() {
    let world = World::new("plain");
    world.netns.ip("addr add 10.9.9.9/32 dev lo");
    world.push_layers("a:1", &SIZES);
    let relay = Relay::start(&world, "10.9.9.9:5001");
    let request = |more| world.request("10.9.9.9:5001/a:1", &more);
    let (message, hint) = world.refused(&request(json!({})));
    assert!(message.contains("https://10.9.9.9:5001"), "{message}");
    assert!(hint.contains("coracle.plainHTTPRegistries"), "{hint}");
    let fetched = world.fetch_by(&request(json!({ "plain_http": ["10.9.9.9:5001"] })));
    assert_layers(&world.import(&fetched, "10.9.9.9:5001/a:1"), &SIZES);
    drop(relay);
}

/// Passes connections on: raw, or after a `CONNECT`.
pub struct Relay {
    connects: Arc<Mutex<Vec<String>>>,
}

impl Relay {
    pub fn start(world: &World, at: &'static str) -> Self {
        let listener = world.netns.run(|| TcpListener::bind(at)).unwrap();
        let connects = Arc::new(Mutex::new(Vec::new()));
        let (seen, to) = (connects.clone(), world.registry);
        world.netns.run(move || {
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    let seen = seen.clone();
                    std::thread::spawn(move || {
                        let mut start = [0; 7];
                        let _ = stream.peek(&mut start);
                        if &start == b"CONNECT" {
                            let mut head = Vec::new();
                            let mut byte = [0; 1];
                            while !head.ends_with(b"\r\n\r\n")
                                && stream.read(&mut byte).unwrap_or(0) > 0
                            {
                                head.push(byte[0]);
                            }
                            seen.lock()
                                .unwrap()
                                .push(String::from_utf8_lossy(&head).into_owned());
                            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                        }
                        let Ok(mut up) = TcpStream::connect(to) else {
                            return;
                        };
                        let (mut back, mut forth) =
                            (up.try_clone().unwrap(), stream.try_clone().unwrap());
                        std::thread::spawn(move || {
                            let _ = std::io::copy(&mut back, &mut forth);
                            let _ = forth.shutdown(std::net::Shutdown::Both);
                        });
                        let _ = std::io::copy(&mut stream, &mut up);
                        let _ = up.shutdown(std::net::Shutdown::Both);
                    });
                }
            });
        });
        Self { connects }
    }
}

#[test]
fn a_proxy_of_the_environment_is_used_but_never_for_this_machine() {
    let room = Room::new("proxy");
    certificates(&room);
    let setup = tls(&room, "");
    let world = World::inside(room, &setup);
    world.netns.ip("addr add 10.9.9.9/32 dev lo");
    world.push_layers("a:1", &SIZES);
    let relay = Relay::start(&world, "127.0.0.1:3128");
    trust(&world.room, "10.9.9.9:5000", &[("ca.crt", "ca.crt")]);
    trust(&world.room, "127.0.0.1:5000", &[("ca.crt", "ca.crt")]);
    let fetch = |name: &str, variables: &[(&str, &str)]| {
        last_line(world.start(&world.request(name, &json!({})), variables))
    };
    let proxy = ("HTTPS_PROXY", "http://me:secret@127.0.0.1:3128");
    // Nothing listens there: it is reached through the proxy only.
    let said = fetch("10.9.9.9:5000/a:1", &[proxy, ("NO_PROXY", "10.0.0.0/8")]);
    assert!(
        said["message"].to_string().contains("Connection refused"),
        "{said}"
    );
    assert_layers(
        &world.import(&fetch("10.9.9.9:5000/a:1", &[proxy]), "10.9.9.9:5000/a:1"),
        &SIZES,
    );
    let connects = relay.connects.lock().unwrap().clone();
    assert!(
        connects[0].starts_with("CONNECT 10.9.9.9:5000 HTTP/1.1\r\n"),
        "{connects:?}"
    );
    assert!(
        connects[0]
            .to_ascii_lowercase()
            .contains("proxy-authorization: basic"),
        "{connects:?}"
    );
    assert_layers(
        &world.import(&fetch("127.0.0.1:5000/a:1", &[proxy]), "127.0.0.1:5000/a:1"),
        &SIZES,
    );
    assert_eq!(relay.connects.lock().unwrap().len(), connects.len());
    let said = fetch(
        "10.9.9.9:5000/a:2",
        &[("HTTPS_PROXY", "socks5://me:secret@127.0.0.1:1")],
    );
    let message = said["message"].to_string();
    assert!(
        message.contains("SOCKS is not supported") && !message.contains("secret"),
        "{message}"
    );
}

#[test]
fn a_proxy_is_asked_for_plain_http_without_a_tunnel_and_named_in_errors() {
    let world = World::new("forward");
    world.netns.ip("addr add 10.9.9.9/32 dev lo");
    world.push_layers("a:1", &SIZES);
    let proxy = Proxy::start_at(&world.netns, Some(world.registry), "127.0.0.1:3128");
    // Nothing listens there: it is reached through the proxy only.
    let name = "10.9.9.9:5001/a:1";
    let plain = json!({ "plain_http": ["10.9.9.9:5001"] });
    let fetch = |proxy: &str| {
        let child = world.start(&world.request(name, &plain), &[("HTTP_PROXY", proxy)]);
        last_line(child)
    };
    let fetched = fetch("http://me:secret@127.0.0.1:3128");
    assert_layers(&world.import(&fetched, name), &SIZES);
    let asked = proxy.asked();
    assert!(asked.len() > SIZES.len(), "{asked:?}");
    for ask in asked {
        let begin = "http://10.9.9.9:5001/v2/";
        assert!(ask.path.starts_with(begin), "{ask:?}");
        assert_eq!(ask.header("host"), Some("10.9.9.9:5001"), "{ask:?}");
        let login = ask.header("proxy-authorization");
        assert_eq!(login, Some("Basic bWU6c2VjcmV0"), "{ask:?}");
    }
    proxy.rule(|_| Deed::Answer(407, Vec::new(), Vec::new()));
    for (proxy, expected) in [
        (
            "http://me:secret@127.0.0.1:1",
            "through the proxy `http://127.0.0.1:1`: Connection refused",
        ),
        (
            "http://me:secret@127.0.0.1:3128",
            "through the proxy `http://127.0.0.1:3128`: it refused: it asks for a user",
        ),
    ] {
        let said = fetch(proxy);
        let message = said["message"].to_string();
        assert!(message.contains(expected), "{said}");
        assert!(said["hint"].to_string().contains("`HTTP_PROXY`"), "{said}");
        assert!(!said.to_string().contains("secret"), "{said}");
    }
}
