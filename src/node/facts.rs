//! The node's name and addresses, shown with its pods and given to pods that ask.

use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use super::capacity::Shares;
use crate::config::Amounts;
use crate::effects::facts::NodeFacts;
use crate::network::inward_interfaces;
use crate::sys::file;
use crate::types::InOrder;

/// The node's identity; its addresses change while it runs.
#[derive(Debug, Clone)]
pub(super) struct Facts(Arc<Mutex<Arc<NodeFacts>>>);

impl Facts {
    /// `own` as in [`Facts::look_again`].
    pub(super) fn gather(node_name: &str, shares: &Shares, own: &[IpAddr]) -> Self {
        let of = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or(0);
        Self(Arc::new(Mutex::new(Arc::new(NodeFacts {
            name: node_name.to_owned(),
            ips: addresses(own),
            bridge_ips: own.to_vec(),
            cpu_milli: of(&shares.allocatable, "cpu"),
            memory_bytes: of(&shares.allocatable, "memory"),
            capacity_bytes: of(&shares.capacity, "memory"),
            storage_bytes: of(&shares.allocatable, "ephemeral-storage"),
        }))))
    }

    pub(super) fn now(&self) -> Arc<NodeFacts> {
        self.0.lock().expect("no panic holds this lock").clone()
    }

    /// Reads the addresses again, apart from the bridge's `own` ones; returns whether they have changed.
    pub(super) fn look_again(&self, own: &[IpAddr]) -> bool {
        let ips = addresses(own);
        let mut facts = self.0.lock().expect("no panic holds this lock");
        let changed = facts.ips != ips || facts.bridge_ips != own;
        if changed {
            *facts = Arc::new(NodeFacts {
                ips,
                bridge_ips: own.to_vec(),
                ..(**facts).clone()
            });
        }
        changed
    }
}

/// Whether the node has this address now: the kernel binds sockets to no other.
pub(super) fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// Global addresses of the node's interfaces that are up: IPv4 first, and those of the default route's interface
/// before others. `own` addresses, which only pods see, do not count. Addresses of other interfaces that lead only
/// inwards count only if there is no other.
fn addresses(own: &[IpAddr]) -> Vec<IpAddr> {
    let uplink = default_route_interface();
    let inward = inward_interfaces().unwrap_or_default();
    let found: Vec<(bool, bool, bool, IpAddr)> = nix::ifaddrs::getifaddrs()
        .into_iter()
        .flatten()
        .filter(|entry| entry.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
        .filter_map(|entry| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
            let ip = v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip())))?;
            let elsewhere = uplink.as_ref() != Some(&entry.interface_name);
            let inside = elsewhere && inward.contains(&entry.interface_name);
            Some((inside, ip.is_ipv6(), elsewhere, ip))
        })
        .filter(|(.., ip)| !ip.is_loopback() && !is_link_local(ip) && !own.contains(ip))
        .collect();
    let any_outside = found.iter().any(|(inside, ..)| !inside);
    let counts = found
        .into_iter()
        .filter(|(inside, ..)| !(*inside && any_outside));
    let mut counts: Vec<_> = counts.collect();
    counts.order_by_key(|(_, v6, elsewhere, _)| (*v6, *elsewhere));
    counts.into_iter().map(|(.., ip)| ip).collect()
}

/// The interface of the default route: of IPv4, or else of IPv6.
fn default_route_interface() -> Option<String> {
    let v4 = file::read_text("/proc/net/route").unwrap_or_default();
    let v4 = v4.lines().skip(1).find_map(|line| {
        let mut words = line.split_whitespace();
        let (interface, destination) = (words.next()?, words.next()?);
        let mask = words.nth(5)?;
        (destination == "00000000" && mask == "00000000").then(|| interface.to_owned())
    });
    v4.or_else(|| {
        let v6 = file::read_text("/proc/net/ipv6_route").unwrap_or_default();
        v6.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let everywhere = words.first()?.bytes().all(|b| b == b'0') && *words.get(1)? == "00";
            let interface = *words.get(9)?;
            (everywhere && interface != "lo").then(|| interface.to_owned())
        })
    })
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}
