//! The namespace before the command, as kubectl takes it: `coracle -n shop get pods`.

use std::ffi::OsString;

use clap::CommandFactory;

use super::args::Cli;

/// Moves a leading namespace behind the command that it is for. Everything else stays as it is, also a socket before
/// it.
pub(super) fn behind(mut args: Vec<OsString>) -> Vec<OsString> {
    let word = |at: usize| args.get(at).and_then(|word| word.to_str());
    let begin = match word(1) {
        Some("--socket") => 3,
        Some(joined) if joined.starts_with("--socket=") => 2,
        _ => 1,
    };
    let leading = match word(begin) {
        Some("-n" | "--namespace") => 2,
        Some("-A" | "--all-namespaces") => 1,
        Some(joined) if joined.starts_with("-n") || joined.starts_with("--namespace=") => 1,
        _ => return args,
    };
    let mut command = Cli::command();
    let mut end = begin + leading;
    while let Some(below) = word(end).and_then(|word| command.find_subcommand(word)) {
        command = below.clone();
        end += 1;
    }
    if end <= args.len() {
        args[begin..end].rotate_left(leading);
    }
    args
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
}
