//! Quadlet units as a project: `.container` and `.pod`, and the `.volume`, `.network`, `.image` and `.kube` beside them.

use super::Source;
use super::health;
use super::project::Project;
use super::run_line::{READ_ONLY_TMPFS, alias, mount, options, push, push_text, raw_file, secret};
use super::tree::{Entries, find, has, scalar, set, set_map, set_text, texts, word};
use super::unit::{Unit, adds_to, folders, is_true, unquoted};
use super::unit_order::{depend, turn_round};
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
    let mut units = read(files, source)?;
    turn_round(&mut units, project);
    for unit in &units {
        for specifier in &unit.unknown {
            project.leave_out(unit, format_args!("{specifier}: it stays as it is written"));
        }
        for what in &unit.of_user {
            project.leave_out(unit, format_args!("{what}"));
        }
        absent(unit, &units, project);
    }
    for unit in units.iter().filter(|unit| unit.kind == "kube") {
        for key in &["Yaml", "ConfigMap"] {
            for path in unit.values("Kube", key) {
                let text = source.text(path)?;
                project.manifests.push((unit.name.clone(), text));
            }
        }
        lost(unit, "Kube", &["Yaml", "ConfigMap"], project);
    }
    for unit in units.iter().filter(|unit| unit.kind == "volume") {
        volume(unit, project);
    }
    for unit in units.iter().filter(|unit| unit.kind == "network") {
        network(unit, project);
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
            in_pod(unit, pod, &units, &mut heads, &mut service, project)?;
        }
        project.add(unit.name.clone(), Value::Map(service))?;
    }
    let start = ["container", "pod", "kube"];
    for unit in units.iter().filter(|unit| start.contains(&&*unit.kind)) {
        depend(unit, &units, &heads, project);
    }
    let mut used = Vec::new();
    for (_, key, value) in units.iter().flat_map(|unit| &unit.keys) {
        if FILES.contains(&&**key) {
            for path in split_unit(value) {
                used.push(source.absolute(path.trim_start_matches('-')));
            }
        }
    }
    Ok(used)
}

/// Reads units, each with what the files of its folders add.
fn read(files: &[(String, String)], source: &Source<'_>) -> Result<Vec<Unit>, String> {
    let mut units = Vec::new();
    for (file, content) in files {
        if adds_to(file).is_some() {
            continue;
        }
        let mut unit = Unit::read(file, content)?;
        let (folder, _) = file.rsplit_once('/').unwrap_or_default();
        if folder.starts_with('/') && folder != source.folder {
            unit.rebase(folder);
        }
        drop_ins(&mut unit, files)?;
        units.push(unit);
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
    Ok(units)
}

/// Puts a container into the pod that it names: the first one gets what the pod asks for, the others share its network.
fn in_pod<'u>(
    unit: &'u Unit,
    pod: &'u str,
    units: &[Unit],
    heads: &mut Vec<(&'u str, String)>,
    service: &mut Entries,
    project: &mut Project,
) -> Result<(), String> {
    let pod = pod.strip_suffix(".pod").unwrap_or(pod);
    let pod_unit = find_unit(units, "pod", pod);
    if pod_unit.is_none() {
        project.leave_out(unit, format_args!("Pod={pod}.pod: give that unit, too"));
    }
    if let Some((_, head)) = heads.iter().find(|(of, _)| *of == pod) {
        set_text(service, "network_mode", &format!("service:{head}"));
        // All containers of a pod have its mounts.
        for (_, key, value) in pod_unit.map_or(&[][..], |unit| &unit.keys) {
            if matches!(&**key, "Volume" | "ShmSize") {
                same(key, value, service)?;
            }
        }
        return Ok(());
    }
    heads.push((pod, unit.name.clone()));
    match pod_unit {
        Some(unit) => of_pod(unit, service, project),
        None => Ok(()),
    }
}

fn network(unit: &Unit, project: &mut Project) {
    const KNOWN: [&str; 4] = ["Internal", "NetworkName", "Label", "Driver"];
    let name = &unit.name;
    if unit.last("Network", "Internal").is_some_and(is_true) {
        let what = format!("network {name}: every pod reaches every pod, and the world");
        project.left_out.push(what);
    }
    lost(unit, "Network", &KNOWN, project);
    if let Some(driver) = unit.last("Network", "Driver").filter(|d| *d != "bridge") {
        project.left_out.push(format!(
            "network {name}: the driver {driver}: pods have addresses of the node's bridge"
        ));
    }
}

pub(super) fn find_unit<'u>(units: &'u [Unit], kind: &str, name: &str) -> Option<&'u Unit> {
    let mut units = units.iter();
    units.find(|unit| unit.kind == kind && unit.name == name)
}

/// Keys whose values are files that are read.
const FILES: [&str; 3] = ["ConfigMap", "EnvironmentFile", "Yaml"];

/// Says which units one names that were not given. An image is refused without its unit, and a pod has its own remark.
fn absent(unit: &Unit, units: &[Unit], project: &mut Project) {
    for name in unit.names() {
        let is_it = |unit: &Unit| name == format!("{}.{}", unit.name, unit.kind);
        let has_own = name.ends_with(".pod") || name.ends_with(".image");
        if !has_own && !units.iter().any(is_it) {
            project.leave_out(unit, format_args!("{name}: give that unit, too"));
        }
    }
}

fn lost(unit: &Unit, section: &str, known: &[&str], project: &mut Project) {
    for (of, key, _) in &unit.keys {
        if of == section && !known.contains(&&**key) {
            project.leave_out(unit, format_args!("{key}"));
        }
    }
}

/// The sections for systemd. The keys of a container's `[Service]` are named at the container.
fn around(unit: &Unit, project: &mut Project) {
    const KNOWN: [&str; 9] = [
        "After",
        "Before",
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
        lost(unit, "Service", &SERVICE, project);
    }
}

/// Keys of a service that are about the service and not about what it runs.
const SERVICE: [&str; 7] = [
    "Delegate",
    "KillMode",
    "NotifyAccess",
    "RemainAfterExit",
    "SyslogIdentifier",
    "TimeoutStartSec",
    "Type",
];

/// Keys of a service that are carried over. Only containers have these of their own.
const CARRIED: [&str; 3] = ["Restart", "TimeoutSec", "TimeoutStopSec"];

fn volume(unit: &Unit, project: &mut Project) {
    const KNOWN: [&str; 6] = ["Copy", "Device", "Label", "Options", "Type", "VolumeName"];
    lost(unit, "Volume", &KNOWN, project);
    let mut options = Entries::new();
    for (key, option) in &[("Device", "device"), ("Type", "type"), ("Options", "o")] {
        if let Some(value) = unit.last("Volume", key) {
            set_text(&mut options, option, value);
        }
    }
    let mut volume = Entries::new();
    if let Some(name) = unit.last("Volume", "VolumeName") {
        set_text(&mut volume, "name", name);
    }
    set_map(&mut volume, "driver_opts", options);
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
    ("ReadOnlyTmpfs", READ_ONLY_TMPFS),
    ("RunInit", "init"),
    ("ShmSize", "shm_size"),
    ("StopSignal", "stop_signal"),
    ("StopTimeout", "stop_grace_period"),
    ("Tmpfs", "*tmpfs"),
    ("Ulimit", "*ulimits"),
    ("UserNS", "userns_mode"),
    ("WorkingDir", "working_dir"),
];

/// Keys of a container that say what is so anyway, or that are of no use without podman.
const MEANINGLESS: [&str; 12] = [
    "CgroupsMode",
    "ContainersConfModule",
    "NoNewPrivileges",
    "Notify",
    "Pod",
    "SecurityLabelDisable",
    "SecurityLabelFileType",
    "SecurityLabelLevel",
    "SecurityLabelNested",
    "SecurityLabelType",
    "ServiceName",
    "StartWithPod",
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
                words.for_each(|word| push_text(service, &of[1..], word));
            }
            // It starts without the device, too.
            Some("devices") => match value.strip_prefix('-') {
                Some(device) => push_text(service, "devices", &format!("{device}:optional")),
                None => push_text(service, "devices", value),
            },
            Some(list) => push_text(service, list, value),
            None => set_text(service, of, unquoted(value)),
        }
        return Ok(true);
    }
    if let Some((_, list)) = WORDS.iter().find(|(name, _)| *name == key) {
        for word in split_unit(value) {
            push_text(service, list, &word);
        }
        return Ok(true);
    }
    match key {
        "Volume" => {
            let (name, rest) = value.split_once(':').unwrap_or((value, ""));
            let name = name.strip_suffix(".volume").unwrap_or(name);
            let end = if rest.is_empty() { "" } else { ":" };
            push_text(service, "volumes", &[name, end, rest].concat());
        }
        "NetworkAlias" => alias(value, service),
        "Network" => {
            let (name, asked) = value.split_once(':').unwrap_or((value, ""));
            if let Some(other) = name.strip_suffix(".container") {
                set_text(service, "network_mode", &format!("service:{other}"));
            } else {
                let name = name.strip_suffix(".network").unwrap_or(name);
                let end = if asked.is_empty() { "" } else { ":" };
                let word = ["--network=", name, end, asked].concat();
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
    set_text(&mut service, READ_ONLY_TMPFS, "true");
    let mut check = Entries::new();
    let of = |why: String| format!("{}.container: {why}", unit.name);
    for (section, key, value) in &unit.keys {
        if section != "Container" || same(key, value, &mut service).map_err(of)? {
            continue;
        }
        match HEALTH.iter().find(|(name, _)| name == key) {
            Some((_, "test")) => set(&mut check, "test", health::test(unquoted(value))),
            Some((_, field)) => set_text(&mut check, field, unquoted(value)),
            None => own(unit, key, value, units, &mut service).map_err(of)?,
        }
    }
    set_map(&mut service, "healthcheck", check);
    let default = format!("systemd-{}", unit.name);
    set_text(&mut service, "x-default-name", &default);
    if !has(&service, "image") && !has(&service, "build") {
        return Err(of("it has no `Image`".to_owned()));
    }
    of_systemd(unit, &mut service);
    Ok(service)
}

/// Takes over a key that only containers have.
fn own(
    unit: &Unit,
    key: &str,
    value: &str,
    units: &[Unit],
    service: &mut Entries,
) -> Result<(), String> {
    match key {
        "Image" => image(unquoted(value), units, service)?,
        "EnvironmentFile" => {
            for word in split_unit(value) {
                let path = word.strip_prefix('-');
                let mut file = raw_file(path.unwrap_or(&word));
                if let (Value::Map(file), Some(_)) = (&mut file, path) {
                    set_text(file, "required", "false");
                }
                push(service, "env_file", file);
            }
        }
        "Exec" => set(service, "command", texts(split_unit(value))),
        "Entrypoint" => {
            let value = unquoted(value);
            let words = match value.starts_with('[') {
                true => health::words(value).unwrap_or_else(|| vec![value.to_owned()]),
                false => split_unit(value),
            };
            set(service, "entrypoint", texts(words));
        }
        "User" => {
            let mut user = unquoted(value).to_owned();
            if let Some(group) = unit.last("Container", "Group") {
                user.extend([":", group]);
            }
            set_text(service, "user", &user);
        }
        "Group" if unit.last("Container", "User").is_some() => {}
        "Mount" => {
            for word in split_unit(value) {
                push(service, "volumes", mounted(&word, units)?);
            }
        }
        "Secret" => secret(value, service),
        "NoNewPrivileges" if is_true(value) => {
            push_text(service, "security_opt", "no-new-privileges:true");
        }
        "SeccompProfile" => push_text(service, "security_opt", &format!("seccomp:{value}")),
        "AppArmor" => push_text(service, "security_opt", &format!("apparmor:{value}")),
        key if MEANINGLESS.contains(&key) => {}
        key => set_text(service, key, value),
    }
    Ok(())
}

/// A mount, whose source may be the name of a unit.
fn mounted(value: &str, units: &[Unit]) -> Result<Value, String> {
    let mut mount = mount(value);
    let source = scalar(&mount, "source").unwrap_or_default();
    let meant = match source.strip_suffix(".volume") {
        Some(volume) => Some(volume),
        None => image_of("Mount", source, units)?,
    };
    let meant = meant.map(str::to_owned);
    if let (Value::Map(mount), Some(meant)) = (&mut mount, meant) {
        set_text(mount, "source", &meant);
    }
    Ok(mount)
}

/// Takes over what a container's unit asks of systemd.
fn of_systemd(unit: &Unit, service: &mut Entries) {
    let by_systemd = match unit.last("Service", "Restart") {
        None | Some("no") => "no",
        Some("on-failure" | "on-abnormal" | "on-abort" | "on-watchdog") => "on-failure",
        Some("on-success") => "on-success",
        Some(_) => "always",
    };
    // podman itself restarts it (`PodmanArgs=--restart=always`) before systemd sees that it has ended.
    match find(service, "restart").and_then(word) {
        Some("always" | "unless-stopped") => {}
        Some(_) if by_systemd == "no" => {}
        _ => set_text(service, "restart", by_systemd),
    }
    let wait = unit.last("Service", "TimeoutStopSec");
    if let Some(wait) = wait.or_else(|| unit.last("Service", "TimeoutSec"))
        && !has(service, "stop_grace_period")
    {
        set_text(service, "stop_grace_period", wait);
    }
    for (section, key, _) in &unit.keys {
        let is_known = SERVICE.contains(&&**key) || CARRIED.contains(&&**key);
        if section == "Service" && !is_known {
            set_text(service, &format!("[Service] {key}"), "true");
        }
    }
}

fn image(value: &str, units: &[Unit], service: &mut Entries) -> Result<(), String> {
    if value.ends_with(".build") {
        set_text(service, "build", "true");
    }
    match image_of("Image", value, units)? {
        Some(image) => set_text(service, "image", image),
        None if value.ends_with(".build") => {}
        None => set_text(service, "image", value),
    }
    Ok(())
}

/// The name of the image that a unit stands for, if the value of a key is the name of one.
fn image_of<'u>(key: &str, value: &str, units: &'u [Unit]) -> Result<Option<&'u str>, String> {
    let unit = |kind: &str| {
        let name = value.strip_suffix(kind)?.strip_suffix('.')?;
        find_unit(units, kind, name)
    };
    let image = unit("image").and_then(|unit| unit.last("Image", "Image"));
    let tag = || unit("build").and_then(|unit| unit.last("Build", "ImageTag"));
    match image.or_else(tag) {
        None if value.ends_with(".image") => Err(format!(
            "{key}={value}: give that unit, too, or name the image"
        )),
        found => Ok(found),
    }
}

/// Gives the first container of a pod what the pod asks for.
fn of_pod(unit: &Unit, service: &mut Entries, project: &mut Project) -> Result<(), String> {
    let name = unit.last("Pod", "PodName").unwrap_or(&unit.name);
    set_text(service, "x-pod-name", name);
    for (section, key, value) in &unit.keys {
        if section == "Pod"
            && key != "PodName"
            && key != "ServiceName"
            && !same(key, value, service).map_err(|why| format!("{}.pod: {why}", unit.name))?
        {
            project.leave_out(unit, format_args!("{key}"));
        }
    }
    Ok(())
}
