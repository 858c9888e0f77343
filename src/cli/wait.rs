//! `coracle wait`: until an object has a condition, a value, or is there, or is gone (kubectl's `wait`).

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::args::{Resource, WaitArgs};
use super::chosen::is_blank;
use super::client::Client;
use super::error::{CliError, Result};
use super::get::{self, collection};
use super::jsonpath::Template;
use super::put;
use super::target::targets;
use crate::api::encode;
use crate::sys::clock;
use crate::types::duration_ms;

/// The wait of a negative `--timeout`, as in kubectl.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Poll interval where a watch is not possible, and while the agent restarts.
const AGAIN: Duration = Duration::from_millis(500);

/// How what is waited for may be written, or begins.
pub(super) const FORMS: [&str; 4] = ["condition=", "jsonpath=", "create", "delete"];

/// What is waited for.
#[derive(Debug, PartialEq)]
enum Wanted {
    /// The object exists.
    Created,
    /// It does not.
    Deleted,
    /// Its condition of this type has this status.
    Condition { type_: String, status: String },
    /// The template prints this; `None`: anything.
    Value(Template, Option<String>),
}

impl Wanted {
    fn parse(text: &str) -> Result<Self> {
        let condition = |pair: &str| {
            let (type_, status) = pair.split_once('=').unwrap_or((pair, "True"));
            (!type_.is_empty() && !status.is_empty()).then(|| Self::Condition {
                type_: type_.to_owned(),
                status: status.to_owned(),
            })
        };
        let (word, rest) = text.split_once('=').unwrap_or((text, ""));
        let wanted = match (word.to_lowercase().as_str(), rest) {
            ("create", "") => Some(Self::Created),
            ("delete", "") => Some(Self::Deleted),
            ("condition", pair) => condition(pair),
            ("jsonpath", path) if !path.is_empty() => Some(value(path)?),
            _ => None,
        };
        wanted.ok_or_else(|| {
            CliError::usage(format!(
                "`--for={text}` says nothing that can be waited for"
            ))
            .hint("one of condition=TYPE[=STATUS], jsonpath='{PATH}'[=VALUE], create, delete")
        })
    }

    fn holds(&self, object: Option<&Value>) -> bool {
        let Some(object) = object else {
            return *self == Self::Deleted;
        };
        match self {
            Self::Created => true,
            Self::Deleted => false,
            Self::Condition { type_, status } => {
                let is = |value: &Value, wanted: &str| {
                    value
                        .as_str()
                        .is_some_and(|given| given.eq_ignore_ascii_case(wanted))
                };
                let conditions = object["status"]["conditions"].as_array();
                let mut conditions = conditions.into_iter().flatten();
                conditions.any(|c| is(&c["type"], type_) && is(&c["status"], status))
            }
            Self::Value(template, wanted) => {
                let printed = template.print_so_far(object);
                match wanted {
                    Some(wanted) => printed == *wanted,
                    None => !printed.is_empty(),
                }
            }
        }
    }
}

/// Parses `{.status.phase}=Running`, with or without braces; a path may have `==` in it.
fn value(text: &str) -> Result<Wanted> {
    let (path, wanted) = match text.rfind('}') {
        Some(end) if text.starts_with('{') => {
            let (path, rest) = text.split_at(end + 1);
            let wanted = match rest.strip_prefix('=') {
                None if !rest.is_empty() => {
                    return Err(CliError::usage(format!("`{rest}` follows `{path}`"))
                        .hint("write jsonpath='{PATH}'=VALUE"));
                }
                wanted => wanted,
            };
            (path.to_owned(), wanted)
        }
        _ if text.starts_with('{') => {
            return Err(CliError::usage(format!("`{text}` has no closing brace")));
        }
        _ => {
            let (path, wanted) = match text.split_once('=') {
                Some((path, wanted)) => (path, Some(wanted)),
                None => (text, None),
            };
            let dot = if path.starts_with('.') { "" } else { "." };
            (format!("{{{dot}{path}}}"), wanted)
        }
    };
    if wanted == Some("") {
        return Err(CliError::usage(format!("`{path}=` names no value"))
            .hint("leave `=` out to wait for any value"));
    }
    let template = Template::parse(&path).map_err(CliError::usage)?;
    Ok(Wanted::Value(template, wanted.map(str::to_owned)))
}

/// One object: its kind, the path of the list it is in, and its name.
#[derive(Debug, PartialEq)]
struct Object {
    resource: Resource,
    list: String,
    name: String,
    before: Before,
}

/// The object that is to be deleted: a pod of a file comes back under the same name as another one.
#[derive(Debug, PartialEq)]
enum Before {
    /// It makes no difference which one has the name.
    Any,
    /// None had the name.
    Absent,
    /// The one with this UID.
    Uid(Value),
}

impl Before {
    fn of(found: Option<&Value>) -> Self {
        match found {
            Some(object) => Self::Uid(object["metadata"]["uid"].clone()),
            None => Self::Absent,
        }
    }

    fn is(&self, object: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => false,
            Self::Uid(uid) => object["metadata"]["uid"] == *uid,
        }
    }
}

impl Object {
    /// The list with this object alone.
    fn path(&self) -> String {
        let field = encode(&format!("metadata.name={}", self.name));
        format!("{}?fieldSelector={field}", self.list)
    }

    /// Whether it is as wanted; `found`: what has its name.
    fn is(&self, wanted: &Wanted, found: Option<&Value>) -> bool {
        wanted.holds(found.filter(|object| self.before.is(object)))
    }
}

pub(super) fn run(client: &Client, args: &WaitArgs) -> Result<ExitCode> {
    let wanted = Wanted::parse(&args.condition)?;
    let end = clock::now() + patience(&args.timeout)?;
    client.settle();
    let mut objects = objects(client, args)?;
    if wanted == Wanted::Deleted {
        // All of them before the first wait: meanwhile others can take their names.
        for object in &mut objects {
            let list = client.get(&object.path())?;
            object.before = Before::of(list["items"].get(0));
        }
    }
    if objects.is_empty() {
        if wanted == Wanted::Deleted {
            return Ok(ExitCode::SUCCESS);
        }
        return Err(CliError::new("no matching resources found"));
    }
    let mut first_error = None;
    for object in &objects {
        match until(client, object, &wanted, end) {
            Ok(()) => put(format!("{} condition met\n", shown(object)).as_bytes())?,
            Err(error) => {
                eprintln!("{error}");
                first_error.get_or_insert(error.exit_code());
            }
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn shown(object: &Object) -> String {
    format!("{}/{}", get::singular(object.resource), object.name)
}

fn patience(text: &str) -> Result<Duration> {
    let positive = text.strip_prefix('-');
    match (duration_ms(positive.unwrap_or(text)), positive) {
        (Some(_), Some(_)) => Ok(WEEK),
        (Some(ms), None) => Ok(Duration::from_millis(ms).min(WEEK)),
        (None, _) => Err(
            CliError::usage(format!("--timeout `{text}` is not a duration"))
                .hint("write it as in 90s, 5m or 1h30m"),
        ),
    }
}

fn objects(client: &Client, args: &WaitArgs) -> Result<Vec<Object>> {
    let mut objects = Vec::new();
    let namespace = (!args.all_namespaces).then_some(args.namespace.namespace.as_str());
    for (resource, names) in targets::<Resource>(&args.what)? {
        if !get::is_kubernetes(resource) {
            return Err(CliError::usage("images and files cannot be waited for"));
        }
        let object = |list: String, name: &str| Object {
            resource,
            list,
            name: name.to_owned(),
            before: Before::Any,
        };
        let list = collection(resource, namespace);
        if !names.is_empty() {
            if args.all || args.selector.is_some() || args.all_namespaces {
                return Err(CliError::usage("either names, or --all, -l and -A"));
            }
            objects.extend(names.iter().map(|name| object(list.clone(), name)));
            continue;
        }
        // Also not everything by a shell variable that is not set.
        let blank = args.selector.as_deref().is_none_or(is_blank);
        if !args.all && blank {
            return Err(CliError::usage(
                "say which objects, or --all, or -l SELECTOR",
            ));
        }
        let selector = encode(args.selector.as_deref().unwrap_or_default());
        let found = client.get(&format!("{list}?labelSelector={selector}"))?;
        for item in found["items"].as_array().into_iter().flatten() {
            let metadata = &item["metadata"];
            let name = metadata["name"].as_str().unwrap_or_default();
            let namespace = metadata["namespace"].as_str();
            objects.push(object(collection(resource, namespace), name));
        }
    }
    Ok(objects)
}

fn until(client: &Client, object: &Object, wanted: &Wanted, end: Instant) -> Result<()> {
    let path = object.path();
    let mut reached = false;
    loop {
        let list = match client.get(&path) {
            Ok(list) => list,
            // Once it was there, it is restarted.
            Err(error) if reached && left(end).is_some() && !client.reachable() => {
                drop(error);
                std::thread::sleep(AGAIN);
                continue;
            }
            Err(error) => return Err(error),
        };
        reached = true;
        let found = list["items"].get(0);
        if object.is(wanted, found) {
            return Ok(());
        }
        if found.is_none() && *wanted != Wanted::Created {
            let name = &object.name;
            let what = get::singular(object.resource);
            return Err(CliError::new(format!("{what} \"{name}\" not found")).code(3));
        }
        let Some(left) = left(end) else {
            return Err(timed_out(object, found));
        };
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        // The list after the watch finds what a fraction of a second has brought.
        let seconds = left.as_secs().max(1);
        let watch = format!("{path}&watch=true&resourceVersion={version}&timeoutSeconds={seconds}");
        let watch = match client.send("GET", &watch, None) {
            Ok(watch) => watch,
            Err(error) if error.is_busy() => {
                std::thread::sleep(AGAIN.min(left));
                continue;
            }
            Err(_) if !client.reachable() => continue,
            Err(error) => return Err(error),
        };
        for line in watch.body.lines() {
            let change: Value = serde_json::from_str(&line.unwrap_or_default()).unwrap_or_default();
            let met = match change["type"].as_str() {
                Some("ADDED" | "MODIFIED") => object.is(wanted, Some(&change["object"])),
                Some("DELETED") => *wanted == Wanted::Deleted,
                Some("BOOKMARK") => false,
                // The agent is restarted, or has forgotten so old a version.
                Some(_) | None => {
                    std::thread::sleep(AGAIN.min(left));
                    break;
                }
            };
            if met {
                return Ok(());
            }
        }
    }
}

fn left(end: Instant) -> Option<Duration> {
    let left = end.saturating_duration_since(clock::now());
    (!left.is_zero()).then_some(left)
}

fn timed_out(object: &Object, found: Option<&Value>) -> CliError {
    let name = shown(object);
    let error = CliError::new(format!("timed out waiting for the condition on {name}"));
    match (object.resource, found) {
        (_, None) => error.hint(format!(
            "there is no {name}; `coracle get files` shows files that are refused"
        )),
        (Resource::Pods, Some(_)) => error.hint(format!("`coracle describe {name}` shows why")),
        (_, Some(_)) => error,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_waited_for_is_read_as_kubectl_reads_it() {
        let pod = json!({
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": "False" }],
                "containerStatuses": [{ "name": "a=b", "ready": true }],
            },
        });
        for (text, holds) in [
            ("condition=Ready", false),
            ("condition=ready=false", true),
            ("condition=Ready=False", true),
            ("condition=Other=False", false),
            ("create", true),
            ("delete", false),
            ("jsonpath={.status.phase}=Running", true),
            ("jsonpath={.status.phase}=Pending", false),
            ("jsonpath={.status.phase}", true),
            ("jsonpath={.status.podIP}", false),
            ("jsonpath=.status.phase=Running", true),
            ("jsonpath=status.phase=Running", true),
            (
                "jsonpath={.status.containerStatuses[?(@.name==\"a=b\")].ready}=true",
                true,
            ),
        ] {
            let wanted = Wanted::parse(text).expect(text);
            assert_eq!(wanted.holds(Some(&pod)), holds, "{text}");
            assert_eq!(wanted.holds(None), text == "delete", "{text}");
        }
        for text in [
            "",
            "Ready",
            "condition",
            "condition=",
            "condition=Ready=",
            "delete=1",
            "jsonpath",
            "jsonpath={.a}=",
            "jsonpath={.a}b",
            "jsonpath={.a",
        ] {
            let error = Wanted::parse(text).expect_err(text);
            assert_eq!(error.exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn an_object_whose_name_another_one_has_is_deleted() {
        let pod = json!({ "metadata": { "name": "web", "uid": "1" } });
        let next = json!({ "metadata": { "name": "web", "uid": "2" } });
        for (sentence, before, found, deleted) in [
            ("it is still there", Some(&pod), Some(&pod), false),
            ("it is gone", Some(&pod), None, true),
            ("the next one is there", Some(&pod), Some(&next), true),
            ("it was gone before", None, Some(&pod), true),
            ("it never was there", None, None, true),
        ] {
            let object = Object {
                resource: Resource::Pods,
                list: String::new(),
                name: "web".to_owned(),
                before: Before::of(before),
            };
            assert_eq!(object.is(&Wanted::Deleted, found), deleted, "{sentence}");
        }
    }

    #[test]
    fn an_empty_selector_waits_for_nothing() {
        use clap::Parser as _;

        use super::super::args::{Cli, Command};

        let line = ["coracle", "wait", "pod", "-l", " ", "--for=delete"];
        let Command::Wait(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("it is `wait`");
        };
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        let error = run(&client, &args).unwrap_err();
        assert!(error.to_string().contains("say which objects"), "{error}");
    }

    #[test]
    fn a_negative_timeout_is_a_week() {
        for (text, seconds) in [("30s", 30), ("0", 0), ("1m30s", 90), ("-1s", 604_800)] {
            assert_eq!(patience(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(patience("soon").is_err());
    }
}
