//! The namespace before the command, as kubectl takes it: `coracle -n shop get pods`.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;

use super::args::Cli;

/// Moves a leading namespace behind the command that it is for. Everything else stays as it is, also a socket before
/// it.
pub(super) fn behind(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.is_empty() {
        return args;
    }
    let words = args.split_off(1);
    let apart = Apart::of(&words);
    args.extend(match apart.of_command {
        0 => words,
        _ => apart.joined(),
    });
    args
}

/// The same for the words behind the program's name, of a line that is being typed: without a command, there is nothing
/// yet that the namespace is for, and it is left out.
pub(super) fn of_line(words: &[String]) -> Vec<String> {
    Apart::of(words).joined()
}

/// The words of a line, by what they are for.
struct Apart<'w, W> {
    /// The flags before the command, without the namespace.
    flags: Vec<&'w [W]>,
    namespace: Vec<&'w [W]>,
    /// The command, and what is behind it.
    rest: &'w [W],
    /// How many words of the rest are the command: two of `image rm`.
    of_command: usize,
}

impl<'w, W: AsRef<OsStr> + Clone> Apart<'w, W> {
    fn of(words: &'w [W]) -> Self {
        let (mut flags, mut namespace, mut rest) = (Vec::new(), Vec::new(), words);
        while let Some((is_namespace, count)) = rest.first().and_then(leading) {
            // A flag without its value is left to the parser.
            let Some((flag, behind)) = rest.split_at_checked(count) else {
                break;
            };
            match is_namespace {
                true => namespace.push(flag),
                false => flags.push(flag),
            }
            rest = behind;
        }
        let (mut command, mut of_command) = (Cli::command(), 0);
        while let Some(below) = rest
            .get(of_command)
            .and_then(|word| command.find_subcommand(word))
        {
            command = below.clone();
            of_command += 1;
        }
        Self {
            flags,
            namespace,
            rest,
            of_command,
        }
    }

    /// The line, with the namespace behind the command if there is one.
    fn joined(self) -> Vec<W> {
        let (command, rest) = self.rest.split_at(self.of_command);
        let namespace = match command {
            [] => Vec::new(),
            _ => self.namespace.concat(),
        };
        [&self.flags.concat()[..], command, &namespace, rest].concat()
    }
}

/// Whether a flag that may stand before the command is a namespace, and how many words it has; `None` for other words.
fn leading(word: &impl AsRef<OsStr>) -> Option<(bool, usize)> {
    match word.as_ref().to_str()? {
        "--socket" => Some((false, 2)),
        "-n" | "--namespace" => Some((true, 2)),
        "-A" | "--all-namespaces" => Some((true, 1)),
        joined if joined.starts_with("--socket=") => Some((false, 1)),
        joined if joined.starts_with("-n") || joined.starts_with("--namespace=") => Some((true, 1)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_namespace_goes_behind_the_command() {
        for (line, wanted) in [
            ("coracle -n a get pods", "coracle get -n a pods"),
            ("coracle -na get pods", "coracle get -na pods"),
            (
                "coracle --namespace=a rollout status deployment/x",
                "coracle rollout status --namespace=a deployment/x",
            ),
            ("coracle -A get get", "coracle get -A get"),
            ("coracle get -n a pods", "coracle get -n a pods"),
            (
                "coracle -n a exec web -- get",
                "coracle exec -n a web -- get",
            ),
            (
                "coracle --socket /x -n a get pods",
                "coracle --socket /x get -n a pods",
            ),
            (
                "coracle --socket=/x -A get pods",
                "coracle --socket=/x get -A pods",
            ),
            (
                "coracle --socket /x get pods",
                "coracle --socket /x get pods",
            ),
            (
                "coracle -n a --socket /x get pods",
                "coracle --socket /x get -n a pods",
            ),
            (
                "coracle --namespace a --socket=/x image ls",
                "coracle --socket=/x image ls --namespace a",
            ),
            (
                "coracle -A --socket /x -n a get pods",
                "coracle --socket /x get -A -n a pods",
            ),
            (
                "coracle -n a --socket /x nothing",
                "coracle -n a --socket /x nothing",
            ),
            ("coracle -n a --socket", "coracle -n a --socket"),
            ("coracle --socket", "coracle --socket"),
            ("coracle -n a nothing", "coracle -n a nothing"),
            ("coracle -n a", "coracle -n a"),
            ("coracle -n", "coracle -n"),
            ("coracle", "coracle"),
        ] {
            let args = line.split(' ').map(OsString::from).collect();
            let words: Vec<_> = behind(args).into_iter().collect();
            let wanted: Vec<_> = wanted.split(' ').map(OsString::from).collect();
            assert_eq!(words, wanted, "{line}");
        }
    }

    #[test]
    fn a_line_that_is_being_typed_has_the_namespace_behind_its_command_too() {
        for (line, wanted) in [
            ("-n a get pods", "get -n a pods"),
            ("-n a --socket /x image rm", "--socket /x image rm -n a"),
            ("-n a", ""),
            ("-n", "-n"),
            ("get -n a", "get -n a"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(of_line(&words).join(" "), wanted, "{line}");
        }
    }
}
