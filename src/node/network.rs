//! Who looks after the pods' network? Tasks beside the loop: one keeps names and routes as the planner sees pods and
//! services, one mends what others change by hand, one answers pods' questions for names.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};

use super::Input;
use super::execute::Hands;
use super::{now, publish, spawn, unblock_bridge};
use crate::api::Store;
use crate::effects::network::names::{Names, Sockets, Zone};
use crate::effects::network::{Network, NetworkError, firewall, watch};
use crate::plan::Event;
use crate::plan::state::Retry;
use crate::spec::ServiceSpec;
use crate::spec::cluster::ClusterView;

/// Changes come in bursts: what else changes within this time is looked at together.
const SETTLE: Duration = Duration::from_millis(100);

/// After something was mended, the next look is not sooner than this: nobody wins a fight by being quick.
const BREATHER: Duration = Duration::from_secs(1);

/// What could not be mended is tried again: first after this, in the end after that.
const RETRY_MS: (u64, u64) = (1_000, 60_000);

/// A container waits no longer than this for services that it is to be told of.
const SERVICES_PATIENCE: Duration = Duration::from_secs(5);

/// The name server, once there is a bridge to listen on.
#[derive(Debug, Clone)]
pub(super) struct NameServer {
    names: Arc<Names>,
    serving: Arc<AtomicBool>,
}

impl NameServer {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self {
            names,
            serving: Arc::default(),
        }
    }

    /// Begins to answer pods. Doing it again changes nothing; what fails is tried again with the next pod.
    pub(super) async fn ensure(&self, network: &Network) {
        if self.serving.swap(true, Ordering::SeqCst) {
            return;
        }
        let (network, names) = (network.clone(), self.names.clone());
        let bound = unblock_bridge(move || {
            let reach = network.reach()?;
            let (sockets, port) =
                Sockets::bind_apart(&reach.own).map_err(|source| NetworkError::Names {
                    addresses: reach.own.clone(),
                    source,
                })?;
            network.set_dns_port(port)?;
            names.set_reach(reach);
            Ok::<_, NetworkError>(sockets)
        })
        .await;
        match bound {
            Ok(sockets) => spawn(self.names.clone().serve(sockets)),
            Err(error) => {
                self.serving.store(false, Ordering::SeqCst);
                tracing::warn!("{}, trying again with the next pod", crate::chain(&error));
            }
        }
    }
}

/// How far the task that acts on what the loop sees has come.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Mutex<Reached>>);

#[derive(Debug, Default)]
struct Reached {
    /// Views that were seen, and the services of the last one.
    seen: u64,
    wanted: Vec<Arc<ServiceSpec>>,
    /// Those of the view that was acted on last.
    served: Vec<Arc<ServiceSpec>>,
    /// Who waits until which view was acted on: the channel closes.
    waiting: Vec<(u64, Sender<()>)>,
}

impl Progress {
    /// Waits until something was done about the services of a namespace as the loop sees them now, well or badly.
    pub(super) async fn settled(&self, namespace: &str) {
        let closed = {
            let mut reached = self.lock();
            let own = |list: &[Arc<ServiceSpec>]| -> Vec<Arc<ServiceSpec>> {
                let own = list.iter().filter(|spec| spec.key.namespace == namespace);
                own.cloned().collect()
            };
            if own(&reached.wanted) == own(&reached.served) {
                return;
            }
            let (sender, closed) = bounded(1);
            let newest = reached.seen;
            reached.waiting.push((newest, sender));
            closed
        };
        let patience = async {
            smol::Timer::after(SERVICES_PATIENCE).await;
        };
        let closed = async {
            let _ = closed.recv().await;
        };
        smol::future::or(closed, patience).await;
    }

    /// The number of a view that is seen now.
    fn see(&self, services: Vec<Arc<ServiceSpec>>) -> u64 {
        let mut reached = self.lock();
        reached.seen += 1;
        reached.wanted = services;
        reached.seen
    }

    fn act(&self, scene: &Scene) {
        let mut reached = self.lock();
        reached.served = scene.specs();
        reached.waiting.retain(|(number, _)| *number > scene.number);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Reached> {
        self.0.lock().expect("no panic holds this lock")
    }
}

/// What the loop sees of pods and services.
#[derive(Debug, Clone)]
struct Scene {
    number: u64,
    view: ClusterView,
    /// As they are shown.
    services: Vec<Service>,
}

impl Scene {
    fn specs(&self) -> Vec<Arc<ServiceSpec>> {
        let services = self.view.services.iter();
        services.map(|entry| Arc::clone(&entry.spec)).collect()
    }
}

/// Where the loop leaves what it sees; only the newest counts.
#[derive(Debug, Clone)]
pub(super) struct Views {
    newest: Arc<Mutex<Option<Scene>>>,
    progress: Progress,
    news: Sender<()>,
}

impl Views {
    /// Starts the task that acts on them.
    pub(super) fn new(hands: &Hands, store: Arc<Store>) -> Self {
        let (news, received) = bounded(1);
        let newest = Arc::default();
        let stage = Stage {
            network: hands.sandboxes.network.clone(),
            names: hands.name_server.names.clone(),
            cluster_domain: hands.config.cluster_domain.clone(),
            store,
            newest: Arc::clone(&newest),
            progress: hands.progress.clone(),
        };
        spawn(stage.run(received));
        let progress = hands.progress.clone();
        Self {
            newest,
            progress,
            news,
        }
    }

    pub(super) fn set(&self, view: ClusterView, services: Vec<Service>) {
        let mut scene = Scene {
            number: 0,
            view,
            services,
        };
        scene.number = self.progress.see(scene.specs());
        *self.newest.lock().expect("no panic holds this lock") = Some(scene);
        // A full channel means that the task has not looked yet.
        let _ = self.news.try_send(());
    }
}

/// Who acts on what the loop sees: routes and addresses of services, names, and the services as clients see them.
struct Stage {
    network: Network,
    names: Arc<Names>,
    cluster_domain: String,
    store: Arc<Store>,
    newest: Arc<Mutex<Option<Scene>>>,
    progress: Progress,
}

impl Stage {
    async fn run(self, news: Receiver<()>) {
        let mut retry = Retry::default();
        let mut failed = None;
        loop {
            if failed.is_none() {
                if news.recv().await.is_err() {
                    return;
                }
            } else {
                wait(&retry, async { news.recv().await.is_ok() }).await;
            }
            let newer = self.newest.lock().expect("no panic holds this lock").take();
            let Some(scene) = newer.or(failed.take()) else {
                continue;
            };
            let acted = self.act(&scene).await;
            self.progress.act(&scene);
            match acted {
                Ok(()) => {
                    retry = Retry::default();
                    failed = None;
                }
                Err(error) => {
                    note(&mut retry, &error);
                    failed = Some(scene);
                }
            }
        }
    }

    /// Names and what is shown go with the addresses there are, whatever else fails.
    async fn act(&self, scene: &Scene) -> Result<(), NetworkError> {
        let (view, network) = (scene.view.clone(), self.network.clone());
        let (names, domain) = (self.names.clone(), self.cluster_domain.clone());
        let (addresses, result) = unblock_bridge(move || {
            let result = network.set_cluster(&view);
            let addresses = network.service_addresses();
            names.set_zone(Zone::new(&domain, &view, &addresses));
            (addresses, result)
        })
        .await;
        publish::services(&self.store, &scene.services, &addresses, &scene.view);
        result
    }
}

/// Waits for `event`, but not beyond the time of the next try. Whether the event came.
async fn wait(retry: &Retry, event: impl Future<Output = bool>) -> bool {
    let left = Duration::from_millis(retry.at.since(now().time));
    let timer = async {
        smol::Timer::after(left).await;
        false
    };
    smol::future::or(event, timer).await
}

fn note(retry: &mut Retry, error: &NetworkError) {
    let (first, max) = RETRY_MS;
    retry.fail(now().time, first, max);
    let seconds = retry.at.since(now().time) / 1000;
    tracing::warn!("{}, retrying in {seconds}s", crate::chain(error));
}

/// What tells of changes by others.
struct Watches {
    links: watch::Watch,
    links_readable: Async<OwnedFd>,
    /// `None` on a kernel without packet rules: pods on the node's network need none.
    rules: Option<(firewall::Watch, Async<OwnedFd>)>,
}

/// What somebody may have changed.
#[derive(Debug, Clone, Copy, Default)]
struct Changed {
    links: bool,
    addresses: bool,
    rules: bool,
}

impl Watches {
    fn open(network: &Network, bridge: &str) -> io::Result<Self> {
        let links = watch::Watch::open()?;
        let readable = |fd: &dyn AsFd| Async::new(fd.as_fd().try_clone_to_owned()?);
        let rules = network.firewall().watch(bridge);
        let rules = rules.and_then(|rules| Ok((readable(&rules)?, rules)));
        let rules = match rules {
            Ok((fd, rules)) => Some((rules, fd)),
            Err(error) => {
                tracing::warn!(
                    "could not watch the packet rules: {error}, changes by others will not be noticed"
                );
                None
            }
        };
        Ok(Self {
            links_readable: readable(&links)?,
            links,
            rules,
        })
    }

    /// Waits until there is something to be drained.
    async fn readable(&self) -> bool {
        let links = self.links_readable.readable();
        let _ = match &self.rules {
            Some((_, rules)) => smol::future::or(links, rules.readable()).await,
            None => links.await,
        };
        true
    }

    /// What has changed up to now.
    fn drain(&mut self) -> Changed {
        // A socket that does not work means to look.
        let links = self.links.drain().unwrap_or(watch::Change {
            links: true,
            addresses: true,
        });
        Changed {
            links: links.links,
            addresses: links.addresses,
            rules: self.rules.as_mut().is_some_and(|(rules, _)| rules.drain()),
        }
    }
}

/// Watches links, addresses, routes and packet rules, and mends what is ours. Runs for ever.
pub(super) async fn keep(hands: Hands) {
    let network = hands.sandboxes.network.clone();
    let mut watches = match Watches::open(&network, &hands.config.bridge) {
        Ok(watches) => watches,
        Err(error) => {
            tracing::warn!(
                "could not watch the network: {error}, changes by others will not be noticed"
            );
            return;
        }
    };
    // The addresses may have changed before anything watched them.
    look_again(&hands).await;
    // What could not be mended at the start is tried at once.
    let mut changed = Changed {
        links: true,
        ..Changed::default()
    };
    let mut retry = Retry::default();
    loop {
        let again = changed;
        match mend(&network, again).await {
            Ok(()) => {
                retry = Retry::default();
                changed = Changed::default();
            }
            Err(error) => {
                note(&mut retry, &error);
                // What was made and taken back again is told as a change.
                smol::Timer::after(BREATHER).await;
            }
        }
        if again.rules {
            tracing::warn!("somebody changed the packet rules of the pods' network, restored them");
            smol::Timer::after(BREATHER).await;
        }
        if retry.failures == 0 {
            watches.readable().await;
        } else {
            wait(&retry, watches.readable()).await;
        }
        smol::Timer::after(SETTLE).await;
        let more = watches.drain();
        changed.links |= more.links;
        changed.addresses |= more.addresses;
        changed.rules |= more.rules;
        if more.links || more.addresses {
            look_again(&hands).await;
        }
    }
}

/// Brings back what may be gone.
async fn mend(network: &Network, what: Changed) -> Result<(), NetworkError> {
    let network = network.clone();
    unblock_bridge(move || {
        let mut result = Ok(());
        if what.links || what.addresses {
            result = network.reconcile();
        }
        if what.rules {
            let restored = network.firewall().restore();
            result = result.and(restored.map_err(NetworkError::from));
        }
        result
    })
    .await
}

/// The node's addresses may have changed.
async fn look_again(hands: &Hands) {
    let network = hands.sandboxes.network.clone();
    let own = unblock_bridge(move || network.own_addresses()).await;
    if hands.facts.look_again(&own) {
        let event = Event::NodeAddressesChanged;
        let _ = hands.inputs.send(Input::Event(event)).await;
    }
}
