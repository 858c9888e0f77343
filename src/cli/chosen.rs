//! The pods that a command acts on: by name, by label, all of them, or those of a Deployment or the like.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::args::ChosenArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::pod_path;
use super::target::{owner, pod_name, pods_of, workload_path};
use crate::api::encode;
use crate::spec::WorkloadKind;
use crate::sys::clock;
use crate::types::duration_ms;

/// Poll interval where a watch is not possible, and while the agent restarts.
const AGAIN: Duration = Duration::from_millis(500);

/// What is acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chosen {
    Pod(String),
    Workload(WorkloadKind, String),
}

impl Chosen {
    /// What a name as on the command line stands for: a pod, or KIND/NAME.
    pub(super) fn of(name: &str) -> Self {
        match owner(name) {
            Some((kind, name)) => Self::Workload(kind, name.to_owned()),
            None => Self::Pod(name.strip_prefix("pod/").unwrap_or(name).to_owned()),
        }
    }

    /// As on the command line.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Pod(name) => format!("pod/{name}"),
            Self::Workload(kind, name) => format!("{}/{name}", kind.as_str().to_lowercase()),
        }
    }

    /// Its parameter of a request.
    pub(super) fn parameter(&self) -> String {
        match self {
            Self::Pod(name) => format!("pod={}", encode(name)),
            Self::Workload(kind, name) => format!("workload={}/{}", kind.as_str(), encode(name)),
        }
    }
}

/// How long to wait for each; an error if it is no duration.
pub(super) fn patience(args: &ChosenArgs) -> Result<Duration> {
    let ms = duration_ms(&args.timeout).ok_or_else(|| {
        CliError::usage(format!("--timeout `{}` is not a duration", args.timeout))
            .hint("write it as in 90s, 5m or 1h30m")
    });
    Ok(Duration::from_millis(ms?))
}

/// What was chosen. A document whose pods are all meant stands for them.
pub(super) fn chosen(client: &Client, args: &ChosenArgs) -> Result<Vec<Chosen>> {
    let wide = args.all || args.selector.is_some();
    // A shell variable that is not set must not choose all pods.
    let blank = args.selector.as_deref().is_some_and(is_blank);
    match (args.what.is_empty(), wide) {
        (true, _) if blank || !wide => {
            return Err(CliError::usage("say which pods, or --all, or -l SELECTOR"));
        }
        (false, true) => return Err(CliError::usage("either names, or --all and -l")),
        (true, _) => {}
        (false, false) => return Ok(named(&args.what)),
    }
    let path = pod_path(&args.namespace.namespace, "");
    let selector = encode(args.selector.as_deref().unwrap_or_default());
    let some = client.get(&format!("{path}?labelSelector={selector}"))?;
    let all = client.get(&path)?;
    let mut chosen = Vec::new();
    for pod in items(&some) {
        let own = owner_of(pod);
        let count = |list| {
            items(list)
                .filter(|pod| own.is_some() && owner_of(pod) == own)
                .count()
        };
        let next = match own.filter(|_| count(&some) == count(&all)) {
            Some((kind, name)) => Chosen::Workload(kind, name.to_owned()),
            None => Chosen::Pod(name(pod).to_owned()),
        };
        if !chosen.contains(&next) {
            chosen.push(next);
        }
    }
    if chosen.is_empty() {
        eprintln!(
            "No resources found in {} namespace.",
            args.namespace.namespace
        );
    }
    Ok(chosen)
}

/// What these words name: each by itself, or all names after their kind, as in `pod web db`.
fn named(words: &[String]) -> Vec<Chosen> {
    let one = |word: &String| Chosen::of(word);
    let each = |words: &[String]| words.iter().map(one).collect();
    match words.split_first() {
        Some((kind, names)) if !names.is_empty() && !kind.contains('/') => {
            let named = format!("{kind}/NAME");
            match owner(&named) {
                Some((kind, _)) => (names.iter().map(one))
                    .map(|one| match one {
                        Chosen::Pod(name) => Chosen::Workload(kind, name),
                        own @ Chosen::Workload(..) => own,
                    })
                    .collect(),
                None if pod_name(&named).is_ok() => each(names),
                None => each(words),
            }
        }
        _ => each(words),
    }
}

/// Whether a selector says nothing, and would select everything.
pub(super) fn is_blank(selector: &str) -> bool {
    selector.trim().is_empty()
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().unwrap_or_default()
}

/// The document that a pod belongs to.
pub(super) fn owner_of(pod: &Value) -> Option<(WorkloadKind, &str)> {
    let owners = pod["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let kind = WorkloadKind::of(owner["kind"].as_str()?)?;
    Some((kind, owner["name"].as_str()?))
}

/// The names of a document's pods.
pub(super) fn pods_of_workload(
    client: &Client,
    namespace: &str,
    (kind, name_of): (WorkloadKind, &str),
) -> Result<Vec<String>> {
    let owner = client.get(&workload_path(kind, namespace, name_of))?;
    let pods = client.get(&pod_path(namespace, ""))?;
    let names = pods_of(&owner, &pods).map(|pod| name(pod).to_owned());
    Ok(names.collect())
}

/// Waits until the objects of a list are as wanted; `false` if the time is over. Outlasts an agent restart.
pub(super) fn until(
    client: &Client,
    path: &str,
    end: Instant,
    mut done: impl FnMut(&[Value]) -> Result<bool>,
) -> Result<bool> {
    loop {
        let left = end.saturating_duration_since(clock::now());
        let list = match client.get(path) {
            Ok(list) => list,
            Err(_) if !left.is_zero() && !client.reachable() => {
                std::thread::sleep(AGAIN.min(left));
                continue;
            }
            Err(error) => return Err(error),
        };
        if done(list["items"].as_array().map_or(&[][..], Vec::as_slice))? {
            return Ok(true);
        }
        if left.is_zero() {
            return Ok(false);
        }
        change(client, path, &list, end);
    }
}

/// Waits for the next change of these objects, or a while.
fn change(client: &Client, path: &str, list: &Value, end: Instant) {
    let left = end.saturating_duration_since(clock::now());
    let version = &list["metadata"]["resourceVersion"];
    let version = version.as_str().unwrap_or_default();
    let seconds = left.as_secs().max(1);
    let watch = format!("{path}?watch=true&resourceVersion={version}&timeoutSeconds={seconds}");
    let next = client.send("GET", &watch, None);
    let next = next.ok().and_then(|watch| watch.body.lines().next());
    let changed = |line: std::io::Result<String>| line.is_ok_and(|line| !line.is_empty());
    if !next.is_some_and(changed) {
        std::thread::sleep(AGAIN.min(left));
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::args::{Cli, Command};
    use super::*;

    #[test]
    fn an_empty_selector_and_an_empty_name_choose_nothing() {
        let client = Client {
            socket: "/nonexistent/coracle.sock".into(),
        };
        for words in [&["stop"][..], &["stop", "-l", ""], &["stop", "-l", " "]] {
            let line = ["coracle"].iter().chain(words);
            let Command::Stop(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("it is `stop`");
            };
            let error = chosen(&client, &args.chosen).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{words:?}: {error}");
            assert!(error.to_string().contains("say which pods"), "{error}");
        }
        for words in [&["stop", ""][..], &["stop", "pod/"], &["stop", "pod", ""]] {
            let line = ["coracle"].iter().chain(words);
            assert!(Cli::try_parse_from(line).is_err(), "{words:?}");
        }
    }

    #[test]
    fn the_kind_may_be_a_word_before_the_names() {
        for (line, expected) in [
            ("web db", &["pod/web", "pod/db"][..]),
            ("pod web", &["pod/web"]),
            ("po web db", &["pod/web", "pod/db"]),
            ("pods pod/web deploy/a", &["pod/web", "deployment/a"]),
            ("deploy a b", &["deployment/a", "deployment/b"]),
            ("deploy deploy/a", &["deployment/a"]),
            ("deploy/a web", &["deployment/a", "pod/web"]),
            // There is nothing else that it could mean.
            ("pod", &["pod/pod"]),
        ] {
            let line = ["coracle", "restart"].into_iter().chain(line.split(' '));
            let Command::Restart(args) = Cli::try_parse_from(line.clone()).unwrap().command else {
                panic!("it is `restart`");
            };
            let shown: Vec<String> = named(&args.chosen.what).iter().map(Chosen::shown).collect();
            assert_eq!(shown, expected, "{:?}", line.collect::<Vec<_>>());
        }
    }
}
