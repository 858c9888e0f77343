//! Completion: the shells' scripts, and `coracle complete`, which they call for each candidate. The commands and flags come
//! from the parser itself, names of objects from the agent; without an agent there are none, and no error is printed.

mod names;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgAction, Command, CommandFactory, ValueHint};

use super::args::{Cli, Shell};
use super::client::Client;
use super::error::Result;
use super::{leading, put};

/// Printed instead of candidates where files are meant: shells complete those themselves.
const FILES: &str = ":files";

/// The script of a shell.
pub(super) fn script(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("bash"),
        Shell::Zsh => include_str!("zsh"),
        Shell::Fish => include_str!("fish"),
    }
}

/// Prints the candidates for the last word of a command line, each with a tab and what it is.
pub(super) fn run(client: Client, words: &[String]) -> Result<ExitCode> {
    let mut text = String::new();
    for (value, about) in candidates(client, words) {
        text += &match about.is_empty() {
            true => format!("{value}\n"),
            false => format!("{value}\t{about}\n"),
        };
    }
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A word, and what it is.
type Candidate = (String, String);

/// A command line as far as it is typed.
struct Line {
    command: Command,
    /// The names of the commands: `image rm`.
    path: Vec<String>,
    /// The words that are no flags.
    positionals: Vec<String>,
    /// The flag whose value is being typed.
    pending: Option<Arg>,
    namespace: String,
    /// A program of a container follows, with its arguments.
    after_dashes: bool,
}

fn candidates(mut client: Client, words: &[String]) -> Vec<Candidate> {
    let Some((current, before)) = words.split_last() else {
        return Vec::new();
    };
    let line = Line::of(before, &mut client);
    if line.after_dashes {
        return Vec::new();
    }
    let (found, head) = line.all(&client, current);
    let typed = &current[head.len()..];
    let fits = |(value, _): &Candidate| value == FILES || value.starts_with(typed);
    let found = found.into_iter().filter(fits);
    let whole = found.map(|(value, about)| match value == FILES {
        true => (value, about),
        false => (format!("{head}{value}"), about),
    });
    whole.collect()
}

impl Line {
    fn of(words: &[String], client: &mut Client) -> Self {
        let mut command = Cli::command();
        command.build();
        let mut line = Self {
            command,
            path: Vec::new(),
            positionals: Vec::new(),
            pending: None,
            namespace: "default".to_owned(),
            after_dashes: false,
        };
        for word in &leading::of_line(words) {
            line.take(word, client);
        }
        line
    }

    fn take(&mut self, word: &str, client: &mut Client) {
        if let Some(arg) = self.pending.take() {
            match arg.get_id().as_str() {
                "socket" => client.socket = PathBuf::from(word),
                "namespace" => word.clone_into(&mut self.namespace),
                _ => {}
            }
        } else if word == "--" {
            self.after_dashes = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = long
                .split_once('=')
                .map_or((long, None), |(n, v)| (n, Some(v)));
            self.pending = self.flag(|arg| arg.get_long() == Some(name));
            if let Some(value) = value.filter(|_| self.pending.is_some()) {
                self.take(value, client);
            }
        } else if word.len() > 1 && word.starts_with('-') {
            let mut letters = word[1..].chars();
            while let Some(letter) = letters.next() {
                self.pending = self.flag(|arg| arg.get_short() == Some(letter));
                let rest = letters.as_str();
                if self.pending.is_some() && !rest.is_empty() {
                    self.take(rest, client);
                    break;
                }
            }
        } else {
            let below = self.command.find_subcommand(word);
            match below.filter(|_| self.positionals.is_empty()).cloned() {
                Some(below) => {
                    self.path.push(below.get_name().to_owned());
                    self.command = below;
                }
                None => self.positionals.push(word.to_owned()),
            }
        }
    }

    /// The flag that is meant, if a value follows it as a word of its own.
    fn flag(&self, is: impl Fn(&Arg) -> bool) -> Option<Arg> {
        let mut flags = self.command.get_arguments();
        let flag = flags.find(|arg| is(arg) && !arg.is_positional())?;
        (takes_value(flag) && !flag.is_require_equals_set()).then(|| flag.clone())
    }

    /// All that may stand here, and the part of the word before it.
    fn all<'w>(&self, client: &Client, current: &'w str) -> (Vec<Candidate>, &'w str) {
        if let Some(arg) = &self.pending {
            return (self.values(arg, client, current), "");
        }
        if let Some((name, _)) = current
            .strip_prefix("--")
            .and_then(|long| long.split_once('='))
        {
            let mut flags = self.command.get_arguments();
            let flag = flags.find(|arg| arg.get_long() == Some(name));
            let found = flag.map(|flag| self.values(flag, client, ""));
            return (found.unwrap_or_default(), &current[..name.len() + 3]);
        }
        if current.starts_with('-') {
            return (self.flags(current), "");
        }
        if self.command.has_subcommands() && self.positionals.is_empty() {
            return (subcommands(&self.command), "");
        }
        let mut places = self.command.get_positionals();
        let place = places.nth(self.positionals.len());
        let last = self.command.get_positionals().last();
        let place = place.or(last.filter(|arg| matches!(arg.get_action(), ArgAction::Append)));
        let place = place.filter(|arg| !arg.is_last_set());
        let place = place.or_else(|| {
            // More words of a list before the program of a container.
            let mut lists = self.command.get_positionals();
            lists.find(|arg| matches!(arg.get_action(), ArgAction::Append) && !arg.is_last_set())
        });
        let found = place.map(|arg| self.values(arg, client, current));
        (found.unwrap_or_default(), "")
    }

    fn flags(&self, current: &str) -> Vec<Candidate> {
        let flags = self.command.get_arguments();
        let flags = flags.filter(|arg| !arg.is_hide_set() && !arg.is_positional());
        let mut found = Vec::new();
        for arg in flags {
            let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let equals = if arg.is_require_equals_set() { "=" } else { "" };
            let long = arg.get_long().map(|long| format!("--{long}{equals}"));
            let short = arg.get_short().map(|short| format!("-{short}"));
            // The long ones say what they mean.
            let short = short.filter(|_| long.is_none() || current.len() == 2);
            found.extend(
                long.into_iter()
                    .chain(short)
                    .map(|flag| (flag, about.clone())),
            );
        }
        found
    }

    /// The values of an argument.
    fn values(&self, arg: &Arg, client: &Client, current: &str) -> Vec<Candidate> {
        let possible = arg.get_possible_values();
        if !possible.is_empty() {
            let shown = possible.iter().filter(|value| !value.is_hide_set());
            let about = |value: &clap::builder::PossibleValue| {
                value
                    .get_help()
                    .map(ToString::to_string)
                    .unwrap_or_default()
            };
            return shown
                .map(|value| (value.get_name().to_owned(), about(value)))
                .collect();
        }
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let asked = names::Asked {
            client,
            path: &path,
            before: &self.positionals,
            namespace: &self.namespace,
            current,
        };
        if let Some(names) = names::of(arg.get_id().as_str(), &asked) {
            return names
                .into_iter()
                .map(|name| (name, String::new()))
                .collect();
        }
        match arg.get_value_hint() {
            ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath => {
                vec![(FILES.to_owned(), String::new())]
            }
            _ => Vec::new(),
        }
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

fn subcommands(command: &Command) -> Vec<Candidate> {
    let all = command.get_subcommands();
    let all = all.filter(|command| !command.is_hide_set());
    let about = |command: &Command| command.get_about().map(ToString::to_string);
    all.map(|command| {
        (
            command.get_name().to_owned(),
            about(command).unwrap_or_default(),
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(line: &str) -> Vec<String> {
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let found = candidates(client, &words);
        found.into_iter().map(|(value, _)| value).collect()
    }

    #[test]
    fn commands_flags_and_values_come_from_the_parser() {
        for (line, wanted) in [
            ("descr", vec!["describe"]),
            ("image pru", vec!["prune"]),
            ("get pods --show-l", vec!["--show-labels"]),
            ("image ls --output=wi", vec!["--output=wide"]),
            ("get depl", vec!["deployments"]),
            ("get pod,depl", vec!["pod,deployments"]),
            ("-n x descr", vec!["describe"]),
            ("-n x --socket /x get depl", vec!["deployments"]),
            ("get -n x persistentvolumec", vec!["persistentvolumeclaims"]),
            ("completion f", vec!["fish"]),
            ("drain --dry-run=c", vec!["--dry-run=client"]),
            ("create sec", vec!["secret"]),
            ("create secret t", vec!["tls"]),
            ("explain priorityc", vec!["priorityclass"]),
            ("describe pod", vec!["pod"]),
            ("describe endp", vec![]),
            (
                "rollout status ",
                vec!["deployments", "statefulsets", "daemonsets"],
            ),
            ("rollout history po", vec!["pods"]),
            ("rollout undo po", vec!["pods"]),
            ("rollout restart po", vec![]),
            ("wait ima", vec![]),
            ("wait endp", vec!["endpoints"]),
            ("events --for config", vec![]),
            ("events --for job", vec!["jobs"]),
            ("get pods -o js", vec!["json", "jsonpath="]),
            ("events --output=cu", vec!["--output=custom-columns="]),
            ("wait pod/web --for del", vec!["delete"]),
            ("wait pod/web --for=cond", vec!["--for=condition="]),
            (
                "explain pod.spec.containers.liv",
                vec!["pod.spec.containers.livenessProbe"],
            ),
            ("help stor", vec!["storage"]),
            ("delete ", vec!["pod"]),
            ("cp ./", vec![FILES]),
            ("validate ", vec![FILES]),
            ("config check --socket /x ", vec![FILES]),
            ("create configmap x --from-file ", vec![FILES]),
        ] {
            assert_eq!(offered(line), wanted, "{line}");
        }
    }

    #[test]
    fn without_an_agent_nothing_is_offered_for_names() {
        for line in [
            "logs ",
            "logs web ",
            "logs web app ",
            "exec svc/",
            "get pods ",
            "delete pod ",
            "stop ",
            "restart ",
            "start deployment/",
            "port-forward ",
            "exec -n x w",
            "image rm ",
            "logs web -c ",
            "exec web -- l",
            "",
        ] {
            let found = offered(line);
            assert!(found.is_empty() || line.is_empty(), "{line}: {found:?}");
        }
    }
}
