//! The current links, addresses and routes of the node's namespace, read from the kernel's dumps.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NlaBuffer, NlasIterator};
use netlink_packet_route::AddressFamily;

use super::Traffic;
use super::links;
use crate::sys::netlink::{Netlink, Raw};
use crate::types::Gather;

/// `IFF_UP`, `IFF_LOOPBACK`.
const UP: u32 = 1;
const LOOPBACK: u32 = 8;
/// Tables and types of routes.
const MAIN: u32 = 254;
const LOCAL: u32 = 255;
const MULTICAST: u8 = 5;

/// A link.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) loopback: bool,
    pub(super) mtu: u32,
    /// The bridge it is on; 0: none.
    pub(super) controller: u32,
    /// `bridge`, `veth`; empty for hardware.
    pub(super) kind: String,
    pub(super) mac: Vec<u8>,
    /// A bridge that learns from link-local frames, and could be set not to.
    pub(super) learns_from_the_link: bool,
    /// As the node sees it.
    pub(super) traffic: Traffic,
}

/// An address of a link; `net` has the address itself and its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) index: u32,
    pub(super) net: IpNet,
    /// Link-local addresses are left to the kernel.
    pub(super) global: bool,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Route {
    /// `None`: the default route.
    pub(super) to: Option<IpNet>,
    /// 0 if it leads nowhere, or has several next hops.
    pub(super) link: u32,
    pub(super) main: bool,
    pub(super) metric: u32,
}

/// The link of that name, if it exists.
pub(super) fn link(netlink: &mut Netlink, name: &str) -> io::Result<Option<Link>> {
    match netlink.get(links::get(name)) {
        Ok(raw) => Ok(parse_link(&raw)),
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(error),
    }
}

/// All links by name.
pub(super) fn all_links(netlink: &mut Netlink) -> io::Result<BTreeMap<String, Link>> {
    let found = netlink.dump(links::get_all())?;
    let parsed = found.iter().filter_map(parse_link);
    Ok(parsed.map(|link| (link.name.clone(), link)).gather())
}

/// All addresses.
pub(super) fn addresses(netlink: &mut Netlink) -> io::Result<Vec<Address>> {
    let found = netlink.dump(links::get_addresses())?;
    Ok(found.iter().filter_map(parse_address).collect())
}

/// The routes of both families to ranges: without those that the kernel keeps for its own addresses, for multicast
/// and for link-local addresses.
pub(super) fn routes(netlink: &mut Netlink) -> io::Result<Vec<Route>> {
    let mut found = netlink.dump(links::get_routes(AddressFamily::Inet))?;
    // A kernel without IPv6 has no such routes.
    found.extend(
        netlink
            .dump(links::get_routes(AddressFamily::Inet6))
            .unwrap_or_default(),
    );
    Ok(found.iter().filter_map(parse_route).collect())
}

fn parse_link(raw: &Raw) -> Option<Link> {
    let head = raw.body.get(..16)?;
    let flags = number(&head[8..12])?;
    let mut link = Link {
        index: number(&head[4..8])?,
        up: flags & UP != 0,
        loopback: flags & LOOPBACK != 0,
        ..Link::default()
    };
    for attribute in attributes(&raw.body[16..]) {
        let value = attribute.value();
        match attribute.kind() {
            1 => link.mac = value.to_vec(),
            3 => link.name = text(value),
            4 => link.mtu = number(value)?,
            10 => link.controller = number(value)?,
            18 => {
                let inner = |number| attributes(value).find(|inner| inner.kind() == number);
                link.kind = inner(1).map(|kind| text(kind.value())).unwrap_or_default();
                link.learns_from_the_link = link.kind == "bridge"
                    && inner(2).is_some_and(|data| learns_from_the_link(data.value()));
            }
            23 => link.traffic = traffic(value),
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// From a bridge's attributes: `IFLA_BR_MULTI_BOOLOPT` begins with the values, `BR_BOOLOPT_NO_LL_LEARN` is the
/// first.
fn learns_from_the_link(bridge: &[u8]) -> bool {
    let options = attributes(bridge).find(|option| option.kind() == 46);
    let values = options.and_then(|options| number(options.value()));
    values.is_some_and(|values| values & 1 == 0)
}

fn traffic(stats: &[u8]) -> Traffic {
    let count = |index: usize| {
        let bytes = stats.get(index * 8..index * 8 + 8);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_ne_bytes)
    };
    Traffic {
        rx_packets: count(0),
        tx_packets: count(1),
        rx_bytes: count(2),
        tx_bytes: count(3),
        rx_errors: count(4),
        tx_errors: count(5),
        rx_dropped: count(6),
        tx_dropped: count(7),
    }
}

fn parse_address(raw: &Raw) -> Option<Address> {
    let head = raw.body.get(..8)?;
    let (prefix, scope) = (head[1], head[3]);
    let (mut peer, mut local) = (None, None);
    for attribute in attributes(&raw.body[8..]) {
        match attribute.kind() {
            1 => peer = address(attribute.value()),
            2 => local = address(attribute.value()),
            _ => {}
        }
    }
    // On a point-to-point link they differ, and the prefix is the peer's.
    Some(Address {
        index: number(&head[4..8])?,
        net: IpNet::new(local.or(peer)?, prefix).ok()?,
        global: scope == 0,
    })
}

fn parse_route(raw: &Raw) -> Option<Route> {
    let head = raw.body.get(..12)?;
    let (prefix, kind) = (head[1], head[7]);
    let mut table = u32::from(head[4]);
    let mut route = Route {
        to: None,
        link: 0,
        main: false,
        metric: 0,
    };
    let mut to = None;
    for attribute in attributes(&raw.body[12..]) {
        let value = attribute.value();
        match attribute.kind() {
            1 => to = address(value),
            4 => route.link = number(value)?,
            6 => route.metric = number(value)?,
            15 => table = number(value)?,
            _ => {}
        }
    }
    let cached = number(&head[8..12])? & 0x200 != 0;
    if table == LOCAL || kind == MULTICAST || cached {
        return None;
    }
    route.main = table == MAIN;
    if prefix > 0 {
        let net = IpNet::new(to?, prefix).ok()?;
        let special = match net {
            IpNet::V4(net) => net.addr().is_multicast(),
            IpNet::V6(net) => net.addr().is_multicast() || net.addr().is_unicast_link_local(),
        };
        if special {
            return None;
        }
        route.to = Some(net);
    }
    Some(route)
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(four));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .trim_end_matches('\0')
        .to_owned()
}
