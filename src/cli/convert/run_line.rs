//! `docker run …` and `podman run …` lines as services.

use super::health;
use super::kind;
use super::project::Project;
use super::tree::{Entries, map, set, text, texts};
use super::words::{first_free, object_name, split};
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
        " --env-host --no-hosts --no-hostname --read-only-tmpfs --unsetenv-all --passwd --http-proxy --rmi --use-api-socket ",
        Switch(""),
    ),
    (" --init ", Switch("init")),
    (" --privileged ", Switch("privileged")),
    (" --read-only ", Switch("read_only")),
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
    let mut by_docker = false;
    while let [first, more @ ..] = rest {
        match &**first {
            "sudo" | "docker" | "podman" | "nerdctl" | "container" | "$" => rest = more,
            _ => break,
        }
        by_docker |= first == "docker";
    }
    match rest {
        [verb, rest @ ..]
            if matches!(&**verb, "run" | "create") && rest.len() < words.len() - 1 =>
        {
            let (given, service) = service(rest)?;
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
fn service(words: &[String]) -> Result<(Option<String>, Entries), String> {
    let mut service = Entries::new();
    let rest = options(words, &mut service)?;
    let [image, command @ ..] = rest else {
        return Err("the command names no image".to_owned());
    };
    set(&mut service, "image", text(&**image));
    if !command.is_empty() {
        set(&mut service, "command", texts(command.iter().cloned()));
    }
    let named = service.iter().find(|(key, _)| key == "container_name");
    let name = named.and_then(|(_, name)| name.scalar_text());
    Ok((name, service))
}

/// A name that is not taken, after the image.
fn free_name(service: &Entries, project: &Project) -> String {
    let image = service.iter().find(|(key, _)| key == "image");
    let image = image.and_then(|(_, image)| image.scalar_text());
    let image = image.unwrap_or_default();
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
                Some((name, value)) => (name, Some(value.to_owned())),
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
            let value = rest.strip_prefix('=').map(str::to_owned);
            let is_last = value.is_some();
            option(&name, value, None, service)?;
            if is_last {
                return Ok(false);
            }
            continue;
        }
        let rest = rest.trim_start_matches('=');
        let value = (!rest.is_empty()).then(|| rest.to_owned());
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
    given: Option<String>,
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
        set(service, name, text(value));
        return Ok(false);
    };
    if let Switch(key) = option {
        let off = ["0", "f", "F", "false", "FALSE", "False"];
        let on = given.is_none_or(|word| !off.contains(&&*word));
        let key = if key.is_empty() { name } else { key };
        if on {
            set(service, key, Value::Bool(true));
        }
        return Ok(false);
    }
    if let Nothing = option {
        return Ok(false);
    }
    let took = given.is_none();
    let value = given.or_else(|| next.cloned());
    let value = value.ok_or_else(|| format!("`{name}` needs a value"))?;
    match option {
        List(key) => push(service, key, text(value)),
        Text("") => set(service, name, text(value)),
        Text(key) => set(service, key, text(value)),
        Health(field) => {
            let mut check = entry(service, "healthcheck");
            let value = match field {
                "test" => health::test(&value),
                _ => text(value),
            };
            set(&mut check, field, value);
            set(service, "healthcheck", Value::Map(check));
        }
        Mount => push(service, "volumes", mount(&value)),
        Network => network(&value, service),
        Alias => alias(&value, service),
        Secret => secret(&value, service),
        EnvFile => push(service, "env_file", raw_file(&value)),
        // Nothing in place of the image's: the command alone.
        Entrypoint if value.is_empty() => set(service, "entrypoint", texts([])),
        Entrypoint => {
            let list = serde_json::from_str::<Vec<String>>(&value).ok();
            set(service, "entrypoint", texts(list.unwrap_or(vec![value])));
        }
        Switch(_) | Nothing | NothingWith => {}
    }
    Ok(took)
}

/// A file of variables that are taken as they stand, in compose's words.
pub(super) fn raw_file(path: &str) -> Value {
    map([("path", text(path)), ("format", text("raw"))])
}

/// The mapping at a key.
fn entry(service: &mut Entries, key: &str) -> Entries {
    match service.iter().find(|(k, _)| k == key) {
        Some((_, Value::Map(entries))) => entries.clone(),
        _ => Entries::new(),
    }
}

pub(super) fn push(service: &mut Entries, key: &str, value: Value) {
    match service.iter_mut().find(|(k, _)| k == key) {
        Some((_, Value::List(items))) => items.push(value),
        _ => set(service, key, Value::List(vec![value])),
    }
}

/// `type=bind,source=/a,target=/b,readonly` as a volume in its long form.
pub(super) fn mount(value: &str) -> Value {
    let mut all = Entries::new();
    let nested = |outer: &str, key: &str, value: &str| {
        (outer.to_owned(), super::tree::map([(key, text(value))]))
    };
    let is_image = value.split(',').any(|part| part == "type=image");
    for part in value.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, "true"));
        match key {
            "type" => set(&mut all, "type", text(value)),
            // An image can only be read here.
            "rw" | "readwrite" if is_image && value == "true" => set(&mut all, key, text(value)),
            "source" | "src" => set(&mut all, "source", text(value)),
            "target" | "destination" | "dst" => set(&mut all, "target", text(value)),
            "readonly" | "ro" => set(&mut all, "read_only", text(value)),
            "rslave" | "rshared" | "slave" | "shared" => {
                all.push(nested("bind", "propagation", key))
            }
            "bind-propagation" => all.push(nested("bind", "propagation", value)),
            "tmpfs-size" => all.push(nested("tmpfs", "size", value)),
            "volume-subpath" | "subpath" => all.push(nested("volume", "subpath", value)),
            // Without SELinux labels there is nothing to relabel; the others say what is so anyway.
            "relabel" | "consistency" | "volume-nocopy" | "notmpcopyup" | "rw" | "readwrite"
            | "z" | "Z" | "private" | "rprivate" => {}
            "volume-driver" if value == "local" => {}
            key => set(&mut all, key, text(value)),
        }
    }
    Value::Map(all)
}

/// `NAME`, docker's `name=NAME,alias=…`, or podman's `NAME:alias=…,ip=…`.
fn network(value: &str, service: &mut Entries) {
    let is_name = |part: &str| part.strip_prefix("name=").map(str::to_owned);
    let named = value.split(',').find_map(is_name);
    let (name, asked) = match &named {
        Some(name) => (&**name, value),
        None => value.split_once(':').unwrap_or((value, "")),
    };
    match name {
        "host" | "none" => set(service, "network_mode", text(name)),
        "container" => set(service, "network_mode", text(value)),
        "bridge" | "default" | "slirp4netns" | "pasta" | "private" => {}
        name => {
            let mut of = Entries::new();
            for option in asked.split(',').filter(|option| !option.is_empty()) {
                let (key, value) = option.split_once('=').unwrap_or((option, ""));
                match key {
                    "name" => {}
                    "alias" => push(&mut of, "aliases", text(value)),
                    "ip" => set(&mut of, "ipv4_address", text(value)),
                    "ip6" => set(&mut of, "ipv6_address", text(value)),
                    "mac" | "mac-address" => set(&mut of, "mac_address", text(value)),
                    key => set(&mut of, key, text(value)),
                }
            }
            let mut networks = entry(service, "networks");
            set(&mut networks, name, Value::Map(of));
            set(service, "networks", Value::Map(networks));
        }
    }
}

pub(super) fn alias(value: &str, service: &mut Entries) {
    let mut networks = entry(service, "networks");
    if networks.is_empty() {
        networks.push(("default".to_owned(), Value::Map(Vec::new())));
    }
    if let Some((_, Value::Map(first))) = networks.first_mut() {
        push(first, "aliases", text(value));
    }
    set(service, "networks", Value::Map(networks));
}

/// podman's `NAME[,type=mount|env][,target=…][,uid=…]`; the name may be `source=NAME`, too.
pub(super) fn secret(value: &str, service: &mut Entries) {
    let mut all = Entries::new();
    for (at, part) in value.split(',').enumerate() {
        match part.split_once('=') {
            Some(("src", value)) => set(&mut all, "source", text(value)),
            Some((key, value)) => set(&mut all, key, text(value)),
            None if at == 0 => set(&mut all, "source", text(part)),
            None => {}
        }
    }
    let all = Value::Map(all);
    let field = |key: &str| super::tree::scalar(&all, key);
    if field("type").as_deref() == Some("env") {
        let name = field("source").unwrap_or_default();
        let variable = field("target").unwrap_or_else(|| name.clone());
        let item = super::tree::map([("name", text(variable)), ("secret", text(name))]);
        push(service, "x-secret-env", item);
    } else {
        push(service, "secrets", all);
    }
}
