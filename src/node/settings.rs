//! Which settings does this agent run with, and what becomes of others? What can change does so at once, without any pod
//! noticing; the rest is named. Files that are broken change nothing, not even when an agent starts: it runs with the
//! settings that were in force last.

mod watch;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::capacity::Shares;
use super::{Node, facts, publish};
use crate::api::EventType;
use crate::config::{self, ConfigError, Effective, Files, Flag, FlagValue};
use crate::layout::last_settings;
use crate::plan::resize::{Capacity, Swapping};
use crate::plan::{self, Event};
use crate::spec::{PageSize, PodUid};
use crate::sys::file::{self, Durability};

pub(super) use watch::watch;

/// Files by name with what is written in them.
pub(super) type Texts = Vec<(PathBuf, String)>;

/// What the planner needs of the settings, and of the machine.
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
            huge_pages: huge_pages.collect(),
        }),
        swap: match config.swap {
            _ if facts::memory_info("SwapTotal") == 0 => Swapping::Nobody,
            config::Swap::NoSwap => Swapping::Nobody,
            config::Swap::LimitedSwap => Swapping::Burstable,
            config::Swap::UnlimitedSwap => Swapping::Everybody,
        },
        ..mode
    }
}

/// The settings of this agent, where they come from, and what became of the last try to read them again.
#[derive(Debug)]
pub(super) struct Sources {
    pub(super) files: Files,
    pub(super) flags: Vec<Flag>,
    /// What the settings in force were read from.
    pub(super) texts: Texts,
    /// What is in force.
    pub(super) effective: Effective,
    /// The files could not be used when the agent started: this is what was in force last.
    pub(super) stale: bool,
    /// What will be others after the next start: name, value and origin.
    pub(super) pending: Vec<(String, String)>,
    /// Why the files as they are now are not in force.
    pub(super) problem: Option<String>,
}

/// What was valid last, kept on disk: a typo must not keep a node from coming up again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastGood {
    /// The main file, there or not.
    file: PathBuf,
    texts: Texts,
}

impl Sources {
    /// Blocking. Reads the files for the first time; if they are of no use, what was in force last.
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

    /// Blocking. Keeps what is valid for an agent that finds files that are not. The root directory is there.
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
        shown["coracle"]["pending"] = Value::Object(pending.collect());
        shown["coracle"]["problem"] = json!(self.problem);
        shown
    }
}

/// Known before any settings are: below the root directory that the flags name, or the usual one.
fn last_good_file(flags: &[Flag]) -> PathBuf {
    let root = flags.iter().find(|flag| flag.field == "coracle.rootDir");
    let root = root.and_then(|flag| match &flag.value {
        FlagValue::Text(text) => Some(text.as_str()),
        FlagValue::Texts(_) | FlagValue::Pairs(_) | FlagValue::Number(_) | FlagValue::On => None,
    });
    last_settings(Path::new(root.unwrap_or("/var/lib/coracle")))
}

/// What was in force last, if it came from the same files.
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
    // With another root directory in the settings this one need not be there: then a broken file is one.
    let there = path.parent().is_some_and(Path::is_dir);
    if !there || file::read_record(path).is_ok_and(|old| old == bytes) {
        return;
    }
    if let Err(error) = file::replace(path, &bytes, 0o600, Durability::PowerCut) {
        tracing::warn!("could not write `{}`: {error}, going on", path.display());
    }
}

impl Node {
    /// Takes over what can change, and tells people of it and of what cannot. `told`: somebody asked for it.
    pub(super) fn settings_read(
        &mut self,
        read: Result<Box<(Texts, Effective)>, ConfigError>,
        told: bool,
        touched: &mut BTreeSet<PodUid>,
    ) {
        let say = |node: &mut Node, type_, reason: &str, message: &str| {
            let name = node.hands.facts.now().name.clone();
            publish::node_event(&mut node.journal, &name, type_, reason, message);
        };
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
        let for_plan = for_plan(
            &settings,
            &self.object.share_out(&settings),
            &self.hands.config,
        );
        self.hands.sandboxes.settings.replace(settings);
        self.show_node();
        self.shutdown.settings_changed();
        self.watch_thresholds(touched);
        if for_plan != self.state.settings {
            self.record(&Event::SettingsChanged(for_plan), touched);
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
