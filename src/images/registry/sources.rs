//! The places from which an image can be fetched, mirrors first, each with the logins for it. What fails at one place
//! is tried at the next; a blob goes on there where it was left.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::name;
use super::error::FetchError;
use super::http::Http;
use super::proxy::Proxies;
use super::request::{Credentials, Request};
use super::session::Session;
use super::throttle::Throttle;
use crate::spec::ImageName;

/// A place with one login, or none.
struct Place {
    /// Which source of the request it belongs to.
    source: usize,
    name: ImageName,
    insecure: bool,
    login: Option<Credentials>,
}

pub(super) struct Sources {
    request: Request,
    throttle: Throttle,
    places: Vec<Place>,
    sessions: Mutex<BTreeMap<usize, Arc<Session>>>,
    /// Where something succeeded last; places before it are not asked again.
    current: AtomicUsize,
    /// What places said that were given up.
    failures: Mutex<Vec<String>>,
}

impl Sources {
    pub(super) fn new(request: &Request) -> Result<Self, FetchError> {
        let mut places = Vec::new();
        for (number, source) in request.sources.iter().enumerate() {
            let name = name::parse(&source.name)?;
            let logins = source.credentials.iter().cloned().map(Some);
            let logins: Vec<_> = match source.credentials.is_empty() {
                true => vec![None],
                false => logins.collect(),
            };
            places.extend(logins.into_iter().map(|login| Place {
                source: number,
                name: name.clone(),
                insecure: source.insecure,
                login,
            }));
        }
        match places.is_empty() {
            true => Err(FetchError::Request("it has no sources".to_owned())),
            false => Ok(Self {
                request: request.clone(),
                throttle: Throttle::new(request.bytes_per_second),
                places,
                sessions: Mutex::default(),
                current: AtomicUsize::new(0),
                failures: Mutex::default(),
            }),
        }
    }

    /// Does something at the first place where it succeeds. A registry that hides images from strangers says that there
    /// is none: then the next login is tried; after other errors the next place is.
    pub(super) fn first<T>(
        &self,
        mut work: impl FnMut(&Session) -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        let mut at = self.current.load(Ordering::Relaxed);
        loop {
            let place = &self.places[at];
            let why = match self.session(at).and_then(|session| work(&session)) {
                Ok(done) => {
                    self.current.fetch_max(at, Ordering::Relaxed);
                    return Ok(done);
                }
                Err(why) => why,
            };
            if !why.is_of_the_source() {
                return Err(why);
            }
            let denied = matches!(why, FetchError::Denied { .. } | FetchError::NotFound { .. });
            let rest = &self.places[at + 1..];
            let next = rest
                .iter()
                .position(|next| denied || next.source != place.source);
            let Some(next) = next.map(|next| at + 1 + next) else {
                return Err(self.everywhere(why));
            };
            if self.places[next].source != place.source {
                self.give_up(place, &why);
            }
            at = next;
        }
    }

    /// The limit on how fast blobs arrive, from all places together.
    pub(super) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// The number of the login that was accepted last.
    pub(super) fn login(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// What places said that were given up.
    pub(super) fn failures(&self) -> Vec<String> {
        let failures = self.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn session(&self, at: usize) -> Result<Arc<Session>, FetchError> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = sessions.get(&at) {
            return Ok(session.clone());
        }
        let place = &self.places[at];
        let mut http = Http::new(
            self.request.certificates.clone(),
            self.request.plain_http.clone(),
            self.request.patience,
            Proxies::of(|variable| std::env::var(variable).ok()),
        );
        if place.insecure {
            http = http.insecure(&place.name.registry);
        }
        let session = Session::open(http, place.name.clone(), place.login.clone())?;
        let session = Arc::new(session);
        sessions.insert(at, session.clone());
        Ok(session)
    }

    fn give_up(&self, place: &Place, why: &FetchError) {
        let said = format!("{}: {}", place.name, crate::chain(why));
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // Several blobs may fail at the same place.
        if !failures.contains(&said) && failures.len() < self.places.len() {
            failures.push(said);
        }
    }

    fn everywhere(&self, last: FetchError) -> FetchError {
        let failures = self.failures();
        match failures.is_empty() {
            true => last,
            false => FetchError::Everywhere {
                last: Box::new(last),
                failures,
            },
        }
    }
}
