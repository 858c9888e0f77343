//! The owners of node ports. A port has one owner at a time; a second claim fails with the owner's name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::error::NetworkError;
use super::firewall::{HostPort, ServiceRoute};
use super::{listeners, services};
use crate::spec::host_ports::meet;
use crate::spec::{PodKey, PodSpec, PodUid, Protocol};
use crate::types::InOrder;

/// The node ports of pods.
#[derive(Debug, Default)]
pub(super) struct Claims {
    pods: BTreeMap<PodUid, (PodKey, Vec<HostPort>)>,
    /// Node ports of services, with the services' names.
    services: Vec<(HostPort, String)>,
}

impl Claims {
    /// The first of the pod's ports that another pod or a service has.
    pub(super) fn conflict(&self, pod: &PodUid, ports: &[HostPort]) -> Result<(), NetworkError> {
        for (taken, service) in &self.services {
            if let Some(port) = ports.iter().find(|port| overlap(port, taken)) {
                return Err(NetworkError::PortOfService {
                    port: name(port),
                    by: service.clone(),
                });
            }
        }
        for (uid, (key, taken)) in &self.pods {
            let both = |port: &&HostPort| taken.iter().any(|other| overlap(port, other));
            if let Some(port) = ports.iter().find(both).filter(|_| uid != pod) {
                return Err(NetworkError::PortOfPod {
                    port: name(port),
                    by: key.clone(),
                });
            }
        }
        Ok(())
    }

    /// Claims these ports for this pod.
    pub(super) fn take(&mut self, pod: &PodSpec, ports: Vec<HostPort>) {
        if ports.is_empty() {
            self.pods.remove(&pod.uid);
        } else {
            self.pods.insert(pod.uid.clone(), (pod.key.clone(), ports));
        }
    }

    /// Claims the node ports of routes for their services. A port of a pod or a program is left out of its route, and
    /// reported.
    pub(super) fn take_node_ports(
        &mut self,
        routes: &mut [ServiceRoute],
    ) -> Vec<(PodKey, NetworkError)> {
        let former = std::mem::take(&mut self.services);
        let mut refused = Vec::new();
        for route in routes {
            let Some(port) = route.node_port else {
                continue;
            };
            let port = HostPort {
                protocol: route.protocol,
                host_ip: None,
                port,
                to: 0,
            };
            // A port that the service has already cannot have another owner.
            let has_it = former.iter().any(|(one, _)| *one == port);
            let free = match self.conflict(&PodUid::from(""), &[port]) {
                Ok(()) if !has_it => free_of_programs(&[port], &[]),
                free => free,
            };
            match free {
                Ok(()) => self.services.push((port, route.name.clone())),
                Err(source) => {
                    route.node_port = None;
                    let error = NetworkError::NodePort {
                        service: route.name.clone(),
                        source: Box::new(source),
                    };
                    refused.push((services::service_of(&route.name), error));
                }
            }
        }
        refused
    }

    /// Restores the node ports of routes from before an agent restart.
    pub(super) fn keep_node_ports(&mut self, routes: &[ServiceRoute]) {
        let ports = routes.iter().filter_map(|route| {
            let port = HostPort {
                protocol: route.protocol,
                host_ip: None,
                port: route.node_port?,
                to: 0,
            };
            Some((port, route.name.clone()))
        });
        self.services = ports.collect();
    }

    /// Frees these ports.
    pub(super) fn release(&mut self, pod: &PodUid) {
        self.pods.remove(pod);
    }
}

/// The node ports that a pod requests.
pub(super) fn of(pod: &PodSpec) -> Vec<HostPort> {
    let ports = pod.lasting_containers();
    let ports = ports.flat_map(|container| &container.ports);
    let mut list: Vec<HostPort> = ports
        .filter_map(|port| {
            Some(HostPort {
                protocol: port.protocol,
                host_ip: port.host_ip,
                port: port.host_port?,
                to: port.container_port,
            })
        })
        .collect();
    list.order();
    list.dedup();
    list
}

/// A program of the node that has one of the ports: its traffic would suddenly go to the pod. `own`: addresses of the
/// bridge, where the name server has a port to which only packets for port 53 are led.
pub(super) fn free_of_programs(ports: &[HostPort], own: &[IpAddr]) -> Result<(), NetworkError> {
    for port in ports {
        if let Some(listener) = listeners::taken(port, own) {
            return Err(NetworkError::PortOfProcess {
                port: name(port),
                by: match listener.pid {
                    0 => "a process of the node".to_owned(),
                    pid => format!("process `{}` (pid {pid})", listener.process),
                },
            });
        }
    }
    Ok(())
}

/// `8080/TCP`, `192.168.1.5:8080/TCP`.
pub(super) fn name(port: &HostPort) -> String {
    let protocol = match port.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    match port.host_ip {
        Some(ip) => format!("{}/{protocol}", std::net::SocketAddr::from((ip, port.port))),
        None => format!("{}/{protocol}", port.port),
    }
}

fn overlap(one: &HostPort, other: &HostPort) -> bool {
    meet(one.host_ip, other.host_ip) && one.port == other.port && one.protocol == other.protocol
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(text: &str) -> HostPort {
        let (address, protocol) = text.split_once('/').expect("a protocol");
        let protocol = match protocol {
            "UDP" => Protocol::Udp,
            _ => Protocol::Tcp,
        };
        let (host_ip, port) = match address.parse::<std::net::SocketAddr>() {
            Ok(both) => (Some(both.ip()), both.port()),
            Err(_) => (None, address.parse().expect("a port")),
        };
        HostPort {
            protocol,
            host_ip,
            port,
            to: 80,
        }
    }

    #[test]
    fn a_port_is_one_pods_where_addresses_and_protocol_meet() {
        for (taken, wanted, clash) in [
            ("8080/TCP", "8080/TCP", true),
            ("8080/TCP", "8080/UDP", false),
            ("8080/TCP", "8081/TCP", false),
            ("8080/TCP", "192.0.2.1:8080/TCP", true),
            ("192.0.2.1:8080/TCP", "8080/TCP", true),
            ("192.0.2.1:8080/TCP", "192.0.2.2:8080/TCP", false),
            ("192.0.2.1:8080/TCP", "192.0.2.1:8080/TCP", true),
            ("192.0.2.1:8080/TCP", "[2001:db8::1]:8080/TCP", false),
            ("0.0.0.0:8080/TCP", "192.0.2.1:8080/TCP", true),
            ("[2001:db8::1]:8080/TCP", "[::]:8080/TCP", true),
            ("0.0.0.0:8080/TCP", "[::]:8080/TCP", false),
            ("0.0.0.0:8080/TCP", "[::1]:8080/TCP", false),
            ("8080/TCP", "[::]:8080/TCP", true),
        ] {
            let key = PodKey::new("default", "web");
            let mut claims = Claims::default();
            let first = PodUid::from("first");
            claims.pods.insert(first.clone(), (key, vec![port(taken)]));
            let found = claims.conflict(&PodUid::from("second"), &[port(wanted)]);
            let expected =
                clash.then(|| format!("host port {wanted} is already used by pod default/web"));
            assert_eq!(found.err().map(|error| error.to_string()), expected);
            assert!(claims.conflict(&first, &[port(wanted)]).is_ok(), "its own");
        }
    }
}
