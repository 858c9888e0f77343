//! Compose files as one project: variables replaced, files merged, `extends` followed, profiles chosen.

use std::fmt;

use super::Source;
use super::command_line;
use super::include::{folder, include, rebase};
use super::interpolate::{Variables, unset};
use super::network::extra_hosts;
use super::order::after;
use super::shape;
use super::tree::{
    Entries, entries, find_mut, has, is_on, items, map, map_of_texts, pairs, plain, remove, scalar,
    scalars, set, text, texts, word,
};
use super::twice;
use super::unit::Unit;
use crate::spec::value::{MAX_VALUES, Value};
use crate::spec::{ImageName, parse};

/// What is to be converted, in compose's words; quadlet units and command lines are brought into this form.
#[derive(Debug, Default)]
pub(super) struct Project {
    /// Where it comes from, the first word of each comment.
    pub(super) origin: &'static str,
    /// It is docker's, which lets all users listen on low ports.
    pub(super) by_docker: bool,
    /// Its name, if it has one.
    pub(super) name: Option<String>,
    /// Services by name.
    pub(super) services: Entries,
    /// Its volumes by name.
    pub(super) volumes: Entries,
    /// Its networks by name.
    pub(super) networks: Entries,
    /// Its secrets by name.
    pub(super) secrets: Entries,
    /// Its configs by name.
    pub(super) configs: Entries,
    /// What concerns it as a whole and is not carried over.
    pub(super) left_out: Vec<String>,
    /// Manifests that are there already.
    pub(super) manifests: Vec<(String, String)>,
}

impl Project {
    /// Adds a service whose name is its own.
    pub(super) fn add(&mut self, name: String, service: Value) -> Result<(), String> {
        if self.has(&name) {
            return Err(format!(
                "two containers are called `{name}`: each needs a name of its own"
            ));
        }
        self.services.push((name, service));
        Ok(())
    }

    /// Notes what of a unit is not carried over.
    pub(super) fn leave_out(&mut self, unit: &Unit, what: fmt::Arguments<'_>) {
        let sentence = format!("{}.{}: {what}", unit.name, unit.kind);
        self.left_out.push(sentence);
    }

    pub(super) fn has(&self, name: &str) -> bool {
        has(&self.services, name)
    }
}

/// What a file may have at its top.
const TOP: [&str; 8] = [
    "name", "version", "services", "volumes", "secrets", "configs", "networks", "include",
];

/// Settings of a network that are carried over, hold anyway, or have no effect.
const NETWORK: &[&str] = &[
    "attachable",
    "driver",
    "external",
    "internal",
    "labels",
    "name",
];

/// The same of a volume.
const VOLUME: &[&str] = &["driver", "driver_opts", "external", "labels", "name"];

/// Limit of services that extend each other in a row.
const MAX_EXTENDS: usize = 16;

/// Limit of services.
const MAX_SERVICES: usize = 200;

/// Limit of entries in one list or mapping.
const MAX_ENTRIES: usize = 2000;

/// The variable that has the project's name in its files.
const NAME: &str = "COMPOSE_PROJECT_NAME";

/// Makes a project of compose files, each with its name; later ones override earlier ones. `given` is the name that is
/// asked for.
pub(super) fn load(
    files: &[(String, String)],
    source: &Source<'_>,
    given: Option<&str>,
    project: &mut Project,
) -> Result<(), String> {
    let own_name = name_of(files, source, given);
    let variable = |name: &str| match name {
        NAME => Some(own_name.clone()),
        name => (source.variable)(name),
    };
    let variables = Variables::new(&variable);
    let mut whole = Value::Map(Vec::new());
    for (name, content) in files {
        let mut file = read(content, name, &variables)?;
        // Before the next file, which may say something else about what is included.
        include(&mut file, source, &variables, &mut project.left_out)?;
        whole = merged("", 0, whole, file);
    }
    if let Value::Map(all) = &mut whole {
        // Services may extend others, over which their tags have a say.
        let others = all.iter_mut().filter(|(key, _)| key != "services");
        others.for_each(|(_, value)| untag(value));
    }
    let services = entries(whole.get("services"));
    if services.is_empty() {
        return Err("it has no `services`".to_owned());
    }
    if services.len() > MAX_SERVICES {
        return Err(format!("more than {MAX_SERVICES} services"));
    }
    let of = |key: &str| entries(whole.get(key)).to_vec();
    project.by_docker = true;
    project.name = set_name(source).or_else(|| scalar(&whole, "name").map(str::to_owned));
    project.volumes = of("volumes");
    project.networks = of("networks");
    project.secrets = of("secrets");
    project.configs = of("configs");
    let mut left = MAX_VALUES;
    bounded(&whole, &mut left)?;
    choose(&whole, source, &variables, project)?;
    leave_out(&whole, &mut project.left_out);
    images(&project.services, &variables)?;
    variables.say_numbers(&mut project.left_out);
    for missing in variables.missing().iter().chain(source.missing) {
        project.left_out.push(unset(missing));
    }
    Ok(())
}

/// Adds the services whose profiles are wanted.
fn choose(
    whole: &Value,
    source: &Source<'_>,
    variables: &Variables<'_>,
    project: &mut Project,
) -> Result<(), String> {
    // What docker compose takes from the environment and from `.env`, too.
    let by_variable = variables.get("COMPOSE_PROFILES").unwrap_or_default();
    let by_variable = by_variable.split(',').map(str::trim);
    let wanted: Vec<&str> = match source.profiles {
        [] => by_variable.filter(|word| !word.is_empty()).collect(),
        given => given.iter().map(|word| &**word).collect(),
    };
    // What is extended counts each time.
    let mut left = MAX_VALUES;
    for (name, _) in entries(whole.get("services")) {
        let mut service = extended(name, whole, source, variables, MAX_EXTENDS)?;
        untag(&mut service);
        if service == Value::Null {
            continue;
        }
        if service.get("provider").is_some() {
            let what = "a program that compose calls provides it";
            project.left_out.push(format!("{name}: {what}"));
            continue;
        }
        bounded(&service, &mut left)?;
        let profiles = scalars(service.get("profiles"));
        let chosen = |profile: &&str| *profile == "*" || profiles.contains(profile);
        // The empty one is chosen where none is.
        let by_default = wanted.is_empty() && profiles.contains(&"");
        match profiles.first() {
            Some(profile) if !by_default && !wanted.iter().any(chosen) => {
                let what = format!("{name}: it starts only with a profile (`--profile {profile}`)");
                project.left_out.push(what);
            }
            _ => {
                command_line::check(name, &service)?;
                shape::check(name, &service)?;
                if after(&service).iter().any(|on| on.of == name) {
                    return Err(format!("depends_on of `{name}`: it waits for itself"));
                }
                project.services.push((name.clone(), service));
            }
        }
    }
    Ok(())
}

/// Says what of a file is not carried over, but for its services.
fn leave_out(whole: &Value, left_out: &mut Vec<String>) {
    for (key, _) in entries(Some(whole)) {
        if !TOP.contains(&&**key) && !key.starts_with("x-") {
            left_out.push(key.clone());
        }
    }
    let networks = entries(whole.get("networks"));
    let others = networks.iter().filter(|(name, _)| name != "default");
    let is_internal = |(_, network): &(String, Value)| is_on(network, "internal");
    if others.count() > 1 || networks.iter().any(is_internal) {
        let what = "networks: every pod reaches every pod, and the world";
        left_out.push(what.to_owned());
    }
    for (name, network) in networks {
        let own = scalar(network, "driver");
        if let Some(driver) = own.filter(|own| !["bridge", "default", "overlay"].contains(own)) {
            left_out.push(format!(
                "networks.{name}: the driver {driver}: pods have addresses of the node's bridge"
            ));
        }
    }
    for (list, known) in &[("networks", NETWORK), ("volumes", VOLUME)] {
        for (name, declared) in entries(whole.get(list)) {
            for (key, _) in entries(Some(declared)) {
                if !known.contains(&&**key) && !key.starts_with("x-") {
                    left_out.push(format!("{list}.{name}.{key}"));
                }
            }
        }
    }
}

/// The project's name that is set outside its files.
fn set_name(source: &Source<'_>) -> Option<String> {
    (source.variable)(NAME).filter(|name| !name.is_empty())
}

/// The name by which compose knows a project: the one that is asked for or set, that of its files, or their folder's.
fn name_of(files: &[(String, String)], source: &Source<'_>, given: Option<&str>) -> String {
    let variables = Variables::new(source.variable);
    let of_file = |(_, content): &(String, String)| {
        // What cannot be read is refused later.
        let documents = parse::parse_tagged(content, TAGS).ok()?;
        let mut names = documents.iter().rev().filter_map(|all| all.get("name"));
        let name = names.find(|name| **name != Value::Null)?.scalar_text()?;
        variables.replace(&name).ok()
    };
    let name = given.map(str::to_owned).or_else(|| set_name(source));
    let name = name.or_else(|| files.iter().rev().find_map(of_file));
    project_name(&name.unwrap_or_else(|| source.folder_name().to_owned()))
}

/// A name as compose has it for a project: small letters, digits, `-` and `_`.
pub(super) fn project_name(written: &str) -> String {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name = written.to_ascii_lowercase().replace(|c| !letter(c), "");
    name.trim_start_matches(['-', '_']).to_owned()
}

/// Checks that each service has an image, and one that can be.
fn images(services: &Entries, variables: &Variables<'_>) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, service) in services {
        match scalar(service, "image") {
            None | Some("") if service.get("build").is_some() => {}
            None => wrong.push(format!("`{name}` has neither `image` nor `build`")),
            Some(image) => {
                if let Err(why) = ImageName::parse(image) {
                    wrong.push(format!("image `{image}` of `{name}`: {why}"));
                }
            }
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let missing = variables.missing();
    if !missing.is_empty() {
        let names = missing.join("`, `$");
        wrong.push(format!(
            "not set are `${names}`: set them in the environment, `.env` or --env-file"
        ));
    }
    Err(wrong.join("; "))
}

/// Checks that no list is longer than a person would write it, and counts all values down.
pub(super) fn bounded(value: &Value, left: &mut usize) -> Result<(), String> {
    let too_many = || format!("more than {MAX_VALUES} values");
    *left = left.checked_sub(1).ok_or_else(too_many)?;
    let count = match value {
        Value::List(items) => items.len(),
        Value::Map(entries) => entries.len(),
        _ => return Ok(()),
    };
    if count > MAX_ENTRIES {
        return Err(format!("more than {MAX_ENTRIES} entries in a list"));
    }
    match value {
        Value::List(items) => items.iter().try_for_each(|item| bounded(item, left)),
        value => {
            let mut inner = entries(Some(value)).iter();
            inner.try_for_each(|(_, value)| bounded(value, left))
        }
    }
}

/// A file with its variables replaced.
pub(super) fn read(content: &str, name: &str, variables: &Variables<'_>) -> Result<Value, String> {
    let failed = |problem: crate::spec::error::Problem| {
        let (line, column) = problem.at.unwrap_or((1, 1));
        let mut hint = String::new();
        if let Some(of) = problem.hint {
            hint = format!("; {}", of.sentence(None));
        }
        format!("{name}:{line}:{column}: {}{hint}", problem.message)
    };
    let documents = parse::parse_tagged(content, TAGS).map_err(failed)?;
    twice::refused(content, name, &documents)?;
    variables.note_numbers(content);
    let put_together = || {
        let mut whole = Value::Map(Vec::new());
        for mut document in documents {
            variables.replace_all(&mut document)?;
            plain(&mut document);
            // Before anything is put over it: what is no text in a list would be lost then.
            shape::refused(&document)?;
            whole = merged("", 0, whole, document);
        }
        let whole = present(whole);
        shape::refused(&whole)?;
        Ok(whole)
    };
    put_together().map_err(|why: String| format!("{name}: {why}"))
}

/// A file as compose has it today. The first ones had nothing but services.
fn present(mut file: Value) -> Value {
    let Value::Map(all) = &mut file else {
        return file;
    };
    let is_service = |(key, value): &(String, Value)| {
        matches!(value, Value::Map(_)) && !TOP.contains(&&**key) && !key.starts_with("x-")
    };
    if all.is_empty() || !all.iter().all(is_service) {
        return file;
    }
    for (_, service) in all.iter_mut() {
        if let Value::Map(service) = service {
            let net = service.iter_mut().filter(|(key, _)| key == "net");
            net.for_each(|(key, _)| "network_mode".clone_into(key));
        }
    }
    map([("services", file)])
}

/// A service with what it extends.
fn extended(
    name: &str,
    whole: &Value,
    source: &Source<'_>,
    variables: &Variables<'_>,
    depth: usize,
) -> Result<Value, String> {
    let services = whole.get("services");
    let service = services.and_then(|services| services.get(name));
    let service = service.ok_or_else(|| format!("the service `{name}` does not exist"))?;
    let Some(base) = service.get("extends") else {
        return Ok(service.clone());
    };
    let too_deep = || format!("services extend each other without an end: `{name}`");
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let file = scalar(base, "file");
    let of = scalar(base, "service").or_else(|| word(base));
    let of = of.ok_or_else(|| format!("`{name}` extends nothing"))?;
    let base = match file {
        None => extended(of, whole, source, variables, depth)?,
        Some(file) => {
            let content = source.text(file)?;
            let mut other = read(&content, file, variables)?;
            rebase(&mut other, folder(file));
            extended(of, &other, source, variables, depth)?
        }
    };
    let mut own = service.clone();
    own.remove("extends");
    Ok(merged("", 2, base, own))
}

/// Puts a value over another one, by compose's rules for its key. `depth` is 0 for a whole file, 2 for a service.
pub(super) fn merged(key: &str, depth: usize, base: Value, over: Value) -> Value {
    // What is called `test` at the top is a service.
    let rule = if depth > 2 { key } else { "" };
    let (mut base, mut over) = (base, over);
    match rule {
        // Nothing in their place is the image's own.
        "command" | "entrypoint" => return over,
        _ if over == Value::Null => return base,
        "test" => return over,
        "extra_hosts" => {
            return texts([extra_hosts(Some(&base)), extra_hosts(Some(&over))].concat());
        }
        "environment" | "labels" | "annotations" | "sysctls" | "args" => {
            return merged_pairs(&base, &over);
        }
        "depends_on" | "networks" => match (&base, &over) {
            (Value::List(names), Value::Map(_)) => base = by_name(key, names),
            (Value::Map(_), Value::List(names)) => over = by_name(key, names),
            _ => {}
        },
        _ => {}
    }
    match (base, over) {
        (Value::Map(mut base), Value::Map(over)) => {
            merge_maps(&mut base, over, depth);
            Value::Map(base)
        }
        (Value::List(mut base), Value::List(over)) => {
            if ["volumes", "devices"].contains(&rule) {
                base.retain(|item| over.iter().all(|other| target(other) != target(item)));
                base.extend(over);
            } else {
                for item in over {
                    if !base.contains(&item) {
                        base.push(item);
                    }
                }
            }
            Value::List(base)
        }
        (base, over) if ["env_file", "dns", "dns_search", "tmpfs"].contains(&rule) => {
            Value::List([items(Some(&base)), items(Some(&over))].concat())
        }
        (_, over) => over,
    }
}

/// Pairs over others, whether they are a mapping or a list.
fn merged_pairs(base: &Value, over: &Value) -> Value {
    let mut all = Entries::new();
    for value in [base, over] {
        for (key, value) in pairs(Some(value)) {
            set(&mut all, key, value.map_or(Value::Null, text));
        }
    }
    for (key, value) in entries(Some(over)) {
        match tag(value) {
            Some((RESET, _)) => remove(&mut all, key),
            Some((_, inside)) => set(&mut all, key, inside.clone()),
            None => {}
        }
    }
    Value::Map(all)
}

fn merge_maps(base: &mut Entries, over: Entries, depth: usize) {
    for (key, value) in over {
        match tag(&value) {
            Some((RESET, _)) => remove(base, &key),
            Some((_, inside)) => set(base, &key, inside.clone()),
            None => match find_mut(base, &key) {
                Some(old) => {
                    // Nothing came before the first file.
                    let former = match tag(old) {
                        Some((RESET, _)) => Value::Null,
                        Some((_, inside)) => inside.clone(),
                        None => std::mem::replace(old, Value::Null),
                    };
                    *old = merged(&key, depth + 1, former, value);
                }
                None => base.push((key, value)),
            },
        }
    }
}

/// Where a volume or device is put into the container.
fn target(item: &Value) -> Option<&str> {
    let Some(short) = word(item) else {
        return scalar(item, "target");
    };
    let mut parts = short.split(':');
    let first = parts.next();
    parts.next().or(first)
}

/// The tags by which a file takes a value of an earlier one away, and puts another in its place.
pub(super) const RESET: &str = "!reset";
pub(super) const TAGS: &[&str] = &[RESET, "!override"];

/// The tag of a value, and the value.
pub(super) fn tag(value: &Value) -> Option<(&str, &Value)> {
    match value {
        Value::Map(entries) => match &entries[..] {
            [(tag, inside)] if TAGS.contains(&&**tag) => Some((tag, inside)),
            _ => None,
        },
        _ => None,
    }
}

/// Does what tags say where no other file has a say.
fn untag(value: &mut Value) {
    while let Some((tag, inside)) = tag(value) {
        *value = match tag {
            RESET => Value::Null,
            _ => inside.clone(),
        };
    }
    match value {
        Value::Map(entries) => {
            entries.retain(|(_, value)| !matches!(tag(value), Some((RESET, _))));
            entries.iter_mut().for_each(|(_, value)| untag(value));
        }
        Value::List(items) => items.iter_mut().for_each(untag),
        _ => {}
    }
}

/// Names as the mapping that they are short for: in one of networks, nothing is asked of them.
fn by_name(key: &str, names: &[Value]) -> Value {
    let mut all = Entries::new();
    for name in names.iter().filter_map(word) {
        let meant = match key {
            "depends_on" => map_of_texts(&[("condition", "service_started")]),
            _ => Value::Null,
        };
        all.push((name.to_owned(), meant));
    }
    Value::Map(all)
}
