//! Quadlet units as a project: `.container` and `.pod`, and the `.volume`, `.network`, `.image` and `.kube` beside them.

use super::Source;
use super::health;
use super::project::Project;
use super::run_line::{alias, mount, options, push, raw_file, secret};
use super::tree::{Entries, set, text, texts};
use super::unit::{Unit, adds_to, folders, is_true, unquoted};
use super::unit_order::depend;
use super::words::split_unit;
use crate::spec::value::Value;
use crate::types::InOrder;

/// Adds the files of the folders beside a unit, in the order of their names.
fn drop_ins(unit: &mut Unit, files: &[(String, String)]) -> Result<(), String> {
    let mut found: Vec<(&str, &str, &str)> = Vec::new();
    for folder in folders(&unit.name, &unit.kind) {
        let of = |file: &str| adds_to(file).map(without_at).as_ref() == Some(&folder);
        for (file, content) in files.iter().filter(|(file, _)| of(file)) {
            let name = file.rsplit('/').next().unwrap_or_default();
            if !found.iter().any(|(known, ..)| *known == name) {
                found.push((name, file, content));
            }
        }
    }
    found.order();
    let mut found = found.into_iter();
    found.try_for_each(|(_, file, content)| unit.add(file, content))
}

/// The name of a unit's folder as if it were no template.
fn without_at(folder: &str) -> String {
    folder.replace("@.", ".")
}

/// The project of these units, each with its file's name. Returns the files that they name.
pub(super) fn load(
    files: &[(String, String)],
    source: &Source<'_>,
    project: &mut Project,
) -> Result<Vec<String>, String> {
    let mut units = Vec::new();
    for (file, content) in files.iter().filter(|(file, _)| adds_to(file).is_none()) {
        let mut unit = Unit::read(file, content)?;
        let (folder, _) = file.rsplit_once('/').unwrap_or_default();
        if folder.starts_with('/') && folder != source.folder {
            unit.rebase(folder);
        }
        units.push(unit);
    }
    for unit in &mut units {
        drop_ins(unit, files)?;
    }
    for (file, _) in files {
        let Some(adds_to) = adds_to(file) else {
            continue;
        };
        let of = |unit: &Unit| folders(&unit.name, &unit.kind).contains(&without_at(adds_to));
        if !units.iter().any(of) {
            return Err(format!("`{file}` adds to `{adds_to}`: give that, too"));
        }
    }
    let units = units;
    for unit in &units {
        for specifier in &unit.unknown {
            let what = format!(
                "{}.{}: {specifier}: it stays as it is written",
                unit.name, unit.kind
            );
            project.left_out.push(what);
        }
        for what in &unit.of_user {
            let what = format!("{}.{}: {what}", unit.name, unit.kind);
            project.left_out.push(what);
        }
        absent(unit, &units, project);
    }
    for unit in units.iter().filter(|unit| unit.kind == "kube") {
        for key in ["Yaml", "ConfigMap"] {
            for path in unit.values("Kube", key) {
                project
                    .manifests
                    .push((unit.name.clone(), source.text(path)?));
            }
        }
        lost(unit, "Kube", &["Yaml", "ConfigMap"], project);
    }
    for unit in units.iter().filter(|unit| unit.kind == "volume") {
        volume(unit, project);
    }
    for unit in units.iter().filter(|unit| unit.kind == "network") {
        if unit.last("Network", "Internal").is_some_and(is_true) {
            let what = format!(
                "network {}: every pod reaches every pod, and the world",
                unit.name
            );
            project.left_out.push(what);
        }
        lost(
            unit,
            "Network",
            &["Internal", "NetworkName", "Label", "Driver"],
            project,
        );
        if let Some(driver) = unit.last("Network", "Driver").filter(|d| *d != "bridge") {
            let what = format!(
                "network {}: the driver {driver}: pods have addresses of the node's bridge",
                unit.name
            );
            project.left_out.push(what);
        }
    }
    for unit in &units {
        around(unit, project);
        if unit.kind == "image" {
            lost(unit, "Image", &["Image", "ImageTag"], project);
        }
    }
    let mut heads: Vec<(&str, String)> = Vec::new();
    for unit in units.iter().filter(|unit| unit.kind == "container") {
        let mut service = container(unit, &units)?;
        if let Some(pod) = unit.last("Container", "Pod") {
            let pod = pod.strip_suffix(".pod").unwrap_or(pod);
            if !units.iter().any(|u| u.kind == "pod" && u.name == pod) {
                let what = format!(
                    "{}.container: Pod={pod}.pod: give that unit, too",
                    unit.name
                );
                project.left_out.push(what);
            }
            match heads.iter().find(|(of, _)| *of == pod) {
                Some((_, head)) => {
                    let mode = format!("service:{head}");
                    set(&mut service, "network_mode", text(mode));
                    // All containers of a pod have its mounts.
                    let unit = units.iter().find(|u| u.kind == "pod" && u.name == pod);
                    for (_, key, value) in unit.iter().flat_map(|unit| &unit.keys) {
                        if matches!(&**key, "Volume" | "ShmSize") {
                            same(key, value, &mut service)?;
                        }
                    }
                }
                None => {
                    heads.push((pod, unit.name.clone()));
                    if let Some(unit) = units.iter().find(|u| u.kind == "pod" && u.name == pod) {
                        of_pod(unit, &mut service, project)?;
                    }
                }
            }
        }
        project.add(unit.name.clone(), Value::Map(service))?;
    }
    let start = ["container", "pod", "kube"];
    for unit in units.iter().filter(|unit| start.contains(&&*unit.kind)) {
        depend(unit, &units, &heads, project);
    }
    let used = units.iter().flat_map(|unit| {
        let files = unit
            .keys
            .iter()
            .filter(|(_, key, _)| FILES.contains(&&**key));
        files.flat_map(|(_, _, value)| split_unit(value))
    });
    let used = used.map(|path| source.absolute(path.trim_start_matches('-')));
    Ok(used.collect())
}

/// Keys whose values are files that are read.
const FILES: [&str; 3] = ["ConfigMap", "EnvironmentFile", "Yaml"];

/// Says which units one names that were not given. An image is refused without its unit, and a pod has its own remark.
fn absent(unit: &Unit, units: &[Unit], project: &mut Project) {
    for name in unit.names() {
        let is_it = |unit: &Unit| name == format!("{}.{}", unit.name, unit.kind);
        let has_own = name.ends_with(".pod") || name.ends_with(".image");
        if !has_own && !units.iter().any(is_it) {
            let what = format!("{}.{}: {name}: give that unit, too", unit.name, unit.kind);
            project.left_out.push(what);
        }
    }
}

fn lost(unit: &Unit, section: &str, known: &[&str], project: &mut Project) {
    for (of, key, _) in &unit.keys {
        if of == section && !known.contains(&&**key) {
            let what = format!("{}.{}: {key}", unit.name, unit.kind);
            project.left_out.push(what);
        }
    }
}

/// The sections for systemd. The keys of a container's `[Service]` are named at the container.
fn around(unit: &Unit, project: &mut Project) {
    const KNOWN: [&str; 8] = [
        "After",
        "BindsTo",
        "DefaultDependencies",
        "Description",
        "Documentation",
        "Requires",
        "SourcePath",
        "Wants",
    ];
    lost(unit, "Unit", &KNOWN, project);
    if unit.kind != "container" {
        // Only containers have these of their own.
        let carried = ["Restart", "TimeoutSec", "TimeoutStopSec"];
        let known = SERVICE.into_iter().filter(|key| !carried.contains(key));
        lost(unit, "Service", &known.collect::<Vec<_>>(), project);
    }
}

/// Keys of a service that are carried over, or about the service and not about what it runs.
const SERVICE: [&str; 10] = [
    "Delegate",
    "KillMode",
    "NotifyAccess",
    "RemainAfterExit",
    "Restart",
    "SyslogIdentifier",
    "TimeoutSec",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "Type",
];

fn volume(unit: &Unit, project: &mut Project) {
    const KNOWN: [&str; 6] = ["Copy", "Device", "Label", "Options", "Type", "VolumeName"];
    lost(unit, "Volume", &KNOWN, project);
    let mut options = Entries::new();
    for (key, option) in [("Device", "device"), ("Type", "type"), ("Options", "o")] {
        if let Some(value) = unit.last("Volume", key) {
            set(&mut options, option, text(value));
        }
    }
    let mut volume = Entries::new();
    if let Some(name) = unit.last("Volume", "VolumeName") {
        set(&mut volume, "name", text(name));
    }
    if !options.is_empty() {
        set(&mut volume, "driver_opts", Value::Map(options));
    }
    project
        .volumes
        .push((unit.name.clone(), Value::Map(volume)));
}

/// Keys of a container or pod and the keys of compose that take the same text; lists are marked with `*`.
const SAME: &[(&str, &str)] = &[
    ("AddCapability", "*cap_add"),
    ("AddDevice", "*devices"),
    ("AddHost", "*extra_hosts"),
    ("ContainerName", "container_name"),
    ("DNS", "*dns"),
    ("DNSOption", "*dns_opt"),
    ("DNSSearch", "*dns_search"),
    ("DropCapability", "*cap_drop"),
    ("ExposeHostPort", "*expose"),
    ("GroupAdd", "*group_add"),
    ("HostName", "hostname"),
    ("LogDriver", "logging"),
    ("LogOpt", "logging"),
    ("Memory", "mem_limit"),
    ("PidsLimit", "pids_limit"),
    ("PublishPort", "*ports"),
    ("Pull", "pull_policy"),
    ("ReadOnly", "read_only"),
    ("RunInit", "init"),
    ("ShmSize", "shm_size"),
    ("StopSignal", "stop_signal"),
    ("StopTimeout", "stop_grace_period"),
    ("Tmpfs", "*tmpfs"),
    ("Ulimit", "*ulimits"),
    ("UserNS", "userns_mode"),
    ("WorkingDir", "working_dir"),
];

/// Keys of several words, each of which is an item.
const WORDS: &[(&str, &str)] = &[
    ("Annotation", "annotations"),
    ("Environment", "environment"),
    ("Label", "labels"),
    ("Sysctl", "sysctls"),
];

const HEALTH: &[(&str, &str)] = &[
    ("HealthCmd", "test"),
    ("HealthInterval", "interval"),
    ("HealthOnFailure", "x-on-failure"),
    ("HealthRetries", "retries"),
    ("HealthStartPeriod", "start_period"),
    ("HealthTimeout", "timeout"),
];

/// Takes over a key that pods and containers have in common. Returns whether it is one.
fn same(key: &str, value: &str, service: &mut Entries) -> Result<bool, String> {
    if let Some((_, of)) = SAME.iter().find(|(name, _)| *name == key) {
        match of.strip_prefix('*') {
            Some("cap_add" | "cap_drop") => {
                let words = value.split_whitespace();
                words.for_each(|word| push(service, &of[1..], text(word)));
            }
            // It starts without the device, too.
            Some("devices") => match value.strip_prefix('-') {
                Some(device) => push(service, "devices", text(format!("{device}:optional"))),
                None => push(service, "devices", text(value)),
            },
            Some(list) => push(service, list, text(value)),
            None => set(service, of, text(unquoted(value))),
        }
        return Ok(true);
    }
    if let Some((_, list)) = WORDS.iter().find(|(name, _)| *name == key) {
        for word in split_unit(value) {
            push(service, list, text(word));
        }
        return Ok(true);
    }
    match key {
        "Volume" => {
            let (name, rest) = value.split_once(':').unwrap_or((value, ""));
            let name = name.strip_suffix(".volume").unwrap_or(name);
            let written = if rest.is_empty() {
                name.to_owned()
            } else {
                format!("{name}:{rest}")
            };
            push(service, "volumes", text(written));
        }
        "NetworkAlias" => alias(value, service),
        "Network" => {
            let (name, asked) = value.split_once(':').unwrap_or((value, ""));
            if let Some(other) = name.strip_suffix(".container") {
                set(service, "network_mode", text(format!("service:{other}")));
            } else {
                let name = name.strip_suffix(".network").unwrap_or(name);
                let end = if asked.is_empty() { "" } else { ":" };
                let word = format!("--network={name}{end}{asked}");
                options(&[word], service)?;
            }
        }
        "PodmanArgs" | "GlobalArgs" => {
            options(&split_unit(value), service)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn container(unit: &Unit, units: &[Unit]) -> Result<Entries, String> {
    let mut service = Entries::new();
    let mut check = Entries::new();
    let of = |why: String| format!("{}.container: {why}", unit.name);
    let user = unit.last("Container", "User");
    for (_, key, value) in unit
        .keys
        .iter()
        .filter(|(section, _, _)| section == "Container")
    {
        if same(key, value, &mut service).map_err(of)? {
            continue;
        }
        if let Some((_, field)) = HEALTH.iter().find(|(name, _)| name == key) {
            let value = unquoted(value);
            let value = match *field {
                "test" => health::test(value),
                _ => text(value),
            };
            set(&mut check, field, value);
            continue;
        }
        match &**key {
            "Image" => image(unquoted(value), units, &mut service).map_err(of)?,
            "EnvironmentFile" => {
                for word in split_unit(value) {
                    let path = word.strip_prefix('-');
                    let mut file = raw_file(path.unwrap_or(&word));
                    if let (Value::Map(file), Some(_)) = (&mut file, path) {
                        set(file, "required", Value::Bool(false));
                    }
                    push(&mut service, "env_file", file);
                }
            }
            "Exec" => set(&mut service, "command", texts(split_unit(value))),
            "Entrypoint" => {
                let value = unquoted(value);
                let words = match value.starts_with('[') {
                    true => serde_json::from_str(value).unwrap_or_else(|_| vec![value.to_owned()]),
                    false => split_unit(value),
                };
                set(&mut service, "entrypoint", texts(words));
            }
            "User" => {
                let value = unquoted(value);
                let group = unit
                    .last("Container", "Group")
                    .map(|group| format!(":{group}"));
                set(
                    &mut service,
                    "user",
                    text(format!("{value}{}", group.unwrap_or_default())),
                );
            }
            "Group" if user.is_some() => {}
            "Mount" => {
                let mut mount = mount(value);
                let source = super::tree::scalar(&mount, "source").unwrap_or_default();
                let meant = match source.strip_suffix(".volume") {
                    Some(volume) => Some(volume.to_owned()),
                    None => image_of("Mount", &source, units).map_err(of)?,
                };
                if let (Value::Map(mount), Some(meant)) = (&mut mount, meant) {
                    set(mount, "source", text(meant));
                }
                push(&mut service, "volumes", mount);
            }
            "Secret" => secret(value, &mut service),
            "NoNewPrivileges" if is_true(value) => {
                push(&mut service, "security_opt", text("no-new-privileges:true"));
            }
            "SeccompProfile" => {
                push(
                    &mut service,
                    "security_opt",
                    text(format!("seccomp:{value}")),
                );
            }
            "AppArmor" => push(
                &mut service,
                "security_opt",
                text(format!("apparmor:{value}")),
            ),
            // What is so anyway, or of no use without podman.
            "NoNewPrivileges"
            | "SecurityLabelDisable"
            | "SecurityLabelType"
            | "SecurityLabelNested"
            | "SecurityLabelLevel"
            | "SecurityLabelFileType"
            | "Notify"
            | "Pod"
            | "StartWithPod"
            | "ServiceName"
            | "ContainersConfModule"
            | "CgroupsMode" => {}
            _ => set(&mut service, key, text(&**value)),
        }
    }
    if !check.is_empty() {
        set(&mut service, "healthcheck", Value::Map(check));
    }
    let default = format!("systemd-{}", unit.name);
    set(&mut service, "x-default-name", text(default));
    if !service
        .iter()
        .any(|(key, _)| key == "image" || key == "build")
    {
        return Err(of("it has no `Image`".to_owned()));
    }
    // podman itself restarts it (`PodmanArgs=--restart=always`) before systemd sees that it has ended.
    let by_podman = service.iter().find(|(key, _)| key == "restart");
    let by_podman = by_podman.and_then(|(_, policy)| policy.scalar_text());
    match unit.last("Service", "Restart") {
        _ if matches!(by_podman.as_deref(), Some("always" | "unless-stopped")) => {}
        None | Some("no") if by_podman.is_some() => {}
        None | Some("no") => set(&mut service, "restart", text("no")),
        Some("on-failure" | "on-abnormal" | "on-abort" | "on-watchdog") => {
            set(&mut service, "restart", text("on-failure"));
        }
        Some("on-success") => set(&mut service, "restart", text("on-success")),
        Some(_) => set(&mut service, "restart", text("always")),
    }
    let wait = unit.last("Service", "TimeoutStopSec");
    if let Some(wait) = wait.or_else(|| unit.last("Service", "TimeoutSec"))
        && !service.iter().any(|(key, _)| key == "stop_grace_period")
    {
        set(&mut service, "stop_grace_period", text(wait));
    }
    for (section, key, _) in &unit.keys {
        if section == "Service" && !SERVICE.contains(&&**key) {
            set(&mut service, &format!("[Service] {key}"), Value::Bool(true));
        }
    }
    Ok(service)
}

fn image(value: &str, units: &[Unit], service: &mut Entries) -> Result<(), String> {
    if value.ends_with(".build") {
        set(service, "build", Value::Bool(true));
    }
    match image_of("Image", value, units)? {
        Some(image) => set(service, "image", text(image)),
        None if value.ends_with(".build") => {}
        None => set(service, "image", text(value)),
    }
    Ok(())
}

/// The name of the image that a unit stands for, if the value of a key is the name of one.
fn image_of(key: &str, value: &str, units: &[Unit]) -> Result<Option<String>, String> {
    let unit = |kind: &str| {
        let name = value.strip_suffix(kind)?.strip_suffix('.')?;
        units
            .iter()
            .find(|unit| unit.kind == kind && unit.name == name)
    };
    let image = unit("image").and_then(|unit| unit.last("Image", "Image"));
    let tag = || unit("build").and_then(|unit| unit.last("Build", "ImageTag"));
    match image.or_else(tag) {
        None if value.ends_with(".image") => Err(format!(
            "{key}={value}: give that unit, too, or name the image"
        )),
        found => Ok(found.map(str::to_owned)),
    }
}

/// Gives the first container of a pod what the pod asks for.
fn of_pod(unit: &Unit, service: &mut Entries, project: &mut Project) -> Result<(), String> {
    let name = unit.last("Pod", "PodName").unwrap_or(&unit.name);
    set(service, "x-pod-name", text(name));
    for (section, key, value) in &unit.keys {
        if section == "Pod"
            && key != "PodName"
            && key != "ServiceName"
            && !same(key, value, service).map_err(|why| format!("{}.pod: {why}", unit.name))?
        {
            project.left_out.push(format!("{}.pod: {key}", unit.name));
        }
    }
    Ok(())
}
