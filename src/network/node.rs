//! The addresses and ports of pods on this node. [`Network`] keeps the allocations, and makes and removes links,
//! addresses and rules.
//!
//! Locks, in the order in which they are taken: `gate` (shared by changes of single pods, exclusive for changes of
//! all, such as the recovery of the network after a start of the agent), `behind`, `ground`, `services`, `pods`. The
//! last is never held during a request to the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;

use nix::net::if_::if_nametoindex;

use super::addresses::{self, GATEWAY};
use super::allocation::{self, Allocation, Choice};
use super::error::NetworkError;
use super::firewall::{Firewall, FirewallError, HostPort, Ruleset};
use super::ground::{self, Ground, read};
use super::names::Reach;
use super::ports::{self, Claims};
use super::ranges::{self, Ranges, Wanted};
use super::serve::Services;
use super::{Attached, NetworkSettings, Traffic, interface, services, snapshot, sysctl};
use crate::spec::cluster::{ClusterView, Refusal};
use crate::spec::{IdRange, PodKey, PodSpec, PodUid, ServiceSpec};
use crate::sys::clock;
use crate::sys::netlink::Netlink;
use crate::types::Gather;

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
    /// Services and the first address of each; never held during a request to the kernel.
    pub(super) links: Mutex<Vec<(Arc<ServiceSpec>, IpAddr)>>,
    pub(super) pods: Mutex<Pods>,
    pub(super) firewall: Firewall,
    /// Whether the rules of pods from before an agent restart are not in force yet.
    pub(super) behind: Mutex<bool>,
}

/// The state of the pods.
#[derive(Debug, Default)]
pub(super) struct Pods {
    /// Pods with a number.
    pub(super) allocations: BTreeMap<PodUid, Allocation>,
    /// Those of them that are on the bridge: all except those whose interface could not be made.
    pub(super) attached: BTreeSet<PodUid>,
    /// Ports of all pods, including those on the host network.
    pub(super) claims: Claims,
}

impl Network {
    /// A network that has made nothing yet.
    pub fn new(mut settings: NetworkSettings) -> Self {
        if let Some(former) = allocation::bridge_in_use(&settings) {
            settings.bridge = former;
        }
        let inner = Inner {
            prefix: addresses::veth_prefix(&settings.bridge),
            settings,
            gate: RwLock::default(),
            ground: Mutex::default(),
            services: Mutex::default(),
            links: Mutex::default(),
            pods: Mutex::default(),
            firewall: Firewall::default(),
            behind: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Gives the pod a fresh namespace with an interface, its address (the previous one, if it had one), its routes
    /// and its rules; all of it is in force on return. Makes bridge and rules if they are missing.
    pub fn attach(&self, pod: &PodSpec) -> Result<Attached, NetworkError> {
        self.attach_with(pod, None)
    }

    /// The same; with `users` the namespace belongs to a new user namespace with these ids, which lasts as long.
    pub fn attach_with(
        &self,
        pod: &PodSpec,
        users: Option<IdRange>,
    ) -> Result<Attached, NetworkError> {
        let begin = clock::now();
        let inner = &*self.inner;
        let _shared = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        let host_ports = ports::of(pod);
        ports::free_of_programs(&host_ports, &self.own_addresses())?;
        let ground = inner.stand()?;
        let allocation = inner.allocate(pod, &ground, host_ports.clone())?;
        let bridge = &inner.settings.bridge;
        let pin = inner.settings.layout.netns(&pod.uid);
        let rules = allocation.rules(host_ports);
        // Both wait for the kernel in different ways, so they run in parallel.
        let (linked, filtered) = thread::scope(|scope| {
            let filter = scope.spawn(|| {
                let done = inner.firewall.update(|set| {
                    inner.base(set, &ground.ranges);
                    set.pods.insert(pod.uid.clone(), rules);
                });
                (done, clock::now().duration_since(begin))
            });
            interface::remove(&allocation, &pin)
                .and_then(|()| interface::make(&allocation, users, &ground, bridge, &pin))
                .map(|()| clock::now().duration_since(begin))
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
        tracing::debug!(pod = %pod.key, ?linked, ?filtered, total = ?clock::now().duration_since(begin), "attached");
        Ok(Attached {
            ips: allocation.ips,
            netns: pin,
        })
    }

    /// Removes all of it and frees address and ports. It is idempotent. Goes on after an error and returns the
    /// first.
    pub fn detach(&self, pod: &PodUid) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let layout = &inner.settings.layout;
        let only_ports = || {
            lock(&inner.pods).claims.release(pod);
            allocation::forget(layout, pod)
        };
        if inner.allocation(pod).is_none() {
            // Changes of bridge or rules are not waited for.
            return only_ports();
        }
        let _shared = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        // Recovery may have removed all of it meanwhile, and given its number to another pod.
        let Some(allocation) = inner.allocation(pod) else {
            return only_ports();
        };
        // Both wait for the kernel to finish all packets.
        let result = thread::scope(|scope| {
            let filter = scope.spawn(|| inner.unfilter(pod));
            let removed = interface::remove(&allocation, &layout.netns(pod));
            let filtered = filter.join().expect("an update does not panic");
            removed.and(filtered)
        });
        let result = result.and(allocation::forget(layout, pod));
        // Last: until now no other pod may have the pod's addresses and ports.
        let mut pods = lock(&inner.pods);
        pods.allocations.remove(pod);
        pods.attached.remove(pod);
        pods.claims.release(pod);
        result
    }

    /// Claims the ports of a pod on the host network, until it is detached.
    pub fn claim_ports(&self, pod: &PodSpec) -> Result<(), NetworkError> {
        let host_ports = ports::of(pod);
        ports::free_of_programs(&host_ports, &[])?;
        let mut pods = lock(&self.inner.pods);
        pods.claims.conflict(&pod.uid, &host_ports)?;
        pods.claims.take(pod, host_ports);
        Ok(())
    }

    /// Returns once the network from before an agent restart is recovered: containers of its pods start only then.
    /// Fails if their rules are still not in force after another try.
    pub fn settled(&self) -> Result<(), NetworkError> {
        let gate = &self.inner.gate;
        let _shared = gate.read().unwrap_or_else(PoisonError::into_inner);
        Ok(self.inner.catch_up()?)
    }

    /// Sets the service routes and the addresses that `service_addresses` returns. Without a bridge they are only
    /// remembered, until one of them leads somewhere. Everything possible is done, then the first error is returned.
    pub fn set_cluster(&self, view: &ClusterView) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let _shared = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        let mut ground = lock(&inner.ground);
        let mut stood = Ok(());
        if ground.is_none() && services::any_served(&view.services) {
            // They lead to pods on the host network, or to addresses elsewhere.
            stood = read("the links", Netlink::open())
                .and_then(|mut netlink| inner.rebuild(&mut ground, &mut netlink))
                .map(drop);
        }
        let mut services = lock(&inner.services);
        services.failed |= stood.is_err();
        if services.failed || services.view.as_ref() != Some(&view.services) {
            services.view = Some(view.services.clone());
            if let Some(ground) = &*ground {
                let served = inner.serve(&mut services, ground);
                services.failed = served.is_err();
                return served;
            }
        }
        stood
    }

    /// The addresses of the services that have one.
    pub fn service_addresses(&self) -> BTreeMap<PodKey, Vec<IpAddr>> {
        lock(&self.inner.services).addresses.clone()
    }

    /// The services that do not have all they ask for. Those without a bridge have nothing yet.
    pub fn refused_services(&self) -> Vec<Refusal> {
        lock(&self.inner.services).refused.clone()
    }

    /// The services of a namespace that have an address, with their first one.
    pub fn service_links(&self, namespace: &str) -> Vec<(Arc<ServiceSpec>, IpAddr)> {
        let links = lock(&self.inner.links);
        let own = links
            .iter()
            .filter(|(spec, _)| *spec.key.namespace == *namespace);
        own.cloned().collect()
    }

    /// The addresses of the name server for pods, IPv4 first; makes the bridge if it is missing.
    pub fn name_servers(&self) -> Result<Vec<IpAddr>, NetworkError> {
        let gate = &self.inner.gate;
        let _shared = gate.read().unwrap_or_else(PoisonError::into_inner);
        let ground = self.inner.stand()?;
        Ok(ground.own())
    }

    /// The listening addresses and clients of the name server; makes the bridge if it is missing.
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

    /// Sets the port of the name server, because 53 was taken.
    pub fn set_dns_port(&self, port: Option<u16>) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let _shared = inner.gate.read().unwrap_or_else(PoisonError::into_inner);
        let ground = lock(&inner.ground);
        let Some(ground) = &*ground else {
            return Ok(());
        };
        let layout = &inner.settings.layout;
        // Connections that begin while an agent starts have to be led there, too.
        if let Some(mut choice) = Choice::load(layout).filter(|choice| choice.dns_port != port) {
            choice.dns_port = port;
            choice.save(layout)?;
        }
        inner.firewall.update(|set| {
            inner.base(set, &ground.ranges);
            set.dns_port = port;
        })?;
        Ok(())
    }

    /// The name of the bridge: that of the settings, or while pods are on it, the former one.
    pub fn bridge(&self) -> &str {
        &self.inner.settings.bridge
    }

    /// Whether pods have addresses of other ranges than the settings name: these count once no such pod is left.
    pub fn keeps_ranges(&self) -> bool {
        allocation::ranges_in_use(&self.inner.settings)
    }

    /// The packet filter, to watch and restore it.
    pub fn firewall(&self) -> &Firewall {
        &self.inner.firewall
    }

    /// The traffic of each attached pod's interface.
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
        seen.gather()
    }

    /// The bridge's own addresses, which are no node addresses. After a start of the agent they are known from files
    /// before the bridge is mended, which is not waited for.
    pub fn own_addresses(&self) -> Vec<IpAddr> {
        let inner = &*self.inner;
        let ground = inner.ground.try_lock().ok();
        let ground = ground.and_then(|ground| Some(ground.as_ref()?.ranges.clone()));
        let recovered = || {
            let pods = lock(&inner.pods);
            Some(pods.allocations.values().next()?.ranges.clone())
        };
        let left_over = || {
            if_nametoindex(&*inner.settings.bridge).ok()?;
            Some(Choice::load(&inner.settings.layout)?.ranges)
        };
        let ranges = ground.or_else(recovered).or_else(left_over);
        ranges.map_or_else(Vec::new, |ranges| {
            addresses::addresses(&ranges.pods, GATEWAY)
        })
    }
}

impl Inner {
    /// The bridge, made if it is missing.
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

    /// Makes or repairs bridge, addresses and sysctls.
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
                // No reason to keep a pod from its network; tried and reported again by the next view.
                services.failed = true;
                tracing::debug!(%error, "not every service has what it asks for");
            }
        }
        Ok(made)
    }

    /// Puts the rules of recovered pods in force, if they are not yet.
    pub(super) fn catch_up(&self) -> Result<(), FirewallError> {
        let mut behind = lock(&self.behind);
        if *behind {
            self.firewall.update(|_| {})?;
            *behind = false;
        }
        Ok(())
    }

    fn allocation(&self, pod: &PodUid) -> Option<Allocation> {
        let known = lock(&self.pods).allocations.get(pod).cloned();
        known.or_else(|| Allocation::load(&self.settings.layout, pod))
    }

    /// The ranges from before the agent restart if pods use them or they are still valid, otherwise new ones.
    fn choose(&self, netlink: &mut Netlink) -> Result<Choice, NetworkError> {
        let settings = &self.settings;
        let mut former = Choice::load(&settings.layout);
        if let Some(choice) = former.as_mut().filter(|choice| choice.bridge.is_empty()) {
            choice.bridge.clone_from(&settings.bridge);
            choice.save(&settings.layout)?;
        }
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
        if let Some(former) = &former
            && former.set_pods == settings.pod_cidrs
            && former.set_services == settings.service_cidrs
            && former.bridge == settings.bridge
            && ranges::collision(&former.ranges, &used).is_none()
            && ranges::families_are(&former.ranges, &wanted)
        {
            return Ok(former.clone());
        }
        let choice = self.choice(ranges::choose(&wanted, &used)?);
        if let Some(former) = former.filter(|former| former.bridge == settings.bridge) {
            // Before they are forgotten.
            let mut gone = former.ranges.services;
            gone.retain(|range| !choice.ranges.services.contains(range));
            ground::remove_routes(&settings.bridge, gone.into_iter(), netlink)?;
        }
        choice.save(&settings.layout)?;
        Ok(choice)
    }

    pub(super) fn choice(&self, ranges: Ranges) -> Choice {
        Choice {
            set_pods: self.settings.pod_cidrs.clone(),
            set_services: self.settings.service_cidrs.clone(),
            ranges,
            services: BTreeMap::new(),
            bridge: self.settings.bridge.clone(),
            dns_port: None,
        }
    }

    /// Allocates the pod's number and ports; both are saved before any link is made.
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
                let taken = pods.allocations.values().map(|pod| pod.number).gather();
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

    /// The common inputs of all rules.
    pub(super) fn base(&self, set: &mut Ruleset, ranges: &Ranges) {
        set.bridge.clone_from(&self.settings.bridge);
        set.veth_prefix.clone_from(&self.prefix);
        set.pod_cidrs = addresses::interface_addresses(&ranges.pods, GATEWAY);
        set.service_cidrs.clone_from(&ranges.services);
    }

    fn unfilter(&self, pod: &PodUid) -> Result<(), NetworkError> {
        // Without a bridge this agent has not made any rules, unless it is to restore some.
        if !*lock(&self.behind) && lock(&self.ground).is_none() {
            return Ok(());
        }
        self.firewall.update(|set| {
            set.pods.remove(pod);
        })?;
        Ok(())
    }
}

impl Traffic {
    /// One end of a pair receives what the other sends.
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

/// A lock whose holder panicked guards data that is still consistent: every change is one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
