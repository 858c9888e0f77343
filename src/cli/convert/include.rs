//! What a compose project has in other files: those that it includes or extends, whose paths begin at their own folder.

use super::Source;
use super::interpolate::{EnvFile, Variables, env_file, unset};
use super::project::{merged, read};
use super::tree::{entries, find, inner, items, scalar, scalars};
use crate::spec::value::Value;

/// Limit of files that a project includes.
const MAX_FILES: usize = 100;

/// What an included file adds to the project, and whether it may be there already with other contents.
const TOP: &[(&str, bool)] = &[
    ("services", false),
    ("volumes", false),
    ("secrets", false),
    ("configs", false),
    ("networks", true),
];

/// Adds what a file includes, and what that includes. `lost` gets what is not carried over.
pub(super) fn include(
    whole: &mut Value,
    source: &Source<'_>,
    variables: &Variables<'_>,
    lost: &mut Vec<String>,
) -> Result<(), String> {
    let mut left = MAX_FILES;
    files(whole, source, variables, &mut left, lost)
}

fn files(
    whole: &mut Value,
    source: &Source<'_>,
    variables: &Variables<'_>,
    left: &mut usize,
    lost: &mut Vec<String>,
) -> Result<(), String> {
    let Some(list) = whole.get("include").cloned() else {
        return Ok(());
    };
    whole.remove("include");
    for item in items(Some(&list)) {
        let paths = match item {
            Value::Map(_) => scalars(item.get("path")),
            single => scalars(Some(single)),
        };
        let Some(first) = paths.first() else {
            continue;
        };
        let own = scalar(item, "project_directory");
        let own = own.unwrap_or_else(|| folder(first));
        let around = |name: &str| variables.get(name);
        let set = of_files(item, own, first, source, &around)?;
        say_unset(&set.missing, lost);
        let lookup = |name: &str| around(name).or_else(|| set.get(name));
        let variables = Variables::new(&lookup);
        let mut other = Value::Map(Vec::new());
        for path in &paths {
            let too_many = || format!("more than {MAX_FILES} files are included: `{path}`");
            *left = left.checked_sub(1).ok_or_else(too_many)?;
            let content = source.text(path)?;
            other = merged("", 0, other, read(&content, path, &variables)?);
        }
        rebase(&mut other, own);
        files(&mut other, source, &variables, left, lost)?;
        say_unset(&variables.missing(), lost);
        variables.say_numbers(lost);
        add(whole, &other, first)?;
    }
    Ok(())
}

/// The variables of an included file's own files. What is not set around it has their values.
fn of_files(
    item: &Value,
    own: &str,
    first: &str,
    source: &Source<'_>,
    around: &dyn Fn(&str) -> Option<String>,
) -> Result<EnvFile, String> {
    let mut contents = Vec::new();
    let given = scalars(item.get("env_file"));
    for path in &given {
        contents.push(source.text(path)?);
    }
    if given.is_empty() {
        let beside = match own {
            "" => ".env".to_owned(),
            own => format!("{}/.env", own.trim_end_matches('/')),
        };
        contents.extend(source.text(&beside));
    }
    let mut set = EnvFile::default();
    for content in contents {
        let found = env_file(&content, around).map_err(|why| format!("{first}: {why}"))?;
        set.add(found);
    }
    Ok(set)
}

fn say_unset(names: &[String], lost: &mut Vec<String>) {
    for name in names {
        lost.push(unset(name));
    }
}

/// Nothing but networks may be in two files, as in compose.
fn add(whole: &mut Value, other: &Value, path: &str) -> Result<(), String> {
    let Value::Map(all) = whole else {
        return Ok(());
    };
    for (top, may_differ) in TOP {
        let new = entries(other.get(top));
        if new.is_empty() {
            continue;
        }
        let there = inner(all, top);
        for (name, value) in new {
            match find(there, name) {
                None => there.push((name.clone(), value.clone())),
                Some(known) if *may_differ || known == value => {}
                Some(_) => {
                    return Err(format!(
                        "`{name}` of `{top}` is in `{path}`, which is included, and elsewhere"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The folder that a path leads into, empty for a bare name.
pub(super) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Has the paths of a file begin at its folder.
pub(super) fn rebase(file: &mut Value, folder: &str) {
    let folder = folder.trim_end_matches('/');
    if folder.is_empty() || folder == "." {
        return;
    }
    let joined = |path: &mut String| {
        if !path.is_empty() && !path.starts_with(['/', '~']) {
            let start = match folder.starts_with(['/', '~', '.']) {
                true => "",
                false => "./",
            };
            *path = format!("{start}{folder}/{}", path.trim_start_matches("./"));
        }
    };
    let joined: &dyn Fn(&mut String) = &joined;
    each(file, "include", &mut |item| {
        path(item, joined);
        each(item, "path", &mut |item| path(item, joined));
        each(item, "env_file", &mut |item| path(item, joined));
        each(item, "project_directory", &mut |item| path(item, joined));
    });
    each(file, "services", &mut |services| {
        for service in values(services) {
            each(service, "env_file", &mut |item| {
                path(item, joined);
                each(item, "path", &mut |item| path(item, joined));
            });
            each(service, "extends", &mut |base| {
                each(base, "file", &mut |item| path(item, joined));
            });
            each(service, "volumes", &mut |volume| mount(volume, joined));
        }
    });
    each(file, "volumes", &mut |all| {
        for volume in values(all) {
            each(volume, "driver_opts", &mut |options| {
                each(options, "device", &mut |item| mount(item, joined));
            });
        }
    });
    for top in &["secrets", "configs"] {
        each(file, top, &mut |all| {
            for object in values(all) {
                each(object, "file", &mut |item| path(item, joined));
            }
        });
    }
}

/// A mount: only a path of the node has to begin like one.
fn mount(volume: &mut Value, joined: &dyn Fn(&mut String)) {
    match volume {
        Value::String(short) if short.starts_with('.') => joined(short),
        Value::Map(_) if scalar(volume, "type") == Some("bind") => {
            each(volume, "source", &mut |item| path(item, joined));
        }
        _ => {}
    }
}

fn path(value: &mut Value, joined: &dyn Fn(&mut String)) {
    if let Value::String(path) = value {
        joined(path);
    }
}

/// Does something with the value of a key, or with each item if it is a list.
fn each(value: &mut Value, key: &str, act: &mut dyn FnMut(&mut Value)) {
    let Value::Map(entries) = value else {
        return;
    };
    for (_, value) in entries.iter_mut().filter(|(k, _)| k == key) {
        match value {
            Value::List(items) => items.iter_mut().for_each(&mut *act),
            single => act(single),
        }
    }
}

/// The values of a mapping.
fn values(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    let entries = match value {
        Value::Map(entries) => &mut entries[..],
        _ => &mut [],
    };
    entries.iter_mut().map(|(_, value)| value)
}
