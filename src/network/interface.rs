//! A pod's interface: a namespace pinned under the run directory, a pair of interfaces between it and the bridge,
//! addresses, and routes through the bridge.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use netlink_packet_route::link::LinkAttribute;

use super::addresses::{self, GATEWAY};
use super::allocation::Allocation;
use super::error::NetworkError;
use super::ground::{Ground, first_error};
use super::links::{self, Veth};
use super::snapshot::{self, Link};
use super::sysctl;
use crate::spec::IdRange;
use crate::sys::netlink::Netlink;
use crate::sys::netns;

/// An error on the thread in the pod's namespace.
#[derive(Debug)]
struct Failure {
    step: &'static str,
    source: io::Error,
}

impl From<io::Error> for Failure {
    fn from(source: io::Error) -> Self {
        Self {
            step: MAKE_NAMESPACE,
            source,
        }
    }
}

const MAKE_NAMESPACE: &str = "make the network namespace of pod";
const MAKE_VETH: &str = "make the interface of pod";
/// Name of the pod's end in the pod.
const INSIDE: &str = "eth0";

/// Makes namespace, pin and interface, none of which may exist. Undone if it fails.
pub(super) fn make(
    pod: &Allocation,
    users: Option<IdRange>,
    ground: &Ground,
    bridge: &str,
    pin: &Path,
) -> Result<(), NetworkError> {
    let made = netns::make(
        pin,
        users.map(|range| (range.first, range.count)),
        || Ok(Netlink::open()?),
        |mut node, namespace| plug(&mut node, namespace, pod, ground),
    );
    made.map_err(|failure| {
        let _first_error_counts = remove(pod, pin);
        explain(failure, pod, bridge)
    })
}

/// Makes the interface of a pod whose namespace exists. Undone if it fails, so that a partial one is never taken
/// for complete.
pub(super) fn replug(
    pod: &Allocation,
    ground: &Ground,
    bridge: &str,
    pin: &Path,
) -> Result<(), NetworkError> {
    netns::enter(
        pin,
        || Ok(Netlink::open()?),
        |mut node, namespace| {
            // The other end may exist under a name set by another program.
            Netlink::open()
                .and_then(|mut inside| unplug(INSIDE, &mut inside))
                .map_err(|source| Failure {
                    step: "remove the former interface of pod",
                    source,
                })?;
            plug(&mut node, namespace, pod, ground).inspect_err(|_| {
                let _first_error_counts = unplug(&pod.veth, &mut node);
            })
        },
    )
    .map_err(|failure| explain(failure, pod, bridge))
}

/// Repairs an existing interface.
pub(super) fn mend(
    pod: &Allocation,
    link: &Link,
    ground: &Ground,
    bridge: &str,
    pin: &Path,
    node: &mut Netlink,
) -> Result<(), NetworkError> {
    let mut requests = Vec::new();
    let mut changes = Vec::new();
    if link.mtu != ground.mtu {
        changes.push(LinkAttribute::Mtu(ground.mtu));
    }
    let off_the_bridge = link.controller != ground.index;
    if off_the_bridge {
        changes.push(LinkAttribute::Controller(ground.index));
    }
    if !changes.is_empty() || !link.up {
        requests.push(links::change(&pod.veth, true, changes));
    }
    if off_the_bridge {
        requests.extend(links::port_settings(&pod.veth, ground.ipv6));
    }
    if requests.is_empty() {
        return Ok(());
    }
    let done = node.batch(requests).and_then(first_error);
    super::ground::step("mend interface", &pod.veth, done)?;
    if link.mtu == ground.mtu {
        return Ok(());
    }
    let mtu = ground.mtu;
    netns::enter(
        pin,
        || Ok(()),
        |(), _| {
            let (message, flags) = links::change(INSIDE, false, vec![LinkAttribute::Mtu(mtu)]);
            Netlink::open()
                .and_then(|mut inside| inside.request(message, flags))
                .map_err(|source| Failure {
                    step: "set the MTU of pod",
                    source,
                })
        },
    )
    .map_err(|failure| explain(failure, pod, bridge))
}

/// Removes interface and pin. Goes on after an error and returns the first.
pub(super) fn remove(pod: &Allocation, pin: &Path) -> Result<(), NetworkError> {
    let unplugged = Netlink::open().and_then(|mut node| unplug(&pod.veth, &mut node));
    let unpinned = netns::unpin(pin).map_err(|source| NetworkError::File {
        action: "unpin",
        path: pin.to_owned(),
        source,
    });
    super::ground::step("remove interface", &pod.veth, unplugged)?;
    unpinned
}

/// Deletes an interface, if it exists.
pub(super) fn unplug(name: &str, node: &mut Netlink) -> io::Result<()> {
    if snapshot::link(node, name)?.is_none() {
        return Ok(());
    }
    match node.request(links::delete(name), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(()),
        other => other,
    }
}

/// Runs on a thread in the pod's namespace: `node` is a socket of the node's.
fn plug(
    node: &mut Netlink,
    namespace: BorrowedFd<'_>,
    pod: &Allocation,
    ground: &Ground,
) -> Result<(), Failure> {
    let failed = |step| move |source| Failure { step, source };
    let veth = Veth {
        name: &pod.veth,
        bridge: ground.index,
        mtu: ground.mtu,
        mac: pod.mac,
        ipv6: ground.ipv6,
    };
    node.batch(links::new_veth(&veth, namespace))
        .and_then(first_error)
        .map_err(failed(MAKE_VETH))?;
    let index = nix::net::if_::if_nametoindex(INSIDE)
        .map_err(io::Error::from)
        .map_err(failed("find the interface of pod"))?;
    if ground.ipv6 {
        // Addresses are unique by allocation, so no duplicate check is needed. Before the interface is up.
        for switch in ["accept_dad", "accept_ra", "autoconf"] {
            sysctl::prefer(&format!("ipv6/conf/eth0/{switch}"), "0");
        }
    }
    let ranges = &pod.ranges.pods;
    let mut requests = vec![links::up(links::LOOPBACK)];
    for address in addresses::interface_addresses(ranges, pod.number) {
        requests.push(links::add_address(index, address));
    }
    requests.push(links::up(index));
    for gateway in addresses::addresses(ranges, GATEWAY) {
        requests.push(links::default_route(index, gateway));
    }
    Netlink::open()
        .and_then(|mut inside| inside.batch(requests))
        .and_then(first_error)
        .map_err(failed("give addresses to pod"))
}

fn explain(failure: Failure, pod: &Allocation, bridge: &str) -> NetworkError {
    let Failure { step, source } = failure;
    let missing = match source.raw_os_error() {
        Some(libc::EOPNOTSUPP) if step == MAKE_VETH => {
            Some("pairs of virtual interfaces (CONFIG_VETH)")
        }
        Some(libc::EINVAL) if step == MAKE_NAMESPACE => Some("network namespaces (CONFIG_NET_NS)"),
        _ => None,
    };
    match missing {
        Some(missing) => NetworkError::Kernel { missing, source },
        None => NetworkError::Link {
            step,
            name: format!("{}` on `{bridge}", pod.pod),
            source,
        },
    }
}
