//! The watch on the devices that pods ask for: it looks for them when the pods come and whenever something changes
//! where they are, and reports what it finds. Without such pods nothing is watched.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};

use super::Input;
use crate::effects::device::{self, Look};
use crate::plan::device::Sights;
use crate::plan::{Event, PodFact, PodState};
use crate::spec::device::Devices as Requests;
use crate::spec::{DeviceRequest, PodUid};
use crate::sys::device_node::{Names, Seen};
use crate::types::Gather;

/// The shortest time between two checks, so that frequent changes cost little.
const PAUSE: Duration = Duration::from_millis(50);

/// The interval of looks when the kernel cannot report changes.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Most rounds of looking and watching until all folders on the way are watched.
const MOST_ROUNDS: usize = 16;

/// What is watched, by loop and watch.
#[derive(Debug, Default)]
struct Shared {
    /// The pods whose devices are watched.
    wanted: BTreeMap<PodUid, Arc<Requests>>,
    /// Those that have had no report.
    unseen: BTreeSet<PodUid>,
}

/// The loop's side of the watch.
#[derive(Debug)]
pub(super) struct Devices {
    shared: Rc<RefCell<Shared>>,
    /// Wakes the watch, which begins with the first pod.
    changed: Option<Sender<()>>,
    cdi: Arc<[PathBuf]>,
    inputs: Sender<Input>,
}

impl Devices {
    /// `cdi` are the folders of CDI files.
    pub(super) fn new(cdi: &[PathBuf], inputs: Sender<Input>) -> Self {
        Self {
            shared: Rc::default(),
            changed: None,
            cdi: cdi.into(),
            inputs,
        }
    }

    /// To be called whenever a pod has changed.
    pub(super) fn look_at(&mut self, uid: &PodUid, pod: &PodState) {
        let Some(requests) = &pod.spec.devices else {
            return;
        };
        let over = pod.hold().is_some() || pod.stopping().is_some() || pod.finished();
        if over {
            self.forget(uid);
            return;
        }
        let mut shared = self.shared.borrow_mut();
        let requests = Arc::clone(requests);
        let mut new = shared.wanted.insert(uid.clone(), requests).is_none();
        if pod.devices.sights.is_empty() {
            new |= shared.unseen.insert(uid.clone());
        }
        drop(shared);
        if new {
            self.wake();
        }
    }

    /// To be called when a pod is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        let mut shared = self.shared.borrow_mut();
        shared.unseen.remove(uid);
        let known = shared.wanted.remove(uid);
        drop(shared);
        if known.is_some() {
            self.wake();
        }
    }

    fn wake(&mut self) {
        let changed = self.changed.get_or_insert_with(|| {
            let (sender, receiver) = bounded(1);
            let watch = Watch {
                shared: self.shared.clone(),
                known: BTreeMap::new(),
                cdi: self.cdi.clone(),
                inputs: self.inputs.clone(),
                folders: None,
                warned: false,
            };
            super::spawn(watch.run(receiver));
            sender
        });
        // If it is full, the watch is about to look anyway.
        let _ = changed.try_send(());
    }
}

/// The watch itself, beside the loop.
struct Watch {
    shared: Rc<RefCell<Shared>>,
    /// What was reported last of each pod.
    known: BTreeMap<PodUid, Sights>,
    cdi: Arc<[PathBuf]>,
    inputs: Sender<Input>,
    folders: Option<Folders>,
    /// Whether the log says that changes are not reported.
    warned: bool,
}

impl Watch {
    /// Runs for ever.
    async fn run(mut self, changed: Receiver<()>) {
        loop {
            let (wanted, unseen) = {
                let mut shared = self.shared.borrow_mut();
                (shared.wanted.clone(), std::mem::take(&mut shared.unseen))
            };
            self.known
                .retain(|uid, _| wanted.contains_key(uid) && !unseen.contains(uid));
            if wanted.is_empty() {
                self.folders = None;
                if changed.recv().await.is_err() {
                    return;
                }
                continue;
            }
            let settles_in = self.look(&wanted).await;
            smol::Timer::after(PAUSE).await;
            let other_pods = async { changed.recv().await.is_ok() };
            let patience = match &self.folders {
                Some(_) => settles_in,
                None => Some(settles_in.unwrap_or(LOOK_AGAIN)),
            };
            let time = async {
                match patience {
                    Some(patience) => drop(smol::Timer::after(patience).await),
                    None => std::future::pending().await,
                }
                true
            };
            let folders = &mut self.folders;
            let change = async {
                match folders {
                    Some(folders) => folders.change().await,
                    None => std::future::pending().await,
                }
                true
            };
            let again = smol::future::or(other_pods, smol::future::or(change, time)).await;
            if !again {
                return;
            }
        }
    }

    /// Looks for everything and reports what has changed. Returns when to look again by itself.
    async fn look(&mut self, wanted: &BTreeMap<PodUid, Arc<Requests>>) -> Option<Duration> {
        let mut rounds = 0;
        let looks = loop {
            let (owned, cdi) = (wanted.clone(), self.cdi.clone());
            let looks = super::unblock(move || {
                let all = owned.into_iter();
                all.map(|(uid, requests)| (uid, look(&requests, &cdi)))
                    .collect::<Vec<_>>()
            })
            .await;
            let mut seen = Seen::new();
            for (_, look) in &looks {
                crate::sys::device_node::merge(&mut seen, look.seen.clone());
            }
            rounds += 1;
            if !self.watch(seen) || rounds == MOST_ROUNDS {
                break looks;
            }
            // What has changed before the watch began shows in another look.
        };
        let mut settles_in: Option<Duration> = None;
        for (uid, look) in looks {
            if let Some(time) = look.settles_in {
                settles_in = Some(settles_in.map_or(time, |other| other.min(time)));
                continue;
            }
            if self.known.get(&uid) == Some(&look.sights) {
                continue;
            }
            self.known.insert(uid.clone(), look.sights.clone());
            let fact = PodFact::DevicesSeen {
                sights: look.sights,
            };
            let event = Event::Pod { uid, fact };
            let _ = self.inputs.send(Input::Event(event)).await;
        }
        settles_in
    }

    /// Watches these folders; returns whether that is new.
    fn watch(&mut self, seen: Seen) -> bool {
        if self
            .folders
            .as_ref()
            .is_some_and(|old| old.seen == seen && !old.lost)
        {
            return false;
        }
        match Folders::watch(seen) {
            Ok(folders) => {
                (self.folders, self.warned) = (Some(folders), false);
                true
            }
            Err(error) => {
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(
                        "could not watch for devices: {error}, looking every {} s",
                        LOOK_AGAIN.as_secs()
                    );
                }
                self.folders = None;
                false
            }
        }
    }
}

/// Blocking. Requests of several containers may have the same name.
fn look(requests: &Requests, cdi: &[PathBuf]) -> Look {
    let each: BTreeMap<&str, &DeviceRequest> = requests
        .each()
        .map(|request| (request.name.as_str(), request))
        .gather();
    device::look(each.into_values(), cdi)
}

/// Watched folders.
#[derive(Debug)]
struct Folders {
    seen: Seen,
    inotify: Inotify,
    readiness: Async<OwnedFd>,
    by_watch: BTreeMap<i32, BTreeSet<PathBuf>>,
    /// Whether one of them is gone.
    lost: bool,
}

impl Folders {
    /// Folders that are missing are not watched: they appear in others that are.
    fn watch(seen: Seen) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let readiness = Async::new(inotify.as_fd().try_clone_to_owned()?)?;
        let mut by_watch = BTreeMap::<i32, BTreeSet<PathBuf>>::new();
        for (folder, names) in &seen {
            match inotify.watches().add(folder, mask(folder, names)) {
                Ok(watch) => {
                    let all = by_watch.entry(watch.get_watch_descriptor_id());
                    all.or_default().insert(folder.clone());
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR) => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(Self {
            seen,
            inotify,
            readiness,
            by_watch,
            lost: false,
        })
    }

    /// Waits for a change that matters.
    async fn change(&mut self) {
        loop {
            if self.readiness.readable().await.is_err() {
                std::future::pending::<()>().await;
            }
            let (mut matters, mut buffer) = (false, [0; 4096]);
            while let Ok(events) = self.inotify.read_events(&mut buffer) {
                for event in events {
                    let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED;
                    let all = EventMask::Q_OVERFLOW | gone;
                    self.lost |= event.mask.intersects(gone);
                    matters |= event.mask.intersects(all)
                        || event.name.is_some_and(|name| {
                            concerns(&self.by_watch, &self.seen, &event.wd, name)
                        });
                }
            }
            if matters {
                return;
            }
        }
    }
}

/// Device nodes are not written in place, and every use of one would be reported. CDI files are.
fn mask(folder: &Path, names: &Names) -> WatchMask {
    let mut mask = WatchMask::CREATE
        | WatchMask::DELETE
        | WatchMask::MOVED_FROM
        | WatchMask::MOVED_TO
        | WatchMask::ATTRIB
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    if *names == Names::All && !folder.starts_with("/dev") {
        mask |= WatchMask::CLOSE_WRITE;
    }
    mask
}

/// Whether this name in a watched folder matters.
fn concerns(
    by_watch: &BTreeMap<i32, BTreeSet<PathBuf>>,
    seen: &Seen,
    watch: &WatchDescriptor,
    name: &OsStr,
) -> bool {
    let folders = by_watch.get(&watch.get_watch_descriptor_id());
    let mut names = folders
        .into_iter()
        .flatten()
        .filter_map(|folder| seen.get(folder));
    names.any(|names| match names {
        Names::All => true,
        Names::Some(some) => some.contains(name),
    })
}
