//! The zone: a table from each name to its records, rebuilt from pods and services whenever they change. It follows
//! version 1.1.0 of the Kubernetes DNS specification, and CoreDNS where that is silent.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::spec::aliases;
use crate::spec::cluster::{ClusterView, Endpoint, ServiceEntry};
use crate::spec::service::Families;
use crate::spec::{PodKey, Protocol, ServiceAddress};

/// A name in wire format, as written in a manifest.
pub(super) type Name = domain::base::Name<Vec<u8>>;

/// Labels below the cluster's domain with the addresses of the name server itself.
const NAME_SERVER: &str = "ns.dns";

/// One record of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(Name),
    Ptr(Name),
    Srv {
        weight: u16,
        port: u16,
        target: Name,
    },
    Txt(&'static str),
    Soa,
    Ns,
}

/// All known names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Zone {
    /// The cluster's domain; `None`: no names.
    apex: Option<Apex>,
    /// By name in wire format and lower case. A name without records is the ancestor of another.
    names: HashMap<Vec<u8>, Vec<Data>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Apex {
    text: String,
    name: Name,
    server: Name,
    mailbox: Name,
}

impl Zone {
    /// The names of `<…>.<cluster_domain>`. `services` are the addresses of services that have some. Names that are
    /// too long for DNS are left out.
    pub fn new(
        cluster_domain: &str,
        view: &ClusterView,
        services: &BTreeMap<PodKey, Vec<IpAddr>>,
    ) -> Self {
        let mut zone = Self {
            apex: Apex::new(cluster_domain),
            names: HashMap::new(),
        };
        zone.add("", [Data::Soa, Data::Ns]);
        zone.add("svc", []);
        zone.add("pod", []);
        zone.add("dns-version", [Data::Txt("1.1.0")]);
        zone.add(NAME_SERVER, []);
        zone.add_pods(view);
        for service in &view.services {
            zone.add_service(service, services.get(&service.spec.key));
        }
        zone.add_aliases(view);
        zone.add_pod_pointers(view);
        zone
    }

    /// Sets the addresses of the name server, which are the node's: the zone's NS record names them, and pods know the
    /// node by them.
    pub(super) fn set_name_servers(&mut self, addresses: &[IpAddr]) {
        if let Some(key) = self.full_name(NAME_SERVER).map(|name| key(&name)) {
            self.names
                .insert(key, addresses.iter().map(address).collect());
        }
        // Most servers that are reached by these names listen on IPv4 alone.
        let one = Families::First.of(addresses);
        let names = aliases::OF_NODE.into_iter().filter_map(parse);
        for key in names.map(|name| key(&name)) {
            match one.is_empty() || self.apex.is_none() {
                true => self.names.remove(&key),
                false => self.names.insert(key, one.iter().map(address).collect()),
            };
        }
    }

    /// The records of a name in wire format and lower case; `None`: the name does not exist.
    pub(super) fn get(&self, key: &[u8]) -> Option<&[Data]> {
        self.names.get(key).map(Vec::as_slice)
    }

    /// Name of the zone, of its name server, and the mailbox of its administrator.
    pub(super) fn authority(&self) -> Option<(&Name, &Name, &Name)> {
        let apex = self.apex.as_ref()?;
        Some((&apex.name, &apex.server, &apex.mailbox))
    }

    fn add_pods(&mut self, view: &ClusterView) {
        for pod in &view.pods {
            let PodKey { namespace, name } = &pod.key;
            self.add(&format!("{namespace}.svc"), []);
            self.add(
                &format!("{name}.{namespace}.pod"),
                pod.ips.iter().map(address),
            );
            for ip in &pod.ips {
                let dashed = dashed(ip);
                self.add(&format!("{dashed}.{namespace}.pod"), [address(ip)]);
            }
        }
    }

    /// Addresses without a service name get the name of their pod. The node's are no pod's: the node's resolvers know
    /// its name.
    fn add_pod_pointers(&mut self, view: &ClusterView) {
        for pod in view.pods.iter().filter(|pod| !pod.host_network) {
            let PodKey { namespace, name } = &pod.key;
            for ip in &pod.ips {
                if !self.names.contains_key(&reverse_key(*ip)) {
                    self.add_pointer(*ip, &format!("{name}.{namespace}.pod"));
                }
            }
        }
    }

    fn add_service(&mut self, service: &ServiceEntry, addresses: Option<&Vec<IpAddr>>) {
        let PodKey { namespace, name } = &service.spec.key;
        let owner = format!("{name}.{namespace}.svc");
        self.add(&format!("{namespace}.pod"), []);
        self.add(&format!("{namespace}.svc"), []);
        match &service.spec.address {
            // A cluster would answer with an address as if it were a name, which nobody could resolve.
            ServiceAddress::External(target) => match target.parse::<IpAddr>() {
                Ok(ip) => self.add(&owner, [address(&ip)]),
                Err(_) => self.add(&owner, parse(target).map(Data::Cname)),
            },
            ServiceAddress::Headless => self.add_headless(&owner, service),
            ServiceAddress::Any | ServiceAddress::Given(_) => {
                let addresses = addresses.map_or(&[][..], Vec::as_slice);
                self.add(&owner, addresses.iter().map(address));
                for ip in addresses {
                    self.add_pointer(*ip, &owner);
                }
                let Some(target) = self.full_name(&owner) else {
                    return;
                };
                for port in &service.spec.ports {
                    let data = Data::Srv {
                        weight: 100,
                        port: port.port,
                        target: target.clone(),
                    };
                    self.add_srv(&owner, &port.name, port.protocol, data);
                }
            }
        }
    }

    /// Without endpoints the name does not exist, as the specification requires.
    fn add_headless(&mut self, owner: &str, service: &ServiceEntry) {
        let weight = 100_usize
            .checked_div(service.endpoints.len())
            .map_or(1, |share| u16::try_from(share.max(1)).unwrap_or(1));
        for endpoint in &service.endpoints {
            let ips = service.spec.families.of(&endpoint.ips);
            self.add(owner, ips.iter().map(address));
            for (host, ips) in hosts(endpoint, &ips) {
                let host = format!("{host}.{owner}");
                self.add(&host, ips.iter().map(address));
                for ip in ips {
                    self.add_pointer(*ip, &host);
                }
                let Some(target) = self.full_name(&host) else {
                    continue;
                };
                for (port, at) in service.spec.ports.iter().zip(&endpoint.ports) {
                    let Some(number) = *at else { continue };
                    let data = Data::Srv {
                        weight,
                        port: number,
                        target: target.clone(),
                    };
                    self.add_srv(owner, &port.name, port.protocol, data);
                }
            }
        }
    }

    /// Aliases of services (annotation `coracle.dev/aliases`) have the records of all services that ask for them, as in
    /// docker and podman; a service of that name is one of these.
    fn add_aliases(&mut self, view: &ClusterView) {
        let mut found: Vec<(String, Vec<Data>)> = Vec::new();
        for ServiceEntry { spec, .. } in &view.services {
            let PodKey { namespace, name } = &spec.key;
            if spec.aliases.is_empty() {
                continue;
            }
            let owner = self.full_name(&format!("{name}.{namespace}.svc"));
            // A service without endpoints has no name, so its aliases have none.
            let Some(records) = owner.and_then(|owner| self.get(&key(&owner))) else {
                continue;
            };
            for alias in &spec.aliases {
                found.push((format!("{alias}.{namespace}.svc"), records.to_vec()));
            }
        }
        for (alias, data) in found {
            let Some(key) = self.full_name(&alias).map(|name| key(&name)) else {
                continue;
            };
            // Its ancestors are not added. musl ends its search at a name that exists without records, so an
            // `example.com` below the namespace would hide the real one.
            let records = self.names.entry(key).or_default();
            let stands_for_another = records.iter().any(|data| matches!(data, Data::Cname(_)));
            for record in data.into_iter().filter(|_| !stands_for_another) {
                if !records.contains(&record) {
                    records.push(record);
                }
            }
        }
    }

    /// By port name, if it has one, and, as in CoreDNS, by the service alone.
    fn add_srv(&mut self, owner: &str, port: &str, protocol: Protocol, data: Data) {
        if !port.is_empty() {
            let protocol = match protocol {
                Protocol::Tcp => "_tcp",
                Protocol::Udp => "_udp",
                Protocol::Sctp => "_sctp",
            };
            self.add(&format!("_{port}.{protocol}.{owner}"), [data.clone()]);
        }
        self.add(owner, [data]);
    }

    fn add_pointer(&mut self, ip: IpAddr, target: &str) {
        if let Some(target) = self.full_name(target) {
            let data = Data::Ptr(target);
            let records = self.names.entry(reverse_key(ip)).or_default();
            if !records.contains(&data) {
                records.push(data);
            }
        }
    }

    /// Adds records to a name below the cluster's domain, and its ancestors if they are missing.
    fn add(&mut self, below: &str, data: impl IntoIterator<Item = Data>) {
        let Some(apex) = self.apex.as_ref().map(|apex| apex.name.len()) else {
            return;
        };
        let Some(name) = self.full_name(below) else {
            return;
        };
        let full = key(&name);
        let mut rest = full.as_slice();
        while rest.len() > apex {
            rest = &rest[1 + usize::from(rest[0])..];
            if !self.names.contains_key(rest) {
                self.names.insert(rest.to_vec(), Vec::new());
            }
        }
        let records = self.names.entry(full).or_default();
        for record in data {
            if !records.contains(&record) {
                records.push(record);
            }
        }
    }

    fn full_name(&self, below: &str) -> Option<Name> {
        let apex = self.apex.as_ref()?;
        if below.is_empty() {
            return Some(apex.name.clone());
        }
        parse(&format!("{below}.{}", apex.text))
    }
}

impl Apex {
    fn new(domain: &str) -> Option<Self> {
        let text = domain.trim_matches('.');
        // Without a domain the zone would be the whole tree.
        if text.is_empty() {
            return None;
        }
        Some(Self {
            text: text.to_owned(),
            name: parse(text)?,
            server: parse(&format!("{NAME_SERVER}.{text}"))?,
            mailbox: parse(&format!("hostmaster.{text}"))?,
        })
    }
}

/// The names of an endpoint below its service, each with its addresses: its own, or one for each address.
fn hosts<'i>(endpoint: &Endpoint, ips: &'i [IpAddr]) -> Vec<(String, &'i [IpAddr])> {
    match &endpoint.hostname {
        Some(hostname) => vec![(hostname.clone(), ips)],
        None => ips.chunks(1).map(|ip| (dashed(&ip[0]), ip)).collect(),
    }
}

fn address(ip: &IpAddr) -> Data {
    match ip {
        IpAddr::V4(ip) => Data::A(*ip),
        IpAddr::V6(ip) => Data::Aaaa(*ip),
    }
}

fn dashed(ip: &IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}

/// A fully qualified name, with or without the last dot; `None` if it is too long.
fn parse(text: &str) -> Option<Name> {
    Name::vec_from_str(text).ok()
}

fn key(name: &Name) -> Vec<u8> {
    name.as_slice().to_ascii_lowercase()
}

/// The reverse name of an address.
fn reverse_key(ip: IpAddr) -> Vec<u8> {
    let name: Name = Name::reverse_from_addr(ip).expect("a reverse name has at most 74 octets");
    key(&name)
}
