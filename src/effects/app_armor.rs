//! AppArmor: which profile confines a container, and whether the kernel has it. coracle's own profile is loaded by
//! `apparmor_parser` when the first container needs it; all others must be loaded on the node.

use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::spec::{AppArmor, Security};
use crate::sys::{file, process};

/// The profile of `RuntimeDefault`.
const DEFAULT: &str = "coracle-default";

/// What it forbids: writing to the kernel's files, mounting, and tracing processes outside the profile. Its rules are
/// those of other container engines.
const TEXT: &str = include_str!("app_armor.profile");

/// A parser takes less than a second; one that takes this long never ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The maximum of its messages that is shown.
const MAX_MESSAGE: u64 = 300;

/// Where the kernel says whether it has AppArmor, and which profiles are loaded.
#[derive(Debug, Clone, Copy)]
struct Kernel<'a> {
    enabled: &'a Path,
    profiles: &'a Path,
}

impl Kernel<'static> {
    fn here() -> Self {
        Self {
            enabled: Path::new("/sys/module/apparmor/parameters/enabled"),
            profiles: Path::new("/sys/kernel/security/apparmor/profiles"),
        }
    }
}

/// Why a container cannot be confined as its manifest says.
#[derive(Debug, thiserror::Error)]
pub enum AppArmorError {
    /// The kernel has no AppArmor.
    #[error("Cannot enforce AppArmor: AppArmor is not enabled on the host")]
    Absent,
    /// The list of profiles cannot be read.
    #[error("could not read the AppArmor profiles in `{path}`: {source}")]
    Unreadable {
        /// The kernel's file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
    /// The profile is not loaded.
    #[error("AppArmor profile not found: {0}")]
    NotLoaded(String),
    /// coracle's profile could not be loaded.
    #[error("could not load AppArmor profile {DEFAULT}: {0}")]
    Load(String),
}

/// Whether the kernel confines processes by AppArmor profiles.
pub fn is_enabled() -> bool {
    Kernel::here().is_enabled()
}

/// Blocking. Returns the profile to apply, and loads it if it is coracle's own.
pub(super) fn profile(security: &Security) -> Result<Option<String>, AppArmorError> {
    Kernel::here().profile(security, load)
}

impl Kernel<'_> {
    fn is_enabled(self) -> bool {
        file::read_text(self.enabled).is_ok_and(|text| text.starts_with('Y'))
    }

    fn profile(
        self,
        security: &Security,
        load: impl FnOnce() -> Result<(), AppArmorError>,
    ) -> Result<Option<String>, AppArmorError> {
        let name = match &security.app_armor {
            AppArmor::Unconfined => return Ok(None),
            // As in other container engines.
            AppArmor::RuntimeDefault if security.privileged => return Ok(None),
            AppArmor::RuntimeDefault => DEFAULT,
            AppArmor::Localhost(name) => name,
        };
        if !self.is_enabled() {
            return Err(AppArmorError::Absent);
        }
        if !self.has(name)? {
            match security.app_armor {
                AppArmor::RuntimeDefault => load()?,
                AppArmor::Unconfined | AppArmor::Localhost(_) => {
                    return Err(AppArmorError::NotLoaded(name.to_owned()));
                }
            }
        }
        Ok(Some(name.to_owned()))
    }

    /// Whether the profile is loaded. Each line of the list is a name and a mode: `docker-default (enforce)`.
    fn has(self, name: &str) -> Result<bool, AppArmorError> {
        let text = file::read_text(self.profiles).map_err(|source| AppArmorError::Unreadable {
            path: self.profiles.display().to_string(),
            source,
        })?;
        let mut names = text.lines().filter_map(|line| line.rsplit_once(" ("));
        Ok(names.any(|(known, _)| known == name))
    }
}

fn load() -> Result<(), AppArmorError> {
    let Some(parser) = process::find_program("apparmor_parser") else {
        let why = "there is no `apparmor_parser`; install the package `apparmor`";
        return Err(AppArmorError::Load(why.to_owned()));
    };
    let failed = |error: io::Error| AppArmorError::Load(format!("{}: {error}", parser.display()));
    // Both are complete files, so that neither side waits for the other.
    let (mut input, mut said) = (memory().map_err(failed)?, memory().map_err(failed)?);
    input.write_all(TEXT.as_bytes()).map_err(failed)?;
    input.rewind().map_err(failed)?;
    let mut child = Command::new(&parser)
        .args(["--replace", "--skip-cache"])
        .stdin(Stdio::from(input))
        .stdout(Stdio::null())
        .stderr(Stdio::from(said.try_clone().map_err(failed)?))
        .spawn()
        .map_err(failed)?;
    process::wait_at_most(&mut child, PATIENCE);
    match child.try_wait().map_err(failed)? {
        Some(status) if status.success() => Ok(()),
        Some(_) => {
            let mut text = String::new();
            said.rewind().map_err(failed)?;
            // Whatever could be read is shown.
            let _ = said.take(MAX_MESSAGE).read_to_string(&mut text);
            Err(AppArmorError::Load(text.trim().to_owned()))
        }
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(AppArmorError::Load("apparmor_parser hangs".to_owned()))
        }
    }
}

fn memory() -> io::Result<std::fs::File> {
    Ok(memfd_create("apparmor", MFdFlags::MFD_CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Seccomp;

    fn security(app_armor: AppArmor, privileged: bool) -> Security {
        Security {
            run_as_user: None,
            run_as_group: None,
            run_as_non_root: false,
            privileged,
            allow_privilege_escalation: true,
            read_only_root: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            seccomp: Seccomp::RuntimeDefault,
            app_armor,
            unmasked_proc: false,
        }
    }

    #[test]
    fn a_container_is_confined_or_refused_and_never_runs_without_its_profile() {
        let folder = std::env::temp_dir().join(format!("coracle-armor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let [yes, no, list, none] = ["yes", "no", "list", "none"].map(|name| folder.join(name));
        std::fs::write(&yes, "Y\n").expect("a file");
        std::fs::write(&no, "N\n").expect("a file");
        std::fs::write(&list, "web (enforce)\nsome name (complain)\n").expect("a file");
        let localhost = |name: &str| AppArmor::Localhost(name.to_owned());
        let loaded = || Ok(());
        let broken = || Err(AppArmorError::Load("no parser".to_owned()));
        let of = |enabled: &Path, profiles: &Path, security: &Security, works: bool| {
            let kernel = Kernel { enabled, profiles };
            let found = match works {
                true => kernel.profile(security, loaded),
                false => kernel.profile(security, broken),
            };
            found.map_err(|error| error.to_string())
        };
        let absent = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        for (enabled, profiles, wanted, privileged, works, expected) in [
            (&no, &none, AppArmor::Unconfined, false, false, Ok(None)),
            (&yes, &list, AppArmor::Unconfined, false, false, Ok(None)),
            (
                &no,
                &list,
                AppArmor::RuntimeDefault,
                false,
                true,
                Err(absent),
            ),
            (&none, &list, localhost("web"), false, true, Err(absent)),
            (&yes, &list, localhost("web"), false, false, Ok(Some("web"))),
            (&yes, &list, localhost("web"), true, false, Ok(Some("web"))),
            (
                &yes,
                &list,
                localhost("some name"),
                false,
                false,
                Ok(Some("some name")),
            ),
            (
                &yes,
                &list,
                localhost("we"),
                false,
                true,
                Err("AppArmor profile not found: we"),
            ),
            (
                &yes,
                &list,
                AppArmor::RuntimeDefault,
                false,
                true,
                Ok(Some(DEFAULT)),
            ),
            (&no, &none, AppArmor::RuntimeDefault, true, false, Ok(None)),
            (
                &yes,
                &list,
                AppArmor::RuntimeDefault,
                false,
                false,
                Err("could not load AppArmor profile coracle-default: no parser"),
            ),
        ] {
            let what = format!("{wanted:?} {privileged}");
            let found = of(enabled, profiles, &security(wanted, privileged), works);
            let expected = expected.map(|name| name.map(str::to_owned));
            assert_eq!(found, expected.map_err(str::to_owned), "{what}");
        }
        let found = of(&yes, &none, &security(localhost("web"), false), true);
        let why = found.expect_err("no list");
        assert!(
            why.starts_with("could not read the AppArmor profiles"),
            "{why}"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
