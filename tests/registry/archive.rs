//! A bundle's archive on a web server, fetched by the worker: what servers do to interrupted downloads.

use std::io::{self, Write};
use std::path::Path;

use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};

use crate::proxy::{Ask, Deed, Proxy};
use crate::world::{World, noise};

const SIZE: usize = 600_000;

struct Place {
    world: World,
    proxy: Proxy,
}

impl Place {
    fn new(name: &str) -> Self {
        let world = World::new(name);
        let proxy = Proxy::start(&world.netns, None);
        Self { world, proxy }
    }

    fn request(&self, more: &Value) -> Value {
        let url = format!("http://{}/site.tar", self.proxy.address);
        let mut request = self.world.request(&url, more);
        request["sources"] = json!([]);
        request["bundle"] = true.into();
        request
    }

    fn fetch(&self, more: &Value) -> Value {
        let said = self.world.fetch_by(&self.request(more));
        assert_eq!(said["type"], "fetched", "{said}");
        said
    }

    /// Fetches the archive, which is as it was made.
    fn assert_arrives(&self, expected: &[u8]) {
        let said = self.fetch(&json!({}));
        let path = said["folder"].as_str().expect("an archive");
        assert!(std::fs::read(path).unwrap() == expected, "it differs");
    }

    fn ranges(&self) -> Vec<Option<String>> {
        let asked = self.proxy.asked();
        let range = |ask: &Ask| ask.header("range").map(str::to_owned);
        asked.iter().map(range).collect()
    }
}

/// An answer with all of `length` announced, however long its body is.
fn answer(status: u16, headers: &[(&'static str, &str)], length: usize, body: &[u8]) -> Deed {
    let own = ("Content-Length", length.to_string());
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Deed::Answer(status, headers.chain([own]).collect(), body.to_vec())
}

#[test]
fn a_download_goes_on_only_where_its_server_names_it() {
    // What the server says of the data, whether it is asked for the rest, and whether it takes that.
    const DATED: (&str, &str) = ("Last-Modified", "Mon, 23 Nov 2026 10:00:00 GMT");
    type Case = (
        &'static str,
        &'static [(&'static str, &'static str)],
        bool,
        bool,
    );
    let cases: [Case; 5] = [
        ("etag", &[("ETag", "\"1\"")], true, true),
        ("date", &[DATED], true, true),
        ("weak", &[("ETag", "W/\"1\"")], false, false),
        ("unnamed", &[], false, false),
        ("whole", &[("ETag", "\"1\"")], true, false),
    ];
    for (name, headers, asks, takes) in cases {
        let place = Place::new(&format!("archive-{name}"));
        let data = noise(5, SIZE);
        let (sent, named) = (data.clone(), headers.to_vec());
        place
            .proxy
            .rule(move |ask| match (ask.earlier, ask.header("range")) {
                (0, _) => answer(200, &named, SIZE, &sent[..200_000]),
                (_, Some(range)) if takes => {
                    assert_eq!(range, "bytes=200000-");
                    let mut named = named.clone();
                    named.push(("Content-Range", "bytes 200000-599999/600000"));
                    answer(206, &named, SIZE - 200_000, &sent[200_000..])
                }
                _ => answer(200, &named, SIZE, &sent),
            });
        place.assert_arrives(&data);
        let ranges = place.ranges();
        assert_eq!(ranges.len(), 2, "{name}: {ranges:?}");
        assert_eq!(ranges[1].is_some(), asks, "{name}: {ranges:?}");
    }
}

#[test]
fn pieces_of_another_archive_are_never_put_together() {
    let other = noise(6, SIZE);
    for (case, status, etag, range) in [
        // It has changed, and the server sees it.
        ("changed", 200, "\"2\"", ""),
        // It has changed, and the server sends its rest all the same.
        ("mixed", 206, "\"2\"", "bytes 200000-599999/600000"),
        // A part that was not asked for.
        ("elsewhere", 206, "\"1\"", "bytes 100000-599999/600000"),
        ("unclear", 206, "\"1\"", ""),
    ] {
        let place = Place::new(&format!("archive-{case}"));
        let (old, new) = (noise(5, SIZE), other.clone());
        place.proxy.rule(move |ask| match (ask.earlier, status) {
            (0, _) => answer(200, &[("ETag", "\"1\"")], SIZE, &old[..200_000]),
            (1, 206) => {
                let headers = [("ETag", etag), ("Content-Range", range)];
                answer(206, &headers, SIZE - 200_000, &new[200_000..])
            }
            _ => answer(200, &[("ETag", "\"2\"")], SIZE, &new),
        });
        place.assert_arrives(&other);
    }
}

#[test]
fn what_is_known_or_there_is_not_sent_again() {
    let place = Place::new("archive-known");
    let data = noise(5, SIZE);
    let sent = data.clone();
    place
        .proxy
        .rule(move |ask| match ask.header("if-none-match") {
            Some("W/\"1\"") => answer(304, &[("ETag", "W/\"1\"")], 0, b""),
            _ => answer(200, &[("ETag", "W/\"1\"")], SIZE, &sent),
        });
    let known = json!({ "known": ["W/\"1\""] });
    assert_eq!(place.fetch(&known)["id"], "");
    place.assert_arrives(&data);
    // It has not been applied yet.
    place.assert_arrives(&data);
    let held = place.proxy.asked();
    let held = held.iter().map(|ask| ask.header("if-none-match").is_some());
    assert_eq!(held.collect::<Vec<_>>(), [true, false, true]);
    // Nor is it where all of it had arrived when the worker ended.
    let folder = place.fetch(&json!({}))["folder"].clone();
    let archive = Path::new(folder.as_str().unwrap()).to_owned();
    place.proxy.reset();
    place.proxy.rule(|_| answer(404, &[], 0, b""));
    let (message, _) = place.world.refused(&place.request(&json!({})));
    assert!(
        message.contains("/site.tar") && message.contains("404"),
        "{message}"
    );
    assert!(
        archive.is_file(),
        "a server that is out of order takes nothing away"
    );
}

#[test]
fn an_endless_archive_leaves_the_disk_as_it_was() {
    fn endless(out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"HTTP/1.1 200 X\r\nETag: \"1\"\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let zeros = vec![b'0'; 64 << 10];
        loop {
            out.write_all(b"10000\r\n")?;
            out.write_all(&zeros)?;
            out.write_all(b"\r\n")?;
        }
    }
    let place = Place::new("archive-endless");
    place.proxy.rule(|_| Deed::Say(endless));
    let disk = statvfs(&place.world.room.0).unwrap();
    let free = disk.blocks_available() * disk.fragment_size();
    let keep = json!({ "keep_bytes": free.saturating_sub(64 << 20) });
    let (message, hint) = place.world.refused(&place.request(&keep));
    assert!(message.contains("no space left"), "{message}");
    assert!(hint.contains("free space"), "{hint}");
    let pulls = place.world.room.store().join("pulls");
    let folder = pulls.read_dir().unwrap().next().unwrap().unwrap().path();
    for file in folder.join("partial").read_dir().unwrap().flatten() {
        assert!(file.metadata().unwrap().len() < 1000, "{file:?}");
    }
    // A length that the disk cannot hold is refused at once.
    place.proxy.reset();
    place
        .proxy
        .rule(|_| answer(200, &[("ETag", "\"1\"")], 1 << 60, b"x"));
    let (message, _) = place.world.refused(&place.request(&json!({})));
    assert!(message.contains("no space left"), "{message}");
    assert_eq!(place.proxy.asked().len(), 1);
}

#[test]
fn redirects_end() {
    let place = Place::new("archive-redirects");
    place
        .proxy
        .rule(|_| answer(302, &[("Location", "/site.tar")], 0, b""));
    let (message, _) = place.world.refused(&place.request(&json!({})));
    assert!(message.contains("more than 10 redirects"), "{message}");
}

#[test]
fn a_server_that_makes_it_begin_again_and_again_is_given_up() {
    let place = Place::new("archive-again");
    place
        .proxy
        .rule(|ask| match (ask.header("range"), ask.earlier % 4) {
            (None, _) => answer(200, &[("ETag", "\"1\"")], SIZE, &noise(5, 20 << 10)),
            (_, 1) => {
                let headers = [
                    ("ETag", "\"2\""),
                    ("Content-Range", "bytes 20480-599999/600000"),
                ];
                answer(206, &headers, SIZE - (20 << 10), b"")
            }
            _ => answer(416, &[], 0, b""),
        });
    place.world.refused(&place.request(&json!({})));
    assert!(place.proxy.asked().len() < 6, "{:?}", place.ranges());
}

#[test]
fn no_more_is_taken_than_was_announced() {
    fn chunks(parts: &[&[u8]]) -> Vec<u8> {
        let all = parts.iter().flat_map(|part| {
            let head = format!("{:x}\r\n", part.len()).into_bytes();
            [head, part.to_vec(), b"\r\n".to_vec()].concat()
        });
        all.collect()
    }
    let (data, more) = (noise(5, SIZE), noise(6, SIZE));
    for (name, shorter) in [("more", false), ("shorter", true)] {
        let place = Place::new(&format!("archive-{name}"));
        let (sent, more) = (data.clone(), more.clone());
        place.proxy.rule(move |ask| match ask.earlier {
            0 => answer(200, &[("ETag", "\"1\"")], SIZE, &sent[..200_000]),
            _ if shorter => answer(200, &[("ETag", "\"1\"")], 100_000, &sent[..100_000]),
            // No end follows.
            _ => Deed::Answer(
                206,
                vec![
                    ("ETag", "\"1\"".to_owned()),
                    ("Content-Range", "bytes 200000-599999/600000".to_owned()),
                    ("Transfer-Encoding", "chunked".to_owned()),
                ],
                chunks(&[&sent[200_000..], &more]),
            ),
        });
        place.assert_arrives(&data[..if shorter { 100_000 } else { SIZE }]);
        assert_eq!(place.proxy.asked().len(), 2, "{name}");
    }
}

#[test]
fn an_archive_without_a_length_has_a_name_that_does_not_say_that_all_is_there() {
    for (etag, named) in [
        ("\"1\"", json!("\"1\"")),
        ("W/\"1\"", json!("W/\"1\"")),
        ("1", json!(null)),
    ] {
        let place = Place::new(&format!("archive-unsized-{}", etag.len()));
        place.proxy.rule(move |_| {
            let headers = [("ETag", etag), ("Transfer-Encoding", "chunked")];
            let headers = headers.map(|(name, value)| (name, value.to_owned()));
            Deed::Answer(200, headers.to_vec(), b"3\r\nabc\r\n0\r\n\r\n".to_vec())
        });
        assert_eq!(place.fetch(&json!({}))["validator"], named, "{etag}");
        place.assert_arrives(b"abc");
        let asked = place.proxy.asked();
        assert!(
            asked
                .iter()
                .all(|ask| ask.header("if-none-match").is_none())
        );
    }
}

#[test]
fn what_was_removed_is_not_asked_for_by_its_name() {
    let place = Place::new("archive-removed");
    let data = noise(5, SIZE);
    let sent = data.clone();
    place
        .proxy
        .rule(move |ask| match ask.header("if-none-match") {
            _ if ask.earlier == 0 => answer(200, &[("ETag", "\"1\"")], SIZE, &sent),
            _ if ask.earlier == 1 => answer(200, &[], SIZE, &sent[..1000]),
            Some(_) => answer(304, &[], 0, b""),
            None => answer(200, &[("ETag", "\"2\"")], SIZE, &sent),
        });
    place.assert_arrives(&data);
    place.assert_arrives(&data);
}
