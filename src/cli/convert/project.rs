//! Compose files as one project: variables replaced, files merged, `extends` followed, profiles chosen.

use super::Source;
use super::command_line;
use super::include::{folder, include, rebase};
use super::interpolate::{Variables, unset};
use super::network::extra_hosts;
use super::shape;
use super::tree::{Entries, entries, items, map, pairs, scalar, scalars, set, text, texts};
use super::twice;
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

    pub(super) fn has(&self, name: &str) -> bool {
        self.services.iter().any(|(known, _)| known == name)
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

/// The project of compose files, each with its name; later ones override earlier ones. `given` is the name that is asked
/// for.
pub(super) fn load(
    files: &[(String, String)],
    source: &Source<'_>,
    given: Option<&str>,
) -> Result<Project, String> {
    let own_name = name_of(files, source, given);
    let variable = |name: &str| match name {
        NAME => Some(own_name.clone()),
        name => (source.variable)(name),
    };
    let variables = Variables::new(&variable);
    let mut whole = Value::Map(Vec::new());
    let mut left_out = Vec::new();
    for (name, content) in files {
        let mut file = read(content, name, &variables)?;
        // Before the next file, which may say something else about what is included.
        include(&mut file, source, &variables, &mut left_out)?;
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
    let mut project = Project {
        origin: "compose",
        by_docker: true,
        name: (source.variable)(NAME)
            .filter(|name| !name.is_empty())
            .or_else(|| scalar(&whole, "name")),
        volumes: entries(whole.get("volumes")).to_vec(),
        networks: entries(whole.get("networks")).to_vec(),
        secrets: entries(whole.get("secrets")).to_vec(),
        configs: entries(whole.get("configs")).to_vec(),
        left_out,
        ..Project::default()
    };
    // What docker compose takes from the environment and from `.env`, too.
    let by_variable = variables.get("COMPOSE_PROFILES").unwrap_or_default();
    let by_variable = by_variable.split(',').map(|word| word.trim().to_owned());
    let wanted: Vec<String> = match source.profiles {
        [] => by_variable.filter(|word| !word.is_empty()).collect(),
        given => given.to_vec(),
    };
    let mut left = MAX_VALUES;
    bounded(&whole, &mut left)?;
    // What is extended counts each time.
    left = MAX_VALUES;
    for (name, _) in services {
        let mut service = extended(name, &whole, source, &variables, MAX_EXTENDS)?;
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
        let chosen = |profile: &String| profile == "*" || profiles.contains(profile);
        // The empty one is chosen where none is.
        let by_default = wanted.is_empty() && profiles.iter().any(String::is_empty);
        if profiles.is_empty() || by_default || wanted.iter().any(chosen) {
            command_line::check(name, &service)?;
            project.services.push((name.clone(), service));
        } else {
            let profile = &profiles[0];
            project.left_out.push(format!(
                "{name}: it starts only with a profile (`--profile {profile}`)"
            ));
        }
    }
    for (key, _) in entries(Some(&whole)) {
        if !TOP.contains(&&**key) && !key.starts_with("x-") {
            project.left_out.push(key.clone());
        }
    }
    let networks = entries(whole.get("networks"));
    if networks
        .iter()
        .filter(|(name, _)| name != "default")
        .count()
        > 1
        || networks
            .iter()
            .any(|(_, network)| super::tree::is_on(network, "internal"))
    {
        let what = "networks: every pod reaches every pod, and the world";
        project.left_out.push(what.to_owned());
    }
    for (name, network) in networks {
        let own = scalar(network, "driver");
        let local = |driver: &String| matches!(&**driver, "bridge" | "default" | "overlay");
        if let Some(driver) = own.filter(|driver| !local(driver)) {
            let what = format!(
                "networks.{name}: the driver {driver}: pods have addresses of the node's bridge"
            );
            project.left_out.push(what);
        }
    }
    for (list, known) in [("networks", NETWORK), ("volumes", VOLUME)] {
        for (name, declared) in entries(whole.get(list)) {
            let keys = entries(Some(declared)).iter().map(|(key, _)| &**key);
            let lost = keys.filter(|key| !known.contains(key) && !key.starts_with("x-"));
            let lost = lost.map(|key| format!("{list}.{name}.{key}"));
            project.left_out.extend(lost);
        }
    }
    images(&project.services, &variables)?;
    for missing in variables.missing().iter().chain(source.missing) {
        project.left_out.push(unset(missing));
    }
    Ok(project)
}

/// The name by which compose knows a project: the one that is asked for or set, that of its files, or their folder's.
fn name_of(files: &[(String, String)], source: &Source<'_>, given: Option<&str>) -> String {
    let variables = Variables::new(source.variable);
    let of_file = |(_, content): &(String, String)| {
        // What cannot be read is refused later.
        let documents = parse::parse_tagged(content, TAGS).ok()?;
        let name = documents.iter().rev().find_map(|all| scalar(all, "name"))?;
        variables.replace(&name).ok()
    };
    let set = || (source.variable)(NAME).filter(|name| !name.is_empty());
    let name = given.map(str::to_owned).or_else(set);
    let name = name.or_else(|| files.iter().rev().find_map(of_file));
    project_name(&name.unwrap_or_else(|| source.folder_name().to_owned()))
}

/// A name as compose has it for a project: small letters, digits, `-` and `_`.
pub(super) fn project_name(written: &str) -> String {
    let letter = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let name: String = written
        .to_ascii_lowercase()
        .chars()
        .filter(letter)
        .collect();
    name.trim_start_matches(['-', '_']).to_owned()
}

/// Checks that each service has an image, and one that can be.
fn images(services: &Entries, variables: &Variables<'_>) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, service) in services {
        match scalar(service, "image") {
            None if service.get("build").is_some() => {}
            Some(image) if image.is_empty() && service.get("build").is_some() => {}
            None => wrong.push(format!("`{name}` has neither `image` nor `build`")),
            Some(image) => {
                if let Err(why) = ImageName::parse(&image) {
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
    let (count, mut inner): (usize, Box<dyn Iterator<Item = &Value>>) = match value {
        Value::List(items) => (items.len(), Box::new(items.iter())),
        Value::Map(entries) => (entries.len(), Box::new(entries.iter().map(|(_, v)| v))),
        _ => return Ok(()),
    };
    if count > MAX_ENTRIES {
        return Err(format!("more than {MAX_ENTRIES} entries in a list"));
    }
    inner.try_for_each(|value| bounded(value, left))
}

/// A file with its variables replaced.
pub(super) fn read(content: &str, name: &str, variables: &Variables<'_>) -> Result<Value, String> {
    let failed = |problem: crate::spec::error::Problem| {
        let (line, column) = problem.at.unwrap_or((1, 1));
        let hint = problem
            .hint
            .map(|hint| format!("; {}", hint.sentence(None)));
        let hint = hint.unwrap_or_default();
        format!("{name}:{line}:{column}: {}{hint}", problem.message)
    };
    let documents = parse::parse_tagged(content, TAGS).map_err(failed)?;
    twice::refused(content, name, &documents)?;
    let mut whole = Value::Map(Vec::new());
    for mut document in documents {
        let replaced = variables.replace_all(&mut document);
        replaced.map_err(|why| format!("{name}: {why}"))?;
        // Before anything is put over it: what is no text in a list would be lost then.
        shape::refused(&document).map_err(|why| format!("{name}: {why}"))?;
        whole = merged("", 0, whole, document);
    }
    let whole = present(whole);
    shape::refused(&whole).map_err(|why| format!("{name}: {why}"))?;
    Ok(whole)
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
    let of = scalar(base, "service").or_else(|| base.scalar_text());
    let of = of.ok_or_else(|| format!("`{name}` extends nothing"))?;
    let base = match file {
        None => extended(&of, whole, source, variables, depth)?,
        Some(file) => {
            let content = source.text(&file)?;
            let mut other = read(&content, &file, variables)?;
            rebase(&mut other, folder(&file));
            extended(&of, &other, source, variables, depth)?
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
    match (rule, base, over) {
        // Nothing in their place is the image's own.
        ("command" | "entrypoint", _, over) => over,
        (_, base, Value::Null) => base,
        ("extra_hosts", base, over) => {
            let both = [extra_hosts(Some(&base)), extra_hosts(Some(&over))].concat();
            texts(both)
        }
        ("test", _, over) => over,
        ("environment" | "labels" | "annotations" | "sysctls" | "args", base, over) => {
            let mut all = Entries::new();
            for (key, value) in pairs(Some(&base)).into_iter().chain(pairs(Some(&over))) {
                set(&mut all, &key, value.map_or(Value::Null, Value::String));
            }
            for (key, value) in entries(Some(&over)) {
                match tag(value) {
                    Some((RESET, _)) => all.retain(|(known, _)| known != key),
                    Some((_, inside)) => set(&mut all, key, inside.clone()),
                    None => {}
                }
            }
            Value::Map(all)
        }
        ("depends_on" | "networks", Value::List(names), over @ Value::Map(_)) => {
            merged(key, depth, by_name(key, &names), over)
        }
        ("depends_on" | "networks", base @ Value::Map(_), Value::List(names)) => {
            merged(key, depth, base, by_name(key, &names))
        }
        ("volumes" | "devices", Value::List(base), Value::List(over)) => {
            let target = |item: &Value| match item {
                Value::String(short) => {
                    let parts: Vec<&str> = short.split(':').collect();
                    parts
                        .get(1)
                        .or(parts.first())
                        .map(|part| (*part).to_owned())
                }
                long => scalar(long, "target"),
            };
            let replaced = |item: &Value| over.iter().any(|o| target(o) == target(item));
            let mut all: Vec<Value> = base.into_iter().filter(|item| !replaced(item)).collect();
            all.extend(over);
            Value::List(all)
        }
        (_, Value::Map(mut base), Value::Map(over)) => {
            for (key, value) in over {
                let value = match tag(&value) {
                    Some((RESET, _)) => {
                        base.retain(|(known, _)| *known != key);
                        continue;
                    }
                    Some((_, inside)) => {
                        set(&mut base, &key, inside.clone());
                        continue;
                    }
                    None => value,
                };
                match base.iter_mut().find(|(k, _)| *k == key) {
                    Some((_, old)) => {
                        let former = std::mem::replace(old, Value::Null);
                        // Nothing came before the first file.
                        let former = match tag(&former) {
                            Some((RESET, _)) => Value::Null,
                            Some((_, inside)) => inside.clone(),
                            None => former,
                        };
                        *old = merged(&key, depth + 1, former, value);
                    }
                    None => base.push((key, value)),
                }
            }
            Value::Map(base)
        }
        (_, Value::List(mut base), Value::List(over)) => {
            for item in over {
                if !base.contains(&item) {
                    base.push(item);
                }
            }
            Value::List(base)
        }
        ("env_file" | "dns" | "dns_search" | "tmpfs", base, over) => {
            let both = items(Some(&base)).into_iter().chain(items(Some(&over)));
            Value::List(both.cloned().collect())
        }
        (_, _, over) => over,
    }
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
    let names = names.iter().filter_map(Value::scalar_text);
    let meant = || match key {
        "depends_on" => map([("condition", text("service_started"))]),
        _ => Value::Null,
    };
    Value::Map(names.map(|name| (name, meant())).collect())
}
