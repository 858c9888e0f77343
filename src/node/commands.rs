//! What do clients want done? Each command is answered exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::EphemeralContainer;
use serde_json::json;
use smol::channel::Sender;

use super::execute::{Hands, WORKER};
use super::{Input, Node, metrics, shutdown};
use crate::api::{Command, CommandError, CommandErrorKind, ImageArchive, ImageRow, RemovedImages};
use crate::effects::image::{self, Image, ImageError, ImportOptions, Origin, Progress};
use crate::plan::state::{Image as Found, PodState, Run};
use crate::plan::{Event, retry};
use crate::spec::{ImageName, PodKey, PodUid, ephemeral};

impl Node {
    pub(super) fn command(&mut self, command: Command, touched: &mut BTreeSet<PodUid>) {
        match command {
            Command::DeletePod {
                namespace,
                name,
                grace_ms,
                force,
                reply,
            } => {
                let answer = self.delete_pod(&namespace, &name, grace_ms, force, touched);
                let _ = reply.try_send(answer);
            }
            Command::SetEphemeral {
                namespace,
                name,
                containers,
                dry_run,
                reply,
            } => {
                let pod = (namespace.as_str(), name.as_str());
                let answer = self.set_ephemeral(pod, &containers, dry_run, touched);
                let _ = reply.try_send(answer);
            }
            Command::SetConditions {
                namespace,
                name,
                changes,
                reply,
            } => {
                let found = self.find(&namespace, &name).map(|pod| pod.spec.uid.clone());
                let answer = found.map(|pod| {
                    let event = Event::ConditionsSet {
                        pod: pod.clone(),
                        changes,
                    };
                    self.record(&event, touched);
                    // Whoever is answered may look at once, and the next agent has to know.
                    self.publish(&pod);
                });
                let _ = reply.try_send(answer);
            }
            Command::Retry {
                namespace,
                name,
                container,
                reply,
            } => {
                let answer = self.retry((&namespace, &name), container, touched);
                let _ = reply.try_send(answer);
            }
            Command::ImportImage {
                archive,
                name,
                progress,
            } => {
                super::spawn(import(self.hands.clone(), archive, name, progress));
            }
            Command::RemoveImage { name, force, reply } => {
                let (images, in_use) = (self.hands.images.clone(), self.images_in_use());
                super::spawn(async move {
                    let in_use = if force { BTreeSet::new() } else { in_use };
                    let wanted = full_name(&name);
                    let removed = super::unblock(move || images.remove(&wanted, &in_use)).await;
                    let removed = removed.map(|removed| RemovedImages {
                        untagged: removed.untagged,
                        deleted: removed.deleted.into_iter().collect(),
                        freed_bytes: 0,
                    });
                    let _ = reply.try_send(removed.map_err(|error| command_error(&error)));
                });
            }
            Command::PruneImages { all, reply } => {
                let (images, in_use) = (self.hands.images.clone(), self.images_in_use());
                super::spawn(async move {
                    let pruned = super::unblock(move || images.prune(&in_use, all)).await;
                    let pruned = pruned.map(|pruned| RemovedImages {
                        untagged: Vec::new(),
                        deleted: pruned.deleted,
                        freed_bytes: pruned.freed_bytes,
                    });
                    let _ = reply.try_send(pruned.map_err(|error| command_error(&error)));
                });
            }
            Command::MeasurePods { reply } => {
                let network = self.hands.sandboxes.network.clone();
                let keys: BTreeMap<PodUid, PodKey> = self
                    .state
                    .pods
                    .values()
                    .map(|pod| (pod.spec.uid.clone(), pod.spec.key.clone()))
                    .collect();
                let containers = self.container_metrics();
                super::spawn(async move {
                    let traffic = super::unblock(move || network.traffic()).await;
                    let mut all = containers.await;
                    all.extend(metrics::of_traffic(&keys, &traffic));
                    let _ = reply.try_send(Ok(all));
                });
            }
            Command::Summarize { brief, reply } => {
                let summary = self.summary(brief);
                super::spawn(async move {
                    let _ = reply.try_send(Ok(summary.await));
                });
            }
            Command::MeasureResources { reply } => {
                let metrics = self.resource_metrics();
                super::spawn(async move {
                    let _ = reply.try_send(Ok(metrics.await));
                });
            }
            Command::LookAtNode { reply } => {
                let images = self.hands.images.clone();
                let inputs = self.hands.inputs.clone();
                super::spawn(async move {
                    let rows = super::unblock(move || images.list()).await;
                    let none = BTreeSet::new();
                    let rows = rows.map(|list| list.into_iter().map(|i| row(i, &none)).collect());
                    let rows = rows.map_err(|error| command_error(&error));
                    let _ = inputs.send(Input::Looked { rows, reply }).await;
                });
            }
            Command::Count { reply } => {
                let _ = reply.try_send(Ok(self.metrics()));
            }
            Command::CountProbes { reply } => {
                let _ = reply.try_send(Ok(self.probes.metrics()));
            }
            Command::ShowShutdown { reply } => {
                let mut shown = self.show_shutdown();
                super::spawn(async move {
                    let total = shown["totalSeconds"].as_u64().unwrap_or(0);
                    shown["logind"] = shutdown::ask(total).await;
                    let _ = reply.send(Ok(shown)).await;
                });
            }
            Command::BeginShutdown { reply } => {
                let _ = reply.try_send(self.shutdown_for(touched));
            }
            Command::CancelShutdown { reply } => {
                let _ = reply.try_send(self.cancel_shutdown(touched));
            }
            Command::ShowCgroups {
                namespace,
                name,
                reply,
            } => self.show_cgroups((&namespace, &name), reply),
            Command::SetCordon { on, reply } => self.set_cordon(on, reply, touched),
            Command::Drain { options, reply } => self.drain(&options, reply, touched),
            Command::ShowSettings { reply } => {
                let _ = reply.try_send(Ok(self.sources.show()));
            }
            Command::Preview { files, reply } => {
                let _ = reply.try_send(Ok(self.preview(&files)));
            }
            Command::ListImages { reply } => {
                let (images, in_use) = (self.hands.images.clone(), self.images_in_use());
                super::spawn(async move {
                    let rows = super::unblock(move || images.list()).await;
                    let rows = rows
                        .map(|list| list.into_iter().map(|image| row(image, &in_use)).collect());
                    let _ = reply.try_send(rows.map_err(|error| command_error(&error)));
                });
            }
        }
    }

    pub(super) fn find(&self, namespace: &str, name: &str) -> Result<&PodState, CommandError> {
        let key = PodKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let mut pods = self.state.pods.values();
        pods.find(|pod| pod.spec.key == key)
            .ok_or_else(|| CommandError {
                kind: CommandErrorKind::NotFound,
                message: format!("pods \"{name}\" not found"),
            })
    }

    fn set_ephemeral(
        &mut self,
        (namespace, name): (&str, &str),
        containers: &[EphemeralContainer],
        dry_run: bool,
        touched: &mut BTreeSet<PodUid>,
    ) -> Result<(), CommandError> {
        let pod = self.find(namespace, name)?;
        let spec = ephemeral::replace(&pod.spec, containers).map_err(|problems| {
            let list = match &problems[..] {
                [only] => only.clone(),
                several => format!("[{}]", several.join(", ")),
            };
            CommandError {
                kind: CommandErrorKind::Unprocessable,
                message: format!("Pod \"{name}\" is invalid: {list}"),
            }
        })?;
        let added = spec.ephemeral_containers.len() > pod.spec.ephemeral_containers.len();
        let never = match (&pod.stopping, pod.complete()) {
            (Some(_), _) => Some("is being deleted"),
            (None, true) => Some("has finished"),
            (None, false) => None,
        };
        if let Some(why) = never.filter(|_| added) {
            return Err(CommandError {
                kind: CommandErrorKind::Conflict,
                message: format!("pod \"{name}\" {why}: no container can be added to it"),
            });
        }
        if added && !dry_run {
            let uid = spec.uid.clone();
            let spec = Arc::new(spec);
            let event = Event::EphemeralAdded {
                pod: uid.clone(),
                spec,
            };
            self.record(&event, touched);
            // Who is told that it is there will find it there, also if this agent dies now.
            self.write_edits(&uid);
        }
        Ok(())
    }

    fn delete_pod(
        &mut self,
        namespace: &str,
        name: &str,
        grace_ms: Option<u64>,
        force: bool,
        touched: &mut BTreeSet<PodUid>,
    ) -> Result<(), CommandError> {
        let pod = self.find(namespace, name)?.spec.uid.clone();
        let grace_ms = if force {
            Some(grace_ms.unwrap_or(0))
        } else {
            grace_ms
        };
        let event = Event::DeleteRequested { pod, grace_ms };
        self.record(&event, touched);
        Ok(())
    }

    /// Ends what a pod waits for; says what that was.
    fn retry(
        &mut self,
        (namespace, name): (&str, &str),
        container: Option<String>,
        touched: &mut BTreeSet<PodUid>,
    ) -> Result<String, CommandError> {
        let pod = self.find(namespace, name)?;
        let uid = pod.spec.uid.clone();
        if let Some(unknown) = container.as_ref().filter(|c| pod.container(c).is_none()) {
            return Err(CommandError {
                kind: CommandErrorKind::Invalid,
                message: format!("container {unknown} is not valid for pod {name}"),
            });
        }
        let now = super::now().time;
        let waits = retry::waits(pod, container.as_deref(), &self.state.settings, now);
        if waits.is_empty() {
            return Err(CommandError {
                kind: CommandErrorKind::Conflict,
                message: retry::idle(pod, container.as_deref()),
            });
        }
        let event = Event::RetryRequested {
            pod: uid.clone(),
            container,
        };
        self.record(&event, touched);
        self.publish(&uid);
        let waits: Vec<String> = waits.iter().map(ToString::to_string).collect();
        Ok(waits.join(", "))
    }

    /// The config digests of images that containers run from, or will.
    pub(super) fn images_in_use(&self) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        for pod in self.state.pods.values() {
            for container in &pod.containers {
                if let Found::Ready { id } = &container.image {
                    used.insert(id.clone());
                }
                match &container.run {
                    Run::None => {}
                    Run::Running { image_id, .. } => {
                        used.insert(image_id.clone());
                    }
                    Run::Ended(ended) => {
                        used.insert(ended.image_id.clone());
                    }
                }
            }
        }
        used
    }
}

/// Imports an archive; the client reads along. Once it is gone, the import ends, and nothing of it is left.
async fn import(
    hands: Hands,
    archive: ImageArchive,
    name: Option<String>,
    progress: Sender<String>,
) {
    let options = ImportOptions {
        name,
        preloaded: false,
        keep: hands.keep_free(),
    };
    let origin = match archive {
        ImageArchive::Path(path) => Origin::Path(path),
        ImageArchive::Sent(pieces) => Origin::Stream(pieces),
    };
    let store = hands.images.dir();
    let gone = progress.closed();
    let lines = progress.clone();
    let tell = move |step: Progress| {
        let mut line = serde_json::to_value(&step).expect("plain data");
        line["type"] = "progress".into();
        // A client that reads slowly misses steps, not the end.
        let _ = lines.try_send(line.to_string());
    };
    let import = image::import_unless(gone, WORKER.as_ref(), store, &origin, &options, tell).await;
    let line = match import {
        Ok(imported) => {
            let _ = hands.inputs.send(Input::Event(Event::ImagesChanged)).await;
            for image in imported {
                let line = json!({ "type": "image", "id": image.id, "names": image.names,
                                   "warnings": image.warnings });
                let _ = progress.send(line.to_string()).await;
            }
            return;
        }
        Err(error) => {
            hands.clear_up_after_import().await;
            json!({ "type": "error", "message": crate::chain(&error), "hint": error.hint() })
        }
    };
    let _ = progress.send(line.to_string()).await;
}

fn row(image: Image, in_use: &BTreeSet<String>) -> ImageRow {
    let in_use = in_use.contains(&image.id);
    ImageRow {
        id: image.id,
        names: image.names,
        size_bytes: image.size_bytes,
        created: image.created,
        preloaded: image.preloaded,
        in_use,
    }
}

fn command_error(error: &ImageError) -> CommandError {
    let kind = match error {
        ImageError::NotFound { .. } => CommandErrorKind::NotFound,
        ImageError::InUse { .. } | ImageError::SeveralNames { .. } => CommandErrorKind::Conflict,
        _ => CommandErrorKind::Failed,
    };
    CommandError {
        kind,
        message: crate::chain(error),
    }
}

/// A name as people write it, or an id as it is.
fn full_name(name: &str) -> String {
    if name.starts_with("sha256:") {
        return name.to_owned();
    }
    ImageName::parse(name).map_or_else(|_| name.to_owned(), |name| name.to_string())
}
