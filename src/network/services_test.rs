//! Addresses of services, and the routes that follow.

use std::sync::Arc;

use super::*;
use crate::spec::ServiceSpec;
use crate::spec::cluster::Endpoint;
use crate::spec::service::{Families, TargetPort};

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
            families: crate::spec::Families::All { v6_first: false },
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
fn given_addresses_are_honoured_if_free_and_in_the_range() {
    let ranges = ranges("10.77.16.0/29");
    let node = BTreeSet::from([ip("10.77.16.5")]);
    let outside = Some((
        Reason::ClusterIPOutOfRange,
        "has address {}, which is not in the valid range of services, 10.77.16.1-10.77.16.6: a host with that address cannot \
         be reached from here; leave `clusterIP` out, or set `coracle.serviceCIDR`",
    ));
    let taken = |what| Some((Reason::ClusterIPAlreadyAllocated, what));
    for (wanted, refused) in [
        ("10.77.16.3", None),
        ("10.77.16.1", None),
        ("10.77.16.6", None),
        ("10.77.16.0", outside),
        ("10.77.16.7", outside),
        ("10.96.0.10", outside),
        ("fd00::4", outside),
        (
            "10.77.16.5",
            taken("cannot have address {}: it belongs to the node"),
        ),
        (
            "10.77.0.5",
            taken("cannot have address {}: it belongs to the pod CIDR 10.77.0.0/20"),
        ),
        (
            "10.77.16.4",
            taken("cannot have address {}: it belongs to service default/a"),
        ),
    ] {
        let services = vec![
            service("a", ServiceAddress::Given(vec![ip("10.77.16.4")])),
            service("b", ServiceAddress::Given(vec![ip(wanted)])),
            service("c", ServiceAddress::Any),
        ];
        let assigned = assign(&services, &ranges, &node, &mut BTreeMap::new());
        let found: Vec<Refusal> = assigned
            .errors
            .iter()
            .map(|(key, error)| super::refused(key, error))
            .collect();
        let expected = refused.map(|(reason, why)| Refusal {
            service: key("b"),
            reason,
            message: format!("service default/b {}", why.replace("{}", wanted)),
        });
        let has_it = refused.is_none_or(|(reason, _)| reason == Reason::ClusterIPOutOfRange);
        assert_eq!(found, Vec::from_iter(expected));
        let all: Vec<&IpAddr> = assigned.addresses.values().flatten().collect();
        let different: BTreeSet<&&IpAddr> = all.iter().collect();
        assert_eq!(all.len(), different.len(), "{all:?}");
        assert_eq!(assigned.addresses.len(), if has_it { 3 } else { 2 });
    }
}

#[test]
fn one_given_address_gets_one_of_the_other_family_beside_it() {
    let both = Ranges {
        pods: vec![
            "10.77.0.0/20".parse().expect("a range"),
            "fd00::/64".parse().expect("a range"),
        ],
        services: vec![
            "10.77.16.0/24".parse().expect("a range"),
            "fd00:1::/112".parse().expect("a range"),
        ],
    };
    for (given, families, found) in [
        (
            "10.77.16.9",
            Families::All { v6_first: false },
            [true, false],
        ),
        (
            "fd00:1::9",
            Families::Both { v6_first: true },
            [false, true],
        ),
    ] {
        let mut entry = service("web", ServiceAddress::Given(vec![ip(given)]));
        Arc::make_mut(&mut entry.spec).families = families;
        let mut numbers = BTreeMap::new();
        let assigned = assign(&[entry.clone()], &both, &node(), &mut numbers);
        let own = &assigned.addresses[&key("web")];
        assert_eq!(own[0], ip(given));
        let of: Vec<bool> = own.iter().map(IpAddr::is_ipv4).collect();
        assert_eq!((of, assigned.errors.len()), (found.to_vec(), 0), "{own:?}");
        let again = assign(&[entry], &both, &node(), &mut numbers);
        assert_eq!(again.addresses, assigned.addresses, "it is kept");
    }
    let mut entry = service("web", ServiceAddress::Given(vec![ip("10.77.16.9")]));
    Arc::make_mut(&mut entry.spec).families = Families::Only { v6: false };
    let assigned = assign(&[entry], &both, &node(), &mut BTreeMap::new());
    assert_eq!(assigned.addresses[&key("web")], [ip("10.77.16.9")]);
}

#[test]
fn a_family_that_pods_do_not_have_is_reported_and_the_other_one_serves() {
    let ranges = ranges("10.77.16.0/29");
    for (address, selector, reported) in [
        (ServiceAddress::Any, "web", true),
        (ServiceAddress::Headless, "web", true),
        (ServiceAddress::Headless, "", false),
        (ServiceAddress::External("a.example".to_owned()), "", false),
    ] {
        let mut entry = service("web", address);
        let mut spec = (*entry.spec).clone();
        spec.families = Families::Only { v6: true };
        if !selector.is_empty() {
            spec.selector.insert("app".to_owned(), selector.to_owned());
        }
        entry.spec = Arc::new(spec);
        let has_one = entry.spec.address == ServiceAddress::Any;
        let assigned = assign(&[entry], &ranges, &node(), &mut BTreeMap::new());
        let errors = assigned.errors.iter();
        let found: Vec<Reason> = errors
            .map(|(key, e)| super::refused(key, e).reason)
            .collect();
        let expected = reported.then_some(Reason::IPFamilyNotConfigured);
        assert_eq!(found, Vec::from_iter(expected));
        assert_eq!(assigned.addresses.len(), usize::from(has_one));
    }
}

#[test]
fn the_service_of_a_route_is_in_its_name() {
    for port in ["http", "53/UDP", "80"] {
        assert_eq!(service_of(&format!("default/web:{port}")), key("web"));
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
        let errors = assigned.errors;
        assert!(errors.is_empty(), "{round}: {errors:?}");
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
