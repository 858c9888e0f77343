//! Names that an agent knows, and those of kinds, fields and topics.

use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;

use super::super::args::{DescribeResource, Resource};
use super::super::chosen::owner_of;
use super::super::client::Client;
use super::super::{create, events, explain, get, rollout, wait};
use crate::manual::TOPICS;
use crate::types::InOrder;

/// How long a shell waits for an agent that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The place of the word that is being typed.
pub(super) struct Asked<'a> {
    pub(super) client: &'a Client,
    /// The commands.
    pub(super) path: &'a [&'a str],
    /// The words before it that are no flags.
    pub(super) before: &'a [String],
    pub(super) namespace: &'a str,
    pub(super) current: &'a str,
}

/// What an argument may be; `None` if nothing is known about it.
pub(super) fn of(arg: &str, asked: &Asked<'_>) -> Option<Vec<String>> {
    let first = asked.path.first().copied().unwrap_or_default();
    Some(match (first, arg) {
        ("explain", "what") => explain::candidates(asked.current),
        ("create", "what") => create::candidates(asked.before),
        ("create" | "debug", "image") => asked.names(Resource::Images),
        ("help", "topic") if asked.before.is_empty() => {
            let topics = TOPICS.iter().map(|(topic, _)| (*topic).to_owned());
            let commands = super::subcommands(&<super::Cli as clap::CommandFactory>::command());
            topics
                .chain(commands.into_iter().map(|(name, _)| name))
                .collect()
        }
        ("delete", "what") => asked.pods_to_delete(),
        ("stop" | "restart" | "start", "what") => asked.pods_and_their_owners(),
        ("port-forward", "target") => asked.pods_and_owners(),
        ("cp", "from" | "to") => return asked.pods_to_copy(),
        ("create" | "report" | "uninstall" | "help", "what" | "topic") => return None,
        (_, "what" | "about") => asked.kinds_and_names(),
        ("get" | "events", "output") => words(&get::FORMAT_WORDS),
        ("wait", "condition") => words(&wait::FORMS),
        ("image", "names" | "name" | "source" | "images") => asked.names(Resource::Images),
        ("image", _) => return None,
        ("volume", "claims") => asked.names(Resource::Claims),
        ("top", "name") if asked.path.last() == Some(&"node") => asked.names(Resource::Nodes),
        ("delete" | "top", "names" | "name") => asked.names(Resource::Pods),
        (_, "pod" | "pods") => asked.pods_and_owners(),
        ("logs", "inline") if asked.before.len() > 1 => return None,
        (_, "container" | "inline") => asked.containers(),
        (_, "namespace") => asked.names(Resource::Namespaces),
        (_, "node") => asked.names(Resource::Nodes),
        _ => return None,
    })
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn names_of<'k, K: ValueEnum + 'k>(kinds: impl Iterator<Item = &'k K>) -> Vec<String> {
    let values = kinds.filter_map(ValueEnum::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect()
}

impl Asked<'_> {
    /// The objects of a kind; none without an agent.
    fn list(&self, kind: Resource) -> Vec<Value> {
        let path = get::collection(kind, Some(self.namespace));
        let found = self.client.get_within(&path, PATIENCE);
        match found {
            Ok((mut list, _)) => match list["items"].take() {
                Value::Array(items) => items,
                _ => Vec::new(),
            },
            Err(_) => Vec::new(),
        }
    }

    fn names(&self, kind: Resource) -> Vec<String> {
        let mut names = Vec::new();
        for item in self.list(kind) {
            let own = [&item["metadata"]["name"], &item["path"]];
            let many = item["names"].as_array().into_iter().flatten();
            let all = own.into_iter().chain(many).filter_map(Value::as_str);
            names.extend(all.map(str::to_owned));
        }
        names.order();
        names.dedup();
        names
    }

    /// `pods`, `pod,svc`, `pods web`, `pod/web`.
    fn kinds_and_names(&self) -> Vec<String> {
        let pairs = |before: &[String]| before.iter().any(|word| word.contains('/'));
        match (self.before.first(), self.current.split_once('/')) {
            (_, Some((kind, _))) => {
                let names = self.names_of_kind(kind);
                names.iter().map(|name| format!("{kind}/{name}")).collect()
            }
            (Some(first), None) if !pairs(self.before) => self.names_of_kind(first),
            _ => {
                let before = self.current.rsplit_once(',').map(|(before, _)| before);
                let named = self.kinds().into_iter().map(|kind| match before {
                    Some(before) => format!("{before},{kind}"),
                    None => kind,
                });
                named.collect()
            }
        }
    }

    /// The names of a kind, if the command takes it.
    fn names_of_kind(&self, word: &str) -> Vec<String> {
        let kind = Resource::from_str(word, true).ok();
        let kind = kind.filter(|kind| self.takes(*kind));
        kind.map(|kind| self.names(kind)).unwrap_or_default()
    }

    /// The kinds that the command takes, in its own words.
    fn kinds(&self) -> Vec<String> {
        match self.path.first() {
            Some(&"describe") => names_of(DescribeResource::value_variants().iter()),
            _ => {
                let all = Resource::value_variants().iter();
                names_of(all.filter(|kind| self.takes(**kind)))
            }
        }
    }

    /// Whether the command is for objects of this kind.
    fn takes(&self, kind: Resource) -> bool {
        let is_pod = kind == Resource::Pods;
        let has_pods = is_pod || kind.workload().is_some();
        match *self.path {
            ["rollout", "history" | "undo"] => is_pod || rollout::is_for(kind),
            ["rollout", ..] => rollout::is_for(kind),
            ["wait"] => get::is_kubernetes(kind),
            ["events"] => events::is_for(kind),
            ["describe"] => {
                let mut all = DescribeResource::value_variants().iter();
                all.any(|known| known.listed() == Some(kind))
            }
            ["delete"] | ["condition", ..] => is_pod,
            ["stop" | "start" | "restart" | "retry"] => has_pods,
            ["exec" | "attach" | "debug" | "logs" | "port-forward"] => {
                has_pods || kind == Resource::Services
            }
            _ => true,
        }
    }

    /// Pods, and after `deployment/` and the like what stands for pods.
    fn pods_and_owners(&self) -> Vec<String> {
        match self.current.contains('/') {
            true => self.kinds_and_names(),
            false => self.names(Resource::Pods),
        }
    }

    /// The only kind that is deleted, and its names.
    fn pods_to_delete(&self) -> Vec<String> {
        match self.before.is_empty() && !self.current.contains('/') {
            true => vec!["pod".to_owned()],
            false => self.kinds_and_names(),
        }
    }

    /// Pods, and the documents that they are made from: `deployment/web`.
    fn pods_and_their_owners(&self) -> Vec<String> {
        if self.current.contains('/') {
            return self.kinds_and_names();
        }
        let pods = self.list(Resource::Pods);
        let own = pods
            .iter()
            .filter_map(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned()));
        let owners = pods.iter().filter_map(owner_of);
        let owners = owners.map(|(kind, name)| format!("{}/{name}", kind.as_str().to_lowercase()));
        let mut names: Vec<String> = own.chain(owners).collect();
        names.order();
        names.dedup();
        names
    }

    /// The pods of a namespace with a colon; nothing if that is known, so that files are offered.
    fn pods_to_copy(&self) -> Option<Vec<String>> {
        let pods = self.names(Resource::Pods).into_iter();
        let pods: Vec<String> = pods.map(|name| format!("{name}:")).collect();
        let fits = pods.iter().any(|pod| pod.starts_with(self.current));
        fits.then_some(pods)
    }

    /// The containers of the pod that was named.
    fn containers(&self) -> Vec<String> {
        let Some(pod) = self.before.first() else {
            return Vec::new();
        };
        let pod = pod.strip_prefix("pod/").unwrap_or(pod);
        let pods = self.list(Resource::Pods);
        let pod = pods.iter().find(|item| item["metadata"]["name"] == pod);
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let all = lists
            .iter()
            .filter_map(|list| pod?["spec"][list].as_array());
        let names = all.flatten().filter_map(|c| c["name"].as_str());
        names.map(str::to_owned).collect()
    }
}
