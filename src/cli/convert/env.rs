//! `environment` and `env_file`: the variables of a container.

use super::interpolate::{EnvFile, env_file_after, raw_env_file, unset};
use super::network::fixed_address;
use super::tree::{Entries, items, map, pairs, scalar, set, text};
use super::words::literal;
use super::work::Work;
use crate::spec::value::Value;

/// Adds the container's variables; those of files go into a ConfigMap.
pub(super) fn environment(work: &Work<'_>, service: &Value, container: &mut Entries) {
    let mut all = Vec::new();
    let mut absent = Vec::new();
    for (name, value) in pairs(service.get("environment")) {
        let known = value.or_else(|| (work.shared.source.variable)(&name));
        let Some(value) = known else {
            absent.push(name);
            continue;
        };
        let same = |item: &Value| item.get("name") == Some(&text(&*name));
        all.retain(|item| !same(item));
        // As in `ADDRESS#PORT`, `http://ADDRESS:PORT/`.
        let services = &work.shared.project.services;
        let mut words = value.split(|c: char| !c.is_ascii_digit() && c != '.');
        if let Some(of) = words.find_map(|word| fixed_address(services, word)) {
            let what = format_args!(
                "environment: {name}: the fixed address of {of}, which it does not have here; use its name"
            );
            work.lost(&mut all, what);
        }
        all.push(map([
            ("name", text(name)),
            ("value", text(literal(&value))),
        ]));
    }
    if !absent.is_empty() {
        let what = format_args!("environment: {}: no value is set", absent.join(", "));
        work.lost(&mut all, what);
    }
    // Secrets that podman gives as variables.
    for item in items(service.get("x-secret-env")) {
        let name = scalar(item, "secret").unwrap_or_default();
        let object = work.shared.named("Secret", &name);
        let key = map([("name", text(&*object)), ("key", text(&*name))]);
        all.push(map([
            ("name", text(scalar(item, "name").unwrap_or_default())),
            ("valueFrom", map([("secretKeyRef", key)])),
        ]));
        let what = format_args!("secret {name}: make a Secret `{object}` with the key `{name}`");
        work.lost(&mut all, what);
    }
    if !all.is_empty() {
        set(container, "env", Value::List(all));
    }
    let mut found: Entries = Vec::new();
    for file in items(service.get("env_file")) {
        let path = file.scalar_text().or_else(|| scalar(file, "path"));
        let path = path.unwrap_or_default();
        let required = scalar(file, "required").is_none_or(|word| word != "false");
        let source = work.shared.source;
        let raw = scalar(file, "format").as_deref() == Some("raw");
        let read = source.text(&path).and_then(|content| match raw {
            true => Ok(EnvFile {
                pairs: raw_env_file(&content, source.variable),
                missing: Vec::new(),
            }),
            false => env_file_after(&content, source.variable, &|name| {
                let mut before = found.iter().rev();
                before.find(|(known, _)| known == name)?.1.scalar_text()
            }),
        });
        match read {
            Ok(file) => {
                for name in file.missing {
                    work.lost(container, format_args!("{path}: {}", unset(&name)));
                }
                for (name, value) in file.pairs {
                    set(&mut found, &name, text(value));
                }
            }
            Err(why) if required => work.lost(container, format_args!("env_file: {why}")),
            Err(_) => {}
        }
    }
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // What `environment` names without a value is not set at all, as in compose.
    found.retain(|(name, _)| !absent.contains(name));
    found.retain(|(name, _)| {
        let valid = !name.is_empty()
            && name.len() < 254
            && name.chars().all(letter)
            && !name.starts_with("..");
        if !valid {
            work.lost(container, format_args!("env_file: the name `{name}`"));
        }
        valid
    });
    if found.is_empty() {
        return;
    }
    let of = format!("env_file {}", work.service);
    let name = format!("{}-env", work.service);
    let name = work.shared.object("ConfigMap", &of, &name);
    work.make(
        "ConfigMap",
        &name,
        vec![("data".to_owned(), Value::Map(found))],
    );
    let from = map([("configMapRef", map([("name", text(name))]))]);
    set(container, "envFrom", Value::List(vec![from]));
}
