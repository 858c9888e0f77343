//! An HTTP server between a worker and a registry. It passes requests on, or does to them what the test says, and
//! records what it saw and how many bytes of blobs it sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::netns::Netns;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Ask {
    pub method: String,
    pub path: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Requests for this path before.
    pub earlier: usize,
}

impl Ask {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(of, _)| of == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn is_blob(&self) -> bool {
        self.path.contains("/blobs/")
    }
}

/// What happens to a request.
pub enum Deed {
    /// It is passed on.
    Pass,
    /// The answer ends after this many bytes of its body.
    Cut(usize),
    /// The registry does not see that a part was asked for.
    IgnoreRange,
    /// The proxy answers itself.
    Answer(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// A header of the answer is replaced, or removed.
    Header(&'static str, Option<String>),
    /// The body's first byte is wrong.
    Corrupt,
    /// The body comes in pieces of this many bytes, this far apart.
    Drip(usize, Duration),
    /// No answer, until the worker gives up.
    Hang,
    /// The proxy says this and closes the connection.
    Say(Speech),
    /// A chunked body that never ends: the registry's, then more and more.
    Endless,
}

/// Writes an answer, valid or not.
pub type Speech = fn(&mut dyn Write) -> io::Result<()>;

type Rule = Box<dyn Fn(&Ask) -> Deed + Send + Sync>;

struct Shared {
    upstream: Option<SocketAddr>,
    rule: Mutex<Rule>,
    asked: Mutex<Vec<Ask>>,
    blob_bytes: AtomicU64,
    said_bytes: AtomicU64,
    stopped: AtomicBool,
}

pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    netns: Arc<Netns>,
}

impl Proxy {
    /// Starts on a free port of `127.0.0.1`.
    pub fn start(netns: &Arc<Netns>, upstream: Option<SocketAddr>) -> Self {
        Self::start_at(netns, upstream, "127.0.0.1:0")
    }

    /// Starts at an address.
    pub fn start_at(netns: &Arc<Netns>, upstream: Option<SocketAddr>, at: &str) -> Self {
        let shared = Arc::new(Shared {
            upstream,
            rule: Mutex::new(Box::new(|_| Deed::Pass)),
            asked: Mutex::default(),
            blob_bytes: AtomicU64::new(0),
            said_bytes: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        });
        let listener = netns.run(|| TcpListener::bind(at)).unwrap();
        let address = listener.local_addr().unwrap();
        let serve = shared.clone();
        // Threads that it starts are in the namespace, too.
        netns.run(move || {
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if serve.stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    let shared = serve.clone();
                    thread::spawn(move || {
                        let _ = attend(stream, &shared);
                    });
                }
            });
        });
        Self {
            address,
            shared,
            netns: netns.clone(),
        }
    }

    pub fn rule(&self, rule: impl Fn(&Ask) -> Deed + Send + Sync + 'static) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// Forgets what it has seen.
    pub fn reset(&self) {
        self.shared.asked.lock().unwrap().clear();
        self.shared.blob_bytes.store(0, Ordering::SeqCst);
        self.shared.said_bytes.store(0, Ordering::SeqCst);
    }

    pub fn asked(&self) -> Vec<Ask> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Bytes of blobs' bodies that were sent.
    pub fn blob_bytes(&self) -> u64 {
        self.shared.blob_bytes.load(Ordering::SeqCst)
    }

    /// Bytes that were taken of what [`Deed::Say`] said.
    pub fn said_bytes(&self) -> u64 {
        self.shared.said_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        let address = self.address;
        let _ = self.netns.run(move || TcpStream::connect(address));
    }
}

fn attend(stream: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (line, headers) = head(&mut reader)?;
    let mut words = line.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().unwrap_or_default().to_owned();
    let ask = {
        let mut asked = shared.asked.lock().unwrap();
        let earlier = asked.iter().filter(|ask: &&Ask| ask.path == path).count();
        let ask = Ask {
            method,
            path,
            headers,
            earlier,
        };
        asked.push(ask.clone());
        ask
    };
    let deed = (shared.rule.lock().unwrap())(&ask);
    let mut out = Out {
        stream,
        counts: ask.is_blob().then_some(&shared.blob_bytes),
    };
    match deed {
        Deed::Answer(status, headers, body) => {
            let headers: Vec<_> = headers
                .iter()
                .map(|(n, v)| ((*n).to_owned(), v.clone()))
                .collect();
            let has_length = headers
                .iter()
                .any(|(name, _)| ["Content-Length", "Transfer-Encoding"].contains(&name.as_str()));
            let length = match has_length {
                true => Vec::new(),
                false => vec![("Content-Length".to_owned(), body.len().to_string())],
            };
            out.head(
                &format!("HTTP/1.1 {status} X"),
                headers.iter().chain(&length),
            )?;
            if ask.method != "HEAD" {
                out.body(&body)?;
            }
        }
        Deed::Hang => {
            // Ends when the worker closes the connection.
            let _ = reader.read(&mut [0; 1]);
        }
        Deed::Say(speech) => speech(&mut Counted {
            stream: out.stream,
            counts: &shared.said_bytes,
        })?,
        deed => pass_on(&ask, &deed, shared, &mut out)?,
    }
    Ok(())
}

fn pass_on(ask: &Ask, deed: &Deed, shared: &Shared, out: &mut Out<'_>) -> io::Result<()> {
    let mut upstream = TcpStream::connect(shared.upstream.expect("a registry"))?;
    let mut request = format!(
        "{} {} HTTP/1.1\r\nConnection: close\r\n",
        ask.method, ask.path
    );
    for (name, value) in &ask.headers {
        let ranged = name == "range" || name == "if-range";
        if name != "connection" && !(ranged && matches!(deed, Deed::IgnoreRange | Deed::Endless)) {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    upstream.write_all(format!("{request}\r\n").as_bytes())?;
    let mut reader = BufReader::new(upstream);
    let (status, mut headers) = head(&mut reader)?;
    if let Deed::Header(name, value) = deed {
        headers.retain(|(of, _)| !of.eq_ignore_ascii_case(name));
        headers.extend(value.clone().map(|value| ((*name).to_owned(), value)));
    }
    if matches!(deed, Deed::IgnoreRange) {
        headers.retain(|(of, _)| of != "accept-ranges");
    }
    if matches!(deed, Deed::Endless) {
        headers.retain(|(of, _)| of != "content-length");
        headers.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
    }
    headers.retain(|(of, _)| of != "connection");
    out.head(&status, headers.iter())?;
    if ask.method == "HEAD" {
        return Ok(());
    }
    let mut left = match deed {
        Deed::Cut(bytes) => *bytes,
        _ => usize::MAX,
    };
    let mut buffer = vec![0; 32 << 10];
    let mut first = true;
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        if first && matches!(deed, Deed::Corrupt) {
            buffer[0] ^= 0xff;
        }
        first = false;
        let piece = &buffer[..n.min(left)];
        match deed {
            Deed::Drip(bytes, pause) => {
                for drop in piece.chunks(*bytes) {
                    out.body(drop)?;
                    thread::sleep(*pause);
                }
            }
            Deed::Endless => out.chunk(piece)?,
            _ => out.body(piece)?,
        }
        left -= piece.len();
        if left == 0 {
            return Ok(());
        }
    }
    match deed {
        Deed::Endless => loop {
            out.chunk(&buffer)?;
        },
        _ => Ok(()),
    }
}

struct Counted<'a> {
    stream: TcpStream,
    counts: &'a AtomicU64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.stream.write(bytes)?;
        self.counts.fetch_add(n as u64, Ordering::SeqCst);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

struct Out<'a> {
    stream: TcpStream,
    counts: Option<&'a AtomicU64>,
}

impl Out<'_> {
    fn head<'h>(
        &mut self,
        status: &str,
        headers: impl Iterator<Item = &'h (String, String)>,
    ) -> io::Result<()> {
        let mut text = format!("{status}\r\nConnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        self.stream.write_all(format!("{text}\r\n").as_bytes())
    }

    fn body(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        if let Some(counts) = self.counts {
            counts.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
        Ok(())
    }

    fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream
            .write_all(format!("{:x}\r\n", bytes.len()).as_bytes())?;
        self.body(bytes)?;
        self.stream.write_all(b"\r\n")
    }
}

/// The first line and the headers, their names in lower case.
fn head(reader: &mut impl BufRead) -> io::Result<(String, Vec<(String, String)>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut lines = lines.into_iter();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)?;
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    Ok((first, headers.collect()))
}
