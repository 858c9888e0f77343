//! How do images get in and out? `coracle image import|ls|rm|prune`.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::{ImageCommand, Resource};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use super::table::{Table, size};
use crate::api::{RemovedImages, encode};

pub(super) fn run(client: &Client, command: ImageCommand) -> Result<ExitCode> {
    match command {
        ImageCommand::Import { paths, name } => import(client, &paths, name.as_deref()),
        ImageCommand::Ls { quiet } => list(client, quiet),
        ImageCommand::Rm { names, force } => remove(client, &names, force),
        ImageCommand::Prune { all, force } => prune(client, all, force),
    }
}

fn import(client: &Client, paths: &[PathBuf], name: Option<&str>) -> Result<ExitCode> {
    let mut first_error = None;
    for path in paths {
        if let Err(error) = import_one(client, path, name) {
            eprintln!("{error}");
            first_error.get_or_insert(error.exit_code());
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn import_one(client: &Client, path: &Path, name: Option<&str>) -> Result<()> {
    let failed = || format!("could not import `{}`", path.display());
    // The agent has another working directory.
    let whole = path
        .canonicalize()
        .map_err(|e| CliError::new(failed()).because(e))?;
    let asked = json!({ "path": whole, "name": name });
    let response = client.send("POST", "/coracle/v1/images/import", Some(&asked))?;
    let bar = std::io::stderr().is_terminal().then(bar);
    let mut imported = false;
    for line in response.body.lines() {
        let line = line.map_err(|e| CliError::new(failed()).because(e))?;
        let step: Value = serde_json::from_str(&line).unwrap_or_default();
        match step["type"].as_str() {
            Some("progress") => {
                if let Some(bar) = &bar {
                    show(bar, &step);
                }
            }
            Some("image") => {
                imported = true;
                let id = step["id"].as_str().unwrap_or_default();
                let names = step["names"].as_array().into_iter().flatten();
                let names: Vec<&str> = names.filter_map(Value::as_str).collect();
                put(format!("imported {} ({id})\n", names.join(", ")).as_bytes())?;
            }
            Some("error") => {
                if let Some(bar) = &bar {
                    bar.finish_and_clear();
                }
                let why = step["message"].as_str().unwrap_or("unknown reason");
                let error = CliError::new(failed()).because(why);
                return Err(match step["hint"].as_str() {
                    Some(hint) => error.hint(hint),
                    None => error,
                });
            }
            _ => {}
        }
    }
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    match imported {
        true => Ok(()),
        false => {
            Err(CliError::new(failed()).because("the agent stopped before the import was done"))
        }
    }
}

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}");
    let bar = ProgressBar::no_length();
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, step: &Value) {
    let stage = step["stage"].as_str().unwrap_or("working");
    bar.set_message(match (step["layer"].as_u64(), step["layers"].as_u64()) {
        (Some(layer), Some(layers)) => format!("{stage} layer {layer}/{layers}"),
        _ => stage.to_owned(),
    });
    if let Some(total) = step["total_bytes"].as_u64() {
        bar.set_length(total);
    }
    bar.set_position(step["done_bytes"].as_u64().unwrap_or(0));
}

fn list(client: &Client, quiet: bool) -> Result<ExitCode> {
    let mut answer = client.get("/coracle/v1/images")?;
    let items = answer["items"]
        .as_array_mut()
        .map(std::mem::take)
        .unwrap_or_default();
    let text: String = match quiet {
        true => items
            .iter()
            .filter_map(|i| Some(format!("{}\n", i["id"].as_str()?)))
            .collect(),
        false => {
            let (header, rows) = super::get::table(Resource::Images, &items, true, false);
            Table::default().render(&header, &rows)
        }
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn remove(client: &Client, names: &[String], force: bool) -> Result<ExitCode> {
    let mut first_error = None;
    for name in names {
        let path = format!("/coracle/v1/images?name={}&force={force}", encode(name));
        match client.json("DELETE", &path, None) {
            Ok(removed) => {
                report(&removed)?;
            }
            Err(error) => {
                eprintln!("{error}");
                first_error.get_or_insert(error.exit_code());
            }
        }
    }
    Ok(first_error.map_or(ExitCode::SUCCESS, ExitCode::from))
}

fn report(removed: &Value) -> Result<u64> {
    use serde::Deserialize as _;
    let removed = RemovedImages::deserialize(removed).unwrap_or_default();
    let untagged = removed
        .untagged
        .iter()
        .map(|name| format!("untagged {name}\n"));
    let deleted = removed.deleted.iter().map(|id| format!("deleted {id}\n"));
    let text: String = untagged.chain(deleted).collect();
    put(text.as_bytes())?;
    Ok(removed.freed_bytes)
}

fn prune(client: &Client, all: bool, force: bool) -> Result<ExitCode> {
    if !force {
        let what = match all {
            true => "all images that no container uses",
            false => "all images without a name",
        };
        eprint!("Remove {what}? [y/N] ");
        let _ = std::io::stderr().flush();
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        if read.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(CliError::new("not confirmed").hint("use --force to not be asked"));
        }
    }
    let body = json!({ "all": all });
    let removed = client.json("POST", "/coracle/v1/images/prune", Some(&body))?;
    let freed = report(&removed)?;
    put(format!("freed {}\n", size(freed)).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
