//! Servers for the tests, good and bad, on ports of their own; they end with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Answers every connection with `answer`, which gets the head of the request. Returns the port.
pub(crate) fn serve(answer: impl Fn(&mut TcpStream, &str) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let head = head(&mut stream);
            answer(&mut stream, &head);
        }
    });
    port
}

fn head(stream: &mut TcpStream) -> String {
    let patience = Some(Duration::from_secs(5));
    stream.set_read_timeout(patience).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// Answers every request with these bytes.
pub(crate) fn always(answer: &str) -> u16 {
    let answer = answer.to_owned();
    serve(move |stream, _| {
        let _ = stream.write_all(answer.as_bytes());
    })
}

/// Sends `first`, then `more` again and again, with a pause between.
pub(crate) fn endless(first: &str, more: &str, pause: Duration) -> u16 {
    let (first, more) = (first.to_owned(), more.to_owned());
    serve(move |stream, _| {
        let _ = stream.write_all(first.as_bytes());
        while stream.write_all(more.as_bytes()).is_ok() {
            std::thread::sleep(pause);
        }
    })
}

/// A port that nothing listens on.
pub(crate) fn closed() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A program that serves, prints its port in its first line, and is killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    folder: PathBuf,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a Python program with a folder of its own.
    pub(crate) fn python(script: &str, prepare: impl FnOnce(&Path)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("coracle-probes-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        prepare(&folder);
        // Debian's own Python has Debian's packages.
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", script])
            .current_dir(&folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("install `python3`");
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        let port = line.trim().parse();
        let port = port.expect("the server prints its port; is `python3-grpcio` installed?");
        Self {
            child,
            folder,
            port,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
