//! `coracle upgrade`: checks a new program, has it tried beside the pods, and shows how the trial goes. The watcher
//! ([`watch`]), which the former program runs, does the rest, whether this command is still there or not.

mod check;
mod host;
mod keep;
mod record;
mod watch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::args::UpgradeArgs;
use super::client::Client;
use super::directories;
use super::error::{CliError, Result};
use super::install::{systemctl, systemd_runs};
use super::put;
use crate::images::digest_of;
use crate::layout::STATE_FORMAT;
use crate::sys::file::{self, Durability};
use crate::sys::{boot_id, clock};
use crate::types::duration_ms;
pub(super) use host::{WATCHER, runs};
use record::{Ended, Phase, Program, Record, State};
pub(super) use record::{beside, leftovers};

/// The folder of the keys that may sign a program.
const KEYS: &str = "/etc/coracle/upgrade-keys";

/// The pause between two looks at the trial.
const PAUSE: Duration = Duration::from_millis(300);

/// Looks after which a missing watcher is started again.
const MISSING: u32 = 20;

pub(super) fn run(client: &Client, args: &UpgradeArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new("coracle upgrade has to be started as root").hint("use sudo"));
    }
    let state = match &args.state {
        Some(folder) => State(folder.clone()),
        None => state(client),
    };
    if args.watch {
        return watch::run(&state);
    }
    if args.status {
        return status(&state);
    }
    state.make()?;
    let within_ms = duration_ms(&args.within).filter(|ms| (1_000..=86_400_000).contains(ms));
    let within_ms = within_ms.ok_or_else(|| {
        CliError::usage(format!(
            "--within: `{}` is no duration from 1s to 24h, such as 90s or 5m",
            args.within
        ))
    })?;
    match state.record()? {
        Some(record) if record.can_be_judged() => {
            return under_way(&state, &record, args.rollback);
        }
        // What took its former program away ended the trial: a package that knows only the usual folder.
        Some(_) => state.forget()?,
        None => {}
    }
    let began = begin(client, &state, args, within_ms)?;
    match began {
        Some(began) => wait(&state, &began, true),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The folder of upgrades below the root of the agent, which tidies it: as the agent says, else its unit and settings.
fn state(client: &Client) -> State {
    State::below(&directories::find(client, (None, None, None)).layout.root)
}

/// Ends a trial, if there is one, before another program is installed: that decides.
pub(super) fn end_trial(client: &Client) -> Result<()> {
    let state = state(client);
    // A record that cannot be read would stop every later upgrade.
    if state.record().is_ok_and(|record| record.is_none()) {
        return Ok(());
    }
    if systemd_runs() {
        let _ = systemctl(&["stop", WATCHER]);
    }
    state.forget()
}

/// What to do while there is a trial: go back, or let it go on.
fn under_way(state: &State, record: &Record, rollback: bool) -> Result<ExitCode> {
    if rollback {
        file::replace(&state.go_back(), b"", 0o600, Durability::PowerCut)
            .map_err(|e| record::failed("write", &state.go_back(), &e))?;
        host::start_watcher(&state.0, &record.program)?;
        return wait(state, record, false);
    }
    // It may have been cut off before anything else started it.
    host::start_watcher(&state.0, &record.program)?;
    Err(
        CliError::new(format!("version {} is on trial", record.new.version)).hint(
            "`coracle upgrade --status` shows how far it is, `coracle upgrade --rollback` ends it",
        ),
    )
}

/// Checks the program, puts it beside the present one, and has it tried; `None` if it is the present one.
fn begin(
    client: &Client,
    state: &State,
    args: &UpgradeArgs,
    within_ms: u64,
) -> Result<Option<Record>> {
    let at_work = || CliError::new("another `coracle upgrade` is at work");
    let lock = state.lock()?.ok_or_else(at_work)?;
    if state.record()?.is_some() {
        return Err(at_work());
    }
    state.undo()?;
    let (program, list, agent) = present(client, state)?;
    let own = record::content(&program)?;
    let bytes = match &args.file {
        Some(path) => {
            let bytes = record::content(path)?;
            check::signed(path, &bytes, Path::new(KEYS), args.unsigned)?;
            bytes
        }
        // It was checked when it came.
        None => record::content(&record::former_of(&program))
            .map_err(|e| e.hint("there is no former program to go back to"))?,
    };
    let digest = digest_of(&own);
    if digest_of(&bytes) == digest {
        let say = match args.file {
            Some(_) => "unchanged  this program is installed already",
            None => return Err(CliError::new("there is no former program to go back to")),
        };
        put(format!("{say}\n").as_bytes())?;
        return Ok(None);
    }
    check::runs_here(&bytes, &own)
        .map_err(|why| CliError::new("the file is no coracle that runs here").because(why))?;
    state.begin(&program)?;
    let former = record::former_of(&program);
    let placed = match args.file {
        Some(_) => place(&program, |new| record::put_program(new, &bytes), &bytes),
        // A link needs no room: the new program may have filled the disk.
        None => place(&program, |new| record::same_file(&former, new), &bytes),
    };
    let placed = placed.and_then(|new| {
        let present = (program.as_path(), digest, agent);
        let record = record_of(client, present, new, &list, within_ms)?;
        let kept = match former.exists() {
            true => record::same_file(&former, &record::older_of(&program)),
            false => Ok(()),
        };
        kept.and_then(|()| record::same_file(&program, &former))
            .map_err(|e| record::failed("keep", &program, &e))?;
        state.forget_trial()?;
        state.save(&record)?;
        Ok(record)
    });
    let record = match placed {
        Ok(record) => record,
        Err(error) => {
            let _ = state.undo();
            return Err(error);
        }
    };
    state.has_begun(&program);
    drop(lock);
    host::start_watcher(&state.0, &record.program)?;
    let say = format!(
        "trying     version {} in place of {}, with {} pods that have to stay as they are\n",
        record.new.version,
        record.former.version,
        record.expected.len()
    );
    put(say.as_bytes())?;
    Ok(Some(record))
}

/// The record of a trial that is about to begin, in place of the program with this digest and its agent.
fn record_of(
    client: &Client,
    (program, digest, agent): (&Path, String, i32),
    new: Program,
    list: &serde_json::Value,
    within_ms: u64,
) -> Result<Record> {
    let found = directories::find(client, (None, None, None));
    let now_us = clock::wall_us();
    let steady_us = i64::try_from(within_ms.max(600_000) * 1000).unwrap_or(i64::MAX);
    Ok(Record {
        format: Record::format(),
        phase: Phase::Install,
        socket: found.layout.api_socket(),
        root: found.layout.root.clone(),
        run_dir: found.layout.run_dir.clone(),
        former: Program {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            digest,
            state_format: STATE_FORMAT,
        },
        new,
        kill: stops_pods(client)?,
        began_us: now_us,
        within_ms,
        spent_ms: 0,
        boot_id: boot_id::read(),
        boots: 0,
        old_pid: agent,
        starts: 0,
        last_start: 0,
        expected: host::expected(list, steady_us, now_us),
        why: String::new(),
        program: program.to_owned(),
    })
}

/// The installed program, which is this one and the agent's; the agent's pods; the agent.
fn present(client: &Client, state: &State) -> Result<(PathBuf, serde_json::Value, i32)> {
    let Some((list, agent)) = host::pods(client) else {
        return Err(CliError::new(
            "the agent does not answer, so that there is nothing to compare with",
        )
        .hint("start it, or use `install --now` of the new program"));
    };
    let later = State::below(&directories::find_without_answer(client).layout.root);
    if later.0 != state.0 {
        eprintln!(
            "warning: after a power cut this trial would be looked for in `{}`: have the line that starts \
             `coracle.former upgrade --watch` say `--state {}`",
            later.0.display(),
            state.0.display()
        );
    }
    let exe = format!("/proc/{agent}/exe");
    let program = fs::read_link(&exe).map_err(|e| record::failed("read", Path::new(&exe), &e))?;
    if !host::runs(agent, &program) {
        let program = program.display().to_string();
        let name = program.trim_end_matches(" (deleted)");
        return Err(
            CliError::new(format!("`{name}` was replaced since the agent was started"))
                .hint("restart the agent first: pods keep running"),
        );
    }
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    if !host::runs(own, &program) {
        return Err(CliError::new(
            "this is not the program of the agent, which has to judge the new one",
        )
        .hint(format!("use `{} upgrade FILE`", program.display())));
    }
    if systemd_runs() {
        host::unit_is_there(&program)?;
        host::unit_finds(&state.0)?;
    }
    Ok((program, list, agent))
}

/// Whether the agent would stop its pods if it were asked to end; by its flags, too.
fn stops_pods(client: &Client) -> Result<bool> {
    let settings = client.get("/configz")?;
    Ok(settings["kubeletconfig"]["coracle"]["stopPodsOnExit"] == true)
}

/// Puts the new program beside the present one, and asks it for its version.
fn place(
    program: &Path,
    put_at: impl FnOnce(&Path) -> io::Result<()>,
    bytes: &[u8],
) -> Result<Program> {
    let path = record::new_of(program);
    put_at(&path).map_err(|error| {
        let failed = record::failed("write", &path, &error);
        match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => failed.hint(
                "the program is part of a read-only image: upgrade that, with its own updater (RAUC, Mender, ostree) \
                 or package manager; `coracle help upgrade`",
            ),
            _ => failed,
        }
    })?;
    let new = check::version(&path, bytes)?;
    match new.state_format < STATE_FORMAT {
        true => Err(CliError::new(format!("version {} is refused", new.version)).because(format!(
            "it knows the state of the node up to format {}, this one is of format {STATE_FORMAT}",
            new.state_format
        ))),
        false => Ok(new),
    }
}

/// Undoes what an upgrade had begun when the power failed. For an agent that starts; `root`: the directory of its state.
pub(super) fn undo_if_cut_off(root: &Path) {
    if let Err(error) = State::below(root).undo_if_cut_off() {
        // There is no log yet.
        eprintln!("an upgrade was cut off: {}, ignoring", crate::chain(&error));
    }
}

/// Waits for the end of a trial and shows how it goes. With `keep` its success is that the new program stays.
fn wait(state: &State, began: &Record, keep: bool) -> Result<ExitCode> {
    let mut shown = String::new();
    let mut looks = 0;
    while state
        .record()?
        .is_some_and(|now| now.began_us == began.began_us)
    {
        let now = file::read_text(state.progress()).unwrap_or_default();
        if now != shown && !now.is_empty() {
            put(format!("waiting    {now}\n").as_bytes())?;
            shown = now;
        }
        looks += 1;
        if looks % MISSING == 0 && state.lock()?.is_some() {
            host::start_watcher(&state.0, &began.program)?;
        }
        std::thread::sleep(PAUSE);
    }
    let ended = state
        .ended()?
        .filter(|ended| ended.began_us == began.began_us);
    let ended = ended.ok_or_else(|| CliError::new("the trial ended, and nothing says how"))?;
    match (ended.confirmed, keep) {
        (true, true) => put(tell(&ended).as_bytes()).map(|()| ExitCode::SUCCESS),
        (false, false) => put(tell(&ended).as_bytes()).map(|()| ExitCode::SUCCESS),
        (true, false) => Err(CliError::new(format!(
            "version {} was confirmed just before",
            ended.new.version
        ))
        .hint("`coracle upgrade --rollback` goes back to the former one")),
        (false, true) => Err(CliError::new(format!(
            "version {} is in force again, version {} was not healthy",
            ended.former.version, ended.new.version
        ))
        .because(ended.why)
        .hint("`journalctl -u coracle` tells more")),
    }
}

fn tell(ended: &Ended) -> String {
    match ended.confirmed {
        true => format!("confirmed  version {}: {}\n", ended.new.version, ended.why),
        false => format!(
            "went back  to version {} from {}: {}\n",
            ended.former.version, ended.new.version, ended.why
        ),
    }
}

/// `coracle upgrade --status`.
fn status(state: &State) -> Result<ExitCode> {
    let text = match (state.record()?, state.ended()?) {
        (Some(record), _) => {
            let word = match record.phase {
                Phase::Install => "begins",
                Phase::Trial => "is on trial",
                Phase::Back => "goes back",
            };
            let waiting = file::read_text(state.progress()).unwrap_or_default();
            let left = record
                .within_ms
                .saturating_sub(record.spent_ms)
                .div_ceil(1000);
            format!(
                "trying     version {} in place of {}: {word}, at most {left} s more\nwaiting    {waiting}\n",
                record.new.version, record.former.version
            )
        }
        (None, Some(ended)) => tell(&ended),
        (None, None) => "there was no upgrade\n".to_owned(),
    };
    put(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
