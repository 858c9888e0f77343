//! A check of the paths that pods use as volumes (`hostPath`, volumes of claims), before their start takes a turn: a file
//! server that does not answer delays its own pods only.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use smol::channel::{Receiver, bounded};

use super::unblock::unblock_host_path;
use crate::effects::volume::{VolumeError, VolumeFailure};

/// How long a path may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The checks under way.
#[derive(Debug, Clone, Default)]
pub(super) struct HostPaths(Arc<Mutex<BTreeMap<PathBuf, Look>>>);

/// Closed when the path has answered.
type Look = Receiver<()>;

impl HostPaths {
    /// Waits until all paths have answered; each comes with the name of its volume. A missing path is an answer, too.
    ///
    /// # Errors
    ///
    /// The first path that does not answer in time. Its check goes on, and later calls wait for the same one.
    pub(super) async fn answer(&self, paths: Vec<(String, PathBuf)>) -> Result<(), VolumeFailure> {
        let looks: Vec<_> = paths.iter().map(|(_, path)| self.look(path)).collect();
        let time_is_up = async {
            smol::Timer::after(PATIENCE).await;
        };
        let all = async {
            for look in &looks {
                // Nothing is ever sent.
                let _ = look.recv().await;
            }
        };
        smol::future::or(all, time_is_up).await;
        let late = paths.into_iter().zip(&looks);
        match late.into_iter().find(|(_, look)| !look.is_closed()) {
            None => Ok(()),
            Some(((volume, path), _)) => Err(VolumeFailure {
                volume,
                source: VolumeError::NoAnswer { path },
            }),
        }
    }

    fn look(&self, path: &Path) -> Look {
        let mut under_way = self.lock();
        if let Some(look) = under_way.get(path) {
            return look.clone();
        }
        let (end, look) = bounded(1);
        under_way.insert(path.to_owned(), look.clone());
        let (path, paths) = (path.to_owned(), self.clone());
        super::spawn(async move {
            let of = path.clone();
            // What it is does not matter here.
            unblock_host_path(move || drop(std::fs::metadata(of))).await;
            paths.lock().remove(&path);
            drop(end);
        });
        look
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Look>> {
        self.0.lock().expect("no panic holds this lock")
    }
}
