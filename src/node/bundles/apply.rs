//! `coracle bundle apply`: read, check, import, then put in force. Until the last step nothing has changed but the
//! image store, and a crash at any line leaves the former generation in force.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smol::channel::{Sender, bounded};

use super::disk::{MAX_BUNDLES, Pinned, Record, State};
use super::fetch::{Polled, fetch, keys, place, shown};
use super::{ChangeError, disk};
use crate::api::{BundleRequest, PlannedFile};
use crate::images::trust::{KeyError, Origin};
use crate::images::{self, Bundle, BundleFile, ImageError, Imported, Progress};
use crate::node::execute::{Tools, WORKER};
use crate::node::pulls::PullFailure;
use crate::node::{Input, boot, now, spawn, unblock};
use crate::plan::bundle::Trial;
use crate::spec::Pins;

/// Why a bundle was not applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApplyError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("its manifests cannot take effect; nothing has changed: {}", .0.join("; "))]
    Refused(Vec<String>),
    #[error("the key of bundles (setting `{0}`) cannot be used")]
    Key(&'static str, #[source] KeyError),
    #[error("there are {MAX_BUNDLES} bundles already")]
    TooMany,
    /// The window for pulls has closed.
    #[error("{}", .0.message)]
    Closed(PullFailure),
    #[error("the agent is stopping")]
    Stopping,
}

impl ApplyError {
    pub(super) fn hint(&self) -> Option<String> {
        match self {
            Self::Image(error) => error.hint(),
            Self::Key(_, error) => error.hint().map(str::to_owned),
            Self::TooMany => Some("remove one: coracle bundle rm NAME".to_owned()),
            Self::Change(ChangeError::Clash(clash)) => Some(format!(
                "give one of them another tag, or remove the other bundle: coracle bundle rm {}",
                clash.other
            )),
            Self::Change(_) | Self::Refused(_) | Self::Closed(_) | Self::Stopping => None,
        }
    }
}

/// Applies a bundle for a client, and reports line by line.
pub(in crate::node) async fn apply(tools: Tools, request: BundleRequest, progress: Sender<String>) {
    let waits = request.ready_within_seconds.is_some();
    let gone = progress.closed();
    let work = async { Some(try_apply(&tools, &request, None, &progress).await) };
    let given_up = async {
        gone.await;
        None
    };
    let line = match smol::future::or(work, given_up).await {
        Some(Ok(applied)) => {
            let trial = match waits && applied.line["type"] == "applied" {
                true => wait(&tools, &applied).await,
                false => None,
            };
            let _ = progress.send(applied.line.to_string()).await;
            let Some(trial) = trial else {
                return;
            };
            let Ok(end) = trial.recv().await else {
                return;
            };
            end
        }
        Some(Err(error)) => {
            tools.clear_up_after_import().await;
            json!({ "type": "error", "message": crate::chain(&error), "hint": error.hint() })
        }
        None => return tools.clear_up_after_import().await,
    };
    let _ = progress.send(line.to_string()).await;
}

/// What came of it.
pub(super) struct Applied {
    pub(super) name: String,
    /// For a client; null if there was nothing to do.
    pub(super) line: Value,
    pub(super) digest: String,
    /// What a web server names the archive by.
    pub(super) validator: Option<String>,
}

/// Asks the loop to say how the trial ends.
async fn wait(tools: &Tools, applied: &Applied) -> Option<smol::channel::Receiver<Value>> {
    let (say, end) = bounded(1);
    let input = Input::AwaitBundle {
        name: applied.name.clone(),
        generation: applied.line["generation"].as_u64().unwrap_or(0),
        say,
    };
    tools.inputs.send(input).await.ok()?;
    Some(end)
}

pub(super) async fn try_apply(
    tools: &Tools,
    request: &BundleRequest,
    polled: Option<&Polled>,
    progress: &Sender<String>,
) -> Result<Applied, ApplyError> {
    let lines = progress.clone();
    let mut tell = move |step: Progress| {
        let mut line = serde_json::to_value(&step).expect("plain data");
        line["type"] = "progress".into();
        // A slow client misses steps, not the end.
        let _ = lines.try_send(line.to_string());
    };
    let keys = keys(tools, request, polled).await?;
    // A download is read and removed before the next one of this source.
    let source = tools.pulls.turn(&place(&request.source));
    let _source = source.lock().await;
    let fetching = async { Ok(fetch(tools, &request.source, polled, &mut tell).await?) };
    let closing = async {
        match polled {
            Some(_) => Err(ApplyError::Closed(tools.closing().await)),
            None => smol::future::pending().await,
        }
    };
    let archive = match smol::future::or(fetching, closing).await? {
        Ok(archive) => archive,
        Err(digest) => return Ok(Applied::nothing(digest, None)),
    };
    let bundle = archive.read(tools, &keys).await?;
    let (name, digest) = (bundle.name.clone(), bundle.digest.clone());
    let validator = archive.validator.clone();
    if polled.is_some_and(|polled| polled.settled.contains(&digest)) {
        archive.discard().await;
        return Ok(Applied::nothing(digest, validator));
    }
    let done = |name, line| Applied {
        name,
        line,
        digest,
        validator,
    };
    if request.dry_run {
        no_clash(tools, &bundle).await?;
        let planned = check(tools, &name, bundle.images.clone(), &bundle.files).await?;
        let line = json!({ "type": "plan", "name": name, "digest": bundle.digest, "items": planned["items"] });
        return Ok(done(name, line));
    }
    // In turn, so that another bundle cannot take a name after the check.
    let turn = tools.bundles.turn.lock_arc().await;
    no_clash(tools, &bundle).await?;
    let planned = check(tools, &name, bundle.images.clone(), &bundle.files).await?;
    let refusals = refusals(&planned);
    if !refusals.is_empty() {
        return Err(ApplyError::Refused(refusals));
    }
    // The signature of the bundle stands for its images.
    let vouched = !keys.is_empty();
    let known = in_force(tools, &bundle, vouched).await?;
    if let Some(Known { generation, .. }) = known.filter(|known| known.whole)
        && request.ready_within_seconds.is_none()
    {
        archive.discard().await;
        let line = applied(&name, generation, true);
        return Ok(done(name, line));
    }
    let (store, keep) = (tools.images.dir(), tools.keep_free());
    let policy = tools.config.registries.policy.as_path();
    let imported = match known.is_some_and(|known| known.whole) {
        true => Vec::new(),
        false => {
            let _importing = tools.importing.lock().await;
            let imported = images::import_bundle(
                WORKER.as_ref(),
                store,
                (&archive.path, &bundle.digest),
                (policy, vouched, keep),
                tell,
            );
            archive.checked(imported.await).await?
        }
    };
    // What has begun is finished, whether or not the client still listens.
    let (say, said) = bounded(1);
    let (own, request) = (tools.clone(), request.clone());
    spawn(async move {
        let state = put_in_force(&own, &request, bundle, imported).await;
        drop(turn);
        let _ = say.try_send(state);
    });
    archive.discard().await;
    let state = said.recv().await.map_err(|_| ApplyError::Stopping)??;
    tracing::info!("bundle {name}: generation {} is in force", state.current);
    let unchanged = known.is_some_and(|known| known.generation == state.current);
    let line = applied(&name, state.current, unchanged);
    Ok(done(name, line))
}

impl Applied {
    /// There was nothing to do.
    fn nothing(digest: String, validator: Option<String>) -> Self {
        Self {
            name: String::new(),
            line: Value::Null,
            digest,
            validator,
        }
    }
}

/// Has the loop say what the manifests of a bundle would change.
async fn check(
    tools: &Tools,
    name: &str,
    images: Pins,
    files: &[BundleFile],
) -> Result<Value, ApplyError> {
    let files = files.iter().map(|file| PlannedFile {
        name: file.name.clone(),
        save_as: Some(file.name.clone()),
        text: file.text.clone(),
        strict: false,
    });
    let (reply, answer) = bounded(1);
    let input = Input::CheckBundle {
        name: name.to_owned(),
        images,
        files: files.collect(),
        reply,
    };
    tools
        .inputs
        .send(input)
        .await
        .map_err(|_| ApplyError::Stopping)?;
    let planned = answer.recv().await.map_err(|_| ApplyError::Stopping)?;
    planned.map_err(|error| ApplyError::Refused(vec![error.message]))
}

async fn no_clash(tools: &Tools, bundle: &Bundle) -> Result<(), ChangeError> {
    let bundles = tools.config.layout.manifest_bundles();
    // A digest means one image only.
    let mut pins = bundle.images.clone();
    pins.retain(|name, _| !name.contains('@'));
    let name = bundle.name.clone();
    unblock(move || super::no_clash(&bundles, &name, &pins)).await
}

/// Why the manifests of a bundle's former generation could not take effect now, beside the others. Another bundle or file
/// may have taken their names since.
pub(super) async fn former_refusals(tools: &Tools, name: &str) -> Result<Vec<String>, ApplyError> {
    let folder = disk::Folder::of(&tools.config.layout.manifest_bundles(), name);
    let former = unblock(move || {
        let Some(former) = folder.state()?.and_then(|state| state.previous) else {
            return Ok(None);
        };
        Ok(Some((folder.record(former)?, folder.files(former)?)))
    });
    let former = former.await.map_err(|source| ChangeError::Unread {
        name: name.to_owned(),
        source,
    })?;
    let Some((record, files)) = former else {
        return Ok(Vec::new());
    };
    Ok(refusals(&check(tools, name, record.pins(), &files).await?))
}

fn refusals(planned: &Value) -> Vec<String> {
    let items = planned["items"].as_array().into_iter().flatten();
    let errors = items.flat_map(|item| item["errors"].as_array().into_iter().flatten());
    errors
        .filter_map(|error| error.as_str().map(str::to_owned))
        .collect()
}

fn applied(name: &str, generation: u64, unchanged: bool) -> Value {
    json!({ "type": "applied", "name": name, "generation": generation, "unchanged": unchanged })
}

/// A generation that is in force already.
#[derive(Clone, Copy)]
struct Known {
    generation: u64,
    /// Whether the store has its images, vouched for if this bundle is signed.
    whole: bool,
}

/// The generation in force if it is this very bundle.
async fn in_force(
    tools: &Tools,
    bundle: &Bundle,
    vouched: bool,
) -> Result<Option<Known>, ApplyError> {
    let (bundles, name) = (tools.config.layout.manifest_bundles(), bundle.name.clone());
    let found = unblock(move || {
        let names = disk::names(&bundles)?;
        std::io::Result::Ok((names, current(&bundles, &name)?))
    });
    let (names, record) = found.await.map_err(|source| ChangeError::Unread {
        name: bundle.name.clone(),
        source,
    })?;
    if names.len() >= MAX_BUNDLES && !names.contains(&bundle.name) {
        return Err(ApplyError::TooMany);
    }
    let same = record.filter(|(_, record)| record.digest == bundle.digest);
    Ok(same.map(|(generation, record)| {
        // They may have been removed by force.
        let ids = record.images.iter().map(|image| image.id.as_str());
        let whole = tools.images.has_all(ids, vouched);
        Known { generation, whole }
    }))
}

/// The generation in force of a bundle. One whose record cannot be read counts as none, so that any bundle replaces it.
fn current(bundles: &Path, name: &str) -> std::io::Result<Option<(u64, Record)>> {
    let folder = disk::Folder::of(bundles, name);
    let state = folder.state()?;
    Ok(state.and_then(|state| {
        let record = folder.record(state.current).ok()?;
        Some((state.current, record))
    }))
}

/// Where the bundle comes from, in the words of policies; `None`: from a registry.
fn origin(source: &str) -> Option<Origin> {
    let path = Some(PathBuf::from(source)).filter(|path| path.is_absolute())?;
    let transport = if path.is_dir() { "oci" } else { "oci-archive" };
    Some(Origin {
        transport: transport.to_owned(),
        path: Some(path),
    })
}

/// Writes the generation, and makes it the one in force.
async fn put_in_force(
    tools: &Tools,
    request: &BundleRequest,
    bundle: Bundle,
    imported: Vec<Imported>,
) -> Result<State, ApplyError> {
    let images = imported.into_iter().map(|image| Pinned {
        id: image.id,
        names: image.names,
    });
    let now = now();
    let record = Record {
        digest: bundle.digest.clone(),
        source: shown(&request.source).to_owned(),
        origin: origin(&request.source),
        applied: now.wall,
        images: images.collect(),
        files: bundle.files.iter().map(|file| file.name.clone()).collect(),
    };
    let trial = request
        .ready_within_seconds
        .map(|seconds| Trial::new(seconds.saturating_mul(1000), &boot::id(), now.time));
    let name = bundle.name.clone();
    let images = tools.images.clone();
    let change = move |folder: &disk::Folder, before: Option<State>| {
        let same = |known: Record| known.digest == record.digest;
        match before {
            Some(before) if folder.record(before.current).is_ok_and(same) => {
                return Ok(before.looked_at_again(trial));
            }
            _ => {}
        }
        // They have no names yet, so that they could have been pruned since.
        let ids: Vec<String> = record.images.iter().map(|image| image.id.clone()).collect();
        images.require(&ids).map_err(|source| ChangeError::Images {
            name: bundle.name.clone(),
            source,
        })?;
        let written = folder.write(before.as_ref(), &record, &bundle.files);
        let current = written.map_err(|source| ChangeError::Disk {
            name: bundle.name,
            source,
        })?;
        Ok(State::applied(before, current, trial))
    };
    Ok(tools.change_in_turn(&name, change).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_whose_record_is_damaged_is_another_bundle() {
        let dir = std::env::temp_dir().join(format!("coracle-current-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let folder = disk::Folder::of(&dir, "site");
        assert!(current(&dir, "site").unwrap().is_none(), "there is none");
        folder.write(None, &Record::default(), &[]).unwrap();
        let state = State {
            current: 1,
            ..State::default()
        };
        folder.commit(&state).unwrap();
        assert_eq!(current(&dir, "site").unwrap(), Some((1, Record::default())));
        std::fs::write(dir.join("site/1/bundle.json"), "{").unwrap();
        assert!(current(&dir, "site").unwrap().is_none());
        std::fs::write(dir.join("site/state.json"), "{").unwrap();
        let why = current(&dir, "site").unwrap_err();
        let why = ChangeError::Unread {
            name: "site".to_owned(),
            source: why,
        };
        assert!(crate::chain(&why).starts_with("could not read bundle `site`: "));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
