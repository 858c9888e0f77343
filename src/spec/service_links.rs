//! Environment variables of Docker's links and of Kubernetes' services (`pkg/kubelet/envvars`), for each service with
//! an address in the pod's namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::{Protocol, ServiceSpec};

/// Returns the variables of services at these addresses.
pub fn variables<'s>(
    services: impl IntoIterator<Item = (&'s ServiceSpec, IpAddr)>,
) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (service, address) in services {
        of(service, address, &mut all);
    }
    all
}

fn of(service: &ServiceSpec, address: IpAddr, all: &mut BTreeMap<String, String>) {
    let name = upper(&service.key.name);
    let Some(first) = service.ports.first() else {
        return;
    };
    all.insert(format!("{name}_SERVICE_HOST"), address.to_string());
    all.insert(format!("{name}_SERVICE_PORT"), first.port.to_string());
    let mut url = None;
    for port in &service.ports {
        let number = port.port.to_string();
        if !port.name.is_empty() {
            let named = format!("{name}_SERVICE_PORT_{}", upper(&port.name));
            all.insert(named, number.clone());
        }
        let word = match port.protocol {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        };
        let protocol = word.to_ascii_lowercase();
        let own = format!("{protocol}://{}", SocketAddr::from((address, port.port)));
        url.get_or_insert_with(|| own.clone());
        let link = format!("{name}_PORT_{number}_{word}");
        all.insert(format!("{link}_PROTO"), protocol);
        all.insert(format!("{link}_PORT"), number);
        all.insert(format!("{link}_ADDR"), address.to_string());
        all.insert(link, own);
    }
    all.insert(format!("{name}_PORT"), url.unwrap_or_default());
}

fn upper(name: &str) -> String {
    name.to_ascii_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::convert::{ConvertContext, documents};

    #[test]
    fn a_service_has_variables_for_its_address_and_each_port() {
        let text = "{apiVersion: v1, kind: Service, metadata: {name: my-db}, spec: {selector: {a: b}, ports: [\
                    {name: sql, port: 5432}, {name: my-stats, port: 53, protocol: UDP}]}}";
        let context = ConvertContext::of("n");
        let found = documents(text.as_bytes(), "f", &context).expect("valid");
        let variables_for = |address: &str| {
            let address = address.parse().expect("an address");
            variables([(&found.services[0].spec, address)])
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            variables_for("10.0.0.7"),
            [
                "MY_DB_PORT=tcp://10.0.0.7:5432",
                "MY_DB_PORT_53_UDP=udp://10.0.0.7:53",
                "MY_DB_PORT_53_UDP_ADDR=10.0.0.7",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_5432_TCP=tcp://10.0.0.7:5432",
                "MY_DB_PORT_5432_TCP_ADDR=10.0.0.7",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_SERVICE_HOST=10.0.0.7",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_MY_STATS=53",
                "MY_DB_SERVICE_PORT_SQL=5432",
            ]
        );
        let url = "MY_DB_PORT=tcp://[fd00::7]:5432".to_owned();
        assert!(variables_for("fd00::7").contains(&url));
    }
}
