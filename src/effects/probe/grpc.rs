//! gRPC probes: `grpc.health.v1.Health/Check`, once, in plain text (Kubernetes docs: Probes).

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::rt::Executor;
use hyper::{HeaderMap, Request, Response, StatusCode};
use smol::LocalExecutor;
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

use super::dial::{Connection, DialError, dial, join_host_port};
use super::{OUTPUT_BYTES, Outcome, go_duration, within};

/// The first pause between attempts to connect; each is longer by [`LONGER`] (gRPC: `doc/connection-backoff.md`).
///
/// The kubelet's probe is one call of gRPC's client with `WithBlock`. That client dials again until the probe's
/// timeout is over, so a server that begins to listen meanwhile passes. The attempts are one probe, with one outcome;
/// `plan/probe.rs` decides when the next probe is due.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGER: f64 = 1.6;

/// Longest headers of an answer, and the most of a body that is read at a time.
const HEAD_BYTES: u32 = 16 << 10;
const WINDOW_BYTES: u32 = 64 << 10;

const UNKNOWN: u32 = 2;
const DEADLINE_EXCEEDED: u32 = 4;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;

/// The names of the status codes, by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The result of a call.
struct Status {
    code: u32,
    message: String,
}

/// How an attempt failed.
enum Failed {
    /// No HTTP/2 server answers there; the attempt is repeated.
    Connect,
    /// A failure of the node itself.
    Own(String),
    /// The call failed.
    Call(Status),
}

pub(super) async fn run(port: u16, service: &str, timeout: Duration, ip: IpAddr) -> Outcome {
    let address = join_host_port(&ip.to_string(), port);
    let connected = Rc::new(Cell::new(false));
    let attempts = async {
        let mut pause = FIRST_PAUSE;
        loop {
            match attempt(&address, (ip, port), service, timeout, &connected).await {
                Err(Failed::Connect) => {
                    smol::Timer::after(pause).await;
                    pause = pause.mul_f64(LONGER);
                }
                other => return other,
            }
        }
    };
    let late = || {
        Outcome::Failure(format!(
            "timeout: health rpc did not complete within {}",
            go_duration(timeout)
        ))
    };
    match within(timeout, attempts).await {
        Some(Ok(1)) => Outcome::Success("service healthy".to_owned()),
        Some(Ok(number)) => Outcome::Failure(format!(
            "service unhealthy (responded with \"{}\")",
            serving(number)
        )),
        Some(Err(Failed::Call(status))) if status.code == DEADLINE_EXCEEDED => late(),
        Some(Err(Failed::Call(status))) => Outcome::Failure(refusal(&status)),
        Some(Err(Failed::Own(text))) => Outcome::Error(text),
        None if connected.get() => late(),
        // The loop never returns either of them.
        Some(Err(Failed::Connect)) | None => Outcome::Failure(format!(
            "timeout: failed to connect service \"{address}\" within {}: context deadline exceeded",
            go_duration(timeout)
        )),
    }
}

fn serving(number: u64) -> String {
    match number {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

fn refusal(status: &Status) -> String {
    if status.code == UNIMPLEMENTED {
        return format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message
        );
    }
    let name = usize::try_from(status.code)
        .ok()
        .and_then(|code| CODES.get(code));
    let name = name.map_or_else(|| format!("Code({})", status.code), |n| (*n).to_owned());
    format!(
        "error: health rpc probe failed: rpc error: code = {name} desc = {}",
        status.message
    )
}

/// Connects and calls; `connected` is set once the other side speaks HTTP/2.
async fn attempt(
    address: &str,
    (ip, port): (IpAddr, u16),
    service: &str,
    timeout: Duration,
    connected: &Rc<Cell<bool>>,
) -> Result<u64, Failed> {
    connected.set(false);
    let stream = dial(&ip.to_string(), port, timeout)
        .await
        .map_err(|error| match error {
            DialError::Refused(_) => Failed::Connect,
            DialError::Own(text) => Failed::Own(text),
        })?;
    let stream = Listening {
        stream,
        seen: 0,
        settings: true,
        connected: connected.clone(),
    };
    let tasks = Rc::new(LocalExecutor::new());
    let failed = |error: hyper::Error| match connected.get() {
        false => Failed::Connect,
        true => Failed::Call(Status {
            code: UNAVAILABLE,
            message: crate::chain(&error),
        }),
    };
    let (mut sender, connection) = http2::Builder::new(Tasks(Rc::downgrade(&tasks)))
        .max_header_list_size(HEAD_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .handshake(FuturesIo::new(stream))
        .await
        .map_err(failed)?;
    let call = async {
        let request = request(address, service, timeout)?;
        let response = sender.send_request(request).await.map_err(failed)?;
        answer(response).await
    };
    let drive = async {
        // Its error is reported to the waiting call.
        let _ = connection.await;
        smol::future::pending().await
    };
    tasks.run(smol::future::or(call, drive)).await
}

fn request(
    address: &str,
    service: &str,
    timeout: Duration,
) -> Result<Request<Full<Bytes>>, Failed> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        put_varint(&mut message, service.len());
        message.extend_from_slice(service.as_bytes());
    }
    let mut body = vec![0];
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(&message);
    Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("user-agent", super::USER_AGENT)
        .header("te", "trailers")
        .header(
            "grpc-timeout",
            format!("{}m", timeout.as_millis().min(99_999_999)),
        )
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| Failed::Own(error.to_string()))
}

fn put_varint(bytes: &mut Vec<u8>, mut number: usize) {
    loop {
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            return bytes.push(low);
        }
        bytes.push(low | 0x80);
    }
}

/// The serving status of the answer, as its number.
async fn answer(response: Response<Incoming>) -> Result<u64, Failed> {
    let (head, mut body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(Failed::Call(of_http(head.status)));
    }
    let failed = |code, message: &str| {
        let message = message.to_owned();
        Failed::Call(Status { code, message })
    };
    if let Some(status) = status_in(&head.headers) {
        return reply(status, &[]);
    }
    let mut data = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| failed(INTERNAL, &crate::chain(&error)))?;
        match frame.into_data() {
            Ok(part) if data.len() + part.len() <= OUTPUT_BYTES => data.extend_from_slice(&part),
            Ok(_) => return Err(failed(8, "grpc: received message larger than max")),
            Err(frame) => {
                if let Some(status) = frame.trailers_ref().and_then(status_in) {
                    return reply(status, &data);
                }
            }
        }
    }
    Err(failed(
        INTERNAL,
        "server closed the stream without sending trailers",
    ))
}

fn reply(status: Status, data: &[u8]) -> Result<u64, Failed> {
    if status.code != 0 {
        return Err(Failed::Call(status));
    }
    let message = match data {
        [0, a, b, c, d, message @ ..] => {
            let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok();
            length.and_then(|length| message.get(..length))
        }
        _ => None,
    };
    message.and_then(status_field).ok_or_else(|| {
        Failed::Call(Status {
            code: INTERNAL,
            message: "grpc: failed to unmarshal the received message".to_owned(),
        })
    })
}

/// `status` of a `HealthCheckResponse`; 0 if it is absent.
fn status_field(mut message: &[u8]) -> Option<u64> {
    let mut status = 0;
    while !message.is_empty() {
        let key = take_varint(&mut message)?;
        let length = match key & 7 {
            0 => {
                let value = take_varint(&mut message)?;
                if key >> 3 == 1 {
                    status = value;
                }
                0
            }
            1 => 8,
            2 => usize::try_from(take_varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        message = message.get(length..)?;
    }
    Some(status)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn status_in(headers: &HeaderMap) -> Option<Status> {
    let code = headers.get("grpc-status")?.to_str().ok()?;
    let message = headers.get("grpc-message").map(|m| decode(m.as_bytes()));
    Some(Status {
        code: code.parse().unwrap_or(UNKNOWN),
        message: message.unwrap_or_default(),
    })
}

/// The gRPC status that stands for an HTTP error of a server without gRPC.
fn of_http(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => INTERNAL,
        401 => 16,
        403 => 7,
        404 => UNIMPLEMENTED,
        429 | 502..=504 => UNAVAILABLE,
        _ => UNKNOWN,
    };
    let reason = status.canonical_reason().unwrap_or_default();
    let number = status.as_u16();
    Status {
        code,
        message: format!("unexpected HTTP status code received from server: {number} ({reason})"),
    }
}

/// Decodes percent-encoding.
fn decode(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (other, _) => {
                bytes.push(*other);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a connection's tasks within the attempt, so that they end with it. Weak, because they would keep themselves
/// alive.
#[derive(Clone)]
struct Tasks(std::rc::Weak<LocalExecutor<'static>>);

impl<F: Future<Output = ()> + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            tasks.spawn(task).detach();
        }
    }
}

/// A connection that notices whether its other side begins as HTTP/2 requires, with a SETTINGS frame.
struct Listening {
    stream: Connection,
    seen: usize,
    settings: bool,
    connected: Rc<Cell<bool>>,
}

/// Length of a frame's header; the fourth byte is its type, 4 for SETTINGS.
const FRAME_HEADER: usize = 9;

impl AsyncRead for Listening {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(length)) = read
            && self.seen < FRAME_HEADER
        {
            if let Some(kind) = 3_usize
                .checked_sub(self.seen)
                .and_then(|i| buffer[..length].get(i))
            {
                self.settings = *kind == 4;
            }
            self.seen += length;
            let begun = self.seen >= FRAME_HEADER && self.settings;
            self.connected.set(begun);
        }
        read
    }
}

impl AsyncWrite for Listening {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_close(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_whatever_else_is_in_it() {
        let table: [(&[u8], Option<u64>); 7] = [
            (&[], Some(0)),
            (&[8, 1], Some(1)),
            (&[8, 2, 18, 2, 9, 9], Some(2)),
            (&[18, 1, 7, 8, 3], Some(3)),
            (&[8], None),
            (&[18, 0xff, 0xff, 0xff, 0xff, 0x0f, 1], None),
            (
                &[
                    8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                ],
                None,
            ),
        ];
        for (message, expected) in table {
            assert_eq!(status_field(message), expected, "{message:?}");
        }
    }

    #[test]
    fn refusals_have_the_kubelets_texts() {
        let table = [
            (
                5,
                "unknown service",
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
            (
                12,
                "no",
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no",
            ),
            (
                99,
                "?",
                "error: health rpc probe failed: rpc error: code = Code(99) desc = ?",
            ),
        ];
        for (code, message, expected) in table {
            let message = message.to_owned();
            assert_eq!(refusal(&Status { code, message }), expected);
        }
        assert_eq!(decode(b"a%20b%zz%"), "a b%zz%");
    }
}
