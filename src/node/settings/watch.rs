//! The reload of settings on SIGHUP and when their files change.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use smol::channel::{Receiver, Sender};

use super::Texts;
use crate::config::{Effective, Files, Flag};
use crate::node::watch::Watch;
use crate::node::{Input, resolver, unblock};
use crate::sys::clock;

/// A change without a close or rename counts as complete when nothing more has happened for this long.
const SETTLE: Duration = Duration::from_millis(500);

/// The longest wait after a change, however much else happens in the folder.
const AT_LAST: Duration = Duration::from_secs(5);

/// The most folders that are watched for targets of linked drop-ins: each takes one of the user's inotify instances.
const MAX_LINKED: usize = 8;

/// The interval of checks while a folder to watch is missing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Runs for ever: sends the settings to the loop whenever they differ from the `known` ones. `asked`: SIGHUP.
pub(in crate::node) async fn watch(
    (files, flags): (Files, Vec<Flag>),
    mut known: Option<Texts>,
    asked: Receiver<()>,
    inputs: Sender<Input>,
) {
    let mut requested = false;
    loop {
        let folders = folders(&files);
        let mut watches: Vec<Watch> = folders.iter().map(|folder| Watch::new(folder)).collect();
        // As long as the same folders count.
        while self::folders(&files) == folders {
            let of = files.clone();
            let texts = unblock(move || of.read()).await;
            let changed = texts
                .as_ref()
                .map_or(true, |texts| Some(texts) != known.as_ref());
            if requested || changed {
                known = texts.as_ref().ok().cloned();
                let built = texts.and_then(|texts| {
                    let effective = Effective::build(&texts, &flags)?;
                    Ok(Box::new((texts, effective)))
                });
                let _ = inputs
                    .send(Input::Settings {
                        read: built,
                        requested,
                    })
                    .await;
            }
            requested = {
                let signal = async { asked.recv().await.is_ok() };
                let change = async {
                    any_change(&mut watches, &folders, &files).await;
                    false
                };
                smol::future::or(signal, change).await
            };
            watches.iter_mut().for_each(Watch::ensure);
        }
    }
}

/// The folders in which changes of the files show, including those of links' targets.
fn folders(files: &Files) -> Vec<PathBuf> {
    let mut folders = resolver::folders(&files.file);
    let Some(dir) = &files.dir else {
        return folders;
    };
    folders.push(dir.clone());
    // Only files are read: a link to `/dev/null` masks a drop-in.
    let drop_ins = files.drop_ins().unwrap_or_default().into_iter();
    let linked = drop_ins.filter_map(|path| std::fs::read_link(path).ok());
    let targets = linked.filter_map(|target| dir.join(target).parent().map(Path::to_owned));
    let others: BTreeSet<PathBuf> = targets.filter(|folder| !folders.contains(folder)).collect();
    folders.extend(others.into_iter().take(MAX_LINKED));
    folders
}

/// Waits until a settings file may have changed and is no longer being written.
async fn any_change(watches: &mut [Watch], folders: &[PathBuf], files: &Files) {
    let patience = match blind(watches, folders) {
        false => Duration::MAX,
        true => LOOK_AGAIN,
    };
    let closed = next(watches, patience).await;
    if !blind(watches, folders) && !closed.iter().any(|path| concerns(path, files)) {
        settled(watches, files).await;
    }
}

/// Waits until a settings file is closed, or nothing more happens: editors move the old file away before they write the
/// new one, and links and removals close nothing.
async fn settled(watches: &mut [Watch], files: &Files) {
    let first = clock::now();
    loop {
        let begin = clock::now();
        let left = AT_LAST.saturating_sub(begin.duration_since(first));
        let patience = SETTLE.min(left);
        let more = next(watches, patience).await;
        if clock::now().duration_since(begin) >= patience
            || more.iter().any(|path| concerns(path, files))
        {
            return;
        }
    }
}

/// Whether a folder is not watched, and its parent is not watched either.
fn blind(watches: &[Watch], folders: &[PathBuf]) -> bool {
    let all = || watches.iter().zip(folders);
    let watched = |folder: &Path| all().any(|(w, f)| w.is_watching() && f == folder);
    all().any(|(watch, folder)| !watch.is_watching() && !folder.parent().is_some_and(watched))
}

fn concerns(path: &Path, files: &Files) -> bool {
    path == files.file || path.parent() == files.dir.as_deref()
}

/// The first change in any of the folders, at most after `patience`; without folders none comes.
async fn next(watches: &mut [Watch], patience: Duration) -> BTreeSet<PathBuf> {
    let waits = watches
        .iter_mut()
        .map(|watch| Box::pin(watch.next(patience)));
    let mut waits: Vec<_> = waits.collect();
    std::future::poll_fn(|context| {
        for wait in &mut waits {
            if let Poll::Ready(closed) = wait.as_mut().poll(context) {
                return Poll::Ready(closed);
            }
        }
        Poll::Pending
    })
    .await
}
