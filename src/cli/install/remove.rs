//! `coracle uninstall`: refused while pods run, unless it is asked to stop them. Settings, manifests and images stay
//! unless purged.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::super::args::UninstallArgs;
use super::super::client::Client;
use super::super::error::{CliError, Result};
use super::super::put;
use super::super::upgrade::{WATCHER, beside, leftovers};
use super::{
    CONFIG_PATH, PODS, SERVICE, SYSTEM_FILES, UNITS, man_pages, not_of_a_package, program,
    systemctl, systemd_runs, take_away,
};
use crate::layout::Layout;
use crate::sys::{file, mount, tree, unix_socket};

/// Directory of settings and manifests.
const ETC: &str = "/etc/coracle";

/// `coracle uninstall`.
pub(in crate::cli) fn run(client: &Client, args: &UninstallArgs) -> Result<ExitCode> {
    if !nix::unistd::geteuid().is_root() {
        return Err(CliError::new("coracle uninstall has to be started as root").hint("use sudo"));
    }
    not_of_a_package("remove the package instead: `apt purge coracle`, `dnf remove coracle`, …")?;
    let program = program(&args.prefix)?;
    let layout = Layout::default();
    let running = pods(client, &layout);
    if !running.is_empty() && !args.stop_pods {
        return Err(
            CliError::new(format!("pods are running: {}", running.join(", ")))
                .hint("remove their manifests first, or use --stop-pods"),
        );
    }
    if systemd_runs() {
        // The trial of an upgrade ends with what is tried.
        let _ = systemctl(&["stop", WATCHER]);
        stop(client, &layout, args.stop_pods)?;
    }
    // One that hangs is running, too.
    if client.reachable() {
        return Err(CliError::new("the agent is running, but not under systemd")
            .hint("stop its pods and the process `coracle run` first"));
    }
    refuse_pods(&layout, "`coracle end-pods` ends them")?;
    take_away(
        &Path::new("/")
            .join(UNITS)
            .join("multi-user.target.wants")
            .join(SERVICE),
    )?;
    for (path, _) in SYSTEM_FILES {
        take_away(&Path::new("/").join(path))?;
    }
    for (path, _) in man_pages(&args.prefix)? {
        take_away(&path)?;
    }
    if systemd_runs() {
        systemctl(&["daemon-reload"])?;
    }
    remove_tree(&layout.run_dir)?;
    remove_tree(&layout.root.join("upgrade"))?;
    if args.purge {
        for folder in logs(&layout) {
            remove_tree(&folder)?;
        }
        // Other programs may log here too.
        let _ = fs::remove_dir(&layout.log_dir);
        remove_tree(&layout.root)?;
        remove_tree(Path::new(ETC))?;
    } else {
        let kept = format!(
            "kept       {ETC} (with {CONFIG_PATH}), {}, {}\n",
            layout.root.display(),
            layout.log_dir.display()
        );
        put(kept.replace("(with etc", "(with /etc").as_bytes())?;
    }
    // What upgrades leave beside it.
    for path in leftovers(&program) {
        file::remove_file(&path).map_err(|e| {
            CliError::new(format!("could not remove `{}`", path.display())).because(e)
        })?;
    }
    for ending in [".former", ""] {
        take_away(&beside(&program, ending))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the running pods: as the agent reports them, or without an agent those whose shim answers.
fn pods(client: &Client, layout: &Layout) -> Vec<String> {
    if let Ok(list) = client.get("/api/v1/pods") {
        let items = list["items"].as_array().into_iter().flatten();
        let finished = |phase: &str| matches!(phase, "Succeeded" | "Failed");
        return items
            .filter(|pod| !finished(pod["status"]["phase"].as_str().unwrap_or_default()))
            .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
    }
    live_shims(layout)
}

fn live_shims(layout: &Layout) -> Vec<String> {
    let entries = fs::read_dir(layout.pods_run_dir()).into_iter().flatten();
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
fn refuse_pods(layout: &Layout, hint: &str) -> Result<()> {
    let left = live_shims(layout);
    match left.is_empty() {
        true => Ok(()),
        false => {
            Err(CliError::new(format!("pods are still running: {}", left.join(", "))).hint(hint))
        }
    }
}

/// Stops the agent, and its pods first if wanted.
fn stop(client: &Client, layout: &Layout, stop_pods: bool) -> Result<()> {
    let marker = layout.stop_pods();
    if stop_pods {
        // Only an agent can stop pods gracefully.
        if !client.reachable() && !live_shims(layout).is_empty() {
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
        layout,
        &format!("`systemctl stop {PODS}` kills what is left of them"),
    )?;
    if systemctl(&["stop", PODS]).is_ok() {
        put(format!("stopped    {SERVICE}\n").as_bytes())?;
    }
    Ok(())
}

/// Lists log directories of coracle's pods only.
fn logs(layout: &Layout) -> Vec<PathBuf> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    };
    let uids = names(&layout.pods_state_dir());
    let of_ours = |name: &String| uids.iter().any(|uid| name.ends_with(&format!("_{uid}")));
    let mut logs = names(&layout.log_dir);
    logs.retain(of_ours);
    logs.into_iter()
        .map(|name| layout.log_dir.join(name))
        .collect()
}

fn remove_tree(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    mount::unmount_below(path)
        .and_then(|()| tree::remove(path))
        .map_err(|e| CliError::new(format!("could not remove `{}`", path.display())).because(e))?;
    put(format!("removed    {}\n", path.display()).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nothing_is_removed_while_a_shim_answers_whatever_became_of_the_agent() {
        let folder = std::env::temp_dir().join(format!("coracle-remove-{}", std::process::id()));
        let layout = Layout {
            run_dir: folder.clone(),
            ..Layout::default()
        };
        let pod = layout.pods_run_dir().join("uid-1");
        fs::create_dir_all(&pod).unwrap();
        assert!(refuse_pods(&layout, "").is_ok(), "no shim");
        let socket = pod.join("shim.sock");
        let shim = UnixListener::bind(&socket).unwrap();
        let error = refuse_pods(&layout, "`coracle end-pods` ends them").unwrap_err();
        let text = format!("{error:?}");
        assert!(
            text.contains("uid-1") && text.contains("end-pods"),
            "{text}"
        );
        drop(shim);
        assert!(refuse_pods(&layout, "").is_ok(), "a socket of a dead shim");
        fs::remove_dir_all(folder).unwrap();
    }
}
