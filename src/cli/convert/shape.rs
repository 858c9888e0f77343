//! The shape of services: what compose refuses because it would be lost in silence, and settings that it does not know.

use super::order::CONDITIONS;
use super::project::{RESET, tag};
use super::tree::{entries, is_yes, items, scalar, word};
use crate::spec::value::Value;

/// Lists of texts, and what is between a name and a value in one.
const LISTS: [(&str, &str); 19] = [
    ("annotations", "="),
    ("cap_add", ":"),
    ("cap_drop", ":"),
    ("command", ": "),
    ("depends_on", ":"),
    ("dns", ":"),
    ("dns_opt", ":"),
    ("dns_search", ":"),
    ("entrypoint", ": "),
    ("environment", "="),
    ("expose", ":"),
    ("extra_hosts", "="),
    ("group_add", ":"),
    ("labels", "="),
    ("links", ":"),
    ("networks", ":"),
    ("security_opt", ":"),
    ("sysctls", "="),
    ("tmpfs", ":"),
];

/// The lists that may be mappings instead: of texts, or of mappings.
const OF_TEXTS: [&str; 4] = ["annotations", "environment", "labels", "sysctls"];
const OF_MAPPINGS: [&str; 2] = ["depends_on", "networks"];

/// Lists whose items are texts or mappings.
const OF_EITHER: [&str; 5] = ["configs", "devices", "ports", "secrets", "volumes"];

/// Settings of one value.
const SINGLE: [&str; 24] = [
    "container_name",
    "cpu_period",
    "cpu_quota",
    "cpus",
    "domainname",
    "hostname",
    "image",
    "ipc",
    "mem_limit",
    "mem_reservation",
    "network_mode",
    "pid",
    "pull_policy",
    "restart",
    "scale",
    "shm_size",
    "stop_grace_period",
    "stop_signal",
    "user",
    "working_dir",
    // These are switches, too.
    "init",
    "privileged",
    "read_only",
    "tty",
];

/// Settings that are on or off.
const SWITCHES: [&str; 5] = ["init", "privileged", "read_only", "stdin_open", "tty"];

/// The settings of mappings in a service; those of the items have the path of their list.
const NESTED: &[(&str, &[&str])] = &[
    ("configs", &["source", "target", "uid", "gid", "mode"]),
    ("depends_on.*", &["condition", "required", "restart"]),
    (
        "deploy",
        &[
            "endpoint_mode",
            "labels",
            "mode",
            "placement",
            "replicas",
            "resources",
            "restart_policy",
            "rollback_config",
            "update_config",
        ],
    ),
    ("deploy.resources", &["limits", "reservations"]),
    ("deploy.resources.limits", &["cpus", "memory", "pids"]),
    (
        "deploy.resources.reservations",
        &["cpus", "memory", "devices", "generic_resources"],
    ),
    (
        "deploy.restart_policy",
        &["condition", "delay", "max_attempts", "window"],
    ),
    ("env_file", &["path", "required", "format"]),
    (
        "healthcheck",
        &[
            "test",
            "interval",
            "timeout",
            "retries",
            "start_period",
            "start_interval",
            "disable",
        ],
    ),
    (
        "ports",
        &[
            "target",
            "published",
            "host_ip",
            "protocol",
            "name",
            "mode",
            "app_protocol",
        ],
    ),
    // The last one is podman's.
    (
        "secrets",
        &["source", "target", "uid", "gid", "mode", "type"],
    ),
];

const NO_LIST: &str = "it is a list, not a mapping";

/// What is said of mounts of which [`lacks_source`] is true.
pub(super) const NO_SOURCE: &str = "a bind mount needs a `source`";

/// Whether one of these volumes is a path of the node, and does not say which.
pub(super) fn lacks_source(volumes: Option<&Value>) -> bool {
    let mut volumes = items(volumes).iter();
    volumes.any(|item| {
        let has_source = scalar(item, "source").is_some_and(|source| !source.is_empty());
        scalar(item, "type") == Some("bind") && !has_source
    })
}

/// Refuses what compose refuses of a service once all files are put together: another file, or the service itself over
/// the one that it extends, may put right what is wrong in one.
pub(super) fn check(name: &str, service: &Value) -> Result<(), String> {
    let mut wrong = Vec::new();
    if lacks_source(service.get("volumes")) {
        wrong.push(format!("volumes of `{name}`: {NO_SOURCE}"));
    }
    let test = service.get("healthcheck").and_then(|of| of.get("test"));
    if let Some(Value::List(all)) = test {
        let first = all.first().and_then(word).unwrap_or("NONE");
        if !["CMD", "CMD-SHELL", "NONE"].contains(&first) {
            let rule = "a list begins with `CMD`, `CMD-SHELL` or `NONE`";
            wrong.push(format!("healthcheck of `{name}`: test: {rule}"));
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ")),
    }
}

/// Refuses services of a file whose shape compose refuses, all of them at once.
pub(super) fn refused(file: &Value) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, service) in entries(meant(file.get("services"))) {
        for (key, value) in entries(meant(Some(service))) {
            let Some(value) = meant(Some(value)) else {
                continue;
            };
            let mut say = |what: String| wrong.push(format!("{key} of `{name}`: {what}"));
            if let Some((_, between)) = LISTS.iter().find(|(list, _)| list == key) {
                texts(key, between, value, &mut say);
            } else if SINGLE.contains(&&**key) || SWITCHES.contains(&&**key) {
                single(value, SWITCHES.contains(&&**key), &mut say);
            } else if OF_EITHER.contains(&&**key) && !entries(Some(value)).is_empty() {
                say(NO_LIST.to_owned());
            } else if key == "healthcheck" {
                for (field, value) in entries(Some(value)) {
                    let mut say = |what: String| say(format!("{field}: {what}"));
                    match (&**field, meant(Some(value))) {
                        ("test", Some(test)) => texts("test", ": ", test, &mut say),
                        (_, Some(value)) if !field.starts_with("x-") => {
                            single(value, field == "disable", &mut say);
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(wrong.join("; ")),
    }
}

/// A value without the tags of files that are put over each other; `None` for one that is taken away.
fn meant(value: Option<&Value>) -> Option<&Value> {
    let mut value = value?;
    while let Some((tag, inside)) = tag(value) {
        if tag == RESET {
            return None;
        }
        value = inside;
    }
    Some(value)
}

fn single(value: &Value, is_switch: bool, say: &mut dyn FnMut(String)) {
    let Some(word) = word(value) else {
        return say("it is one value, not a list or mapping".to_owned());
    };
    let off = ["", "false", "no", "0", "off", "n", "f"];
    if is_switch && !is_yes(word) && !off.contains(&&*word.to_ascii_lowercase()) {
        say(format!("`{word}` is neither true nor false"));
    }
}

/// A list of texts, a single one, or a mapping where there may be one.
fn texts(key: &str, between: &str, value: &Value, say: &mut dyn FnMut(String)) {
    match value {
        Value::Map(all) if OF_TEXTS.contains(&key) => {
            for (name, value) in all {
                if meant(Some(value)).is_some_and(|value| word(value).is_none()) {
                    say(format!("`{name}` has a list or mapping: write one value"));
                }
            }
        }
        Value::Map(all) if OF_MAPPINGS.contains(&key) => {
            for (name, value) in all {
                let Some(value) = meant(Some(value)) else {
                    continue;
                };
                of_mapping(key, name, value, say);
            }
        }
        Value::Map(_) if key == "extra_hosts" => {}
        Value::Map(all) if !all.is_empty() => say(NO_LIST.to_owned()),
        Value::List(all) => {
            for item in all.iter().filter_map(|item| meant(Some(item))) {
                if word(item).is_none() {
                    say(no_text(between, item));
                }
            }
        }
        _ => {}
    }
}

fn of_mapping(key: &str, name: &str, value: &Value, say: &mut dyn FnMut(String)) {
    let condition = value.get("condition").and_then(|c| meant(Some(c)));
    match condition.map(word) {
        _ if key != "depends_on" => {}
        Some(Some(word)) if word.is_empty() || CONDITIONS.contains(&word) => {}
        Some(word) => {
            let word = word.unwrap_or_default();
            let known = CONDITIONS.join("`, `");
            say(format!(
                "{name}: there is no condition `{word}`, only `{known}`"
            ));
        }
        None => {}
    }
    if !matches!(value, Value::Map(_) | Value::Null) {
        let text = word(value).unwrap_or_default();
        say(format!(
            "`{name}: {text}`: write its settings below `{name}`"
        ));
    }
}

/// An item that is no text: mostly one whose `: ` makes a mapping of it.
fn no_text(between: &str, item: &Value) -> String {
    let pair = match item {
        Value::Map(entries) => match &entries[..] {
            [(name, value)] => word(value).map(|value| (name, value)),
            _ => None,
        },
        _ => None,
    };
    match pair {
        Some((name, "")) => {
            format!("`{name}:` is a mapping: write `{name}`")
        }
        Some((name, value)) if between == ": " => {
            format!("`{name}: {value}` is a mapping: write it in quotes")
        }
        Some((name, value)) => {
            format!("`{name}: {value}` is a mapping: write `{name}{between}{value}`")
        }
        None => "an item is a list or mapping: write it as one text".to_owned(),
    }
}

/// The settings in the mappings of a service that there are not, with those that there are.
pub(super) fn unknown(service: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for &(path, known) in NESTED {
        let (path, of_each) = match path.strip_suffix(".*") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let mut value = Some(service);
        for key in path.split('.') {
            value = value.and_then(|value| value.get(key));
        }
        let mut look = |path: &str, value: &Value| {
            for (key, _) in entries(Some(value)) {
                if !known.contains(&&**key) && !key.starts_with("x-") {
                    let known = known.join(", ");
                    all.push(format!(
                        "{path}.{key}: there is no such setting, only {known}"
                    ));
                }
            }
        };
        if of_each {
            for (name, value) in entries(value) {
                look(&format!("{path}.{name}"), value);
            }
        } else {
            items(value).iter().for_each(|value| look(path, value));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::super::convert_test::{compose, converted, fixtures, whole};
    use super::super::meaning_test::says;

    #[test]
    fn what_would_be_lost_in_silence_is_refused_as_compose_does() {
        for (service, expected) in [
            (
                "environment: [TZ: Europe/Berlin]",
                "environment of `a`: `TZ: Europe/Berlin` is a mapping: write `TZ=Europe/Berlin`",
            ),
            (
                "environment: {A: [b]}",
                "environment of `a`: `A` has a list",
            ),
            (
                "cap_drop: [ALL: ]",
                "cap_drop of `a`: `ALL:` is a mapping: write `ALL`",
            ),
            ("cap_add: {ALL: }", "cap_add of `a`: it is a list"),
            (
                "security_opt: [no-new-privileges: true]",
                "write `no-new-privileges:true`",
            ),
            (
                "command: [echo, a: b]",
                "`a: b` is a mapping: write it in quotes",
            ),
            ("entrypoint: [[a]]", "entrypoint of `a`: an item is a list"),
            ("labels: [a.b: c]", "write `a.b=c`"),
            ("sysctls: [net.a: 1]", "write `net.a=1`"),
            ("extra_hosts: [box: 1.2.3.4]", "write `box=1.2.3.4`"),
            ("tmpfs: [/run: size=1m]", "write `/run:size=1m`"),
            ("links: [b: db]", "write `b:db`"),
            ("dns: [a: 1]", "dns of `a`"),
            (
                "secrets: {source: s, mode: 0o400}",
                "secrets of `a`: it is a list",
            ),
            ("ports: {80: 80}", "ports of `a`: it is a list"),
            ("group_add: [a: 1]", "group_add of `a`"),
            ("networks: [front: {aliases: [x]}]", "networks of `a`"),
            (
                "depends_on: [b: {condition: service_healthy}]",
                "depends_on of `a`: an item is a list or mapping",
            ),
            (
                "depends_on: {b: service_healthy}",
                "write its settings below `b`",
            ),
            (
                "depends_on: {b: {condition: service_completed_succesfully}}",
                "b: there is no condition `service_completed_succesfully`, only `service_",
            ),
            (
                "volumes: [{type: bind, target: /x}]",
                "volumes of `a`: a bind mount needs a `source`",
            ),
            (
                "volumes: ['/y:/y', {type: bind, source: '', target: /x}]",
                "volumes of `a`: a bind mount needs a `source`",
            ),
            (
                "depends_on: [b, a]",
                "depends_on of `a`: it waits for itself",
            ),
            ("links: [a]", "depends_on of `a`: it waits for itself"),
            (
                "healthcheck: {test: [curl, x]}",
                "healthcheck of `a`: test: a list begins with `CMD`, `CMD-SHELL` or `NONE`",
            ),
            (
                "healthcheck: {test: [CMD, a: b]}",
                "healthcheck of `a`: test: `a: b` is a mapping",
            ),
            ("privileged: maybe", "privileged of `a`: `maybe` is neither"),
            (
                "healthcheck: {disable: x}",
                "healthcheck of `a`: disable: `x`",
            ),
            ("user: ['1000']", "user of `a`: it is one value"),
            ("environment: !override [A: b]", "write `A=b`"),
        ] {
            let text = format!("services: {{a: {{image: 'a:1', {service}}}, b: {{image: 'b:1'}}}}");
            let why = compose(&text).err().unwrap_or_else(|| panic!("{service}"));
            assert!(why.contains(expected), "{service}: {why}");
            // The first form of the files has no `services`.
            let text = format!("a: {{image: 'a:1', {service}}}\nb: {{image: 'b:1'}}");
            assert!(compose(&text).is_err(), "{service}");
        }
        // All at once, also what another file is put over.
        let files = [
            (
                "1.yaml",
                "services: {a: {image: x, environment: [A: b], cap_drop: [ALL: ]}}",
            ),
            ("2.yaml", "services: {a: {environment: [C=d]}}"),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let made = converted(&Given::Files(files.into()), &fixtures().join("none"), &[]);
        let why = made.err().unwrap_or_default();
        assert!(
            why.starts_with("1.yaml: ") && why.contains("`A=b`; cap_drop of `a`"),
            "{why}"
        );
    }

    #[test]
    fn what_another_file_or_a_profile_puts_right_is_taken() {
        let base = |service: &str| format!("services: {{a: {{image: 'a:1', {service}}}}}");
        let check = "healthcheck: {test: [curl, x]}";
        let mended = "services: {a: {healthcheck: {test: [CMD, curl, x]}}}";
        let volume = "volumes: [{type: bind, target: /x}]";
        let other = "b: {image: 'b:1', profiles: [p], healthcheck: {test: [curl, x]}, volumes: [{type: bind}]}";
        for (first, second) in [
            (base(check), mended),
            (
                base(check),
                "services: {a: {healthcheck: !override {test: [CMD, x]}}}",
            ),
            (
                base(volume),
                "services: {a: {volumes: !override ['/y:/x']}}",
            ),
            (
                base(volume),
                "services: {a: {volumes: [{type: bind, source: /y, target: /x}]}}",
            ),
            (base(volume), "services: {a: {volumes: !reset []}}"),
            (
                format!("services: {{a: {{image: 'a:1'}}, {other}}}"),
                "services: {}",
            ),
            (
                format!(
                    "services: {{{other}, a: {{extends: b, profiles: !reset [], {}, volumes: !reset []}}}}",
                    "healthcheck: {test: [NONE]}"
                ),
                "services: {}",
            ),
        ] {
            let files = [("1.yaml", &*first), ("2.yaml", second)];
            let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
            let made = converted(&Given::Files(files.into()), &fixtures().join("none"), &[]);
            whole(&made.unwrap_or_else(|why| panic!("{first} {second}: {why}")));
        }
        // All of one service at once.
        let why = compose(&base(&format!("{check}, {volume}"))).err();
        let why = why.unwrap_or_default();
        assert!(
            why.contains("needs a `source`; healthcheck of `a`: test: a list"),
            "{why}"
        );
    }

    #[test]
    fn switches_and_lists_of_every_valid_form_are_taken() {
        for service in [
            "privileged: ''",
            "tty: 'No', stdin_open: off, init: 0",
            "environment: [A=b, 1, true, ], labels: {a: , b: 1}",
            "depends_on: {b: {condition: service_started}}",
            "networks: {front: , back: {}}",
            "extra_hosts: {a: [1.2.3.4, '::1']}",
            "cap_drop: !reset [ALL: ], environment: {A: !reset null}",
        ] {
            let text = format!("services: {{a: {{image: 'a:1', {service}}}, b: {{image: 'b:1'}}}}");
            whole(&compose(&text).unwrap_or_else(|why| panic!("{service}: {why}")));
        }
    }

    #[test]
    fn settings_that_there_are_not_are_named() {
        for (service, path) in [
            (
                "deploy: {resources: {limits: {cpu: 1}}}",
                "deploy.resources.limits.cpu: there is no such setting, only cpus, memory, pids",
            ),
            (
                "deploy: {resources: {reservation: {cpus: 1}}}",
                "deploy.resources.reservation:",
            ),
            (
                "deploy: {resources: {reservations: {mem: 1g}}}",
                "deploy.resources.reservations.mem:",
            ),
            ("deploy: {replica: 2}", "deploy.replica:"),
            (
                "deploy: {restart_policy: {conditions: any}}",
                "deploy.restart_policy.conditions:",
            ),
            (
                "healthcheck: {test: 'true', intervall: 5s}",
                "healthcheck.intervall:",
            ),
            ("ports: [{target: 80, publish: 80}]", "ports.publish:"),
            (
                "depends_on: {b: {conditions: x}}",
                "depends_on.b.conditions:",
            ),
            ("secrets: [{source: s, targets: x}]", "secrets.targets:"),
            ("env_file: [{path: x, require: false}]", "env_file.require:"),
        ] {
            says(
                &format!("  a: {{image: 'a:1', {service}}}\n  b: {{image: 'b:1'}}\n"),
                &[&format!("not carried over: {path}")],
                &[],
            );
        }
        says(
            "  a: {image: 'a:1', healthcheck: {test: 'true', x-mine: 1}, deploy: {x-a: {}}}\n",
            &[],
            &["no such setting"],
        );
    }
}
