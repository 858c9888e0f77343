//! `volumes`, `tmpfs`, `shm_size`, `secrets` and `configs`: what is mounted into a container, and from where.

use super::run_line::READ_ONLY_TMPFS;
use super::shape::lacks_source;
use super::tree::{
    Commented, Entries, entries, find, is_on, is_yes, items, map, map_of_texts, number, scalar,
    scalars, set, set_on, set_text, text, word,
};
use super::words::size;
use super::work::{Pod, Work};
use crate::images::trust::encode_base64;
use crate::spec::value::Value;

const CLAIM: &str = "PersistentVolumeClaim";

/// A volume and where it is mounted.
#[derive(Default)]
struct Mount<'a> {
    kind: &'a str,
    source: &'a str,
    target: &'a str,
    read_only: bool,
    propagation: Option<&'static str>,
    part: Option<&'a str>,
    size: Option<String>,
}

/// The container's mounts; the volumes they need are added to the pod.
pub(super) fn mounts(work: &Work<'_>, service: &Value, pod: &mut Pod) -> Vec<Value> {
    let mut all = Vec::new();
    let target = |item: &Value| volume_target(item).to_owned();
    for (item, replaced) in with_replaced(service.get("volumes"), &target) {
        match word(item) {
            _ if replaced => {
                let what = format_args!("volume {}: another is mounted there", volume_target(item));
                work.lost(&mut all, what);
            }
            Some(written) => short(work, written, pod, &mut all),
            None => long(work, item, pod, &mut all),
        }
    }
    for item in scalars(service.get("tmpfs")) {
        let (target, options) = item.split_once(':').unwrap_or((item, ""));
        let mut mount = Mount {
            kind: "tmpfs",
            target,
            ..Mount::default()
        };
        for option in options.split(',') {
            match option {
                "ro" => mount.read_only = true,
                // What is so anyway.
                "" | "rw" | "nosuid" | "nodev" | "mode=1777" | "mode=777" | "mode=0777" => {}
                option => match option.strip_prefix("size=").and_then(size) {
                    Some(size) => mount.size = Some(size),
                    None => {
                        let what = format_args!("tmpfs {target}: the option {option}");
                        work.lost(&mut all, what);
                    }
                },
            }
        }
        add(work, &mount, pod, &mut all);
    }
    let shares_memory = scalar(service, "ipc") == Some("host");
    let wanted = scalar(service, "shm_size");
    if shares_memory && wanted.is_some() && !is_taken(&all, "/dev/shm") {
        let what = format_args!("shm_size: with `ipc: host` it is the node's memory, of its size");
        work.lost(&mut all, what);
    }
    if let Some(wanted) = wanted.filter(|_| !shares_memory) {
        let mount = Mount {
            kind: "tmpfs",
            source: "shm",
            target: "/dev/shm",
            size: size(wanted),
            ..Mount::default()
        };
        if mount.size.is_none() {
            work.lost(&mut all, format_args!("shm_size: {wanted}"));
        }
        add(work, &mount, pod, &mut all);
    }
    files(work, service, true, pod, &mut all);
    files(work, service, false, pod, &mut all);
    if is_on(service, "read_only") && is_on(service, READ_ONLY_TMPFS) {
        for target in ["/run", "/tmp", "/var/tmp"] {
            let mount = Mount {
                kind: "tmpfs",
                target,
                ..Mount::default()
            };
            if !is_taken(&all, target) {
                add(work, &mount, pod, &mut all);
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
fn with_replaced<'v>(
    list: Option<&'v Value>,
    target: &dyn Fn(&Value) -> String,
) -> Vec<(&'v Value, bool)> {
    let all = items(list);
    let targets: Vec<String> = all.iter().map(target).collect();
    let replaced = |at: usize| targets[at + 1..].contains(&targets[at]);
    let all = all.iter().enumerate();
    all.map(|(at, item)| (item, replaced(at))).collect()
}

fn volume_target(item: &Value) -> &str {
    let target = scalar(item, "target").or_else(|| {
        let mut parts = word(item)?.split(':');
        let first = parts.next();
        parts.next().or(first)
    });
    target.unwrap_or_default().trim_end_matches('/')
}

/// Options of a volume that say what is so anyway. Without SELinux labels there is nothing to relabel.
const MEANINGLESS: [&str; 13] = [
    "",
    "bind",
    "cached",
    "consistent",
    "copy",
    "delegated",
    "nocopy",
    "private",
    "rbind",
    "rprivate",
    "rw",
    "z",
    "Z",
];

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
            true => "bind",
            false => "volume",
        },
        source,
        target,
        ..Mount::default()
    };
    for option in options.split(',') {
        let passed_on = propagation(option);
        if ["ro", "readonly"].contains(&option) {
            mount.read_only = true;
        } else if passed_on.is_some() {
            mount.propagation = passed_on;
        } else if !MEANINGLESS.contains(&option) {
            work.lost(all, format_args!("volume {written}: the option {option}"));
        }
    }
    add(work, &mount, pod, all);
}

fn propagation(option: &str) -> Option<&'static str> {
    match option {
        "rshared" | "shared" => Some("Bidirectional"),
        "rslave" | "slave" => Some("HostToContainer"),
        _ => None,
    }
}

fn long(work: &Work<'_>, item: &Value, pod: &mut Pod, all: &mut Vec<Value>) {
    let inner = |key: &str, field: &str| item.get(key).and_then(|v| scalar(v, field));
    // Only podman mounts a path without a source: the same one.
    let other = if lacks_source(Some(item)) {
        "target"
    } else {
        "source"
    };
    let mount = Mount {
        kind: scalar(item, "type").unwrap_or("volume"),
        source: scalar(item, other).unwrap_or_default(),
        target: scalar(item, "target").unwrap_or_default(),
        read_only: is_on(item, "read_only"),
        propagation: inner("bind", "propagation").and_then(propagation),
        part: inner("volume", "subpath").or_else(|| inner("image", "subpath")),
        size: inner("tmpfs", "size").and_then(size),
    };
    if let Some(wanted) = inner("tmpfs", "size").filter(|_| mount.size.is_none()) {
        let what = format_args!("{} {}: the size {wanted}", mount.kind, mount.target);
        work.lost(all, what);
    }
    for (key, value) in entries(Some(item)) {
        for option in unknown_options(key, value) {
            let what = format_args!("{} {}: the option {option}", mount.kind, mount.target);
            work.lost(all, what);
        }
    }
    let makes = inner("bind", "create_host_path");
    if makes.is_some_and(|word| !is_yes(word)) {
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
    const PLAIN: [&str; 5] = ["type", "source", "target", "read_only", "consistency"];
    const NESTED: [(&str, &[&str]); 4] = [
        ("bind", &["propagation", "create_host_path", "selinux"]),
        ("volume", &["subpath", "nocopy"]),
        ("image", &["subpath"]),
        ("tmpfs", &["size"]),
    ];
    let mut unknown = Vec::new();
    if let Some((_, known)) = NESTED.iter().find(|(outer, _)| *outer == key) {
        for (name, _) in entries(Some(value)) {
            if !known.contains(&&**name) {
                unknown.push(format!("{key}.{name}"));
            }
        }
    } else if !PLAIN.contains(&key) && !key.starts_with("x-") {
        unknown.push(key.to_owned());
    }
    unknown
}

/// Whether something is mounted there.
fn is_taken(all: &[Value], target: &str) -> bool {
    let mut all = all.iter();
    all.any(|mount| scalar(mount, "mountPath") == Some(target))
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
    if is_taken(all, target) {
        return lost(all, "something is mounted there already");
    }
    let mut read_only = mount.read_only;
    let begins = mount.source.starts_with(['$', '%']);
    if begins || mount.kind == "volume" && mount.source.contains(['$', '%']) {
        let why = format!(
            "nothing can be called `{}`: write what that stands for",
            mount.source
        );
        return lost(all, &why);
    }
    let volume = match mount.kind {
        "bind" => bind(work, mount.source, pod),
        "volume" if mount.source.is_empty() => Ok(scratch(pod, target)),
        "volume" => named(work, mount, pod).map(|(volume, is_read_only)| {
            read_only |= is_read_only;
            volume
        }),
        "tmpfs" => Ok(memory(pod, mount, target)),
        "image" => {
            let image = map_of_texts(&[("reference", mount.source)]);
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
    set_text(&mut entry, "name", &volume);
    set_text(&mut entry, "mountPath", target);
    if let Some(part) = mount.part {
        set_text(&mut entry, "subPath", part.trim_start_matches('/'));
    }
    if read_only {
        set_on(&mut entry, "readOnly");
    }
    if let Some(propagation) = mount.propagation {
        set_text(&mut entry, "mountPropagation", propagation);
    }
    all.push(Value::Map(entry));
}

/// An empty directory that lasts as long as the pod.
fn scratch(pod: &mut Pod, target: &str) -> String {
    let wish = target.rsplit('/').next().unwrap_or_default();
    pod.volume(wish, "emptyDir", &Value::Map(Vec::new()))
}

fn memory(pod: &mut Pod, mount: &Mount<'_>, target: &str) -> String {
    let mut source = Entries::new();
    set_text(&mut source, "medium", "Memory");
    if let Some(size) = &mount.size {
        set_text(&mut source, "sizeLimit", size);
    }
    let wish = match mount.source.is_empty() {
        true => target.rsplit('/').next().unwrap_or_default(),
        false => mount.source,
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
    let name = pod.volume(wish, "hostPath", &map_of_texts(&[("path", &path)]));
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
fn named(work: &Work<'_>, of: &Mount<'_>, pod: &mut Pod) -> Result<(String, bool), &'static str> {
    let source = of.source;
    let declared = find(&work.shared.project.volumes, source).unwrap_or(&Value::Null);
    let option = |key: &str| declared.get("driver_opts").and_then(|o| scalar(o, key));
    let options = option("o").unwrap_or_default();
    match (option("type"), option("device")) {
        (Some("tmpfs"), _) => {
            let mut mount = Mount {
                source,
                ..Mount::default()
            };
            for option in options.split(',').filter(|option| !option.is_empty()) {
                match option.strip_prefix("size=") {
                    Some(wanted) => mount.size = mount.size.or_else(|| size(wanted)),
                    None => lost_option(work, source, option, pod),
                }
            }
            if is_shared(work, source) {
                let what = format_args!("volume {source}: in memory each container has its own");
                work.lost(&mut pod.volumes, what);
            }
            Ok((memory(pod, &mount, source), false))
        }
        (Some("none" | "bind") | None, Some(device)) if device.starts_with(['/', '.', '~']) => {
            let mut read_only = false;
            for option in options.split(',') {
                match option {
                    "ro" => read_only = true,
                    "" | "rw" | "bind" | "rbind" => {}
                    other => lost_option(work, source, other, pod),
                }
            }
            Ok((bind(work, device, pod)?, read_only))
        }
        (Some(_), _) => Err("mount it on the node and use a `hostPath`"),
        (None, _) => Ok((claim(work, source, declared, pod), false)),
    }
}

fn lost_option(work: &Work<'_>, volume: &str, option: &str, pod: &mut Pod) {
    let what = format_args!("volume {volume}: the option {option}");
    work.lost(&mut pod.volumes, what);
}

/// A claim for a volume of the project.
fn claim(work: &Work<'_>, source: &str, declared: &Value, pod: &mut Pod) -> String {
    if let Some(driver) = scalar(declared, "driver").filter(|driver| *driver != "local") {
        let what = format_args!(
            "volume {source}: the driver {driver}: it is a directory of the node here"
        );
        work.lost(&mut pod.volumes, what);
    }
    let (external, own_name) = elsewhere(declared);
    let claim = match own_name {
        Some(name) => work.shared.named(CLAIM, name),
        None if external => work.shared.named(CLAIM, source),
        None => work
            .shared
            .object(CLAIM, &format!("volume {source}"), source),
    };
    let mut content = Entries::new();
    content.comment(match external {
        true => format!("the volume {source} was made elsewhere: its data is to be copied"),
        false => "it begins empty: what the image has there, and its owner, are not copied into it"
            .to_owned(),
    });
    let mut spec = Entries::new();
    set(&mut spec, "accessModes", access_modes());
    spec.comment("it had no size so far; this one is the limit".to_owned());
    set(&mut spec, "resources", request());
    set(&mut content, "spec", Value::Map(spec));
    work.make(CLAIM, &claim, content);
    let volume = map_of_texts(&[("claimName", &claim)]);
    pod.volume(source, "persistentVolumeClaim", &volume)
}

/// What a claim asks for that says nothing of it.
pub(super) fn access_modes() -> Value {
    Value::List(vec![text("ReadWriteOnce")])
}

pub(super) fn request() -> Value {
    map([("requests", map_of_texts(&[("storage", "10Gi")]))])
}

/// Whether a volume, secret or config is made elsewhere, and the name that is its own. Files of the first forms of compose
/// have it below `external`.
fn elsewhere(declared: &Value) -> (bool, Option<&str>) {
    let external_name = declared.get("external").and_then(|it| scalar(it, "name"));
    let external = is_on(declared, "external") || external_name.is_some();
    (external, external_name.or_else(|| scalar(declared, "name")))
}

/// Whether several services mount a volume.
fn is_shared(work: &Work<'_>, volume: &str) -> bool {
    let is_of = |item: &Value| match word(item) {
        Some(short) => short
            .split_once(':')
            .is_some_and(|(source, _)| source == volume),
        None => scalar(item, "source") == Some(volume),
    };
    let mounts = |service: &Value| items(service.get("volumes")).iter().any(is_of);
    let services = work.shared.project.services.iter();
    services.filter(|(_, service)| mounts(service)).count() > 1
}

/// The secrets or configs of a service.
fn files(work: &Work<'_>, service: &Value, is_secret: bool, pod: &mut Pod, all: &mut Vec<Value>) {
    let list = if is_secret { "secrets" } else { "configs" };
    let target = |item: &Value| file_target(item, is_secret);
    for (item, replaced) in with_replaced(service.get(list), &target) {
        if !replaced {
            file(work, item, is_secret, pod, all);
        }
    }
}

/// A secret or config: a file of the Secret or ConfigMap that is made of it.
fn file(work: &Work<'_>, item: &Value, is_secret: bool, pod: &mut Pod, all: &mut Vec<Value>) {
    let name = source_of(item);
    let (key, object) = object(work, name, is_secret, all);
    let target = file_target(item, is_secret);
    let mut source = Entries::new();
    let (volume_kind, name_field) = match is_secret {
        true => ("secret", "secretName"),
        false => ("configMap", "name"),
    };
    set_text(&mut source, name_field, &object);
    if let Some(mode) = item.get("mode").and_then(octal) {
        set(&mut source, "defaultMode", number(mode));
    }
    for owner in &["uid", "gid"] {
        if scalar(item, owner).is_some_and(|id| id != "0") {
            let what = format_args!("{name}: {owner}: set `fsGroup` of the pod");
            work.lost(all, what);
        }
    }
    let volume = pod.volume(&object, volume_kind, &Value::Map(source));
    let mut entry = Entries::new();
    set_text(&mut entry, "name", &volume);
    set_text(&mut entry, "mountPath", &target);
    set_text(&mut entry, "subPath", &key);
    set_on(&mut entry, "readOnly");
    all.push(Value::Map(entry));
}

/// The name of a secret or config in the project.
fn source_of(item: &Value) -> &str {
    let name = word(item).or_else(|| scalar(item, "source"));
    name.unwrap_or_default()
}

/// Where a secret or config is mounted.
fn file_target(item: &Value, is_secret: bool) -> String {
    let target = scalar(item, "target").unwrap_or_else(|| source_of(item));
    match is_secret {
        _ if target.starts_with('/') => target.to_owned(),
        true => format!("/run/secrets/{target}"),
        false => format!("/{target}"),
    }
}

/// A mode as compose has it: a number that was octal in the file, or a string of octal digits.
fn octal(mode: &Value) -> Option<u32> {
    let mode = match mode {
        // `0440` is a decimal number to some readers and an octal one to others.
        Value::Int(number) => match u32::try_from(*number).ok()? {
            number if number > 0o777 => u32::from_str_radix(&number.to_string(), 8).ok()?,
            number => number,
        },
        mode => u32::from_str_radix(word(mode)?.trim_start_matches("0o"), 8).ok()?,
    };
    (mode <= 0o777).then_some(mode)
}

/// The key of a secret or config in its object.
pub(super) fn key_of(name: &str) -> String {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match name.replace(|c| !letter(c), "") {
        none if none.is_empty() => "content".to_owned(),
        key => key,
    }
}

/// The key and the name of the object with a secret's or config's content. If the content is not here, the comment says
/// what to make.
fn object(work: &Work<'_>, name: &str, is_secret: bool, all: &mut Vec<Value>) -> (String, String) {
    let project = work.shared.project;
    let (kind, declared) = match is_secret {
        true => ("Secret", &project.secrets),
        false => ("ConfigMap", &project.configs),
    };
    let declared = find(declared, name).unwrap_or(&Value::Null);
    let key = key_of(name);
    let (external, own_name) = elsewhere(declared);
    let object = match own_name {
        Some(name) => work.shared.named(kind, name),
        // podman makes none.
        None if external || project.origin != "compose" => work.shared.named(kind, name),
        None => work.shared.object(kind, &format!("file {name}"), name),
    };
    let source = work.shared.source;
    let content = if let Some(content) = scalar(declared, "content") {
        Ok(content.as_bytes().to_vec())
    } else if let Some(variable) = scalar(declared, "environment") {
        let value = (source.variable)(variable).map(String::into_bytes);
        value.ok_or_else(|| format!("the variable `{variable}` is not set"))
    } else if let Some(file) = scalar(declared, "file") {
        (source.read)(file)
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
            let content = map_of_texts(&[(&key, &value)]);
            work.make(kind, &object, vec![(field.to_owned(), content)]);
        }
        Err(why) => {
            let what = format_args!("{name}: {why}; make a {kind} `{object}` with the key `{key}`");
            work.lost(all, what);
        }
    }
    (key, object)
}
