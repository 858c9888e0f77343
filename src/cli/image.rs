//! `coracle image import|ls|tag|rm|prune`; [`super::pull`] has `pull`, [`super::save`] `save`,
//! [`super::image_details`] `inspect` and `history`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::args::{ImageCommand, ImagesFormat, Resource};
use super::client::{Client, Response};
use super::error::{CliError, Result};
use super::get::USED_BY;
use super::table::{Table, size};
use super::{confirm, image_details, put};
use crate::api::{RemovedImages, encode};
use crate::spec::ImageName;

const IMPORT: &str = "/coracle/v1/images/import";

/// Where the digests of manifests stand: behind the ids.
const DIGEST_COLUMN: usize = 2;

/// File extensions of archives.
const ARCHIVES: [&str; 6] = [".tar", ".gz", ".tgz", ".zst", ".tzst", ".oci"];

pub(super) fn run(client: &Client, command: ImageCommand) -> Result<ExitCode> {
    match command {
        ImageCommand::Import { paths, name } => import(client, &paths, name.as_deref()),
        ImageCommand::Pull(args) => super::pull::run(client, &args),
        ImageCommand::Save(args) => super::save::run(client, &args),
        ImageCommand::Ls {
            quiet,
            digests,
            output,
        } => list(client, quiet, digests, output),
        ImageCommand::Tag { source, target } => tag(client, &source, &target),
        ImageCommand::Inspect { names } => image_details::inspect(client, &names),
        ImageCommand::History {
            name,
            output,
            no_trunc,
        } => image_details::history(client, &name, output.is_some(), no_trunc),
        ImageCommand::Rm { names, force } => remove(client, &names, force),
        ImageCommand::Prune {
            all,
            dry_run,
            force,
        } => prune(client, all, dry_run, force),
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
    let response = match path == Path::new("-") {
        true => send_input(client, name)?,
        false => {
            // The agent has another working directory.
            let whole = path.canonicalize().map_err(|e| no_file(path, e))?;
            let asked = json!({ "path": whole, "name": name });
            client.send("POST", IMPORT, Some(&asked))?
        }
    };
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
                for warning in step["warnings"].as_array().into_iter().flatten() {
                    eprintln!("warning: {}", warning.as_str().unwrap_or_default());
                }
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

/// Sends an archive from standard input.
fn send_input(client: &Client, name: Option<&str>) -> Result<Response> {
    let input = std::io::stdin();
    if input.is_terminal() {
        return Err(
            CliError::new("standard input is a terminal, not an image archive")
                .hint("pipe one in: `docker save nginx:1.25 | coracle image import -`"),
        );
    }
    let path = match name {
        Some(name) => format!("{IMPORT}?name={}", encode(name)),
        None => IMPORT.to_owned(),
    };
    client.send_stream(&path, "application/x-tar", input)
}

/// Makes the error for a missing file. If it looks like an image name, as for a registry, it says what to do instead.
fn no_file(path: &Path, error: std::io::Error) -> CliError {
    let failed = CliError::new(format!("could not import `{}`", path.display()));
    let text = path.to_str().unwrap_or_default();
    let file_like = text.starts_with(['/', '.']) || ARCHIVES.iter().any(|end| text.ends_with(end));
    match ImageName::parse(text) {
        Ok(name) if error.kind() == std::io::ErrorKind::NotFound && !file_like => failed
            .because("there is no such file; it looks like an image's name")
            .hint(format!(
                "pull it: `coracle image pull {text}`; or make an archive where it can be pulled, `skopeo copy \
                 docker://{name} docker-archive:image.tar:{name}` or `docker save -o image.tar {name}`, and import that"
            )),
        _ => failed.because(error),
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
        (Some(layer), Some(layers)) if layers > 0 => format!("{stage} layer {layer}/{layers}"),
        _ => stage.to_owned(),
    });
    match step["total_bytes"].as_u64() {
        Some(0) | None => bar.unset_length(),
        Some(total) => bar.set_length(total),
    }
    bar.set_position(step["done_bytes"].as_u64().unwrap_or(0));
}

fn list(
    client: &Client,
    quiet: bool,
    digests: bool,
    output: Option<ImagesFormat>,
) -> Result<ExitCode> {
    let mut answer = client.get("/coracle/v1/images")?;
    let items = answer["items"]
        .as_array_mut()
        .map(std::mem::take)
        .unwrap_or_default();
    let text: String = match output {
        Some(ImagesFormat::Json) => format!("{:#}\n", Value::from(items)),
        _ if quiet => items
            .iter()
            .filter_map(|i| Some(format!("{}\n", i["id"].as_str()?)))
            .collect(),
        _ => table(&items, digests, output == Some(ImagesFormat::Wide)),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn table(items: &[Value], digests: bool, wide: bool) -> String {
    let (mut header, mut rows) = super::get::table(Resource::Images, items, true, false);
    let users = header.iter().position(|title| *title == USED_BY);
    if let Some(at) = users.filter(|_| !wide) {
        header.remove(at);
        rows.iter_mut().for_each(|row| drop(row.remove(at)));
    }
    if digests {
        header.insert(DIGEST_COLUMN, "DIGEST".to_owned());
        for (row, item) in rows.iter_mut().zip(items) {
            let digest = item["digest"].as_str().unwrap_or_default();
            row.insert(DIGEST_COLUMN, digest.to_owned());
        }
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    Table::default().render(&header, &rows)
}

fn tag(client: &Client, source: &str, target: &str) -> Result<ExitCode> {
    let asked = json!({ "source": source, "target": target });
    let tagged = client.json("POST", "/coracle/v1/images/tag", Some(&asked))?;
    let name = tagged["name"].as_str().unwrap_or(target);
    put(format!("tagged {name}\n").as_bytes())?;
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

/// Has the agent remove unused images, or only say which; returns the answer.
pub(super) fn ask_to_prune(client: &Client, all: bool, dry_run: bool) -> Result<Value> {
    let body = json!({ "all": all, "dryRun": dry_run });
    client.json("POST", "/coracle/v1/images/prune", Some(&body))
}

/// Images with their names, as they would be removed.
fn rehearse(client: &Client, all: bool) -> Result<ExitCode> {
    let pruned = ask_to_prune(client, all, true)?;
    let images = client.get("/coracle/v1/images")?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let images = list(&images["items"]);
    for id in list(&pruned["deleted"]) {
        let image = images.iter().find(|image| image["id"] == id);
        let names = image.map(|image| list(&image["names"])).unwrap_or_default();
        let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
        let names = match names.is_empty() {
            true => "<none>".to_owned(),
            false => names.join(", "),
        };
        let bytes = image.and_then(|image| image["size_bytes"].as_u64());
        let (id, bytes) = (id.as_str().unwrap_or_default(), size(bytes.unwrap_or(0)));
        put(format!("would delete {id} ({names}), {bytes}\n").as_bytes())?;
    }
    let freed = size(pruned["freed_bytes"].as_u64().unwrap_or(0));
    put(format!("would free {freed}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn prune(client: &Client, all: bool, dry_run: bool, force: bool) -> Result<ExitCode> {
    if dry_run {
        return rehearse(client, all);
    }
    if !force {
        let what = match all {
            true => "all images that no container uses and no manifest names",
            false => "all images without a name",
        };
        confirm(what)?;
    }
    let removed = ask_to_prune(client, all, false)?;
    let freed = report(&removed)?;
    put(format!("freed {}\n", size(freed)).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
