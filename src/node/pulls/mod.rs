//! Pulls of images: for clients and for pods. Those that want the same image take turns, so that it is downloaded once.

mod unfit;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::json;
use smol::channel::{Sender, bounded};
use smol::lock::Semaphore;

use super::Input;
use super::execute::{Tools, WORKER};
use super::logins::{Login, places};
use crate::api::PullRequest;
use crate::config::Registries;
use crate::images::registry::{self, BundleFetch, Credentials, PullOptions, Pulled, Source};
use crate::images::{Cause, Image, ImageError, Progress};
use crate::plan::event::ImageFailure;
use crate::plan::pull::{self, Bucket, Unfit};
use crate::plan::{Event, NodeFact, PodFact, event};
use crate::spec::{ImageName, PodSpec, PodUid, PullPolicy, Reason};
use crate::sys::clock;
use crate::types::image_access::{Access, Accesses, Grant};
use crate::types::{Gather, PullHours, Rate, Time};

/// The shortest interval between reports to the planner about a pull.
const TELL_EVERY_MS: u64 = 1000;

/// The longest interval between looks at the clock during a pull: the clock may be set, and a window close early.
const CLOCK_LOOK_MS: u64 = 60_000;

/// A turn at one image.
type Turn = Arc<smol::lock::Mutex<()>>;

/// An image that a container needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) name: &'a ImageName,
    /// The name as the manifest writes it.
    pub(super) written: &'a str,
    /// The id of the image that it must be, whatever the name means.
    pub(super) pinned: Option<&'a str>,
    pub(super) policy: PullPolicy,
}

/// Who pulls what; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Pulls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    turns: Mutex<BTreeMap<String, Weak<smol::lock::Mutex<()>>>>,
    /// How many pods may pull at once; `None`: no limit.
    slots: Option<Semaphore>,
    bucket: Mutex<Bucket>,
    rate: Rate,
    /// Pods that pull; a message ends the pull.
    pods: Mutex<BTreeMap<PodUid, Sender<()>>>,
    /// Held by the pull at work while the rate is limited: the limit is for all together.
    line: smol::lock::Mutex<()>,
    /// Registries that could not be asked for an image that is stored, when, and why.
    unreachable: Mutex<BTreeMap<String, (Time, String)>>,
    /// Images that did not fit on the disk, and the failures.
    unfit: Mutex<BTreeMap<String, (Unfit, String)>>,
}

impl Pulls {
    pub(super) fn new(registries: &Registries) -> Self {
        Self(Arc::new(Inner {
            turns: Mutex::default(),
            slots: registries.parallel.map(Semaphore::new),
            bucket: Mutex::default(),
            rate: registries.rate,
            pods: Mutex::default(),
            line: smol::lock::Mutex::default(),
            unreachable: Mutex::default(),
            unfit: Mutex::default(),
        }))
    }

    /// Ends the pulls of pods that do not want their image any more.
    pub(super) fn cancel(&self, wanted: impl Fn(&PodUid) -> bool) {
        let pods = lock(&self.0.pods);
        for (_, cancel) in pods.iter().filter(|(pod, _)| !wanted(pod)) {
            // A second message changes nothing.
            let _ = cancel.try_send(());
        }
    }

    /// The turns at an image, or at a bundle's source. Others that want it wait while one is held.
    pub(super) fn turn(&self, image: &str) -> Turn {
        let mut turns = lock(&self.0.turns);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(image).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Turn::default();
        turns.insert(image.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

impl Tools {
    /// Pulls an image, in turn with others that want it, until `abandoned` is ready. What has arrived by then stays
    /// for the next pull.
    ///
    /// `logins`: those of the pod that it is for, which are tried before those of the node's file; none, if a person
    /// pulls. If the request has some, they are for the registry, and only mirrors have others.
    pub(super) async fn pull(
        &self,
        abandoned: impl Future<Output = ()>,
        request: PullRequest,
        logins: Option<Vec<Login>>,
        on_progress: impl FnMut(Progress),
    ) -> Result<Pulled, ImageError> {
        let image = ImageName::parse(&request.name).map_err(|why| ImageError::Name {
            name: request.name.clone(),
            why: why.to_string(),
        })?;
        let turn = self.pulls.turn(&image.to_string());
        let registries = self.config.registries.clone();
        let work = async {
            let _turn = turn.lock().await;
            let _line = match registries.bytes_per_second {
                0 => None,
                _ => Some(self.pulls.0.line.lock().await),
            };
            let login = request.credentials.map(|login| Credentials {
                username: login.username,
                password: login.password,
            });
            let written = request.name.clone();
            let (files, meant) = (registries.clone(), image.clone());
            let for_pod = logins.is_some();
            let logins = logins.unwrap_or_default();
            let find = move || places(&files, (&meant, &written), &logins, login.as_ref());
            let places = super::unblock(find).await?;
            let trust = self.demand(&image).await?;
            let options = PullOptions {
                name: request.name,
                platform: request.platform,
                sources: places.sources,
                plain_http: registries.plain_http,
                certificates: registries.certificate_dirs,
                trust,
                access: match for_pod {
                    true => first_access(&image, &places.owners),
                    false => Accesses::new(),
                },
                bytes_per_second: registries.bytes_per_second,
                keep: self.keep_free(),
            };
            let never = std::future::pending();
            let store = self.images.dir();
            let (pulled, served) =
                registry::pull_unless(never, WORKER.as_ref(), store, &options, on_progress).await?;
            for failure in served.failures {
                tracing::warn!("a mirror could not serve `{}`: {failure}", options.name);
            }
            let id = pulled.id();
            let opened = match for_pod {
                false => self.note_pulled(id, &image, None).await,
                true => match places.owners.into_iter().nth(served.login) {
                    Some(owner) => self.note_pulled(id, &image, Some(owner)).await,
                    None => false,
                },
            };
            Ok((pulled, opened))
        };
        let given_up = async {
            abandoned.await;
            Err(ImageError::Abandoned)
        };
        let pulled = smol::future::or(work, given_up).await;
        let changed = match &pulled {
            Ok((Pulled::New(image), _)) => Some(image.names.iter().cloned().gather()),
            Ok((Pulled::Unchanged(_), true)) => Some(BTreeSet::from([image.to_string()])),
            Ok((Pulled::Unchanged(_), false)) => None,
            Err(_) => {
                self.clear_up_after_import().await;
                None
            }
        };
        if let Some(names) = changed {
            let changed = Event::Node(NodeFact::ImagesChanged(Some(names)));
            let _ = self.inputs.send(Input::Event(changed)).await;
        }
        pulled.map(|(pulled, _)| pulled)
    }
}

/// Who may use an image as soon as it is there: all pods, if only the node's credentials are tried, else no pod until it
/// is known whose were accepted.
fn first_access(image: &ImageName, owners: &[Grant]) -> Accesses {
    let access = Access {
        everyone: owners.iter().all(|owner| *owner == Grant::Everyone),
        ..Access::default()
    };
    Accesses::from([(image.in_full(), access)])
}

/// Locks what is consistent even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a pod has no image from a registry.
#[derive(Debug)]
pub(super) struct PullFailure {
    pub(super) failure: ImageFailure,
    /// The sentence for people.
    pub(super) message: String,
    /// Whether the registry was not asked, or could not be.
    pub(super) offline: bool,
}

impl From<String> for PullFailure {
    fn from(message: String) -> Self {
        Self {
            failure: ImageFailure::Pull,
            message,
            offline: false,
        }
    }
}

impl Tools {
    /// Pulls an image that a pod's container needs: the stored image and how long it took, or why there is none.
    /// `stored`: there is an image of that name that the pod may use.
    pub(super) async fn pull_for_pod(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
        stored: bool,
    ) -> Result<(Image, event::Pulled), PullFailure> {
        let begun = super::now().time;
        if let Some(closed) = self.closed() {
            return Err(closed);
        }
        if let Some(failure) = self.known_unreachable(wanted.name).filter(|_| stored) {
            return Err(failure);
        }
        if !lock(&self.pulls.0.bucket).take(self.pulls.0.rate, begun) {
            return Err("pull QPS exceeded".to_owned().into());
        }
        let (logins, missing) = self.logins_of(pod);
        let logins = logins.into_iter().collect::<Result<_, _>>()?;
        let (cancel, cancelled) = bounded(1);
        lock(&self.pulls.0.pods).insert(pod.uid.clone(), cancel);
        self.announce(pod, container, wanted, &missing).await;
        let work = async {
            let _slot = match &self.pulls.0.slots {
                Some(slots) => Some(slots.acquire().await),
                None => None,
            };
            // While this pull waited, another one may have found that out.
            if let Some(failure) = self.known_unreachable(wanted.name).filter(|_| stored) {
                return Err(failure);
            }
            let pulling = super::now().time;
            let pulled = self.pull_once(pod, container, wanted, logins).await;
            self.note_reach(wanted.name, pulled.as_ref().err());
            Ok((pulled?, super::now().time.since(pulling)))
        };
        let given_up = async {
            // The other end lives in the map.
            let _ = cancelled.recv().await;
            let text = "the pull was cancelled: the pod does not want the image any more";
            Err(text.to_owned().into())
        };
        let work = smol::future::or(work, given_up);
        let done = smol::future::or(work, async { Err(self.closing().await) }).await;
        lock(&self.pulls.0.pods).remove(&pod.uid);
        let (id, took_ms) = done?;
        // The name may mean another image by now, which this pod may not use.
        let found = self.look_up(&id).await;
        let image = found.map_err(|why| crate::chain(&why))?;
        let image = image.ok_or_else(|| "the image was removed while it was pulled".to_owned())?;
        let pulled = event::Pulled::Now {
            took_ms,
            waited_ms: super::now().time.since(begun),
            size_bytes: image.size_bytes,
        };
        Ok((image, pulled))
    }

    /// Publishes that an image is being pulled, and which pull secrets are missing.
    async fn announce(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
        missing: &[String],
    ) {
        let mut warnings = vec![(
            Reason::Pulling,
            format!("Pulling image \"{}\"", wanted.written),
        )];
        if !missing.is_empty() {
            let text = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            warnings.insert(0, (Reason::FailedToRetrieveImagePullSecret, text));
        }
        let fact = PodFact::Warned {
            container: Some(container.to_owned()),
            warnings,
        };
        let uid = pod.uid.clone();
        let event = Input::Event(Event::Pod { uid, fact });
        let _ = self.inputs.send(event).await;
    }

    /// Why pods may not pull now, if they may not.
    pub(super) fn closed(&self) -> Option<PullFailure> {
        let now = clock::local_ms_of_day();
        match PullHours::look(&self.config.registries.windows, now) {
            PullHours::Open { .. } => None,
            PullHours::Closed { opens_in_ms, next } => Some(PullFailure {
                failure: ImageFailure::Window { opens_in_ms },
                message: match now {
                    Some(_) => {
                        format!("the next window for pulls is {next} (`coracle.pullWindows`)")
                    }
                    None => "the clock is not set, so no window of `coracle.pullWindows` is open"
                        .to_owned(),
                },
                offline: true,
            }),
        }
    }

    /// Waits until the window closes in which pods may pull.
    pub(super) async fn closing(&self) -> PullFailure {
        loop {
            if let Some(closed) = self.closed() {
                return closed;
            }
            let windows = &self.config.registries.windows;
            match PullHours::look(windows, clock::local_ms_of_day()) {
                PullHours::Open {
                    closes_in_ms: Some(ms),
                } => {
                    // The clock may be set meanwhile.
                    let wait = Duration::from_millis(ms.min(CLOCK_LOOK_MS));
                    smol::Timer::after(wait).await;
                }
                PullHours::Open { closes_in_ms: None } => smol::future::pending().await,
                PullHours::Closed { .. } => {}
            }
        }
    }

    /// The failure of the last pull from an image's registry, if it could not be asked a moment ago.
    fn known_unreachable(&self, image: &ImageName) -> Option<PullFailure> {
        let now = super::now().time;
        let mut all = lock(&self.pulls.0.unreachable);
        all.retain(|_, (at, _)| now.since(*at) < pull::UNREACHABLE_MS);
        let (_, why) = all.get(&image.registry)?;
        Some(PullFailure {
            failure: ImageFailure::Pull,
            message: why.clone(),
            offline: true,
        })
    }

    /// Remembers whether an image's registry could be asked.
    fn note_reach(&self, image: &ImageName, failed: Option<&PullFailure>) {
        let mut all = lock(&self.pulls.0.unreachable);
        match failed {
            Some(why) if why.offline && why.failure == ImageFailure::Pull => {
                let entry = (super::now().time, why.message.clone());
                all.insert(image.registry.clone(), entry);
            }
            Some(_) | None => drop(all.remove(&image.registry)),
        }
    }

    /// Pulls an image, unless another pod has just pulled it and the policy takes what is there. Returns the image's id.
    async fn pull_once(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
        logins: Vec<Login>,
    ) -> Result<String, PullFailure> {
        let name = wanted.name.to_string();
        if wanted.policy == PullPolicy::IfNotPresent {
            // The others' turn is over when this one begins.
            drop(self.pulls.turn(&name).lock().await);
            let stored = self.look_up(&name).await;
            if let Ok(Some(image)) = stored
                && self.may_use(pod, wanted, &image).await
            {
                return Ok(image.id);
            }
        }
        if let Some(failure) = self.still_unfit(wanted.name).await {
            // Images that could not go before may go now.
            self.tell_lack_of_room().await;
            return Err(failure);
        }
        let request = PullRequest {
            // A short name may have an alias.
            name: wanted.written.to_owned(),
            platform: None,
            credentials: None,
        };
        let mut tell = self.teller(pod, container, wanted);
        let mut wrote = false;
        let on_progress = |step| {
            wrote = true;
            tell(step);
        };
        let pulled = self
            .pull(std::future::pending(), request, Some(logins), on_progress)
            .await;
        match &pulled {
            Ok(_) => self.note_fit(wanted.name),
            // One that fails before anything is written costs nothing.
            Err(why) if wrote && why.cause() == Cause::NoSpace => {
                self.note_unfit(wanted.name, crate::chain(why)).await;
            }
            Err(_) => {}
        }
        // Only now: what is removed for it must not count as the room that there was.
        let lacks_room = |why: &ImageError| why.cause() == Cause::NoSpace;
        if pulled.as_ref().is_err_and(lacks_room) {
            self.tell_lack_of_room().await;
        }
        let id = pulled.map(|pulled| pulled.id().to_owned());
        id.map_err(|why| PullFailure {
            offline: matches!(&why, ImageError::Pull { cause, .. } if *cause == Cause::Unreachable),
            failure: match &why {
                ImageError::Pull {
                    cause: Cause::Signature,
                    ..
                } => ImageFailure::Signature,
                _ => ImageFailure::Pull,
            },
            message: match why.hint() {
                Some(hint) => format!("{}; {hint}", crate::chain(&why)),
                None => crate::chain(&why),
            },
        })
    }

    /// Tells the planner how far a pull is, when the percentage has changed, at most once a second.
    fn teller(
        &self,
        pod: &PodSpec,
        container: &str,
        wanted: Wanted<'_>,
    ) -> impl FnMut(Progress) + use<> {
        let inputs = self.inputs.clone();
        let (uid, container) = (pod.uid.clone(), container.to_owned());
        let image = wanted.written.to_owned();
        let mut last: Option<(Time, u8)> = None;
        move |step| {
            let Some(amount) = step.pull else { return };
            let now = super::now().time;
            let percent = pull::percent(amount.done_bytes, amount.total_bytes);
            if last.is_some_and(|(at, told)| told == percent || now.since(at) < TELL_EVERY_MS) {
                return;
            }
            last = Some((now, percent));
            let fact = PodFact::Pulling {
                container: container.clone(),
                image: image.clone(),
                percent,
                total_bytes: amount.total_bytes,
            };
            let uid = uid.clone();
            // A busy agent misses steps.
            let _ = inputs.try_send(Input::Event(Event::Pod { uid, fact }));
        }
    }
}

impl Tools {
    /// Fetches a bundle from its registry, or its archive from a web server, unless it is `known`. What has arrived stays
    /// if it fails. The caller has the turn of this source.
    pub(super) async fn fetch_bundle(
        &self,
        name: &str,
        known: &[String],
        on_progress: impl FnMut(Progress),
    ) -> Result<BundleFetch, ImageError> {
        let registries = self.config.registries.clone();
        let _line = match registries.bytes_per_second {
            0 => None,
            _ => Some(self.pulls.0.line.lock().await),
        };
        let options = PullOptions {
            name: name.to_owned(),
            platform: None,
            trust: None,
            bytes_per_second: registries.bytes_per_second,
            sources: self.bundle_sources(name).await?,
            plain_http: registries.plain_http,
            certificates: registries.certificate_dirs,
            keep: self.keep_free(),
            access: Accesses::new(),
        };
        let (exe, store) = (WORKER.as_ref(), self.images.dir());
        registry::fetch_bundle(exe, store, (&options, known), on_progress).await
    }

    /// Where a bundle can be fetched from; a web server is named by the URL itself.
    async fn bundle_sources(&self, name: &str) -> Result<Vec<Source>, ImageError> {
        if name.contains("://") {
            return Ok(Vec::new());
        }
        let image = ImageName::parse(name).map_err(|why| ImageError::Name {
            name: name.to_owned(),
            why: why.to_string(),
        })?;
        let (files, written) = (self.config.registries.clone(), name.to_owned());
        let find = move || places(&files, (&image, &written), &[], None);
        Ok(super::unblock(find).await?.sources)
    }
}

/// Pulls an image for a client and streams the progress. If the client disconnects, the pull ends.
pub(super) async fn pull_for_client(tools: Tools, request: PullRequest, progress: Sender<String>) {
    let gone = progress.closed();
    let lines = progress.clone();
    let tell = move |step: Progress| {
        let mut line = serde_json::to_value(&step).expect("plain data");
        line["type"] = "progress".into();
        // A slow client misses steps, not the end.
        let _ = lines.try_send(line.to_string());
    };
    let name = request.name.clone();
    let line = match tools.pull(gone, request, None, tell).await {
        Ok(Pulled::New(image)) => json!({ "type": "image", "id": image.id, "names": image.names,
                                          "warnings": image.warnings, "unchanged": false }),
        Ok(Pulled::Unchanged(id)) => json!({ "type": "image", "id": id, "names": [name],
                                             "warnings": [], "unchanged": true }),
        Err(error) => {
            json!({ "type": "error", "message": crate::chain(&error), "hint": error.hint() })
        }
    };
    let _ = progress.send(line.to_string()).await;
}
