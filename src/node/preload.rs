//! The preload directories: their image archives are imported at the start and when files appear.

use std::path::PathBuf;
use std::time::Duration;

use super::Input;
use super::execute::{Tools, WORKER};
use super::watch::Watch;
use crate::images::trust::Policy;
use crate::images::{self, ImportOptions, preload};
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

async fn watch_one(tools: Tools, directory: PathBuf) {
    let mut watch = Watch::new(&directory);
    loop {
        {
            let _turn = tools.importing.lock().await;
            import_new(&tools).await;
        }
        watch.ensure();
        watch.next(RESCAN).await;
        // Wait for a quiet moment: copying an archive takes time.
        while !watch.next(SETTLE).await.is_empty() {}
    }
}

async fn import_new(tools: &Tools) {
    let (images, directories) = (tools.images.clone(), tools.config.preload.clone());
    let policy = tools.config.registries.policy.clone();
    let pending = super::unblock(move || {
        let mut found = preload::scan(&directories);
        // With a policy that cannot be read the import fails, and says so.
        let policy = Policy::read(&policy).unwrap_or_default();
        let archives = found.archives.iter_mut();
        archives.for_each(|archive| archive.note_policy(&policy));
        preload::forget_missing(&images, &found)?;
        preload::pending(&images, &found.archives)
    });
    let pending = match pending.await {
        Ok(pending) => pending,
        Err(error) => {
            tracing::warn!(
                "could not look for preloaded images: {}, trying again later",
                crate::chain(&error)
            );
            return;
        }
    };
    for candidate in pending {
        let path = candidate.path.display();
        tracing::info!("importing `{path}`");
        let options = ImportOptions {
            name: None,
            preloaded: true,
            keep: tools.keep_free(),
            policy: Some(tools.config.registries.policy.clone()),
        };
        match images::import(
            WORKER.as_ref(),
            tools.images.dir(),
            &candidate.path,
            &options,
            |_| {},
        )
        .await
        {
            Ok(imported) => {
                for warning in imported.iter().flat_map(|image| &image.warnings) {
                    tracing::warn!("the image of `{path}`: {warning}");
                }
                let names: Vec<String> =
                    imported.into_iter().flat_map(|image| image.names).collect();
                tracing::info!("imported {} from `{path}`", names.join(", "));
                let changed = NodeFact::ImagesChanged(Some(names.into_iter().gather()));
                let _ = tools.inputs.send(Input::Event(Event::Node(changed))).await;
            }
            Err(error) => tracing::warn!(
                "could not import `{path}`: {}, ignoring it",
                crate::chain(&error)
            ),
        }
    }
}
