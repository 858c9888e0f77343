//! `environment` and `env_file`: the variables of a container.

use super::interpolate::{env_file_after, raw_env_file, unset};
use super::mounts::key_of;
use super::network::fixed_address;
use super::tree::{
    Entries, find, items, map, map_of_texts, pairs, scalar, set, set_list, set_text, word,
};
use super::words::literal;
use super::work::Work;
use crate::spec::value::Value;

/// Adds the container's variables; those of files go into a ConfigMap.
pub(super) fn environment(work: &Work<'_>, service: &Value, container: &mut Entries) {
    let mut all = Vec::new();
    let mut absent = Vec::new();
    for (name, value) in pairs(service.get("environment")) {
        let known = value.map(str::to_owned);
        match known.or_else(|| (work.shared.source.variable)(name)) {
            Some(value) => variable(work, name, &value, &mut all),
            None => absent.push(name),
        }
    }
    if !absent.is_empty() {
        let what = format_args!("environment: {}: no value is set", absent.join(", "));
        work.lost(&mut all, what);
    }
    for item in items(service.get("x-secret-env")) {
        of_secret(work, item, &mut all);
    }
    set_list(container, "env", all);
    let mut found = Entries::new();
    for file in items(service.get("env_file")) {
        of_file(work, file, &mut found, container);
    }
    // What `environment` names without a value is not set at all, as in compose.
    found.retain(|(name, _)| !absent.contains(&&**name) && is_valid(work, name, container));
    if !found.is_empty() {
        config_map(work, found, container);
    }
}

fn variable(work: &Work<'_>, name: &str, value: &str, all: &mut Vec<Value>) {
    all.retain(|item| scalar(item, "name") != Some(name));
    // As in `ADDRESS#PORT`, `http://ADDRESS:PORT/`.
    let services = &work.shared.project.services;
    let mut words = value.split(|c: char| !c.is_ascii_digit() && c != '.');
    if let Some(of) = words.find_map(|word| fixed_address(services, word)) {
        let what = format_args!(
            "environment: {name}: the fixed address of {of}, which it does not have here; use its name"
        );
        work.lost(all, what);
    }
    all.push(map_of_texts(&[("name", name), ("value", &literal(value))]));
}

/// A secret that podman gives as a variable.
fn of_secret(work: &Work<'_>, item: &Value, all: &mut Vec<Value>) {
    let name = scalar(item, "secret").unwrap_or_default();
    let object = work.shared.named("Secret", name);
    let key = key_of(name);
    let from = map_of_texts(&[("name", &object), ("key", &key)]);
    let mut variable = Entries::new();
    set_text(
        &mut variable,
        "name",
        scalar(item, "name").unwrap_or_default(),
    );
    set(&mut variable, "valueFrom", map([("secretKeyRef", from)]));
    all.push(Value::Map(variable));
    let what = format_args!("secret {name}: make a Secret `{object}` with the key `{key}`");
    work.lost(all, what);
}

/// The variables of a file.
fn of_file(work: &Work<'_>, file: &Value, found: &mut Entries, container: &mut Entries) {
    let path = word(file).or_else(|| scalar(file, "path"));
    let path = path.unwrap_or_default();
    let source = work.shared.source;
    let read = source.text(path).and_then(|content| {
        let before = |name: &str| find(found, name).and_then(word).map(str::to_owned);
        match scalar(file, "format") {
            Some("raw") => Ok(raw_env_file(&content, source.variable)),
            _ => env_file_after(&content, source.variable, &before),
        }
    });
    match read {
        Ok(file) => {
            for name in &file.missing {
                work.lost(container, format_args!("{path}: {}", unset(name)));
            }
            for (name, value) in &file.pairs {
                set_text(found, name, value);
            }
        }
        Err(_) if scalar(file, "required") == Some("false") => {}
        Err(why) => work.lost(container, format_args!("env_file: {why}")),
    }
}

fn is_valid(work: &Work<'_>, name: &str, container: &mut Entries) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let valid =
        !name.is_empty() && name.len() < 254 && name.chars().all(letter) && !name.starts_with("..");
    if !valid {
        work.lost(container, format_args!("env_file: the name `{name}`"));
    }
    valid
}

fn config_map(work: &Work<'_>, found: Entries, container: &mut Entries) {
    let of = format!("env_file {}", work.service);
    let name = format!("{}-env", work.service);
    let name = work.shared.object("ConfigMap", &of, &name);
    let mut content = Entries::new();
    set(&mut content, "data", Value::Map(found));
    work.make("ConfigMap", &name, content);
    let from = map([("configMapRef", map_of_texts(&[("name", &name)]))]);
    set(container, "envFrom", Value::List(vec![from]));
}
