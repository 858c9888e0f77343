//! Which image archives lie ready? The preload directories are imported at the start and when something appears.

use std::path::PathBuf;
use std::time::Duration;

use super::Input;
use super::execute::{Hands, WORKER};
use super::watch::Watch;
use crate::effects::image::{self, ImportOptions, preload};
use crate::plan::Event;

/// Looked through again so often even if inotify said nothing.
const RESCAN: Duration = Duration::from_secs(300);

/// A file that is still being copied changes on; look again after this pause.
const SETTLE: Duration = Duration::from_secs(2);

/// Watches every preload directory.
pub(super) fn watch(hands: Hands) {
    for directory in hands.config.preload.clone() {
        super::spawn(watch_one(hands.clone(), directory));
    }
}

async fn watch_one(hands: Hands, directory: PathBuf) {
    let mut watch = match Watch::new(&directory) {
        Ok(watch) => watch,
        Err(error) => {
            tracing::warn!(
                "could not watch `{}`: {error}, ignoring it",
                directory.display()
            );
            return;
        }
    };
    loop {
        {
            let _turn = hands.importing.lock().await;
            import_new(&hands).await;
        }
        watch.ensure();
        watch.next(RESCAN).await;
        // Wait for a quiet moment: an archive takes time to be copied.
        while !watch.next(SETTLE).await.is_empty() {}
    }
}

async fn import_new(hands: &Hands) {
    let (images, directories) = (hands.images.clone(), hands.config.preload.clone());
    let pending = super::unblock(move || {
        let found = preload::scan(&directories);
        preload::forget_missing(&images, &found)?;
        preload::pending(&images, &found)
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
            keep: hands.keep_free(),
        };
        match image::import(
            WORKER.as_ref(),
            hands.images.dir(),
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
                let _ = hands.inputs.send(Input::Event(Event::ImagesChanged)).await;
            }
            Err(error) => tracing::warn!(
                "could not import `{path}`: {}, ignoring it",
                crate::chain(&error)
            ),
        }
    }
}
