//! Recovery and repair of the network, after a start of the agent and whenever another program may have changed
//! something.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use super::allocation::{self, Allocation, Choice};
use super::error::NetworkError;
use super::firewall::PodRules;
use super::ground::{self, Ground, read};
use super::node::{Inner, Network, lock};
use super::snapshot::{self, Link};
use super::{interface, ports};
use crate::spec::{PodSpec, PodUid};
use crate::sys::netlink::Netlink;
use crate::sys::netns;
use crate::types::Gather;

impl Network {
    /// Takes over the network from before an agent restart: `live` pods (their shims answered) keep address,
    /// namespace and ports; everything else of coracle's is removed. `known` gets the addresses of the live pods
    /// before the kernel is asked anything, and must not block. From then until the return, whatever needs bridge or
    /// rules waits. What could not be repaired is tried again by `reconcile`.
    pub fn recover(
        &self,
        live: &[Arc<PodSpec>],
        known: impl FnOnce(BTreeMap<PodUid, Vec<IpAddr>>),
    ) {
        let inner = &*self.inner;
        let _alone = inner.gate.write().unwrap_or_else(PoisonError::into_inner);
        let addresses = inner.remember(live);
        let on_bridge = !addresses.is_empty();
        known(addresses);
        let bridge_is_there = inner.sweep();
        if let Some(former) = allocation::former_bridge(&inner.settings) {
            inner.leave(&former);
        }
        if on_bridge {
            if let Err(error) = inner.mend() {
                tracing::debug!(%error, "could not mend the network, left to the next pass");
            }
        } else if bridge_is_there
            // Its rules would send connections to removed pods.
            && let Err(error) = inner.firewall.remove_tables(&inner.settings.bridge)
        {
            tracing::debug!(%error, "could not remove the rules from before the agent restart");
        }
    }

    /// Repairs everything that exists: bridge, addresses, interfaces of attached pods, MTU, sysctls, and rules that
    /// could not be put in force at the start. Cheap if all is well; does nothing if nothing was ever made. Goes on
    /// after an error and returns the first. Other rules are restored by `firewall().restore()`, which is more
    /// expensive: their watch shows when that is needed.
    pub fn reconcile(&self) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let _alone = inner.gate.write().unwrap_or_else(PoisonError::into_inner);
        if lock(&inner.ground).is_none() && lock(&inner.pods).allocations.is_empty() {
            return Ok(());
        }
        inner.mend()
    }
}

impl Network {
    /// Removes bridge, rules and the folder of pins, unless a pod still needs them.
    pub fn dismantle(&self) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let _alone = inner.gate.write().unwrap_or_else(PoisonError::into_inner);
        let mut ground = lock(&inner.ground);
        if ground.is_none() || !lock(&inner.pods).allocations.is_empty() {
            return Ok(());
        }
        let bridge = &inner.settings.bridge;
        let gone = read("the links", Netlink::open()).and_then(|mut netlink| {
            let gone = interface::unplug(bridge, &mut netlink);
            ground::step("remove the bridge", bridge, gone)
        });
        *ground = None;
        let layout = &inner.settings.layout;
        let folder = layout.netns_dir();
        let unmounted = crate::sys::mount::unmount_below(&folder);
        let unmounted = unmounted.map_err(|source| NetworkError::File {
            action: "unmount",
            path: folder,
            source,
        });
        gone.and(inner.firewall.remove().map_err(NetworkError::from))
            .and(unmounted)
    }
}

impl Inner {
    /// Takes in what the files say of these pods; returns the addresses of those on the bridge.
    fn remember(&self, live: &[Arc<PodSpec>]) -> BTreeMap<PodUid, Vec<IpAddr>> {
        let layout = &self.settings.layout;
        let mut rules: BTreeMap<PodUid, PodRules> = BTreeMap::new();
        let mut behind = lock(&self.behind);
        let mut services = lock(&self.services);
        let mut pods = lock(&self.pods);
        for pod in live {
            let host_ports = ports::of(pod);
            pods.claims.take(pod, host_ports.clone());
            if let Some(allocation) = Allocation::load(layout, &pod.uid) {
                rules.insert(pod.uid.clone(), allocation.rules(host_ports));
                pods.allocations.insert(pod.uid.clone(), allocation);
                pods.attached.insert(pod.uid.clone());
            }
        }
        let Some(ranges) = pods.allocations.values().next().map(|pod| &pod.ranges) else {
            return BTreeMap::new();
        };
        *behind = true;
        services.routes = allocation::load_routes(layout);
        let dns_port = Choice::load(layout).and_then(|choice| choice.dns_port);
        self.firewall.expect(|set| {
            self.base(set, ranges);
            set.pods.clone_from(&rules);
            set.services.clone_from(&services.routes);
            set.dns_port = dns_port;
        });
        pods.claims.keep_node_ports(&services.routes);
        rules
            .into_iter()
            .map(|(pod, rules)| (pod, rules.ips))
            .gather()
    }

    /// Removes the bridge of a name that the settings gave before, and its rules: its address and routes would take the
    /// packets of the one that is there now.
    fn leave(&self, former: &str) {
        let unplugged = Netlink::open().and_then(|mut node| interface::unplug(former, &mut node));
        let unplugged = unplugged.map_err(|error| error.to_string());
        let rules = self.firewall.remove_tables(former);
        let done = unplugged.and(rules.map_err(|error| error.to_string()));
        if let Err(error) = done {
            tracing::debug!("could not remove the former bridge `{former}`: {error}, ignoring");
        }
    }

    /// Removes pins, interfaces and allocations without a live pod. Returns whether the bridge exists.
    fn sweep(&self) -> bool {
        let layout = &self.settings.layout;
        let kept = lock(&self.pods).allocations.clone();
        for pod in allocation::pinned(layout) {
            let done = match kept.contains_key(&pod) {
                true => Ok(()),
                false => netns::unpin(&layout.netns(&pod)),
            };
            if let Err(error) = done {
                tracing::debug!(%pod, %error, "could not unpin a network namespace, ignoring");
            }
        }
        let names: Vec<&str> = kept.values().map(|pod| pod.veth.as_str()).collect();
        let swept = Netlink::open().and_then(|mut netlink| {
            let links = snapshot::all_links(&mut netlink)?;
            for name in links.keys() {
                if name.starts_with(&self.prefix) && !names.contains(&name.as_str()) {
                    interface::unplug(name, &mut netlink)?;
                }
            }
            Ok(links.contains_key(&self.settings.bridge))
        });
        for pod in allocation::allocated(layout) {
            if !kept.contains_key(&pod)
                && let Err(error) = allocation::forget(layout, &pod)
            {
                tracing::debug!(%pod, %error, "could not remove an allocation, ignoring");
            }
        }
        swept.unwrap_or_else(|error| {
            tracing::debug!(%error, "could not remove stale interfaces, ignoring");
            false
        })
    }

    /// Repairs bridge, interfaces, and rules that are not in force yet.
    fn mend(&self) -> Result<(), NetworkError> {
        let ground = read("the links", Netlink::open()).and_then(|mut netlink| {
            let ground = self.rebuild(&mut lock(&self.ground), &mut netlink)?;
            Ok((ground, netlink))
        });
        // Live pods need them even if there is no bridge to mend.
        let mut first = self.catch_up().map_err(NetworkError::from);
        let (ground, mut netlink) = ground?;
        let links = read("the links", snapshot::all_links(&mut netlink))?;
        let mut pods = lock(&self.pods).allocations.clone();
        // Other pods are attached again on request.
        pods.retain(|uid, _| lock(&self.pods).attached.contains(uid));
        for (uid, pod) in &pods {
            let link = links.get(&pod.veth);
            first = first.and(self.mend_pod(uid, pod, link, &ground, &mut netlink));
        }
        first
    }

    fn mend_pod(
        &self,
        uid: &PodUid,
        pod: &Allocation,
        link: Option<&Link>,
        ground: &Ground,
        netlink: &mut Netlink,
    ) -> Result<(), NetworkError> {
        let bridge = &self.settings.bridge;
        let pin = self.settings.layout.netns(uid);
        if let Some(link) = link {
            return interface::mend(pod, link, ground, bridge, &pin, netlink);
        }
        if !netns::is_pin(&pin) {
            return Err(NetworkError::PinGone {
                pod: pod.pod.clone(),
                path: pin,
            });
        }
        interface::replug(pod, ground, bridge, &pin)
    }
}
