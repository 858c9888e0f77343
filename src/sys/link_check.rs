//! Kinds of network interfaces that this kernel supports, found by trial in a network namespace that ends with its
//! thread.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::sched::{CloneFlags, unshare};

/// Runs a function on a thread in a fresh network namespace, which ends with it.
pub fn in_fresh_namespace<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Ok(f())
        });
        let panicked = || io::Error::other("the trial ended early");
        thread.join().map_err(|_| panicked())?
    })
}

/// Makes a bridge in the caller's network namespace.
pub fn try_bridge() -> io::Result<()> {
    try_kind(InfoKind::Bridge)
}

/// Makes a pair of virtual interfaces in the caller's network namespace.
pub fn try_veth() -> io::Result<()> {
    try_kind(InfoKind::Veth)
}

fn try_kind(kind: InfoKind) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.attributes = vec![LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
    let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    ask(RouteNetlinkMessage::NewLink(link), flags, |_| ())
}

/// Names of the bridges in the caller's network namespace.
pub fn bridges() -> io::Result<Vec<String>> {
    let question = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let mut names = Vec::new();
    ask(question, NLM_F_REQUEST | NLM_F_DUMP, |answer| {
        if let RouteNetlinkMessage::NewLink(link) = answer {
            names.extend(bridge_name(&link));
        }
    })?;
    Ok(names)
}

fn bridge_name(link: &LinkMessage) -> Option<String> {
    let is_bridge = link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.contains(&LinkInfo::Kind(InfoKind::Bridge)),
        _ => false,
    });
    let name = link
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name.clone()),
            _ => None,
        });
    name.filter(|_| is_bridge)
}

fn ask(
    question: RouteNetlinkMessage,
    flags: u16,
    mut take: impl FnMut(RouteNetlinkMessage),
) -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    let mut message = NetlinkMessage::from(question);
    message.header.flags = flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while !rest.is_empty() {
            let part = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let length = usize::try_from(part.header.length).unwrap_or(usize::MAX);
            match part.payload {
                NetlinkPayload::Error(error) => {
                    return match error.code {
                        None => Ok(()),
                        Some(_) => Err(error.to_io()),
                    };
                }
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::InnerMessage(answer) => take(answer),
                _ => {}
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}
