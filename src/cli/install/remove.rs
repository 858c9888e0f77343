//! `coracle uninstall`: refused while pods run, unless it is asked to stop them. Settings, manifests and images stay
//! unless purged.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::unistd::{AccessFlags, access};

use super::super::args::UninstallArgs;
use super::super::client::Client;
use super::super::directories;
use super::super::error::{CliError, Result};
use super::super::put;
use super::super::upgrade::{WATCHER, beside, leftovers};
use super::{
    CONFIG_PATH, PODS, SERVICE, SYSTEM_FILES, UNITS, man_pages, not_of_a_package, program, purge,
    systemctl, systemd_runs, take_away,
};
use crate::layout::Layout;
use crate::sys::{file, unix_socket};

/// Directory of settings and manifests.
const ETC: &str = "/etc/coracle";

/// `coracle uninstall`.
pub(in crate::cli) fn run(client: &Client, args: &UninstallArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new("coracle uninstall has to be started as root").hint("use sudo"));
    }
    not_of_a_package("remove the package instead: `apt purge coracle`, `dnf remove coracle`, …")?;
    let program = program(&args.prefix)?;
    let files = installed(&program, &args.prefix)?;
    refuse_fixed(&files)?;
    let (client, layouts) = directories_of(client)?;
    let [layout, _] = &layouts;
    let running = pods(&client, &layouts);
    if !running.is_empty() && !args.stop_pods {
        return Err(
            CliError::new(format!("pods are running: {}", running.join(", ")))
                .hint("remove their manifests first, or use --stop-pods"),
        );
    }
    if systemd_runs() {
        // The trial of an upgrade ends with what is tried.
        let _ = systemctl(&["stop", WATCHER]);
        stop(&client, &layouts, args.stop_pods)?;
    }
    // One that hangs is running, too, and there may be another one in the usual directories.
    let sockets = layouts.iter().map(Layout::api_socket);
    let mut others = sockets.map(|socket| Client { socket });
    if client.reachable() || others.any(|other| other.reachable()) {
        return Err(CliError::new("the agent is running, but not under systemd")
            .hint("stop its pods and the process `coracle run` first"));
    }
    refuse_pods(&layouts, "`coracle end-pods` ends them")?;
    // The settings and units say where all this is. They go last, so that an interrupted removal can be repeated.
    for layout in &layouts {
        purge::runtime(&layout.run_dir)?;
        purge::upgrades(&layout.root)?;
    }
    if args.purge {
        for layout in &layouts {
            purge::logs(layout)?;
        }
        for layout in &layouts {
            purge::state(&layout.root)?;
        }
        purge::whole(Path::new(ETC))?;
    } else {
        let kept = format!(
            "kept       {ETC} (with /{CONFIG_PATH}), {}, {}\n",
            layout.root.display(),
            layout.log_dir.display()
        );
        put(kept.as_bytes())?;
    }
    // What upgrades leave beside the program.
    for path in leftovers(&program) {
        file::remove_file(&path).map_err(|e| {
            CliError::new(format!("could not remove `{}`", path.display())).because(e)
        })?;
    }
    for path in &files {
        take_away(path)?;
    }
    if systemd_runs() {
        systemctl(&["daemon-reload"])?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What `install` and upgrades have put in place, the program last.
fn installed(program: &Path, prefix: &Path) -> Result<Vec<PathBuf>> {
    let units = Path::new("/").join(UNITS);
    let mut files = vec![units.join("multi-user.target.wants").join(SERVICE)];
    files.extend(SYSTEM_FILES.map(|(path, _)| Path::new("/").join(path)));
    files.extend(man_pages(prefix)?.into_iter().map(|(path, _)| path));
    files.extend([beside(program, ".former"), program.to_owned()]);
    Ok(files)
}

/// Fails before anything is removed if a file could not be: half an installation would be left.
fn refuse_fixed(files: &[PathBuf]) -> Result<()> {
    let there = files.iter().filter(|path| path.symlink_metadata().is_ok());
    let folders: BTreeSet<&Path> = there.filter_map(|path| path.parent()).collect();
    for folder in folders {
        if let Err(errno) = access(folder, AccessFlags::W_OK) {
            let why = CliError::new(format!("could not remove files in `{}`", folder.display()));
            return Err(why.because(errno).hint(
                "what is part of a read-only image goes with that; `coracle end-pods` and \
                 `systemctl disable --now coracle` stop what runs",
            ));
        }
    }
    Ok(())
}

/// The agent's directories and its client: as it says, else by its unit and the settings. Then the usual ones, which
/// `install` makes in any case.
fn directories_of(client: &Client) -> Result<(Client, [Layout; 2])> {
    let mut client = client.clone();
    let mut found = directories::find(&client, (None, None, None));
    let socket = found.layout.api_socket();
    let elsewhere = Client { socket };
    if !client.reachable() && elsewhere.reachable() {
        // It may have been started with other settings.
        found = directories::find(&elsewhere, (None, None, None));
        client = elsewhere;
    }
    match found.doubt {
        Some(why) => Err(CliError::new(
            "the settings are invalid, so that the agent's directories are not known",
        )
        .because(why)
        .hint("correct them, or remove them if the directories are the usual ones")),
        None => Ok((client, [found.layout, Layout::default()])),
    }
}

/// Lists the running pods: as the agent reports them, or without an agent those whose shim answers.
fn pods(client: &Client, layouts: &[Layout]) -> Vec<String> {
    if let Ok(list) = client.get("/api/v1/pods") {
        let items = list["items"].as_array().into_iter().flatten();
        let finished = |phase: &str| matches!(phase, "Succeeded" | "Failed");
        return items
            .filter(|pod| !finished(pod["status"]["phase"].as_str().unwrap_or_default()))
            .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
    }
    live_shims(layouts)
}

fn live_shims(layouts: &[Layout]) -> Vec<String> {
    let folders: BTreeSet<PathBuf> = layouts.iter().map(Layout::pods_run_dir).collect();
    let entries = folders.iter().flat_map(fs::read_dir).flatten();
    entries
        .flatten()
        .filter(|entry| {
            let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
            let connected = unix_socket::connect(&entry.path().join("shim.sock"));
            // A shim that hangs still exists.
            !connected.is_err_and(|why| absent.contains(&why.kind()))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Fails while a pod runs, whether an agent knows it or not: nothing of it may be removed.
fn refuse_pods(layouts: &[Layout], hint: &str) -> Result<()> {
    let left = live_shims(layouts);
    match left.is_empty() {
        true => Ok(()),
        false => {
            Err(CliError::new(format!("pods are still running: {}", left.join(", "))).hint(hint))
        }
    }
}

/// Stops the agent, and its pods first if wanted.
fn stop(client: &Client, layouts: &[Layout; 2], stop_pods: bool) -> Result<()> {
    let [layout, _] = layouts;
    let marker = layout.stop_pods();
    if stop_pods {
        // Only an agent can stop pods gracefully.
        if !client.reachable() && !live_shims(layouts).is_empty() {
            systemctl(&["start", SERVICE])?;
        }
        if layout.run_dir.is_dir() {
            fs::write(&marker, "").map_err(|e| {
                CliError::new(format!("could not write `{}`", marker.display())).because(e)
            })?;
        }
    }
    let stopped = systemctl(&["disable", "--quiet", SERVICE]).and(systemctl(&["stop", SERVICE]));
    let _ = file::remove_file(&marker);
    // A missing unit need not be stopped.
    if let Err(error) = stopped
        && Path::new("/").join(UNITS).join(SERVICE).exists()
    {
        return Err(error);
    }
    refuse_pods(
        layouts,
        &format!("`systemctl stop {PODS}` kills what is left of them"),
    )?;
    if systemctl(&["stop", PODS]).is_ok() {
        put(format!("stopped    {SERVICE}\n").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nothing_is_removed_while_a_shim_answers_whatever_became_of_the_agent() {
        let folder = std::env::temp_dir().join(format!("coracle-remove-{}", std::process::id()));
        let layouts = [Layout {
            run_dir: folder.clone(),
            ..Layout::default()
        }];
        let pod = layouts[0].pods_run_dir().join("uid-1");
        fs::create_dir_all(&pod).unwrap();
        assert!(refuse_pods(&layouts, "").is_ok(), "no shim");
        let socket = pod.join("shim.sock");
        let shim = UnixListener::bind(&socket).unwrap();
        let error = refuse_pods(&layouts, "`coracle end-pods` ends them").unwrap_err();
        let text = format!("{error:?}");
        assert!(
            text.contains("uid-1") && text.contains("end-pods"),
            "{text}"
        );
        drop(shim);
        assert!(refuse_pods(&layouts, "").is_ok(), "a socket of a dead shim");
        fs::remove_dir_all(folder).unwrap();
    }
}
