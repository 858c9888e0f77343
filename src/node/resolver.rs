//! The watch on the node's `resolv.conf`: it reports changes (a DHCP lease, a link that came up), so that pods use
//! the node's resolvers. The file is often a symbolic link, so both its folder and that of its target are watched.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::watch::Watch;
use super::{Input, Node};
use crate::config::Config;
use crate::plan::state::Sandbox;
use crate::sys::file;

/// The interval of checks while a folder to watch is missing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Runs for ever.
pub(super) async fn watch(config: Arc<Config>, inputs: smol::channel::Sender<Input>) {
    let path = &config.resolv_conf;
    if path.as_os_str().is_empty() {
        return;
    }
    let mut known = file::read_record(path).ok();
    loop {
        let folders = folders(path);
        let mut watches: Vec<Watch> = folders.iter().map(|f| Watch::new(f)).collect();
        // As long as the same folders count.
        while self::folders(path) == folders {
            let now = file::read_record(path).ok();
            if now != known && now.is_some() {
                known = now;
                let _ = inputs.send(Input::ResolverChanged).await;
            }
            let all_there = watches.iter().all(Watch::is_watching);
            let patience = if all_there { Duration::MAX } else { LOOK_AGAIN };
            changed(&mut watches, patience).await;
            watches.iter_mut().for_each(Watch::ensure);
        }
    }
}

async fn changed(watches: &mut [Watch], patience: Duration) {
    match watches {
        [first, second] => {
            smol::future::or(first.next(patience), second.next(patience)).await;
        }
        [only] => {
            only.next(patience).await;
        }
        _ => {}
    }
}

/// The folders whose changes may concern the file: one, or two if it is a link into another.
pub(super) fn folders(path: &Path) -> Vec<PathBuf> {
    let folder = |path: &Path| path.parent().map(Path::to_path_buf).unwrap_or_default();
    let mut folders = vec![folder(path)];
    if let Ok(target) = fs::read_link(path) {
        let target = folder(&folders[0].join(target));
        if target != folders[0] {
            folders.push(target);
        }
    }
    folders
}

impl Node {
    /// Updates the resolvers of running pods; starting pods read them anyway.
    pub(super) fn resolver_changed(&self) {
        let running: Vec<_> = self
            .state
            .pods
            .values()
            .filter(|pod| matches!(pod.sandbox, Sandbox::Ready { .. }))
            .map(|pod| pod.spec.clone())
            .collect();
        let sandboxes = self.tools.sandboxes.clone();
        super::spawn(super::unblock_bridge(move || {
            for spec in running {
                if let Err(error) = sandboxes.write_resolv_conf(&spec) {
                    tracing::warn!(pod = %spec.key, "{}, going on", crate::chain(&error));
                }
            }
        }));
    }
}
