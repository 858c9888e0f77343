//! `docker run …` and `podman run …` lines as services.

use super::health;
use super::kind;
use super::project::Project;
use super::shape::{NO_SOURCE, lacks_source};
use super::tree::{
    Entries, find, find_mut, inner, map_of_texts, remove, scalar, set, set_text, text, texts, word,
};
use super::words::{fields, first_free, object_name, split};
use crate::spec::value::Value;

/// What becomes of an option.
#[derive(Clone, Copy)]
enum Option_ {
    /// One more item of the service's list.
    List(&'static str),
    /// The service's value.
    Text(&'static str),
    /// The service's switch.
    Switch(&'static str),
    /// A field of the health check.
    Health(&'static str),
    /// A field of the secrets, mounts or networks that has a form of its own.
    Mount,
    Network,
    Alias,
    Secret,
    Entrypoint,
    EnvFile,
    /// Says nothing about a pod: a switch.
    Nothing,
    /// Says nothing about a pod: with a value.
    NothingWith,
}

use Option_::{
    Alias, Entrypoint, EnvFile, Health, List, Mount, Network, Nothing, NothingWith, Secret, Switch,
    Text,
};

/// podman keeps some directories of a read-only root writable, in memory.
pub(super) const READ_ONLY_TMPFS: &str = "x-read-only-tmpfs";

const OPTIONS: &[(&str, Option_)] = &[
    (" -p --publish ", List("ports")),
    (" --expose ", List("expose")),
    (" -v --volume ", List("volumes")),
    (" --mount ", Mount),
    (" --tmpfs ", List("tmpfs")),
    (" -e --env ", List("environment")),
    (" --env-file ", EnvFile),
    (" -l --label ", List("labels")),
    (" --annotation ", List("annotations")),
    (" --cap-add ", List("cap_add")),
    (" --cap-drop ", List("cap_drop")),
    (" --device ", List("devices")),
    (" --dns ", List("dns")),
    (" --dns-search ", List("dns_search")),
    (" --dns-option --dns-opt ", List("dns_opt")),
    (" --add-host ", List("extra_hosts")),
    (" --group-add ", List("group_add")),
    (" --security-opt ", List("security_opt")),
    (" --sysctl ", List("sysctls")),
    (" --ulimit ", List("ulimits")),
    (" --link ", List("links")),
    (" --requires ", List("depends_on")),
    (" --volumes-from ", List("volumes_from")),
    (" --secret ", Secret),
    (" --network --net ", Network),
    (" --network-alias --net-alias ", Alias),
    (" --entrypoint ", Entrypoint),
    (" --name ", Text("container_name")),
    (" -w --workdir ", Text("working_dir")),
    (" -u --user ", Text("user")),
    (" -h --hostname ", Text("hostname")),
    (" --domainname ", Text("domainname")),
    (" --restart ", Text("restart")),
    (" -m --memory ", Text("mem_limit")),
    (" --memory-reservation ", Text("mem_reservation")),
    (" --memory-swap ", Text("memswap_limit")),
    (" --cpus ", Text("cpus")),
    (" --cpu-quota ", Text("cpu_quota")),
    (" --cpu-period ", Text("cpu_period")),
    (" --cpu-shares -c ", Text("cpu_shares")),
    (" --cpuset-cpus ", Text("cpuset")),
    (" --shm-size ", Text("shm_size")),
    (" --pids-limit ", Text("pids_limit")),
    (" --pid ", Text("pid")),
    (" --ipc ", Text("ipc")),
    (" --userns ", Text("userns_mode")),
    (" --runtime ", Text("runtime")),
    (" --platform --arch ", Text("platform")),
    (" --pull ", Text("pull_policy")),
    (" --gpus ", Text("gpus")),
    (" --stop-signal ", Text("stop_signal")),
    (" --stop-timeout ", Text("stop_grace_period")),
    (" --log-driver --log-opt ", Text("logging")),
    (" --mac-address ", Text("mac_address")),
    (" --oom-score-adj ", Text("oom_score_adj")),
    (
        " --cgroupns --cgroup-parent --ip --ip6 --uts --pod --rootfs --tz --umask --blkio-weight --blkio-weight-device \
          --cgroup-conf --chrootdirs --cpu-rt-period --cpu-rt-runtime --cpuset-mems --decryption-key --device-cgroup-rule \
          --device-read-bps --device-read-iops --device-write-bps --device-write-iops --env-merge --gidmap --group-entry \
          --health-log-destination --health-max-log-count --health-max-log-size --health-start-interval \
          --health-startup-cmd --health-startup-interval --health-startup-retries --health-startup-success \
          --health-startup-timeout --hosts-file --hostuser --image-volume --init-path --intel-rdt-closid --ip-range \
          --isolation --kernel-memory --label-file --link-local-ip --memory-swappiness --passwd-entry --personality \
          --preserve-fd --preserve-fds --rdt-class --seccomp-policy --shm-size-systemd --storage-opt --subgidname \
          --subuidname --systemd --timeout --uidmap --unsetenv --variant --os --volume-driver ",
        Text(""),
    ),
    (
        " --env-host --no-hosts --no-hostname --unsetenv-all --passwd --http-proxy --rmi --use-api-socket ",
        Switch(""),
    ),
    (" --init ", Switch("init")),
    (" --privileged ", Switch("privileged")),
    (" --read-only ", Switch("read_only")),
    (" --read-only-tmpfs ", Switch(READ_ONLY_TMPFS)),
    (" -t --tty ", Switch("tty")),
    (" -i --interactive ", Switch("stdin_open")),
    (" -P --publish-all ", Switch("publish_all")),
    (" --health-cmd ", Health("test")),
    (" --health-interval ", Health("interval")),
    (" --health-timeout ", Health("timeout")),
    (" --health-retries ", Health("retries")),
    (" --health-start-period ", Health("start_period")),
    (" --health-on-failure ", Health("x-on-failure")),
    (" --no-healthcheck ", Switch("")),
    (
        " -d --detach --rm --replace --sig-proxy --oom-kill-disable -q --quiet --tls-verify --disable-content-trust ",
        Nothing,
    ),
    (
        " -a --attach --cidfile --detach-keys --sdnotify --conmon-pidfile --authfile --pidfile --pod-id-file --creds \
          --cert-dir --retry --retry-delay --module ",
        NothingWith,
    ),
];

/// The lines of a file, or of one command, as a project.
pub(super) fn lines(content: &str, project: &mut Project) -> Result<(), String> {
    let joined = content.replace("\\\r\n", " ").replace("\\\n", " ");
    let mut pending = String::new();
    for line in joined.lines() {
        if pending.is_empty() && (line.trim().is_empty() || line.trim_start().starts_with('#')) {
            continue;
        }
        // Other lines of a script become remarks. Shell syntax matters only where a container is made.
        if pending.is_empty() && !kind::mentions_run(line) {
            project.left_out.push(format!("`{}`", line.trim()));
            continue;
        }
        pending.push_str(line);
        match split(&pending) {
            Ok(_) => command(&split(&without_shell(&pending)?)?, project)?,
            // Quotes may go over several lines.
            Err(_) => {
                pending.push('\n');
                continue;
            }
        }
        pending.clear();
    }
    match pending.is_empty() {
        true => Ok(()),
        false => Err(split(&pending).err().unwrap_or_default()),
    }
}

/// The command without its comments: one at its end, and those between backquotes (`` `#optional` ``), which stand for
/// nothing. What else only a shell can do is refused: it would be taken literally.
fn without_shell(line: &str) -> Result<String, String> {
    let refuse = |what: &str| {
        Err(format!(
            "`{what}` is the shell's: write what it stands for, or let the shell read the line: coracle convert -- docker run …"
        ))
    };
    let (mut quote, mut before) = (None, ' ');
    // What is not in the command, up to where it goes on.
    let (mut out, mut from) = (String::new(), 0);
    let mut letters = line.char_indices().peekable();
    while let Some((at, c)) = letters.next() {
        let next = letters.peek().map_or(' ', |(_, next)| *next);
        match (quote, c) {
            (Some('\''), c) => quote = Some('\'').filter(|_| c != '\''),
            (_, '\\') => _ = letters.next(),
            (_, '$') if next.is_ascii_alphanumeric() || "_{(".contains(next) => {
                let end = line[at..].find([' ', '"', ':', '/']);
                return refuse(&line[at..end.map_or(line.len(), |end| at + end)]);
            }
            (None, '$') if matches!(next, '\'' | '"') => return refuse("$'…'"),
            (_, '`') if next == '#' => {
                let Some(end) = line[at + 1..].find('`') else {
                    return refuse("`…`");
                };
                out.push_str(&line[from..at]);
                from = at + end + 2;
                while letters.next_if(|(at, _)| *at < from).is_some() {}
            }
            (_, '`') => return refuse("`…`"),
            (Some(open), c) => quote = Some(open).filter(|_| c != open),
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if before.is_whitespace() => return Ok(out + &line[from..at]),
            (None, '&' | '|' | ';' | '<' | '>') => return refuse(&c.to_string()),
            (None, _) => {}
        }
        before = c;
    }
    Ok(out + &line[from..])
}

/// One command with its words.
pub(super) fn command(words: &[String], project: &mut Project) -> Result<(), String> {
    let mut rest = words;
    let (mut by_docker, mut by_podman) = (false, false);
    while let [first, more @ ..] = rest {
        match &**first {
            "sudo" | "docker" | "podman" | "nerdctl" | "container" | "$" => rest = more,
            _ => break,
        }
        by_docker |= first == "docker";
        by_podman |= first == "podman";
    }
    match rest {
        [verb, rest @ ..]
            if matches!(&**verb, "run" | "create") && rest.len() < words.len() - 1 =>
        {
            let (given, service) = service(rest, by_podman)?;
            project.by_docker |= by_docker;
            let name = given.unwrap_or_else(|| free_name(&service, project));
            project.add(name, Value::Map(service))
        }
        [] => Ok(()),
        _ => {
            project.left_out.push(format!("`{}`", words.join(" ")));
            Ok(())
        }
    }
}

/// The words after `run`: options, image, command. With it goes the name that is given.
fn service(words: &[String], by_podman: bool) -> Result<(Option<String>, Entries), String> {
    let mut service = Entries::new();
    if by_podman {
        set_text(&mut service, READ_ONLY_TMPFS, "true");
    }
    let rest = options(words, &mut service)?;
    // To podman, the target is the source, too.
    if !by_podman && lacks_source(find(&service, "volumes")) {
        return Err(format!("--mount: {NO_SOURCE}"));
    }
    let [image, command @ ..] = rest else {
        return Err("the command names no image".to_owned());
    };
    set_text(&mut service, "image", image);
    if !command.is_empty() {
        set(&mut service, "command", texts(command.to_vec()));
    }
    let name = find(&service, "container_name").and_then(word);
    Ok((name.map(str::to_owned), service))
}

/// A name that is not taken, after the image.
fn free_name(service: &Entries, project: &Project) -> String {
    let image = find(service, "image").and_then(word).unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let wish = object_name(last.split([':', '@']).next().unwrap_or_default());
    first_free(&wish, &mut |name| !project.has(name))
}

/// Puts options into a service, and returns the words after them.
pub(super) fn options<'w>(
    words: &'w [String],
    service: &mut Entries,
) -> Result<&'w [String], String> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        if word == "--" {
            break;
        }
        let next = words.get(at);
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            at += usize::from(option(&format!("--{name}"), value, next, service)?);
        } else if word.len() > 1 && word.starts_with('-') {
            at += usize::from(letters(&word[1..], next, service)?);
        } else {
            at -= 1;
            break;
        }
    }
    Ok(words.get(at..).unwrap_or_default())
}

/// Options of one letter, several of them in one word. Returns whether the next word is the last one's value.
fn letters(word: &str, next: Option<&String>, service: &mut Entries) -> Result<bool, String> {
    for (at, letter) in word.char_indices() {
        let name = format!("-{letter}");
        let rest = &word[at + letter.len_utf8()..];
        if matches!(known(&name), Some(Switch(_) | Nothing)) {
            let value = rest.strip_prefix('=');
            option(&name, value, None, service)?;
            if value.is_some() {
                return Ok(false);
            }
            continue;
        }
        let rest = rest.trim_start_matches('=');
        let value = Some(rest).filter(|rest| !rest.is_empty());
        return option(&name, value, next, service);
    }
    Ok(false)
}

fn known(name: &str) -> Option<Option_> {
    let wanted = format!(" {name} ");
    let found = OPTIONS.iter().find(|(names, _)| names.contains(&wanted));
    found.map(|(_, option)| *option)
}

/// Carries one option out. Returns whether it took the next word.
fn option(
    name: &str,
    given: Option<&str>,
    next: Option<&String>,
    service: &mut Entries,
) -> Result<bool, String> {
    let Some(option) = known(name) else {
        // Without knowing the option, the next word may be its value or the image.
        let Some(value) = given else {
            return Err(format!(
                "unknown option `{name}`: write it as `{name}=VALUE`, or leave it out"
            ));
        };
        set_text(service, name, value);
        return Ok(false);
    };
    if let Switch(key) = option {
        let off = ["0", "f", "F", "false", "FALSE", "False"];
        let key = if key.is_empty() { name } else { key };
        match given.is_none_or(|word| !off.contains(&word)) {
            true => set_text(service, key, "true"),
            false => remove(service, key),
        }
        return Ok(false);
    }
    if let Nothing = option {
        return Ok(false);
    }
    let took = given.is_none();
    let value = given.or(next.map(|next| &**next));
    let value = value.ok_or_else(|| format!("`{name}` needs a value"))?;
    match option {
        List(key) => push_text(service, key, value),
        Text("") => set_text(service, name, value),
        Text(key) => set_text(service, key, value),
        Health(field) => {
            let said = match field {
                "test" => health::test(value),
                _ => text(value),
            };
            set(inner(service, "healthcheck"), field, said);
        }
        Mount => push(service, "volumes", mount(value)),
        Network => network(value, service),
        Alias => alias(value, service),
        Secret => secret(value, service),
        EnvFile => push(service, "env_file", raw_file(value)),
        // Nothing in place of the image's: the command alone.
        Entrypoint if value.is_empty() => set(service, "entrypoint", texts(Vec::new())),
        Entrypoint => {
            let words = health::words(value);
            let words = words.unwrap_or_else(|| vec![value.to_owned()]);
            set(service, "entrypoint", texts(words));
        }
        Switch(_) | Nothing | NothingWith => {}
    }
    Ok(took)
}

/// A file of variables that are taken as they stand, in compose's words.
pub(super) fn raw_file(path: &str) -> Value {
    map_of_texts(&[("path", path), ("format", "raw")])
}

pub(super) fn push(service: &mut Entries, key: &str, value: Value) {
    match find_mut(service, key) {
        Some(Value::List(items)) => items.push(value),
        _ => set(service, key, Value::List(vec![value])),
    }
}

pub(super) fn push_text(service: &mut Entries, key: &str, value: &str) {
    push(service, key, text(value));
}

/// Keys of a mount and the fields of compose that take the same text; nothing for those that say what is so anyway.
const MOUNT: &[(&str, &str)] = &[
    ("src", "source"),
    ("destination", "target"),
    ("dst", "target"),
    ("readonly", "read_only"),
    ("ro", "read_only"),
    ("bind-propagation", "bind.propagation"),
    ("tmpfs-size", "tmpfs.size"),
    ("volume-subpath", "volume.subpath"),
    ("subpath", "volume.subpath"),
    // Without SELinux labels there is nothing to relabel.
    ("relabel", ""),
    ("z", ""),
    ("Z", ""),
    ("consistency", ""),
    ("volume-nocopy", ""),
    ("notmpcopyup", ""),
    ("rw", ""),
    ("readwrite", ""),
    ("private", ""),
    ("rprivate", ""),
];

/// `type=bind,source=/a,target=/b,readonly` as a volume in its long form.
pub(super) fn mount(value: &str) -> Value {
    let mut all = Entries::new();
    let parts = fields(value);
    let is_image = parts.iter().any(|part| part == "type=image");
    for part in &parts {
        let (key, value) = part.split_once('=').unwrap_or((part, "true"));
        let (key, value) = match ["rslave", "rshared", "slave", "shared"].contains(&key) {
            true => ("bind-propagation", key),
            false => (key, value),
        };
        match MOUNT.iter().find(|(known, _)| *known == key) {
            None if (key, value) == ("volume-driver", "local") => {}
            None => set_text(&mut all, key, value),
            // An image can only be read here.
            Some((_, "")) if is_image && value == "true" && ["rw", "readwrite"].contains(&key) => {
                set_text(&mut all, key, value);
            }
            Some((_, "")) => {}
            Some((_, field)) => match field.split_once('.') {
                Some((outer, inner)) => {
                    all.push((outer.to_owned(), map_of_texts(&[(inner, value)])));
                }
                None => set_text(&mut all, field, value),
            },
        }
    }
    Value::Map(all)
}

/// `NAME`, docker's `name=NAME,alias=…`, or podman's `NAME:alias=…,ip=…`.
fn network(value: &str, service: &mut Entries) {
    let named = value.split(',').find_map(|part| part.strip_prefix("name="));
    let (name, asked) = match named {
        Some(name) => (name, value),
        None => value.split_once(':').unwrap_or((value, "")),
    };
    match name {
        "host" | "none" => set_text(service, "network_mode", name),
        "container" => set_text(service, "network_mode", value),
        "bridge" | "default" | "slirp4netns" | "pasta" | "private" => {}
        name => {
            let mut of = Entries::new();
            for option in asked.split(',').filter(|option| !option.is_empty()) {
                let (key, value) = option.split_once('=').unwrap_or((option, ""));
                match key {
                    "name" => {}
                    "alias" => push_text(&mut of, "aliases", value),
                    "ip" => set_text(&mut of, "ipv4_address", value),
                    "ip6" => set_text(&mut of, "ipv6_address", value),
                    "mac" | "mac-address" => set_text(&mut of, "mac_address", value),
                    key => set_text(&mut of, key, value),
                }
            }
            set(inner(service, "networks"), name, Value::Map(of));
        }
    }
}

pub(super) fn alias(value: &str, service: &mut Entries) {
    let networks = inner(service, "networks");
    if networks.is_empty() {
        set(networks, "default", Value::Map(Vec::new()));
    }
    if let Some((_, Value::Map(first))) = networks.first_mut() {
        push_text(first, "aliases", value);
    }
}

/// podman's `NAME[,type=mount|env][,target=…][,uid=…]`; the name may be `source=NAME`, too.
pub(super) fn secret(value: &str, service: &mut Entries) {
    let mut all = Entries::new();
    for (at, part) in value.split(',').enumerate() {
        match part.split_once('=') {
            Some(("src", value)) => set_text(&mut all, "source", value),
            Some((key, value)) => set_text(&mut all, key, value),
            None if at == 0 => set_text(&mut all, "source", part),
            None => {}
        }
    }
    let all = Value::Map(all);
    if scalar(&all, "type") == Some("env") {
        let name = scalar(&all, "source").unwrap_or_default();
        let variable = scalar(&all, "target").unwrap_or(name);
        let item = map_of_texts(&[("name", variable), ("secret", name)]);
        push(service, "x-secret-env", item);
    } else {
        push(service, "secrets", all);
    }
}
