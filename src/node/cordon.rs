//! Cordon and drain on the node's side. Clients request them, the planner decides which pods leave; this file saves
//! that to disk, shows it, and reports it to waiting clients (Kubernetes docs: Node Status; `coracle help
//! differences`).

use serde_json::json;
use smol::channel::{Receiver, Sender, bounded};

use super::Node;
use super::kept::Kept;
use crate::api::{CommandError, CommandErrorKind, DrainOptions};
use crate::plan::cordon::candidates;
use crate::plan::event::{Cordon, Event, NodeFact};
use crate::plan::{PodState, shutdown};
use crate::spec::{PodKey, PodUid, Reason};

/// The node's part of the cordon, beside the planner's state.
#[derive(Debug, Default)]
pub(super) struct NodeCordon {
    /// The cordon as it is on disk.
    kept: Kept<Cordon>,
    /// The clients that follow a drain.
    waiting: Vec<Waiting>,
}

/// A client that waits for pods to leave.
#[derive(Debug)]
struct Waiting {
    /// Has room for every line of the drain.
    lines: Sender<String>,
    /// The pods still here, in the order of the drain, and whether the client knows that each is leaving.
    left: Vec<(PodUid, PodKey, bool)>,
}

type Refused<T> = Result<T, CommandError>;

impl Node {
    /// Restores the cordon from before the agent restart or reboot. Called when its pods are known and before any
    /// is admitted.
    pub(super) fn resume_cordon(&mut self) {
        let path = self.tools.config.layout.cordon();
        if let Some(cordon) = self.cordon.kept.recover(&path) {
            tracing::info!("the node is cordoned: new pods wait until `coracle uncordon`");
            self.record(&Event::Node(NodeFact::CordonRecovered(cordon)));
            self.show_node();
        }
    }

    /// Cordons or uncordons the node; answers, once it is on disk, whether that changed anything.
    pub(super) fn set_cordon(&mut self, on: bool, reply: Sender<Refused<bool>>) {
        let changes = self.state.cordon.is_some() != on;
        let event = match on {
            true => Event::Node(NodeFact::Cordoned),
            false => Event::Node(NodeFact::Uncordoned),
        };
        self.record(&event);
        self.cordon.kept.when_written(move |written| {
            let _ = reply.try_send(written.map(|()| changes));
        });
    }

    /// Drains pods for a client, which reads the progress.
    pub(super) fn drain(
        &mut self,
        options: &DrainOptions,
        reply: Sender<Refused<Receiver<String>>>,
    ) {
        let chosen = |pod: &PodState| {
            let pods = options.pods.as_ref();
            pods.is_none_or(|pods| pods.contains(&pod.spec.key))
        };
        let leaving = candidates(&self.state, chosen);
        if let Err(refused) = may_leave(&leaving, options) {
            let _ = reply.try_send(Err(refused));
            return;
        }
        let left: Vec<_> = leaving
            .iter()
            .map(|pod| (pod.spec.uid.clone(), pod.spec.key.clone(), false))
            .collect();
        // Two lines for each pod (it is leaving, it has left), and one each for the cordon and the end.
        let (lines, receiver) = bounded(2 * left.len() + 2);
        let already = self.state.cordon.is_some();
        let _ = lines.try_send(json!({ "type": "cordoned", "already": already }).to_string());
        if options.dry_run {
            for pod in leaving {
                let _ = lines.try_send(step("evicting", &pod.spec.key));
            }
            let _ = lines.try_send(json!({ "type": "drained" }).to_string());
            let _ = reply.try_send(Ok(receiver));
            return;
        }
        let event = Event::Node(NodeFact::DrainBegun {
            pods: options.pods.clone(),
            grace_ms: options.grace_ms,
        });
        self.record(&event);
        self.cordon.waiting.push(Waiting { lines, left });
        self.cordon.kept.when_written(move |written| {
            let _ = reply.try_send(written.map(|()| receiver));
        });
    }

    /// After each fact: starts to save a changed cordon, and shows it.
    pub(super) fn note_cordon(&mut self) {
        let path = self.tools.config.layout.cordon();
        let Some(before) = self.cordon.kept.keep(self.state.cordon.as_ref(), path) else {
            return;
        };
        let said = match (&before, &self.state.cordon) {
            (None, Some(_)) => Reason::NodeNotSchedulable,
            (Some(_), None) => Reason::NodeSchedulable,
            (Some(_), Some(_)) | (None, None) => return,
        };
        let name = &self.tools.facts.now().name;
        let message = format!("Node {name} status is now: {said}");
        tracing::info!("{message}");
        self.shown.node_event(said, &message);
        self.show_node();
    }

    /// After each decision: reports to waiting clients which pods are leaving and which have left.
    pub(super) fn tell_of_drain(&mut self) {
        let (pods, drained) = (&self.state.pods, self.state.cordon.as_ref());
        let on = drained.is_some_and(|cordon| cordon.drain.is_some());
        self.cordon.waiting.retain_mut(|client| {
            let say = |what: &str, key: &PodKey| {
                let _ = client.lines.try_send(step(what, key));
            };
            let here = |uid: &PodUid| pods.get(uid).filter(|pod| !shutdown::is_gone(pod));
            // Pods that left first are reported first.
            client.left.retain(|(uid, key, announced)| {
                let gone = here(uid).is_none();
                if gone && !announced {
                    say("evicting", key);
                }
                if gone {
                    say("evicted", key);
                }
                !gone
            });
            for (uid, key, announced) in &mut client.left {
                let leaves = |pod: &PodState| pod.stopping().is_some() || pod.complete();
                if here(uid).is_some_and(leaves) && !std::mem::replace(announced, true) {
                    say("evicting", key);
                }
            }
            let end = match (client.left.is_empty(), on) {
                (true, _) => "drained",
                (false, false) => "uncordoned",
                (false, true) => return !client.lines.is_closed(),
            };
            let _ = client.lines.try_send(json!({ "type": end }).to_string());
            false
        });
    }
}

/// Refuses a drain that would lose data unless the client accepts that.
fn may_leave(pods: &[&PodState], options: &DrainOptions) -> Refused<()> {
    let keeps = |pod: &&&PodState| {
        pod.spec
            .volumes
            .iter()
            .any(|v| v.source.on_disk().is_some())
    };
    let losing = pods.iter().filter(keeps);
    let losing: Vec<String> = losing.map(|pod| pod.spec.key.to_string()).collect();
    if losing.is_empty() || options.delete_empty_dir_data {
        return Ok(());
    }
    Err(CommandError {
        kind: CommandErrorKind::Conflict,
        message: format!(
            "cannot delete Pods with local storage (use --delete-emptydir-data to override): {}",
            losing.join(", ")
        ),
    })
}

fn step(what: &str, key: &PodKey) -> String {
    json!({ "type": what, "namespace": key.namespace, "name": key.name }).to_string()
}
