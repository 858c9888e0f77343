//! A project as documents: a pod for each service, or for those that share a network; Services by which they find each
//! other; claims, ConfigMaps and Secrets.

use std::cell::RefCell;

use super::container::container;
use super::deployment;
use super::health::patience;
use super::names::{self, Group, Named};
use super::order::{COUNTS_AS_HEALTHY, Waits, after, test_is_missing};
use super::plan::{Plan, Planned};
use super::project::Project;
use super::tree::{
    Commented, Entries, document, find, has, number, remove, scalar, set, set_list, set_map,
    set_text,
};
use super::words::object_name;
use super::work::{Pod, Shared, Work};
use super::{File, Output, Source};
use crate::spec::value::Value;

/// Adds the documents of a project, a file for each pod.
pub(super) fn documents(
    project: &Project,
    source: &Source<'_>,
    namespace: Option<&str>,
    whole: &mut Output,
) {
    let shared = Shared {
        project,
        source,
        namespace,
        remarks: RefCell::default(),
        made: RefCell::default(),
        names: RefCell::default(),
    };
    let plan = Plan::of(project);
    for what in &project.left_out {
        let sentence = format!("{}: not carried over: {what}", project.origin);
        whole.head.comment(sentence.clone());
        whole.remarks.push(sentence);
    }
    let names = project.services.iter().map(|(name, _)| &**name);
    let all: Vec<&Planned<'_>> = names.map(|name| plan.planned(name)).collect();
    let mut groups: Vec<Group<'_>> = Vec::new();
    for head in &all {
        if head.head == head.name && head.step_of.is_none() {
            let members = all.iter().filter(|member| member.head == head.name);
            groups.push(Group {
                head: head.name,
                pod: head.object.clone(),
                members: members.map(|member| member.name).collect(),
            });
        }
    }
    let names = names::all(&shared, &plan, &groups);
    let first = whole.files.len();
    for group in groups {
        let mut documents = vec![pod(&shared, &plan, &group, &names)];
        documents.extend(names::services(&shared, &names, &group.pod));
        whole.files.push(File {
            name: group.pod,
            documents,
        });
    }
    for made in shared.made.into_inner() {
        let mut files = whole.files[first..].iter_mut();
        if let Some(file) = files.find(|file| file.name == made.pod) {
            // Before the pod, as people write it.
            let is_pod =
                |known: &Value| scalar(known, "kind") == Some("Pod") || known.get("spec").is_some();
            let at = file.documents.iter().position(is_pod);
            file.documents.insert(at.unwrap_or(0), made.document);
        }
    }
    whole.remarks.extend(shared.remarks.into_inner());
}

fn pod<'p>(shared: &Shared<'_>, plan: &Plan<'p>, group: &Group<'p>, names: &[Named]) -> Value {
    let head = plan.planned(group.head);
    let object = &*head.object;
    let mut pod = Pod::default();
    set_text(&mut pod.labels, "app", object);
    for named in names {
        if named.pods.len() > 1 && named.pods.iter().any(|pod| pod == object) {
            set_text(&mut pod.labels, &names::label(&named.name), "true");
        }
    }
    if let Some(project) = &shared.project.name {
        let part = object_name(project);
        set_text(&mut pod.labels, "app.kubernetes.io/part-of", &part);
    }
    let mut begun = Begun {
        shared,
        plan,
        members: &group.members,
        head,
        pod,
        waits: Waits::default(),
    };
    let steps = plan.steps(group.head, &group.members);
    let sidecars = plan.sidecars(&group.members);
    for member in &plan.in_order(&group.members) {
        let place = match (steps.contains(member), sidecars.contains(member)) {
            (true, _) => Place::Step,
            (false, true) => Place::Sidecar,
            (false, false) => Place::Main,
        };
        begun.add(plan.planned(member), place);
    }
    begun.end()
}

/// What the container of a service is in its pod.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Main,
    /// An init container that goes on.
    Sidecar,
    /// An init container that runs to its end.
    Step,
}

/// A pod that services are added to.
struct Begun<'a, 'p> {
    shared: &'a Shared<'a>,
    plan: &'a Plan<'p>,
    members: &'a [&'p str],
    /// The first service of it.
    head: &'a Planned<'p>,
    pod: Pod,
    waits: Waits,
}

impl<'a> Begun<'a, '_> {
    fn work(&self, planned: &'a Planned<'_>, is_step: bool) -> Work<'a> {
        Work {
            shared: self.shared,
            service: planned.name,
            pod: &self.head.object,
            members: self.members,
            is_step,
        }
    }

    fn add(&mut self, planned: &'a Planned<'_>, place: Place) {
        let service = planned.service;
        let (head, name) = (self.head, self.head.name);
        let work = self.work(planned, place == Place::Step);
        // The first container of a pod with a name of its own still has its own.
        let named = match scalar(service, "x-pod-name") {
            Some(_) => object_name(planned.name),
            None => planned.object.clone(),
        };
        let mut made = container(&work, service, &named, &mut self.pod);
        if planned.name != name {
            limits_of_restarts(&work, service, &mut made);
        }
        let mode = scalar(service, "network_mode").filter(|mode| mode.contains(':'));
        if let (Some(mode), true) = (mode, planned.head == planned.name) {
            let what = format_args!(
                "network_mode: {mode}: nothing of that name is converted with it, so the pod has a network of its own"
            );
            work.lost(&mut self.pod.spec, what);
        }
        if planned.name != name {
            // The policy of a container that is not its pod's.
            let own = policy(service).0;
            if own != policy(head.service).0 {
                set_text(&mut made, "restartPolicy", own);
            }
            if deployment::replicas(service).is_some() {
                let what = format_args!("replicas: it is in the pod of `{name}`");
                work.lost(&mut self.pod.spec, what);
            }
        }
        // After the service itself, whose settings the pod has.
        for step in &self.plan.services {
            if step.step_of == Some(planned.name) {
                self.add_step(step, planned);
            }
        }
        match place {
            Place::Step => {
                remove(&mut made, "restartPolicy");
                of_steps(service, head.service, &mut made);
                self.pod.inits.push(Value::Map(made));
            }
            Place::Sidecar => {
                let gates = self.members.iter().any(|other| {
                    let on = after(self.plan.service(other));
                    on.iter()
                        .any(|on| on.of == planned.name && on.kind == "service_healthy")
                });
                sidecar(&work, service, gates, &mut made);
                self.pod.inits.push(Value::Map(made));
            }
            Place::Main => self.pod.containers.push(Value::Map(made)),
        }
        self.waits.add(&work, self.plan, service);
    }

    /// Adds a service that only another one waits for.
    fn add_step(&mut self, step: &'a Planned<'_>, by: &Planned<'_>) {
        let work = self.work(step, true);
        let mut init = container(&work, step.service, &step.object, &mut self.pod);
        limits_of_restarts(&work, step.service, &mut init);
        of_steps(step.service, self.head.service, &mut init);
        if by.name != self.head.name {
            let what = format_args!(
                "its network: it is an init container of the pod of `{}`, and has that one's",
                self.head.name
            );
            work.lost(&mut init, what);
        }
        self.pod.inits.push(Value::Map(init));
        self.waits.add(&work, self.plan, step.service);
    }

    /// The document.
    fn end(mut self) -> Value {
        let service = self.head.service;
        let replicas = deployment::replicas(service);
        let work = self.work(self.head, false);
        limits_of_restarts(&work, service, &mut self.pod.spec);
        match replicas {
            None => restart(service, &mut self.pod),
            Some(_) => deployment::suit(&work, policy(service).0, &mut self.pod),
        }
        if let Some(all) = self.waits.text() {
            set_text(&mut self.pod.annotations, "coracle.dev/after", &all);
        }
        self.pod.annotations.extend(self.waits.lost);
        assembled(self.shared, &self.head.object, self.pod, replicas)
    }
}

fn assembled(shared: &Shared<'_>, object: &str, pod: Pod, replicas: Option<u32>) -> Value {
    let mut metadata = shared.metadata(object);
    let mut own = Entries::new();
    set(&mut own, "labels", Value::Map(pod.labels));
    set_map(&mut own, "annotations", pod.annotations);
    let mut spec = pod.spec;
    // The node's processes are shared and reaped by its own init already.
    if has(&spec, "hostPID") {
        remove(&mut spec, "shareProcessNamespace");
    }
    set_map(&mut spec, "securityContext", pod.security);
    set_list(&mut spec, "initContainers", pod.inits);
    set_list(&mut spec, "containers", pod.containers);
    set_list(&mut spec, "volumes", pod.volumes);
    if let Some(replicas) = replicas {
        return deployment::of(metadata, object, replicas, own, spec);
    }
    metadata.extend(own);
    document("v1", "Pod", metadata, spec)
}

/// How often a container is checked that others of its pod wait for, in seconds.
const STARTUP_PERIOD: u32 = 5;

/// Makes a container one that others of its pod start after: an init container that goes on. Those that wait until it is
/// healthy wait for its startup probe.
fn sidecar(work: &Work<'_>, service: &Value, gates: bool, fields: &mut Entries) {
    let (policy, _) = policy(service);
    if policy != "Always" {
        let what = format_args!(
            "restart policy {policy}: others of its pod start after it, and it is restarted"
        );
        work.lost(fields, what);
    }
    set_text(fields, "restartPolicy", "Always");
    if gates && test_is_missing(service) {
        let what = format_args!("depends_on: {}: {COUNTS_AS_HEALTHY}", work.service);
        work.lost(fields, what);
    }
    if gates
        && let Some(Value::Map(mut probe)) = find(fields, "readinessProbe").cloned()
        && !has(fields, "startupProbe")
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
fn policy(service: &Value) -> (&'static str, Option<&str>) {
    let deploy = service.get("deploy").and_then(|d| d.get("restart_policy"));
    // It takes precedence over `restart`, as in compose.
    let written = match deploy {
        Some(deploy) => Some(scalar(deploy, "condition").unwrap_or("any")),
        None => scalar(service, "restart"),
    };
    let word = written.and_then(|word| word.split(':').next());
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
    check.is_some_and(|check| scalar(check, "x-on-failure") == Some("restart"))
}

/// Says when an init container runs again: Kubernetes asks its pod's policy.
fn of_steps(service: &Value, head: &Value, container: &mut Entries) {
    if policy(service).0 == "Never" && policy(head).0 != "Never" {
        let sentence = "an init container that fails runs again, unlike in compose";
        container.comment(sentence.to_owned());
    }
}

/// Says what of a restart policy no container of a pod has.
fn limits_of_restarts(work: &Work<'_>, service: &Value, place: &mut Entries) {
    let deploy = service.get("deploy").and_then(|d| d.get("restart_policy"));
    for key in &["delay", "max_attempts", "window"] {
        if deploy.is_some_and(|policy| policy.get(key).is_some()) {
            let what = format_args!(
                "deploy.restart_policy.{key}: retries are not limited, and wait longer each time"
            );
            work.lost(place, what);
        }
    }
    let (policy, Some(word)) = policy(service) else {
        return;
    };
    let why = match policy {
        "OnFailure" if word.contains(':') => "retries are not limited",
        "OnFailure" if ONCE.contains(&word) => {
            "it is restarted when its health check fails, and after other failures, too"
        }
        "Always" if word == "on-success" => "it is restarted after failures, too",
        "Never" if !ONCE.contains(&word) => "there is no such policy; it runs once",
        _ => return,
    };
    work.lost(place, format_args!("restart: {word}: {why}"));
}

fn restart(service: &Value, pod: &mut Pod) {
    let (policy, written) = policy(service);
    if policy == "Always" {
        return;
    }
    set_text(&mut pod.spec, "restartPolicy", policy);
    if written.is_none() {
        let hint = "no `restart` is set, so it runs once after each boot; Always keeps it running";
        pod.spec.comment(hint.to_owned());
    }
}
