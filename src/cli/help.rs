//! `coracle help`: the manual by topic, and the help of commands. Also the man pages, made of both.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::{Command as Process, ExitCode, Stdio};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::args::Cli;
use super::error::{CliError, Result};
use super::put;
use crate::manual::{self, TOPICS, roff};
use crate::spec::suggest;

/// Man pages: name and the command they describe.
pub(super) const MAN_PAGES: [(&str, &str); 2] = [("coracle", ""), ("coracle-shutdown", "shutdown")];

/// `coracle help`.
pub(super) fn run(words: &[String]) -> Result<ExitCode> {
    let text = match words.first() {
        None => contents(),
        Some(first) => about(first, words)?,
    };
    show(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the topics.
fn contents() -> String {
    let mut text = "The manual of coracle. `coracle help TOPIC` shows a topic:\n\n".to_owned();
    for (topic, about) in TOPICS {
        text += &format!("  {topic:<16} {about}\n");
    }
    text + "\n`coracle help COMMAND` shows the help of a command, `coracle --help` lists the commands.\n"
}

/// Returns the help of a command, the page of a topic, or both if they share a name.
fn about(first: &str, words: &[String]) -> Result<String> {
    let topic = manual::page(first).filter(|_| words.len() == 1);
    let command = command(words).map(|mut command| command.render_long_help().to_string());
    match (command, topic) {
        (Some(command), Some(topic)) => Ok(format!("{command}\n\n{topic}")),
        (Some(text), None) | (None, Some(text)) => Ok(text),
        (None, None) => Err(unknown(words)),
    }
}

/// Finds the command for these words.
fn command(words: &[String]) -> Option<Command> {
    let mut command = Cli::command();
    command.build();
    for word in words {
        command = command.find_subcommand(word)?.clone();
    }
    Some(command)
}

fn unknown(words: &[String]) -> CliError {
    let error = CliError::usage(format!(
        "there is no topic or command `{}`",
        words.join(" ")
    ));
    let commands = Cli::command();
    let commands = commands
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let topics = TOPICS.iter().map(|(topic, _)| *topic);
    let all: Vec<&str> = topics.chain(commands.map(Command::get_name)).collect();
    match words
        .first()
        .and_then(|first| suggest::nearest(first, &all))
    {
        Some(near) => error.hint(format!("did you mean `coracle help {near}`?")),
        None => error.hint("`coracle help` lists the topics"),
    }
}

/// Prints the text, through a pager if standard output is a terminal.
fn show(text: &str) -> Result<()> {
    let spawned = pager().filter(|_| io::stdout().is_terminal()).map(|pager| {
        let mut process = Process::new("sh");
        process.arg("-c").arg(pager).stdin(Stdio::piped());
        if env::var_os("LESS").is_none() {
            // Print a text that fits on the screen without paging.
            process.env("LESS", "FRX");
        }
        process.spawn()
    });
    let Some(Ok(mut process)) = spawned else {
        return put(text.as_bytes());
    };
    if let Some(mut input) = process.stdin.take() {
        // The user may quit the pager before the end.
        let _ = input.write_all(text.as_bytes());
    }
    let _ = process.wait();
    Ok(())
}

/// The command line of the pager: `$PAGER`, else `less`; `None` if that program is not installed.
fn pager() -> Option<String> {
    let chosen = env::var("PAGER").ok().filter(|pager| !pager.is_empty());
    let pager = chosen.unwrap_or_else(|| "less".to_owned());
    let installed = pager.split_whitespace().next().is_some_and(on_path);
    installed.then_some(pager)
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Returns a man page by name.
pub(super) fn man_page(name: &str) -> Result<Vec<u8>> {
    let Some((name, command)) = MAN_PAGES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = MAN_PAGES.iter().map(|(name, _)| *name).collect();
        return Err(CliError::usage(format!("there is no man page `{name}`"))
            .hint(format!("there are: {}", names.join(", "))));
    };
    let mut cli = Cli::command();
    cli.build();
    let about = match *command {
        "" => cli,
        command => cli.find_subcommand(command).cloned().unwrap_or_default(),
    };
    let topics = TOPICS.iter().map(|(topic, _)| *topic);
    let topics: Vec<&str> = match *command {
        "" => topics.filter(|topic| *topic != "shutdown").collect(),
        command => vec![command],
    };
    let page = render(about.name(*name), &topics);
    let page = page.map(|page| roff::ascii(&String::from_utf8_lossy(&page)).into_bytes());
    page.map_err(|e| CliError::new("could not make the man page").because(e))
}

/// Formats the section about a command's subcommands, which have no pages of their own; empty if it has none.
fn commands(command: &Command) -> String {
    let all = command.get_subcommands();
    let all = all.filter(|command| !command.is_hide_set());
    let row = |command: &Command| {
        let about = command.get_about().map(ToString::to_string);
        format!(
            "| `{}` | {} |\n",
            command.get_name(),
            about.unwrap_or_default()
        )
    };
    let rows: String = all.map(row).collect();
    match rows.is_empty() {
        true => rows,
        false => roff::section(&format!("# Commands\n\n{rows}")),
    }
}

fn render(command: Command, topics: &[&str]) -> io::Result<Vec<u8>> {
    let commands = commands(&command);
    let man = Man::new(command);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    page.extend_from_slice(commands.as_bytes());
    man.render_extra_section(&mut page)?;
    for topic in topics {
        let text = manual::page(topic).unwrap_or_default();
        page.extend_from_slice(roff::section(&text).as_bytes());
    }
    Ok(page)
}
