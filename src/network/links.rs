//! Netlink requests for links, addresses and routes. The builders only build; they send nothing.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, BridgeBooleanOptionFlags, BridgeBooleanOptions, BridgeStpState,
    In6AddrGenMode, InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind,
    InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::sys::netlink::Request;

/// Index of `lo` in every namespace.
pub(super) const LOOPBACK: u32 = 1;
/// Table of the kernel's own addresses.
const LOCAL_TABLE: u8 = 255;
/// Metric of the route that lets replies to `::1` come in through the bridge: behind that of `lo`.
const LOOPBACK_METRIC: u32 = 2048;

/// A request for the link of that name.
pub(super) fn get(name: &str) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    RouteNetlinkMessage::GetLink(link)
}

/// A request for all links.
pub(super) fn get_all() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetLink(LinkMessage::default())
}

/// A request for all addresses.
pub(super) fn get_addresses() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetAddress(AddressMessage::default())
}

/// A request for all routes of a family, in all tables.
pub(super) fn get_routes(family: AddressFamily) -> RouteNetlinkMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family;
    RouteNetlinkMessage::GetRoute(route)
}

/// A request for a bridge, down: without spanning tree, and forwarding at once.
pub(super) fn new_bridge(name: &str, mac: [u8; 6], mtu: u32) -> Request {
    let mut link = LinkMessage::default();
    link.attributes = vec![
        LinkAttribute::IfName(name.to_owned()),
        LinkAttribute::Address(mac.to_vec()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            LinkInfo::Data(InfoData::Bridge(vec![
                InfoBridge::StpState(BridgeStpState::Disabled),
                InfoBridge::ForwardDelay(0),
                InfoBridge::MulticastSnooping(false),
                deaf_to_the_link(),
            ])),
        ]),
    ];
    (
        RouteNetlinkMessage::NewLink(link),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// Stops a bridge from learning link-local addresses, as [`new_bridge`] does.
pub(super) fn do_not_learn(name: &str) -> Request {
    let info = vec![
        LinkInfo::Kind(InfoKind::Bridge),
        LinkInfo::Data(InfoData::Bridge(vec![deaf_to_the_link()])),
    ];
    change(name, false, vec![LinkAttribute::LinkInfo(info)])
}

/// The bridge does not learn from link-local frames (LLDP and the like). They bypass all packet rules: a pod could
/// take over another's traffic by sending one with its hardware address. Kernels before 5.0 ignore this.
fn deaf_to_the_link() -> InfoBridge {
    InfoBridge::MultiBoolOpt(BridgeBooleanOptions {
        value: BridgeBooleanOptionFlags::NoLinkLocalLearn,
        mask: BridgeBooleanOptionFlags::NoLinkLocalLearn,
    })
}

/// A pair of interfaces to make: one on the bridge, the other in the pod.
#[derive(Debug, Clone, Copy)]
pub(super) struct Veth<'a> {
    /// Name on the node.
    pub(super) name: &'a str,
    /// Index of the bridge.
    pub(super) bridge: u32,
    /// MTU of both ends.
    pub(super) mtu: u32,
    /// Hardware address of the pod's end.
    pub(super) mac: [u8; 6],
    /// Whether the node has IPv6, so that the node's end must be kept from getting an address.
    pub(super) ipv6: bool,
}

/// Makes a pair: the node's end on the bridge and up, the pod's end named `eth0` in `namespace` and down.
pub(super) fn new_veth(veth: &Veth<'_>, namespace: BorrowedFd<'_>) -> Vec<Request> {
    let mut peer = LinkMessage::default();
    peer.attributes = vec![
        LinkAttribute::IfName("eth0".to_owned()),
        LinkAttribute::Mtu(veth.mtu),
        LinkAttribute::Address(veth.mac.to_vec()),
        LinkAttribute::NetNsFd(namespace.as_raw_fd()),
    ];
    let mut link = LinkMessage::default();
    link.attributes = vec![
        LinkAttribute::IfName(veth.name.to_owned()),
        LinkAttribute::Mtu(veth.mtu),
        LinkAttribute::Controller(veth.bridge),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ];
    let mut requests = vec![(
        RouteNetlinkMessage::NewLink(link),
        NLM_F_CREATE | NLM_F_EXCL,
    )];
    requests.extend(port_settings(veth.name, veth.ipv6));
    requests.push(change(veth.name, true, Vec::new()));
    requests
}

/// A port of the bridge: a pod reaches itself through the node (hairpin), and the node's end has no addresses. The
/// kernel accepts hairpin mode only once the interface is on a bridge.
pub(super) fn port_settings(name: &str, ipv6: bool) -> Vec<Request> {
    let port = vec![InfoBridgePort::HairpinMode(true)];
    let mut attributes = vec![LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(port)),
    ])];
    if ipv6 {
        let none = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
        attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(none)]));
    }
    vec![change(name, false, attributes)]
}

/// Changes an existing link.
pub(super) fn change(name: &str, up: bool, attributes: Vec<LinkAttribute>) -> Request {
    let mut link = LinkMessage::default();
    if up {
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
    }
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link.attributes.extend(attributes);
    (RouteNetlinkMessage::NewLink(link), 0)
}

/// Brings up the link of that index.
pub(super) fn up(index: u32) -> Request {
    let mut link = LinkMessage::default();
    link.header.index = index;
    link.header.flags = LinkFlags::Up;
    link.header.change_mask = LinkFlags::Up;
    (RouteNetlinkMessage::SetLink(link), 0)
}

/// Deletes a link, and with it the other end of a pair.
pub(super) fn delete(name: &str) -> RouteNetlinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    RouteNetlinkMessage::DelLink(link)
}

/// Adds an address, usable at once: it is unique by allocation.
pub(super) fn add_address(index: u32, address: IpNet) -> Request {
    let flags = NLM_F_CREATE | NLM_F_REPLACE;
    (
        RouteNetlinkMessage::NewAddress(address_message(index, address)),
        flags,
    )
}

/// Removes an address.
pub(super) fn delete_address(index: u32, address: IpNet) -> Request {
    (
        RouteNetlinkMessage::DelAddress(address_message(index, address)),
        0,
    )
}

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.scope = AddressScope::Universe;
    message.header.index = index;
    message.attributes = vec![
        AddressAttribute::Local(address.addr()),
        AddressAttribute::Address(address.addr()),
    ];
    match address {
        IpNet::V4(net) => message
            .attributes
            .push(AddressAttribute::Broadcast(net.broadcast())),
        IpNet::V6(_) => message
            .attributes
            .push(AddressAttribute::Flags(AddressFlags::Nodad)),
    }
    message
}

/// A default route through `gateway`.
pub(super) fn default_route(index: u32, gateway: IpAddr) -> Request {
    let mut route = RouteMessage::default();
    route.header.address_family = family(gateway);
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![
        RouteAttribute::Gateway(RouteAddress::from(gateway)),
        RouteAttribute::Oif(index),
    ];
    (
        RouteNetlinkMessage::NewRoute(route),
        NLM_F_CREATE | NLM_F_REPLACE,
    )
}

/// A route to the range through that interface. Fails with EEXIST if it exists.
pub(super) fn link_route(index: u32, range: IpNet) -> Request {
    (
        RouteNetlinkMessage::NewRoute(link_route_message(index, range)),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

/// Removes such a route. Fails with ESRCH if there is none.
pub(super) fn delete_link_route(index: u32, range: IpNet) -> Request {
    (
        RouteNetlinkMessage::DelRoute(link_route_message(index, range)),
        0,
    )
}

fn link_route_message(index: u32, range: IpNet) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = family(range.addr());
    route.header.destination_prefix_length = range.prefix_len();
    route.header.table = RouteHeader::RT_TABLE_MAIN;
    route.header.protocol = RouteProtocol::Static;
    route.header.scope = RouteScope::Link;
    route.header.kind = RouteType::Unicast;
    route.attributes = vec![
        RouteAttribute::Destination(RouteAddress::from(range.network())),
        RouteAttribute::Oif(index),
    ];
    route
}

/// A route for `::1` on the bridge: replies of pods to clients with that address arrive there, and the kernel is
/// strict about it. Fails with EEXIST if it exists: replacing it would be reported as a change.
pub(super) fn loopback_route(bridge: u32) -> Request {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::Inet6;
    route.header.destination_prefix_length = 128;
    route.header.table = LOCAL_TABLE;
    route.header.protocol = RouteProtocol::Static;
    route.header.kind = RouteType::Local;
    route.attributes = vec![
        RouteAttribute::Destination(RouteAddress::Inet6(Ipv6Addr::LOCALHOST)),
        RouteAttribute::Oif(bridge),
        RouteAttribute::Priority(LOOPBACK_METRIC),
    ];
    (
        RouteNetlinkMessage::NewRoute(route),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}
