//! Addresses of services, and the routes that follow.

use std::sync::Arc;

use super::*;
use crate::spec::ServiceSpec;
use crate::spec::cluster::Endpoint;
use crate::spec::service::TargetPort;

fn key(name: &str) -> PodKey {
    PodKey::new("default", name)
}

fn service(name: &str, address: ServiceAddress) -> ServiceEntry {
    let port = |name: &str, port: u16| ServicePort {
        name: name.to_owned(),
        protocol: Protocol::Tcp,
        port,
        target: TargetPort::Number(8080),
        node_port: None,
    };
    let endpoint = Endpoint {
        pod: key("pod"),
        hostname: None,
        ips: vec![ip("10.77.0.9"), ip("fd00::9")],
        ports: vec![Some(8080), None],
    };
    ServiceEntry {
        spec: Arc::new(ServiceSpec {
            families: crate::spec::Families::All,
            key: key(name),
            selector: BTreeMap::new(),
            address,
            ports: vec![port("http", 80), port("admin", 81)],
            aliases: Vec::new(),
            with_unready: false,
            client_affinity: false,
            warnings: Vec::new(),
        }),
        endpoints: vec![endpoint],
    }
}

fn ranges(service: &str) -> Ranges {
    Ranges {
        pods: vec!["10.77.0.0/20".parse().expect("a range")],
        services: vec![service.parse().expect("a range")],
    }
}

fn node() -> BTreeSet<IpAddr> {
    BTreeSet::from([ip("192.0.2.10")])
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn a_service_keeps_its_address_when_others_are_added() {
    let ranges = ranges("10.77.16.0/20");
    let mut numbers = BTreeMap::new();
    let one = vec![service("web", ServiceAddress::Any)];
    let first = assign(&one, &ranges, &node(), &mut numbers).addresses;
    let two = vec![
        service("api", ServiceAddress::Any),
        service("web", ServiceAddress::Any),
    ];
    let both = assign(&two, &ranges, &node(), &mut numbers).addresses;
    assert_eq!(both[&key("web")], first[&key("web")]);
    assert_ne!(both[&key("web")], both[&key("api")]);
    let again = assign(&one, &ranges, &node(), &mut BTreeMap::new()).addresses;
    assert_eq!(again, first, "also if what was given is forgotten");
}

#[test]
fn given_addresses_are_honoured_if_free() {
    let ranges = ranges("10.77.16.0/29");
    for (wanted, error) in [
        (vec![ip("10.77.16.3")], None),
        (vec![ip("10.96.0.10")], None),
        (
            vec![ip("192.0.2.10")],
            Some("service default/b cannot have address 192.0.2.10: it belongs to the node"),
        ),
        (
            vec![ip("10.77.0.5")],
            Some(
                "service default/b cannot have address 10.77.0.5: it belongs to the pod CIDR 10.77.0.0/20",
            ),
        ),
        (
            vec![ip("10.77.16.4")],
            Some(
                "service default/b cannot have address 10.77.16.4: it belongs to service default/a",
            ),
        ),
    ] {
        let services = vec![
            service("a", ServiceAddress::Given(vec![ip("10.77.16.4")])),
            service("b", ServiceAddress::Given(wanted.clone())),
            service("c", ServiceAddress::Any),
            service("d", ServiceAddress::Any),
        ];
        let assigned = assign(&services, &ranges, &node(), &mut BTreeMap::new());
        let found = assigned.error.map(|error| error.to_string());
        assert_eq!(found.as_deref(), error);
        let all: Vec<&IpAddr> = assigned.addresses.values().flatten().collect();
        let different: BTreeSet<&&IpAddr> = all.iter().collect();
        assert_eq!(all.len(), different.len(), "{all:?}");
        assert_eq!(all.len(), if error.is_some() { 3 } else { 4 });
    }
}

#[test]
fn only_services_with_an_address_have_routes_one_for_each_port() {
    let services = vec![
        service("headless", ServiceAddress::Headless),
        service("other", ServiceAddress::External("example.com".to_owned())),
        service("web", ServiceAddress::Given(vec![ip("10.77.16.4")])),
    ];
    let ranges = ranges("10.77.16.0/20");
    let addresses = assign(&services, &ranges, &node(), &mut BTreeMap::new()).addresses;
    let routes = routes(&services, &addresses);
    let names: Vec<&str> = routes.iter().map(|route| route.name.as_str()).collect();
    assert_eq!(names, ["default/web:http", "default/web:admin"]);
    let endpoints: Vec<String> = routes[0]
        .endpoints
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(endpoints, ["10.77.0.9:8080", "[fd00::9]:8080"]);
    assert!(routes[1].endpoints.is_empty(), "no such port in the pod");
}

#[test]
fn services_that_are_gone_give_their_numbers_to_others_when_there_are_no_more() {
    let ranges = ranges("10.77.16.0/29");
    let mut numbers = BTreeMap::new();
    for round in ["a", "b", "c"] {
        let all: Vec<ServiceEntry> = (0..4)
            .map(|n| service(&format!("{round}{n}"), ServiceAddress::Any))
            .collect();
        let assigned = assign(&all, &ranges, &node(), &mut numbers);
        assert!(assigned.error.is_none(), "{round}: {:?}", assigned.error);
        assert_eq!(assigned.addresses.len(), 4, "{round}");
    }
}

#[test]
fn only_services_that_lead_somewhere_need_a_bridge() {
    let named = |address| service("web", address);
    let idle = ServiceEntry {
        endpoints: Vec::new(),
        ..named(ServiceAddress::Any)
    };
    assert!(any_served(&[idle.clone(), named(ServiceAddress::Any)]));
    assert!(!any_served(&[idle, named(ServiceAddress::Headless)]));
}
