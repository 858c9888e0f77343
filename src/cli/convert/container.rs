//! A service as a container, and what it asks of its pod.

use super::command_line::split;
use super::env::environment;
use super::health::probes;
use super::mounts::mounts;
use super::network::network;
use super::ports::ports;
use super::project::project_name;
use super::resources::resources;
use super::shape;
use super::sysctls::sysctls;
use super::tree::{
    Entries, entries, find, find_mut, is_on, items, map, map_of_texts, number, on, pairs, scalar,
    scalars, set, set_list, set_map, set_on, set_text, text, texts, word,
};
use super::words::{literal, object_name, seconds};
use super::work::{Pod, Work};
use crate::spec::value::Value;
use crate::spec::{ImageName, StopSignalName};

/// Keys that are carried over here or elsewhere, or that mean nothing to a pod.
const KNOWN: &str = " annotations attach build cap_add cap_drop command configs container_name cpu_count cpu_period \
    cpu_quota cpus depends_on deploy develop devices dns dns_opt dns_search domainname entrypoint env_file environment \
    expose extends extra_hosts group_add healthcheck hostname image init ipc labels links mem_limit mem_reservation \
    network_mode networks pid ports privileged profiles pull_policy read_only restart secrets security_opt shm_size \
    stdin_open stop_grace_period stop_signal sysctls tmpfs tty user volumes working_dir post_start pre_stop scale ";

/// Keys that are not carried over, and why or what to do instead.
const INSTEAD: &[(&str, &str)] = &[
    (
        "ulimits",
        "containers have the limits of the agent's service",
    ),
    (
        "pids_limit",
        "the setting `podPidsLimit` holds for all pods",
    ),
    (
        "logging",
        "the settings `containerLogMaxSize` and `containerLogMaxFiles` hold for all pods",
    ),
    ("gpus", "name the device by CDI (coracle help devices)"),
    (
        "platform",
        "a pod has images for its machine's architecture",
    ),
    (
        "userns_mode",
        "`hostUsers: false` gives a pod users of its own (coracle help security)",
    ),
    ("volumes_from", "name the volumes here, too"),
    ("runtime", "there is only one runtime"),
    ("mac_address", "pods have addresses of their own"),
    (
        "external_links",
        "pods find each other by the names of Services",
    ),
    ("use_api_socket", "there is no Docker to talk to"),
];

/// The container of a service.
pub(super) fn container(work: &Work<'_>, service: &Value, name: &str, pod: &mut Pod) -> Entries {
    let mut all = Entries::new();
    set_text(&mut all, "name", name);
    image(work, service, &mut all);
    program(work, service, &mut all);
    environment(work, service, &mut all);
    let unpublished = match scalar(service, "network_mode") {
        Some("host") => Some("the pod has the node's network"),
        Some(mode) if mode.contains(':') => {
            Some("the first container of the pod publishes its ports")
        }
        _ => None,
    };
    set_list(&mut all, "ports", ports(work, service, unpublished));
    resources(work, service, &mut all);
    set_list(&mut all, "volumeMounts", mounts(work, service, pod));
    match work.is_step {
        true => not_of_steps(work, service, &mut all),
        false => {
            probes(work, service, &mut all);
            lifecycle(work, service, pod, &mut all);
        }
    }
    security(work, service, pod, &mut all);
    for (key, field) in &[("tty", "tty"), ("stdin_open", "stdin")] {
        if is_on(service, key) {
            set_on(&mut all, field);
        }
    }
    for (key, value) in entries(Some(service)) {
        // Pods have the node's users unless they ask for others.
        let holds = key == "userns_mode" && word(value) == Some("host");
        if holds || key.starts_with("x-") || KNOWN.contains(&format!(" {key} ")) {
            continue;
        }
        let why = INSTEAD.iter().find(|(known, _)| known == key);
        let why = why.map(|(_, why)| format!(": {why}")).unwrap_or_default();
        work.lost(&mut all, format_args!("{key}{why}"));
    }
    for what in shape::unknown(service) {
        work.lost(&mut all, format_args!("{what}"));
    }
    devices(work, service, name, pod, &mut all);
    network(work, service, pod);
    labels(work, service, pod);
    all
}

fn image(work: &Work<'_>, service: &Value, all: &mut Entries) {
    let given = scalar(service, "image").filter(|image| !image.is_empty());
    if service.get("build").is_some() {
        let what = format_args!(
            "build: images are not built here; build it, then `docker save IMAGE | coracle image import -`"
        );
        work.lost(all, what);
    }
    let image = given.map_or_else(|| built(work), str::to_owned);
    let last = image.rsplit('/').next().unwrap_or_default();
    let moves = !last.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    set(all, "image", text(image));
    let policy = match scalar(service, "pull_policy") {
        Some("always") => Some("Always"),
        Some("never") => Some("Never"),
        Some("missing" | "if_not_present" | "build") | None => moves.then_some("IfNotPresent"),
        Some(other) => {
            work.lost(all, format_args!("pull_policy: {other}"));
            None
        }
    };
    if let Some(policy) = policy {
        set_text(all, "imagePullPolicy", policy);
    }
}

/// The name that compose gives an image that it builds.
fn built(work: &Work<'_>) -> String {
    let project = work.shared.project.name.as_deref();
    let project = project.unwrap_or_else(|| work.shared.source.folder_name());
    let name = format!("{}-{}", project_name(project), work.service.to_lowercase());
    match ImageName::parse(&name) {
        Ok(_) => name,
        // Nothing of it can be an image's name.
        Err(_) => format!("{}-{}", object_name(project), object_name(work.service)),
    }
}

/// The words of a list, or of a string as compose splits it. Those that it cannot split were refused before.
fn words(work: &Work<'_>, key: &str, value: &Value, all: &mut Entries) -> Vec<String> {
    let Value::String(line) = value else {
        return scalars(Some(value))
            .into_iter()
            .map(str::to_owned)
            .collect();
    };
    let split = split(line).unwrap_or_default();
    if let Some(rest) = split.left_out {
        let what = format_args!(
            "{key}: `{rest}`: compose ends the command before it; only a shell (sh -c '…') takes it"
        );
        work.lost(all, what);
    }
    split.words
}

/// Command and arguments.
fn program(work: &Work<'_>, service: &Value, all: &mut Entries) {
    let mut words = |key: &str| match service.get(key) {
        None | Some(Value::Null) => None,
        Some(value) => Some(words(work, key, value, all)),
    };
    let (entrypoint, command) = (words("entrypoint"), words("command"));
    let literally = |words: Vec<String>| texts(words.iter().map(|word| literal(word)).collect());
    let (command, args) = match (entrypoint, command) {
        // An empty entrypoint makes the command the program; docker takes one empty word for it, too.
        (Some(none), command) if none.iter().all(String::is_empty) => {
            if command.as_ref().is_none_or(Vec::is_empty) {
                let what = format_args!(
                    "entrypoint: it is empty, but the image's own runs here: write the image's command as `command`"
                );
                work.lost(all, what);
            }
            (command, None)
        }
        (entrypoint, command) => (entrypoint, command),
    };
    for (field, words) in [("command", command), ("args", args)] {
        if let Some(words) = words.filter(|words| !words.is_empty()) {
            set(all, field, literally(words));
        }
    }
    if let Some(directory) = scalar(service, "working_dir") {
        set_text(all, "workingDir", directory);
    }
}

/// An init container runs to its end: it has no probes and no hooks.
fn not_of_steps(work: &Work<'_>, service: &Value, all: &mut Entries) {
    const KEYS: &[&str] = &[
        "healthcheck",
        "post_start",
        "pre_stop",
        "stop_grace_period",
        "stop_signal",
    ];
    for key in KEYS {
        if service.get(key).is_some() {
            let what = format_args!("{key}: it is an init container, which runs to its end");
            work.lost(all, what);
        }
    }
}

fn lifecycle(work: &Work<'_>, service: &Value, pod: &mut Pod, all: &mut Entries) {
    let mut hooks = Entries::new();
    for (key, field) in &[("post_start", "postStart"), ("pre_stop", "preStop")] {
        let given = items(service.get(key));
        if let Some(hook) = given.first() {
            let command = hook.get("command").unwrap_or(&Value::Null);
            let command = words(work, key, command, all);
            let exec = map([("exec", map([("command", texts(command))]))]);
            set(&mut hooks, field, exec);
            let others = entries(Some(hook)).iter().map(|(name, _)| name);
            for name in others.filter(|name| *name != "command") {
                let what = format_args!("{key}.{name}: it runs as the container does");
                work.lost(all, what);
            }
        }
        if given.len() > 1 {
            work.lost(all, format_args!("{key}: only one program can be run"));
        }
    }
    if let Some(signal) = scalar(service, "stop_signal") {
        let signal = signal.to_uppercase();
        let signal = match signal.strip_prefix("SIG") {
            Some(_) => signal,
            None => format!("SIG{signal}"),
        };
        if StopSignalName::parse(&signal).is_some() {
            set_text(&mut hooks, "stopSignal", &signal);
            pod.share(work, "os", map_of_texts(&[("name", "linux")]));
        } else {
            work.lost(all, format_args!("stop_signal: {signal}"));
        }
    }
    set_map(all, "lifecycle", hooks);
    let grace = scalar(service, "stop_grace_period");
    let Some(grace) = grace else { return };
    match seconds(grace) {
        Some(seconds) => {
            pod.share(work, "terminationGracePeriodSeconds", number(seconds));
        }
        None => work.lost(all, format_args!("stop_grace_period: {grace}")),
    }
}

/// The capabilities that a service names there, without `CAP_`.
pub(super) fn capabilities(service: &Value, key: &str) -> Vec<String> {
    let names = scalars(service.get(key)).into_iter().map(|name| {
        let name = name.to_uppercase();
        name.strip_prefix("CAP_").unwrap_or(&name).to_owned()
    });
    names.collect()
}

/// Whether a service names one of these capabilities there.
pub(super) fn has_capability(service: &Value, key: &str, names: &[&str]) -> bool {
    let mut all = capabilities(service, key).into_iter();
    all.any(|name| names.contains(&&*name))
}

fn security(work: &Work<'_>, service: &Value, pod: &mut Pod, all: &mut Entries) {
    let mut context = Entries::new();
    let privileged = is_on(service, "privileged");
    if privileged {
        set_on(&mut context, "privileged");
    }
    let user = scalar(service, "user").unwrap_or_default();
    let (user, group) = user.split_once(':').unwrap_or((user, ""));
    for (field, id) in [("runAsUser", user), ("runAsGroup", group)] {
        // Of all names, this one has the same number everywhere.
        let id = if id == "root" { "0" } else { id };
        match id.parse::<i32>() {
            Ok(id) => set(&mut context, field, number(id)),
            Err(_) if id.is_empty() => {}
            Err(_) => {
                let what = format_args!("user: `{id}` is a name; set `{field}` to its number");
                work.lost(&mut context, what);
            }
        }
    }
    if is_on(service, "read_only") {
        set_on(&mut context, "readOnlyRootFilesystem");
    }
    let mut both = Entries::new();
    for (key, field) in &[("cap_add", "add"), ("cap_drop", "drop")] {
        let names = capabilities(service, key).into_iter().map(Value::String);
        set_list(&mut both, field, names.collect());
    }
    let keeps = privileged || has_capability(service, "cap_add", &["SYS_ADMIN"]);
    set_map(&mut context, "capabilities", both);
    for option in scalars(service.get("security_opt")) {
        match &*option.replace('=', ":") {
            "no-new-privileges" | "no-new-privileges:true" if !keeps => {
                set(&mut context, "allowPrivilegeEscalation", Value::Bool(false));
            }
            "seccomp:unconfined" => set(&mut context, "seccompProfile", unconfined()),
            "apparmor:unconfined" => set(&mut context, "appArmorProfile", unconfined()),
            // There are no SELinux labels.
            "label:disable" | "no-new-privileges:false" => {}
            _ => work.lost(&mut context, format_args!("security_opt: {option}")),
        }
    }
    set_map(all, "securityContext", context);
    of_pod(work, service, pod);
}

/// A profile that confines nothing.
pub(super) fn unconfined() -> Value {
    map_of_texts(&[("type", "Unconfined")])
}

/// What is a matter of the whole pod.
fn of_pod(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    let mut groups = Vec::new();
    for group in scalars(service.get("group_add")) {
        match group.parse::<i32>() {
            Ok(id) => groups.push(number(id)),
            Err(_) => {
                let what = format_args!(
                    "group_add: `{group}` is a name; add its number to `supplementalGroups`"
                );
                work.lost(&mut pod.security, what);
            }
        }
    }
    if !groups.is_empty() && work.is_step {
        let what = format_args!("group_add: the pod is that of the service that waits for it");
        work.lost(&mut pod.security, what);
    } else if !groups.is_empty() {
        match find_mut(&mut pod.security, "supplementalGroups") {
            Some(Value::List(all)) => {
                for group in groups {
                    if !all.contains(&group) {
                        all.push(group);
                    }
                }
            }
            _ => set(&mut pod.security, "supplementalGroups", Value::List(groups)),
        }
    }
    sysctls(work, service, pod);
    // The pod's pause process is its init then, and reaps what is left over.
    if is_on(service, "init") {
        pod.share(work, "shareProcessNamespace", on());
    }
    let is_member = |mode: &str| {
        let of = mode.strip_prefix("service:");
        of.is_some_and(|of| work.members.contains(&of))
    };
    for &(key, field) in &[("pid", "hostPID"), ("ipc", "hostIPC")] {
        match scalar(service, key) {
            None | Some("" | "private") => {}
            Some("host") => pod.share(work, field, on()),
            Some(other) if key == "pid" && is_member(other) => {
                pod.share(work, "shareProcessNamespace", on());
            }
            Some(other) if key == "ipc" && is_member(other) => {}
            Some("shareable") => {}
            Some(other) => {
                let what = format_args!(
                    "{key}: {other}: containers of one pod share it, and `network_mode: {other}` puts them into one"
                );
                work.lost(&mut pod.spec, what);
            }
        }
    }
}

/// The annotation that asks for devices. Docker takes a directory for all devices in it.
fn devices(work: &Work<'_>, service: &Value, name: &str, pod: &mut Pod, all: &mut Entries) {
    const FOLDERS: [(&str, &str); 8] = [
        ("/dev/snd", "/dev/snd/*:/dev/snd/"),
        ("/dev/dri", "/dev/dri/*:/dev/dri/"),
        ("/dev/input", "/dev/input/event*:/dev/input/"),
        ("/dev/bus/usb", "/dev/bus/usb/*/*:/dev/bus/usb/"),
        ("/dev/dvb", "/dev/dvb/*/*:/dev/dvb/"),
        ("/dev/dma_heap", "/dev/dma_heap/*:/dev/dma_heap/"),
        ("/dev/infiniband", "/dev/infiniband/*:/dev/infiniband/"),
        ("/dev/net", "/dev/net/*:/dev/net/"),
    ];
    let mut wanted = Vec::new();
    for item in items(service.get("devices")) {
        let part = |key: &str| scalar(item, key).unwrap_or_default();
        let written = match word(item) {
            Some(short) => short.to_owned(),
            None => [part("source"), part("target"), part("permissions")].join(":"),
        };
        let bare = written.trim_end_matches(':').replace("::", ":");
        let place = bare.split(':').next().unwrap_or_default();
        let source = place.trim_end_matches('/');
        let folder = FOLDERS.iter().find(|(folder, _)| *folder == source);
        match folder {
            Some((_, entry)) => wanted.push((*entry).to_owned()),
            None if place.ends_with('/') && source.starts_with("/dev/") => {
                wanted.push(format!("{source}/*:{source}/"));
            }
            None if source.starts_with("/dev/") && !bare.contains([',', '\n', '*', '?', '[']) => {
                wanted.push(bare);
            }
            None if source.contains('=') => wanted.push(source.to_owned()),
            None => work.lost(all, format_args!("devices: {bare}")),
        }
    }
    if !wanted.is_empty() {
        let key = format!("devices.coracle.dev/{name}");
        set_text(&mut pod.annotations, &key, &wanted.join(", "));
    }
}

/// Labels and annotations: labels of compose may hold any text, as annotations of Kubernetes may.
fn labels(work: &Work<'_>, service: &Value, pod: &mut Pod) {
    if work.is_step {
        for list in &["labels", "annotations"] {
            if service.get(list).is_some() {
                let what = format_args!("{list}: the pod is that of the service that waits for it");
                work.lost(&mut pod.annotations, what);
            }
        }
        return;
    }
    let part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut traefik = false;
    for list in &["labels", "annotations"] {
        for (key, value) in pairs(service.get(list)) {
            let (prefix, name) = key.split_once('/').unwrap_or(("", key));
            let edge = |c: char| c.is_ascii_alphanumeric();
            let valid = name.len() <= 63
                && name.chars().all(part)
                && name.starts_with(edge)
                && name.ends_with(edge);
            let prefix_valid = prefix
                .chars()
                .all(|c| part(c) && !c.is_ascii_uppercase() && c != '_');
            traefik |= key.starts_with("traefik.");
            if valid && prefix_valid && !key.starts_with("coracle.dev/") && prefix.len() < 200 {
                let value = text(value.unwrap_or_default());
                match find(&pod.annotations, key) {
                    Some(other) if *other != value => {
                        let what = format_args!("label {key}: another container of the pod has it");
                        work.lost(&mut pod.annotations, what);
                    }
                    Some(_) => {}
                    None => set(&mut pod.annotations, key, value),
                }
            } else {
                work.lost(&mut pod.annotations, format_args!("label {key}"));
            }
        }
    }
    if traefik {
        let what =
            format_args!("labels: traefik asks Docker for them; give it a file with its routes");
        work.lost(&mut pod.annotations, what);
    }
}
