//! Is the node cordoned, and how far is its drain? Clients ask for it, the planner says who leaves; here that is written
//! down on disk, shown, and told to those who wait (kubelet-behaviour part A15, §12.5).

use std::collections::BTreeSet;

use serde_json::json;
use smol::channel::{Receiver, Sender, bounded};

use super::{Node, publish};
use crate::api::{CommandError, CommandErrorKind, DrainOptions, EventType};
use crate::plan::cordon::candidates;
use crate::plan::event::{Cordon, Event};
use crate::plan::{PodState, shutdown};
use crate::spec::{PodKey, PodUid, VolumeSource};
use crate::sys::file::{self, Durability};

/// What the node keeps about its cordon, beside the planner's state.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// As it was written down last.
    written: Option<Cordon>,
    /// Writes it; the next one waits for it. What went wrong, if anything.
    writing: Option<smol::Task<Result<(), String>>>,
    /// Who wants to hear how a drain goes on.
    waiting: Vec<Waiting>,
}

/// Somebody who waits for pods to leave.
#[derive(Debug)]
struct Waiting {
    /// Has room for all that will be said.
    lines: Sender<String>,
    /// Who is still here, in the order of the drain, and whether it was said that he is leaving.
    left: Vec<(PodUid, PodKey, bool)>,
}

type Refused<T> = Result<T, CommandError>;

impl Node {
    /// What a former agent was told, maybe before the machine was booted. Its pods are known, and nobody was let in yet.
    pub(super) fn resume_cordon(&mut self, touched: &mut BTreeSet<PodUid>) {
        let path = self.hands.config.layout.cordon();
        let Ok(bytes) = file::read_record(&path) else {
            return;
        };
        match serde_json::from_slice::<Cordon>(&bytes) {
            Ok(cordon) => {
                tracing::info!("the node is cordoned: new pods wait until `coracle uncordon`");
                self.cordon.written = Some(cordon.clone());
                self.record(&Event::CordonRecovered(cordon), touched);
                self.show_node();
            }
            Err(error) => tracing::warn!("`{}` is broken ({error}), ignoring", path.display()),
        }
    }

    /// Cordons the node, or not any more; tells whether that changes anything, once it is on disk.
    pub(super) fn set_cordon(
        &mut self,
        on: bool,
        reply: Sender<Refused<bool>>,
        touched: &mut BTreeSet<PodUid>,
    ) {
        let changes = self.state.cordon.is_some() != on;
        let event = match on {
            true => Event::Cordoned,
            false => Event::Uncordoned,
        };
        self.record(&event, touched);
        self.when_written(move |written| {
            let _ = reply.try_send(written.map(|()| changes));
        });
    }

    /// Sends pods away for a client, who reads how that goes on.
    pub(super) fn drain(
        &mut self,
        options: &DrainOptions,
        reply: Sender<Refused<Receiver<String>>>,
        touched: &mut BTreeSet<PodUid>,
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
        // For each pod that it leaves and that it has left; for the cordon and the end.
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
        let event = Event::DrainBegun {
            pods: options.pods.clone(),
            grace_ms: options.grace_ms,
        };
        self.record(&event, touched);
        self.cordon.waiting.push(Waiting { lines, left });
        self.when_written(move |written| {
            let _ = reply.try_send(written.map(|()| receiver));
        });
    }

    /// After each fact: begins to write down what has changed, and shows it. Who asked for it is answered when it is on
    /// disk; until then a power cut may undo it.
    pub(super) fn note_cordon(&mut self) {
        if self.cordon.written == self.state.cordon {
            return;
        }
        let before = std::mem::replace(&mut self.cordon.written, self.state.cordon.clone());
        let path = self.hands.config.layout.cordon();
        let cordon = self.state.cordon.clone();
        let previous = self.cordon.writing.take();
        self.cordon.writing = Some(super::task(async move {
            if let Some(previous) = previous {
                // What it has written is about to be replaced, so it does not matter how that went.
                let _ = previous.await;
            }
            let shown = path.display().to_string();
            let wrote = super::unblock(move || match cordon {
                Some(cordon) => {
                    let bytes = serde_json::to_vec(&cordon).expect("plain data");
                    file::replace(&path, &bytes, 0o600, Durability::PowerCut)
                }
                None => file::remove_durably(&path),
            });
            let wrote = wrote.await;
            wrote.map_err(|error| {
                let message = format!("could not write `{shown}`: {error}");
                tracing::warn!("{message}, going on");
                message
            })
        }));
        let said = match (&before, &self.state.cordon) {
            (None, Some(_)) => "NodeNotSchedulable",
            (Some(_), None) => "NodeSchedulable",
            (Some(_), Some(_)) | (None, None) => return,
        };
        let name = self.hands.facts.now().name.clone();
        let message = format!("Node {name} status is now: {said}");
        tracing::info!("{message}");
        publish::node_event(&mut self.journal, &name, EventType::Normal, said, &message);
        self.show_node();
    }

    /// Calls `then` when all that has changed is on disk.
    fn when_written(&mut self, then: impl FnOnce(Refused<()>) + 'static) {
        let writing = self.cordon.writing.take();
        self.cordon.writing = Some(super::task(async move {
            let wrote = match writing {
                Some(writing) => writing.await,
                None => Ok(()),
            };
            then(wrote.clone().map_err(|why| CommandError {
                kind: CommandErrorKind::Failed,
                message: format!("{why}; it is in force until the agent ends"),
            }));
            wrote
        }));
    }

    /// After each decision: tells those who wait for a drain who leaves and who has left.
    pub(super) fn tell_of_drain(&mut self) {
        let (pods, drained) = (&self.state.pods, self.state.cordon.as_ref());
        let on = drained.is_some_and(|cordon| cordon.drain.is_some());
        self.cordon.waiting.retain_mut(|client| {
            let say = |what: &str, key: &PodKey| {
                let _ = client.lines.try_send(step(what, key));
            };
            let here = |uid: &PodUid| pods.get(uid).filter(|pod| !shutdown::is_gone(pod));
            // Those who made way for the others come first.
            client.left.retain(|(uid, key, told)| {
                let gone = here(uid).is_none();
                if gone && !told {
                    say("evicting", key);
                }
                if gone {
                    say("evicted", key);
                }
                !gone
            });
            for (uid, key, told) in &mut client.left {
                let leaves = |pod: &PodState| pod.stopping.is_some() || pod.complete();
                if here(uid).is_some_and(leaves) && !std::mem::replace(told, true) {
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

/// What would be lost is not lost by accident.
fn may_leave(pods: &[&PodState], options: &DrainOptions) -> Refused<()> {
    let on_disk = |source: &VolumeSource| matches!(source, VolumeSource::EmptyDir { .. });
    let keeps = |pod: &&&PodState| pod.spec.volumes.iter().any(|v| on_disk(&v.source));
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
