//! A range of services: which of its addresses they can have.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The first and the last address of a range that services can have, as the API server has it: neither the network's
/// own, nor IPv4's for broadcasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRange {
    first: IpAddr,
    last: IpAddr,
}

impl ServiceRange {
    /// Of a range with these two, its first and its last address. It has room for more.
    pub fn within(network: IpAddr, broadcast: IpAddr) -> Self {
        let first = match network {
            IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip).saturating_add(1)).into(),
            IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip).saturating_add(1)).into(),
        };
        let last = match broadcast {
            IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip).saturating_sub(1)).into(),
            IpAddr::V6(_) => broadcast,
        };
        Self { first, last }
    }

    /// Whether a service can have this address.
    pub fn holds(&self, address: IpAddr) -> bool {
        self.is_of_family(address) && (self.first..=self.last).contains(&address)
    }

    /// Whether its addresses are of the family of this one.
    pub fn is_of_family(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4()
    }
}

/// `10.77.16.1-10.77.31.254`
impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_of_the_network_and_for_broadcasts_are_no_services() {
        let range = |first: &str, last: &str| {
            ServiceRange::within(first.parse().unwrap(), last.parse().unwrap())
        };
        let (v4, v6) = (
            range("10.77.16.0", "10.77.16.7"),
            range("fd00::", "fd00::f"),
        );
        for (range, address, fine) in [
            (v4, "10.77.16.0", false),
            (v4, "10.77.16.1", true),
            (v4, "10.77.16.6", true),
            (v4, "10.77.16.7", false),
            (v4, "10.77.16.8", false),
            (v4, "fd00::1", false),
            (v6, "fd00::", false),
            (v6, "fd00::1", true),
            (v6, "fd00::f", true),
            (v6, "fd00::10", false),
        ] {
            assert_eq!(
                range.holds(address.parse().unwrap()),
                fine,
                "{range} {address}"
            );
        }
        assert_eq!(v4.to_string(), "10.77.16.1-10.77.16.6");
    }
}
