//! `coracle image inspect` and `coracle image history`, in the layout of docker and podman.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::table::{Table, size};
use crate::api::encode;
use crate::api::pod_columns::human_age;
use crate::sys::clock;

/// The length of a command in the table, unless all of it is asked for.
const SHORT: usize = 45;

pub(super) fn inspect(client: &Client, names: &[String]) -> Result<ExitCode> {
    let mut first_error = None;
    let mut shown = Vec::new();
    for name in names {
        match details(client, name) {
            Ok(details) => shown.push(object(&details)),
            Err(error) => {
                eprintln!("{error}");
                first_error.get_or_insert(error.exit_code());
            }
        }
    }
    print(&Value::from(shown))?;
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

pub(super) fn history(
    client: &Client,
    name: &str,
    as_json: bool,
    in_full: bool,
) -> Result<ExitCode> {
    let steps = steps(&details(client, name)?);
    if as_json {
        print(&Value::from(steps))?;
    } else {
        put(table(&steps, in_full, clock::timestamp()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn details(client: &Client, name: &str) -> Result<Value> {
    client.get(&format!("/coracle/v1/images/inspect?name={}", encode(name)))
}

fn print(value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|e| CliError::new("could not print").because(e))? + "\n";
    put(text.as_bytes())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// An image as `docker image inspect` shows it.
fn object(details: &Value) -> Value {
    let config = &details["config"];
    let digest = &list(&details["digests"]).first().cloned();
    let repository = |name: &Value| {
        let (repository, _) = text(name).rsplit_once(':')?;
        Some(format!("{repository}@{}", text(digest.as_ref()?)))
    };
    let mut digests: Vec<String> = list(&details["names"])
        .iter()
        .filter_map(repository)
        .collect();
    digests.dedup();
    let layers = list(&details["layers"]).iter();
    json!({
        "Id": details["id"],
        "Digest": digest,
        "RepoTags": details["names"],
        "RepoDigests": digests,
        "Created": config["created"],
        "Author": text(&config["author"]),
        "Architecture": config["architecture"],
        "Variant": text(&config["variant"]),
        "Os": config["os"],
        "Size": details["size_bytes"],
        "Preloaded": details["preloaded"],
        "Config": config["config"],
        "RootFS": {
            "Type": "layers",
            "Layers": layers.map(|layer| layer["diff_id"].clone()).collect::<Vec<_>>(),
        },
        "History": config["history"],
    })
}

/// How the image was built, newest first. Without a history in the config there is a step for each layer.
fn steps(details: &Value) -> Vec<Value> {
    let mut layers = list(&details["layers"]).iter();
    let written = list(&details["config"]["history"]);
    let bare: Vec<Value> = layers.clone().map(|_| json!({})).collect();
    let written = if written.is_empty() { &bare } else { written };
    let mut steps: Vec<Value> = Vec::new();
    for entry in written {
        let layer = match entry["empty_layer"].as_bool() {
            Some(true) => None,
            _ => layers.next(),
        };
        steps.push(json!({
            "id": "<missing>",
            "created": entry["created"],
            "createdBy": text(&entry["created_by"]),
            "size": layer.map_or(0, |layer| layer["size_bytes"].as_u64().unwrap_or(0)),
            "comment": text(&entry["comment"]),
        }));
    }
    if let Some(newest) = steps.last_mut() {
        newest["id"] = details["id"].clone();
    }
    steps.reverse();
    steps
}

fn table(steps: &[Value], in_full: bool, now: Timestamp) -> String {
    let shorten = |text: &str, length: usize| match in_full || text.chars().count() <= length {
        true => text.to_owned(),
        false => text.chars().take(length - 3).chain("...".chars()).collect(),
    };
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            let id = text(&step["id"]).trim_start_matches("sha256:");
            let created = text(&step["created"]).parse::<Timestamp>().ok();
            vec![
                if in_full {
                    id.to_owned()
                } else {
                    id.chars().take(12).collect()
                },
                created.map_or("<unknown>".to_owned(), |at| human_age(at, now)),
                shorten(text(&step["createdBy"]), SHORT),
                size(step["size"].as_u64().unwrap_or(0)),
                text(&step["comment"]).to_owned(),
            ]
        })
        .collect();
    Table::default().render(&["ID", "CREATED", "CREATED BY", "SIZE", "COMMENT"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details() -> Value {
        json!({
            "id": "sha256:0123456789abcdef", "names": ["docker.io/library/a:1", "docker.io/library/a:2", "x.io/b:1"],
            "digests": ["sha256:m"], "size_bytes": 3072, "preloaded": false,
            "layers": [{ "diff_id": "sha256:l1", "size_bytes": 2048 }, { "diff_id": "sha256:l2", "size_bytes": 1024 }],
            "config": { "created": "2026-01-01T00:00:00Z", "architecture": "amd64", "os": "linux",
                "config": { "Cmd": ["sh"] },
                "history": [
                    { "created": "2026-01-01T00:00:00Z", "created_by": "ADD rootfs.tar / # a long text that goes on and on" },
                    { "created": "2026-01-01T00:00:00Z", "created_by": "CMD [\"sh\"]", "empty_layer": true },
                    { "created_by": "COPY \u{1b}[31m /b", "comment": "c" },
                ] },
        })
    }

    #[test]
    fn steps_have_the_sizes_of_their_layers_and_the_newest_has_the_id() {
        let now = "2026-01-02T00:00:00Z".parse().expect("a time");
        let expected = "\
ID             CREATED     CREATED BY                                      SIZE     COMMENT
0123456789ab   <unknown>   COPY \\u{1b}[31m /b                              1.0KiB   c
<missing>      24h         CMD [\"sh\"]                                      0B
<missing>      24h         ADD rootfs.tar / # a long text that goes o...   2.0KiB
";
        assert_eq!(table(&steps(&details()), false, now), expected);
        let mut without = details();
        without["config"]["history"] = Value::Null;
        let sizes: Vec<Value> = steps(&without).iter().map(|s| s["size"].clone()).collect();
        assert_eq!(sizes, [1024, 2048]);
    }

    #[test]
    fn an_image_is_shown_as_docker_does() {
        let shown = object(&details());
        assert_eq!(
            shown["RepoDigests"],
            json!(["docker.io/library/a@sha256:m", "x.io/b@sha256:m"])
        );
        assert_eq!(shown["RootFS"]["Layers"], json!(["sha256:l1", "sha256:l2"]));
        assert_eq!(shown["Config"]["Cmd"], json!(["sh"]));
    }
}
