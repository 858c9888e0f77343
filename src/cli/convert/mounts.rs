//! `volumes`, `tmpfs`, `shm_size`, `secrets` and `configs`: what is mounted into a container, and from where.

use super::tree::{
    Commented, Entries, entries, is_on, is_yes, items, map, scalar, scalars, set, text,
};
use super::words::size;
use super::work::{Pod, Work};
use crate::images::trust::encode_base64;
use crate::spec::value::Value;

const CLAIM: &str = "PersistentVolumeClaim";

/// A volume and where it is mounted.
#[derive(Default)]
struct Mount {
    kind: String,
    source: String,
    target: String,
    read_only: bool,
    propagation: Option<&'static str>,
    part: Option<String>,
    size: Option<String>,
}

/// The container's mounts; the volumes they need are added to the pod.
pub(super) fn mounts(work: &Work<'_>, service: &Value, pod: &mut Pod) -> Vec<Value> {
    let mut all = Vec::new();
    for (item, replaced) in with_replaced(service.get("volumes"), volume_target) {
        if replaced {
            let target = volume_target(item);
            work.lost(
                &mut all,
                format_args!("volume {target}: another is mounted there"),
            );
            continue;
        }
        match item {
            Value::Map(_) => long(work, item, pod, &mut all),
            item => short(work, &item.scalar_text().unwrap_or_default(), pod, &mut all),
        }
    }
    for item in scalars(service.get("tmpfs")) {
        let (target, options) = item.split_once(':').unwrap_or((&item, ""));
        let mut mount = Mount {
            kind: "tmpfs".to_owned(),
            target: target.to_owned(),
            ..Mount::default()
        };
        for option in options.split(',') {
            match option {
                "ro" => mount.read_only = true,
                // What is so anyway.
                "" | "rw" | "nosuid" | "nodev" | "mode=1777" | "mode=777" | "mode=0777" => {}
                option => match option.strip_prefix("size=") {
                    Some(wanted) if size(wanted).is_some() => mount.size = size(wanted),
                    _ => work.lost(
                        &mut all,
                        format_args!("tmpfs {target}: the option {option}"),
                    ),
                },
            }
        }
        add(work, &mount, pod, &mut all);
    }
    let shares_memory = scalar(service, "ipc").as_deref() == Some("host");
    let wanted = scalar(service, "shm_size");
    let own = |mount: &Value| scalar(mount, "mountPath").as_deref() == Some("/dev/shm");
    if shares_memory && wanted.is_some() && !all.iter().any(own) {
        let what = format_args!("shm_size: with `ipc: host` it is the node's memory, of its size");
        work.lost(&mut all, what);
    }
    if let Some(wanted) = wanted.filter(|_| !shares_memory) {
        let mount = Mount {
            kind: "tmpfs".to_owned(),
            source: "shm".to_owned(),
            target: "/dev/shm".to_owned(),
            size: size(&wanted),
            ..Mount::default()
        };
        if mount.size.is_none() {
            work.lost(&mut all, format_args!("shm_size: {wanted}"));
        }
        add(work, &mount, pod, &mut all);
    }
    for (list, top, kind) in [("secrets", true, "Secret"), ("configs", false, "ConfigMap")] {
        let target = |item: &Value| file_target(item, top);
        for (item, replaced) in with_replaced(service.get(list), target) {
            if !replaced {
                file(work, item, (top, kind), pod, &mut all);
            }
        }
    }
    if !is_on(service, "privileged") {
        let what =
            format_args!("propagation: only a privileged container passes mounts on to the node");
        let passes_on = ("mountPropagation".to_owned(), text("Bidirectional"));
        for mount in &mut all {
            if let Value::Map(mount) = mount
                && mount.contains(&passes_on)
            {
                mount.retain(|entry| *entry != passes_on);
                work.lost(mount, what);
            }
        }
    }
    all
}

/// The items of a list, each with whether a later one has its target: as in compose, that is in its place.
fn with_replaced(
    list: Option<&Value>,
    target: impl Fn(&Value) -> String,
) -> impl Iterator<Item = (&Value, bool)> {
    let all = items(list);
    let targets: Vec<String> = all.iter().map(|item| target(item)).collect();
    let replaced = move |at: usize| targets[at + 1..].contains(&targets[at]);
    let all = all.into_iter().enumerate();
    all.map(move |(at, item)| (item, replaced(at)))
}

fn volume_target(item: &Value) -> String {
    let target = scalar(item, "target").or_else(|| {
        let written = item.scalar_text()?;
        let mut parts = written.split(':');
        let first = parts.next().map(str::to_owned);
        parts.next().map(str::to_owned).or(first)
    });
    let target = target.unwrap_or_default();
    target.trim_end_matches('/').to_owned()
}

/// `[SOURCE:]TARGET[:OPTIONS]`.
fn short(work: &Work<'_>, written: &str, pod: &mut Pod, all: &mut Vec<Value>) {
    let parts: Vec<&str> = written.split(':').collect();
    let (source, target, options) = match parts[..] {
        ["", ..] => return work.lost(all, format_args!("volume {written}: no source")),
        [target] => ("", target, ""),
        [source, target] => (source, target, ""),
        [source, target, options] => (source, target, options),
        _ => return work.lost(all, format_args!("volume {written}")),
    };
    let mut mount = Mount {
        kind: match source.starts_with(['/', '.', '~']) {
            true => "bind".to_owned(),
            false => "volume".to_owned(),
        },
        source: source.to_owned(),
        target: target.to_owned(),
        ..Mount::default()
    };
    for option in options.split(',') {
        match option {
            "ro" | "readonly" => mount.read_only = true,
            "rshared" | "shared" => mount.propagation = Some("Bidirectional"),
            "rslave" | "slave" => mount.propagation = Some("HostToContainer"),
            // Without SELinux labels there is nothing to relabel; the others say what is so anyway.
            "" | "rw" | "z" | "Z" | "nocopy" | "copy" | "cached" | "delegated" | "consistent"
            | "rprivate" | "private" | "rbind" | "bind" => {}
            other => work.lost(all, format_args!("volume {written}: the option {other}")),
        }
    }
    add(work, &mount, pod, all);
}

fn long(work: &Work<'_>, item: &Value, pod: &mut Pod, all: &mut Vec<Value>) {
    let inner = |key: &str, field: &str| item.get(key).and_then(|v| scalar(v, field));
    let mount = Mount {
        kind: scalar(item, "type").unwrap_or_else(|| "volume".to_owned()),
        source: scalar(item, "source").unwrap_or_default(),
        target: scalar(item, "target").unwrap_or_default(),
        read_only: is_on(item, "read_only"),
        propagation: match inner("bind", "propagation").as_deref() {
            Some("rshared" | "shared") => Some("Bidirectional"),
            Some("rslave" | "slave") => Some("HostToContainer"),
            _ => None,
        },
        part: inner("volume", "subpath").or_else(|| inner("image", "subpath")),
        size: inner("tmpfs", "size").and_then(|s| size(&s)),
    };
    if let Some(wanted) = inner("tmpfs", "size").filter(|_| mount.size.is_none()) {
        let what = format_args!("{} {}: the size {wanted}", mount.kind, mount.target);
        work.lost(all, what);
    }
    for (key, value) in entries(Some(item)) {
        let of = format!("{} {}", mount.kind, mount.target);
        for option in unknown_options(key, value) {
            work.lost(all, format_args!("{of}: the option {option}"));
        }
    }
    let makes = inner("bind", "create_host_path");
    if makes.is_some_and(|word| !is_yes(&word)) {
        let what = format_args!(
            "bind {}: create_host_path: false: a path that is missing is made; `type: Directory` or `type: File` beside \
             the `path` refuses that",
            mount.target
        );
        work.lost(all, what);
    }
    add(work, &mount, pod, all);
}

/// The options of a mount in its long form that neither are carried over nor say what is so anyway.
fn unknown_options(key: &str, value: &Value) -> Vec<String> {
    let known: &[&str] = match key {
        "type" | "source" | "target" | "read_only" | "consistency" => return Vec::new(),
        "bind" => &["propagation", "create_host_path", "selinux"],
        "volume" => &["subpath", "nocopy"],
        "image" => &["subpath"],
        "tmpfs" => &["size"],
        key if key.starts_with("x-") => return Vec::new(),
        key => return vec![key.to_owned()],
    };
    let inner = entries(Some(value)).iter();
    let inner = inner.filter(|(name, _)| !known.contains(&&**name));
    inner.map(|(name, _)| format!("{key}.{name}")).collect()
}

fn add(work: &Work<'_>, mount: &Mount, pod: &mut Pod, all: &mut Vec<Value>) {
    let target = mount.target.trim_end_matches('/');
    let target = if target.is_empty() { "/" } else { target };
    let lost = |all: &mut Vec<Value>, why: &str| {
        work.lost(all, format_args!("{} {target}: {why}", mount.kind));
    };
    if !target.starts_with('/') || target.contains(':') || target == "/" {
        return lost(all, "no path of a container");
    }
    let taken = |m: &Value| m.get("mountPath") == Some(&text(target));
    if all.iter().any(taken) {
        return lost(all, "something is mounted there already");
    }
    let mut read_only = mount.read_only;
    let volume = match &*mount.kind {
        "bind" => bind(work, &mount.source, pod),
        "volume" if mount.source.is_empty() => Ok(scratch(pod, target)),
        "volume" => named(work, mount, pod).map(|(volume, is_read_only)| {
            read_only |= is_read_only;
            volume
        }),
        "tmpfs" => Ok(memory(pod, mount, target)),
        "image" => {
            let image = map([("reference", text(&*mount.source))]);
            Ok(pod.volume("image", "image", &image))
        }
        _ => Err("this kind of volume"),
    };
    let volume = match volume {
        Ok(volume) => volume,
        Err(why) => return lost(all, why),
    };
    if mount.kind == "volume" && mount.source.is_empty() {
        lost(all, "it begins empty, without the image's files there");
    }
    let mut entry = Entries::new();
    set(&mut entry, "name", text(volume));
    set(&mut entry, "mountPath", text(target));
    if let Some(part) = &mount.part {
        set(&mut entry, "subPath", text(part.trim_start_matches('/')));
    }
    if read_only {
        set(&mut entry, "readOnly", Value::Bool(true));
    }
    if let Some(propagation) = mount.propagation {
        set(&mut entry, "mountPropagation", text(propagation));
    }
    all.push(Value::Map(entry));
}

/// An empty directory that lasts as long as the pod.
fn scratch(pod: &mut Pod, target: &str) -> String {
    let wish = target.rsplit('/').next().unwrap_or_default();
    pod.volume(wish, "emptyDir", &Value::Map(Vec::new()))
}

fn memory(pod: &mut Pod, mount: &Mount, target: &str) -> String {
    let mut source = vec![("medium".to_owned(), text("Memory"))];
    if let Some(size) = &mount.size {
        set(&mut source, "sizeLimit", text(&**size));
    }
    let wish = match mount.source.is_empty() {
        true => target.rsplit('/').next().unwrap_or_default(),
        false => &mount.source,
    };
    pod.volume(wish, "emptyDir", &Value::Map(source))
}

/// A path of the node.
fn bind(work: &Work<'_>, source: &str, pod: &mut Pod) -> Result<String, &'static str> {
    if source.ends_with("/docker.sock") || source.ends_with("/podman.sock") {
        return Err("there is no Docker or podman to talk to");
    }
    let path = work.shared.source.absolute(source);
    let wish = path.rsplit('/').next().unwrap_or_default();
    let wish = if wish.is_empty() { "root" } else { wish };
    let before = pod.volumes.len();
    let name = pod.volume(wish, "hostPath", &map([("path", text(&*path))]));
    if !source.starts_with('/')
        && pod.volumes.len() > before
        && let Some(Value::Map(volume)) = pod.volumes.last_mut()
    {
        let hint = format!("{source} of this machine: copy it to the one that runs the pod");
        volume.comment(hint);
    }
    Ok(name)
}

/// A volume of the project: a claim, unless it is a directory of the node. With its name goes whether it can only be read.
fn named(work: &Work<'_>, of: &Mount, pod: &mut Pod) -> Result<(String, bool), &'static str> {
    let source = &*of.source;
    let volumes = &work.shared.project.volumes;
    let declared = volumes.iter().find(|(name, _)| name == source);
    let declared = declared.map_or(&Value::Null, |(_, volume)| volume);
    let option = |key: &str| declared.get("driver_opts").and_then(|o| scalar(o, key));
    match (option("type").as_deref(), option("device")) {
        (Some("tmpfs"), _) => {
            let options = option("o").unwrap_or_default();
            let wanted = options.split(',').find_map(|o| o.strip_prefix("size="));
            let others = options.split(',').filter(|o| !o.is_empty());
            for other in others.filter(|o| !o.starts_with("size=")) {
                let what = format_args!("volume {source}: the option {other}");
                work.lost(&mut pod.volumes, what);
            }
            if is_shared(work, source) {
                let what = format_args!("volume {source}: in memory each container has its own");
                work.lost(&mut pod.volumes, what);
            }
            let mount = Mount {
                source: source.to_owned(),
                size: wanted.and_then(size),
                ..Mount::default()
            };
            return Ok((memory(pod, &mount, source), false));
        }
        (Some("none" | "bind") | None, Some(device)) if device.starts_with(['/', '.', '~']) => {
            let options = option("o").unwrap_or_default();
            let mut read_only = false;
            for option in options.split(',') {
                match option {
                    "ro" => read_only = true,
                    "" | "rw" | "bind" | "rbind" => {}
                    other => {
                        let what = format_args!("volume {source}: the option {other}");
                        work.lost(&mut pod.volumes, what);
                    }
                }
            }
            return Ok((bind(work, &device, pod)?, read_only));
        }
        (Some(_), _) => return Err("mount it on the node and use a `hostPath`"),
        (None, _) => {}
    }
    if let Some(driver) = scalar(declared, "driver").filter(|driver| driver != "local") {
        let what = format_args!(
            "volume {source}: the driver {driver}: it is a directory of the node here"
        );
        work.lost(&mut pod.volumes, what);
    }
    let (external, own_name) = elsewhere(declared);
    let claim = match own_name {
        Some(name) => work.shared.named(CLAIM, &name),
        None if external => work.shared.named(CLAIM, source),
        None => work
            .shared
            .object(CLAIM, &format!("volume {source}"), source),
    };
    let modes = Value::List(vec![text("ReadWriteOnce")]);
    let request = map([("requests", map([("storage", text("10Gi"))]))]);
    let mut content = Entries::new();
    if external {
        let hint = format!("the volume {source} was made elsewhere: its data is to be copied");
        content.comment(hint);
    } else {
        let hint =
            "it begins empty: what the image has there, and its owner, are not copied into it";
        content.comment(hint.to_owned());
    }
    let hint = "it had no size so far; this one is the limit".to_owned();
    let mut spec = Entries::new();
    set(&mut spec, "accessModes", modes);
    spec.comment(hint);
    set(&mut spec, "resources", request);
    set(&mut content, "spec", Value::Map(spec));
    work.make(CLAIM, &claim, content);
    let volume = map([("claimName", text(claim))]);
    let name = pod.volume(source, "persistentVolumeClaim", &volume);
    Ok((name, false))
}

/// Whether a volume, secret or config is made elsewhere, and the name that is its own. Files of the first forms of compose
/// have it below `external`.
fn elsewhere(declared: &Value) -> (bool, Option<String>) {
    let external_name = declared.get("external").and_then(|it| scalar(it, "name"));
    let external = is_on(declared, "external") || external_name.is_some();
    (external, external_name.or_else(|| scalar(declared, "name")))
}

/// Whether several services mount a volume.
fn is_shared(work: &Work<'_>, volume: &str) -> bool {
    let source = |item: &Value| match item.scalar_text() {
        Some(short) => short.split_once(':').map(|(source, _)| source.to_owned()),
        None => scalar(item, "source"),
    };
    let mounts = |service: &Value| {
        let mut all = items(service.get("volumes")).into_iter();
        all.any(|item| source(item).as_deref() == Some(volume))
    };
    let services = work.shared.project.services.iter();
    services.filter(|(_, service)| mounts(service)).count() > 1
}

/// A secret or config: a file of the Secret or ConfigMap that is made of it.
fn file(
    work: &Work<'_>,
    item: &Value,
    of: (bool, &'static str),
    pod: &mut Pod,
    all: &mut Vec<Value>,
) {
    let (is_secret, kind) = of;
    let name = item.scalar_text().or_else(|| scalar(item, "source"));
    let name = name.unwrap_or_default();
    let (key, object) = object(work, &name, is_secret, kind, all);
    let target = file_target(item, is_secret);
    let mut source = Entries::new();
    let (volume_kind, name_field) = match is_secret {
        true => ("secret", "secretName"),
        false => ("configMap", "name"),
    };
    set(&mut source, name_field, text(&*object));
    if let Some(mode) = scalar(item, "mode").and_then(|mode| octal(item, &mode)) {
        set(&mut source, "defaultMode", Value::Int(mode.into()));
    }
    for owner in ["uid", "gid"] {
        if scalar(item, owner).is_some_and(|id| id != "0") {
            let what = format_args!("{name}: {owner}: set `fsGroup` of the pod");
            work.lost(all, what);
        }
    }
    let volume = pod.volume(&object, volume_kind, &Value::Map(source));
    let entry = map([
        ("name", text(volume)),
        ("mountPath", text(target)),
        ("subPath", text(key)),
        ("readOnly", Value::Bool(true)),
    ]);
    all.push(entry);
}

/// Where a secret or config is mounted.
fn file_target(item: &Value, is_secret: bool) -> String {
    let name = item.scalar_text().or_else(|| scalar(item, "source"));
    let target = scalar(item, "target").or(name).unwrap_or_default();
    match is_secret {
        _ if target.starts_with('/') => target,
        true => format!("/run/secrets/{target}"),
        false => format!("/{target}"),
    }
}

/// A mode as compose has it: a number that was octal in the file, or a string of octal digits.
fn octal(item: &Value, text: &str) -> Option<u32> {
    let mode = match item.get("mode") {
        // `0440` is a decimal number to some readers and an octal one to others.
        Some(Value::Int(number)) if text.chars().all(|c| c < '8') && *number > 0o777 => {
            u32::from_str_radix(text, 8).ok()?
        }
        Some(Value::Int(number)) => u32::try_from(*number).ok()?,
        _ => u32::from_str_radix(text.trim_start_matches("0o"), 8).ok()?,
    };
    (mode <= 0o777).then_some(mode)
}

/// The key and the name of the object with a secret's or config's content. If the content is not here, the comment says
/// what to make.
fn object(
    work: &Work<'_>,
    name: &str,
    is_secret: bool,
    kind: &'static str,
    all: &mut Vec<Value>,
) -> (String, String) {
    let project = work.shared.project;
    let declared = match is_secret {
        true => &project.secrets,
        false => &project.configs,
    };
    let declared = declared.iter().find(|(n, _)| n == name);
    let declared = declared.map_or(&Value::Null, |(_, value)| value);
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let key: String = name.chars().filter(|c| letter(*c)).collect();
    let key = if key.is_empty() {
        "content".to_owned()
    } else {
        key
    };
    let (external, own_name) = elsewhere(declared);
    let object = match own_name {
        Some(name) => work.shared.named(kind, &name),
        None if external => work.shared.named(kind, name),
        None => work.shared.object(kind, &format!("file {name}"), name),
    };
    let source = work.shared.source;
    let content = if let Some(content) = scalar(declared, "content") {
        Ok(content.into_bytes())
    } else if let Some(variable) = scalar(declared, "environment") {
        let value = (source.variable)(&variable).map(String::into_bytes);
        value.ok_or_else(|| format!("the variable `{variable}` is not set"))
    } else if let Some(file) = scalar(declared, "file") {
        (source.read)(&file)
    } else {
        Err("its content is not in the project".to_owned())
    };
    match content {
        Ok(bytes) => {
            let (field, value) = match String::from_utf8(bytes) {
                Ok(content) if is_secret => ("stringData", content),
                Ok(content) => ("data", content),
                Err(error) => {
                    let field = if is_secret { "data" } else { "binaryData" };
                    (field, encode_base64(error.as_bytes()))
                }
            };
            let content = Value::Map(vec![(key.clone(), text(value))]);
            work.make(kind, &object, vec![(field.to_owned(), content)]);
        }
        Err(why) => {
            let what = format_args!("{name}: {why}; make a {kind} `{object}` with the key `{key}`");
            work.lost(all, what);
        }
    }
    (key, object)
}
