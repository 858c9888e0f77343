//! What `port-forward` is for: a pod, one pod of a workload, or one behind a service; and the meaning of its ports.

use serde_json::Value;

use super::super::client::Client;
use super::super::error::{CliError, Result};
use super::super::pod_path;
use super::super::target::{Source, first_ready, no_pods, pod_of, pod_or_owner, pods_behind};

/// A local port and the pod's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Forward {
    /// 0: any.
    pub(super) local: u16,
    pub(super) remote: u16,
}

/// The pod, and what gives its ports names.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pod: String,
    shown: Value,
    /// The service whose ports are meant.
    service: Option<Value>,
}

impl Target {
    pub(super) fn find(client: &Client, namespace: &str, text: &str) -> Result<Self> {
        let (pod, service) = match Source::of(text) {
            Some(source @ Source::Service(_)) => {
                let service = client.get(&source.path(namespace))?;
                let pods = pods_behind(client, namespace, &service)?;
                let first = first_ready(pods.iter()).ok_or_else(|| no_pods(text))?;
                (first.0, Some(service))
            }
            _ => {
                let text = pod_or_owner(text).map_err(|why| {
                    if text.is_empty() {
                        return CliError::usage(why);
                    }
                    CliError::usage(format!("there are no ports to forward to at `{text}`"))
                        .hint("NAME or pod/NAME, deployment/NAME or the like, service/NAME")
                })?;
                (pod_of(client, namespace, &text)?, None)
            }
        };
        let shown = client.get(&pod_path(namespace, &pod))?;
        match shown["status"]["phase"].as_str().unwrap_or_default() {
            "Running" => Ok(Self {
                pod,
                shown,
                service,
            }),
            phase => Err(CliError::new(format!(
                "unable to forward port because pod is not running. Current status={phase}"
            ))),
        }
    }

    /// The pod's UID.
    pub(super) fn uid(&self) -> Value {
        self.shown["metadata"]["uid"].clone()
    }

    /// Parses `REMOTE`, `LOCAL:REMOTE` or `:REMOTE`; the remote port may have a name.
    pub(super) fn forward(&self, text: &str) -> Result<Forward> {
        let (local, remote) = match text.split_once(':') {
            Some((local, remote)) => (Some(local), remote),
            None => (None, text),
        };
        let wrong = || {
            CliError::usage(format!("`{text}` is no port"))
                .hint("write it as 80, 8080:80, :80 (any local port) or 8080:http (by its name)")
        };
        let number = match remote.parse::<u16>() {
            Ok(0) => return Err(wrong()),
            Ok(number) => Ok(number),
            Err(_) if remote.is_empty() || remote.contains(':') => return Err(wrong()),
            Err(_) => Err(remote),
        };
        let remote = match (&self.service, number) {
            (Some(service), wanted) => self.behind_service(service, wanted)?,
            (None, Ok(number)) => number,
            (None, Err(name)) => self.named(name)?,
        };
        let local = match local {
            // The service's own port, where there is one.
            None => number.unwrap_or(remote),
            Some("") => 0,
            Some(local) => local.parse().map_err(|_| wrong())?,
        };
        Ok(Forward { local, remote })
    }

    /// A container's port by its name.
    fn named(&self, name: &str) -> Result<u16> {
        let spec = &self.shown["spec"];
        let containers = [&spec["containers"], &spec["initContainers"]];
        let containers = containers
            .into_iter()
            .flat_map(|list| list.as_array().into_iter().flatten());
        let mut ports = containers.flat_map(|one| one["ports"].as_array().into_iter().flatten());
        let port = ports.find(|port| port["name"] == name);
        let port = port
            .ok_or_else(|| CliError::new(format!("pod {} has no port named `{name}`", self.pod)))?;
        tcp(port)?;
        number(&port["containerPort"])
    }

    /// The pod's port behind one of the service's, given as a number or name.
    fn behind_service(
        &self,
        service: &Value,
        wanted: std::result::Result<u16, &str>,
    ) -> Result<u16> {
        let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let port = ports.find(|port| match wanted {
            Ok(number) => port["port"] == number,
            Err(name) => port["name"] == name,
        });
        let shown = wanted.map_or_else(str::to_owned, |number| number.to_string());
        let port = port.ok_or_else(|| {
            let name = service["metadata"]["name"].as_str().unwrap_or_default();
            CliError::new(format!("service {name} has no port {shown}"))
                .hint(format!("`coracle get svc {name}` lists them"))
        })?;
        tcp(port)?;
        if service["spec"]["clusterIP"] == "None" {
            // Its clients reach the pods themselves.
            return number(&port["port"]);
        }
        match &port["targetPort"] {
            Value::String(name) => self.named(name),
            Value::Null => number(&port["port"]),
            other => number(other),
        }
    }
}

fn tcp(port: &Value) -> Result<()> {
    match port["protocol"].as_str() {
        None | Some("TCP") => Ok(()),
        Some(other) => Err(CliError::new(format!(
            "{other} protocol is not supported for forwarding, only TCP is"
        ))),
    }
}

fn number(port: &Value) -> Result<u16> {
    let number = port.as_u64().and_then(|number| u16::try_from(number).ok());
    number.ok_or_else(|| CliError::new("the port's number is missing"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_mean_what_they_mean_to_kubectl() {
        let pod = json!({ "spec": {
            "containers": [{ "ports": [
                { "name": "http", "containerPort": 8000 },
                { "name": "dns", "containerPort": 53, "protocol": "UDP" },
            ] }],
            "initContainers": [{ "ports": [{ "name": "side", "containerPort": 9000 }] }],
        } });
        let service = |cluster_ip: &str| {
            json!({ "metadata": { "name": "front" }, "spec": { "clusterIP": cluster_ip, "ports": [
                { "name": "web", "port": 80, "targetPort": "http" },
                { "port": 81, "targetPort": 8081 },
                { "port": 82 },
            ] } })
        };
        let of = |service: Option<Value>| Target {
            pod: "web".to_owned(),
            shown: pod.clone(),
            service,
        };
        let forward = |local, remote| Ok(Forward { local, remote });
        let (none, usual, headless) = (
            of(None),
            of(Some(service("10.0.0.1"))),
            of(Some(service("None"))),
        );
        for (target, text, expected) in [
            (&none, "80", forward(80, 80)),
            (&none, "8080:80", forward(8080, 80)),
            (&none, ":80", forward(0, 80)),
            (&none, "0:80", forward(0, 80)),
            (&none, "http", forward(8000, 8000)),
            (&none, "1:side", forward(1, 9000)),
            (&usual, "80", forward(80, 8000)),
            (&usual, "5000:web", forward(5000, 8000)),
            (&usual, ":81", forward(0, 8081)),
            (&usual, "82", forward(82, 82)),
            (&headless, "81", forward(81, 81)),
        ] {
            assert_eq!(target.forward(text), expected, "{text}");
        }
        for (target, text) in [
            (&none, ""),
            (&none, "0"),
            (&none, "80:"),
            (&none, "80:0"),
            (&none, "1:2:3"),
            (&none, "70000:80"),
            (&none, "x:80"),
            (&none, "nothing"),
            (&none, "dns"),
            (&usual, "83"),
        ] {
            assert!(target.forward(text).is_err(), "{text}");
        }
    }
}
