//! Recovery of the pods from before an agent restart. There is one start path: the agent reads every runtime folder, asks
//! every live shim what it holds, and kills by its cgroup what has no shim.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use smol::channel::bounded;

use super::execute::Tools;
use super::{checkpoint, hooks};
use crate::effects::sandbox::{ShimClient, unseen_exit};
use crate::effects::volume::claim;
use crate::layout::Layout;
use crate::plan::event::Instance;
use crate::plan::recovered::{
    HeldHook, Recovered, RecoveredContainer, RecoveredRun, RecoveredSandbox,
};
use crate::shim::protocol::{ContainerRecord, KeptProgram, Purpose, Reply};
use crate::spec::{PodSpec, PodUid, convert, uid};
use crate::sys::file::{self, Durability};
use crate::types::Gather;

/// The longest wait for the result of a hook that is done.
const RESULT_PATIENCE: Duration = Duration::from_secs(5);

/// Finds all pods from before the agent restart, and removes what belongs to none.
pub(super) async fn recover(tools: &Tools) -> Vec<Recovered> {
    let layout = &tools.config.layout;
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
                found.push(super::task(recover_pod(tools.clone(), Arc::new(spec))));
                known.insert(uid);
            }
            // Without its manifest (the agent was killed while it wrote it) the pod has not started yet: start over.
            None => discard(tools, &uid).await,
        }
    }
    let stray: Vec<PodUid> = tools
        .sandboxes
        .cgroups
        .pods()
        .into_iter()
        .map(|(uid, _)| uid)
        .filter(|uid| !known.contains(uid))
        .collect();
    for uid in stray {
        discard(tools, &uid).await;
    }
    let mut recovered = Vec::new();
    for pod in found {
        recovered.push(pod.await);
    }
    recover_network(tools, &mut recovered).await;
    recovered
}

/// Keeps the addresses of pods whose shims live, and removes what belongs to no such pod. Returns once the addresses are
/// known: bridge and rules are mended beside the rest of the start, and pods on the host network do not wait for that.
async fn recover_network(tools: &Tools, recovered: &mut [Recovered]) {
    let live: Vec<Arc<PodSpec>> = recovered
        .iter()
        .filter(|pod| matches!(pod.sandbox, RecoveredSandbox::Ready { .. }))
        .map(|pod| pod.spec.clone())
        .collect();
    let uses = |spec: &Arc<PodSpec>| !spec.host_network || tools.sandboxes.uses_name_server(spec);
    let is_used = live.iter().any(uses);
    let network = tools.sandboxes.network.clone();
    let serving = tools.name_server.hold().await;
    let (known, addresses) = bounded(1);
    let mended = super::unblock_bridge(move || {
        network.recover(&live, |addresses| {
            let _ = known.try_send(addresses);
        });
    });
    let (name_server, network) = (tools.name_server.clone(), tools.sandboxes.network.clone());
    super::spawn(async move {
        mended.await;
        if is_used {
            name_server.bind(serving, &network).await;
        }
    });
    let mut addresses = addresses
        .recv()
        .await
        .expect("the addresses are sent before anything that may fail");
    for pod in recovered {
        if let RecoveredSandbox::Ready { ips } = &mut pod.sandbox {
            *ips = addresses.remove(&pod.spec.uid).unwrap_or_default();
            tools.links.set_ips(&pod.spec.uid, ips.clone());
        }
    }
}

/// Writes the manifest of a pod as it is admitted now; `false` if that has to be tried again.
pub(super) fn write_manifest(layout: &Layout, spec: &PodSpec) -> bool {
    let path = layout.pod_run(&spec.uid).manifest();
    match file::replace(
        &path,
        spec.manifest.json().as_bytes(),
        0o600,
        Durability::Process,
    ) {
        Ok(()) => true,
        // Its sandbox has no folder yet: the task that makes it writes this.
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

async fn discard(tools: &Tools, uid: &PodUid) {
    tracing::warn!(pod = %uid, "found remains of a pod without a manifest, removing them");
    let (sandboxes, layout, owned) = (
        tools.sandboxes.clone(),
        tools.config.layout.clone(),
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

async fn recover_pod(tools: Tools, spec: Arc<PodSpec>) -> Recovered {
    let layout = &tools.config.layout;
    let run = layout.pod_run(&spec.uid);
    let mut records = read_records(&run.records());
    let mut kept = Vec::new();
    let sandbox = match greet(&tools, &spec.uid).await {
        Some((live, programs)) => {
            kept = programs;
            // A shim knows only the runs that it started. Runs of an earlier shim have ended.
            for record in records.values_mut() {
                let exit = unseen_exit(record);
                record.exit.get_or_insert(exit);
            }
            records.extend(live);
            RecoveredSandbox::Ready { ips: Vec::new() }
        }
        None => {
            let (sandboxes, uid) = (tools.sandboxes.clone(), spec.uid.clone());
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
    let memory = checkpoint::read(&run.checkpoint());
    let mut containers = BTreeMap::new();
    for container in spec.all_containers() {
        let name = &container.name;
        let record = records.remove(name);
        let mut recovered = record.map_or_else(RecoveredContainer::default, recovered_container);
        let kept = kept.iter().filter(|program| program.container == *name);
        for program in kept {
            recover_program(&tools, &spec, program, &mut recovered).await;
        }
        containers.insert(name.clone(), recovered);
    }
    Recovered {
        spec,
        sandbox,
        containers,
        memory,
    }
}

/// Takes over a program that the shim kept, and fetches the result of a hook that is done.
async fn recover_program(
    tools: &Tools,
    spec: &PodSpec,
    program: &KeptProgram,
    recovered: &mut RecoveredContainer,
) {
    let newest = recovered.newest.as_ref();
    if newest.is_none_or(|run| run.attempt != program.attempt || run.exit.is_some()) {
        return;
    }
    match program.purpose {
        Purpose::Probe(probe) => drop(recovered.held_probes.insert(probe)),
        Purpose::Hook(hook) if !program.ended => {
            recovered.held_hooks.insert(hook, HeldHook::Running);
        }
        Purpose::Hook(hook) => {
            let instance = Instance {
                pod: spec.uid.clone(),
                container: program.container.clone(),
                attempt: program.attempt,
            };
            let result = async {
                let outcome = hooks::result(tools, spec, &instance, hook).await;
                outcome.map(HeldHook::Done)
            };
            // A hook that was edited since runs again, in its new form.
            let running = async {
                smol::Timer::after(RESULT_PATIENCE).await;
                Some(HeldHook::Running)
            };
            if let Some(held) = smol::future::or(result, running).await {
                recovered.held_hooks.insert(hook, held);
            }
        }
    }
}

/// Asks the shim what it holds; `None` without a shim.
async fn greet(
    tools: &Tools,
    uid: &PodUid,
) -> Option<(BTreeMap<String, ContainerRecord>, Vec<KeptProgram>)> {
    let client = ShimClient::connect(&tools.config.layout.pod_run(uid).shim_socket()).ok()?;
    // The pod has no link before the answer, so a listener that ends early reports nothing.
    let listener = tools.links.clone().listen(
        uid.clone(),
        client.clone(),
        tools.sandboxes.clone(),
        tools.inputs.clone(),
        // `PodFact::Recovered` is recorded before any input is taken.
        bounded(1).1,
    );
    super::spawn(listener);
    match client.hello().await {
        Ok(Reply::Hello {
            pid,
            containers,
            kept,
            ..
        }) => {
            tools.links.insert(uid, client, pid, None, Vec::new());
            Some((containers, kept))
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

fn recovered_container(record: ContainerRecord) -> RecoveredContainer {
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
        ..RecoveredContainer::default()
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
        .gather()
}

/// The folders' names, as UIDs.
fn folder_names(path: &Path) -> Vec<PodUid> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| Some(PodUid::from(entry.file_name().to_str()?)))
        .collect()
}

/// What pods of earlier boots left: folders of logs, of state, and of volumes in memory. Logs may lie on another file system
/// than state, and after a power cut each has its own past: unless these logs belong to other agents, too, those with a
/// UID of ours are left over even without state.
pub(super) fn left_over(
    layout: &Layout,
    wanted: &BTreeSet<PodUid>,
    logs_are_ours: bool,
) -> Vec<PathBuf> {
    let unwanted = |folder: &Path| {
        let mut found = folder_names(folder);
        found.retain(|uid| !wanted.contains(uid));
        found
    };
    let state: BTreeSet<PodUid> = unwanted(&layout.pods_state_dir()).into_iter().gather();
    let is_left = |uid: &PodUid| {
        state.contains(uid) || logs_are_ours && uid::is_derived(uid) && !wanted.contains(uid)
    };
    // Logs are in folders of the form `<ns>_<name>_<uid>`.
    let logs = folder_names(&layout.log_dir).into_iter().filter(|folder| {
        let uid = folder.as_str().splitn(3, '_').nth(2);
        uid.is_some_and(|uid| is_left(&PodUid::from(uid)))
    });
    let logs = logs.map(|folder| layout.log_dir.join(folder.as_str()));
    let volumes = unwanted(&layout.all_projected_volumes()).into_iter();
    let volumes = volumes.map(|uid| layout.projected_volumes(&uid));
    let bundles = unwanted(&layout.all_bundles()).into_iter();
    let bundles = bundles.map(|uid| layout.bundles(&uid));
    // The logs first: with shared logs, only the state folder tells that there may be some.
    let state = state.iter().map(|uid| layout.pod_state(uid).dir);
    logs.chain(state).chain(volumes).chain(bundles).collect()
}

/// Blocking. Removes what [`left_over`] found.
pub(super) fn sweep(layout: &Layout, left: &[PathBuf]) {
    claim::sweep(layout);
    for folder in left {
        if let Err(error) = crate::sys::tree::remove(folder) {
            tracing::warn!("could not remove `{}`: {error}, ignoring", folder.display());
        }
    }
}
