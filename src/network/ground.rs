//! The ground of the pods' network: the bridge with its addresses, and the node's sysctls. [`ensure`] both makes
//! and repairs it, and leaves correct parts alone.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use netlink_packet_route::link::LinkAttribute;

use super::addresses::{self, GATEWAY};
use super::error::NetworkError;
use super::links;
use super::modules;
use super::ranges::{Ranges, Used};
use super::snapshot::{self, Address, Link, Route};
use super::sysctl;
use crate::sys::file;
use crate::sys::netlink::Netlink;
use crate::types::{Gather, InOrder};

/// The MTU if no interface determines it.
const DEFAULT_MTU: u32 = 1500;
/// IPv6 needs at least this.
const LEAST_MTU: u32 = 1280;

/// The state of the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ground {
    /// Its interface index.
    pub(super) index: u32,
    /// The MTU of all interfaces on it.
    pub(super) mtu: u32,
    /// The ranges of its addresses.
    pub(super) ranges: Ranges,
    /// Whether the node has IPv6. It may be switched off while pods have IPv6 addresses.
    pub(super) ipv6: bool,
}

impl Ground {
    /// The addresses the bridge has, IPv4 first.
    pub(super) fn own(&self) -> Vec<IpAddr> {
        let mut own = addresses::addresses(&self.ranges.pods, GATEWAY);
        own.retain(|ip| self.ipv6 || ip.is_ipv4());
        own
    }
}

/// Whether the bridge is still the same one.
pub(super) fn stands(ground: &Ground, bridge: &str, netlink: &mut Netlink) -> bool {
    matches!(
        snapshot::link(netlink, bridge),
        Ok(Some(link)) if link.index == ground.index && link.up
    )
}

/// Makes or repairs the bridge.
pub(super) fn ensure(
    bridge: &str,
    prefix: &str,
    ranges: &Ranges,
    netlink: &mut Netlink,
) -> Result<Ground, NetworkError> {
    let links = read("the links", snapshot::all_links(netlink))?;
    let routes = read("the routes", snapshot::routes(netlink))?;
    let mtu = uplink_mtu(&links, &routes, |name| own(name, bridge, prefix));
    let mac = addresses::mac(&ranges.pods, GATEWAY);
    let link = match links.get(bridge) {
        Some(link) => link.clone(),
        None => {
            modules::load();
            make(bridge, mac, mtu, netlink)?
        }
    };
    if link.kind != "bridge" {
        let hardware = link.kind.is_empty().then(|| "hardware".to_owned());
        return Err(NetworkError::NotABridge {
            name: bridge.to_owned(),
            kind: hardware.unwrap_or(link.kind),
        });
    }
    let ipv6 = sysctl::ipv6_is_on_at(bridge);
    // Before it is up: no address check is awaited, and no router on it is trusted.
    if ipv6 {
        for switch in ["accept_ra", "accept_dad", "autoconf"] {
            sysctl::prefer(&format!("ipv6/conf/{bridge}/{switch}"), "0");
        }
    }
    address(bridge, &link, ranges, ipv6, &routes, netlink)?;
    let mut changes = Vec::new();
    if link.mtu != mtu || link.mac != mac {
        changes.push(LinkAttribute::Mtu(mtu));
        changes.push(LinkAttribute::Address(mac.to_vec()));
    }
    if link.learns_from_the_link {
        let (message, flags) = links::do_not_learn(bridge);
        let done = netlink.request(message, flags);
        step("set up the bridge", bridge, done)?;
    }
    if !link.up || !changes.is_empty() {
        let (message, flags) = links::change(bridge, true, changes);
        let done = netlink.request(message, flags);
        step("set up the bridge", bridge, done)?;
    }
    switches(bridge, prefix, &links, ipv6)?;
    own_routes(bridge, link.index, ranges, ipv6, netlink)?;
    Ok(Ground {
        index: link.index,
        mtu,
        ranges: ranges.clone(),
        ipv6,
    })
}

/// Routes for programs of the node: services are reachable without a default route, and pods' replies reach `::1`.
fn own_routes(
    bridge: &str,
    index: u32,
    ranges: &Ranges,
    ipv6: bool,
    netlink: &mut Netlink,
) -> Result<(), NetworkError> {
    let services = ranges.services.iter();
    let mut routes: Vec<_> = services
        .filter(|range| ipv6 || range.addr().is_ipv4())
        .map(|range| links::link_route(index, *range))
        .collect();
    if ipv6 {
        routes.push(links::loopback_route(index));
    }
    for (message, flags) in routes {
        match netlink.request(message, flags) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            done => step("set up routes through the bridge", bridge, done)?,
        }
    }
    Ok(())
}

/// Removes the routes to ranges that services no longer have: what the bridge had is told by a file, as routes of the
/// owner's may lead there, too.
pub(super) fn remove_routes(
    bridge: &str,
    ranges: impl Iterator<Item = IpNet>,
    netlink: &mut Netlink,
) -> Result<(), NetworkError> {
    let Some(link) = read("the bridge", snapshot::link(netlink, bridge))? else {
        return Ok(());
    };
    for range in ranges {
        let (message, flags) = links::delete_link_route(link.index, range);
        match netlink.request(message, flags) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            done => step("remove a former route through the bridge", bridge, done)?,
        }
    }
    Ok(())
}

/// The ranges in use outside coracle's bridge.
pub(super) fn used(bridge: &str, netlink: &mut Netlink) -> Result<Vec<Used>, NetworkError> {
    let links = read("the links", snapshot::all_links(netlink))?;
    let names: BTreeMap<u32, &str> = links
        .values()
        .map(|link| (link.index, link.name.as_str()))
        .gather();
    let foreign = |index: u32| names.get(&index).copied() != Some(bridge);
    let name = |index: u32| names.get(&index).copied().unwrap_or("?");
    let mut used = Vec::new();
    for address in read("the addresses", snapshot::addresses(netlink))? {
        if foreign(address.index) {
            let net = IpNet::from(address.net.addr());
            let by = format!("address {} of {}", address.net, name(address.index));
            used.push(Used { net, by });
        }
    }
    for route in read("the routes", snapshot::routes(netlink))? {
        if let Some(net) = route.to
            && foreign(route.link)
        {
            let way = match route.link {
                0 => String::new(),
                link => format!(" dev {}", name(link)),
            };
            let by = format!("route {net}{way}");
            used.push(Used { net, by });
        }
    }
    // Routes come first: people recognise them more easily than addresses.
    used.reverse();
    Ok(used)
}

/// A seed that differs from node to node.
pub(super) fn seed(bridge: &str) -> String {
    let machine = file::read_text("/etc/machine-id").unwrap_or_default();
    format!("{} {bridge}", machine.trim())
}

fn make(bridge: &str, mac: [u8; 6], mtu: u32, netlink: &mut Netlink) -> Result<Link, NetworkError> {
    let (message, flags) = links::new_bridge(bridge, mac, mtu);
    match netlink.request(message, flags) {
        Err(source) if source.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            return Err(NetworkError::Kernel {
                missing: "bridge interfaces (CONFIG_BRIDGE)",
                source,
            });
        }
        made => step("make the bridge", bridge, made)?,
    }
    let made = read("the bridge", snapshot::link(netlink, bridge))?;
    made.ok_or_else(|| NetworkError::Link {
        step: "find the bridge just made",
        name: bridge.to_owned(),
        source: io::ErrorKind::NotFound.into(),
    })
}

/// Gives the bridge its addresses, and removes all others except link-local ones. The kernel adds the route to the
/// pods together with an address: if the route is gone (and the bridge was up, so that it existed), the address is
/// removed and added again.
fn address(
    bridge: &str,
    link: &Link,
    ranges: &Ranges,
    ipv6: bool,
    routes: &[Route],
    netlink: &mut Netlink,
) -> Result<(), NetworkError> {
    let mut wanted = addresses::interface_addresses(&ranges.pods, GATEWAY);
    wanted.retain(|net| ipv6 || net.addr().is_ipv4());
    let there: Vec<Address> = read("the addresses", snapshot::addresses(netlink))?
        .into_iter()
        .filter(|address| address.index == link.index && address.global)
        .collect();
    let leads = |net: &IpNet| {
        let way = |route: &Route| route.link == link.index && route.to == Some(net.trunc());
        !link.up || routes.iter().any(way)
    };
    let is_whole = |net: &IpNet| wanted.contains(net) && leads(net);
    let mut requests = Vec::new();
    for address in &there {
        if !is_whole(&address.net) {
            requests.push(links::delete_address(link.index, address.net));
        }
    }
    for net in &wanted {
        if !there.iter().any(|a| a.net == *net && is_whole(net)) {
            let net = *net;
            requests.push(links::add_address(link.index, net));
        }
    }
    if requests.is_empty() {
        return Ok(());
    }
    let done = netlink.batch(requests).and_then(first_error);
    step("give addresses to the bridge", bridge, done)
}

/// The node's sysctls, apart from those that the bridge must have before it is up.
fn switches(
    bridge: &str,
    prefix: &str,
    links: &BTreeMap<String, Link>,
    ipv6: bool,
) -> Result<(), NetworkError> {
    sysctl::forward(ipv6, |name| own(name, bridge, prefix))?;
    // So that clients from 127.0.0.1 can be sent to a pod; the packet filter drops what pods send there.
    sysctl::require(&format!("ipv4/conf/{bridge}/route_localnet"), "1")?;
    sysctl::prefer(&format!("ipv4/conf/{bridge}/rp_filter"), "1");
    // What goes from pod to pod by a service leaves by the bridge again. The kernel would tell the sender about a shorter
    // way, which there is not, and that uses up its limit of errors for this pod: refusals would be lost. The switch of
    // `all` holds for the bridge, too; the other interfaces still have their own.
    for name in ["all", bridge] {
        sysctl::prefer(&format!("ipv4/conf/{name}/send_redirects"), "0");
    }
    // Otherwise replies to ::1 are translated back on the bridge already, and IPv6 drops them. The owner of another
    // bridge may want the default as it is.
    let other = |link: &Link| link.kind == "bridge" && link.name != bridge;
    if !links.values().any(other) {
        for switch in ["ip", "ip6"] {
            sysctl::prefer(&format!("bridge/bridge-nf-call-{switch}tables"), "0");
        }
    }
    Ok(())
}

/// The MTU of the default route; without one, the smallest MTU of all interfaces.
fn uplink_mtu(links: &BTreeMap<String, Link>, routes: &[Route], own: impl Fn(&str) -> bool) -> u32 {
    let by_index = |index: u32| links.values().find(|link| link.index == index);
    // IPv4 comes first in the list, and counts first.
    let mut ways: Vec<&Route> = routes
        .iter()
        .filter(|route| route.to.is_none() && route.main)
        .collect();
    ways.order_by_key(|route| route.metric);
    let uplink = ways.into_iter().find_map(|route| by_index(route.link));
    let others = links
        .values()
        .filter(|link| link.up && !link.loopback && !own(&link.name))
        .filter(|link| link.kind.is_empty() || link.kind == "veth");
    uplink
        .map(|link| link.mtu)
        .or_else(|| others.map(|link| link.mtu).min())
        .map_or(DEFAULT_MTU, |mtu| mtu.max(LEAST_MTU))
}

fn own(name: &str, bridge: &str, prefix: &str) -> bool {
    name == bridge || name.starts_with(prefix)
}

/// The first of several results that is an error.
pub(super) fn first_error(results: Vec<io::Result<()>>) -> io::Result<()> {
    results.into_iter().collect()
}

/// Adds what was being read to an error.
pub(super) fn read<T>(what: &'static str, result: io::Result<T>) -> Result<T, NetworkError> {
    result.map_err(|source| NetworkError::Read { what, source })
}

/// Adds the step and the interface to an error.
pub(super) fn step(
    step: &'static str,
    name: &str,
    result: io::Result<()>,
) -> Result<(), NetworkError> {
    result.map_err(|source| NetworkError::Link {
        step,
        name: name.to_owned(),
        source,
    })
}

/// Makes the folder of the pins, and keeps them out of other mount namespaces. A folder with pins is left as it is:
/// another mount would hide them.
pub(super) fn pins(folder: &Path) -> Result<(), NetworkError> {
    let prepare = || {
        crate::sys::file::make_dirs(folder, 0o700)?;
        for entry in std::fs::read_dir(folder)? {
            if crate::sys::netns::is_pin(&entry?.path()) {
                return Ok(());
            }
        }
        crate::sys::mount::make_private(folder)
    };
    prepare().map_err(|source| NetworkError::File {
        action: "prepare the folder of network namespaces",
        path: folder.to_owned(),
        source,
    })
}
