//! The ranges of pods and services: those of the settings, or the first of a few well-known private ones that this
//! node does not use. Pure: the ranges in use are an input.

use std::net::Ipv6Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::types::InOrder;

/// IPv4 ranges of pods, in order of preference; the range of services is the second half of the same /19.
const CANDIDATES: &[[u8; 2]] = &[
    [77, 0],
    [201, 64],
    [113, 128],
    [54, 32],
    [187, 96],
    [239, 160],
];
/// The number of ULA prefixes to try.
const ULA_CANDIDATES: u8 = 4;
/// A route this short means "everything else" (VPNs split the default route into halves), not the place of a range.
const DEFAULT_LIKE_V4: u8 = 3;
const DEFAULT_LIKE_V6: u8 = 7;

/// The ranges in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ranges {
    /// Of pods, IPv4 first.
    pub(super) pods: Vec<IpNet>,
    /// Of services, IPv4 first, the same families.
    pub(super) services: Vec<IpNet>,
}

/// A range that something else on this node uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Used {
    /// The range.
    pub(super) net: IpNet,
    /// `route 10.0.0.0/8 dev eth0`.
    pub(super) by: String,
}

/// The inputs of the choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// As set; empty: choose.
    pub(super) pods: &'a [IpNet],
    /// As set; empty: choose.
    pub(super) services: &'a [IpNet],
    /// Whether the node has IPv6.
    pub(super) ipv6: bool,
    /// A seed that differs from node to node: machine id and bridge.
    pub(super) seed: &'a str,
}

/// Why no ranges could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// A range of the settings is in use.
    #[error("{what} {range} collides with {with}; choose another with `{flag}` or `{field}`")]
    Collides {
        /// `pod CIDR` or `service CIDR`.
        what: &'static str,
        /// As set.
        range: IpNet,
        /// What uses it.
        with: String,
        /// The command line's name of the setting.
        flag: &'static str,
        /// The file's name of the setting.
        field: &'static str,
    },
    /// None of the candidates is free.
    #[error(
        "no range for {what} is free: {range} collides with {with}, and so does every other one; set one with `{flag}` or `{field}`"
    )]
    NoneFree {
        /// `pod CIDR` or `service CIDR`.
        what: &'static str,
        /// The first one that was tried.
        range: IpNet,
        /// What uses it.
        with: String,
        /// The command line's name of the setting.
        flag: &'static str,
        /// The file's name of the setting.
        field: &'static str,
    },
    /// Too small for a pod beside network, bridge and broadcast address.
    #[error("{what} {range} is too small: it must have room for 4 addresses")]
    TooSmall {
        /// `pod CIDR` or `service CIDR`.
        what: &'static str,
        /// As set.
        range: IpNet,
    },
    /// Two ranges of one family.
    #[error(
        "two ranges of one family: {first} and {second}; give at most one for IPv4 and one for IPv6"
    )]
    SameFamily {
        /// The first.
        first: IpNet,
        /// The second.
        second: IpNet,
    },
    /// Only IPv6 ranges are set, and the node has no IPv6.
    #[error("pod CIDR {range} is IPv6, which is switched off on this node")]
    NoIpv6 {
        /// As set.
        range: IpNet,
    },
    /// No address is left.
    #[error("all addresses of {range} are in use")]
    Full {
        /// The range.
        range: IpNet,
    },
}

/// The names of a setting.
#[derive(Clone, Copy)]
struct Setting {
    what: &'static str,
    flag: &'static str,
    field: &'static str,
}

const PODS: Setting = Setting {
    what: "pod CIDR",
    flag: "--pod-cidr",
    field: "podCIDR",
};
const SERVICES: Setting = Setting {
    what: "service CIDR",
    flag: "--service-cidr",
    field: "serviceCIDR",
};

/// Chooses the ranges.
pub(super) fn choose(wanted: &Wanted<'_>, used: &[Used]) -> Result<Ranges, RangeError> {
    let mut pods = given(wanted.pods, PODS, wanted.ipv6, used)?;
    if wanted.pods.is_empty() {
        pods.push(first_free(&pod_candidates_v4(), PODS, used)?);
        if wanted.ipv6 {
            pods.push(first_free(&ula_candidates(wanted.seed, 64), PODS, used)?);
        }
    } else if pods.is_empty() {
        return Err(RangeError::NoIpv6 {
            range: wanted.pods[0],
        });
    }
    let mut taken = used.to_vec();
    taken.extend(pods.iter().map(|net| Used {
        net: *net,
        by: format!("pod CIDR {net}"),
    }));
    let set = given(wanted.services, SERVICES, wanted.ipv6, &taken)?;
    let mut services = Vec::new();
    for range in &pods {
        let same = set.iter().find(|net| same_family(net, range));
        services.push(match (same, range) {
            (Some(net), _) => *net,
            (None, IpNet::V4(pods)) => first_free(&service_candidates_v4(*pods), SERVICES, &taken)?,
            (None, IpNet::V6(_)) => {
                first_free(&ula_candidates(wanted.seed, 112), SERVICES, &taken)?
            }
        });
    }
    Ok(Ranges { pods, services })
}

/// The first thing that uses part of one of the ranges.
pub(super) fn collision(ranges: &Ranges, used: &[Used]) -> Option<(IpNet, String)> {
    let all = ranges.pods.iter().chain(&ranges.services);
    all.filter_map(|net| Some((*net, user(net, used)?.by.clone())))
        .next()
}

/// Whether ranges chosen earlier have the families that would be chosen now: IPv6 may have been switched on or off.
pub(super) fn families_are(ranges: &Ranges, wanted: &Wanted<'_>) -> bool {
    let six = |list: &[IpNet]| list.iter().any(|net| net.addr().is_ipv6());
    six(&ranges.pods) == (wanted.ipv6 && (wanted.pods.is_empty() || six(wanted.pods)))
}

/// Whether two ranges have addresses in common.
fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Whether both are IPv4 or both IPv6.
fn same_family(one: &IpNet, other: &IpNet) -> bool {
    one.addr().is_ipv4() == other.addr().is_ipv4()
}

/// The ranges of the settings, IPv4 first; those of IPv6 are left out on a node without it.
fn given(
    set: &[IpNet],
    setting: Setting,
    ipv6: bool,
    used: &[Used],
) -> Result<Vec<IpNet>, RangeError> {
    let mut result: Vec<IpNet> = Vec::new();
    for net in set {
        let range = net.trunc();
        if let Some(first) = result.iter().find(|other| same_family(other, &range)) {
            return Err(RangeError::SameFamily {
                first: *first,
                second: range,
            });
        }
        let Setting { what, flag, field } = setting;
        if range.prefix_len() + 2 > range.max_prefix_len() {
            return Err(RangeError::TooSmall { what, range });
        }
        if let IpNet::V6(_) = range
            && !ipv6
        {
            continue;
        }
        if let Some(user) = user(&range, used) {
            let with = user.by.clone();
            return Err(RangeError::Collides {
                what,
                range,
                with,
                flag,
                field,
            });
        }
        result.push(range);
    }
    result.order_by_key(|net| net.addr().is_ipv6());
    Ok(result)
}

fn first_free(candidates: &[IpNet], setting: Setting, used: &[Used]) -> Result<IpNet, RangeError> {
    let mut first = None;
    for range in candidates {
        match user(range, used) {
            None => return Ok(*range),
            Some(user) => {
                first.get_or_insert((*range, user.by.clone()));
            }
        }
    }
    let (range, with) = first.expect("the lists of candidates are not empty");
    let Setting { what, flag, field } = setting;
    Err(RangeError::NoneFree {
        what,
        range,
        with,
        flag,
        field,
    })
}

fn user<'u>(range: &IpNet, used: &'u [Used]) -> Option<&'u Used> {
    used.iter().find(|used| {
        let default_like = match used.net {
            IpNet::V4(net) => net.prefix_len() <= DEFAULT_LIKE_V4,
            IpNet::V6(net) => net.prefix_len() <= DEFAULT_LIKE_V6,
        };
        !default_like && overlap(&used.net, range)
    })
}

/// Pairs of a /20 for pods and the /20 after it for services.
fn pairs() -> Vec<(IpNet, IpNet)> {
    let tens = CANDIDATES.iter().map(|[b, c]| [10, *b, *c]);
    let all = tens.chain([
        [172, 28, 96],
        [172, 21, 32],
        [192, 168, 160],
        [192, 168, 96],
    ]);
    let net = |[a, b, c]: [u8; 3]| {
        let net = Ipv4Net::new([a, b, c, 0].into(), 20).expect("20 is a prefix length");
        IpNet::V4(net)
    };
    all.map(|[a, b, c]| (net([a, b, c]), net([a, b, c + 16])))
        .collect()
}

fn pod_candidates_v4() -> Vec<IpNet> {
    pairs().into_iter().map(|(pods, _)| pods).collect()
}

/// The pods' counterpart comes first: two nodes on one machine then differ in both.
fn service_candidates_v4(pods: Ipv4Net) -> Vec<IpNet> {
    let pairs = pairs();
    let own = pairs.iter().filter(|(other, _)| *other == IpNet::V4(pods));
    own.chain(&pairs).map(|(_, services)| *services).collect()
}

fn ula_candidates(seed: &str, prefix: u8) -> Vec<IpNet> {
    (0..ULA_CANDIDATES)
        .map(|attempt| {
            let hash = Sha256::digest(format!("{seed} {attempt}"));
            let mut bytes = [0; 16];
            bytes[0] = 0xfd;
            bytes[1..6].copy_from_slice(&hash[..5]);
            // Subnet 0 for pods, 1 for services.
            bytes[7] = u8::from(prefix > 64);
            let net = Ipv6Net::new(Ipv6Addr::from(bytes), prefix);
            IpNet::V6(net.expect("64 and 112 are prefix lengths"))
        })
        .collect()
}

#[cfg(test)]
#[path = "ranges_test.rs"]
mod tests;
