//! One request and its answer. Every origin has an agent of its own: certificates and proxies belong to hosts.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_rustls::rustls;
use ureq::config::Config;
use ureq::http::{Response, Uri};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::{Agent, Body, BodyReader, Proxy, ProxyProtocol, Timeout};

use super::certificates;
use super::error::FetchError;
use super::forward::Forward;
use super::guard;
use super::pace::Pace;
use super::proxy::Proxies;
use super::request::{MIN_BYTES, Patience};
use super::tls::{self, TlsConnector};
use super::url::{Origin, Url, shorten};

/// The longest head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Buffers of a connection, each way. The head of an answer must fit.
const BUFFER_BYTES: usize = 2 * MAX_HEAD_BYTES;

const USER_AGENT: &str = concat!("coracle/", env!("CARGO_PKG_VERSION"));

/// Docker's registry, and the name that images and certificates have it by.
pub(super) const DOCKER: (&str, &str) = ("registry-1.docker.io", "docker.io");

/// Connections to registries, token servers and storage services.
pub(super) struct Http {
    certificates: Vec<PathBuf>,
    plain: Vec<String>,
    /// The host, with its port, that need not prove who it is.
    insecure: Option<String>,
    patience: Patience,
    proxies: Proxies,
    ways: Mutex<BTreeMap<Origin, Way>>,
}

/// How an origin is reached.
#[derive(Clone)]
struct Way {
    agent: Agent,
    /// The proxy's URL without user and password.
    proxy: Option<Arc<str>>,
    /// The proxy makes the requests itself, and answers some of them.
    forwards: bool,
}

/// A request without a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    /// `HEAD`, else `GET`.
    pub(super) head: bool,
    pub(super) url: &'a Url,
    pub(super) headers: &'a [(&'a str, String)],
    pub(super) authorization: Option<&'a str>,
}

/// The head of an answer, and its body, not read yet.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) url: Url,
    response: Response<Body>,
}

impl Http {
    pub(super) fn new(
        certificates: Vec<PathBuf>,
        plain: Vec<String>,
        patience: Patience,
        proxies: Proxies,
    ) -> Self {
        Self {
            certificates,
            plain: plain.iter().map(|name| name.to_ascii_lowercase()).collect(),
            insecure: None,
            patience,
            proxies,
            ways: Mutex::default(),
        }
    }

    /// Lets a registry, `host[:port]`, speak plain HTTP, or TLS with any certificate.
    pub(super) fn insecure(mut self, registry: &str) -> Self {
        self.insecure = Some(registry.to_ascii_lowercase());
        self
    }

    /// Whether this registry may speak plain HTTP, or TLS with any certificate.
    pub(super) fn is_insecure(&self, origin: &Origin) -> bool {
        let insecure = self.insecure.as_ref();
        insecure.is_some_and(|registry| names(origin).contains(registry))
    }

    pub(super) fn patience(&self) -> Patience {
        self.patience
    }

    /// Whether the settings name this registry as one that speaks plain HTTP.
    pub(super) fn is_plain(&self, origin: &Origin) -> bool {
        let names = names(origin);
        self.plain.iter().any(|plain| names.contains(plain))
    }

    /// Whether there are certificates for this registry: then it speaks TLS.
    pub(super) fn has_certificates(&self, origin: &Origin) -> bool {
        certificates::known(&self.certificates, &names(origin))
    }

    /// Refuses what would go over a network in the clear.
    pub(super) fn check(&self, origin: &Origin) -> Result<(), FetchError> {
        let plain = self.is_plain(origin) || self.is_insecure(origin);
        match origin.tls || origin.is_loopback() || plain {
            true => Ok(()),
            false => Err(FetchError::Plain(origin.to_string())),
        }
    }

    /// Sends a request and waits for the head of its answer, whatever its status. Follows nothing.
    pub(super) fn send(&self, ask: Ask<'_>) -> Result<Answer, FetchError> {
        self.check(&ask.url.origin)?;
        let way = self.way(&ask.url.origin)?;
        let sent = match ask.head {
            true => way.agent.head(ask.url.full()),
            false => way.agent.get(ask.url.full()),
        };
        let mut request = sent;
        for (name, value) in ask.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = ask.authorization {
            request = request.header("Authorization", authorization);
        }
        let proxy = way.proxy.as_deref();
        let response = request
            .call()
            .and_then(|response| match response.status().as_u16() {
                // No registry answers so.
                407 if proxy.is_some() => Err(ureq::Error::ConnectProxyFailed(
                    "it asks for a user and a password, or has others".to_owned(),
                )),
                status @ (403 | 502..=504)
                    if way.forwards && !response.headers().contains_key(OF_REGISTRY) =>
                {
                    Err(ureq::Error::ConnectProxyFailed(format!(
                        "it answered {status}, or a server behind it that is no registry"
                    )))
                }
                _ => Ok(response),
            })
            .map_err(|why| failed(ask.url, proxy, &why))?;
        Ok(Answer {
            status: response.status().as_u16(),
            url: ask.url.clone(),
            response,
        })
    }

    fn way(&self, origin: &Origin) -> Result<Way, FetchError> {
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = ways.get(origin) {
            return Ok(way.clone());
        }
        let proxy = self.proxy(origin)?;
        let named = proxy.as_ref().map(|proxy| Arc::from(shown(proxy)));
        let (forward, proxy) = match proxy {
            Some(proxy) if !origin.tls && proxy.protocol() == ProxyProtocol::Http => {
                (Some(proxy), None)
            }
            tunnel => (None, tunnel),
        };
        let by_tls = proxy
            .as_ref()
            .is_some_and(|proxy| proxy.protocol() == ProxyProtocol::Https);
        let config = Config::builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(USER_AGENT)
            .accept("")
            .accept_encoding("identity")
            .max_response_header_size(MAX_HEAD_BYTES)
            .input_buffer_size(BUFFER_BYTES)
            .output_buffer_size(BUFFER_BYTES)
            .timeout_resolve(Some(self.patience.connect()))
            .timeout_connect(Some(self.patience.connect()))
            .timeout_recv_response(Some(self.patience.answer()))
            .timeout_per_read(Some(self.patience.stall()))
            .timeout_per_write(Some(self.patience.stall()))
            .proxy(proxy)
            .build();
        let tls = match (origin.tls, self.is_insecure(origin)) {
            (true, false) => Some(certificates::of(&self.certificates, &names(origin))?),
            (true, true) => Some(tls::unchecked()?),
            (false, _) if by_tls => Some(certificates::of(&[], &[])?),
            (false, _) => None,
        };
        let forwards = forward.is_some();
        let asked = forward.as_ref().map(|proxy| Forward::new(origin, proxy));
        let connector = guard::connector(asked.map(Arc::new), TlsConnector(tls));
        let addresses = Addresses {
            instead: forward.and_then(|proxy| shown(&proxy).parse().ok()),
            ..Addresses::default()
        };
        let way = Way {
            agent: Agent::with_parts(config, connector, addresses),
            proxy: named,
            forwards,
        };
        ways.insert(origin.clone(), way.clone());
        Ok(way)
    }

    fn proxy(&self, origin: &Origin) -> Result<Option<Proxy>, FetchError> {
        let Some(text) = self.proxies.of_origin(origin) else {
            return Ok(None);
        };
        // The text may have a password.
        let bad = |why: &str| {
            FetchError::Setup(format!(
                "the proxy of the environment cannot be used: {why}"
            ))
        };
        let proxy = Proxy::new(text).map_err(|why| bad(&why.to_string()))?;
        match proxy.protocol() {
            ProxyProtocol::Http | ProxyProtocol::Https => Ok(Some(proxy)),
            _ => Err(bad("SOCKS is not supported, only `http` and `https`")),
        }
    }
}

/// A header that registries set (Docker Registry HTTP API V2).
const OF_REGISTRY: &str = "docker-distribution-api-version";

/// A proxy's URL without user and password.
fn shown(proxy: &Proxy) -> String {
    let scheme = match proxy.protocol() {
        ProxyProtocol::Https => "https",
        _ => "http",
    };
    format!("{scheme}://{}:{}", proxy.host(), proxy.port())
}

/// The names of a registry in settings and directories.
fn names(origin: &Origin) -> Vec<String> {
    let mut names = vec![format!("{}:{}", origin.host, origin.port)];
    names.push(origin.authority());
    if origin.host == DOCKER.0 {
        names.push(DOCKER.1.to_owned());
    }
    names.dedup();
    names
}

impl Answer {
    /// A header, if it is text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// All headers of that name that are text.
    pub(super) fn headers(&self, name: &str) -> impl Iterator<Item = &str> {
        let all = self.response.headers().get_all(name).into_iter();
        all.filter_map(|value| value.to_str().ok())
    }

    /// The announced length of the body.
    pub(super) fn length(&self) -> Option<u64> {
        self.header("Content-Length")?.trim().parse().ok()
    }

    /// The body, to be read piece by piece.
    pub(super) fn body(self, patience: &Patience) -> Pieces {
        Pieces {
            reader: self.response.into_body().into_reader(),
            pace: Pace::new(patience.window()),
            patience: *patience,
            url: self.url,
        }
    }

    /// A small body as a whole. `what` names it in the error about one that is longer than `limit`.
    pub(super) fn whole(
        self,
        limit: u64,
        what: &str,
        patience: &Patience,
    ) -> Result<Vec<u8>, FetchError> {
        let url = self.url.to_string();
        let too_long = || FetchError::Answer {
            url: url.clone(),
            why: format!("{what} is longer than {limit} bytes"),
        };
        if self.length().is_some_and(|length| length > limit) {
            return Err(too_long());
        }
        let mut pieces = self.body(patience);
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 16 << 10];
        loop {
            let n = pieces.read(&mut buffer)?;
            if n == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&buffer[..n]);
            if bytes.len() as u64 > limit {
                return Err(too_long());
            }
        }
    }
}

/// A body as it arrives.
pub(super) struct Pieces {
    reader: BodyReader<'static>,
    pace: Pace,
    patience: Patience,
    url: Url,
}

impl Pieces {
    /// The next bytes; 0 at the end. Fails when nothing arrives, or too little.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, FetchError> {
        let n = guard::within(self.patience.window(), || self.reader.read(buffer))
            .map_err(|why| failed(&self.url, None, &ureq::Error::from(why)))?;
        // The last bytes may be few.
        if n > 0 && !self.pace.keeps(n) {
            return Err(FetchError::Slow {
                url: self.url.to_string(),
                least: MIN_BYTES,
                window: self.patience.window(),
            });
        }
        Ok(n)
    }
}

/// Names to addresses. `localhost` needs no look-up.
#[derive(Debug, Default)]
struct Addresses {
    system: DefaultResolver,
    /// The proxy that is connected to instead of the host of the request.
    instead: Option<Uri>,
}

impl Resolver for Addresses {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let uri = self.instead.as_ref().unwrap_or(uri);
        let origin = Url::parse(&uri.to_string()).ok().map(|url| url.origin);
        let Some((origin, fixed)) = origin.and_then(|o| o.fixed_addresses().map(|f| (o, f))) else {
            return self.system.resolve(uri, config, timeout);
        };
        let mut found = self.empty();
        for address in fixed {
            found.push(SocketAddr::new(address, origin.port));
        }
        Ok(found)
    }
}

/// The error of a connection in plain words. `proxy`: the proxy that it was made to, if any.
fn failed(url: &Url, proxy: Option<&str>, why: &ureq::Error) -> FetchError {
    let connection = |why: String, hint| FetchError::Connection {
        url: url.to_string(),
        why: match proxy {
            Some(proxy) => format!("through the proxy `{proxy}`: {why}"),
            None => why,
        },
        hint: if proxy.is_some() {
            Some(CHECK_PROXY)
        } else {
            hint
        },
    };
    match why {
        ureq::Error::Timeout(timeout) => connection(timed_out(*timeout).to_owned(), None),
        ureq::Error::HostNotFound => {
            connection("the host's name is unknown".to_owned(), Some(CHECK_NAME))
        }
        ureq::Error::Rustls(why) => broken_tls(url, why),
        ureq::Error::Io(source) => match source
            .get_ref()
            .and_then(|e| e.downcast_ref::<rustls::Error>())
        {
            Some(why) => broken_tls(url, why),
            None => connection(plain(source), None),
        },
        ureq::Error::ConnectProxyFailed(why) => {
            connection(format!("it refused: {}", shorten(why)), None)
        }
        ureq::Error::LargeResponseHeader(_, most) => FetchError::Answer {
            url: url.to_string(),
            why: format!("the head of the answer is longer than {most} bytes"),
        },
        other => FetchError::Answer {
            url: url.to_string(),
            why: shorten(&other.to_string()),
        },
    }
}

const CHECK_PROXY: &str =
    "check the proxy, and `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` in the agent's environment";

const CHECK_NAME: &str = "check the name of the registry, and the node's DNS";

fn plain(why: &io::Error) -> String {
    match why.kind() {
        io::ErrorKind::UnexpectedEof => "the connection ended too early".to_owned(),
        _ => why.to_string(),
    }
}

fn timed_out(timeout: Timeout) -> &'static str {
    match timeout {
        Timeout::Resolve => "the host's name could not be resolved in time",
        Timeout::Connect => "no connection in time",
        Timeout::SendRequest | Timeout::SendBody | Timeout::PerWrite => {
            "the request was not taken in time"
        }
        Timeout::RecvResponse => "no answer in time",
        _ => "nothing more arrived in time",
    }
}

fn broken_tls(url: &Url, why: &rustls::Error) -> FetchError {
    let hint = match why {
        rustls::Error::InvalidCertificate(_) => Some(
            "put the certificate of the registry's authority into `/etc/containers/certs.d/HOST[:PORT]/ca.crt`",
        ),
        rustls::Error::AlertReceived(_) => Some(
            "a registry that asks for a client's certificate finds it in `/etc/containers/certs.d/HOST[:PORT]`: \
             `client.cert` and `client.key`",
        ),
        // The first bytes were no TLS.
        rustls::Error::InvalidMessage(_) => Some(NO_TLS),
        _ => None,
    };
    FetchError::Connection {
        url: url.to_string(),
        why: format!("TLS: {why}"),
        hint,
    }
}

const NO_TLS: &str = "the registry seems to speak plain HTTP: list it in the setting `coracle.plainHTTPRegistries` \
                      if that is meant";
