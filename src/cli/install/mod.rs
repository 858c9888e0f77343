//! `coracle install`: puts the program, its units and directories in place and prints each change. Every step is
//! idempotent, and an upgrade keeps settings, manifests and running pods.

mod place;
mod purge;
mod remove;

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use place::{Change, Place};

pub(super) use remove::run as remove;

use super::args::InstallArgs;
use super::client::Client;
use super::error::{CliError, Result};
use super::upgrade;
use super::{help, put};
use crate::sys::file;

/// The agent's unit.
pub(super) const SERVICE: &str = "coracle.service";

/// The unit that owns the pods' cgroup.
const PODS: &str = "coracle-pods.service";

/// Directory of the administrator's units.
const UNITS: &str = "etc/systemd/system";

/// Directories of a node: path and mode.
const FOLDERS: [(&str, u32); 7] = [
    ("etc/coracle", 0o755),
    // Manifests may contain secrets.
    ("etc/coracle/manifests", 0o700),
    ("etc/coracle/images", 0o755),
    ("var/lib/coracle", 0o711),
    ("var/log/pods", 0o755),
    (UNITS, 0o755),
    // The agent writes a file with logind's shutdown delay here.
    ("etc/systemd/logind.conf.d", 0o755),
];

/// Initial settings file, all values commented out.
const CONFIG: &str = include_str!("config.yaml");
const CONFIG_PATH: &str = "etc/coracle/config.yaml";

/// Path of the program in the unit files before it is replaced by the installed one.
const WRITTEN_PROGRAM: &str = "/usr/local/bin/coracle";

/// Unit files and other system files: path and content.
const SYSTEM_FILES: [(&str, &str); 4] = [
    (
        "etc/systemd/system/coracle.service",
        include_str!("../../../systemd/coracle.service"),
    ),
    (
        "etc/systemd/system/coracle-pods.service",
        include_str!("../../../systemd/coracle-pods.service"),
    ),
    (
        "etc/systemd/system/coracle-upgrade.service",
        include_str!("../../../systemd/coracle-upgrade.service"),
    ),
    (
        "etc/tmpfiles.d/coracle.conf",
        include_str!("../../../systemd/tmpfiles.conf"),
    ),
];

/// Directory of man pages below the prefix.
const MAN: &str = "share/man/man1";

/// Returns the man pages: path and content.
fn man_pages(prefix: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let pages = help::MAN_PAGES.iter().map(|(name, _)| {
        let path = prefix.join(MAN).join(format!("{name}.1"));
        Ok((path, help::man_page(name)?))
    });
    pages.collect()
}

/// `coracle install`.
pub(super) fn run(client: &Client, args: &InstallArgs) -> Result<ExitCode> {
    if args.root.is_none() {
        // The tree of a package or an image may belong to anyone.
        if !nix::unistd::geteuid().is_root() {
            return Err(CliError::new("coracle install has to be started as root").hint("use sudo"));
        }
        not_of_a_package("upgrade or remove the package instead")?;
        upgrade::end_trial(client)?;
    }
    let program = program(&args.prefix)?;
    let place = Place::new(args.root.as_deref());
    let mut changed = false;
    for (folder, mode) in FOLDERS {
        place.folder(Path::new(folder), mode)?;
    }
    let own = std::fs::read("/proc/self/exe")
        .map_err(|e| CliError::new("could not read the program's own file").because(e))?;
    changed |= place.file(&program, &own, 0o755)? != Change::None;
    for (path, content) in SYSTEM_FILES {
        let content = content.replace(WRITTEN_PROGRAM, &program.to_string_lossy());
        changed |= place.file(Path::new(path), content.as_bytes(), 0o644)? != Change::None;
    }
    for (path, content) in man_pages(&args.prefix)? {
        place.file(&path, &content, 0o644)?;
    }
    place.keep_file(Path::new(CONFIG_PATH), CONFIG.as_bytes(), 0o644)?;
    enable(&place)?;
    if args.root.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    start(args.now, changed || !runs_now(&program))?;
    Ok(ExitCode::SUCCESS)
}

/// Directory of packages' units.
const PACKAGED_UNITS: &str = "/usr/lib/systemd/system";

/// Refuses to work beside a package, or a system image, that brings the same units.
fn not_of_a_package(hint: &str) -> Result<()> {
    let unit = Path::new(PACKAGED_UNITS).join(SERVICE);
    match unit.exists() {
        true => Err(CliError::new(format!(
            "coracle is installed by a package: it owns `{}`",
            unit.display()
        ))
        .hint(hint)),
        false => Ok(()),
    }
}

/// Returns the program's path in the installed system.
fn program(prefix: &Path) -> Result<PathBuf> {
    let text = prefix.to_str().unwrap_or_default();
    // Only characters that units need not escape.
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.+".contains(c);
    if !prefix.is_absolute() || !text.chars().all(plain) {
        return Err(CliError::usage(format!(
            "--prefix `{}` has to be an absolute path of letters, digits and `-_.+`",
            prefix.display()
        )));
    }
    Ok(prefix.join("bin/coracle"))
}

/// Enables the unit like `systemctl enable`, without systemctl, which may be missing or of another system.
fn enable(place: &Place) -> Result<()> {
    let wants = Path::new(UNITS).join("multi-user.target.wants");
    place.folder(&wants, 0o755)?;
    let link = place.entry(&wants.join(SERVICE))?;
    let target = PathBuf::from("..").join(SERVICE);
    if std::fs::symlink_metadata(&link).is_ok() {
        return put(format!("unchanged  {SERVICE} starts at boot\n").as_bytes());
    }
    symlink(target, &link).map_err(|e| {
        CliError::new(format!("could not make the link `{}`", link.display())).because(e)
    })?;
    std::fs::File::open(place.target(&wants)?)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| CliError::new("could not bring the link to the disk").because(e))?;
    put(format!("enabled    {SERVICE} starts at boot\n").as_bytes())
}

/// Reloads systemd's units. With `now`, starts the agent, or restarts it if files have changed.
fn start(now: bool, changed: bool) -> Result<()> {
    if !systemd_runs() {
        let hint = match now {
            true => {
                return Err(
                    CliError::new("systemd does not run here, so nothing was started")
                        .hint("start `coracle run` from this system's own init"),
                );
            }
            false => "systemd does not run here: start `coracle run` from this system's own init\n",
        };
        return put(hint.as_bytes());
    }
    systemctl(&["daemon-reload"])?;
    if !now {
        let say = format!("start it with: systemctl start {SERVICE}\n");
        return put(say.as_bytes());
    }
    let runs = Command::new("systemctl")
        .args(["is-active", "--quiet", SERVICE])
        .status()
        .is_ok_and(|status| status.success());
    match (runs, changed) {
        (true, false) => put(format!("unchanged  {SERVICE} runs\n").as_bytes()),
        (true, true) => {
            systemctl(&["restart", SERVICE])?;
            put(format!("restarted  {SERVICE}; pods kept running\n").as_bytes())
        }
        (false, _) => {
            systemctl(&["start", SERVICE])?;
            put(format!("started    {SERVICE}\n").as_bytes())
        }
    }
}

/// Whether the unit's process runs the installed program. An installation that was interrupted, or was told not to start
/// anything, leaves one of the former program.
fn runs_now(program: &Path) -> bool {
    let shown = properties(SERVICE, "MainPID");
    let pid = shown.trim().strip_prefix("MainPID=");
    let pid = pid.and_then(|pid| pid.parse().ok()).unwrap_or(0);
    pid > 0 && upgrade::runs(pid, program)
}

/// Properties of a unit as lines `NAME=VALUE`; empty if systemd does not answer. `names` are separated by commas.
pub(super) fn properties(unit: &str, names: &str) -> String {
    let shown = Command::new("systemctl")
        .args(["show", &format!("--property={names}"), unit])
        .stderr(Stdio::null())
        .output();
    let shown = shown.map(|done| String::from_utf8_lossy(&done.stdout).into_owned());
    shown.unwrap_or_default()
}

pub(super) fn systemd_runs() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

pub(super) fn systemctl(arguments: &[&str]) -> Result<()> {
    let failed = || CliError::new(format!("`systemctl {}` failed", arguments.join(" ")));
    let output = Command::new("systemctl")
        .args(arguments)
        .output()
        .map_err(|e| failed().because(e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed()
        .because(said.trim())
        .hint(format!("`journalctl -u {SERVICE}` tells more")))
}

/// Removes a file and prints it.
fn take_away(path: &Path) -> Result<()> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    file::remove_file(path)
        .map_err(|e| CliError::new(format!("could not remove `{}`", path.display())).because(e))?;
    put(format!("removed    {}\n", path.display()).as_bytes())
}
