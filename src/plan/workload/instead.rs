//! What is in force instead of what a file says: why, what people read about it, and how clients ask for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::revisions::{Histories, History, Revision, Subject};
use crate::spec::rollback::restarted;
use crate::types::Gather;

/// Why something else is in force than a file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Its pods were not ready in time.
    RolledBack,
    /// A client asked for a former revision.
    Undone,
    /// A client restarted the pods.
    Restarted,
    /// The rollout was interrupted, and the pods of the good template come back first (`resume.rs`). Never on disk.
    Resumed,
}

/// What is in force instead of what a file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instead {
    /// Why.
    pub cause: Cause,
    /// The edition of the file that it takes the place of; of a restart and what is resumed, the file's template.
    pub of: Arc<str>,
    /// The document in force.
    pub text: Arc<str>,
    /// Why, for people: what is said of the revision `replaced`, else all of it. `None`: it says the same.
    pub note: Option<String>,
    /// The hash of the revision that it took the place of. Records of former versions have none.
    #[serde(default)]
    pub replaced: Option<Arc<str>>,
    /// The hash of the revision that was in force when this was decided.
    #[serde(default)]
    pub after: Option<Arc<str>>,
}

/// What is in force instead of what files say, by document. Their notes are whole sentences.
pub type Overrides = BTreeMap<Subject, Instead>;

impl Histories {
    /// What is in force instead of what files say.
    pub fn overrides(&self) -> Overrides {
        let all = self.all.iter();
        let instead = all.filter_map(|(subject, history)| {
            let instead = Instead {
                note: history.note(),
                replaced: None,
                ..history.instead.as_deref()?.clone()
            };
            Some((subject, instead))
        });
        let resumed = self.resumed.iter().filter(|(_, resumed)| !resumed.over);
        let resumed = resumed.map(|(subject, resumed)| (subject, resumed.instead.clone()));
        // What comes back for a while takes the place of what is to be in force after that.
        let all = instead.chain(resumed);
        all.map(|(subject, instead)| (subject.clone(), instead))
            .gather()
    }

    /// The revision in force has failed: the good one comes back. Returns the sentence for people; `None`: there is none, or
    /// it is done.
    pub(super) fn fail(&mut self, subject: &Subject, why: &str) -> Option<String> {
        let history = self.all.get_mut(subject)?;
        let done = |instead: &Instead| instead.cause == Cause::RolledBack;
        if history.instead.as_deref().is_some_and(done) || history.is_pending() {
            return None;
        }
        let failed = history.revisions.last()?.number;
        let good = history.good.clone()?;
        let back = history.revisions.iter().find(|r| r.hash == good)?;
        let number = back.number;
        if number == failed {
            return None;
        }
        let said = format!("was {why}");
        let instead = history.instead_of(back, Cause::RolledBack, &said)?;
        history.instead = instead.map(Box::new);
        history.trial = None;
        self.changes += 1;
        let next = failed + 1;
        Some(format!(
            "revision {failed} {said}; revision {number} is brought back as revision {next}"
        ))
    }

    /// Puts a former revision in force, by default the one before. Returns its number, or why that cannot be.
    pub fn undo(
        &self,
        subject: &Subject,
        to: Option<u64>,
    ) -> Result<(u64, Option<Instead>), String> {
        let none = || format!("no rollout history found for {subject}");
        let history = self.all.get(subject).ok_or_else(none)?;
        let (last, before) = history.revisions.split_last().ok_or_else(none)?;
        let found = match to.filter(|number| *number > 0) {
            Some(number) if number == last.number => {
                return Err(format!(
                    "skipped rollback (current template already matches revision {number})"
                ));
            }
            Some(number) => before.iter().find(|r| r.number == number),
            None => before.last(),
        };
        let Some(found) = found else {
            return Err(match to {
                Some(number) if number > 0 => {
                    format!("unable to find specified revision {number} in history")
                }
                _ => none(),
            });
        };
        let instead = history.instead_of(found, Cause::Undone, "was undone by a client");
        let instead =
            instead.ok_or_else(|| format!("revision {} was too large to be kept", found.number))?;
        Ok((found.number, instead))
    }

    /// What replaces the pods of a document by others of the same template, since this time.
    pub fn restart(&self, subject: &Subject, at: &str) -> Result<Option<Instead>, String> {
        if let Some(why) = self.comes_back(subject) {
            return Err(why);
        }
        let history = self.of(subject);
        let last = history.and_then(|history| history.revisions.last());
        let before = last.and_then(|last| Some(last.text.as_ref()?.text()));
        let text = before.as_ref().and_then(|text| restarted(text, at));
        let (Some(history), Some(before), Some(text)) = (history, before, text) else {
            return Err(format!(
                "the template of {subject} was too large to be kept"
            ));
        };
        let instead = history.instead.as_deref().cloned();
        if same(&before, &text) {
            // It was restarted in this second already.
            return Ok(instead);
        }
        let after = last.map(|last| last.hash.clone());
        Ok(Some(match instead {
            // What is in force stays so, and says why.
            Some(instead) => Instead {
                text: text.into(),
                after,
                ..instead
            },
            None => Instead {
                cause: Cause::Restarted,
                of: history.written.clone(),
                text: text.into(),
                note: None,
                replaced: None,
                after,
            },
        }))
    }

    /// A client has put this in force; `None`: what the file says.
    pub(in crate::plan) fn put(&mut self, subject: &Subject, instead: Option<&Instead>) {
        if let Some(history) = self.all.get_mut(subject) {
            history.instead = instead.cloned().map(Box::new);
            self.resumed.remove(subject);
            self.changes += 1;
        }
    }
}

impl History {
    /// Something else is to be in force, and is not yet: what was before is, or the file's own content. It may also be the
    /// file's own that is to be.
    pub(super) fn is_pending(&self) -> bool {
        let (last, instead) = (self.revisions.last(), self.instead.as_deref());
        last.is_some_and(|last| match instead {
            None => last.hash != self.written,
            Some(instead) => {
                last.hash == self.written || instead.after.as_ref() == Some(&last.hash)
            }
        })
    }

    /// What puts this revision in force: nothing, if the file has it. `None`: its text is not kept.
    fn instead_of(&self, revision: &Revision, cause: Cause, said: &str) -> Option<Option<Instead>> {
        if revision.hash == self.written {
            return Some(None);
        }
        let last = self.revisions.last().map(|last| last.hash.clone());
        Some(Some(Instead {
            cause,
            of: self.edition.clone(),
            text: revision.text.as_ref()?.text().into(),
            note: Some(said.to_owned()),
            after: last.clone(),
            replaced: last,
        }))
    }

    /// Why something else is in force than the file says, for people, in the numbers that revisions have now.
    pub fn note(&self) -> Option<String> {
        let instead = self.instead.as_deref()?;
        let said = instead.note.as_deref()?;
        let Some(hash) = &instead.replaced else {
            return Some(said.to_owned());
        };
        let replaced = match self.revisions.iter().find(|r| r.hash == *hash) {
            Some(revision) => format!("revision {}", revision.number),
            None if *hash == self.written => "what the document says".to_owned(),
            None => "a revision that is not kept".to_owned(),
        };
        // What comes into force gets the next number.
        let number = self.revisions.last()?.number + u64::from(self.is_pending());
        Some(format!(
            "{replaced} {said}; revision {number} is in force until the document changes"
        ))
    }
}

/// Whether two documents differ in their form at most.
fn same(one: &str, other: &str) -> bool {
    let read = |text| serde_json::from_str::<Value>(text).ok();
    read(one) == read(other)
}
