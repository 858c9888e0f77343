//! Servers that want to hold a worker, or to fill it: each ends in a clear error within the time-outs, and little of
//! what it says is read.

use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::proxy::{Ask, Deed, Proxy, Speech};
use crate::world::World;

/// The time-outs of these tests, and what the machine's other work may add.
const TIME_OUT_MS: u64 = 2_000;
const BOUND: Duration = Duration::from_secs(25);

/// What a worker takes of an endless answer: its buffers, those of the kernel, and the limit of what is read.
const MAX_TAKEN_BYTES: u64 = 24 << 20;

/// Pauses between the drops of a slow answer.
const PAUSE: Duration = Duration::from_millis(100);

struct Place {
    world: World,
    proxy: Proxy,
    name: String,
}

fn place(name: &str) -> Place {
    let world = World::new(name);
    world.push_layers("a:1", &[300_000]);
    let proxy = world.proxy();
    let name = format!("{}/a:1", proxy.address);
    Place { world, proxy, name }
}

impl Place {
    fn request(&self) -> Value {
        let patience = json!({
            "connect_ms": 3 * TIME_OUT_MS, "answer_ms": TIME_OUT_MS, "stall_ms": TIME_OUT_MS,
            "window_ms": TIME_OUT_MS,
        });
        self.world
            .request(&self.name, &json!({ "patience": patience }))
    }

    /// Asserts that a fetch under this rule ends in an error with one of the `parts`, in time.
    fn assert_ends(
        &self,
        what: &str,
        parts: &[&str],
        rule: impl Fn(&Ask) -> Deed + Send + Sync + 'static,
    ) {
        self.proxy.reset();
        self.proxy.rule(rule);
        let begun = Instant::now();
        let (message, _) = self.world.refused(&self.request());
        let taken = begun.elapsed();
        assert!(
            parts.iter().any(|part| message.contains(part)),
            "{what}: {message}"
        );
        assert!(message.len() < 2000, "{what}: {} bytes", message.len());
        assert!(taken < BOUND, "{what}: {taken:?}");
        let said = self.proxy.said_bytes();
        assert!(said < MAX_TAKEN_BYTES, "{what}: {said} bytes were taken");
    }
}

fn is_manifest(ask: &Ask) -> bool {
    ask.path.contains("/manifests/")
}

fn said(on: fn(&Ask) -> bool, speech: Speech) -> impl Fn(&Ask) -> Deed {
    move |ask| match on(ask) {
        true => Deed::Say(speech),
        false => Deed::Pass,
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\n";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

fn repeat(out: &mut dyn Write, begin: &[u8], piece: &[u8]) -> io::Result<()> {
    out.write_all(begin)?;
    let many = piece.repeat((64 << 10) / piece.len() + 1);
    for _ in 0..1600 {
        out.write_all(&many)?;
    }
    Ok(())
}

fn drip(out: &mut dyn Write, begin: &[u8], drops: &[u8]) -> io::Result<()> {
    out.write_all(begin)?;
    for byte in drops.iter().cycle() {
        out.write_all(&[*byte])?;
        sleep(PAUSE);
    }
    Ok(())
}

#[test]
fn a_hundred_megabytes_where_a_few_bytes_belong_are_not_read() {
    let place = place("flood");
    let head = ["the head of the answer is longer than", "too many headers"];
    let cases: [(&str, &[&str], Speech); 7] = [
        ("one long header", &head, |out| {
            repeat(out, b"HTTP/1.1 200 OK\r\nX-Long: ", b"x")
        }),
        ("many headers", &head, |out| {
            repeat(out, OK, b"X-Many: 1234567890\r\n")
        }),
        ("a long name of a header", &head, |out| {
            repeat(out, OK, b"x")
        }),
        ("a long first line", &head, |out| {
            repeat(out, b"HTTP/1.1 200 ", b"OK ")
        }),
        ("no HTTP", &["HTTP"], |out| {
            repeat(out, b"", b"\0\x01\x02\xff")
        }),
        ("preliminary answers", &["http", "HTTP", "in time"], |out| {
            repeat(out, b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        }),
        (
            "a long manifest",
            &["is longer than 4194304 bytes"],
            |out| repeat(out, b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b" "),
        ),
    ];
    for (what, parts, speech) in cases {
        place.assert_ends(what, parts, said(is_manifest, speech));
    }
    let cases: [(&str, Speech); 3] = [
        ("a long length of a chunk", |out| repeat(out, CHUNKED, b"0")),
        ("a long extension of a chunk", |out| {
            repeat(out, CHUNKED, b"1;x=y")
        }),
        ("long trailers", |out| {
            out.write_all(CHUNKED)?;
            repeat(out, b"0\r\n", b"X-Many: 1234567890\r\n")
        }),
    ];
    for (what, speech) in cases {
        place.assert_ends(what, &[""], said(is_manifest, speech));
        place.assert_ends(what, &[""], said(Ask::is_blob, speech));
    }
}

#[test]
fn an_answer_that_comes_drop_by_drop_is_given_up() {
    let place = place("drops");
    let slow = ["in time", "fewer than 16384 bytes arrived in 2s"];
    let cases: [(&str, Speech); 6] = [
        ("a first line", |out| drip(out, b"HTTP/1.1 200 ", b"O")),
        ("headers", |out| drip(out, OK, b"X-Slow: 1\r\n")),
        ("preliminary answers", |out| {
            drip(out, b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")
        }),
        ("a manifest", |out| {
            drip(
                out,
                b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\n\r\n",
                b" ",
            )
        }),
        ("the length of a chunk", |out| drip(out, CHUNKED, b"0")),
        ("the extension of a chunk", |out| {
            drip(out, CHUNKED, b"1;xxxxxxxx")
        }),
    ];
    for (what, speech) in cases {
        place.assert_ends(what, &slow, said(is_manifest, speech));
        place.assert_ends(what, &slow, said(Ask::is_blob, speech));
    }
}

#[test]
fn a_handshake_that_comes_drop_by_drop_is_given_up() {
    let place = place("handshake");
    let server = place.world.netns.run(|| TcpListener::bind("127.0.0.1:0"));
    let server = server.unwrap();
    let address = server.local_addr().unwrap();
    // A registry with certificates speaks TLS.
    crate::access::certificates(&place.world.room);
    crate::access::trust(
        &place.world.room,
        &address.to_string(),
        &[("ca.crt", "ca.crt")],
    );
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        // The begin of a long record.
        let dripped = drip(&mut stream, &[0x16, 3, 3, 0x3f, 0xff], &[2]);
        done.send(dripped.is_err()).unwrap();
    });
    let mut request = place.request();
    let name = format!("{address}/a:1");
    request["name"] = name.as_str().into();
    request["sources"][0]["name"] = name.as_str().into();
    let begun = Instant::now();
    let (message, _) = place.world.refused(&request);
    assert!(message.contains("no connection in time"), "{message}");
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    assert!(ended.recv().unwrap(), "the connection is closed");
}

#[test]
fn a_length_that_is_none_is_no_reason_to_wait_or_to_believe() {
    let place = place("lengths");
    let cases: [(&str, &[&str], Speech); 6] = [
        ("negative", &["HTTP", "http", "ength"], |out| {
            out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}")
        }),
        ("words", &["HTTP", "http", "ength"], |out| {
            out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}")
        }),
        ("more than 64 bits", &["HTTP", "http", "ength"], |out| {
            out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}")
        }),
        (
            "two that differ",
            &["HTTP", "http", "ength", "manifest"],
            |out| {
                out.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
                )
            },
        ),
        (
            "more than there is",
            &["ended too early", "manifest"],
            |out| out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n{}"),
        ),
        ("none, and none of the rest", &["manifest"], |out| {
            out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n{\"schemaVersion\": 2}")
        }),
    ];
    for (what, parts, speech) in cases {
        place.assert_ends(what, parts, said(is_manifest, speech));
    }
    place.assert_ends("a blob", &["ended too early"], |ask| match ask.is_blob() {
        true => Deed::Cut(100),
        false => Deed::Pass,
    });
}

fn redirect(to: String) -> Deed {
    Deed::Answer(307, vec![("Location", to)], Vec::new())
}

#[test]
fn redirects_come_to_an_end() {
    let place = place("redirects");
    let many = ["more than 10 redirects"];
    place.assert_ends("to ever new places", &many, |ask| match ask.path.len() {
        length if length > 5 => redirect(format!("{}x", ask.path)),
        _ => Deed::Pass,
    });
    place.assert_ends("of a blob", &many, |ask| match ask.is_blob() {
        true => redirect(ask.path.clone()),
        false => Deed::Pass,
    });
    // From host to host, each by another name of this machine.
    let port = place.proxy.address.port();
    place.assert_ends("between hosts", &many, move |ask| {
        let here = ask.header("host").unwrap_or_default();
        let other = if here.starts_with("127.") {
            "localhost"
        } else {
            "127.0.0.1"
        };
        match ask.path.as_str() {
            "/v2/" => Deed::Pass,
            path => redirect(format!("http://{other}:{port}{path}")),
        }
    });
    place.assert_ends(
        "to a long address",
        &["is no location"],
        |ask| match is_manifest(ask) {
            true => redirect(format!("/{}", "x".repeat(60_000))),
            false => Deed::Pass,
        },
    );
    for to in [
        "file:///etc/shadow",
        "gopher://127.0.0.1/",
        "http://",
        "http://[",
        "//",
    ] {
        place.assert_ends(
            to,
            &["is no URL", "is no location"],
            move |ask| match is_manifest(ask) {
                true => redirect(to.to_owned()),
                false => Deed::Pass,
            },
        );
    }
}

#[test]
fn a_token_server_is_trusted_no_more_than_a_registry() {
    let place = place("tokens");
    let port = place.proxy.address.port();
    let challenge = move |ask: &Ask, token: fn(&Ask) -> Deed| match ask.path.as_str() {
        "/v2/" => Deed::Pass,
        path if path.starts_with("/token") => token(ask),
        _ => {
            let value = format!("Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"s\"");
            Deed::Answer(401, vec![("WWW-Authenticate", value)], b"{}".to_vec())
        }
    };
    type Case = (&'static str, &'static [&'static str], fn(&Ask) -> Deed);
    let cases: [Case; 5] = [
        ("endless", &["is longer than 262144 bytes"], |_| {
            Deed::Say(|out| repeat(out, b"HTTP/1.1 200 OK\r\n\r\n", b"{\"token\":\"xxx"))
        }),
        ("slow", &["in time", "fewer than 16384"], |_| {
            Deed::Say(|out| drip(out, b"HTTP/1.1 200 OK\r\n\r\n", b" "))
        }),
        ("in a circle", &["more than 10 redirects"], |ask| {
            redirect(ask.path.clone())
        }),
        ("no token", &["no token"], |_| {
            Deed::Answer(200, vec![], b"{}".to_vec())
        }),
        (
            "a token that is refused",
            &["denied", "refused", "401", "access"],
            |_| Deed::Answer(200, vec![], br#"{"token":"x"}"#.to_vec()),
        ),
    ];
    for (what, parts, token) in cases {
        place.assert_ends(what, parts, move |ask| challenge(ask, token));
    }
    // A description of an error is no place to send much, either.
    place.assert_ends(
        "a refusal without end",
        &["not in the registry", "404"],
        |ask| match is_manifest(ask) {
            true => Deed::Say(|out| repeat(out, b"HTTP/1.1 404 X\r\n\r\n", b"{\"errors\":[{}],")),
            false => Deed::Pass,
        },
    );
    place.assert_ends("challenges without end", &[""], |ask| {
        match ask.path.as_str() {
            "/v2/" => Deed::Pass,
            _ => {
                let value = "Basic realm=\"x\", ".repeat(3000);
                Deed::Answer(401, vec![("WWW-Authenticate", value)], b"{}".to_vec())
            }
        }
    });
}

#[test]
fn wrong_data_is_never_kept() {
    let place = place("wrong");
    place.assert_ends("a layer", &["is damaged: its digest is"], |ask| {
        match ask.is_blob() {
            true => Deed::Corrupt,
            false => Deed::Pass,
        }
    });
    // The same by digest: the registry says nothing about it that could be compared.
    let manifest = place.world.fetch(&place.name);
    assert_eq!(manifest["type"], "error", "the rule is still in force");
    let digest = format!("sha256:{}", "1".repeat(64));
    let name = format!("{}/a@{digest}", place.proxy.address);
    place.proxy.rule(|ask| match is_manifest(ask) {
        true => Deed::Answer(200, vec![], br#"{"schemaVersion":2}"#.to_vec()),
        false => Deed::Pass,
    });
    let (message, _) = place.world.refused(&place.world.request(&name, &json!({})));
    assert!(message.contains("is damaged: its digest is"), "{message}");
    let pulls = place.world.room.store().join("pulls");
    let mut blobs = Vec::new();
    for folder in std::fs::read_dir(pulls).unwrap() {
        let folder = folder.unwrap().path().join("blobs/sha256");
        blobs.extend(
            std::fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().path()),
        );
    }
    for blob in blobs {
        let name = blob.file_name().unwrap().to_str().unwrap();
        let bytes = std::fs::read(&blob).unwrap();
        assert_eq!(name, crate::fixture::sha(&bytes), "{blob:?}");
    }
}
