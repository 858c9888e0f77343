//! Switches with a value, as kubectl takes them: `--follow=true`, `-A=true`, `--watch=false`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::args::Cli;

/// Writes such switches as the parser knows them; one that is off is left out. Everything else stays as it is.
pub(super) fn plain(args: Vec<OsString>) -> Vec<OsString> {
    let has_value = |word: &OsString| word.to_str().is_some_and(|text| text.contains('='));
    if !args.iter().any(has_value) {
        return args;
    }
    let mut command = Cli::command();
    let (mut plain, mut open, mut at_command) = (Vec::new(), true, true);
    for word in args {
        let text = word.to_str().unwrap_or_default();
        open &= text != "--";
        if !open || plain.is_empty() {
            plain.push(word);
        } else if text.starts_with('-') {
            match switch(&command, text) {
                Some((name, true)) => plain.push(name.into()),
                Some((_, false)) => {}
                None => plain.push(word),
            }
        } else {
            let below = command.find_subcommand(text).filter(|_| at_command);
            match below.cloned() {
                Some(below) => command = below,
                None => at_command &= is_value(&plain),
            }
            plain.push(word);
        }
    }
    plain
}

/// Whether the next word may be the value of the last one: `--socket /x get`.
fn is_value(before: &[OsString]) -> bool {
    let last = before.last().and_then(|word| word.to_str());
    last.is_some_and(|word| word.starts_with('-'))
}

/// The switch of this command that the word sets, and whether it is on.
fn switch<'w>(command: &Command, word: &'w str) -> Option<(&'w str, bool)> {
    let (name, value) = word.split_once('=')?;
    let on = match value {
        "true" => true,
        "false" => false,
        _ => return None,
    };
    let is = |arg: &&Arg| match name.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg
            .get_short()
            .is_some_and(|short| name == format!("-{short}")),
    };
    let arg = command.get_arguments().find(is)?;
    matches!(arg.get_action(), ArgAction::SetTrue).then_some((name, on))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_may_have_a_value() {
        for (line, wanted) in [
            (
                "coracle logs web --follow=true",
                "coracle logs web --follow",
            ),
            (
                "coracle logs web -f=true --prefix=false",
                "coracle logs web -f",
            ),
            (
                "coracle get pods -A=true --watch=false --no-headers=true",
                "coracle get pods -A --no-headers",
            ),
            (
                "coracle --socket /x delete pod web --force=true --wait=false",
                "coracle --socket /x delete pod web --force --wait=false",
            ),
            (
                "coracle image rm --force=true x",
                "coracle image rm --force x",
            ),
            (
                "coracle exec web --stdin=true -- get --watch=true",
                "coracle exec web --stdin -- get --watch=true",
            ),
            (
                "coracle get pods --watch=maybe",
                "coracle get pods --watch=maybe",
            ),
            (
                "coracle get pods --selector=true",
                "coracle get pods --selector=true",
            ),
            ("coracle", "coracle"),
        ] {
            let args = line.split(' ').map(OsString::from).collect();
            let wanted: Vec<_> = wanted.split(' ').map(OsString::from).collect();
            assert_eq!(plain(args), wanted, "{line}");
        }
    }
}
