//! The watcher of a trial: the former program, started by `coracle-upgrade.service`, or by `coracle upgrade` where there
//! is no systemd. It puts the new program in place, judges it, and goes back. It may be killed at any instruction, and
//! the power may fail there: the next watcher reads the record and goes on.
//!
//! ```text
//! Install ── rename PROGRAM.new ──► Trial ── judged good ──────────────► ended, confirmed
//!    │ the programs are not             │
//!    │ as recorded                      └ judged bad ► Back ── PROGRAM.former ► ended, gone back
//!    └────────────────────────────────────────────────► ended, nothing changed
//! ```

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use super::super::client::Client;
use super::super::error::{CliError, Result};
use super::host::Host;
use super::keep;
use super::record::{
    Ended, Phase, Record, State, digest, failed, former_of, leftovers, new_of, remove, same_file,
    sync_folder,
};
use crate::layout::Layout;
use crate::sys::file::{self, Durability};
use crate::sys::{boot_id, clock};
use crate::types::upgrade::{SeenAgent, Trial, Verdict};

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);

/// When a restart that had no effect is asked for again.
const AGAIN_MS: u64 = 20_000;

/// How much of the trial's time may be lost with a watcher.
const SAVE_MS: u64 = 15_000;

/// How long the former agent is awaited, before the trial ends anyway.
const BACK_MS: u64 = 120_000;

/// `coracle upgrade --watch`.
pub(super) fn run(state: &State) -> Result<ExitCode> {
    // The unit starts it with each agent. There may be no folder yet, nor a place for one.
    if state.record()?.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    state.make()?;
    let Some(_lock) = state.lock()? else {
        return Ok(ExitCode::SUCCESS);
    };
    let Some(mut record) = state.record()? else {
        return Ok(ExitCode::SUCCESS);
    };
    let client = Client {
        socket: record.socket.clone(),
    };
    let layout = Layout {
        root: record.root.clone(),
        run_dir: record.run_dir.clone(),
        ..Layout::default()
    };
    let host = Host::new(client, layout, record.program.clone());
    let mut watcher = Watcher { state, host };
    // On a full disk the record there may be of an earlier phase; the one in memory counts.
    while state.record()?.is_some() {
        match record.phase {
            Phase::Install => watcher.install(&mut record)?,
            Phase::Trial => watcher.trial(&mut record)?,
            Phase::Back => watcher.back(&mut record)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Watcher<'a> {
    state: &'a State,
    host: Host,
}

impl Watcher<'_> {
    /// Puts the new program in place.
    fn install(&mut self, record: &mut Record) -> Result<()> {
        let (program, new) = (record.program.clone(), new_of(&record.program));
        let now = digest(&program);
        if now.as_ref() != Some(&record.new.digest) {
            let whole = digest(&new).as_ref() == Some(&record.new.digest);
            if now.as_ref() != Some(&record.former.digest) || !whole {
                let why = "the programs changed before it began".to_owned();
                return self.end(record, false, why);
            }
            if record.new.state_format != record.former.state_format {
                let kept = self.state.kept();
                if let Err(error) = keep::aside(&self.host.layout, &kept, &boot_id::read()) {
                    let why = format!("could not set the node's records aside: {error}");
                    return self.end(record, false, why);
                }
            }
            new_boot(record);
            record.old_pid = self.host.agent_pid();
            record.last_start = self.host.started().mark;
            if let Err(error) = self.state.save(record) {
                let why = format!("could not record the trial: {}", crate::chain(&error));
                return self.end(record, false, why);
            }
            let renamed = fs::rename(&new, &program).and_then(|()| sync_folder(&program));
            if let Err(error) = renamed {
                // It may be replaced all the same.
                record.phase = Phase::Back;
                record.why = format!("could not replace `{}`: {error}", program.display());
                self.note(record);
                return Ok(());
            }
        }
        record.phase = Phase::Trial;
        self.note(record);
        Ok(())
    }

    /// Writes down how far the trial is. On a full disk the trial goes on without: the next watcher begins with the last
    /// record and comes to the same verdict.
    fn note(&self, record: &Record) {
        if let Err(error) = self.state.save(record) {
            eprintln!("{}, ignoring", crate::chain(&error));
        }
    }

    /// Watches the new agent until it is judged.
    fn trial(&mut self, record: &mut Record) -> Result<()> {
        if new_boot(record) {
            self.note(record);
        }
        let mut asked_ms = None;
        let (mut looked_ms, mut saved_ms) = (clock::boot_ms(), record.spent_ms);
        // Without its record it is over: the program was removed, or one of a package has taken its place.
        while self.state.record()?.is_some() {
            let started = self.host.started();
            if started.mark != record.last_start && started.mark != 0 {
                record.last_start = started.mark;
                record.starts += 1;
                self.note(record);
            }
            let agent = match (started.goes_down, started.stopped, record.starts) {
                (true, ..) | (_, true, 1..) => SeenAgent::Stopped,
                _ => self.host.look(record.old_pid),
            };
            let is_old = record.starts == 0 || self.host.is_former();
            if is_old && agent != SeenAgent::Stopped {
                self.restart(record.kill, &mut asked_ms);
            }
            let now = clock::boot_ms();
            if agent != SeenAgent::Stopped {
                record.spent_ms += now.saturating_sub(looked_ms);
            }
            looked_ms = now;
            let trial = Trial {
                expected: &record.expected,
                within_ms: record.within_ms,
                spent_ms: record.spent_ms,
                starts: record.starts,
                boots: record.boots,
                asked_back: self.state.go_back().exists(),
            };
            match trial.judge(&agent) {
                Verdict::Confirm => {
                    let why = format!("{} pods are as before", record.expected.len());
                    return self.end(record, true, why);
                }
                Verdict::GoBack(why) => {
                    record.phase = Phase::Back;
                    record.why = why;
                    self.note(record);
                    return Ok(());
                }
                Verdict::GoOn(waiting) => self.say(&waiting),
            }
            if record.spent_ms - saved_ms > SAVE_MS {
                saved_ms = record.spent_ms;
                self.note(record);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Puts the former program back and has the agent run it.
    fn back(&mut self, record: &mut Record) -> Result<()> {
        let program = &record.program;
        self.say(&format!("goes back: {}", record.why));
        let former = former_of(program);
        if digest(program).as_ref() != Some(&record.former.digest) {
            if digest(&former).as_ref() != Some(&record.former.digest) {
                let why = format!(
                    "{}; could not go back: `{}` is not the former program any more",
                    record.why,
                    former.display()
                );
                return self.end(record, false, why);
            }
            same_file(&former, program).map_err(|e| failed("put back", program, &e))?;
        }
        if keep::is_there(&self.state.kept()) && !self.host.runs_program() {
            // It must not write its records again.
            if let Err(error) = self.host.stop(record.kill) {
                eprintln!("{error}");
            }
            self.records_back(record)?;
        }
        let begun = clock::boot_ms();
        let mut asked_ms = None;
        while !self.host.runs_program() {
            // An init may have started the new agent once more meanwhile.
            if keep::is_newer(&self.host.layout, record.former.state_format) {
                self.records_back(record)?;
            }
            self.restart(record.kill, &mut asked_ms);
            if clock::boot_ms() - begun > BACK_MS {
                record.why += "; the former agent does not answer yet";
                break;
            }
            std::thread::sleep(PAUSE);
        }
        self.end(record, false, record.why.clone())
    }

    fn records_back(&self, record: &Record) -> Result<()> {
        let (layout, kept) = (&self.host.layout, self.state.kept());
        keep::back(layout, &kept, &boot_id::read(), record.former.state_format)
            .map_err(|e| CliError::new("could not bring the node's records back").because(e))
    }

    /// Asks for a restart, and again if it had no effect for long.
    fn restart(&self, kill: bool, asked_ms: &mut Option<u64>) {
        let now = clock::boot_ms();
        if asked_ms.is_some_and(|at| now - at <= AGAIN_MS) {
            return;
        }
        *asked_ms = Some(now);
        if let Err(error) = self.host.restart(kill) {
            eprintln!("{error}");
        }
    }

    fn end(&self, record: &Record, confirmed: bool, why: String) -> Result<()> {
        let _ = remove(&leftovers(&record.program));
        self.state.end(&Ended {
            began_us: record.began_us,
            confirmed,
            former: record.former.clone(),
            new: record.new.clone(),
            why,
            at_us: clock::wall_us(),
        })
    }

    /// Writes down what is awaited, if that has changed.
    fn say(&self, what: &str) {
        let path = self.state.progress();
        let said = file::read_text(&path).unwrap_or_default();
        if said != what {
            let _ = file::replace(&path, what.as_bytes(), 0o600, Durability::Process);
        }
    }
}

/// Takes note of a reboot: all pods start again, and all of the time is theirs; the number of boots is limited instead.
fn new_boot(record: &mut Record) -> bool {
    let boot = boot_id::read();
    if record.boot_id == boot {
        return false;
    }
    record.boot_id = boot;
    record.boots += 1;
    (record.spent_ms, record.starts) = (0, 0);
    (record.last_start, record.old_pid) = (0, 0);
    for pod in record.expected.values_mut() {
        pod.runs.clear();
    }
    true
}
