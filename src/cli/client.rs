//! The agent's client: blocking HTTP/1.1 over the unix socket, one connection a request, with chunked bodies and
//! upgrades.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde_json::Value;

use super::error::{CliError, Result};
use super::similar::Missing;
use crate::api;

/// Longest line of a response head, and of a chunk head.
const MAX_LINE: u64 = 16 * 1024;

/// How long the agent may take to answer a look, for each read. It answers at once unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The same for callers that can do without an answer.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// Patience with an agent that reads files, which may be on a slow disk.
const SETTLE: Duration = Duration::from_secs(5);

/// Size of the chunks of a request body, in bytes.
const PIECE: usize = 64 << 10;

/// The agent behind a socket.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its socket.
    pub socket: PathBuf,
}

/// An answer whose body is not read yet.
#[derive(Debug)]
pub struct Response {
    /// HTTP status code.
    pub status: u16,
    /// What to say beside the body: texts of `Warning` headers.
    pub warnings: Vec<String>,
    /// Body without its transfer encoding.
    pub body: Body,
}

/// A response body.
#[derive(Debug)]
pub struct Body {
    stream: BufReader<UnixStream>,
    framing: Framing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(u64),
    Chunked { left: u64, first: bool },
    UntilClose,
    End,
}

impl Client {
    /// Whether an agent listens. A lack of permission counts as yes: the next request reports it.
    pub fn reachable(&self) -> bool {
        let connected = crate::sys::unix_socket::connect(&self.socket);
        let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        !connected.is_err_and(|error| absent.contains(&error.kind()))
    }

    /// Sends a GET and parses the JSON answer; an HTTP error becomes an error, as does an agent that hangs.
    pub fn get(&self, path: &str) -> Result<Value> {
        self.get_within(path, PATIENCE).map(|(value, _)| value)
    }

    /// Sends a GET to an agent that may hang, with a limit for each read; also returns the agent's process id.
    pub(super) fn get_within(&self, path: &str, patience: Duration) -> Result<(Value, i32)> {
        let mut stream = self.connect()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: coracle\r\nConnection: close\r\n\r\n");
        let asked = stream
            .set_read_timeout(Some(patience))
            .and_then(|()| stream.set_write_timeout(Some(patience)))
            .and_then(|()| stream.write_all(request.as_bytes()))
            .and_then(|()| Ok(getsockopt(&stream, PeerCredentials)?));
        let agent = asked.map_err(|e| self.broken(&e))?;
        let mut response = read_head(stream).map_err(|e| self.broken(&e))?;
        if response.status != 200 {
            return Err(refusal(path, response));
        }
        let mut text = Vec::new();
        let read = response.body.read_to_end(&mut text);
        read.map_err(|e| self.broken(&e))?;
        let value = serde_json::from_slice(&text)
            .map_err(|e| CliError::new("the agent's answer is not JSON").because(e))?;
        Ok((value, agent.pid()))
    }

    /// Waits until the agent has read what files say by now, so that a look right after a save does not show the state before
    /// it. Without an answer, as by a former version, it is a look as any other.
    pub(super) fn settle(&self) {
        let _ = self.get_within("/coracle/v1/manifests/settled", SETTLE);
    }

    /// Sends a request and parses the JSON answer; an HTTP error becomes an error.
    pub fn json(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut response = self.send(method, path, body)?;
        let mut text = Vec::new();
        response
            .body
            .read_to_end(&mut text)
            .map_err(|e| self.broken(&e))?;
        serde_json::from_slice(&text)
            .map_err(|e| CliError::new("the agent's answer is not JSON").because(e))
    }

    /// Sends a request whose answer is a stream; an HTTP error becomes an error.
    pub fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Response> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = match method {
            _ if body.is_empty() => "",
            "PATCH" => "Content-Type: application/strategic-merge-patch+json\r\n",
            _ => "Content-Type: application/json\r\n",
        };
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: coracle\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = self.connect()?;
        stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body.as_bytes()))
            .map_err(|e| self.broken(&e))?;
        let response = read_head(stream).map_err(|e| self.broken(&e))?;
        match response.status {
            200..300 => Ok(response),
            _ => Err(refusal(path, response)),
        }
    }

    /// Sends a request with a streamed body while the answer is read. The sending thread ends with the connection. The
    /// request starts when the first bytes of the body are available, because the agent limits how long it waits for
    /// each read.
    pub fn send_stream(
        &self,
        path: &str,
        kind: &str,
        body: impl Read + Send + 'static,
    ) -> Result<Response> {
        // Reports a missing agent before waiting for the body.
        drop(self.connect()?);
        let mut body = BufReader::with_capacity(PIECE, body);
        // The thread runs into the same error and reports it.
        let _ = body.fill_buf();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: coracle\r\nConnection: close\r\nContent-Type: {kind}\r\n\
             Transfer-Encoding: chunked\r\n\r\n"
        );
        let mut stream = self.connect()?;
        stream
            .write_all(head.as_bytes())
            .map_err(|e| self.broken(&e))?;
        let mut output = stream.try_clone().map_err(|e| self.broken(&e))?;
        std::thread::spawn(move || {
            // If the agent refuses the body, its answer says why. If the body cannot be read, the agent sees it cut
            // off.
            let _ = send_chunks(&mut body, &mut output);
        });
        let response = read_head(stream).map_err(|e| self.broken(&e))?;
        match response.status {
            200..300 => Ok(response),
            _ => Err(refusal(path, response)),
        }
    }

    /// Switches the connection to another protocol; returns it positioned after the response head.
    pub fn upgrade(
        &self,
        path: &str,
        protocol: &str,
    ) -> Result<(UnixStream, BufReader<UnixStream>)> {
        self.upgrade_with((path, ""), protocol)
    }

    /// The same for a request with a body.
    pub(super) fn upgrade_with(
        &self,
        (path, body): (&str, &str),
        protocol: &str,
    ) -> Result<(UnixStream, BufReader<UnixStream>)> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: coracle\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = self.connect()?;
        stream
            .write_all(request.as_bytes())
            .map_err(|e| self.broken(&e))?;
        let write = stream.try_clone().map_err(|e| self.broken(&e))?;
        let response = read_head(stream).map_err(|e| self.broken(&e))?;
        match response.status {
            101 => Ok((write, response.body.stream)),
            _ => Err(refusal(path, response)),
        }
    }

    fn connect(&self) -> Result<UnixStream> {
        crate::sys::unix_socket::connect(&self.socket).map_err(|error| {
            let socket = self.socket.display();
            let failed = CliError::new(format!("could not reach the agent at `{socket}`")).because(&error);
            match error.kind() {
                io::ErrorKind::PermissionDenied => {
                    failed.hint("only root may talk to the agent: run the command with sudo")
                }
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => failed.hint(
                    "start the agent with `coracle run` (or `systemctl start coracle`), or name its socket with --socket",
                ),
                _ => failed,
            }
        })
    }

    fn broken(&self, error: &io::Error) -> CliError {
        let socket = self.socket.display();
        if matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ) {
            return CliError::new(format!("the agent at `{socket}` does not answer")).hint(
                "it hangs, or the machine is very slow: restart it (`systemctl restart coracle`); pods keep running",
            );
        }
        CliError::new(format!("lost the agent at `{socket}`"))
            .because(error)
            .hint("the agent may have stopped; pods keep running without it")
    }
}

fn send_chunks(body: &mut impl Read, output: &mut UnixStream) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let length = match body.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let _ = output.shutdown(std::net::Shutdown::Write);
                return Err(error);
            }
        };
        output.write_all(format!("{length:x}\r\n").as_bytes())?;
        output.write_all(&buffer[..length])?;
        output.write_all(b"\r\n")?;
        if length == 0 {
            return Ok(());
        }
    }
}

fn refusal(path: &str, mut response: Response) -> CliError {
    let mut text = String::new();
    let _ = (&mut response.body)
        .take(64 * 1024)
        .read_to_string(&mut text);
    let status: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = match status["message"].as_str() {
        Some(message) => message.to_owned(),
        None => format!("the agent answered with HTTP status {}", response.status),
    };
    let busy = response.status == 429;
    CliError::new(message)
        .busy(busy)
        .about(Missing::of(path, &status))
        .code(match (response.status, status["reason"].as_str()) {
            (404, _) => 3,
            (_, Some(api::COMMAND_NOT_FOUND)) => 127,
            (_, Some(api::COMMAND_NOT_EXECUTABLE)) => 126,
            _ => 1,
        })
}

fn read_line(stream: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.take(MAX_LINE).read_line(&mut line)?;
    if !line.ends_with('\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn read_head(stream: UnixStream) -> io::Result<Response> {
    let bad = || io::Error::new(io::ErrorKind::InvalidData, "not an HTTP answer");
    let mut stream = BufReader::new(stream);
    let line = read_line(&mut stream)?;
    let code = line
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .ok_or_else(bad)?;
    let status: u16 = code.parse().map_err(|_| bad())?;
    let mut framing = match status {
        101 | 204 => Framing::End,
        _ => Framing::UntilClose,
    };
    let mut warnings = Vec::new();
    loop {
        let line = read_line(&mut stream)?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(bad)?;
        if framing == Framing::End {
            continue;
        }
        if name.eq_ignore_ascii_case("content-length") {
            framing = Framing::Length(value.trim().parse().map_err(|_| bad())?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked {
                left: 0,
                first: true,
            };
        } else if name.eq_ignore_ascii_case("warning") {
            // `299 - "text"`
            let text = value.split('"').nth(1);
            warnings.extend(text.map(str::to_owned));
        }
    }
    let body = Body { stream, framing };
    Ok(Response {
        status,
        warnings,
        body,
    })
}

impl Body {
    /// Its length, if the agent said so.
    pub fn length(&self) -> Option<u64> {
        match self.framing {
            Framing::Length(length) => Some(length),
            _ => None,
        }
    }

    /// Its lines.
    pub fn lines(self) -> impl Iterator<Item = io::Result<String>> {
        BufReader::new(self).lines()
    }

    fn next_chunk(&mut self, first: bool) -> io::Result<()> {
        if !first {
            read_line(&mut self.stream)?;
        }
        let head = read_line(&mut self.stream)?;
        let size = head.split(';').next().unwrap_or_default();
        let left = u64::from_str_radix(size, 16)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "bad chunk"))?;
        self.framing = match left {
            0 => Framing::End,
            left => Framing::Chunked { left, first: false },
        };
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.framing {
                Framing::End | Framing::Length(0) => return Ok(0),
                Framing::UntilClose => return self.stream.read(buffer),
                Framing::Length(left) => {
                    let got = (&mut self.stream).take(left).read(buffer)?;
                    if got == 0 && !buffer.is_empty() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    self.framing = Framing::Length(left - got as u64);
                    return Ok(got);
                }
                Framing::Chunked { left: 0, first } => self.next_chunk(first)?,
                Framing::Chunked { left, first } => {
                    let got = (&mut self.stream).take(left).read(buffer)?;
                    if got == 0 && !buffer.is_empty() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let left = left - got as u64;
                    self.framing = Framing::Chunked { left, first };
                    return Ok(got);
                }
            }
        }
    }
}
