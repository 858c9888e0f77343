//! The step from a container's first process to its program. It replaces libcontainer's default, which rejects a
//! program that is not executable for others and leaves signals blocked.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};

use super::filter::Filter;
use super::status::report;
use crate::sys::{process, signals};

/// The default search path of a program.
pub(super) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Reports through the status pipe why a program cannot be run.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The status pipe's number.
    pub(super) status: i32,
    /// Whether all mounts exist before the start.
    pub(super) complete: bool,
    /// The working directory, if it comes with mounts that do not exist yet.
    pub(super) cwd: Option<PathBuf>,
    /// The filter that the runtime does not load.
    pub(super) filter: Option<Filter>,
}

impl Executor for Program {
    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        // The program may be on a volume that is mounted later; then only the start finds it.
        if !self.complete {
            return Ok(());
        }
        let (args, path) = command(spec);
        find(&args, &path).map(drop).map_err(|message| {
            report(self.status, 'R', &message);
            ExecutorValidationError::ArgValidationError(message)
        })
    }

    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        if let Some(cwd) = &self.cwd
            && let Err(errno) = nix::unistd::chdir(cwd)
        {
            let (cwd, why) = (cwd.display(), errno.desc().to_lowercase());
            report(
                self.status,
                'R',
                &format!("chdir to cwd (\"{cwd}\"): {why}"),
            );
            process::exit_now(128);
        }
        let (args, path) = command(spec);
        let env: Vec<CString> = std::env::vars_os()
            .map(|(name, value)| {
                let mut entry = name;
                entry.push("=");
                entry.push(value);
                process::c_string(entry)
            })
            .collect();
        let message = run(&args, &path, &env, self.filter.as_ref());
        report(self.status, 'R', &message);
        // The shim's exit handlers and unwinding must not run in the container.
        process::exit_now(128);
    }
}

fn command(spec: &Spec) -> (Vec<String>, String) {
    let process = spec.process().as_ref();
    let args = process
        .and_then(|process| process.args().clone())
        .unwrap_or_default();
    let path = process
        .and_then(|process| process.env().as_ref())
        .and_then(|env| env.iter().find_map(|entry| entry.strip_prefix("PATH=")))
        .unwrap_or(DEFAULT_PATH);
    (args, path.to_owned())
}

/// Becomes the program; returns the error if that fails.
pub(super) fn run(args: &[String], path: &str, env: &[CString], filter: Option<&Filter>) -> String {
    let program = match find(args, path) {
        Ok(program) => program,
        Err(message) => return message,
    };
    let args: Vec<CString> = args.iter().map(process::c_string).collect();
    let file = process::c_string(&program);
    signals::reset();
    if let Some(Err(error)) = filter.map(Filter::enter) {
        return format!("could not load the seccomp filter: {}", errno_text(&error));
    }
    let error = process::exec(&file, &args, env);
    format!("exec {}: {}", program.display(), errno_text(&error))
}

/// The file of a command, or why there is none. Runs with the program's own identity.
fn find(args: &[String], path: &str) -> Result<PathBuf, String> {
    let Some(name) = args.first().filter(|name| !name.is_empty()) else {
        return Err("exec: no command specified".to_owned());
    };
    if name.contains('/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(PathBuf::from(name)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(format!("exec: \"{name}\": permission denied"))
            }
            Err(error) => Err(format!(
                "exec: \"{name}\": stat {name}: {}",
                errno_text(&error)
            )),
        };
    }
    let mut denied = false;
    for folder in path.split(':') {
        let folder = if folder.is_empty() { "." } else { folder };
        let candidate = Path::new(folder).join(name);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) => denied |= error.kind() == io::ErrorKind::PermissionDenied,
        }
    }
    Err(if denied {
        format!("exec: \"{name}\": permission denied")
    } else {
        format!("exec: \"{name}\": executable file not found in $PATH")
    })
}

fn executable(path: &Path) -> io::Result<()> {
    let found = fs::metadata(path)?;
    if found.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let mode = nix::unistd::AccessFlags::X_OK;
    // Both real and effective ids are the program's by now.
    nix::unistd::access(path.as_os_str().as_bytes(), mode)?;
    Ok(())
}

/// The system's text of an error, without Rust's `(os error n)`.
fn errno_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => nix::errno::Errno::from_raw(number).desc().to_lowercase(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(args: &[&str], path: &str) -> String {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        match find(&args, path) {
            Ok(path) => path.display().to_string(),
            Err(message) => message,
        }
    }

    #[test]
    fn a_command_is_found_or_refused_in_the_words_people_know() {
        assert_eq!(text(&["sh"], "/nowhere:/bin"), "/bin/sh");
        assert_eq!(text(&["/bin/sh"], ""), "/bin/sh");
        assert_eq!(
            text(&["foo"], "/bin"),
            "exec: \"foo\": executable file not found in $PATH"
        );
        assert_eq!(
            text(&["/foo"], "/bin"),
            "exec: \"/foo\": stat /foo: no such file or directory"
        );
        assert_eq!(
            text(&["/bin"], ""),
            "exec: \"/bin\": stat /bin: is a directory"
        );
        assert_eq!(
            text(&["/proc/version"], ""),
            "exec: \"/proc/version\": permission denied"
        );
        assert_eq!(text(&[], ""), "exec: no command specified");
    }
}
