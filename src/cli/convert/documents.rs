//! A project as documents: a pod for each service, or for those that share a network; Services by which they find each
//! other; claims, ConfigMaps and Secrets.

use std::cell::RefCell;

use super::container::container;
use super::deployment;
use super::health::patience;
use super::names::{self, Group, Named};
use super::order::{Waits, after};
use super::plan::Plan;
use super::project::Project;
use super::tree::{COMMENT, Commented, Entries, map, number, scalar, set, text};
use super::words::object_name;
use super::work::{Pod, Shared, Work};
use super::{File, Output, Source};
use crate::spec::value::Value;

/// The documents of a project, a file for each pod.
pub(super) fn documents(project: &Project, source: &Source<'_>, namespace: Option<&str>) -> Output {
    let shared = Shared {
        project,
        source,
        namespace,
        remarks: RefCell::default(),
        made: RefCell::default(),
        names: RefCell::default(),
    };
    let plan = Plan::of(project);
    let mut head = Vec::new();
    for what in &project.left_out {
        head.push(text(format!(
            "{}: not carried over: {what}",
            project.origin
        )));
    }
    let names = project.services.iter().map(|(name, _)| &**name);
    let heads = names.filter(|name| {
        let planned = &plan.services[name];
        planned.head == *name && planned.step_of.is_none()
    });
    let heads: Vec<&str> = heads.collect();
    let groups = heads.iter().map(|head| {
        let members = project.services.iter().map(|(member, _)| &**member);
        let members = members.filter(|member| plan.services[member].head == *head);
        Group {
            pod: plan.services[head].object.clone(),
            members: members.collect(),
        }
    });
    let groups: Vec<Group<'_>> = groups.collect();
    let names = names::all(&shared, &plan, &groups);
    let mut files: Vec<File> = Vec::new();
    for (head, group) in heads.into_iter().zip(groups) {
        let mut documents = vec![pod(&shared, &plan, head, &group.members, &names)];
        documents.extend(names::services(&shared, &names, &group.pod));
        files.push(File {
            name: group.pod,
            documents,
        });
    }
    for made in shared.made.into_inner() {
        if let Some(file) = files.iter_mut().find(|file| file.name == made.pod) {
            // Before the pod, as people write it.
            let at = file
                .documents
                .iter()
                .position(|d| d.get("kind") == Some(&text("Pod")) || d.get("spec").is_some());
            file.documents.insert(at.unwrap_or(0), made.document);
        }
    }
    let mut remarks: Vec<String> = head.iter().filter_map(Value::scalar_text).collect();
    remarks.extend(shared.remarks.into_inner());
    Output {
        head: head
            .into_iter()
            .map(|line| (COMMENT.to_owned(), line))
            .collect(),
        files,
        manifests: project.manifests.clone(),
        remarks,
    }
}

fn pod<'p>(
    shared: &Shared<'_>,
    plan: &Plan<'p>,
    name: &'p str,
    members: &[&'p str],
    names: &[Named],
) -> Value {
    let head = &plan.services[name];
    let object = &*head.object;
    let mut pod = Pod::default();
    set(&mut pod.labels, "app", text(object));
    for named in names {
        if named.pods.len() > 1 && named.pods.iter().any(|pod| pod == object) {
            set(&mut pod.labels, &names::label(&named.name), text("true"));
        }
    }
    if let Some(project) = &shared.project.name {
        let part = object_name(project);
        set(&mut pod.labels, "app.kubernetes.io/part-of", text(part));
    }
    let mut waits = Waits::default();
    let replicas = deployment::replicas(head.service);
    let steps = plan.steps(name, members);
    let sidecars = plan.sidecars(members);
    for member in &plan.in_order(members) {
        let planned = &plan.services[member];
        let service = planned.service;
        let work = Work {
            shared,
            service: member,
            pod: object,
            members,
            is_step: steps.contains(member),
        };
        // The first container of a pod with a name of its own still has its own.
        let named = match scalar(service, "x-pod-name") {
            Some(_) => object_name(member),
            None => planned.object.clone(),
        };
        let mut made = container(&work, service, &named, &mut pod);
        if *member != name {
            of_restarts(&work, service, &mut made);
        }
        let mode = scalar(service, "network_mode").filter(|mode| mode.contains(':'));
        if let (Some(mode), true) = (mode, planned.head == *member) {
            let what = format_args!(
                "network_mode: {mode}: nothing of that name is converted with it, so the pod has a network of its own"
            );
            work.lost(&mut pod.spec, what);
        }
        if *member != name {
            own_restart(service, head.service, &mut made);
            if deployment::replicas(service).is_some() {
                let what = format_args!("replicas: it is in the pod of `{name}`");
                work.lost(&mut pod.spec, what);
            }
        }
        // After the service itself, whose settings the pod has.
        let steps = plan.services.iter();
        for (step, planned) in steps.filter(|(_, of)| of.step_of == Some(*member)) {
            let work = Work {
                service: step,
                is_step: true,
                ..work
            };
            let mut init = container(&work, planned.service, &planned.object, &mut pod);
            of_restarts(&work, planned.service, &mut init);
            if let Value::Map(init) = &mut init {
                of_steps(planned.service, head.service, init);
                if *member != name {
                    let what = format_args!(
                        "its network: it is an init container of the pod of `{name}`, and has that one's"
                    );
                    work.lost(init, what);
                }
            }
            pod.inits.push(init);
            waits.add(&work, plan, members, planned.service);
        }
        if work.is_step {
            if let Value::Map(fields) = &mut made {
                fields.retain(|(key, _)| key != "restartPolicy");
                of_steps(service, head.service, fields);
            }
            pod.inits.push(made);
        } else if sidecars.contains(member) {
            let gates = members.iter().any(|other| {
                let mut on = after(plan.services[other].service).into_iter();
                on.any(|(of, condition)| of == *member && condition.kind == "service_healthy")
            });
            sidecar(&work, service, gates, &mut made);
            pod.inits.push(made);
        } else {
            pod.containers.push(made);
        }
        waits.add(&work, plan, members, service);
    }
    let work = Work {
        shared,
        service: name,
        pod: object,
        members,
        is_step: false,
    };
    limits_of_restarts(&work, head.service, &mut pod.spec);
    match replicas {
        None => restart(head.service, &mut pod),
        Some(_) => deployment::suit(&work, policy(head.service).0, &mut pod),
    }
    if let Some(all) = waits.text() {
        set(&mut pod.annotations, "coracle.dev/after", text(all));
    }
    pod.annotations.extend(waits.lost);
    assembled(shared, object, pod, replicas)
}

fn assembled(shared: &Shared<'_>, object: &str, pod: Pod, replicas: Option<u32>) -> Value {
    let metadata = shared.metadata(object);
    let mut own = vec![("labels".to_owned(), Value::Map(pod.labels))];
    if !pod.annotations.is_empty() {
        set(&mut own, "annotations", Value::Map(pod.annotations));
    }
    let mut spec = pod.spec;
    // The node's processes are shared and reaped by its own init already.
    if spec.iter().any(|(key, _)| key == "hostPID") {
        spec.retain(|(key, _)| key != "shareProcessNamespace");
    }
    if !pod.security.is_empty() {
        set(&mut spec, "securityContext", Value::Map(pod.security));
    }
    for (key, list) in [
        ("initContainers", pod.inits),
        ("containers", pod.containers),
        ("volumes", pod.volumes),
    ] {
        if !list.is_empty() {
            set(&mut spec, key, Value::List(list));
        }
    }
    if let Some(replicas) = replicas {
        return deployment::of(metadata, object, replicas, own, spec);
    }
    map([
        ("apiVersion", text("v1")),
        ("kind", text("Pod")),
        ("metadata", Value::Map([metadata, own].concat())),
        ("spec", Value::Map(spec)),
    ])
}

/// The policy of a container that is not its pod's.
fn own_restart(service: &Value, head: &Value, container: &mut Value) {
    let own = policy(service).0;
    if let Value::Map(container) = container
        && own != policy(head).0
    {
        set(container, "restartPolicy", text(own));
    }
}

/// How often a container is checked that others of its pod wait for, in seconds.
const STARTUP_PERIOD: u32 = 5;

/// Makes a container one that others of its pod start after: an init container that goes on. Those that wait until it is
/// healthy wait for its startup probe.
fn sidecar(work: &Work<'_>, service: &Value, gates: bool, container: &mut Value) {
    let Value::Map(fields) = container else {
        return;
    };
    let (policy, _) = policy(service);
    if policy != "Always" {
        let what = format_args!(
            "restart policy {policy}: others of its pod start after it, and it is restarted"
        );
        work.lost(fields, what);
    }
    set(fields, "restartPolicy", text("Always"));
    if gates && super::order::test_is_missing(service) {
        let what = super::order::counts_as_healthy(work.service);
        work.lost(fields, format_args!("{what}"));
    }
    let ready = fields.iter().find(|(key, _)| key == "readinessProbe");
    let ready = ready.map(|(_, probe)| probe.clone());
    if let Some(Value::Map(mut probe)) = ready.filter(|_| gates)
        && !fields.iter().any(|(key, _)| key == "startupProbe")
    {
        let check = service.get("healthcheck").unwrap_or(&Value::Null);
        let failures = patience(check).div_ceil(STARTUP_PERIOD).max(120);
        set(&mut probe, "periodSeconds", number(STARTUP_PERIOD));
        set(&mut probe, "failureThreshold", number(failures));
        set(fields, "startupProbe", Value::Map(probe));
        let what = format_args!(
            "healthcheck: others of its pod wait until it is healthy: if it is not after {} s, it is restarted",
            u64::from(failures) * u64::from(STARTUP_PERIOD)
        );
        work.lost(fields, what);
    }
}

/// The words for a service that is not restarted.
const ONCE: [&str; 4] = ["no", "none", "false", ""];

/// A service's restart policy, and what is written for it.
fn policy(service: &Value) -> (&'static str, Option<String>) {
    let deploy = service.get("deploy").and_then(|d| d.get("restart_policy"));
    // It takes precedence over `restart`, as in compose.
    let written = match deploy {
        Some(deploy) => Some(scalar(deploy, "condition").unwrap_or_else(|| "any".to_owned())),
        None => scalar(service, "restart"),
    };
    let word = written.as_deref().and_then(|word| word.split(':').next());
    let policy = match word {
        Some("always" | "unless-stopped" | "any" | "on-success") => "Always",
        Some("on-failure") => "OnFailure",
        _ if heals(service) => "OnFailure",
        _ => "Never",
    };
    (policy, written)
}

/// Whether podman itself restarts it when its health check fails.
fn heals(service: &Value) -> bool {
    let check = service.get("healthcheck");
    check.is_some_and(|check| scalar(check, "x-on-failure").as_deref() == Some("restart"))
}

/// Says when an init container runs again: Kubernetes asks its pod's policy.
fn of_steps(service: &Value, head: &Value, container: &mut Entries) {
    if policy(service).0 == "Never" && policy(head).0 != "Never" {
        let sentence = "an init container that fails runs again, unlike in compose";
        container.comment(sentence.to_owned());
    }
}

/// Like [`limits_of_restarts`], at a container that is not its pod's first.
fn of_restarts(work: &Work<'_>, service: &Value, container: &mut Value) {
    if let Value::Map(container) = container {
        limits_of_restarts(work, service, container);
    }
}

/// Says what of a restart policy no container of a pod has.
fn limits_of_restarts(work: &Work<'_>, service: &Value, place: &mut Entries) {
    let deploy = service.get("deploy").and_then(|d| d.get("restart_policy"));
    for key in ["delay", "max_attempts", "window"] {
        if deploy.is_some_and(|policy| policy.get(key).is_some()) {
            let what = format_args!(
                "deploy.restart_policy.{key}: retries are not limited, and wait longer each time"
            );
            work.lost(place, what);
        }
    }
    match policy(service) {
        ("OnFailure", Some(word)) if word.contains(':') => {
            work.lost(
                place,
                format_args!("restart: {word}: retries are not limited"),
            );
        }
        ("Always", Some(word)) if word == "on-success" => {
            let what = format_args!("restart: on-success: it is restarted after failures, too");
            work.lost(place, what);
        }
        ("OnFailure", Some(word)) if ONCE.contains(&&*word) => {
            let what = format_args!(
                "restart: {word}: it is restarted when its health check fails, and after other failures, too"
            );
            work.lost(place, what);
        }
        ("Never", Some(word)) if !ONCE.contains(&&*word) => {
            let what = format_args!("restart: {word}: there is no such policy; it runs once");
            work.lost(place, what);
        }
        _ => {}
    }
}

fn restart(service: &Value, pod: &mut Pod) {
    let (policy, written) = policy(service);
    if policy == "Always" {
        return;
    }
    set(&mut pod.spec, "restartPolicy", text(policy));
    if written.is_none() {
        let hint = "no `restart` is set, so it runs once after each boot; Always keeps it running";
        pod.spec.comment(hint.to_owned());
    }
}
