//! Services, claims, and kinds that are little more than a name.

use serde_json::{Value, json};

use super::super::args::CreateArgs;
use super::super::error::{CliError, Result};
use super::{document, needed};

pub(super) fn cluster_ip(args: &CreateArgs, name: &str) -> Result<Value> {
    let mut service = service(args, name, "ClusterIP")?;
    if let Some(address) = &args.clusterip {
        service["spec"]["clusterIP"] = address.as_str().into();
    }
    // Only a headless service can do without ports.
    match args.tcp.is_empty() && args.clusterip.as_deref() != Some("None") {
        true => Err(CliError::usage("--tcp is needed")),
        false => Ok(service),
    }
}

pub(super) fn node_port(args: &CreateArgs, name: &str) -> Result<Value> {
    needed(args.tcp.first(), "--tcp")?;
    let mut service = service(args, name, "NodePort")?;
    if let Some(port) = args.node_port {
        service["spec"]["ports"][0]["nodePort"] = port.into();
    }
    Ok(service)
}

pub(super) fn load_balancer(args: &CreateArgs, name: &str) -> Result<Value> {
    needed(args.tcp.first(), "--tcp")?;
    service(args, name, "LoadBalancer")
}

pub(super) fn external_name(args: &CreateArgs, name: &str) -> Result<Value> {
    let external = needed(args.external_name.as_ref(), "--external-name")?;
    let mut service = service(args, name, "ExternalName")?;
    service["spec"]["externalName"] = external.as_str().into();
    Ok(service)
}

/// A service of the pods with the label `app=NAME`, which `create deployment NAME` gives them.
fn service(args: &CreateArgs, name: &str, kind: &str) -> Result<Value> {
    let ports: Result<Vec<Value>> = args.tcp.iter().map(|text| port(text)).collect();
    let mut spec = json!({ "type": kind });
    if kind != "ExternalName" {
        spec["selector"] = json!({ "app": name });
    }
    if !args.tcp.is_empty() {
        spec["ports"] = ports?.into();
    }
    let metadata = json!({ "labels": { "app": name } });
    Ok(document(
        "v1",
        "Service",
        json!({ "metadata": metadata, "spec": spec }),
    ))
}

/// `PORT` or `PORT:TARGET`; the target may be a name.
fn port(text: &str) -> Result<Value> {
    let (port, target) = text.split_once(':').unwrap_or((text, text));
    let number: Option<u16> = port.parse().ok().filter(|port| *port > 0);
    let Some(number) = number else {
        return Err(CliError::usage(format!(
            "--tcp: `{text}` is not like 80 or 80:8080"
        )));
    };
    let target = match target.parse::<u16>() {
        Ok(number) => number.into(),
        Err(_) => Value::from(target),
    };
    let name = text.replace(':', "-");
    Ok(json!({ "name": name, "port": number, "protocol": "TCP", "targetPort": target }))
}

pub(super) fn claim(args: &CreateArgs, _: &str) -> Result<Value> {
    let size = needed(args.size.as_ref(), "--size")?;
    let mode = args.access_mode.as_deref().unwrap_or("ReadWriteOnce");
    let spec = json!({
        "accessModes": [mode],
        "resources": { "requests": { "storage": size } },
    });
    Ok(document(
        "v1",
        "PersistentVolumeClaim",
        json!({ "spec": spec }),
    ))
}

pub(super) fn namespace(args: &CreateArgs, _: &str) -> Result<Value> {
    no_namespace(args)?;
    Ok(document("v1", "Namespace", json!({})))
}

pub(super) fn service_account(_: &CreateArgs, _: &str) -> Result<Value> {
    Ok(document("v1", "ServiceAccount", json!({})))
}

pub(super) fn priority_class(args: &CreateArgs, _: &str) -> Result<Value> {
    no_namespace(args)?;
    let mut class = json!({ "value": needed(args.value.as_ref(), "--value")? });
    if let Some(description) = &args.description {
        class["description"] = description.as_str().into();
    }
    if args.global_default {
        class["globalDefault"] = true.into();
    }
    Ok(document("scheduling.k8s.io/v1", "PriorityClass", class))
}

fn no_namespace(args: &CreateArgs) -> Result<()> {
    match args.namespace.namespace.as_str() {
        "default" => Ok(()),
        _ => Err(CliError::usage("this kind is in no namespace")),
    }
}
