//! Commands of clients. Each is answered exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::EphemeralContainer;
use serde_json::json;
use smol::channel::Sender;

use super::execute::{Tools, WORKER};
use super::image_users::Users;
use super::pulls::pull_for_client;
use super::{Input, Node, bundles, metrics, shutdown};
use crate::api::{
    Command, CommandError, CommandErrorKind, ImageArchive, ImageRow, ImageUser, Metric,
    RemovedImages, SavedArchive,
};
use crate::images::{self, Image, ImageError, ImportOptions, Origin, Progress};
use crate::plan::event::ConditionChange;
use crate::plan::state::PodState;
use crate::plan::{Event, NodeFact, PodFact, retry};
use crate::spec::{ImageName, PodKey, PodUid, ephemeral};
use crate::types::Gather;

/// Where the answer to a command goes.
pub(super) type Reply<T> = Sender<Result<T, CommandError>>;

impl Node {
    pub(super) fn command(&mut self, command: Command) {
        match command {
            Command::DeletePod {
                namespace,
                name,
                grace_ms,
                force,
                reply,
            } => {
                let answer = self.delete_pod(&namespace, &name, grace_ms, force);
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
                let _ = reply.try_send(self.set_ephemeral(pod, &containers, dry_run));
            }
            Command::SetConditions {
                namespace,
                name,
                changes,
                reply,
            } => {
                let _ = reply.try_send(self.set_conditions((&namespace, &name), changes));
            }
            Command::Retry {
                namespace,
                name,
                container,
                reply,
            } => {
                let _ = reply.try_send(self.retry((&namespace, &name), container));
            }
            Command::Rollout { request, reply } => self.rollout(request, reply),
            Command::RestartPod {
                namespace,
                name,
                container,
                grace_ms,
                reply,
            } => {
                let pod = (namespace.as_str(), name.as_str());
                let _ = reply.try_send(self.restart_pod(pod, container, grace_ms));
            }
            Command::StartAll { namespace, reply } => {
                let targets = self.stopped_in(&namespace);
                self.stop_or_start(targets, (false, None), reply);
            }
            Command::StopOrStart {
                targets,
                stop,
                grace_ms,
                reply,
            } => self.stop_or_start(targets, (stop, grace_ms), reply),
            Command::ImportImage {
                archive,
                name,
                progress,
            } => super::spawn(import(self.tools.clone(), archive, name, progress)),
            Command::PullImage { request, progress } => {
                super::spawn(pull_for_client(self.tools.clone(), request, progress));
            }
            Command::RemoveImage { name, force, reply } => self.remove_image(&name, force, reply),
            Command::TagImage {
                source,
                target,
                reply,
            } => self.tag_image(source, target, reply),
            Command::InspectImage { name, reply } => self.inspect_image(&name, reply),
            Command::SaveImages { names, reply } => {
                super::spawn(save_images(self.tools.clone(), names, reply));
            }
            Command::PruneImages {
                all,
                dry_run,
                reply,
            } => self.prune_images((all, dry_run), reply),
            Command::ListImages { reply } => {
                let users = self.image_users();
                answer(reply, list_images(self.tools.clone(), users));
            }
            Command::ListVolumes { reply } => self.list_volumes(reply),
            Command::RemoveVolume {
                namespace,
                name,
                reply,
            } => self.remove_volume(&namespace, &name, reply),
            Command::MeasurePods { reply } => self.measure_pods(reply),
            Command::Summarize { brief, reply } => {
                let summary = self.summary(brief);
                answer(reply, async { Ok(summary.await) });
            }
            Command::MeasureResources { reply } => {
                let metrics = self.resource_metrics();
                answer(reply, async { Ok(metrics.await) });
            }
            Command::LookAtNode { reply } => self.look_at_node(reply),
            Command::Count { reply } => {
                let _ = reply.try_send(Ok(self.metrics()));
            }
            Command::CountProbes { reply } => {
                let _ = reply.try_send(Ok(self.probes.metrics()));
            }
            Command::ShowShutdown { reply } => {
                let mut shown = self.show_shutdown();
                answer(reply, async move {
                    let total = shown["totalSeconds"].as_u64().unwrap_or(0);
                    shown["logind"] = shutdown::ask(total).await;
                    Ok(shown)
                });
            }
            Command::BeginShutdown { reply } => {
                let _ = reply.try_send(self.shutdown_for());
            }
            Command::CancelShutdown { reply } => {
                let _ = reply.try_send(self.cancel_shutdown());
            }
            Command::ShowCgroups {
                namespace,
                name,
                reply,
            } => self.show_cgroups((&namespace, &name), reply),
            Command::SetCordon { on, reply } => self.set_cordon(on, reply),
            Command::Drain { options, reply } => self.drain(&options, reply),
            Command::ShowSettings { reply } => {
                let _ = reply.try_send(Ok(self.sources.show()));
            }
            Command::ShowBoot { reply } => {
                let _ = reply.try_send(Ok(self.show_boot()));
            }
            Command::Preview { files, reply } => self.preview_for(None, files, reply),
            Command::ApplyBundle { request, progress } => {
                super::spawn(bundles::apply(self.tools.clone(), request, progress));
            }
            Command::ReadManifests { reply } => self.tools.readers.ask(reply),
            Command::ListBundles { reply } => self.list_bundles(&reply),
            Command::RollBackBundle { name, reply } => self.roll_back_bundle(name, reply),
            Command::RemoveBundle { name, reply } => self.remove_bundle(name, reply),
        }
    }

    fn remove_image(&self, name: &str, force: bool, reply: Reply<RemovedImages>) {
        let images = self.tools.images.clone();
        let (in_use, running) = (self.images_kept(), self.images_running());
        let named = self.images_named();
        let tools = self.tools.clone();
        let wanted = full_name(name);
        answer(reply, async move {
            let remove = move || match force {
                true => images.remove_by_force(&wanted, &running),
                false => images.remove(&wanted, &in_use, &named),
            };
            let removed = super::unblock(remove).await;
            let removed = removed.map_err(|error| command_error(&error))?;
            if removed.deleted.is_some() {
                tools.tell_room_made().await;
            }
            Ok(RemovedImages {
                untagged: removed.untagged,
                deleted: removed.deleted.into_iter().collect(),
                freed_bytes: 0,
            })
        });
    }

    fn tag_image(&self, source: String, target: String, reply: Reply<String>) {
        let (images, inputs) = (self.tools.images.clone(), self.tools.inputs.clone());
        answer(reply, async move {
            let tagged = super::unblock(move || images.tag(&full_name(&source), &target)).await;
            let name = tagged.map_err(|error| command_error(&error))?;
            // A pod may wait for an image of this name.
            let changed = NodeFact::ImagesChanged(Some([name.clone()].into()));
            let _ = inputs.send(Input::Event(Event::Node(changed))).await;
            Ok(name)
        });
    }

    fn inspect_image(&self, name: &str, reply: Reply<serde_json::Value>) {
        let (images, wanted) = (self.tools.images.clone(), full_name(name));
        answer(reply, async move {
            let details = super::unblock(move || images.details(&wanted)).await;
            let details = details.map_err(|error| command_error(&error))?;
            Ok(serde_json::to_value(details).expect("plain data"))
        });
    }

    /// Images that manifests name stay, too: a stopped pod needs its image again.
    fn prune_images(&self, (all, dry_run): (bool, bool), reply: Reply<RemovedImages>) {
        let (images, mut in_use) = (self.tools.images.clone(), self.images_kept());
        let (wanted, tools) = (self.images_named(), self.tools.clone());
        answer(reply, async move {
            let prune = move || {
                for name in &wanted {
                    in_use.extend(images.lookup(name)?.map(|image| image.id));
                }
                match dry_run {
                    true => images.would_prune(&in_use, all),
                    false => images.prune(&in_use, all),
                }
            };
            let pruned = super::unblock(prune).await;
            let pruned = pruned.map_err(|error| command_error(&error))?;
            if !dry_run && !pruned.deleted.is_empty() {
                tools.tell_room_made().await;
            }
            Ok(RemovedImages {
                untagged: Vec::new(),
                deleted: pruned.deleted,
                freed_bytes: pruned.freed_bytes,
            })
        });
    }

    /// Lists the images, which are part of the Node object, and shows it.
    fn look_at_node(&self, reply: Reply<()>) {
        let tools = self.tools.clone();
        super::spawn(async move {
            let inputs = tools.inputs.clone();
            let rows = list_images(tools, Users::new()).await;
            let _ = inputs.send(Input::Looked { rows, reply }).await;
        });
    }

    fn measure_pods(&self, reply: Reply<Vec<Metric>>) {
        let network = self.tools.sandboxes.network.clone();
        let pods = self.state.pods.values();
        let keys: BTreeMap<PodUid, PodKey> = pods
            .map(|pod| (pod.spec.uid.clone(), pod.spec.key.clone()))
            .gather();
        let containers = self.container_metrics();
        answer(reply, async move {
            let traffic = super::unblock(move || network.traffic()).await;
            let mut all = containers.await;
            all.extend(metrics::of_traffic(&keys, &traffic));
            Ok(all)
        });
    }

    fn set_conditions(
        &mut self,
        (namespace, name): (&str, &str),
        changes: Vec<ConditionChange>,
    ) -> Result<(), CommandError> {
        let uid = self.find(namespace, name)?.spec.uid.clone();
        self.record(&Event::Pod {
            uid: uid.clone(),
            fact: PodFact::ConditionsSet { changes },
        });
        // The change must be visible and saved before the client is answered.
        self.publish(&uid);
        Ok(())
    }

    pub(super) fn find(&self, namespace: &str, name: &str) -> Result<&PodState, CommandError> {
        let key = PodKey::new(namespace, name);
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
        let refusal = self.tools.config.pod_security.refusal(&spec.manifest.pod());
        if let Some(message) = refusal.filter(|_| added) {
            return Err(CommandError {
                kind: CommandErrorKind::Forbidden,
                message,
            });
        }
        let never = match (pod.stopping(), pod.complete()) {
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
            let event = Event::Pod {
                uid: uid.clone(),
                fact: PodFact::EphemeralAdded { spec },
            };
            self.record(&event);
            // The file is written before the answer, so that the change survives an agent restart.
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
    ) -> Result<(), CommandError> {
        let pod = self.find(namespace, name)?.spec.uid.clone();
        let grace_ms = if force {
            Some(grace_ms.unwrap_or(0))
        } else {
            grace_ms
        };
        let event = Event::Pod {
            uid: pod,
            fact: PodFact::DeleteRequested { grace_ms },
        };
        self.record(&event);
        Ok(())
    }

    /// Ends the waits of a pod; returns their description.
    fn retry(
        &mut self,
        (namespace, name): (&str, &str),
        container: Option<String>,
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
        // Also for an image that did not fit on the disk.
        let _ = self.tools.room_made_for_images();
        let event = Event::Pod {
            uid: uid.clone(),
            fact: PodFact::RetryRequested { container },
        };
        self.record(&event);
        self.publish(&uid);
        let waits: Vec<String> = waits.iter().map(ToString::to_string).collect();
        Ok(waits.join(", "))
    }
}

/// Answers a client once the work is done, beside the loop.
pub(super) fn answer<T: 'static>(
    reply: Reply<T>,
    work: impl Future<Output = Result<T, CommandError>> + 'static,
) {
    super::spawn(async move {
        let _ = reply.try_send(work.await);
    });
}

async fn list_images(tools: Tools, mut users: Users) -> Result<Vec<ImageRow>, CommandError> {
    let images = tools.images;
    let list = super::unblock(move || images.list()).await;
    let list = list.map_err(|error| command_error(&error))?;
    let rows = list.into_iter().map(|image| {
        let users = users.remove(&image.id).unwrap_or_default();
        row(image, users)
    });
    Ok(rows.collect())
}

/// Imports an archive and streams its progress. If the client disconnects, the import ends and leaves nothing
/// behind.
async fn import(
    tools: Tools,
    archive: ImageArchive,
    name: Option<String>,
    progress: Sender<String>,
) {
    let options = ImportOptions {
        name,
        preloaded: false,
        keep: tools.keep_free(),
        policy: Some(tools.config.registries.policy.clone()),
    };
    let origin = match archive {
        ImageArchive::Path(path) => Origin::Path(path),
        ImageArchive::Sent(pieces) => Origin::Stream(pieces),
    };
    let store = tools.images.dir();
    let gone = progress.closed();
    let lines = progress.clone();
    let tell = move |step: Progress| {
        let mut line = serde_json::to_value(&step).expect("plain data");
        line["type"] = "progress".into();
        // A slow client misses steps, not the end.
        let _ = lines.try_send(line.to_string());
    };
    let import = images::import_unless(gone, WORKER.as_ref(), store, &origin, &options, tell).await;
    let line = match import {
        Ok(imported) => {
            let names = imported.iter().flat_map(|image| image.names.clone());
            let changed = NodeFact::ImagesChanged(Some(names.gather()));
            let _ = tools.inputs.send(Input::Event(Event::Node(changed))).await;
            for image in imported {
                let line = json!({ "type": "image", "id": image.id, "names": image.names,
                                   "warnings": image.warnings });
                let _ = progress.send(line.to_string()).await;
            }
            return;
        }
        Err(error) => {
            tools.clear_up_after_import().await;
            json!({ "type": "error", "message": crate::chain(&error), "hint": error.hint() })
        }
    };
    let _ = progress.send(line.to_string()).await;
}

/// Writes images as an archive for a client, until it has gone.
async fn save_images(tools: Tools, names: Vec<String>, reply: Reply<SavedArchive>) {
    let store = tools.images.dir();
    let names: Vec<String> = names.iter().map(|name| full_name(name)).collect();
    let (images, wanted) = (tools.images.clone(), names.clone());
    let begun = async {
        // What is missing is told as for other commands.
        let found = super::unblock(move || images.require(&wanted)).await;
        Some(match found {
            Ok(()) => images::save(WORKER.as_ref(), store, &names).await,
            Err(error) => Err(error),
        })
    };
    let gone = async {
        reply.closed().await;
        None
    };
    let mut saving = match smol::future::or(begun, gone).await {
        None => return,
        Some(Ok(saving)) => saving,
        Some(Err(error)) => {
            let _ = reply.try_send(Err(command_error(&error)));
            return;
        }
    };
    let (sender, pieces) = smol::channel::bounded(4);
    let bytes = saving.bytes;
    let _ = reply.try_send(Ok(SavedArchive { bytes, pieces }));
    loop {
        let piece = match saving.next().await {
            Ok(None) => return,
            Ok(Some(piece)) => Ok(piece),
            Err(error) => {
                let why = crate::chain(&error);
                tracing::warn!("could not save {}: {why}", names.join(", "));
                Err(std::io::Error::other(why))
            }
        };
        let failed = piece.is_err();
        if sender.send(piece).await.is_err() || failed {
            return;
        }
    }
}

fn row(image: Image, users: Vec<ImageUser>) -> ImageRow {
    ImageRow {
        id: image.id,
        names: image.names,
        size_bytes: image.size_bytes,
        created: image.created,
        preloaded: image.preloaded,
        in_use: !users.is_empty(),
        digest: image.manifest_digest,
        users,
    }
}

fn command_error(error: &ImageError) -> CommandError {
    let kind = match error {
        ImageError::NotFound { .. } => CommandErrorKind::NotFound,
        ImageError::InUse { .. }
        | ImageError::Wanted { .. }
        | ImageError::Running { .. }
        | ImageError::SeveralNames { .. } => CommandErrorKind::Conflict,
        _ => CommandErrorKind::Failed,
    };
    let message = crate::chain(error);
    let hint = error.hint().filter(|_| kind == CommandErrorKind::Conflict);
    CommandError {
        kind,
        message: match hint {
            Some(hint) => format!("{message}; {hint}"),
            None => message,
        },
    }
}

/// An image name completed as in manifests. An id and what may be the start of one stay as they are.
fn full_name(name: &str) -> String {
    let may_be_id = name.len() >= 6 && name.bytes().all(|b| b.is_ascii_hexdigit());
    if name.starts_with("sha256:") || may_be_id {
        return name.to_owned();
    }
    ImageName::parse(name).map_or_else(|_| name.to_owned(), |name| name.to_string())
}
