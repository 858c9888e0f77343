//! The tasks of the pods' network, beside the loop: one updates names and routes as the planner sees pods and
//! services, one repairs changes made by other programs, one answers pods' DNS queries.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use smol::Async;
use smol::channel::{Receiver, Sender, bounded};
use smol::lock::MutexGuardArc;

use super::execute::Tools;
use super::{Input, now, publish, spawn, unblock_bridge};
use crate::api::Store;
use crate::effects::facts::NodeFacts;
use crate::network::names::{Names, Sockets, Zone};
use crate::network::{Network, NetworkError, firewall, watch};
use crate::plan::state::Retry;
use crate::plan::{self, Event, NodeFact, NodeState};
use crate::spec::ServiceSpec;
use crate::spec::cluster::{ClusterView, Refusal};
use crate::types::Stamp;

/// Changes come in bursts: those within this time are handled together.
const SETTLE: Duration = Duration::from_millis(100);

/// After a repair, the next check is not sooner than this: a conflict with another program must not become a busy
/// loop.
const BREATHER: Duration = Duration::from_secs(1);

/// The first and the longest wait before a failed repair is tried again.
const RETRY_MS: (u64, u64) = (1_000, 60_000);

/// The longest time that a container start waits for its services.
const SERVICES_PATIENCE: Duration = Duration::from_secs(5);

/// The name server, once there is a bridge to listen on.
#[derive(Debug, Clone)]
pub(super) struct NameServer {
    names: Arc<Names>,
    /// Whether it answers; held while it begins to.
    serving: Arc<smol::lock::Mutex<bool>>,
    /// Whether a task tries again to begin.
    retrying: Arc<AtomicBool>,
}

impl NameServer {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self {
            names,
            serving: Arc::default(),
            retrying: Arc::default(),
        }
    }

    /// Starts to answer pods. It is idempotent, and tried again if it fails.
    pub(super) async fn ensure(&self, network: &Network) {
        let serving = self.hold().await;
        self.bind(serving, network).await;
    }

    /// Waits until it is known whether it answers. Others wait in turn while this is held.
    pub(super) async fn hold(&self) -> MutexGuardArc<bool> {
        self.serving.lock_arc().await
    }

    /// Starts to answer pods, unless it does already.
    pub(super) async fn bind(&self, serving: MutexGuardArc<bool>, network: &Network) {
        let Err(error) = self.try_bind(serving, network).await else {
            return;
        };
        if !self.retrying.swap(true, Ordering::Relaxed) {
            tracing::warn!("{}, trying again", crate::chain(&error));
            spawn(self.clone().retry(network.clone()));
        }
    }

    async fn retry(self, network: Network) {
        let (mut pause_ms, last_ms) = RETRY_MS;
        loop {
            smol::Timer::after(Duration::from_millis(pause_ms)).await;
            let serving = self.hold().await;
            if self.try_bind(serving, &network).await.is_ok() {
                break;
            }
            pause_ms = last_ms.min(pause_ms * 2);
        }
        self.retrying.store(false, Ordering::Relaxed);
    }

    async fn try_bind(
        &self,
        mut serving: MutexGuardArc<bool>,
        network: &Network,
    ) -> Result<(), NetworkError> {
        if *serving {
            return Ok(());
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
        .await?;
        *serving = true;
        spawn(self.names.clone().serve(bound));
        Ok(())
    }
}

/// The progress of the task that acts on the loop's network view.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Mutex<Reached>>);

#[derive(Debug, Default)]
struct Reached {
    /// The number of views published, and the services of the last one.
    seen: u64,
    wanted: Vec<Arc<ServiceSpec>>,
    /// The number of the last view that was acted on.
    served: Vec<Arc<ServiceSpec>>,
    /// Waiters with the number of their view: their channel closes once it was acted on.
    waiting: Vec<(u64, Sender<()>)>,
}

impl Progress {
    /// Waits until the current services of a namespace were acted on, successfully or not.
    pub(super) async fn settled(&self, namespace: &str) {
        let closed = {
            let mut reached = self.lock();
            let own = |list: &[Arc<ServiceSpec>]| -> Vec<Arc<ServiceSpec>> {
                let own = list.iter().filter(|spec| *spec.key.namespace == *namespace);
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

    /// The number of a view that is published now.
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

/// The network view of pods and services.
#[derive(Debug, Clone)]
struct Scene {
    number: u64,
    view: ClusterView,
    /// The services, as they are shown.
    services: Vec<Service>,
}

impl Scene {
    fn specs(&self) -> Vec<Arc<ServiceSpec>> {
        let services = self.view.services.iter();
        services.map(|entry| Arc::clone(&entry.spec)).collect()
    }
}

/// The slot for the loop's newest view.
#[derive(Debug)]
pub(super) struct Views {
    newest: Arc<Mutex<Option<Scene>>>,
    progress: Progress,
    news: Sender<()>,
    /// The services of the manifests, as they are shown.
    pub(super) services: Vec<Service>,
    /// The value of `NodeState::network_changes` in the newest view.
    changes: u64,
}

impl Views {
    /// Starts the task that acts on views.
    pub(super) fn new(tools: &Tools, store: Arc<Store>) -> Self {
        let (news, received) = bounded(1);
        let newest = Arc::default();
        let stage = Stage {
            network: tools.sandboxes.network.clone(),
            names: tools.name_server.names.clone(),
            cluster_domain: tools.config.cluster_domain.clone(),
            store,
            newest: Arc::clone(&newest),
            progress: tools.progress.clone(),
            inputs: tools.inputs.clone(),
            refused: Vec::new(),
        };
        spawn(stage.run(received));
        let progress = tools.progress.clone();
        Self {
            newest,
            progress,
            news,
            services: Vec::new(),
            changes: u64::MAX,
        }
    }

    /// Acts on changes since the last time. Before the manifests were read nothing is known of services, which stay as
    /// they were before the agent restart.
    pub(super) fn keep_up(&mut self, state: &NodeState, facts: &NodeFacts) {
        if state.desired.is_some() && self.changes != state.network_changes {
            self.changes = state.network_changes;
            let view = plan::network::view(state, facts.reachable_ips());
            self.set(view, self.services.clone());
        }
    }

    fn set(&self, view: ClusterView, services: Vec<Service>) {
        let mut scene = Scene {
            number: 0,
            view,
            services,
        };
        scene.number = self.progress.see(scene.specs());
        *self.newest.lock().expect("no panic holds this lock") = Some(scene);
        // A full channel means that the task has not yet taken the slot.
        let _ = self.news.try_send(());
    }
}

/// The task that acts on views: routes and addresses of services, names, and the services as clients see them.
struct Stage {
    network: Network,
    names: Arc<Names>,
    cluster_domain: String,
    store: Arc<Store>,
    newest: Arc<Mutex<Option<Scene>>>,
    progress: Progress,
    inputs: Sender<Input>,
    /// What services did not have the last time, and since when.
    refused: Vec<(Refusal, Stamp)>,
}

impl Stage {
    async fn run(mut self, news: Receiver<()>) {
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
                    match error.is_of_a_service() {
                        // Its event says so, once.
                        true => retry.fail(now().time, RETRY_MS.0, RETRY_MS.1),
                        false => note(&mut retry, &error),
                    }
                    failed = Some(scene);
                }
            }
        }
    }

    /// Names and shown services follow the available addresses, even if other steps fail.
    async fn act(&mut self, scene: &Scene) -> Result<(), NetworkError> {
        let (view, network) = (scene.view.clone(), self.network.clone());
        let (names, domain) = (self.names.clone(), self.cluster_domain.clone());
        let (addresses, refused, result) = unblock_bridge(move || {
            let result = network.set_cluster(&view);
            let addresses = network.service_addresses();
            names.set_zone(Zone::new(&domain, &view, &addresses));
            (addresses, network.refused_services(), result)
        })
        .await;
        let news = news_of(&mut self.refused, refused, now());
        if !news.is_empty() {
            let _ = self.inputs.send(Input::ServicesRefused(news)).await;
        }
        let assigned = publish::Assigned {
            addresses: &addresses,
            refused: &self.refused,
        };
        publish::services(&self.store, &scene.services, &assigned, &scene.view);
        result
    }
}

/// Replaces what is `known` by what services do not have now. Returns what is new: each is reported once, however often
/// it is tried again.
fn news_of(known: &mut Vec<(Refusal, Stamp)>, now: Vec<Refusal>, at: Stamp) -> Vec<Refusal> {
    let before = std::mem::take(known);
    let mut news = Vec::new();
    for refusal in now {
        let since = before.iter().find(|(old, _)| *old == refusal);
        if since.is_none() {
            news.push(refusal.clone());
        }
        known.push((refusal, since.map_or(at, |(_, since)| *since)));
    }
    news
}

/// Waits for `event` until the next try at most. Returns whether the event came.
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

/// The sources of changes by other programs.
struct Watches {
    links: watch::Watch,
    links_readable: Async<OwnedFd>,
    /// `None` on a kernel without packet rules: pods on the host network need none.
    rules: Option<(firewall::Watch, Async<OwnedFd>)>,
}

/// What another program may have changed.
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
                    "could not watch the packet rules: {error}, changes by other programs will not be noticed"
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

    /// Waits until there are changes to drain.
    async fn readable(&self) -> bool {
        let links = self.links_readable.readable();
        let _ = match &self.rules {
            Some((_, rules)) => smol::future::or(links, rules.readable()).await,
            None => links.await,
        };
        true
    }

    /// The changes up to now.
    fn drain(&mut self) -> Changed {
        // A broken socket counts as a change.
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

/// Watches links, addresses, routes and packet rules, and repairs coracle's own. Runs for ever.
pub(super) async fn keep(tools: Tools) {
    let network = tools.sandboxes.network.clone();
    let mut watches = match Watches::open(&network, network.bridge()) {
        Ok(watches) => watches,
        Err(error) => {
            tracing::warn!(
                "could not watch the network: {error}, changes by other programs will not be noticed"
            );
            return;
        }
    };
    // The addresses may have changed before the watch began.
    look_again(&tools).await;
    // A repair that failed at the start is tried at once.
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
                // Creating and removing the same thing is reported as a change.
                smol::Timer::after(BREATHER).await;
            }
        }
        if again.rules {
            tracing::warn!(
                "another program changed the packet rules of the pods' network, restored them"
            );
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
            look_again(&tools).await;
        }
    }
}

/// Restores what may be missing.
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

/// Handles a possible change of the node's addresses.
async fn look_again(tools: &Tools) {
    let network = tools.sandboxes.network.clone();
    let own = unblock_bridge(move || network.own_addresses()).await;
    if tools.facts.look_again(&own) {
        let event = Event::Node(NodeFact::AddressesChanged);
        let _ = tools.inputs.send(Input::Event(event)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{PodKey, Reason};
    use crate::types::{Time, Wall};

    #[test]
    fn what_a_service_does_not_have_is_news_once_and_again_after_it_had_it() {
        let refusal = |message: &str| Refusal {
            service: PodKey::new("default", "web"),
            reason: Reason::PortAlreadyAllocated,
            message: message.to_owned(),
        };
        let mut known = Vec::new();
        for (second, refused, news, since) in [
            (1, &["a"][..], &["a"][..], &[1][..]),
            (2, &["a"], &[], &[1]),
            (3, &["a", "b"], &["b"], &[1, 3]),
            (4, &["b"], &[], &[3]),
            (5, &[], &[], &[]),
            (6, &["a"], &["a"], &[6]),
        ] {
            let at = Stamp {
                time: Time(second),
                wall: Wall(0),
            };
            let now = refused.iter().copied().map(refusal).collect();
            let found = news_of(&mut known, now, at);
            let expected: Vec<Refusal> = news.iter().copied().map(refusal).collect();
            assert_eq!(found, expected, "{second}");
            let times: Vec<u64> = known.iter().map(|(_, stamp)| stamp.time.0).collect();
            assert_eq!(times, since, "{second}");
        }
    }
}
