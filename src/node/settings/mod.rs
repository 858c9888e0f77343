//! The settings of the running agent, and their reload. Settings that can change while it runs do so at once,
//! without effect on pods; the rest is reported. Invalid files change nothing, not even at an agent start: it then
//! uses the last valid settings.

mod watch;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Node;
use super::capacity::Shares;
use crate::config::{self, ConfigError, Effective, Files, Flag, FlagValue};
use crate::layout::last_settings;
use crate::plan::resize::Capacity;
use crate::plan::{self, Event, NodeFact};
use crate::spec::{PageSize, Reason};
use crate::sys::file::{self, Durability};
use crate::sys::meminfo;
use crate::types::{Gather, Swapping};

pub(super) use watch::watch;

/// Files by name with their contents.
pub(super) type Texts = Vec<(PathBuf, String)>;

/// The planner's part of the settings and of the machine.
pub(super) fn for_plan(
    settings: &config::Settings,
    shares: &Shares,
    config: &config::Config,
) -> plan::Settings {
    let share = |name: &str| shares.allocatable.get(name).copied().unwrap_or(0);
    let amounts = shares.allocatable.iter();
    let huge_pages =
        amounts.filter_map(|(name, amount)| Some((PageSize::of_resource(name)?, *amount)));
    let mode = match settings.reduced_restart_decay {
        true => plan::Settings::reduced(),
        false => plan::Settings::default(),
    };
    plan::Settings {
        max_restart_period_ms: settings.max_container_restart_period_ms,
        // As shown as the node's allocatable.
        capacity: Some(Capacity {
            cpu_milli: share("cpu"),
            memory_bytes: share("memory"),
            storage_bytes: share("ephemeral-storage"),
            pods: share("pods"),
            huge_pages: huge_pages.gather(),
        }),
        swap: match meminfo::now("SwapTotal") {
            0 => Swapping::Off,
            _ => config.swap,
        },
        ..mode
    }
}

/// The agent's settings, their sources, and the result of the last reload.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) files: Files,
    pub(super) flags: Vec<Flag>,
    /// The files of the settings in force.
    pub(super) texts: Texts,
    /// The settings in force.
    pub(super) effective: Effective,
    /// The files were invalid at the agent's start: these are the last valid settings.
    pub(super) stale: bool,
    /// What will change at the next start: name, value and origin.
    pub(super) pending: Vec<(String, String)>,
    /// Why the current files are not in force.
    pub(super) problem: Option<String>,
}

/// The last valid settings, kept on disk: a typo must not keep a node from starting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastGood {
    /// The main file, whether it exists or not.
    file: PathBuf,
    texts: Texts,
}

impl Sources {
    /// Blocking. Reads the files at the start; if they are invalid, the last valid settings.
    pub(super) fn read(files: Files, flags: Vec<Flag>) -> Result<Self, ConfigError> {
        let read = files.read().and_then(|texts| {
            let effective = Effective::build(&texts, &flags)?;
            Ok((texts, effective))
        });
        let ((texts, effective), stale) = match read {
            Ok(read) => (read, false),
            Err(error) => match last_good(&files, &flags) {
                Some(before) => (before, true),
                None => return Err(error),
            },
        };
        Ok(Self {
            files,
            flags,
            texts,
            effective,
            stale,
            pending: Vec::new(),
            problem: None,
        })
    }

    /// Blocking. Saves valid settings for a later start with invalid files. The root directory exists.
    pub(super) fn remember(&self) {
        let good = LastGood {
            file: self.files.file.clone(),
            texts: self.texts.clone(),
        };
        remember(&last_good_file(&self.flags), &good);
    }

    /// `/configz`.
    pub(super) fn show(&self) -> Value {
        let mut shown = config::as_json(&self.effective);
        let pending = self.pending.iter();
        let pending = pending.map(|(path, then)| (path.clone(), then.clone().into()));
        shown["coracle"]["pending"] = Value::Object(pending.gather());
        shown["coracle"]["problem"] = json!(self.problem);
        shown
    }
}

/// Known before any settings are: below the root directory that the flags name, or the default one.
fn last_good_file(flags: &[Flag]) -> PathBuf {
    let root = flags.iter().find(|flag| flag.field == "coracle.rootDir");
    let root = root.and_then(|flag| match &flag.value {
        FlagValue::Text(text) => Some(text.as_str()),
        FlagValue::Texts(_) | FlagValue::Pairs(_) | FlagValue::Number(_) | FlagValue::On => None,
    });
    last_settings(Path::new(root.unwrap_or("/var/lib/coracle")))
}

/// The last valid settings, if they came from the same files.
fn last_good(files: &Files, flags: &[Flag]) -> Option<(Texts, Effective)> {
    let bytes = file::read_record(last_good_file(flags)).ok()?;
    let good: LastGood = serde_json::from_slice(&bytes).ok()?;
    if good.file != files.file {
        return None;
    }
    let effective = Effective::build(&good.texts, flags).ok()?;
    Some((good.texts, effective))
}

fn remember(path: &Path, good: &LastGood) {
    let bytes = serde_json::to_vec(good).expect("plain data");
    // If the settings name another root directory, this one may be missing: then there is no fallback for an
    // invalid file.
    let there = path.parent().is_some_and(Path::is_dir);
    if !there || file::read_record(path).is_ok_and(|old| old == bytes) {
        return;
    }
    if let Err(error) = file::replace(path, &bytes, 0o600, Durability::PowerCut) {
        tracing::warn!("could not write `{}`: {error}, going on", path.display());
    }
}

impl Node {
    /// Applies what can change, and reports that and what cannot. `requested`: on request (SIGHUP).
    pub(super) fn settings_read(
        &mut self,
        read: Result<Box<(Texts, Effective)>, ConfigError>,
        requested: bool,
    ) {
        let read = match read {
            Ok(read) => {
                let (texts, effective) = *read;
                self.keep_settings(texts);
                effective
            }
            Err(error) => {
                let problem = crate::chain(&error);
                if self.sources.problem.as_ref() != Some(&problem) {
                    tracing::error!("{problem}\nthe settings stay as they are");
                    let message = format!("{problem}; the settings stay as they are");
                    self.shown
                        .node_event(Reason::InvalidConfiguration, &message);
                }
                self.sources.problem = Some(problem);
                return;
            }
        };
        let mended = self.sources.problem.take().is_some();
        if let Some(warning) = &read.warning
            && (requested || self.sources.effective.warning.as_ref() != Some(warning))
        {
            tracing::warn!("{warning}");
        }
        let reloaded = config::reload(&self.sources.effective, read);
        for (path, then) in &reloaded.pending {
            let known = self.sources.pending.iter();
            if requested || !known.into_iter().any(|(p, t)| (p, t) == (path, then)) {
                let message = format!("{path}: {then} takes effect at the next start");
                tracing::warn!("{message}");
                self.shown
                    .node_event(Reason::ConfigurationPending, &message);
            }
        }
        self.sources.pending = reloaded.pending;
        let settings = reloaded.effective.settings.clone();
        self.sources.effective = reloaded.effective;
        if !reloaded.changed.is_empty() {
            let message = reloaded.changed.join(", ");
            tracing::info!("settings have changed: {message}");
            self.shown
                .node_event(Reason::ConfigurationChanged, &message);
        } else if requested || mended {
            tracing::info!("the settings were read again, nothing has changed");
        }
        let for_plan = for_plan(
            &settings,
            &self.object.share_out(&settings),
            &self.tools.config,
        );
        let before = self.tools.sandboxes.settings.now();
        let other_images = before.image_verification != settings.image_verification;
        self.tools.sandboxes.settings.replace(settings);
        if other_images {
            // Pods that were refused an image may have it by now.
            self.record(&Event::Node(NodeFact::ImagesChanged(None)));
        }
        self.show_node();
        self.shutdown.settings_changed();
        self.watch_thresholds();
        if for_plan != self.state.settings {
            self.record(&Event::Node(NodeFact::SettingsChanged(for_plan)));
        }
    }

    /// Beside the loop: a disk may be slow.
    fn keep_settings(&mut self, texts: Texts) {
        let path = last_good_file(&self.sources.flags);
        let good = LastGood {
            file: self.sources.files.file.clone(),
            texts: texts.clone(),
        };
        self.sources.texts = texts;
        super::spawn(super::unblock(move || remember(&path, &good)));
    }
}
