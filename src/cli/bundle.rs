//! `coracle bundle apply|plan|rollback|ls|rm`; [`super::bundle_create`] has `create`.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::args::{BundleApplyArgs, BundleCommand, DryRun};
use super::client::Client;
use super::error::{CliError, Result};
use super::plan::{self, TROUBLE};
use super::pull::Bars;
use super::table::{Table, one_line};
use super::{bundle_create, confirm, put};
use crate::api::encode;
use crate::images::trust::PublicKey;
use crate::spec::ImageName;
use crate::sys::file::read_record;
use crate::types::duration_ms;

const BUNDLES: &str = "/coracle/v1/bundles";

/// The digits of a digest that are shown.
const SHORT: usize = 12;

pub(super) fn run(client: &Client, command: BundleCommand) -> Result<ExitCode> {
    match command {
        BundleCommand::Create(args) => bundle_create::run(client, &args),
        BundleCommand::Apply(args) => apply(client, &args),
        BundleCommand::Plan {
            source,
            key,
            output,
        } => preview(client, (&source, key.as_deref()), output.is_some())
            .map_err(|error| error.code(TROUBLE)),
        BundleCommand::Rollback { name } => roll_back(client, name.as_deref()),
        BundleCommand::Ls { output } => list(client, output.is_some()),
        BundleCommand::Rm { names, force } => remove(client, &names, force),
    }
}

fn apply(client: &Client, args: &BundleApplyArgs) -> Result<ExitCode> {
    let seconds = match &args.ready_within {
        Some(text) => Some(seconds(text)?),
        None => None,
    };
    let of = (args.source.as_str(), args.key.as_deref());
    match args.dry_run.dry_run {
        DryRun::None => {}
        DryRun::Client | DryRun::Server => {
            return preview(client, of, false).map_err(|error| error.code(TROUBLE));
        }
    }
    let mut request = request(of)?;
    request["readyWithinSeconds"] = seconds.into();
    let failed =
        |why: &str| CliError::new(format!("bundle `{}` is not in force", args.source)).because(why);
    let mut applied = false;
    for step in steps(client, &args.source, &request)? {
        let step = step?;
        let (name, generation) = (word(&step, "name"), &step["generation"]);
        match word(&step, "type") {
            "applied" => {
                applied = true;
                let already = if step["unchanged"] == true {
                    " already"
                } else {
                    ""
                };
                put(
                    format!("bundle {name}: generation {generation} is in force{already}\n")
                        .as_bytes(),
                )?;
            }
            "ready" => put(format!("bundle {name}: all pods are ready\n").as_bytes())?,
            "notReady" => {
                let why = format!("the pods of bundle `{name}` are not ready");
                return Err(CliError::new(why).because(word(&step, "message")));
            }
            "rolledBack" => return Err(failed(word(&step, "message"))),
            _ => {}
        }
    }
    match applied {
        true => Ok(ExitCode::SUCCESS),
        false => Err(failed("the agent stopped before it was applied")
            .hint("apply it again: nothing has changed")),
    }
}

/// A duration of at least a second.
fn seconds(text: &str) -> Result<u64> {
    let bad = || {
        CliError::usage(format!(
            "--ready-within: `{text}` is no duration of at least 1s, such as 90s or 5m"
        ))
    };
    let ms = duration_ms(text).ok_or_else(bad)?;
    match ms {
        0..1000 => Err(bad()),
        ms => Ok(ms.div_ceil(1000)),
    }
}

fn preview(client: &Client, of: (&str, Option<&Path>), as_json: bool) -> Result<ExitCode> {
    let source = of.0;
    let mut request = request(of)?;
    request["dryRun"] = true.into();
    for step in steps(client, source, &request)? {
        let step = step?;
        if word(&step, "type") == "plan" {
            return plan::print(&step, as_json);
        }
    }
    Err(CliError::new(format!("could not read bundle `{source}`")).because("the agent stopped"))
}

/// What the agent is asked for. It has another working directory.
fn request((source, key): (&str, Option<&Path>)) -> Result<Value> {
    let failed = || CliError::new(format!("could not read bundle `{source}`"));
    let path = Path::new(source);
    let name = source.strip_prefix("oci://").unwrap_or(source);
    let whole = match path.canonicalize() {
        Ok(path) => path
            .to_str()
            .map(str::to_owned)
            .ok_or_else(|| failed().because("its path is not UTF-8"))?,
        Err(_) if source.starts_with("https://") || source.starts_with("http://") => {
            source.to_owned()
        }
        // A file is not in a registry: its name says so.
        Err(error) if path.is_absolute() || source.starts_with('.') || source.ends_with(".tar") => {
            return Err(failed().because(error));
        }
        Err(error) => match ImageName::parse(name) {
            Ok(_) if name.contains('/') => format!("oci://{name}"),
            Ok(_) | Err(_) => return Err(failed().because(error)),
        },
    };
    let key = match key {
        Some(path) => Some(read_key(path)?),
        None => None,
    };
    Ok(json!({ "source": whole, "key": key }))
}

/// A public key, as it is written.
fn read_key(path: &Path) -> Result<String> {
    let failed = |why: &dyn std::fmt::Display| {
        CliError::new(format!("could not use key `{}`", path.display())).because(why)
    };
    let bytes = read_record(path).map_err(|why| failed(&why))?;
    PublicKey::parse(&bytes).map_err(|why| {
        let failed = failed(&crate::chain(&why));
        match why.hint() {
            Some(hint) => failed.hint(hint),
            None => failed,
        }
    })?;
    String::from_utf8(bytes).map_err(|_| failed(&"it is not UTF-8"))
}

/// What the agent reports; progress is shown on the way, and an error ends it.
struct Steps<L> {
    lines: L,
    source: String,
    bars: Bars,
}

/// Has a bundle applied, or planned.
fn steps(
    client: &Client,
    source: &str,
    request: &Value,
) -> Result<impl Iterator<Item = Result<Value>>> {
    let response = client.send("POST", &format!("{BUNDLES}/apply"), Some(request))?;
    Ok(Steps {
        lines: response.body.lines(),
        source: source.to_owned(),
        bars: Bars::new(true),
    })
}

impl<L: Iterator<Item = std::io::Result<String>>> Iterator for Steps<L> {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        let failed = || CliError::new(format!("could not apply bundle `{}`", self.source));
        loop {
            let line = match self.lines.next()? {
                Ok(line) => line,
                Err(error) => return Some(Err(failed().because(error))),
            };
            let step: Value = serde_json::from_str(&line).unwrap_or_default();
            match word(&step, "type") {
                "progress" => self.bars.show(&step),
                "error" => {
                    self.bars.clear();
                    let error = failed().because(word(&step, "message"));
                    return Some(Err(match step["hint"].as_str() {
                        Some(hint) => error.hint(hint),
                        None => error,
                    }));
                }
                _ => {
                    self.bars.clear();
                    return Some(Ok(step));
                }
            }
        }
    }
}

fn roll_back(client: &Client, name: Option<&str>) -> Result<ExitCode> {
    let done = client.json(
        "POST",
        &format!("{BUNDLES}/rollback"),
        Some(&json!({ "name": name })),
    )?;
    let (name, generation) = (word(&done, "name"), &done["generation"]);
    put(format!("bundle {name}: generation {generation} is in force\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn list(client: &Client, as_json: bool) -> Result<ExitCode> {
    let answer = client.get(BUNDLES)?;
    if as_json {
        put(format!("{answer}\n").as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows: Vec<Vec<String>> = answer["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(row)
        .collect();
    let polled = polled(&answer["polled"]);
    if rows.is_empty() {
        eprintln!("No bundles found.");
        put(polled.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = [
        "NAME",
        "GENERATION",
        "STATUS",
        "FORMER",
        "FILES",
        "IMAGES",
        "DIGEST",
        "SOURCE",
    ];
    let table = Table::default().render(&header, &rows);
    let gap = if polled.is_empty() { "" } else { "\n" };
    put(format!("{table}{gap}{polled}").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// How the last look went at the source that is polled; empty without one.
fn polled(polled: &Value) -> String {
    if polled.is_null() {
        return String::new();
    }
    let or_none = |field| match word(polled, field) {
        "" => "<none>".to_owned(),
        text => text.to_owned(),
    };
    let row = ["source", "lastLook", "lastError"].map(or_none);
    Table::default().render(&["POLLED", "LAST LOOK", "LAST ERROR"], &[row.to_vec()])
}

fn row(item: &Value) -> Vec<String> {
    let current = &item["current"];
    let count = |field: &str| current[field].as_array().map_or(0, Vec::len).to_string();
    let status = match (&item["trial"], &item["failed"]) {
        (Value::Null, Value::Null) => "InForce".to_owned(),
        (Value::Null, failed) if failed["generation"] == current["generation"] => {
            "NotReady".to_owned()
        }
        (Value::Null, failed) => format!("RolledBack({})", failed["generation"]),
        _ => "OnTrial".to_owned(),
    };
    let former = ["previous", "beforePrevious"];
    let former = former.map(|which| item[which]["generation"].as_u64());
    let former: Vec<String> = former.iter().flatten().map(u64::to_string).collect();
    let digest = word(current, "digest").trim_start_matches("sha256:");
    vec![
        word(item, "name").to_owned(),
        current["generation"].to_string(),
        status,
        match former.is_empty() {
            true => "<none>".to_owned(),
            false => former.join(","),
        },
        count("files"),
        count("images"),
        digest.chars().take(SHORT).collect(),
        one_line(word(current, "source")),
    ]
}

fn remove(client: &Client, names: &[String], force: bool) -> Result<ExitCode> {
    if !force {
        confirm(&format!("the bundles {} with their pods", names.join(", ")))?;
    }
    let mut first_error = None;
    for name in names {
        match client.json("DELETE", &format!("{BUNDLES}?name={}", encode(name)), None) {
            Ok(_) => put(format!("removed bundle {name}\n").as_bytes())?,
            Err(error) => {
                eprintln!("{error}");
                first_error.get_or_insert(error.exit_code());
            }
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn word<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}
