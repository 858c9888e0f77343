//! Pods, and documents that stand for pods.

use serde_json::{Value, json};

use super::super::args::CreateArgs;
use super::super::client::Client;
use super::super::error::{CliError, Result};
use super::super::target::{owner, workload_path};
use super::{document, needed, pair};
use crate::spec::WorkloadKind;

pub(super) fn pod(args: &CreateArgs, name: &str) -> Result<Value> {
    let mut spec = pod_spec(args)?;
    if let Some(policy) = &args.restart {
        spec["restartPolicy"] = policy.as_str().into();
    }
    let metadata = json!({ "labels": { "app": name } });
    Ok(document(
        "v1",
        "Pod",
        json!({ "metadata": metadata, "spec": spec }),
    ))
}

pub(super) fn deployment(args: &CreateArgs, name: &str) -> Result<Value> {
    set("Deployment", args, name, args.replicas.or(Some(1)))
}

pub(super) fn stateful_set(args: &CreateArgs, name: &str) -> Result<Value> {
    let mut set = set("StatefulSet", args, name, args.replicas.or(Some(1)))?;
    set["spec"]["serviceName"] = name.into();
    Ok(set)
}

pub(super) fn daemon_set(args: &CreateArgs, name: &str) -> Result<Value> {
    set("DaemonSet", args, name, None)
}

pub(super) fn job(args: &CreateArgs, _: &str) -> Result<Value> {
    let spec = job_spec(args, "Never")?;
    Ok(document("batch/v1", "Job", json!({ "spec": spec })))
}

pub(super) fn cron_job(args: &CreateArgs, _: &str) -> Result<Value> {
    let schedule = needed(args.schedule.as_ref(), "--schedule")?;
    let spec = json!({
        "schedule": schedule,
        "jobTemplate": { "spec": job_spec(args, "OnFailure")? },
    });
    Ok(document("batch/v1", "CronJob", json!({ "spec": spec })))
}

/// A Job as a CronJob makes it at its times.
pub(super) fn job_from(client: &Client, args: &CreateArgs, from: &str) -> Result<Value> {
    let Some((kind @ WorkloadKind::CronJob, name)) = owner(from) else {
        let error = CliError::usage(format!("--from: `{from}` is no CronJob"));
        return Err(error.hint("write it as `cronjob/NAME`"));
    };
    let cron = client.get(&workload_path(kind, &args.namespace.namespace, name))?;
    let template = &cron["spec"]["jobTemplate"];
    // As kubectl marks it.
    let mut metadata = json!({ "annotations": { "cronjob.kubernetes.io/instantiate": "manual" } });
    for field in ["labels", "annotations"] {
        for (key, value) in template["metadata"][field]
            .as_object()
            .into_iter()
            .flatten()
        {
            metadata[field][key] = value.clone();
        }
    }
    let rest = json!({ "metadata": metadata, "spec": template["spec"] });
    Ok(document("batch/v1", "Job", rest))
}

fn job_spec(args: &CreateArgs, policy: &str) -> Result<Value> {
    let mut spec = pod_spec(args)?;
    spec["restartPolicy"] = args.restart.as_deref().unwrap_or(policy).into();
    Ok(json!({ "template": { "spec": spec } }))
}

/// A document with a template and a selector.
fn set(kind: &str, args: &CreateArgs, name: &str, replicas: Option<u32>) -> Result<Value> {
    let mut labels = json!({ "app": name });
    let mut spec = json!({
        "selector": { "matchLabels": labels.clone() },
        "template": { "spec": pod_spec(args)? },
    });
    for label in &args.labels {
        let (key, value) = pair(label, "--labels")?;
        labels[key] = value.into();
    }
    spec["template"]["metadata"] = json!({ "labels": labels });
    if let Some(replicas) = replicas {
        spec["replicas"] = replicas.into();
    }
    let metadata = json!({ "labels": { "app": name } });
    let rest = json!({ "metadata": metadata, "spec": spec });
    Ok(document("apps/v1", kind, rest))
}

fn pod_spec(args: &CreateArgs) -> Result<Value> {
    if args.image.is_empty() {
        return Err(CliError::usage("--image is needed"));
    }
    if args.image.len() > 1 && !args.command.is_empty() {
        return Err(CliError::usage("a command goes with one --image only"));
    }
    let mut env = Vec::new();
    for variable in &args.env {
        let (name, value) = pair(variable, "--env")?;
        env.push(json!({ "name": name, "value": value }));
    }
    let containers = args.image.iter().map(|image| {
        let mut container = json!({ "name": container_name(image), "image": image });
        if !args.command.is_empty() {
            container["command"] = json!(args.command);
        }
        if let Some(port) = args.port {
            container["ports"] = json!([{ "containerPort": port }]);
        }
        if !env.is_empty() {
            container["env"] = json!(env);
        }
        container
    });
    Ok(json!({ "containers": containers.collect::<Value>() }))
}

/// A container's name: the last part of its image's, as kubectl names it.
fn container_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    let bare = last.split(['@', ':']).next().unwrap_or(last);
    let letters = bare.chars().map(|c| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    });
    let name: String = letters.take(63).collect();
    match name.trim_matches('-') {
        "" => "main".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::container_name;

    #[test]
    fn a_container_is_named_like_its_image() {
        for (image, name) in [
            ("nginx", "nginx"),
            ("docker.io/library/nginx:1.27", "nginx"),
            ("r.lan:5000/shop/My_App@sha256:ab", "my-app"),
            ("_:x", "main"),
        ] {
            assert_eq!(container_name(image), name, "{image}");
        }
    }
}
