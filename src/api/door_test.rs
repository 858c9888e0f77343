//! Clients that hold places without progress: half requests, idle streams, readers that do not read.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::door::{Cost, MAX_WAITING, Patience};
use super::server_test::{Server, pod};
use super::*;

/// Deadline for what must happen at once, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

const WATCH: &str = "GET /api/v1/pods?watch=true HTTP/1.1\r\nHost: x\r\n\r\n";

fn quick() -> Patience {
    let short = Duration::from_millis(200);
    Patience {
        head: short,
        body: short,
        write: short,
        ..Patience::default()
    }
}

fn say(server: &Server, text: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&server.client.socket).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Reads the answer's head.
fn head(stream: &mut UnixStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

/// Reads until the connection is closed.
fn rest(mut stream: UnixStream) -> String {
    let mut text = String::new();
    match stream.read_to_string(&mut text) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => text,
    }
}

/// Waits until the server has closed its side, whatever is left to read.
fn wait_closed(stream: &UnixStream) {
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    let patience = PollTimeout::try_from(SOON).unwrap();
    assert_eq!(poll(&mut fds, patience).unwrap(), 1, "it stays open");
}

#[test]
fn half_requests_and_streams_do_not_block_short_requests() {
    let server = Server::start("door");
    server.store.upsert_pod(pod("web", "Running"));
    let watches: Vec<UnixStream> = (0..Cost::Watch.most())
        .map(|_| say(&server, WATCH))
        .collect();
    for mut watch in &watches {
        watch.read_exact(&mut [0; 64]).unwrap();
    }
    let delete = "DELETE /api/v1/namespaces/default/pods/web HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{";
    let plan = "POST /coracle/v1/plan HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n{";
    let halves = ["", "GET /api/v1/pods HT", delete, plan];
    let halves: Vec<UnixStream> = (0..4 * MAX_WAITING)
        .map(|at| say(&server, halves[at % halves.len()]))
        .collect();
    let began = Instant::now();
    assert_eq!(server.get("/api/v1/pods")["kind"], "PodList");
    let commands = server.commands.clone();
    let node = std::thread::spawn(move || match commands.recv_blocking().unwrap() {
        Command::DeletePod { reply, .. } => reply.try_send(Ok(())).unwrap(),
        other => panic!("{other:?}"),
    });
    let path = "/api/v1/namespaces/default/pods/web";
    server.client.json("DELETE", path, None).unwrap();
    node.join().unwrap();
    assert!(began.elapsed() < SOON / 2, "{:?}", began.elapsed());
    // The oldest connections were closed, the newest still wait.
    wait_closed(&halves[0]);

    let mut refused = say(&server, WATCH);
    let head = head(&mut refused);
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    assert!(head.contains("retry-after: 5\r\n"), "{head}");
    let error = server.refusal("GET", "/api/v1/pods?watch=true");
    assert!(
        error.contains("there are too many watches (at most 128 at once)"),
        "{error}"
    );
    drop(watches);
    let deadline = Instant::now() + SOON;
    while server
        .client
        .send("GET", "/api/v1/pods?watch=true", None)
        .is_err()
    {
        assert!(
            Instant::now() < deadline,
            "the places of watches that ended are not free"
        );
    }
}

#[test]
fn the_places_of_clients_that_are_gone_are_free_also_if_these_stopped_sending_before() {
    let log = "GET /api/v1/namespaces/default/pods/web/log?follow=true HTTP/1.1\r\nHost: x\r\n\r\n";
    for (request, cost, stops_sending) in [
        (WATCH, Cost::Watch, false),
        (WATCH, Cost::Watch, true),
        (log, Cost::Log, false),
    ] {
        let case = format!("gone-{cost:?}-{stops_sending}");
        let server = Server::start(&case);
        server.store.upsert_pod(pod("web", "Running"));
        let dir = server.dir.join("logs/default_web_uid-web/c");
        std::fs::create_dir_all(&dir).unwrap();
        let line = "2026-01-01T00:00:00Z stdout F hello\n";
        std::fs::write(dir.join("0.log"), line).unwrap();
        let begin = || {
            let mut stream = say(&server, request);
            if stops_sending {
                stream.shutdown(Shutdown::Write).unwrap();
            }
            let began = head(&mut stream).starts_with("HTTP/1.1 200");
            began.then_some(stream)
        };
        // Nothing more is written to them: no failed write frees their places.
        let idle: Vec<UnixStream> = (0..cost.most()).filter_map(|_| begin()).collect();
        assert_eq!(idle.len(), cost.most(), "{case}");
        assert!(begin().is_none(), "{case}: there is a place too many");
        drop(idle);
        let deadline = Instant::now() + SOON;
        let mut others = Vec::new();
        while others.len() < cost.most() {
            others.extend(begin());
            assert!(Instant::now() < deadline, "{case}: places are not free");
        }
    }
}

#[test]
fn a_client_that_closes_its_sending_direction_is_answered() {
    let server = Server::start("half-close");
    for number in 0..200 {
        server
            .store
            .upsert_pod(pod(&format!("web-{number}"), "Running"));
    }
    for (request, answer, answers) in [
        ("GET /healthz HTTP/1.0\r\n\r\n", "200 OK", 1),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "200 OK", 1),
        (
            "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
            "200 OK",
            2,
        ),
        ("GET /nothing HTTP/1.0\r\n\r\n", "404 Not Found", 1),
        ("GET /api/v1/pods HTTP/1.0\r\n\r\n", "200 OK", 1),
    ] {
        let mut stream = UnixStream::connect(&server.client.socket).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let shown = &request[..request.len().min(60)];
        assert_eq!(text.matches(answer).count(), answers, "{shown}: {text}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        assert!(body.len() >= length, "{shown}: {} {length}", body.len());
    }
}

#[test]
fn a_followed_log_ends_with_the_input_of_its_client() {
    let server = Server::start("followed");
    server.store.upsert_pod(pod("web", "Running"));
    let dir = server.dir.join("logs/default_web_uid-web/c");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("0.log"), "").unwrap();
    let log = "GET /api/v1/namespaces/default/pods/web/log?follow=true HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut stream = say(&server, log);
    stream.shutdown(Shutdown::Write).unwrap();
    stream.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_watcher_that_has_stopped_sending_is_told_of_changes() {
    let server = Server::start("silent-watcher");
    let mut watch = say(&server, WATCH);
    watch.shutdown(Shutdown::Write).unwrap();
    assert!(head(&mut watch).starts_with("HTTP/1.1 200"));
    for name in ["web", "db"] {
        server.store.upsert_pod(pod(name, "Running"));
        let mut text = String::new();
        while !text.contains("\"ADDED\"") || !text.contains(name) {
            let mut piece = [0; 4096];
            let length = watch.read(&mut piece).unwrap();
            assert!(length > 0, "it has ended: {text}");
            text += &String::from_utf8_lossy(&piece[..length]);
        }
    }
}

#[test]
fn each_request_of_a_kept_connection_is_answered_and_takes_its_place_by_itself() {
    let server = Server::start("keep-alive");
    let one = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut stream = say(&server, one);
    for _ in 0..2 * Cost::Short.most() {
        assert!(head(&mut stream).starts_with("HTTP/1.1 200"));
        stream.read_exact(&mut [0; 2]).unwrap();
        stream.write_all(one.as_bytes()).unwrap();
    }
}

#[test]
fn half_a_request_and_an_idle_connection_are_soon_closed_however_they_trickle() {
    let server = Server::start_with("slow", quick());
    for text in ["", "GET /healthz HTTP/1.1\r\nHost"] {
        let mut stream = say(&server, text);
        // A trickle of single bytes does not extend the deadline.
        let began = Instant::now();
        while stream.write_all(b"x").is_ok() {
            assert!(began.elapsed() < SOON, "it stays open after `{text}`");
            std::thread::sleep(Duration::from_millis(20)); // Slowness is what is tested.
        }
    }
    let body = "DELETE /api/v1/namespaces/default/pods/web HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{";
    let answer = rest(say(&server, body));
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(
        answer.contains("the request body did not arrive"),
        "{answer}"
    );
    let idle = rest(say(&server, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert!(idle.ends_with("ok"), "{idle}");
}

#[test]
fn an_archive_may_come_slowly_but_a_sender_that_stalls_ends_its_import() {
    const STALL: Duration = Duration::from_secs(1);
    let patience = Patience {
        upload: STALL,
        ..Patience::default()
    };
    let server = Server::start_with("upload", patience);
    let request = "POST /coracle/v1/images/import HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-tar\r\n\
                   Transfer-Encoding: chunked\r\n\r\n";
    let mut sender = say(&server, request);
    let command = server.commands.recv_blocking().unwrap();
    let Command::ImportImage {
        archive: ImageArchive::Sent(pieces),
        progress,
        ..
    } = command
    else {
        panic!("{command:?}");
    };
    assert!(head(&mut sender).starts_with("HTTP/1.1 200"));
    let next = || {
        let late = async {
            smol::Timer::after(SOON).await;
            panic!("the import still waits for its sender");
        };
        smol::block_on(smol::future::or(pieces.recv(), late)).unwrap()
    };
    let began = Instant::now();
    while began.elapsed() < STALL * 3 / 2 {
        sender.write_all(b"1\r\nx\r\n").unwrap();
        assert_eq!(next().unwrap(), "x");
        std::thread::sleep(STALL / 20); // Slowness is what is tested.
    }
    let stalled = next().unwrap_err();
    assert_eq!(stalled.to_string(), "the client sent nothing for 1s");
    // The import reports it, ends, and its place is free.
    progress.try_send("{}".to_owned()).unwrap();
    drop((progress, pieces));
    assert!(rest(sender).contains("{}\n"));
    let others: Vec<UnixStream> = (0..Cost::Progress.most())
        .map(|_| {
            let other = say(&server, request);
            server.commands.recv_blocking().unwrap();
            other
        })
        .collect();
    drop(others);
}

#[test]
fn a_body_that_says_it_is_too_long_is_refused_before_it_comes() {
    let server = Server::start("long-body");
    let text = "DELETE /api/v1/namespaces/default/pods/web HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n";
    assert!(rest(say(&server, text)).starts_with("HTTP/1.1 413"));
}

#[test]
fn a_watcher_that_does_not_read_is_dropped() {
    let server = Server::start_with("unread", quick());
    let mut large = pod("web", "Running");
    let note = "x".repeat(4 << 20);
    large.metadata.annotations = Some([("note".to_owned(), note)].into());
    server.store.upsert_pod(large);
    let watch = say(&server, WATCH);
    let list = say(&server, "GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n");
    wait_closed(&watch);
    wait_closed(&list);
}

#[test]
fn a_paused_log_reader_keeps_its_place_until_another_needs_it() {
    let server = Server::start_with("paused", quick());
    server.store.upsert_pod(pod("web", "Running"));
    let dir = server.dir.join("logs/default_web_uid-web/c");
    std::fs::create_dir_all(&dir).unwrap();
    let line = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(1000));
    std::fs::write(dir.join("0.log"), line.repeat(2000)).unwrap();
    let request = "GET /api/v1/namespaces/default/pods/web/log HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut paused: Vec<UnixStream> = (0..Cost::Log.most())
        .map(|_| say(&server, request))
        .collect();
    for stream in &mut paused {
        assert!(head(stream).starts_with("HTTP/1.1 200"));
    }
    let deadline = Instant::now() + SOON;
    let mut answer = loop {
        let mut stream = say(&server, request);
        if head(&mut stream).starts_with("HTTP/1.1 200") {
            break stream;
        }
        assert!(Instant::now() < deadline, "no place for another");
    };
    answer.read_exact(&mut [0; 1000]).unwrap();
    let mut fds: Vec<PollFd<'_>> = paused
        .iter()
        .map(|stream| PollFd::new(stream.as_fd(), PollFlags::empty()))
        .collect();
    assert_eq!(
        poll(&mut fds, PollTimeout::ZERO).unwrap(),
        1,
        "one was ended"
    );
}
