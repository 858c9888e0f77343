//! `coracle config`: prints the settings of the running agent or of files, and checks files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use super::args::{ConfigCommand, ConfigFormat, ConfigPrintArgs};
use super::client::Client;
use super::error::{CliError, Result};
use super::put;
use crate::config::{self, Effective, Files};
use crate::images::trust::Policy;

pub(super) fn run(client: &Client, command: &ConfigCommand) -> Result<ExitCode> {
    match command {
        ConfigCommand::Print(args) => print(client, args),
        ConfigCommand::Check { files, config_dir } => check(files, config_dir.as_deref()),
    }
}

fn print(client: &Client, args: &ConfigPrintArgs) -> Result<ExitCode> {
    let shown = if args.defaults {
        config::as_json(&Effective::default())
    } else if args.config.is_some() || args.config_dir.is_some() {
        of_files(&Files::new(args.config.clone(), args.config_dir.clone()))?
    } else {
        match client.reachable() {
            true => client.get("/configz")?,
            false => {
                eprintln!(
                    "no agent answers at `{}`: these are the settings in the files",
                    client.socket.display()
                );
                of_files(&Files::new(None, None))?
            }
        }
    };
    let text = match args.output {
        ConfigFormat::Json => {
            let text = serde_json::to_string_pretty(&shown);
            text.map_err(|e| CliError::new("could not print").because(e))? + "\n"
        }
        ConfigFormat::Yaml => config::as_yaml(&shown),
    };
    put(text.as_bytes())?;
    if let Some(problem) = shown["coracle"]["problem"].as_str() {
        eprintln!("warning: the current files are invalid and not in force: {problem}");
    }
    Ok(ExitCode::SUCCESS)
}

fn of_files(files: &Files) -> Result<Value> {
    let effective = files
        .read()
        .and_then(|texts| Effective::build(&texts, &[]))
        .map_err(|error| CliError::of(&error))?;
    Ok(config::as_json(&effective))
}

fn check(files: &[PathBuf], dir: Option<&Path>) -> Result<ExitCode> {
    let mut texts = Vec::new();
    if files.is_empty() {
        let found = Files::new(None, dir.map(Path::to_owned)).read();
        texts = found.map_err(|error| CliError::of(&error))?;
        if texts.is_empty() {
            let nothing = format!("there is no `{}`", config::DEFAULT_FILE);
            return Err(CliError::new(nothing)
                .hint("without it the defaults apply: `coracle config print --defaults`")
                .code(3));
        }
    }
    for (index, file) in files.iter().enumerate() {
        // The directory's files come after all others.
        let dir = dir.filter(|_| index + 1 == files.len());
        texts.extend(named(file, dir)?);
    }
    let checked = Effective::build(&texts, &[]).map_err(|error| CliError::of(&error))?;
    if let Some(warning) = checked.warning {
        eprintln!("warning: {warning}");
    }
    if let Err(why) = Policy::read(&checked.config.registries.policy) {
        eprintln!("warning: no container will start: {}", crate::chain(&why));
    }
    let names: Vec<String> = texts
        .iter()
        .map(|(path, _)| path.display().to_string())
        .collect();
    put(format!("{}: ok\n", names.join(", ")).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a file (or standard input) and the drop-in files in the directory.
fn named(file: &Path, dir: Option<&Path>) -> Result<Vec<(PathBuf, String)>> {
    if file.as_os_str() != "-" {
        let read = Files::new(Some(file.to_owned()), dir.map(Path::to_owned)).read();
        return read.map_err(|error| CliError::of(&error));
    }
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|e| CliError::new("could not read the standard input").because(e))?;
    Ok(vec![("stdin".into(), text)])
}
