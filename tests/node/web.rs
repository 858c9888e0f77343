//! A web server for archives: with validators, ranges and TLS, and with connections that break.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use futures_rustls::rustls::{self, ServerConfig, ServerConnection, StreamOwned};

use super::*;

/// What is served, and how.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served {
    pub(crate) body: Vec<u8>,
    /// With its quotes; empty: none.
    pub(crate) etag: String,
    /// How many connections break, each after so many bytes.
    pub(crate) cuts: (usize, usize),
    /// The pause after each 8 KiB.
    pub(crate) pause: Duration,
    /// A path of another server that has it.
    pub(crate) redirect: Option<String>,
}

#[derive(Default)]
struct Shared {
    served: Mutex<Served>,
    heads: Mutex<Vec<String>>,
    sent: AtomicU64,
    cut: AtomicUsize,
}

/// A server in the agent's network.
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

impl Web {
    /// With TLS if there is a certificate for it.
    pub(crate) fn start(agent: &Agent, tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = agent.netns.run(|| TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, tls) = (own.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => attend(stream, &shared),
                    Some(tls) => {
                        let tls = ServerConnection::new(tls).expect("a valid configuration");
                        attend(StreamOwned::new(tls, stream), &shared)
                    }
                });
            }
        });
        Self { address, shared }
    }

    pub(crate) fn serve(&self, served: Served) {
        *self.shared.served.lock().expect("lock") = served;
        self.shared.cut.store(0, Ordering::SeqCst);
    }

    /// The heads of requests so far, in lower case.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.shared.heads.lock().expect("lock").clone()
    }

    /// Bytes of bodies that were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }

    pub(crate) fn reset(&self) {
        self.shared.heads.lock().expect("lock").clear();
        self.shared.sent.store(0, Ordering::SeqCst);
    }
}

fn attend(stream: impl Read + Write, shared: &Shared) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while stream.read_line(&mut head)? > 2 {}
    let head = head.to_lowercase();
    shared.heads.lock().expect("lock").push(head.clone());
    let served = shared.served.lock().expect("lock").clone();
    let out = stream.get_mut();
    let header = |name: &str| {
        let lines = head.lines().find_map(|line| line.strip_prefix(name));
        lines.map(|value| value.trim().to_owned())
    };
    let named = (!served.etag.is_empty()).then(|| served.etag.to_lowercase());
    let etag = match &named {
        Some(_) => format!("ETag: {}\r\n", served.etag),
        None => String::new(),
    };
    if let Some(to) = &served.redirect {
        return write!(
            out,
            "HTTP/1.1 302 X\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    if named.is_some() && header("if-none-match:") == named {
        return write!(out, "HTTP/1.1 304 X\r\n{etag}Connection: close\r\n\r\n");
    }
    let fits = header("if-range:").is_none_or(|tag| Some(tag) == named);
    let from = header("range: bytes=").filter(|_| fits);
    let from = from.and_then(|range| range.trim_end_matches('-').parse::<usize>().ok());
    let (all, begin) = (served.body.len(), from.unwrap_or(0));
    let status = match from {
        Some(_) => format!("206 X\r\nContent-Range: bytes {begin}-{}/{all}", all - 1),
        None => "200 X".to_owned(),
    };
    let length = all - begin;
    write!(
        out,
        "HTTP/1.1 {status}\r\n{etag}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    let (cuts, after) = served.cuts;
    let breaks = shared.cut.fetch_add(1, Ordering::SeqCst) < cuts;
    let end = if breaks {
        (begin + after).min(all)
    } else {
        all
    };
    for piece in served.body[begin..end].chunks(8 << 10) {
        out.write_all(piece)?;
        out.flush()?;
        shared.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
        std::thread::sleep(served.pause);
    }
    out.flush()
}

fn openssl(dir: &Path, line: &str) {
    let made = Command::new("openssl")
        .args(line.split(' '))
        .current_dir(dir)
        .output();
    let made = made.expect("openssl: apt-get install openssl");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "openssl {line}: {said}");
}

/// Makes an authority, `ca.crt`, and a certificate of it for 127.0.0.1.
pub(crate) fn tls(dir: &Path) -> Arc<ServerConfig> {
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        dir,
        &format!("req -x509 {ec} -days 2 -subj /CN=authority -keyout ca.key -out ca.crt"),
    );
    openssl(
        dir,
        &format!("req {ec} -subj /CN=web -keyout web.key -out web.csr"),
    );
    fs::write(dir.join("names.txt"), "subjectAltName=IP:127.0.0.1\n").expect("written");
    openssl(
        dir,
        "x509 -req -in web.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names.txt -outform DER -out \
         web.der",
    );
    openssl(
        dir,
        "pkcs8 -topk8 -nocrypt -in web.key -outform DER -out web.key.der",
    );
    let read = |name: &str| fs::read(dir.join(name)).expect("made");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(read("web.key.der")));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(read("web.der"))], key);
    Arc::new(config.expect("a certificate"))
}
