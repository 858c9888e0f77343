//! Services: how pods are found by name and by address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::{PodKey, Protocol};

/// A valid service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Namespace and name.
    pub key: PodKey,
    /// Its further names in its namespace (annotation `coracle.dev/aliases`), in lower case. One that other services have
    /// as well stands for all of them.
    pub aliases: Vec<String>,
    /// Labels that a pod in the same namespace must have; empty: the service has no pods.
    pub selector: BTreeMap<String, String>,
    /// Address of the service.
    pub address: ServiceAddress,
    /// `ipFamilyPolicy` and `ipFamilies`: which of a pod's and the service's addresses it has.
    pub families: Families,
    /// Ports; names are unique, and empty only for a single port.
    pub ports: Vec<ServicePort>,
    /// `publishNotReadyAddresses`: includes pods that are not ready.
    pub with_unready: bool,
    /// `sessionAffinity: ClientIP`: a client always reaches the same pod.
    pub client_affinity: bool,
    /// Warnings about fields without effect here, each a sentence that names the field.
    pub warnings: Vec<String>,
}

/// The families of a service's addresses (KEP-563).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Families {
    /// `SingleStack`, the default: the node's first family, which is IPv4 unless pods have IPv6 alone. Most servers
    /// listen on `0.0.0.0`, and many clients try the first address of a name only.
    First,
    /// `SingleStack` with `IPv4` or `IPv6`.
    Only {
        /// `IPv6`, not `IPv4`.
        v6: bool,
    },
    /// `PreferDualStack`: those that the node has.
    All {
        /// `IPv6` comes first in `ipFamilies`, or among the addresses: what asks for one address gets that one.
        v6_first: bool,
    },
    /// `RequireDualStack`: a node without one of them is worth a warning.
    Both {
        /// See [`Self::All`].
        v6_first: bool,
    },
}

impl Families {
    /// Returns those of the addresses that the service has; all of them if none is of its family. The first address
    /// decides which family is the node's first.
    pub fn of(self, addresses: &[IpAddr]) -> Vec<IpAddr> {
        let (v6, one) = match (self, addresses.first()) {
            (Self::Only { v6 }, _) => (v6, true),
            (Self::First, Some(first)) => (first.is_ipv6(), true),
            (Self::All { v6_first } | Self::Both { v6_first }, _) => (v6_first, false),
            (Self::First, None) => return Vec::new(),
        };
        let (mut wanted, other): (Vec<IpAddr>, Vec<IpAddr>) =
            addresses.iter().partition(|ip| ip.is_ipv6() == v6);
        if !one || wanted.is_empty() {
            wanted.extend(other);
        }
        wanted
    }

    /// Whether it is more than one.
    pub fn are_two(self) -> bool {
        matches!(self, Self::All { .. } | Self::Both { .. })
    }

    /// The family that is asked for by name and that a node with these has not: `IPv4` or `IPv6`.
    pub fn missing(self, has_v4: bool, has_v6: bool) -> Option<&'static str> {
        let (v4, v6) = match self {
            Self::First | Self::All { .. } => (false, false),
            Self::Only { v6 } => (!v6, v6),
            Self::Both { .. } => (true, true),
        };
        match () {
            () if v4 && !has_v4 => Some("IPv4"),
            () if v6 && !has_v6 => Some("IPv6"),
            () => None,
        }
    }
}

/// Address of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceAddress {
    /// An address of the node's service range, chosen by the node and kept.
    Any,
    /// `clusterIPs`, as written. One for two families gets the other one from the node.
    Given(Vec<IpAddr>),
    /// `clusterIP: None`: its name resolves to its pods' addresses.
    Headless,
    /// `type: ExternalName`: its name is an alias of another name.
    External(String),
}

/// A port of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Name; empty for a single port.
    pub name: String,
    /// Transport.
    pub protocol: Protocol,
    /// Port that clients connect to.
    pub port: u16,
    /// Port of the pods.
    pub target: TargetPort,
    /// Port on every address of the node, if any.
    pub node_port: Option<u16>,
}

/// Port of a service's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetPort {
    /// The same number in every pod.
    Number(u16),
    /// The container port with that name, which may differ between pods.
    Name(String),
}

/// A valid service with its manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceDocument {
    /// The service.
    pub spec: ServiceSpec,
    /// The manifest after defaulting, as shown by `get -o json`.
    pub manifest: core::Service,
}

impl ServiceDocument {
    /// Whether node ports are chosen for ports that have none written (`spec::node_ports`).
    pub fn wants_node_ports(&self) -> bool {
        let spec = self.manifest.spec.as_ref();
        spec.is_some_and(|spec| match spec.type_.as_deref() {
            Some("NodePort") => true,
            Some("LoadBalancer") => spec.allocate_load_balancer_node_ports != Some(false),
            _ => false,
        })
    }

    /// Sets the node port of the port with that index.
    pub fn set_node_port(&mut self, index: usize, number: u16) {
        if let Some(port) = self.spec.ports.get_mut(index) {
            port.node_port = Some(number);
        }
        let ports = self.manifest.spec.as_mut().and_then(|s| s.ports.as_mut());
        if let Some(port) = ports.and_then(|ports| ports.get_mut(index)) {
            port.node_port = Some(i32::from(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_has_one_family_unless_it_asks_for_both() {
        let ip = |text: &&str| text.parse::<IpAddr>().expect("an address");
        let of = |families: Families, given: &[&str]| {
            let given: Vec<IpAddr> = given.iter().map(ip).collect();
            let found = families.of(&given).into_iter();
            found.map(|ip| ip.to_string()).collect::<Vec<_>>()
        };
        let both = ["10.0.0.1", "fd00::1"];
        let (v4_first, v6_first) = (
            Families::All { v6_first: false },
            Families::Both { v6_first: true },
        );
        assert_eq!(of(Families::First, &both), ["10.0.0.1"]);
        assert_eq!(of(Families::First, &["fd00::1"]), ["fd00::1"]);
        assert_eq!(of(Families::Only { v6: true }, &both), ["fd00::1"]);
        assert_eq!(of(Families::Only { v6: true }, &both[..1]), ["10.0.0.1"]);
        assert_eq!(of(v4_first, &both), both);
        assert_eq!(of(v6_first, &both), [both[1], both[0]]);
        assert_eq!(of(v6_first, &both[..1]), both[..1]);
        assert_eq!(of(Families::First, &[]), [""; 0]);
    }

    #[test]
    fn a_family_that_is_asked_for_by_name_is_missed() {
        for (families, on_v4, on_v6, on_both) in [
            (Families::First, None, None, None),
            (Families::All { v6_first: true }, None, None, None),
            (Families::Only { v6: false }, None, Some("IPv4"), None),
            (Families::Only { v6: true }, Some("IPv6"), None, None),
            (
                Families::Both { v6_first: false },
                Some("IPv6"),
                Some("IPv4"),
                None,
            ),
        ] {
            let on = |v4, v6| families.missing(v4, v6);
            let found = (on(true, false), on(false, true), on(true, true));
            assert_eq!(found, (on_v4, on_v6, on_both), "{families:?}");
        }
    }
}
