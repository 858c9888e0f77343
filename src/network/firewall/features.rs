//! Features of the packet filter that this kernel lacks, found by small transactions that are checked and never
//! applied.

use super::{FirewallError, nft};

/// A feature that the rules need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// A description.
    pub what: &'static str,
    /// The kernel's build option.
    pub option: &'static str,
    /// Whether pods can have a network without it.
    pub required: bool,
    script: &'static str,
}

const fn feature(what: &'static str, option: &'static str, script: &'static str) -> Feature {
    Feature {
        what,
        option,
        required: true,
        script,
    }
}

/// In the order in which they depend on each other.
const FEATURES: &[Feature] = &[
    feature(
        "nf_tables for IPv4 and IPv6",
        "CONFIG_NF_TABLES_INET",
        "table inet coracle-check { }\n",
    ),
    feature(
        "address translation",
        "CONFIG_NFT_NAT",
        "table inet coracle-check {\n chain c {\n type nat hook prerouting priority -110\n }\n}\n",
    ),
    feature(
        "connection tracking",
        "CONFIG_NFT_CT",
        "table inet coracle-check {\n chain c {\n ct state new\n }\n}\n",
    ),
    feature(
        "masquerading",
        "CONFIG_NFT_MASQ",
        "table inet coracle-check {\n chain c {\n type nat hook postrouting priority 90\n masquerade\n }\n}\n",
    ),
    feature(
        "address lookups",
        "CONFIG_NFT_FIB_INET",
        "table inet coracle-check {\n chain c {\n type filter hook prerouting priority -300\n fib daddr type local\n }\n}\n",
    ),
    feature(
        "refusals",
        "CONFIG_NFT_REJECT_INET",
        "table inet coracle-check {\n chain c {\n reject with icmpx port-unreachable\n }\n}\n",
    ),
    feature(
        "spreading over endpoints",
        "CONFIG_NFT_NUMGEN",
        "table inet coracle-check {\n chain c {\n numgen random mod 2 0\n }\n}\n",
    ),
    feature(
        "client affinity",
        "CONFIG_NFT_HASH",
        "table inet coracle-check {\n chain c {\n jhash ip saddr mod 2 seed 0x1 0\n }\n}\n",
    ),
    BRIDGE,
];

/// The only feature that pods can do without.
pub(super) const BRIDGE: Feature = Feature {
    required: false,
    ..feature(
        "filtering on the bridge",
        "CONFIG_NF_TABLES_BRIDGE",
        "table bridge coracle-check {\n chain c {\n type filter hook prerouting priority -400\n }\n}\n",
    )
};

/// All missing features in the caller's network namespace.
pub fn missing_features() -> Result<Vec<Feature>, FirewallError> {
    let mut missing = Vec::new();
    for feature in FEATURES {
        if is_missing(feature)? {
            missing.push(*feature);
        }
    }
    Ok(missing)
}

/// The first of them that matters. Each check costs a run of `nft` and of `modprobe` for all that the kernel lacks.
pub(super) fn first_missing(bridge_family: bool) -> Result<Option<Feature>, FirewallError> {
    for feature in FEATURES {
        if (feature.required || bridge_family) && is_missing(feature)? {
            return Ok(Some(*feature));
        }
    }
    Ok(None)
}

/// Whether the kernel knows no such thing, and does not refuse for another reason, such as a lack of memory.
fn is_of_lack(why: &str) -> bool {
    let others = [
        "Cannot allocate memory",
        "Operation not permitted",
        "Permission denied",
        "Device or resource busy",
        "No buffer space available",
    ];
    !others.iter().any(|other| why.contains(other))
}

fn is_missing(feature: &Feature) -> Result<bool, FirewallError> {
    match nft::check(feature.script) {
        Ok(()) => Ok(false),
        Err(FirewallError::Refused(why)) if is_of_lack(&why) => Ok(true),
        Err(error) => Err(error),
    }
}
