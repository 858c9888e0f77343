//! `coracle logs -f` of a selector, or of a document or service that has pods: pods come and go, and their logs with them.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::Value;

use super::args::LogsArgs;
use super::chosen::owner_of;
use super::client::Client;
use super::container;
use super::error::Result;
use super::logs::{self, Stream};
use super::pod_path;
use super::similar::nothing_in;
use super::target::{self, Source, first_ready};
use crate::api::encode;
use crate::spec::WorkloadKind;

/// Poll interval where a watch is not possible.
const AGAIN: Duration = Duration::from_secs(1);

/// How often to look for pods while no log is followed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Notes that wait to be read, at most.
const MAX_NOTES: usize = 64;

/// Whose logs are followed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Whose<'a> {
    /// Of all pods with these labels.
    Selected(&'a str),
    /// Of the pods of a document or a service: of all, or of one after the other.
    Of { source: Source<'a>, all: bool },
}

/// What happens while logs are followed.
enum Note {
    /// Pods may have changed.
    Changed,
    /// A log has ended. An error of those that were there at first ends the command.
    Ended { result: Result<()>, at_first: bool },
}

impl<'a> Whose<'a> {
    /// Of what is on the command line, unless it is a single pod.
    pub(super) fn of(args: &'a LogsArgs) -> Option<Self> {
        if let Some(selector) = &args.selector {
            return Some(Self::Selected(selector));
        }
        let source = Source::of(args.pod.as_deref()?)?;
        let all = args.all_pods;
        Some(Self::Of { source, all })
    }

    fn is_one(self) -> bool {
        matches!(self, Self::Of { all: false, .. })
    }

    /// The path of the list that its pods are in.
    fn path(self, namespace: &str) -> String {
        let all = pod_path(namespace, "");
        match self {
            Self::Selected(selector) => format!("{all}?labelSelector={}", encode(selector)),
            Self::Of { .. } => all,
        }
    }

    /// Its pods, and whether others may come when these are gone. `origins`: where the pods of a selector came from so
    /// far.
    fn pods(
        self,
        client: &Client,
        namespace: &str,
        origins: &mut Origins,
    ) -> Result<(Vec<Value>, bool)> {
        match self {
            Self::Selected(_) => {
                let selected = || -> Result<Vec<Value>> {
                    let mut found = client.get(&self.path(namespace))?;
                    Ok(match found["items"].take() {
                        Value::Array(pods) => pods,
                        _ => Vec::new(),
                    })
                };
                let mut pods = selected()?;
                origins.note(&pods);
                if pods.iter().any(is_alive) {
                    return Ok((pods, false));
                }
                let more = origins.remain(client, namespace)?;
                if !more {
                    // One may have come meanwhile.
                    pods = selected()?;
                    origins.note(&pods);
                }
                Ok((pods, more))
            }
            Self::Of { source, .. } => {
                let ends = matches!(source, Source::Workload(WorkloadKind::Job, _));
                Ok((source.pods(client, namespace)?, !ends))
            }
        }
    }
}

/// Where the pods of a selector came from, and others may come from.
#[derive(Debug, Default)]
struct Origins {
    /// Pods with files of their own that had not ended.
    pods: BTreeSet<String>,
    /// Documents whose pods are replaced: kind, namespace and name.
    documents: BTreeSet<(WorkloadKind, String, String)>,
}

impl Origins {
    fn note(&mut self, pods: &[Value]) {
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
            match owner_of(pod) {
                // A Job ends with its pods.
                Some((WorkloadKind::Job, _)) => {}
                Some((kind, name)) => {
                    let document = (kind, namespace.to_owned(), name.to_owned());
                    self.documents.insert(document);
                }
                None if is_alive(pod) => {
                    self.pods.insert(name.to_owned());
                }
                // One that is being deleted comes again.
                None if pod["metadata"]["deletionTimestamp"].is_null() => {
                    self.pods.remove(name);
                }
                None => {}
            }
        }
    }

    /// Whether one of these may still make a pod for the selector. Not if its pod runs already, with other labels.
    fn remain(&self, client: &Client, namespace: &str) -> Result<bool> {
        for (kind, namespace, name) in &self.documents {
            match Source::Workload(*kind, name).pods(client, namespace) {
                Ok(pods) if !pods.iter().any(is_alive) => return Ok(true),
                Err(error) if error.missing().is_none() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        if self.pods.is_empty() {
            return Ok(false);
        }
        let all = client.get(&pod_path(namespace, ""))?;
        let alive = all["items"].as_array().into_iter().flatten();
        let alive = alive.filter(|pod| is_alive(pod));
        let alive: BTreeSet<&str> = alive
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .collect();
        let files = client.get("/coracle/v1/files")?;
        let files = files["items"].as_array().into_iter().flatten();
        let mut pods = files.flat_map(|file| file["pods"].as_array().into_iter().flatten());
        Ok(pods.any(|pod| {
            let name = pod["name"].as_str().unwrap_or_default();
            pod["namespace"] == namespace && self.pods.contains(name) && !alive.contains(name)
        }))
    }
}

fn is_alive(pod: &Value) -> bool {
    let phase = pod["status"]["phase"].as_str();
    !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Follows until all logs have ended and none is to come.
pub(super) fn follow(client: &Client, args: &LogsArgs, whose: Whose<'_>) -> Result<ExitCode> {
    let namespace = &args.namespace.namespace;
    let (notes, news) = sync_channel(MAX_NOTES);
    let (mut seen, mut origins) = (BTreeSet::new(), Origins::default());
    let (mut active, mut at_first) = (0, true);
    loop {
        let (pods, more) = match whose.pods(client, namespace, &mut origins) {
            Ok(found) => found,
            // Its document is gone.
            Err(error) if !at_first && error.missing().is_some() => (Vec::new(), false),
            Err(error) => return Err(error),
        };
        if at_first {
            check(client, args, whose, &pods)?;
            if pods.is_empty() {
                return Ok(ExitCode::SUCCESS);
            }
            watch(client, &whose.path(namespace), &notes);
        }
        for stream in due(args, whose, &pods, active, &mut seen, at_first)? {
            active += 1;
            let shared = !whose.is_one() || args.all_containers;
            begin(client, (stream, shared), &notes, at_first);
        }
        at_first = false;
        if active == 0 && !more && !pods.iter().any(is_alive) {
            return Ok(ExitCode::SUCCESS);
        }
        for note in wait(&news, active == 0) {
            if let Note::Ended { result, at_first } = note {
                active -= 1;
                logs::tolerate(result, args.ignore_errors || !at_first)?;
            }
        }
    }
}

/// What was asked for at first has to be there, and not be too much.
fn check(client: &Client, args: &LogsArgs, whose: Whose<'_>, pods: &[Value]) -> Result<()> {
    let most = args.max_log_requests.max(1);
    match (pods.is_empty(), whose) {
        (true, Whose::Of { all: false, .. }) => {
            let text = args.pod.as_deref().unwrap_or_default();
            return Err(target::no_pods(text));
        }
        (true, _) => nothing_in(client, &args.namespace.namespace),
        (false, _) => {}
    }
    let containers = |pod: &Value| match args.all_containers {
        true => container::names(pod).len(),
        false => 1,
    };
    let wanted: usize = match (whose.is_one(), pods.first()) {
        (true, Some(pod)) => containers(pod),
        _ => pods.iter().map(containers).sum(),
    };
    match wanted > most {
        true => Err(logs::too_many(wanted, most)),
        false => Ok(()),
    }
}

/// The logs that can be followed from now on.
fn due(
    args: &LogsArgs,
    whose: Whose<'_>,
    pods: &[Value],
    mut active: usize,
    seen: &mut BTreeSet<(String, String)>,
    at_first: bool,
) -> Result<Vec<Stream>> {
    let text = |pod: &Value, field: &str| {
        let text = pod["metadata"][field].as_str();
        text.unwrap_or_default().to_owned()
    };
    let new = |pod: &&Value| !seen.iter().any(|(uid, _)| *uid == text(pod, "uid"));
    let mut candidates: Vec<&Value> = pods.iter().collect();
    if whose.is_one() {
        if active > 0 {
            return Ok(Vec::new());
        }
        candidates.retain(new);
        let Some((name, count)) = first_ready(candidates.iter().copied()) else {
            return Ok(Vec::new());
        };
        candidates.retain(|pod| text(pod, "name") == name);
        if candidates
            .iter()
            .any(|pod| !wanted(args, pod).iter().any(|one| has_started(pod, one)))
        {
            return Ok(Vec::new());
        }
        match at_first {
            true if count > 1 => eprintln!("Found {count} pods, using pod/{name}"),
            true => {}
            false => eprintln!("Going on with pod/{name}"),
        }
    }
    // What comes later is shown from its beginning.
    let later = LogsArgs {
        tail: Some(-1),
        since: None,
        since_time: None,
        ..args.clone()
    };
    let options = logs::options(if at_first { args } else { &later })?;
    let mut streams = Vec::new();
    for pod in candidates {
        for container in wanted(args, pod) {
            let key = (text(pod, "uid"), container);
            if active < args.max_log_requests.max(1)
                && !seen.contains(&key)
                && has_started(pod, &key.1)
            {
                active += 1;
                let name = text(pod, "name");
                if !args.all_containers && args.container.is_none() {
                    container::announced(pod, &name);
                }
                streams.push(logs::stream(args, &name, &key.1, &options));
                seen.insert(key);
            }
        }
    }
    Ok(streams)
}

/// The containers of a pod that are asked for.
fn wanted(args: &LogsArgs, pod: &Value) -> Vec<String> {
    match (args.all_containers, &args.container) {
        (true, _) => container::names(pod),
        (false, Some(container)) => vec![container.clone()],
        (false, None) => vec![container::default(pod)],
    }
}

/// Whether a container has a log. One that the pod does not have has: the agent says what is wrong.
fn has_started(pod: &Value, container: &str) -> bool {
    let lists = [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ];
    let mut all = lists.iter().flat_map(|list| pod["status"][list].as_array());
    let status = all.find_map(|all| all.iter().find(|one| one["name"] == container));
    match status {
        Some(status) => {
            let state = &status["state"];
            [
                &state["running"],
                &state["terminated"],
                &status["lastState"]["terminated"],
            ]
            .iter()
            .any(|state| state.is_object())
        }
        None => !container::names(pod).iter().any(|known| known == container),
    }
}

fn begin(
    client: &Client,
    (stream, shared): (Stream, bool),
    notes: &SyncSender<Note>,
    at_first: bool,
) {
    let (client, notes) = (client.clone(), notes.clone());
    std::thread::spawn(move || {
        let result = logs::copy(&client, &stream, shared);
        // If nothing receives it, the command has ended.
        let _ = notes.send(Note::Ended { result, at_first });
    });
}

/// Notes whenever something changes about pods.
fn watch(client: &Client, path: &str, notes: &SyncSender<Note>) {
    let sign = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{sign}watch=true");
    let (client, notes) = (client.clone(), notes.clone());
    std::thread::spawn(move || {
        loop {
            let lines = client
                .send("GET", &path, None)
                .map(|answer| answer.body.lines());
            for _ in lines
                .into_iter()
                .flatten()
                .take_while(std::io::Result::is_ok)
            {
                if notes.send(Note::Changed).is_err() {
                    return;
                }
            }
            std::thread::sleep(AGAIN);
            if notes.send(Note::Changed).is_err() {
                return;
            }
        }
    });
}

/// Waits for a note; returns it with those that came meanwhile.
/// The next notes; none after a while if no log is followed, because nothing reports a document that is removed.
fn wait(news: &Receiver<Note>, idle: bool) -> Vec<Note> {
    let first = match idle {
        true => news.recv_timeout(LOOK_AGAIN).ok(),
        false => news.recv().ok(),
    };
    first.into_iter().chain(news.try_iter()).collect()
}
