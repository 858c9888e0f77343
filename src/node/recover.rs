//! What did the former agent leave? There is one start path: every runtime folder is looked at, every live shim is
//! asked what it holds, and what nobody holds any more is killed by its cgroup.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smol::channel::bounded;

use super::checkpoint::{self, Checkpoint};
use super::execute::Hands;
use crate::effects::sandbox::{ShimClient, unseen_exit};
use crate::layout::Layout;
use crate::plan::event::{Recovered, RecoveredContainer, RecoveredRun, RecoveredSandbox};
use crate::shim::protocol::{ContainerRecord, Reply};
use crate::spec::{PodSpec, PodUid, convert};
use crate::sys::file::{self, Durability};

/// Finds all pods of a former agent, and clears away what belongs to none.
pub(super) async fn recover(hands: &Hands) -> Vec<Recovered> {
    let layout = &hands.config.layout;
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    for uid in folder_names(&layout.pods_run_dir()) {
        let run = layout.pod_run(&uid);
        let spec = file::read_record(run.manifest())
            .ok()
            .and_then(|bytes| convert::admitted(&bytes).ok());
        match spec {
            Some(spec) => {
                // All at once: one stuck shim must not hold up the others.
                found.push(super::task(recover_pod(hands.clone(), Arc::new(spec))));
                known.insert(uid);
            }
            // Without its manifest (killed while it was written) the pod has not started yet: begin anew.
            None => discard(hands, &uid).await,
        }
    }
    let stray: Vec<PodUid> = hands
        .sandboxes
        .cgroups
        .pods()
        .into_iter()
        .map(|(uid, _)| uid)
        .filter(|uid| !known.contains(uid))
        .collect();
    for uid in stray {
        discard(hands, &uid).await;
    }
    let mut recovered = Vec::new();
    for pod in found {
        recovered.push(pod.await);
    }
    recover_network(hands, &mut recovered).await;
    recovered
}

/// Pods whose shims live keep their addresses; what belongs to no such pod is taken away.
async fn recover_network(hands: &Hands, recovered: &mut [Recovered]) {
    let live: Vec<Arc<PodSpec>> = recovered
        .iter()
        .filter(|pod| matches!(pod.sandbox, RecoveredSandbox::Ready { .. }))
        .map(|pod| pod.spec.clone())
        .collect();
    let on_bridge = live.iter().any(|spec| !spec.host_network);
    let network = hands.sandboxes.network.clone();
    let mut addresses = super::unblock_bridge(move || network.recover(&live)).await;
    for pod in recovered {
        if let RecoveredSandbox::Ready { ips } = &mut pod.sandbox {
            *ips = addresses.remove(&pod.spec.uid).unwrap_or_default();
            hands.links.set_ips(&pod.spec.uid, ips.clone());
        }
    }
    if on_bridge {
        hands.name_server.ensure(&hands.sandboxes.network).await;
    }
}

/// Writes down a pod as it is admitted now, for the next agent; `false` if that has to be tried again.
pub(super) fn write_manifest(layout: &Layout, spec: &PodSpec) -> bool {
    let path = layout.pod_run(&spec.uid).manifest();
    let bytes = serde_json::to_vec(&*spec.manifest).expect("a pod is plain data");
    match file::replace(&path, &bytes, 0o600, Durability::Process) {
        Ok(()) => true,
        // Its sandbox could not even be begun: whoever makes it writes this.
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => {
            tracing::warn!(
                "could not write `{}`: {error}, trying again",
                path.display()
            );
            false
        }
    }
}

async fn discard(hands: &Hands, uid: &PodUid) {
    tracing::warn!(pod = %uid, "found remains of a pod without a manifest, removing them");
    let (sandboxes, layout, owned) = (
        hands.sandboxes.clone(),
        hands.config.layout.clone(),
        uid.clone(),
    );
    let result = super::unblock(move || {
        sandboxes.clear(&owned)?;
        let run = layout.pod_run(&owned).dir;
        let _ = crate::sys::mount::unmount_below(&run.join("volumes"));
        crate::sys::tree::remove(&run).map_err(|source| {
            crate::effects::sandbox::SandboxError::Access {
                action: "remove",
                path: run,
                source,
            }
        })
    });
    if let Err(error) = result.await {
        tracing::warn!(pod = %uid, "{}, going on", crate::chain(&error));
    }
}

async fn recover_pod(hands: Hands, spec: Arc<PodSpec>) -> Recovered {
    let layout = &hands.config.layout;
    let run = layout.pod_run(&spec.uid);
    let mut records = read_records(&run.records());
    let sandbox = match greet(&hands, &spec.uid).await {
        Some(live) => {
            // A shim knows only the runs it started itself. What ran under one before it has ended.
            for record in records.values_mut() {
                let exit = unseen_exit(record);
                record.exit.get_or_insert(exit);
            }
            records.extend(live);
            RecoveredSandbox::Ready { ips: Vec::new() }
        }
        None => {
            let (sandboxes, uid) = (hands.sandboxes.clone(), spec.uid.clone());
            if let Err(error) = super::unblock(move || sandboxes.clear(&uid)).await {
                tracing::warn!(pod = %spec.uid, "{}, going on", crate::chain(&error));
            }
            if run.finished().exists() {
                RecoveredSandbox::Removed
            } else {
                RecoveredSandbox::Lost
            }
        }
    };
    let checkpoint = checkpoint::read(&run.checkpoint());
    let containers = spec
        .all_containers()
        .map(|container| {
            let record = records.remove(&container.name);
            (
                container.name.clone(),
                recovered_container(record, &checkpoint, &container.name),
            )
        })
        .collect();
    let created = checkpoint.created.unwrap_or_else(super::now);
    Recovered {
        spec,
        sandbox,
        containers,
        created,
        stopping: checkpoint.stopping,
        verdict: checkpoint.verdict,
        evictions: checkpoint.evictions,
        finishing: checkpoint.finishing,
        foreign: checkpoint.foreign,
        flags: checkpoint.flags,
        waits: checkpoint.waits,
        actuated: checkpoint.actuated,
    }
}

/// Asks the shim what it holds; `None` if there is none.
async fn greet(hands: &Hands, uid: &PodUid) -> Option<BTreeMap<String, ContainerRecord>> {
    let client = ShimClient::connect(&hands.config.layout.pod_run(uid).shim_socket()).ok()?;
    // Until the answer is there the pod has no link, so a listener that ends early says nothing.
    let listener = hands.links.clone().listen(
        uid.clone(),
        client.clone(),
        hands.sandboxes.clone(),
        hands.inputs.clone(),
        // `PodRecovered` is recorded before any input is looked at.
        bounded(1).1,
    );
    super::spawn(listener);
    match client.hello().await {
        Ok(Reply::Hello {
            pid, containers, ..
        }) => {
            hands.links.insert(uid, client, pid, None, Vec::new());
            Some(containers)
        }
        Ok(other) => {
            tracing::warn!(pod = %uid, "unexpected greeting of a shim: {other:?}, killing it");
            None
        }
        Err(error) => {
            tracing::warn!(pod = %uid, "{}, taking the shim for dead", crate::chain(&error));
            None
        }
    }
}

fn recovered_container(
    record: Option<ContainerRecord>,
    checkpoint: &Checkpoint,
    name: &str,
) -> RecoveredContainer {
    let backoff = checkpoint.backoff.get(name).copied();
    let start_error = checkpoint.start_errors.get(name).cloned();
    let round = checkpoint.rounds.get(name).copied().unwrap_or_default();
    let Some(record) = record else {
        return RecoveredContainer {
            backoff,
            start_error,
            round,
            ..RecoveredContainer::default()
        };
    };
    let newest = RecoveredRun {
        attempt: record.attempt,
        image_id: record.image_id,
        started: record.started,
        pid: record.pid,
        effective: record.effective,
        exit: record.exit,
        stop_sent: record.stop_sent,
    };
    RecoveredContainer {
        newest: Some(newest),
        previous: record.previous,
        backoff,
        start_error,
        round,
        health: checkpoint.health.get(name).copied(),
        hooks: checkpoint.hooks.get(name).cloned(),
        kill: checkpoint.kills.get(name).copied(),
        asked: checkpoint.asked.get(name).cloned().unwrap_or_default(),
    }
}

fn read_records(folder: &Path) -> BTreeMap<String, ContainerRecord> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "json")
        })
        .filter_map(|entry| {
            serde_json::from_slice::<ContainerRecord>(&file::read_record(entry.path()).ok()?).ok()
        })
        .map(|record| (record.container.clone(), record))
        .collect()
}

/// The names of folders, as UIDs.
pub(super) fn folder_names(path: &Path) -> Vec<PodUid> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some(PodUid::from(entry.file_name().to_str()?)))
        .collect()
}

/// The log folders of a pod whose name is no longer known: `<ns>_<name>_<uid>`.
pub(super) fn log_folders(layout: &Layout, uid: &PodUid) -> Vec<PathBuf> {
    let ending = format!("_{uid}");
    let entries = fs::read_dir(&layout.log_dir)
        .into_iter()
        .flatten()
        .flatten();
    entries
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.ends_with(&ending))
        })
        .map(|entry| entry.path())
        .collect()
}
