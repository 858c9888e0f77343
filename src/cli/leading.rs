//! The namespace before the command, as kubectl takes it: `coracle -n shop get pods`.

use std::ffi::OsString;

use clap::CommandFactory;

use super::args::Cli;

/// Moves a leading namespace behind the command that it is for. Everything else stays as it is.
pub(super) fn behind(mut args: Vec<OsString>) -> Vec<OsString> {
    let word = |at: usize| args.get(at).and_then(|word| word.to_str());
    let leading = match word(1) {
        Some("-n" | "--namespace") => 2,
        Some("-A" | "--all-namespaces") => 1,
        Some(joined) if joined.starts_with("-n") || joined.starts_with("--namespace=") => 1,
        _ => return args,
    };
    let mut command = Cli::command();
    let mut end = leading + 1;
    while let Some(below) = word(end).and_then(|word| command.find_subcommand(word)) {
        command = below.clone();
        end += 1;
    }
    if end <= args.len() {
        args[1..end].rotate_left(leading);
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
