//! Who has which address and port on this node? [`Network`] keeps the accounts, and has links, addresses and rules made
//! and removed.
//!
//! Locks, in the order they are taken: `gate` (shared by changes of single pods, held alone by what looks at all of
//! them), `ground`, `services`, `pods`. The last is never held while the kernel is asked for something.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Instant;

use super::addresses::{self, GATEWAY};
use super::allocation::{self, Allocation, Choice};
use super::error::NetworkError;
use super::firewall::{Firewall, HostPort, Ruleset, ServiceRoute};
use super::ground::{self, Ground, read};
use super::names::Reach;
use super::ports::{self, Claims};
use super::ranges::{self, Ranges, Wanted};
use super::{Attached, NetworkSettings, Traffic, interface, services, snapshot, sysctl};
use crate::spec::cluster::{ClusterView, ServiceEntry};
use crate::spec::{PodKey, PodSpec, PodUid, ServiceSpec};
use crate::sys::netlink::Netlink;

/// The node's network.
#[derive(Debug, Clone)]
pub struct Network {
    pub(super) inner: Arc<Inner>,
}

/// Shared by all clones.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) settings: NetworkSettings,
    pub(super) prefix: String,
    pub(super) gate: RwLock<()>,
    pub(super) ground: Mutex<Option<Ground>>,
    pub(super) services: Mutex<Services>,
    /// Services and the first address of each; never held while the kernel is asked for something.
    links: Mutex<Vec<(Arc<ServiceSpec>, IpAddr)>>,
    pub(super) pods: Mutex<Pods>,
    pub(super) firewall: Firewall,
}

/// What is known of pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Those that have a number.
    pub(super) allocations: BTreeMap<PodUid, Allocation>,
    /// Those of them that are on the bridge: all but the ones whose interface could not be made.
    pub(super) attached: BTreeSet<PodUid>,
    /// Ports of all pods, also of those on the node's network.
    pub(super) claims: Claims,
}

/// What is known of services.
#[derive(Debug, Default)]
pub(super) struct Services {
    /// `None` until this agent has been told.
    view: Option<Vec<ServiceEntry>>,
    /// Not all of it could be done the last time.
    failed: bool,
    addresses: BTreeMap<PodKey, Vec<IpAddr>>,
    /// In force.
    pub(super) routes: Vec<ServiceRoute>,
}

impl Network {
    /// Does nothing yet.
    pub fn new(settings: NetworkSettings) -> Self {
        let inner = Inner {
            prefix: addresses::veth_prefix(&settings.bridge),
            settings,
            gate: RwLock::default(),
            ground: Mutex::default(),
            services: Mutex::default(),
            links: Mutex::default(),
            pods: Mutex::default(),
            firewall: Firewall::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Gives the pod a fresh namespace with an interface, its address (the one it had before, if it had one), its
    /// routes and its rules; all of it is in force when this returns. Makes bridge and rules if they are not there.
    pub fn attach(&self, pod: &PodSpec) -> Result<Attached, NetworkError> {
        let begin = Instant::now();
        let inner = &*self.inner;
        let _shared = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        let host_ports = ports::of(pod);
        ports::free_of_programs(&host_ports)?;
        let ground = inner.stand()?;
        let allocation = inner.allocate(pod, &ground, host_ports.clone())?;
        let bridge = &inner.settings.bridge;
        let pin = inner.settings.layout.netns(&pod.uid);
        let rules = allocation.rules(host_ports);
        // Each waits for the kernel in its own way: they go at the same time.
        let (linked, filtered) = thread::scope(|scope| {
            let filter = scope.spawn(|| {
                let done = inner.firewall.update(|set| {
                    inner.base(set, &ground);
                    set.pods.insert(pod.uid.clone(), rules);
                });
                (done, begin.elapsed())
            });
            interface::remove(&allocation, &pin)
                .and_then(|()| interface::make(&allocation, &ground, bridge, &pin))
                .map(|()| begin.elapsed())
                .and_then(|linked| {
                    let (done, filtered) = filter.join().expect("an update does not panic");
                    done?;
                    Ok((linked, filtered))
                })
        })
        .inspect_err(|_| {
            let _first_error_counts = interface::remove(&allocation, &pin);
            let _first_error_counts = inner.unfilter(&pod.uid);
        })?;
        lock(&inner.pods).attached.insert(pod.uid.clone());
        tracing::debug!(pod = %pod.key, ?linked, ?filtered, total = ?begin.elapsed(), "attached");
        Ok(Attached {
            ips: allocation.ips,
            netns: pin,
        })
    }

    /// Removes all of it and frees address and ports. Nothing there is fine. Goes on after an error and returns the
    /// first.
    pub fn detach(&self, pod: &PodUid) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let layout = &inner.settings.layout;
        let known = lock(&inner.pods).allocations.get(pod).cloned();
        let Some(allocation) = known.or_else(|| Allocation::load(layout, pod)) else {
            // It has but ports: nobody who changes bridge or rules is waited for.
            lock(&inner.pods).claims.release(pod);
            return allocation::forget(layout, pod);
        };
        let _shared = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        // Each waits for the kernel to be done with all packets.
        let result = thread::scope(|scope| {
            let filter = scope.spawn(|| inner.unfilter(pod));
            let removed = interface::remove(&allocation, &layout.netns(pod));
            let filtered = filter.join().expect("an update does not panic");
            removed.and(filtered)
        });
        let result = result.and(allocation::forget(layout, pod));
        // Last: until now nobody else may have what was the pod's.
        let mut pods = lock(&inner.pods);
        pods.allocations.remove(pod);
        pods.attached.remove(pod);
        pods.claims.release(pod);
        result
    }

    /// The ports of a pod on the node's network are its own from now on, until it is detached.
    pub fn claim_ports(&self, pod: &PodSpec) -> Result<(), NetworkError> {
        let host_ports = ports::of(pod);
        ports::free_of_programs(&host_ports)?;
        let mut pods = lock(&self.inner.pods);
        pods.claims.conflict(&pod.uid, &host_ports)?;
        pods.claims.take(pod, host_ports);
        Ok(())
    }

    /// Service routes are to be these, and services have the addresses `service_addresses` tells from now on. Without a
    /// bridge they are only remembered. All that can be done is done, then the first error is returned.
    pub fn set_cluster(&self, view: &ClusterView) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let ground = lock(&inner.ground);
        let mut services = lock(&inner.services);
        if services.failed || services.view.as_ref() != Some(&view.services) {
            services.view = Some(view.services.clone());
            if let Some(ground) = &*ground {
                let served = inner.serve(&mut services, ground);
                services.failed = served.is_err();
                return served;
            }
        }
        Ok(())
    }

    /// The addresses services have, those with one.
    pub fn service_addresses(&self) -> BTreeMap<PodKey, Vec<IpAddr>> {
        lock(&self.inner.services).addresses.clone()
    }

    /// The services of a namespace that have an address, with their first one.
    pub fn service_links(&self, namespace: &str) -> Vec<(Arc<ServiceSpec>, IpAddr)> {
        let links = lock(&self.inner.links);
        let own = links
            .iter()
            .filter(|(spec, _)| spec.key.namespace == namespace);
        own.cloned().collect()
    }

    /// Where pods find the name server, IPv4 first; makes the bridge if it is not there.
    pub fn name_servers(&self) -> Result<Vec<IpAddr>, NetworkError> {
        let gate = &self.inner.gate;
        let _shared = gate.read().unwrap_or_else(PoisonError::into_inner);
        let ground = self.inner.stand()?;
        Ok(ground.own())
    }

    /// Where the name server listens and for whom; makes the bridge if it is not there.
    pub fn reach(&self) -> Result<Reach, NetworkError> {
        let gate = &self.inner.gate;
        let _shared = gate.read().unwrap_or_else(PoisonError::into_inner);
        let ground = self.inner.stand()?;
        let own = ground.own();
        let ranges = ground.ranges;
        Ok(Reach {
            own,
            ranges: ranges.pods.into_iter().chain(ranges.services).collect(),
        })
    }

    /// The name server listens on this port because 53 was taken.
    pub fn set_dns_port(&self, port: Option<u16>) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let ground = lock(&inner.ground);
        if let Some(ground) = &*ground {
            inner.firewall.update(|set| {
                inner.base(set, ground);
                set.dns_port = port;
            })?;
        }
        Ok(())
    }

    /// The packet filter: to watch it and to restore it.
    pub fn firewall(&self) -> &Firewall {
        &self.inner.firewall
    }

    /// What went through each attached pod's interface.
    pub fn traffic(&self) -> BTreeMap<PodUid, Traffic> {
        let names: Vec<(PodUid, String)> = lock(&self.inner.pods)
            .allocations
            .iter()
            .map(|(uid, allocation)| (uid.clone(), allocation.veth.clone()))
            .collect();
        if names.is_empty() {
            return BTreeMap::new();
        }
        let links = Netlink::open().and_then(|mut netlink| snapshot::all_links(&mut netlink));
        let links = links.unwrap_or_default();
        let seen = names.into_iter().filter_map(|(uid, name)| {
            let link = links.get(&name)?;
            Some((uid, link.traffic.seen_from_the_pod()))
        });
        seen.collect()
    }

    /// The bridge's own addresses, which are no addresses of the node.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let ground = lock(&self.inner.ground);
        ground.as_ref().map_or_else(Vec::new, |ground| {
            addresses::addresses(&ground.ranges.pods, GATEWAY)
        })
    }
}

impl Inner {
    /// The bridge, made if it is not there.
    pub(super) fn stand(&self) -> Result<Ground, NetworkError> {
        let mut ground = lock(&self.ground);
        let mut netlink = read("the links", Netlink::open())?;
        let bridge = &self.settings.bridge;
        if let Some(ground) = &*ground
            && ground::stands(ground, bridge, &mut netlink)
        {
            return Ok(ground.clone());
        }
        self.rebuild(&mut ground, &mut netlink)
    }

    /// Makes bridge, addresses and switches what they should be.
    pub(super) fn rebuild(
        &self,
        ground: &mut Option<Ground>,
        netlink: &mut Netlink,
    ) -> Result<Ground, NetworkError> {
        let (bridge, prefix) = (&self.settings.bridge, &self.prefix);
        let ranges = match &*ground {
            Some(ground) => ground.ranges.clone(),
            None => self.choose(netlink)?.ranges,
        };
        let made = ground::ensure(bridge, prefix, &ranges, netlink)?;
        ground::pins(&self.settings.layout.netns_dir())?;
        if ground.replace(made.clone()).is_none() {
            let mut services = lock(&self.services);
            if services.view.as_ref().is_some_and(|list| !list.is_empty())
                && let Err(error) = self.serve(&mut services, &made)
            {
                // No reason to keep a pod from its network; told again when services change.
                tracing::debug!(%error, "not every service has what it asks for");
            }
        }
        Ok(made)
    }

    /// The ranges of a former agent if pods use them or nothing speaks against them, else new ones.
    fn choose(&self, netlink: &mut Netlink) -> Result<Choice, NetworkError> {
        let settings = &self.settings;
        let former = Choice::load(&settings.layout);
        let attached = lock(&self.pods).allocations.values().next().cloned();
        if let Some(pod) = attached {
            let kept = former.filter(|choice| choice.ranges == pod.ranges);
            return Ok(kept.unwrap_or_else(|| self.choice(pod.ranges)));
        }
        let used = ground::used(&settings.bridge, netlink)?;
        let wanted = Wanted {
            pods: &settings.pod_cidrs,
            services: &settings.service_cidrs,
            ipv6: sysctl::ipv6_is_on(),
            seed: &ground::seed(&settings.bridge),
        };
        if let Some(former) = former
            && former.set_pods == settings.pod_cidrs
            && former.set_services == settings.service_cidrs
            && ranges::collision(&former.ranges, &used).is_none()
            && ranges::families_are(&former.ranges, &wanted)
        {
            return Ok(former);
        }
        let choice = self.choice(ranges::choose(&wanted, &used)?);
        choice.save(&settings.layout)?;
        Ok(choice)
    }

    fn choice(&self, ranges: Ranges) -> Choice {
        Choice {
            set_pods: self.settings.pod_cidrs.clone(),
            set_services: self.settings.service_cidrs.clone(),
            ranges,
            services: BTreeMap::new(),
        }
    }

    /// Gives the pod its number and its ports; both are written down before anything is made.
    fn allocate(
        &self,
        pod: &PodSpec,
        ground: &Ground,
        host_ports: Vec<HostPort>,
    ) -> Result<Allocation, NetworkError> {
        let layout = &self.settings.layout;
        let mut pods = lock(&self.pods);
        pods.claims.conflict(&pod.uid, &host_ports)?;
        let allocation = match pods.allocations.get(&pod.uid) {
            Some(allocation) => allocation.clone(),
            None => {
                let taken = pods.allocations.values().map(|pod| pod.number).collect();
                let ranges = &ground.ranges;
                let number = addresses::pick(&ranges.pods, &pod.key.to_string(), &taken)?;
                let allocation = Allocation::new(pod, number, ranges, &self.prefix);
                allocation.save(layout, &pod.uid)?;
                allocation
            }
        };
        pods.claims.take(pod, host_ports);
        pods.attached.remove(&pod.uid);
        pods.allocations.insert(pod.uid.clone(), allocation.clone());
        Ok(allocation)
    }

    /// Gives addresses to services and has their routes in force.
    fn serve(&self, services: &mut Services, ground: &Ground) -> Result<(), NetworkError> {
        let layout = &self.settings.layout;
        let former = Choice::load(layout).filter(|choice| choice.ranges == ground.ranges);
        let mut choice = former.unwrap_or_else(|| self.choice(ground.ranges.clone()));
        let before = choice.services.clone();
        let view = services.view.as_deref().unwrap_or_default();
        let node = if services::any_given(view) {
            let found = Netlink::open().and_then(|mut netlink| snapshot::addresses(&mut netlink));
            let own = read("the addresses", found)?.into_iter();
            own.map(|address| address.net.addr()).collect()
        } else {
            BTreeSet::new()
        };
        let assigned = services::assign(view, &ground.ranges, &node, &mut choice.services);
        let saved = if choice.services == before {
            Ok(())
        } else {
            choice.save(layout)
        };
        let mut routes = services::routes(view, &assigned.addresses);
        let ports = lock(&self.pods).claims.take_node_ports(&mut routes);
        services.addresses = assigned.addresses;
        *lock(&self.links) = view
            .iter()
            .filter_map(|entry| {
                let addresses = services.addresses.get(&entry.spec.key)?;
                Some((Arc::clone(&entry.spec), *addresses.first()?))
            })
            .collect();
        if routes != services.routes {
            services.routes.clone_from(&routes);
            allocation::save_routes(layout, &routes)?;
            self.firewall.update(|set| {
                self.base(set, ground);
                set.services = routes;
            })?;
        }
        saved?;
        ports?;
        assigned.error.map_or(Ok(()), Err)
    }

    /// What all rules are about.
    pub(super) fn base(&self, set: &mut Ruleset, ground: &Ground) {
        set.bridge.clone_from(&self.settings.bridge);
        set.veth_prefix.clone_from(&self.prefix);
        set.pod_cidrs = addresses::interface_addresses(&ground.ranges.pods, GATEWAY);
        set.service_cidrs.clone_from(&ground.ranges.services);
    }

    fn unfilter(&self, pod: &PodUid) -> Result<(), NetworkError> {
        // Without a bridge no rules were ever made by this agent.
        if lock(&self.ground).is_none() {
            return Ok(());
        }
        self.firewall.update(|set| {
            set.pods.remove(pod);
        })?;
        Ok(())
    }
}

impl Traffic {
    /// What one end of a pair has sent, the other has received.
    fn seen_from_the_pod(self) -> Self {
        Self {
            rx_bytes: self.tx_bytes,
            rx_packets: self.tx_packets,
            rx_dropped: self.tx_dropped,
            rx_errors: self.tx_errors,
            tx_bytes: self.rx_bytes,
            tx_packets: self.rx_packets,
            tx_dropped: self.rx_dropped,
            tx_errors: self.rx_errors,
        }
    }
}

/// A lock whose holder panicked guards data that is still whole: every change is one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
