//! HTTP probes: the meaning of a status, the redirects to follow, and the texts for people (Kubernetes docs:
//! Probes).

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, LOCATION, TRAILER,
    TRANSFER_ENCODING, USER_AGENT,
};
use hyper::{Request, Response, StatusCode};
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

use super::dial::{DialError, dial, go_text};
use super::url::Url;
use super::{OUTPUT_BYTES, Outcome, tls, within};
use crate::spec::probe::HttpGet;

/// Longest head of an answer.
const HEAD_BYTES: usize = 64 << 10;

/// As many headers as fit, if they have 16 bytes each. The parser takes memory for all of them.
const MAX_HEADERS: usize = HEAD_BYTES / 16;

const MAX_REDIRECTS: usize = 10;

/// Go's error for a server that does not speak TLS.
pub(super) const NO_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// The client's name, and its timeout of connecting.
#[derive(Debug, Clone, Copy)]
struct Asker {
    name: &'static str,
    dial: Duration,
}

/// The progress of an exchange, for the text of its timeout.
struct Place {
    url: String,
    reading_body: bool,
}

/// How one exchange failed.
enum Failed {
    /// In Go's words, without `Get "…": `.
    Transport(String),
    /// An invalid redirect: the location as written, and why.
    Redirect(String, String),
    /// A failure of the node itself.
    Own(String),
    /// A body without its end.
    Body(String),
}

pub(super) async fn run(get: &HttpGet, host: &str, timeout: Duration) -> Outcome {
    let url = Url::new(get.tls, host, get.port, &get.path);
    let place = RefCell::new(Place {
        url: url.to_string(),
        reading_body: false,
    });
    let asker = Asker {
        name: super::USER_AGENT,
        dial: timeout,
    };
    let outcome = within(timeout, follow(get, url, asker, &place)).await;
    let place = place.into_inner();
    let during = |text: &str| format!("Get \"{}\": {text}", place.url);
    match outcome {
        Some(Ok((status, body))) => outcome_of(status, body),
        Some(Err(Failed::Transport(text))) => Outcome::Failure(during(&text)),
        Some(Err(Failed::Redirect(location, text))) => {
            Outcome::Failure(format!("Get \"{location}\": {text}"))
        }
        Some(Err(Failed::Own(text))) => Outcome::Error(text),
        Some(Err(Failed::Body(text))) => Outcome::Unread(text),
        None if place.reading_body => Outcome::Unread(
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
                .to_owned(),
        ),
        None => Outcome::Failure(during(
            "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
        )),
    }
}

/// Requests a page for a hook: there is no timeout, and any status will do. Returns errors in Go's words.
pub(super) async fn get(get: &HttpGet, host: &str, dial: Duration) -> Result<(), String> {
    let url = Url::new(get.tls, host, get.port, &get.path);
    let place = RefCell::new(Place {
        url: url.to_string(),
        reading_body: false,
    });
    let asker = Asker {
        name: "kube-lifecycle/1.36",
        dial,
    };
    let outcome = follow(get, url, asker, &place).await;
    let place = place.into_inner();
    match outcome {
        Ok(_) => Ok(()),
        // Data after the status does not matter.
        Err(_) if place.reading_body => Ok(()),
        Err(Failed::Transport(text) | Failed::Own(text) | Failed::Body(text)) => {
            Err(format!("Get \"{}\": {text}", place.url))
        }
        Err(Failed::Redirect(location, text)) => Err(format!("Get \"{location}\": {text}")),
    }
}

fn outcome_of(status: StatusCode, body: String) -> Outcome {
    match status.as_u16() {
        200..300 => Outcome::Success(body),
        300..400 => Outcome::Warning(format!("Probe terminated redirects, Response body: {body}")),
        code => Outcome::Failure(format!("HTTP probe failed with statuscode: {code}")),
    }
}

/// Requests a page, and follows redirects on the same host.
async fn follow(
    get: &HttpGet,
    first: Url,
    asker: Asker,
    place: &RefCell<Place>,
) -> Result<(StatusCode, String), Failed> {
    let mut host = header(get, "host").filter(|host| !host.is_empty());
    let mut url = first.clone();
    for asked in 1.. {
        place.borrow_mut().url = url.to_string();
        let authority = url.authority();
        let named = host.unwrap_or(&authority);
        let request = request(get, &url, named, asker.name).map_err(Failed::Transport)?;
        let (status, target, body) = ask(request, &url, asker.dial, place).await?;
        let Some(location) = target else {
            return Ok((status, body));
        };
        let (next, names_host) = url.follow(&location).map_err(|text| {
            let location = location.clone();
            Failed::Redirect(location, text)
        })?;
        if next.host != first.host {
            return Ok((status, body));
        }
        if asked >= MAX_REDIRECTS {
            let text = format!("stopped after {MAX_REDIRECTS} redirects");
            return Err(Failed::Redirect(location, text));
        }
        if names_host {
            host = None;
        }
        url = next;
    }
    unreachable!("the loop ends with the last redirect")
}

/// The first header of that name.
fn header<'a>(get: &'a HttpGet, name: &str) -> Option<&'a str> {
    let mut given = get.headers.iter();
    given
        .find(|(given, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

fn request(
    get: &HttpGet,
    url: &Url,
    host: &str,
    agent: &'static str,
) -> Result<Request<Empty<Bytes>>, String> {
    let value_of = |name: &str, value: &str| {
        HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| format!("net/http: invalid header field value for \"{name}\""))
    };
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = url
        .path
        .parse()
        .map_err(|_| "net/http: invalid request path".to_owned())?;
    let headers = request.headers_mut();
    headers.insert(HOST, value_of("Host", host)?);
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    for own in [USER_AGENT, ACCEPT, CONNECTION] {
        // A given header counts; if its first value is empty, none is sent.
        if header(get, own.as_str()).is_some() {
            headers.remove(&own);
        }
    }
    for (name, value) in &get.headers {
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("net/http: invalid header field name \"{name}\""))?;
        // Headers of the body are set by the client itself.
        if [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER].contains(&parsed) {
            continue;
        }
        let dropped = [USER_AGENT, ACCEPT].contains(&parsed);
        if dropped && header(get, name).is_some_and(str::is_empty) {
            continue;
        }
        headers.append(parsed, value_of(name, value)?);
    }
    Ok(request)
}

/// One exchange on a connection of its own: the status, the redirect target, and the body.
async fn ask(
    request: Request<Empty<Bytes>>,
    url: &Url,
    timeout: Duration,
    place: &RefCell<Place>,
) -> Result<(StatusCode, Option<String>, String), Failed> {
    let stream = dial(&url.host, url.port, timeout)
        .await
        .map_err(|error| match error {
            DialError::Refused(text) => Failed::Transport(text),
            DialError::Own(text) => Failed::Own(text),
        })?;
    let ends = stream.ends();
    match url.tls {
        false => exchange(stream, request, ends, place).await,
        true => {
            let stream = tls::wrap(stream, &url.host)
                .await
                .map_err(Failed::Transport)?;
            exchange(stream, request, ends, place).await
        }
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    request: Request<Empty<Bytes>>,
    ends: Option<(SocketAddr, SocketAddr)>,
    place: &RefCell<Place>,
) -> Result<(StatusCode, Option<String>, String), Failed> {
    let failed = |error: hyper::Error| Failed::Transport(words(&error, ends));
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .title_case_headers(true)
        .handshake(FuturesIo::new(stream))
        .await
        .map_err(failed)?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let location = location(&response);
        place.borrow_mut().reading_body = true;
        let body = read(response.into_body(), ends).await?;
        place.borrow_mut().reading_body = false;
        Ok((status, location, body))
    };
    let drive = async {
        // Its error is reported to the waiting request.
        let _ = connection.await;
        smol::future::pending().await
    };
    smol::future::or(talk, drive).await
}

fn location(response: &Response<Incoming>) -> Option<String> {
    let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = response.headers().get(LOCATION).filter(|_| redirects)?;
    let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
    Some(location).filter(|location| !location.is_empty())
}

/// The beginning of the body; the rest is not awaited.
async fn read(
    mut body: Incoming,
    ends: Option<(SocketAddr, SocketAddr)>,
) -> Result<String, Failed> {
    let mut kept = Vec::new();
    while kept.len() < OUTPUT_BYTES {
        match body.frame().await {
            None => break,
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    kept.extend_from_slice(&data[..data.len().min(OUTPUT_BYTES - kept.len())]);
                }
            }
            Some(Err(error)) => {
                return Err(Failed::Body(match words(&error, ends).as_str() {
                    "EOF" => "unexpected EOF".to_owned(),
                    other => other.to_owned(),
                }));
            }
        }
    }
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// The error in Go's words where people know them.
fn words(error: &hyper::Error, ends: Option<(SocketAddr, SocketAddr)>) -> String {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return "EOF".to_owned();
    }
    if error.is_parse_too_large() {
        return format!("net/http: server response headers exceeded {HEAD_BYTES} bytes; aborted");
    }
    if error.is_parse() {
        return "net/http: HTTP/1.x transport connection broken: malformed HTTP response"
            .to_owned();
    }
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return match (io.raw_os_error(), ends) {
                (Some(_), Some((local, peer))) => {
                    format!("read tcp {local}->{peer}: read: {}", go_text(io))
                }
                _ => tls::text(io),
            };
        }
        source = inner.source();
    }
    error.to_string()
}
