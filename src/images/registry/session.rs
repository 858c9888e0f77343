//! One repository of one registry: its address, the credentials for it, and what each kind of answer means.
//! Credentials go to the registry's own origin and to its token server, never where a redirect leads.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Deserialize;

use super::super::error::ImageError;
use super::challenge::{self, Challenge};
use super::error::FetchError;
use super::http::{Answer, Ask, DOCKER, Http};
use super::request::{Credentials, Patience};
use super::retry_after;
use super::token;
use super::url::{Origin, Url, shorten};
use crate::spec::ImageName;
use crate::sys::clock;

/// The maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 10;

/// How often a busy registry is asked again.
const MAX_WAITS: usize = 3;

/// How often the registry may ask for credentials in one request: once at first, once when a token has expired.
const MAX_CHALLENGES: usize = 2;

/// The longest description of an error that is read.
const MAX_DETAILS_BYTES: u64 = 16 << 10;

/// A repository to fetch from.
pub(super) struct Session {
    http: Http,
    base: Origin,
    name: ImageName,
    credentials: Option<Credentials>,
    /// What the registry last accepted.
    authorization: Mutex<Option<String>>,
}

/// What to ask the repository for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// `HEAD`, else `GET`.
    pub(super) head: bool,
    /// Below the repository: `manifests/…`, `blobs/…`.
    pub(super) target: String,
    pub(super) headers: Vec<(&'static str, String)>,
    /// For messages: `manifest …`.
    pub(super) what: String,
    /// Whether 416 is an answer, too.
    pub(super) range: bool,
}

#[derive(Deserialize)]
struct Errors {
    #[serde(default)]
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Session {
    /// Finds out how the registry is to be asked. A registry on this machine is asked by plain HTTP if it answers that,
    /// unless there are certificates for it.
    pub(super) fn open(
        http: Http,
        name: ImageName,
        credentials: Option<Credentials>,
    ) -> Result<Self, FetchError> {
        let host = match name.registry.as_str() {
            host if host == DOCKER.1 => DOCKER.0,
            host => host,
        };
        let origin = |tls| {
            Origin::of(tls, host).map_err(|why| {
                FetchError::Image(ImageError::Name {
                    name: name.to_string(),
                    why,
                })
            })
        };
        let (secure, plain) = (origin(true)?, origin(false)?);
        let base = if http.is_insecure(&secure) {
            let url = secure.at("/v2/");
            let answer = http.send(Ask {
                head: false,
                url: &url,
                headers: &[],
                authorization: None,
            });
            if answer.is_ok() { secure } else { plain }
        } else if http.is_plain(&plain) {
            plain
        } else if plain.is_loopback() && !http.has_certificates(&secure) {
            // A server that speaks TLS closes the connection, or answers 400. Nothing secret is sent.
            let url = plain.at("/v2/");
            let answer = http.send(Ask {
                head: false,
                url: &url,
                headers: &[],
                authorization: None,
            });
            match answer {
                Ok(answer) if answer.status != 400 => plain,
                // Other errors are reported by the request that matters.
                Ok(_) | Err(_) => secure,
            }
        } else {
            secure
        };
        Ok(Self {
            http,
            base,
            name,
            credentials,
            authorization: Mutex::default(),
        })
    }

    /// The image's name.
    pub(super) fn name(&self) -> &ImageName {
        &self.name
    }

    /// The registry's address.
    pub(super) fn origin(&self) -> String {
        self.base.to_string()
    }

    pub(super) fn patience(&self) -> Patience {
        self.http.patience()
    }

    /// Asks for something that must be there, and follows redirects. The answer has status 200 or 206, or 416 if that
    /// is wanted.
    pub(super) fn ask(&self, wanted: &Wanted) -> Result<Answer, FetchError> {
        let url = self
            .base
            .at(&format!("/v2/{}/{}", self.name.repository, wanted.target));
        let mut challenges = 0;
        loop {
            let used = self.authorization();
            let answer = self.follow(&url, wanted, |origin| {
                used.clone().filter(|_| *origin == self.base)
            })?;
            let at_home = answer.url.origin == self.base;
            match answer.status {
                200 | 206 => return Ok(answer),
                416 if wanted.range => return Ok(answer),
                401 if at_home && challenges < MAX_CHALLENGES => {
                    challenges += 1;
                    let challenge = challenge::choose(answer.headers("WWW-Authenticate"));
                    let Some(challenge) = challenge else {
                        return Err(self.denied(answer));
                    };
                    if !self.authorize(&challenge, used.as_deref())? {
                        return Err(self.denied(answer));
                    }
                }
                401 | 403 if at_home => return Err(self.denied(answer)),
                404 => {
                    return Err(FetchError::NotFound {
                        what: wanted.what.clone(),
                        registry: self.name.registry.clone(),
                        details: self.details(answer),
                    });
                }
                status => {
                    return Err(FetchError::Status {
                        url: answer.url.to_string(),
                        status,
                        details: self.details(answer),
                    });
                }
            }
        }
    }

    /// Sends a request and follows redirects; a busy server is asked again after a while.
    fn follow(
        &self,
        start: &Url,
        wanted: &Wanted,
        authorization: impl Fn(&Origin) -> Option<String>,
    ) -> Result<Answer, FetchError> {
        let mut url = start.clone();
        let (mut redirects, mut waits) = (0, 0);
        loop {
            let authorization = authorization(&url.origin);
            let answer = self.http.send(Ask {
                head: wanted.head,
                url: &url,
                headers: &wanted.headers,
                authorization: authorization.as_deref(),
            })?;
            match answer.status {
                301 | 302 | 303 | 307 | 308 => {
                    redirects += 1;
                    url = next(&answer, redirects)?;
                    self.http.check(&url.origin)?;
                }
                429 | 503 => {
                    waits += 1;
                    let wait = retry_after::wait(answer.header("Retry-After"), clock::timestamp());
                    if waits > MAX_WAITS || wait > self.patience().retry_after() {
                        return Err(FetchError::Busy {
                            url: url.to_string(),
                            status: answer.status,
                            wait,
                        });
                    }
                    thread::sleep(wait);
                }
                _ => return Ok(answer),
            }
        }
    }

    fn authorization(&self) -> Option<String> {
        let held = self.authorization.lock();
        held.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers a challenge to a request that was sent with `used`; `false` if there is nothing more to try.
    fn authorize(&self, challenge: &Challenge, used: Option<&str>) -> Result<bool, FetchError> {
        // Held while a token is fetched, so that several downloads fetch one.
        let mut held = self
            .authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if held.as_deref() != used {
            return Ok(true);
        }
        let new = match challenge {
            Challenge::Basic => self.credentials.as_ref().map(Credentials::basic),
            Challenge::Bearer {
                realm,
                service,
                scope,
            } => {
                let own = format!("repository:{}:pull", self.name.repository);
                let scope = scope.as_deref().unwrap_or(&own);
                Some(self.token(realm, service.as_deref(), scope)?)
            }
        };
        let differs = new.is_some() && new.as_deref() != used;
        *held = new.or(held.take());
        Ok(differs)
    }

    fn token(&self, realm: &str, service: Option<&str>, scope: &str) -> Result<String, FetchError> {
        let url = token::url(realm, service, scope)?;
        self.http.check(&url.origin)?;
        let wanted = Wanted {
            head: false,
            target: String::new(),
            headers: Vec::new(),
            what: "token".to_owned(),
            range: false,
        };
        let home = url.origin.clone();
        let answer = self.follow(&url, &wanted, |origin| {
            let credentials = self.credentials.as_ref().filter(|_| *origin == home);
            credentials.map(Credentials::basic)
        })?;
        match answer.status {
            200 => {
                let at = answer.url.clone();
                let body = answer.whole(token::MAX_BYTES, "the answer", &self.patience())?;
                token::authorization(&body, &at)
            }
            400 | 401 | 403 | 404 => Err(self.denied(answer)),
            status => Err(FetchError::Status {
                url: answer.url.to_string(),
                status,
                details: self.details(answer),
            }),
        }
    }

    fn denied(&self, answer: Answer) -> FetchError {
        FetchError::Denied {
            registry: self.name.registry.clone(),
            repository: self.name.repository.clone(),
            details: self.details(answer),
            with_credentials: self.credentials.is_some(),
        }
    }

    /// What the registry says about an error, shortened; empty if it says nothing understandable.
    fn details(&self, answer: Answer) -> String {
        let Ok(body) = answer.whole(MAX_DETAILS_BYTES, "", &self.patience()) else {
            return String::new();
        };
        let Ok(said) = serde_json::from_slice::<Errors>(&body) else {
            return String::new();
        };
        let mut text = String::new();
        for complaint in said.errors.iter().take(3) {
            let joint = if text.is_empty() { "" } else { "; " };
            let code = complaint.code.to_ascii_lowercase().replace('_', " ");
            let _ = write!(text, "{joint}{code}: {}", complaint.message);
        }
        shorten(&text)
    }
}

pub(super) fn next(answer: &Answer, redirects: usize) -> Result<Url, FetchError> {
    let bad = |why: String| FetchError::Answer {
        url: answer.url.to_string(),
        why,
    };
    if redirects > MAX_REDIRECTS {
        return Err(bad(format!("more than {MAX_REDIRECTS} redirects")));
    }
    let location = answer.header("Location");
    let location = location.ok_or_else(|| bad("a redirect without a location".to_owned()))?;
    let url = answer.url.join(location).map_err(bad)?;
    if answer.url.origin.tls && !url.origin.tls {
        return Err(bad(format!(
            "a redirect to `{url}`, which is not encrypted"
        )));
    }
    Ok(url)
}
