//! A hint for a name that does not exist: in which namespace there is one, or what is there instead.

use serde_json::Value;

use super::client::Client;
use super::error::CliError;
use crate::spec::suggest::nearest;

/// The most names of a hint.
const MOST: usize = 3;

/// An object that the agent does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Missing {
    /// Path of the request.
    pub(super) path: String,
    /// Its kind, as paths have it: `pods`.
    pub(super) kind: String,
    /// Its name.
    pub(super) name: String,
}

impl Missing {
    /// Of the agent's answer to a request.
    pub(super) fn of(path: &str, status: &Value) -> Option<Self> {
        let text = |field: &str| status["details"][field].as_str().map(str::to_owned);
        Some(Self {
            path: path.to_owned(),
            kind: text("kind")?,
            name: text("name")?,
        })
    }

    /// The path of all objects of the kind, and the namespace that was asked for.
    fn all(&self) -> Option<(String, &str)> {
        let (base, namespace) = match self.path.split_once("/namespaces/") {
            Some((base, rest)) => (base, rest.split('/').next()?),
            None => (self.path.split_once(&format!("/{}/", self.kind))?.0, ""),
        };
        let base = if self.kind == "pods" { "/api/v1" } else { base };
        Some((format!("{base}/{}", self.kind), namespace))
    }
}

/// Adds a hint to the error, if something has a similar name.
pub(super) fn with_hint(client: &Client, error: CliError) -> CliError {
    let found = error.missing().and_then(|missing| {
        let (path, namespace) = missing.all()?;
        let list = client.get(&path).ok()?;
        hint(&missing.name, namespace, &list)
    });
    match found {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

/// Says that there is nothing, and whether another namespace may be meant.
pub(super) fn nothing_in(client: &Client, namespace: &str) {
    eprintln!("No resources found in {namespace} namespace.");
    let list = client.get("/api/v1/namespaces").unwrap_or_default();
    let items = list["items"].as_array().into_iter().flatten();
    let names: Vec<&str> = items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    if !names.contains(&namespace)
        && let Some(near) = nearest(namespace, &names)
    {
        eprintln!("  hint: did you mean `-n {near}`?");
    }
}

fn hint(name: &str, namespace: &str, list: &Value) -> Option<String> {
    let items = list["items"].as_array()?;
    let all = items.iter().filter_map(|item| {
        let own = &item["metadata"]["namespace"];
        Some((
            own.as_str().unwrap_or_default(),
            item["metadata"]["name"].as_str()?,
        ))
    });
    let all: Vec<_> = all.collect();
    if let Some((other, _)) = all.iter().find(|(_, known)| *known == name) {
        return Some(format!("it is in namespace `{other}`: add `-n {other}`"));
    }
    let here = all.iter().filter(|(own, _)| *own == namespace);
    let here: Vec<&str> = here.map(|(_, name)| *name).collect();
    // Pods of a document have its name and more.
    let longer = here.iter().filter(|known| known.starts_with(name));
    let longer: Vec<String> = longer.map(|known| format!("`{known}`")).collect();
    let near = nearest(name, &here).map(|near| format!("`{near}`"));
    let meant = match longer.len() {
        0 => near?,
        1..=MOST => longer.join(", "),
        _ => format!("{}, …", longer[..MOST].join(", ")),
    };
    Some(format!("did you mean {meant}?"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn similar_names_and_other_namespaces_are_named() {
        let item = |namespace: &str, name: &str| json!({"metadata": {"namespace": namespace, "name": name}});
        let list = json!({"items": [
            item("default", "broker"), item("default", "web-abc-0"), item("default", "web-abc-1"), item("shop", "till"),
        ]});
        for (name, wanted) in [
            ("borker", Some("did you mean `broker`?")),
            ("web", Some("did you mean `web-abc-0`, `web-abc-1`?")),
            ("web-abc-2", Some("did you mean `web-abc-0`?")),
            ("till", Some("it is in namespace `shop`: add `-n shop`")),
            ("tills", None),
            ("other", None),
        ] {
            assert_eq!(hint(name, "default", &list).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn the_list_of_a_request_is_found() {
        let list = |path: &str, kind: &str| {
            let status = json!({"details": {"kind": kind, "name": "x"}});
            let missing = Missing::of(path, &status).expect("it is about an object");
            missing
                .all()
                .map(|(path, namespace)| (path, namespace.to_owned()))
        };
        for (path, kind, wanted) in [
            (
                "/api/v1/namespaces/a/pods/x/log?follow=true",
                "pods",
                ("/api/v1/pods", "a"),
            ),
            (
                "/coracle/v1/namespaces/a/pods/x/restart",
                "pods",
                ("/api/v1/pods", "a"),
            ),
            (
                "/apis/apps/v1/namespaces/a/deployments/x",
                "deployments",
                ("/apis/apps/v1/deployments", "a"),
            ),
            (
                "/api/v1/persistentvolumes/x",
                "persistentvolumes",
                ("/api/v1/persistentvolumes", ""),
            ),
        ] {
            let wanted = (wanted.0.to_owned(), wanted.1.to_owned());
            assert_eq!(list(path, kind), Some(wanted), "{path}");
        }
        assert_eq!(Missing::of("/", &json!({})), None);
    }
}
