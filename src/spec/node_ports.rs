//! Node ports of services whose manifests give none. Kubernetes chooses a random one; here the same service gets the
//! same port on every node and after every restart, unless it is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::service::ServiceDocument;
use super::{PodKey, Protocol};
use crate::types::{Gather, InOrder};

/// Range of node ports (`--service-node-port-range`).
pub const RANGE: RangeInclusive<u16> = 30_000..=32_767;

/// A port of a service.
pub type PortOf = (PodKey, Protocol, u16);

/// Assigns a node port to every service port that needs one: first those written, then those a service had `before`,
/// then the next free one after a hash of namespace, name and port. Returns all chosen ports. A port gets none if the
/// whole range is taken.
pub fn assign(
    services: &mut [ServiceDocument],
    before: &BTreeMap<PortOf, u16>,
) -> BTreeMap<PortOf, u16> {
    let mut taken: BTreeSet<(Protocol, u16)> = services
        .iter()
        .flat_map(|service| &service.spec.ports)
        .filter_map(|port| Some((port.protocol, port.node_port?)))
        .gather();
    let mut open: Vec<(PortOf, usize, usize)> = Vec::new();
    for (at, service) in services.iter().enumerate() {
        for (index, port) in service.spec.ports.iter().enumerate() {
            if service.wants_node_ports() && port.node_port.is_none() {
                let of = (service.spec.key.clone(), port.protocol, port.port);
                open.push((of, at, index));
            }
        }
    }
    // The result does not depend on the order of files.
    open.order();
    let mut chosen = BTreeMap::new();
    for (of, _, _) in &open {
        if let Some(number) = before.get(of)
            && RANGE.contains(number)
            && taken.insert((of.1, *number))
        {
            chosen.insert(of.clone(), *number);
        }
    }
    for (of, at, index) in open {
        let number = chosen
            .get(&of)
            .copied()
            .or_else(|| next_free(&of, &mut taken));
        if let Some(number) = number {
            services[at].set_node_port(index, number);
            chosen.insert(of, number);
        }
    }
    chosen
}

fn next_free(of: &PortOf, taken: &mut BTreeSet<(Protocol, u16)>) -> Option<u16> {
    let (key, protocol, port) = of;
    // The hash leaves out the protocol, so that TCP and UDP of one port get the same node port.
    let wish = fnv1a(format!("{key}:{port}").as_bytes());
    let count = RANGE.end() - RANGE.start() + 1;
    let first = u16::try_from(wish % u32::from(count)).expect("less than the range is long");
    (0..count)
        .map(|step| RANGE.start() + (first + step) % count)
        .find(|number| taken.insert((*protocol, *number)))
}

fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    fn services(text: &str) -> Vec<ServiceDocument> {
        let context = ConvertContext::of("n");
        documents(text.as_bytes(), "f", &context).unwrap().services
    }

    fn service(name: &str, port: &str) -> String {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{type: NodePort, selector: {{a: b}}, ports: [{port}]}}\n"
        )
    }

    fn ports(services: &[ServiceDocument]) -> BTreeMap<&str, u16> {
        let port = |s: &ServiceDocument| s.spec.ports[0].node_port.unwrap();
        let name = |s| port(s);
        services
            .iter()
            .map(|s| (&*s.spec.key.name, name(s)))
            .collect()
    }

    #[test]
    fn a_service_has_the_same_port_whatever_else_is_there() {
        let mut alone = services(&service("a", "{port: 80}"));
        assign(&mut alone, &BTreeMap::new());
        let mut other = services(&service("b", "{port: 80}"));
        assign(&mut other, &BTreeMap::new());
        let text = service("b", "{port: 80}") + &service("a", "{port: 80}");
        let mut both = services(&text);
        assign(&mut both, &BTreeMap::new());
        assert_eq!(ports(&alone)["a"], ports(&both)["a"]);
        assert_eq!(ports(&other)["b"], ports(&both)["b"]);
        let mut web = services(&service("web", "{port: 80}"));
        assign(&mut web, &BTreeMap::new());
        assert_eq!(
            ports(&web)["web"],
            32_195,
            "on every node and in every version"
        );
        assert_ne!(ports(&both)["a"], ports(&both)["b"]);
        assert!(RANGE.contains(&ports(&alone)["a"]));
        let shown = alone[0].manifest.spec.as_ref().unwrap().ports.as_ref();
        assert_eq!(
            shown.unwrap()[0].node_port,
            Some(i32::from(ports(&alone)["a"]))
        );
    }

    #[test]
    fn a_written_port_is_reserved_and_a_chosen_one_stays() {
        let mut alone = services(&service("a", "{port: 80}"));
        let before = assign(&mut alone, &BTreeMap::new());
        let wish = ports(&alone)["a"];
        let given = format!("{{port: 1, nodePort: {wish}}}");
        let text = service("z", &given) + &service("a", "{port: 80}");
        let mut both = services(&text);
        let after = assign(&mut both, &before);
        assert_eq!(ports(&both)["z"], wish);
        let moved = ports(&both)["a"];
        assert_ne!(moved, wish);
        let mut later = services(&service("a", "{port: 80}"));
        assign(&mut later, &after);
        assert_eq!(ports(&later)["a"], moved);
    }

    #[test]
    fn a_full_range_leaves_a_service_without() {
        let taken: String = RANGE
            .map(|n| service(&format!("s{n}"), &format!("{{port: 1, nodePort: {n}}}")))
            .collect();
        let mut all = services(&(taken + &service("a", "{port: 80}")));
        assert!(assign(&mut all, &BTreeMap::new()).is_empty());
        let last = all.last().unwrap();
        assert_eq!(last.spec.ports[0].node_port, None);
    }
}
