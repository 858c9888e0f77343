//! Hints for commands of kubectl, docker or systemctl that coracle does not have.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::args::DEFAULT_SOCKET;
use super::client::Client;
use super::directories;
use super::error::CliError;

/// Commands and what to do instead; `{manifests}` stands for the manifest directory in force.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &[
            "apply", "replace", "patch", "set", "label", "annotate", "play", "kube", "up", "deploy",
        ],
        "write the pod's manifest to a file in `{manifests}`: it takes effect when it is saved (`coracle plan FILE` says how)",
    ),
    (
        &["edit"],
        "edit the pod's file in `{manifests}` (`coracle describe pod NAME` names it): it takes effect when it is saved",
    ),
    (
        &["expose"],
        "`coracle create service nodeport NAME --tcp PORT --save`, or give the container a `hostPort`",
    ),
    (
        &["reboot"],
        "`coracle restart POD` restarts a pod's containers; of the agent itself: `systemctl restart coracle`",
    ),
    (
        &["ps", "ls", "list", "pods", "container", "containers", "pod"],
        "`coracle get pods`",
    ),
    (
        &["kill", "rm", "remove", "down"],
        "take the pod's file out of `{manifests}` to stop it for good; `coracle stop POD` keeps it down until `coracle start \
         POD`; `coracle delete pod NAME` stops it once",
    ),
    (
        &["info", "cluster-info"],
        "`coracle status`, `coracle describe node`; of the agent itself: `systemctl status coracle`",
    ),
    (
        &["images", "rmi"],
        "`coracle image ls`, `coracle image rm NAME`",
    ),
    (&["pull"], "`coracle image pull NAME`"),
    (
        &["history", "tag"],
        "`coracle image history NAME`, `coracle image tag NAME NEW`",
    ),
    (
        &["login", "logout"],
        "credentials are in `/etc/coracle/auth.json`: `podman login --authfile /etc/coracle/auth.json REGISTRY` writes them",
    ),
    (
        &["push", "search"],
        "images are only pulled: `coracle image pull NAME`",
    ),
    (
        &["load", "import", "build", "commit", "save"],
        "`coracle image import ARCHIVE`",
    ),
    (
        &["inspect", "show"],
        "`coracle describe pod NAME`, or all of it: `coracle get pod NAME -o yaml`",
    ),
    (
        &["scale", "autoscale"],
        "write `replicas` into the Deployment's file in `{manifests}`: it takes effect when it is saved",
    ),
    (
        &["proxy", "tunnel", "forward"],
        "`coracle port-forward POD 8080:80`; other machines reach pods by a `hostPort` or a `Service`",
    ),
    (
        &["copy", "scp"],
        "`coracle cp POD:FILE .`, or `coracle cp FILE POD:DIR`",
    ),
    (&["log"], "`coracle logs POD`"),
    (
        &["sh", "bash", "shell", "enter"],
        "`coracle exec -it POD -- sh`",
    ),
    (&["stats"], "`coracle top pods`"),
    (
        &["lint", "check", "test"],
        "`coracle validate FILE`, for settings `coracle config check FILE`",
    ),
    (
        &["reload", "daemon-reload", "enable"],
        "changed files are read by themselves; `coracle install --now` sets the agent up as a service",
    ),
    (
        &["prune", "df"],
        "`coracle image prune`, `coracle system df`",
    ),
    (
        &["taint"],
        "`registerWithTaints` in the settings; to keep pods out: `coracle cordon`",
    ),
    (
        &["network", "configmap"],
        "it belongs to the pod's manifest, a file in `{manifests}`",
    ),
    (
        &["generate"],
        "`coracle get pod NAME -o yaml` prints a manifest; what is in `{manifests}` starts at every boot without a unit of its own",
    ),
    (
        &["api-resources", "api-versions"],
        "`coracle explain` lists the kinds",
    ),
    (
        &["services", "svc", "nodes", "node"],
        "`coracle get services`, `coracle get node`",
    ),
    (
        &["poweroff", "halt"],
        "`coracle shutdown` stops the pods before the machine goes down",
    ),
];

/// Commands below `coracle image`, and what to do instead.
const IMAGES: &[(&[&str], &str)] = &[
    (
        &["push"],
        "images are only pulled: `coracle image pull NAME`",
    ),
    (
        &["load", "add", "build", "tag"],
        "`coracle image import ARCHIVE`",
    ),
    (&["list"], "`coracle image ls`"),
    (&["delete", "remove"], "`coracle image rm NAME`"),
];

/// Replaces clap's error if the intended command is known.
pub(super) fn instead(error: &clap::Error, args: &[OsString]) -> Option<CliError> {
    let word = match error.kind() {
        ErrorKind::InvalidSubcommand => context(error, ContextKind::InvalidSubcommand)?,
        ErrorKind::UnknownArgument => context(error, ContextKind::InvalidArg)?,
        _ => return None,
    };
    let words: Vec<&str> = args.iter().skip(1).filter_map(|arg| arg.to_str()).collect();
    if error.kind() == ErrorKind::UnknownArgument
        && let Some((what, hint)) = no_files(&word, &words)
    {
        return Some(CliError::usage(what).hint(fill(hint, &words)));
    }
    let at = words.iter().position(|found| *found == word)?;
    let before = words[..at].iter().rev().find(|word| !word.starts_with('-'));
    let hint = match (error.kind(), before.copied()) {
        (ErrorKind::UnknownArgument, Some("create")) if ["-f", "--filename"].contains(&&*word) => {
            let hint = "put the file into `{manifests}`: it takes effect when it is there (`coracle plan FILE` says how)";
            let error = CliError::usage("`coracle create` makes manifests, and takes none");
            return Some(error.hint(fill(hint, &words)));
        }
        (ErrorKind::UnknownArgument, Some("run"))
            if !word.starts_with('-') || word == "--image" =>
        {
            let hint = "`coracle create pod NAME --image IMAGE --save` writes a manifest to `{manifests}`, which runs it";
            let error = CliError::usage("`coracle run` is the agent, and takes no image");
            return Some(error.hint(fill(hint, &words)));
        }
        (ErrorKind::UnknownArgument, _) => return None,
        (_, Some("image")) => find(IMAGES, &word)?,
        // The word after `--socket` is its value.
        (_, Some(other)) if is_command(other) => return None,
        _ => find(COMMANDS, &word)?,
    };
    let error = CliError::usage(format!("there is no command `{word}`"));
    Some(error.hint(fill(hint, &words)))
}

/// The answer to kubectl's flags for files where a command takes none.
fn no_files(flag: &str, words: &[&str]) -> Option<(String, &'static str)> {
    let command = words.iter().find(|word| is_command(word))?;
    let names = match (flag, *command) {
        ("-R" | "--recursive", "validate" | "plan") => {
            let what = format!("`coracle {command}` does not read folders inside of folders");
            return Some((what, "name them all: the agent reads one directory only"));
        }
        ("-f" | "--filename", "delete") => {
            "take the file out of `{manifests}`: what it defines stops; `coracle delete pod NAME` stops a pod once"
        }
        ("-f" | "--filename", "get") => {
            "`coracle get files` lists the manifest files, with what is wrong with them"
        }
        ("-f" | "--filename", "wait") => {
            "name what to wait for: `coracle wait --for condition=Ready pod/NAME`"
        }
        _ => return None,
    };
    Some((format!("`coracle {command}` takes names, not files"), names))
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

fn is_command(word: &str) -> bool {
    use clap::CommandFactory;
    let all = super::args::Cli::command();
    all.get_subcommands()
        .any(|command| command.get_name() == word)
}

fn find(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    let mut rows = table.iter();
    rows.find(|(words, _)| words.contains(&word.as_str()))
        .map(|(_, hint)| *hint)
}

/// Fills in the manifest directory; asks the agent only if the hint mentions it.
fn fill(hint: &str, words: &[&str]) -> String {
    if !hint.contains("{manifests}") {
        return hint.to_owned();
    }
    let named = words
        .windows(2)
        .find(|pair| pair[0] == "--socket")
        .map(|pair| pair[1]);
    let joined = words.iter().find_map(|word| word.strip_prefix("--socket="));
    let given = named.or(joined).map(PathBuf::from);
    let socket = given.or_else(|| std::env::var_os("CORACLE_SOCKET").map(PathBuf::from));
    let client = Client {
        socket: socket.unwrap_or_else(|| DEFAULT_SOCKET.into()),
    };
    let manifests = directories::find(&client, (None, None, None)).manifests;
    hint.replace("{manifests}", &manifests.display().to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::Cli;
    use super::*;

    fn said(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = Cli::try_parse_from(&words).err()?;
        instead(&error, &words).map(|error| error.to_string())
    }

    #[test]
    fn foreign_commands_are_answered_with_a_hint() {
        for (line, words) in [
            ("coracle apply -f web.yaml", "a file in `/"),
            ("coracle create -f web.yaml", "put the file into `/"),
            ("coracle delete -f web.yaml", "take the file out of `/"),
            (
                "coracle delete --filename=web.yaml",
                "takes names, not files",
            ),
            ("coracle get -f web.yaml", "`coracle get files`"),
            ("coracle wait -f web.yaml", "`coracle wait --for"),
            (
                "coracle wait --for condition=Ready -f a",
                "takes names, not",
            ),
            ("coracle validate -R /etc", "`coracle validate` does not"),
            ("coracle plan --recursive -f /etc", "name them all"),
            ("coracle run nginx", "`coracle run` is the agent"),
            ("coracle run web --image nginx", "`coracle create pod NAME"),
            ("coracle run --image nginx web", "`coracle create pod NAME"),
            ("coracle edit pod web", "edit the pod's file in `/"),
            ("coracle reboot web", "`coracle restart POD`"),
            ("coracle ps -a", "`coracle get pods`"),
            ("coracle down web", "`coracle stop POD`"),
            ("coracle kill web", "out of `/"),
            ("coracle images", "`coracle image ls`"),
            ("coracle pull nginx", "`coracle image pull NAME`"),
            ("coracle login quay.io", "`/etc/coracle/auth.json`"),
            ("coracle load -i x.tar", "`coracle image import ARCHIVE`"),
            ("coracle inspect web", "`coracle describe pod NAME`"),
            ("coracle scale --replicas 3 web", "write `replicas`"),
            ("coracle tunnel web 80", "`coracle port-forward POD"),
            ("coracle copy web:/a b", "`coracle cp POD:FILE"),
            ("coracle info", "`systemctl status coracle`"),
            ("coracle --socket /nowhere/x.sock apply", "a file in `/"),
            ("coracle image push nginx", "images are only pulled"),
            ("coracle image list", "`coracle image ls`"),
        ] {
            let said = said(line).unwrap_or_else(|| panic!("{line}: nothing is said"));
            assert!(said.contains(words), "{line}: {said}");
        }
    }

    #[test]
    fn slips_and_wrong_flags_are_left_to_clap() {
        for line in [
            "coracle gett",
            "coracle config pull",
            "coracle run --imag x",
            "coracle get",
            "coracle",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
    }

    #[test]
    fn no_own_command_is_among_the_foreign_ones() {
        use clap::CommandFactory;
        let known = COMMANDS.iter().flat_map(|(words, _)| words.iter());
        let ours = Cli::command();
        let ours: Vec<&str> = ours
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        for word in known {
            assert!(!ours.contains(word), "{word}");
            assert!(seen.insert(word), "{word} twice");
        }
    }
}
