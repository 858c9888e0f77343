//! The addresses of pod number i. One number gives a pod's IPv4 and IPv6 address, hardware address and interface
//! name, so that each of them is unique. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use sha2::{Digest, Sha256};

use super::ranges::RangeError;

/// The bridge's number.
pub(super) const GATEWAY: u32 = 1;
/// The first number of a pod.
const FIRST: u32 = 2;
/// The highest number of pods: it keeps the number short enough for an interface name.
const MOST: u32 = 1 << 20;

/// The address of that number.
pub(super) fn address(range: &IpNet, number: u32) -> IpAddr {
    match range {
        IpNet::V4(net) => Ipv4Addr::from(u32::from(net.network()).wrapping_add(number)).into(),
        IpNet::V6(net) => {
            Ipv6Addr::from(u128::from(net.network()).wrapping_add(number.into())).into()
        }
    }
}

/// The addresses of that number in every range.
pub(super) fn addresses(ranges: &[IpNet], number: u32) -> Vec<IpAddr> {
    ranges.iter().map(|range| address(range, number)).collect()
}

/// The same with the ranges' prefix lengths, as interfaces have them.
pub(super) fn interface_addresses(ranges: &[IpNet], number: u32) -> Vec<IpNet> {
    ranges
        .iter()
        .filter_map(|range| IpNet::new(address(range, number), range.prefix_len()).ok())
        .collect()
}

/// The hardware address of that number: derived from the IPv4 address, as in other container networks, or else from
/// a hash.
pub(super) fn mac(ranges: &[IpNet], number: u32) -> [u8; 6] {
    let four = match ranges.first().map(|range| address(range, number)) {
        Some(IpAddr::V4(address)) => address.octets(),
        Some(IpAddr::V6(address)) => first_four(&Sha256::digest(address.octets())),
        None => [0; 4],
    };
    [0x0a, 0x58, four[0], four[1], four[2], four[3]]
}

/// The prefix of the names of all pod interfaces of this bridge.
pub(super) fn veth_prefix(bridge: &str) -> String {
    let hash = Sha256::digest(bridge);
    format!("vc{:02x}{:02x}{:x}", hash[0], hash[1], hash[2] >> 4)
}

/// The name of a pod's interface on the node.
pub(super) fn veth(prefix: &str, number: u32) -> String {
    format!("{prefix}{number:x}")
}

/// A free number for `name`: always the same one unless it is taken.
pub(super) fn pick(ranges: &[IpNet], name: &str, taken: &BTreeSet<u32>) -> Result<u32, RangeError> {
    let smallest = ranges.iter().min_by_key(|range| end(range));
    let Some(smallest) = smallest else {
        return Ok(FIRST);
    };
    let count = end(smallest).saturating_sub(FIRST);
    let hash = u32::from_be_bytes(first_four(&Sha256::digest(name)));
    let full = RangeError::Full { range: *smallest };
    let start = hash.checked_rem(count).ok_or_else(|| full.clone())?;
    (start..count)
        .chain(0..start)
        .map(|offset| FIRST + offset)
        .find(|number| !taken.contains(number))
        .ok_or(full)
}

/// The first number that is too high: the last address of a range (IPv4: broadcast) is never given.
fn end(range: &IpNet) -> u32 {
    let bits = u32::from(range.max_prefix_len() - range.prefix_len());
    1_u32
        .checked_shl(bits)
        .map_or(MOST, |size| (size - 1).min(MOST))
}

fn first_four(bytes: &[u8]) -> [u8; 4] {
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(list: &[&str]) -> Vec<IpNet> {
        list.iter()
            .map(|net| net.parse().expect("a range"))
            .collect()
    }

    #[test]
    fn one_number_gives_every_address_of_a_pod() {
        let ranges = nets(&["10.77.0.0/20", "fd00:1::/64"]);
        let two = addresses(&ranges, 258);
        let expected: Vec<IpAddr> = vec![
            "10.77.1.2".parse().expect("v4"),
            "fd00:1::102".parse().expect("v6"),
        ];
        assert_eq!(two, expected);
        assert_eq!(mac(&ranges, 258), [0x0a, 0x58, 10, 77, 1, 2]);
        assert_eq!(mac(&ranges[1..], 258)[..2], [0x0a, 0x58]);
        assert_ne!(mac(&ranges[1..], 258), mac(&ranges[1..], 259));
    }

    #[test]
    fn names_of_interfaces_fit_and_differ_between_bridges() {
        let prefix = veth_prefix("coracle0");
        assert!(veth(&prefix, MOST).len() <= 15);
        assert_ne!(prefix, veth_prefix("coracle1"));
    }

    #[test]
    fn a_pod_keeps_its_number_unless_it_is_taken() {
        let ranges = nets(&["10.77.0.0/20", "fd00:1::/64"]);
        let first = pick(&ranges, "default/web", &BTreeSet::new());
        assert_eq!(first, pick(&ranges, "default/web", &BTreeSet::new()));
        let first = first.expect("free");
        let other = pick(&ranges, "default/web", &BTreeSet::from([first]));
        assert_ne!(other, Ok(first));
    }

    #[test]
    fn network_bridge_and_broadcast_are_never_given_and_a_full_range_says_so() {
        for (range, room) in [
            ("10.0.0.0/30", 1),
            ("10.0.0.0/29", 5),
            ("fd00::/125", 5),
            ("10.0.0.0/24", 253),
        ] {
            let ranges = nets(&[range]);
            let mut taken = BTreeSet::new();
            for pod in 0..room {
                let number = pick(&ranges, &format!("default/{pod}"), &taken).expect("free");
                assert!(
                    number >= FIRST && number < room + FIRST,
                    "{range}: {number}"
                );
                taken.insert(number);
            }
            let error = pick(&ranges, "default/last", &taken).expect_err("full");
            assert_eq!(
                error.to_string(),
                format!("all addresses of {range} are in use")
            );
        }
    }
}
