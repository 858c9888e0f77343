//! Hints for what kubectl and podman take behind a command that coracle has, too.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::Cli;
use super::error::CliError;

/// A command, words behind it, and what to do instead.
const BELOW: &[(&str, &[&str], &str)] = &[
    (
        "system",
        &["prune"],
        "`coracle image prune --all` removes images that nothing uses, `coracle volume rm CLAIM` the data of a claim; \
         there is nothing else to prune",
    ),
    (
        "system",
        &["info"],
        "`coracle status`, `coracle describe node`",
    ),
    (
        "volume",
        &["prune"],
        "`coracle volume ls` shows which claims are in use, `coracle volume rm CLAIM` removes one",
    ),
    (
        "volume",
        &["inspect", "show"],
        "`coracle describe pvc NAME`, or all of them: `coracle volume ls -o json`",
    ),
    ("volume", &["list"], "`coracle volume ls`"),
    ("volume", &["remove", "delete"], "`coracle volume rm CLAIM`"),
    (
        "volume",
        &["create"],
        "`coracle create pvc NAME --size 1Gi --save` writes a claim to a manifest",
    ),
    ("config", &["view", "show", "get"], "`coracle config print`"),
    (
        "config",
        &["validate", "lint", "test"],
        "`coracle config check`",
    ),
    (
        "config",
        &[
            "get-contexts",
            "current-context",
            "use-context",
            "set-context",
        ],
        "there are no contexts: a command asks the agent of this machine, or the one whose socket `--socket` names",
    ),
];

/// Replaces clap's error if what is meant is known.
pub(super) fn instead(error: &clap::Error, args: &[OsString]) -> Option<CliError> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else {
        return None;
    };
    let all = Cli::command();
    let mut words = args.iter().skip(1).filter_map(|arg| arg.to_str());
    let command = words.find(|word| all.find_subcommand(word).is_some())?;
    if error.kind() == ErrorKind::UnknownArgument {
        let program = ["exec", "debug"].contains(&command) && !word.starts_with('-');
        return program.then(|| behind_dashes(command, word));
    }
    let mut rows = BELOW.iter();
    let (_, _, hint) = rows.find(|(of, words, _)| *of == command && words.contains(&&**word))?;
    let error = CliError::usage(format!("there is no command `{command} {word}`"));
    Some(error.hint(*hint))
}

/// kubectl takes a program without `--` in some versions, podman in all.
fn behind_dashes(command: &str, program: &str) -> CliError {
    let flags = match command {
        "debug" => " -it POD --image IMAGE",
        _ => " POD",
    };
    CliError::usage(format!("`--` is missing before the program `{program}`")).hint(format!(
        "`coracle {command}{flags} -- {program}`, with its arguments behind it"
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn said(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&words).err()?;
        instead(&error, &words).map(|error| error.to_string())
    }

    #[test]
    fn foreign_words_behind_a_command_are_answered_with_a_hint() {
        for (line, words) in [
            (
                "coracle exec redis ls /",
                "`coracle exec POD -- ls`, with its arguments",
            ),
            (
                "coracle exec -it -n shop redis -c main sh",
                "before the program `sh`",
            ),
            (
                "coracle --socket /x exec redis ls -l",
                "`coracle exec POD -- ls`",
            ),
            (
                "coracle debug -it web --image busybox sh",
                "`coracle debug -it POD --image IMAGE -- sh`",
            ),
            ("coracle system prune", "`coracle image prune --all`"),
            ("coracle system prune -a", "`coracle image prune --all`"),
            ("coracle volume prune", "`coracle volume rm CLAIM`"),
            ("coracle volume inspect data", "`coracle describe pvc NAME`"),
            ("coracle config view", "`coracle config print`"),
            ("coracle config get-contexts", "no contexts"),
        ] {
            let said = said(line).unwrap_or_else(|| panic!("{line}: nothing is said"));
            assert!(said.contains(words), "{line}: {said}");
        }
    }

    #[test]
    fn slips_and_wrong_flags_are_left_to_clap() {
        for line in [
            "coracle config prnt",
            "coracle exec --tyt redis -- ls",
            "coracle get exec -- ls",
            "coracle exec redis",
            "coracle volume",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
    }

    #[test]
    fn no_own_command_is_among_the_foreign_ones() {
        let ours = Cli::command();
        for (command, words, _) in BELOW {
            let command = ours.find_subcommand(command).expect("it is ours");
            for word in *words {
                assert!(command.find_subcommand(word).is_none(), "{word}");
            }
        }
    }
}
