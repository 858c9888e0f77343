//! A document of a web server (`staticPodURL`), fetched by a worker: `coracle image-worker get`.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::client::{Job, Outcome, run_job};
use super::super::error::ImageError;
use super::super::progress::Cause;
use super::certificates;
use super::error::FetchError;
use super::http::{Answer, Ask, Http};
use super::proxy::Proxies;
use super::request::{MAX_BYTES, Patience, certificate_directories};
use super::session::next;
use super::url::Url;

/// The longest document, as of a kubelet.
const MAX_DOCUMENT_BYTES: u64 = 10 << 20;

/// What a server has to do within it: accept the connection, begin to answer, send the next bytes.
const PATIENCE_MS: u64 = 10_000;

/// The input of the worker.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentRequest {
    /// `http` or `https`. Plain HTTP is for this machine and the listed hosts only.
    pub url: String,
    /// Headers by name, for the URL's own host. They may have a password.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The document that is there already, by its `ETag`.
    #[serde(default)]
    pub etag: Option<String>,
    /// Hosts, `host[:port]`, that are asked by plain HTTP.
    #[serde(default)]
    pub plain_http: Vec<String>,
    /// Directories with a folder of certificates for each host.
    #[serde(default = "certificate_directories")]
    pub certificates: Vec<PathBuf>,
}

impl fmt::Debug for DocumentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DocumentRequest").finish_non_exhaustive()
    }
}

/// A document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebDocument {
    /// Its text.
    pub text: String,
    /// What the server names it by.
    pub etag: Option<String>,
}

/// Runs `exe` (coracle's own binary) to fetch a document; `None` if it is the one that is there.
pub async fn fetch_document(
    exe: &Path,
    request: &DocumentRequest,
) -> Result<Option<WebDocument>, ImageError> {
    let request = serde_json::to_vec(request).expect("plain data");
    let job = Job::with_input(vec!["get".into()], request);
    match run_job(exe, job, |_| {}).await? {
        Outcome::Document(document) => Ok(document),
        Outcome::Images(_) | Outcome::Fetched(_) | Outcome::Bundle(_) => Err(ImageError::Pull {
            message: "the worker ended without a result".to_owned(),
            hint: None,
            cause: Cause::Other,
        }),
    }
}

/// The work of the worker: reads a request from `input` and carries it out. `confine` gets the paths with certificates
/// before any server is asked.
pub(crate) fn run(
    input: impl Read,
    confine: impl FnOnce(&[PathBuf]) -> io::Result<()>,
) -> Result<Option<WebDocument>, (String, Option<String>, Cause)> {
    let explain = |why: FetchError| (crate::chain(&why), why.hint(), why.cause());
    let bad = |why: io::Error| explain(FetchError::Request(why.to_string()));
    let mut bytes = Vec::new();
    let read = input.take(MAX_BYTES).read_to_end(&mut bytes);
    read.map_err(bad)?;
    // The parser's error could show a password.
    let request: DocumentRequest = serde_json::from_slice(&bytes).map_err(|why| {
        let at = format!("line {}, column {}", why.line(), why.column());
        explain(FetchError::Request(at))
    })?;
    confine(&certificates::places(&request.certificates)).map_err(|why| {
        explain(FetchError::Setup(format!(
            "could not drop privileges: {why}"
        )))
    })?;
    get(&request).map_err(explain)
}

fn get(request: &DocumentRequest) -> Result<Option<WebDocument>, FetchError> {
    let patience = Patience::short(PATIENCE_MS);
    let http = Http::new(
        request.certificates.clone(),
        request.plain_http.clone(),
        patience,
        Proxies::of(|variable| std::env::var(variable).ok()),
    );
    let start = Url::parse(&request.url).map_err(FetchError::Setup)?;
    let answer = follow(&http, &start, |at_home| {
        let given = request.headers.iter().filter(|_| at_home);
        let given = given.map(|(name, value)| (name.as_str(), value.clone()));
        let etag = request.etag.iter();
        let held = etag.map(|etag| ("If-None-Match", etag.clone()));
        given.chain(held).collect()
    })?;
    match answer.status {
        200 => {}
        304 if request.etag.is_some() => return Ok(None),
        _ => return Err(refused(&answer)),
    }
    let shown = answer.url.to_string();
    let bad = |why: &str| FetchError::Answer {
        url: shown.clone(),
        why: why.to_owned(),
    };
    let etag = answer.header("ETag").filter(|etag| etag.len() <= 1024);
    let etag = etag.map(str::to_owned);
    let bytes = answer.whole(MAX_DOCUMENT_BYTES, "the document", &patience)?;
    if bytes.is_empty() {
        return Err(bad("zero-length data received"));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("the document is not UTF-8"))?;
    Ok(Some(WebDocument { text, etag }))
}

/// Asks a web server, and follows redirects. `headers` learns whether the request goes to the first URL's own host.
pub(super) fn follow<'a>(
    http: &Http,
    start: &Url,
    headers: impl Fn(bool) -> Vec<(&'a str, String)>,
) -> Result<Answer, FetchError> {
    let mut url = start.clone();
    let mut redirects = 0;
    loop {
        let answer = http.send(Ask {
            head: false,
            url: &url,
            headers: &headers(url.origin == start.origin),
            authorization: None,
        })?;
        if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
            return Ok(answer);
        }
        redirects += 1;
        url = next(&answer, redirects)?;
        http.check(&url.origin)?;
    }
}

/// The error of an answer that is none to what was asked.
pub(super) fn refused(answer: &Answer) -> FetchError {
    FetchError::Status {
        url: answer.url.to_string(),
        status: answer.status,
        details: String::new(),
    }
}
