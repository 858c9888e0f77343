//! When are settings read again? On SIGHUP and when their files change. What can change does at once, without any pod
//! noticing; the rest is named. Files that are broken change nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smol::channel::{Receiver, Sender};

use super::watch::Watch;
use super::{Input, Node, publish};
use crate::api::EventType;
use crate::config::{self, ConfigError, Effective, Files, Flag};
use crate::plan::{self, Event};
use crate::spec::PodUid;

/// A change that no close or rename has ended is taken when nothing more has happened for so long.
const SETTLE: Duration = Duration::from_millis(500);

/// How often is looked while a folder that should be watched is not there.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// What the planner needs of the settings.
pub(super) fn for_plan(settings: &config::Settings) -> plan::Settings {
    plan::Settings {
        max_restart_period_ms: settings.max_container_restart_period_ms,
    }
}

/// The settings of this agent, where they come from, and what became of the last try to read them again.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) files: Files,
    pub(super) flags: Vec<Flag>,
    /// What is in force.
    pub(super) effective: Effective,
    /// What will be others after the next start: name, value and origin.
    pub(super) pending: Vec<(String, String)>,
    /// Why the files as they are now are not in force.
    pub(super) problem: Option<String>,
}

impl Sources {
    /// Blocking. Reads the files for the first time.
    pub(super) fn read(files: Files, flags: Vec<Flag>) -> Result<Self, ConfigError> {
        let effective = Effective::build(&files.read()?, &flags)?;
        Ok(Self {
            files,
            flags,
            effective,
            pending: Vec::new(),
            problem: None,
        })
    }

    /// `/configz`.
    pub(super) fn show(&self) -> Value {
        let mut shown = config::as_json(&self.effective);
        let pending = self.pending.iter();
        let pending = pending.map(|(path, then)| (path.clone(), then.clone().into()));
        shown["coracle"]["pending"] = Value::Object(pending.collect());
        shown["coracle"]["problem"] = json!(self.problem);
        shown
    }
}

/// Runs for ever: tells the loop what the files say whenever that may have changed. `asked`: SIGHUP.
pub(super) async fn watch(
    files: Files,
    flags: Vec<Flag>,
    asked: Receiver<()>,
    inputs: Sender<Input>,
) {
    let mut folders: Vec<PathBuf> = super::resolver::folders(&files.file);
    folders.extend(files.dir.clone());
    let watches: Result<Vec<Watch>, _> = folders.iter().map(|f| Watch::new(f)).collect();
    let mut watches = watches.unwrap_or_else(|error| {
        tracing::warn!("could not watch the settings: {error}, they are read again on SIGHUP");
        Vec::new()
    });
    let mut known = files.read().ok();
    loop {
        let told = {
            let signal = async { asked.recv().await.is_ok() };
            let change = async {
                changed(&mut watches, &files).await;
                false
            };
            smol::future::or(signal, change).await
        };
        watches.iter_mut().for_each(Watch::ensure);
        let (files, flags) = (files.clone(), flags.clone());
        let (texts, read) = super::unblock(move || match files.read() {
            Ok(texts) => {
                let read = Effective::build(&texts, &flags);
                (Some(texts), read)
            }
            Err(error) => (None, Err(error)),
        })
        .await;
        if told || texts.is_none() || texts != known {
            known = texts;
            let read = read.map(Box::new);
            let _ = inputs.send(Input::Settings { read, told }).await;
        }
    }
}

/// Waits until a file of settings may be another, and is no longer being written.
async fn changed(watches: &mut [Watch], files: &Files) {
    loop {
        let patience = match watches.iter().all(Watch::is_watching) {
            true => Duration::MAX,
            false => LOOK_AGAIN,
        };
        let closed = any(watches, patience).await;
        if closed.iter().any(|path| concerns(path, files)) {
            return;
        }
        if !watches.iter().all(Watch::is_watching) {
            watches.iter_mut().for_each(Watch::ensure);
            return;
        }
        // Editors move the old file away before they write the new one.
        let begin = Instant::now();
        let more = any(watches, SETTLE).await;
        if begin.elapsed() >= SETTLE || more.iter().any(|path| concerns(path, files)) {
            return;
        }
    }
}

fn concerns(path: &Path, files: &Files) -> bool {
    path == files.file || path.parent() == files.dir.as_deref()
}

async fn any(watches: &mut [Watch], patience: Duration) -> BTreeSet<PathBuf> {
    let waits = watches
        .iter_mut()
        .map(|watch| Box::pin(watch.next(patience)));
    let mut waits: Vec<_> = waits.collect();
    if waits.is_empty() {
        return std::future::pending().await;
    }
    std::future::poll_fn(|context| {
        for wait in &mut waits {
            if let std::task::Poll::Ready(closed) = wait.as_mut().poll(context) {
                return std::task::Poll::Ready(closed);
            }
        }
        std::task::Poll::Pending
    })
    .await
}

impl Node {
    /// Takes over what can change, and tells people of it and of what cannot. `told`: somebody asked for it.
    pub(super) fn settings_read(
        &mut self,
        read: Result<Box<Effective>, ConfigError>,
        told: bool,
        touched: &mut BTreeSet<PodUid>,
    ) {
        let say = |node: &mut Node, type_, reason: &str, message: &str| {
            let name = node.hands.facts.now().name.clone();
            publish::node_event(&mut node.journal, &name, type_, reason, message);
        };
        let read = match read {
            Ok(read) => *read,
            Err(error) => {
                let problem = crate::chain(&error);
                if self.sources.problem.as_ref() != Some(&problem) {
                    tracing::error!("{problem}\nthe settings stay as they are");
                    let message = format!("{problem}; the settings stay as they are");
                    say(self, EventType::Warning, "InvalidConfiguration", &message);
                }
                self.sources.problem = Some(problem);
                return;
            }
        };
        let mended = self.sources.problem.take().is_some();
        if let Some(warning) = &read.warning
            && (told || self.sources.effective.warning.as_ref() != Some(warning))
        {
            tracing::warn!("{warning}");
        }
        let reloaded = config::reload(&self.sources.effective, read);
        for (path, then) in &reloaded.pending {
            let known = self.sources.pending.iter();
            if told || !known.into_iter().any(|(p, t)| (p, t) == (path, then)) {
                let message = format!("{path}: {then} takes effect at the next start");
                tracing::warn!("{message}");
                say(self, EventType::Warning, "ConfigurationPending", &message);
            }
        }
        self.sources.pending = reloaded.pending;
        let settings = reloaded.effective.settings.clone();
        self.sources.effective = reloaded.effective;
        if !reloaded.changed.is_empty() {
            let message = reloaded.changed.join(", ");
            tracing::info!("settings have changed: {message}");
            say(self, EventType::Normal, "ConfigurationChanged", &message);
        } else if told || mended {
            tracing::info!("the settings were read again, nothing has changed");
        }
        let for_plan = for_plan(&settings);
        self.hands.sandboxes.settings.replace(settings);
        if for_plan != self.state.settings {
            self.record(&Event::SettingsChanged(for_plan), touched);
        }
    }
}
