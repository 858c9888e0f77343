//! The revisions of documents: kept on disk, shown to clients, and put in force. What is in force instead of what a file
//! says takes effect only once that is on disk: a restart must not try again what has failed.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use smol::Task;

use super::commands::Reply;
use super::{Node, now, task};
use crate::api::{CommandError, CommandErrorKind, Rollout, RolloutRequest};
use crate::plan::workload::revisions::{History, Overrides, Subject};
use crate::plan::{Event, NodeFact, status};
use crate::spec::{PodKey, WorkloadKey};
use crate::types::Time;

/// What is in force instead of what files say, as it is on disk. For the thread that reads the files.
#[derive(Debug, Clone, Default)]
pub(super) struct OnDisk(Arc<Mutex<(u64, Arc<Overrides>)>>);

impl OnDisk {
    pub(super) fn now(&self) -> Arc<Overrides> {
        let here = self.0.lock().expect("no panic holds this lock");
        Arc::clone(&here.1)
    }

    /// Whether the files are to be read again.
    pub(super) fn set(&self, changes: u64, overrides: Overrides) -> bool {
        let mut here = self.0.lock().expect("no panic holds this lock");
        if changes < here.0 {
            return false;
        }
        let differs = *here.1 != overrides;
        here.0 = changes;
        if differs {
            here.1 = Arc::new(overrides);
        }
        differs
    }
}

impl Node {
    /// Writes changes of the records and then puts what they say in force, also where the write fails. How far rollouts are
    /// may rest for a moment if the time is given.
    pub(super) fn keep_revisions(&mut self, now: Option<Time>) -> Option<Task<()>> {
        let histories = &self.state.workloads.histories;
        let changes = histories.changes;
        let write = self.saved.files.begin_revisions(histories, now)?;
        let (tools, overrides) = (self.tools.clone(), histories.overrides());
        Some(task(async move {
            write.await;
            if tools.instead.set(changes, overrides) {
                tools.bundles.read_again();
            }
        }))
    }

    /// Answers a client that asks about a rollout; what changes something, once it is on disk.
    pub(super) fn rollout(&mut self, request: RolloutRequest, reply: Reply<Value>) {
        let answer = match self.asked_rollout(&request) {
            Ok(answer) => answer,
            Err((kind, message)) => {
                let _ = reply.try_send(Err(CommandError { kind, message }));
                return;
            }
        };
        match self.keep_revisions(None) {
            None => {
                let _ = reply.try_send(Ok(answer));
            }
            Some(written) => super::spawn(async move {
                written.await;
                let _ = reply.try_send(Ok(answer));
            }),
        }
    }

    fn asked_rollout(
        &mut self,
        request: &RolloutRequest,
    ) -> Result<Value, (CommandErrorKind, String)> {
        let subject = match request.kind {
            Some(kind) => Subject::Workload(WorkloadKey {
                kind,
                namespace: request.namespace.as_str().into(),
                name: request.name.as_str().into(),
            }),
            None => Subject::Pod(PodKey::new(
                request.namespace.as_str(),
                request.name.as_str(),
            )),
        };
        let histories = &self.state.workloads.histories;
        let history = histories.of(&subject);
        let history = history.filter(|history| !history.revisions.is_empty());
        let Some(history) = history else {
            let message = match self.missing(&subject) {
                Some(message) => message,
                None => format!("no rollout history found for {subject}"),
            };
            return Err((CommandErrorKind::NotFound, message));
        };
        if request.rollout == Rollout::History {
            return Ok(shown(history));
        }
        if self.state.workloads.is_paused(&subject) {
            let message = format!("{subject} is paused; remove `paused: true` from its file first");
            return Err((CommandErrorKind::Conflict, message));
        }
        let found = match request.rollout {
            Rollout::Undo(to) => histories
                .undo(&subject, to)
                .map(|(number, instead)| (json!({ "revision": number }), instead)),
            Rollout::Restart | Rollout::History => {
                let at = status::time(now().wall).0.to_string();
                let instead = histories.restart(&subject, &at);
                instead.map(|instead| (json!({}), instead))
            }
        };
        let (answer, instead) = found.map_err(|message| (CommandErrorKind::Conflict, message))?;
        self.record(&Event::Node(NodeFact::PutInstead(subject, instead)));
        Ok(answer)
    }
}

impl Node {
    /// The sentence for a document that is not there.
    fn missing(&self, subject: &Subject) -> Option<String> {
        let (resource, name) = match subject {
            Subject::Workload(key) => {
                let desired = self.state.desired.as_ref();
                if desired.is_some_and(|desired| desired.workloads.contains_key(key)) {
                    return None;
                }
                let plural = format!("{}s", key.kind.as_str().to_lowercase());
                let resource = match key.kind.version().split_once('/') {
                    Some((group, _)) => format!("{plural}.{group}"),
                    None => plural,
                };
                (resource, &key.name)
            }
            Subject::Pod(key) => {
                let mut pods = self.state.pods.values();
                if pods.any(|pod| pod.spec.key == *key) {
                    return None;
                }
                ("pods".to_owned(), &key.name)
            }
        };
        Some(format!("{resource} \"{name}\" not found"))
    }
}

fn shown(history: &History) -> Value {
    let last = history.revisions.last().map(|last| last.number);
    let revisions = history.revisions.iter().map(|revision| {
        let document = revision.text.as_ref();
        let mut document: Value = document
            .and_then(|text| serde_json::from_str(&text.text()).ok())
            .unwrap_or_default();
        let template = match document["spec"]["template"].take() {
            Value::Null => document,
            template => template,
        };
        json!({
            "revision": revision.number,
            "hash": revision.hash,
            "changeCause": revision.cause,
            "inForce": Some(revision.number) == last,
            "inFile": revision.hash == history.written,
            "good": history.good.as_ref() == Some(&revision.hash),
            "template": template,
        })
    });
    let revisions: Vec<Value> = revisions.collect();
    json!({ "revisions": revisions, "note": history.note() })
}
