//! Which image archives lie ready? The preload directories are imported at the start and when something appears.

use std::time::Duration;

use super::Input;
use super::execute::Hands;
use super::watch::Watch;
use crate::effects::image::{self, preload};
use crate::plan::Event;

/// Looked through again so often even if inotify said nothing.
const RESCAN: Duration = Duration::from_secs(300);

/// A file that is still being copied changes on; look again after this pause.
const SETTLE: Duration = Duration::from_secs(2);

/// Watches one directory; run once for each.
pub(super) async fn watch(hands: Hands) {
    for directory in hands.config.preload.clone() {
        super::spawn(watch_one(hands.clone(), directory));
    }
}

async fn watch_one(hands: Hands, directory: std::path::PathBuf) {
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
        import_new(&hands, &directory).await;
        watch.ensure();
        watch.next(RESCAN).await;
        // Wait for a quiet moment: an archive takes time to be copied.
        while !watch.next(SETTLE).await.is_empty() {}
    }
}

async fn import_new(hands: &Hands, directory: &std::path::Path) {
    let (images, folder) = (hands.images.clone(), directory.to_owned());
    let candidates = smol::unblock(move || preload::scan(&images, &[folder])).await;
    for candidate in candidates {
        tracing::info!("importing `{}`", candidate.path.display());
        let store = hands.config.layout.image_store();
        let options = image::ImportOptions {
            name: None,
            preloaded: Some(candidate.clone()),
        };
        match image::import(&store, &candidate.path, options, |_| {}).await {
            Ok(imported) => {
                for image in imported {
                    tracing::info!("imported {}", image.names.join(", "));
                }
                let _ = hands.inputs.send(Input::Event(Event::ImagesChanged)).await;
            }
            Err(error) => {
                tracing::warn!(
                    "could not import `{}`: {}, ignoring it",
                    candidate.path.display(),
                    crate::chain(&error)
                );
            }
        }
    }
}
