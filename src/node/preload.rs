//! The preload directories: their image archives are imported at the start and when files appear.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Input;
use super::execute::{Tools, WORKER};
use super::watch::Watch;
use crate::images::preload::{Candidate, Fingerprint};
use crate::images::trust::Policy;
use crate::images::{self, Cause, ImageError, ImportOptions, preload};
use crate::plan::preload::Failures;
use crate::plan::{Event, NodeFact};
use crate::types::Gather;

/// The interval of scans without a hint of inotify.
const RESCAN: Duration = Duration::from_secs(300);

/// A file that is still being copied keeps changing; scan again after this pause.
const SETTLE: Duration = Duration::from_secs(2);

/// Watches every preload directory.
pub(super) fn watch(tools: Tools) {
    for directory in tools.config.preload.clone() {
        super::spawn(watch_one(tools.clone(), directory));
    }
}

/// The state of an archive: its file, the policy that it is under, and whether that can be read.
type State = (Fingerprint, Option<String>, bool);

async fn watch_one(tools: Tools, directory: PathBuf) {
    let mut watch = Watch::new(&directory);
    let mut failures = Failures::default();
    loop {
        {
            let _turn = tools.importing.lock().await;
            import_new(&tools, &directory, &mut failures).await;
        }
        watch.ensure();
        watch.next(RESCAN).await;
        // Wait for a quiet moment: copying an archive takes time.
        while !watch.next(SETTLE).await.is_empty() {}
    }
}

/// The archives of a directory that are to be imported, and whether the policy can be read. Blocking.
fn look(tools: &Tools, directory: &Path) -> Result<(Vec<Candidate>, bool), ImageError> {
    let mut found = preload::scan(&[directory.to_owned()]);
    // With a policy that cannot be read the import fails, and says so.
    let policy = Policy::read(&tools.config.registries.policy);
    let readable = policy.is_ok();
    let policy = policy.unwrap_or_default();
    let archives = found.archives.iter_mut();
    archives.for_each(|archive| archive.note_policy(&policy));
    let all = tools.config.preload.iter();
    let others: Vec<PathBuf> = all.filter(|other| *other != directory).cloned().collect();
    preload::forget_missing(&tools.images, &found, &others)?;
    let pending = preload::pending(&tools.images, &found.archives)?;
    Ok((pending, readable))
}

async fn import_new(tools: &Tools, directory: &Path, failures: &mut Failures<State>) {
    let (own, of) = (tools.clone(), directory.to_owned());
    let (pending, readable) = match super::unblock(move || look(&own, &of)).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(
                "could not look for preloaded images: {}, trying again later",
                crate::chain(&error)
            );
            return;
        }
    };
    let paths: Vec<&Path> = pending.iter().map(|found| found.path.as_path()).collect();
    failures.keep_only(&paths);
    for candidate in pending {
        let state = (candidate.fingerprint, candidate.under.clone(), readable);
        if !failures.is_due(&candidate.path, &state, super::now().time) {
            continue;
        }
        if let Err(error) = import(tools, &candidate.path).await {
            let lasting = is_lasting(&error, &candidate.path);
            tracing::warn!(
                "could not import `{}`: {}, {}",
                candidate.path.display(),
                crate::chain(&error),
                match lasting {
                    true => "ignoring it until it changes",
                    false => "trying again later, or when it changes",
                }
            );
            failures.note(&candidate.path, state, lasting, super::now().time);
        }
    }
}

/// Whether only another archive or policy can lead to another result. Not of a directory: parts of it may still be
/// copied while its index stays the same.
fn is_lasting(error: &ImageError, archive: &Path) -> bool {
    matches!(error.cause(), Cause::Unfit | Cause::Signature) && !archive.is_dir()
}

async fn import(tools: &Tools, archive: &Path) -> Result<(), ImageError> {
    let path = archive.display();
    tracing::info!("importing `{path}`");
    let options = ImportOptions {
        name: None,
        preloaded: true,
        keep: tools.keep_free(),
        policy: Some(tools.config.registries.policy.clone()),
    };
    let (exe, store) = (WORKER.as_ref(), tools.images.dir());
    let imported = images::import(exe, store, archive, &options, |_| {}).await?;
    for warning in imported.iter().flat_map(|image| &image.warnings) {
        tracing::warn!("the image of `{path}`: {warning}");
    }
    let names: Vec<String> = imported.into_iter().flat_map(|image| image.names).collect();
    tracing::info!("imported {} from `{path}`", names.join(", "));
    let changed = NodeFact::ImagesChanged(Some(names.into_iter().gather()));
    let _ = tools.inputs.send(Input::Event(Event::Node(changed))).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_by_itself_does_not_last() {
        let file = std::env::current_exe().unwrap();
        let dir = std::env::temp_dir();
        for (cause, archive, lasting) in [
            (Cause::Unfit, &file, true),
            (Cause::Signature, &file, true),
            (Cause::Unfit, &dir, false),
            (Cause::Damaged, &file, false),
            (Cause::Other, &file, false),
        ] {
            let error = ImageError::Worker {
                archive: archive.clone(),
                message: String::new(),
                hint: None,
                cause,
            };
            assert_eq!(is_lasting(&error, archive), lasting, "{cause:?}");
        }
    }
}
