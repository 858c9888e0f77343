//! What of the network is left, and is it as it should be? After a start of the agent, and whenever somebody may have
//! changed something.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use super::allocation::{self, Allocation};
use super::error::NetworkError;
use super::firewall::{FirewallError, PodRules};
use super::ground::{self, Ground, read};
use super::node::{Inner, Network, lock};
use super::snapshot::{self, Link};
use super::{interface, ports};
use crate::spec::{PodSpec, PodUid};
use crate::sys::netlink::Netlink;
use crate::sys::netns;

impl Network {
    /// Takes over what a former agent left: `live` pods (their shims answered) keep address, namespace and ports,
    /// everything else of ours is removed. Returns the addresses of the live ones. What could not be mended is tried
    /// again by `reconcile`.
    pub fn recover(&self, live: &[Arc<PodSpec>]) -> BTreeMap<PodUid, Vec<IpAddr>> {
        let inner = &*self.inner;
        let _alone = inner.gate.write().unwrap_or_else(PoisonError::into_inner);
        let layout = &inner.settings.layout;
        let mut rules: BTreeMap<PodUid, PodRules> = BTreeMap::new();
        {
            let mut pods = lock(&inner.pods);
            for pod in live {
                let host_ports = ports::of(pod);
                pods.claims.take(pod, host_ports.clone());
                if let Some(allocation) = Allocation::load(layout, &pod.uid) {
                    rules.insert(pod.uid.clone(), allocation.rules(host_ports));
                    pods.allocations.insert(pod.uid.clone(), allocation);
                    pods.attached.insert(pod.uid.clone());
                }
            }
        }
        let bridge_is_there = inner.sweep();
        if rules.is_empty() {
            // Its rules would send connections to pods that are gone.
            if bridge_is_there && let Err(error) = inner.remove_rules() {
                tracing::debug!(%error, "could not remove the rules of a former agent");
            }
            return BTreeMap::new();
        }
        if let Err(error) = inner.mend(Some(&rules)) {
            tracing::debug!(%error, "could not mend the network, left to the next pass");
        }
        rules
            .into_iter()
            .map(|(pod, rules)| (pod, rules.ips))
            .collect()
    }

    /// Brings everything that is there into the state it should be in: bridge, addresses, interfaces of attached pods,
    /// MTU, sysctls. Cheap if all is well; does nothing if nothing was ever made. Goes on after an error and returns
    /// the first. Rules are restored by `firewall().restore()`, which is not as cheap: whoever watches them knows when.
    pub fn reconcile(&self) -> Result<(), NetworkError> {
        let inner = &*self.inner;
        let _alone = inner.gate.write().unwrap_or_else(PoisonError::into_inner);
        if lock(&inner.ground).is_none() && lock(&inner.pods).allocations.is_empty() {
            return Ok(());
        }
        inner.mend(None)
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
    /// Removes pins, interfaces and allocations that are no live pod's. Tells whether the bridge is there.
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

    /// Removes our tables, which a packet filter that was never told of them does not know.
    fn remove_rules(&self) -> Result<(), FirewallError> {
        self.firewall.update(|set| {
            set.bridge.clone_from(&self.settings.bridge);
            set.veth_prefix.clone_from(&self.prefix);
        })?;
        self.firewall.remove()
    }

    /// Mends bridge and interfaces; has these rules in force if some are given.
    fn mend(&self, rules: Option<&BTreeMap<PodUid, PodRules>>) -> Result<(), NetworkError> {
        let mut netlink = read("the links", Netlink::open())?;
        let ground = self.rebuild(&mut lock(&self.ground), &mut netlink)?;
        let mut first = Ok(());
        if let Some(rules) = rules {
            let mut services = lock(&self.services);
            services.routes = allocation::load_routes(&self.settings.layout);
            let claims = &mut lock(&self.pods).claims;
            claims.keep_node_ports(&services.routes);
            let done = self.firewall.update(|set| {
                self.base(set, &ground);
                set.pods.clone_from(rules);
                set.services.clone_from(&services.routes);
            });
            drop(services);
            first = first.and(done.map_err(NetworkError::from));
        }
        let links = read("the links", snapshot::all_links(&mut netlink))?;
        let mut pods = lock(&self.pods).allocations.clone();
        // The others are attached anew by whoever asked for it.
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
