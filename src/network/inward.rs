//! Interfaces of the node that lead only to its own pods, containers and virtual machines: bridges without a port
//! to the outside, and interfaces made for single containers and for tunnels of clusters. Their addresses are not
//! node addresses to other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::snapshot::{self, Link};
use crate::sys::netlink::Netlink;
use crate::types::Gather;

/// Kinds that never lead outside. A bridge's ports of kind `tun` are virtual machines; a `tun` by itself is a VPN,
/// which does lead outside.
const NEVER: [&str; 7] = ["veth", "dummy", "ifb", "nlmon", "vxlan", "geneve", "ipvlan"];

/// Blocking. The names of these interfaces.
///
/// # Errors
/// Fails if the kernel does not list its interfaces.
pub fn inward_interfaces() -> io::Result<BTreeSet<String>> {
    let mut netlink = Netlink::open()?;
    Ok(inward(&snapshot::all_links(&mut netlink)?))
}

fn inward(links: &BTreeMap<String, Link>) -> BTreeSet<String> {
    let never = |link: &Link| NEVER.contains(&link.kind.as_str());
    let leads_out = |bridge: &Link| {
        let mut ports = links
            .values()
            .filter(|port| port.controller == bridge.index);
        ports.any(|port| !never(port) && port.kind != "tun")
    };
    let found = links.values().filter(|link| match link.kind.as_str() {
        "bridge" => !leads_out(link),
        _ => never(link),
    });
    found.map(|link| link.name.clone()).gather()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_lead_out_only_by_a_port_that_does() {
        let links = [
            ("eth0", 2, 0, ""),
            ("eth1", 3, 20, ""),
            ("br-lan", 20, 0, "bridge"),
            ("docker0", 21, 0, "bridge"),
            ("vethab", 4, 21, "veth"),
            ("cni0", 22, 0, "bridge"),
            ("virbr0", 23, 0, "bridge"),
            ("vnet0", 5, 23, "tun"),
            ("virbr0-nic", 6, 23, "dummy"),
            ("br-vlan", 24, 0, "bridge"),
            ("eth0.7", 7, 24, "vlan"),
            ("tailscale0", 8, 0, "tun"),
            ("wg0", 9, 0, "wireguard"),
            ("flannel.1", 10, 0, "vxlan"),
            ("kube-ipvs0", 11, 0, "dummy"),
            ("bond0", 12, 0, "bond"),
        ];
        let links = links.map(|(name, index, controller, kind)| {
            let link = Link {
                index,
                name: name.to_owned(),
                controller,
                kind: kind.to_owned(),
                ..Link::default()
            };
            (name.to_owned(), link)
        });
        let found = inward(&links.into());
        let expected = [
            "cni0",
            "docker0",
            "flannel.1",
            "kube-ipvs0",
            "vethab",
            "virbr0",
            "virbr0-nic",
        ];
        assert_eq!(found, expected.map(str::to_owned).into());
    }
}
