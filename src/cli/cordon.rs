//! `coracle cordon`, `drain` and `uncordon`, with kubectl's output.

use std::io::{self, IsTerminal, Read};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::args::{DrainArgs, DryRun, NodeArgs};
use super::client::{Client, Response};
use super::error::{CliError, Result};
use super::put;
use crate::api::encode;
use crate::sys::{clock, signals};
use crate::types::duration_ms;

/// Said when the client leaves before the drain has ended.
const GOES_ON: &str =
    "the drain goes on: the same command waits for its end, `coracle uncordon` calls it off";

pub(super) fn cordon(client: &Client, args: &NodeArgs) -> Result<ExitCode> {
    set(client, args, true, "cordoned")
}

pub(super) fn uncordon(client: &Client, args: &NodeArgs) -> Result<ExitCode> {
    set(client, args, false, "uncordoned")
}

fn set(client: &Client, args: &NodeArgs, on: bool, done: &str) -> Result<ExitCode> {
    let (name, is_on) = node(client, args.node.as_deref())?;
    let how = match is_on == on {
        true => "already ",
        false => "",
    };
    let dry = match args.dry_run.dry_run.is_on() {
        true => " (dry run)",
        false => {
            let path = format!("/api/v1/nodes/{}", encode(&name));
            let patch = json!({ "spec": { "unschedulable": on } });
            client.json("PATCH", &path, Some(&patch))?;
            ""
        }
    };
    put(format!("node/{name} {how}{done}{dry}\n").as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns this node's name and whether it is cordoned; an error if `meant` names another node.
fn node(client: &Client, meant: Option<&str>) -> Result<(String, bool)> {
    let nodes = client.get("/api/v1/nodes")?;
    let node = &nodes["items"][0];
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    if let Some(other) = meant.filter(|meant| *meant != name && *meant != format!("node/{name}")) {
        let error = CliError::new(format!("nodes \"{other}\" not found")).code(3);
        return Err(error.hint(format!("this node is called `{name}`")));
    }
    let on = node["spec"]["unschedulable"].as_bool().unwrap_or(false);
    Ok((name.to_owned(), on))
}

pub(super) fn drain(client: &Client, args: &DrainArgs) -> Result<ExitCode> {
    let (name, _) = node(client, args.node.as_deref())?;
    let patience = match duration_ms(&args.timeout) {
        Some(0) => None,
        Some(ms) => Some(Duration::from_millis(ms)),
        None => {
            let text = format!("--timeout `{}` is not a duration", args.timeout);
            return Err(CliError::usage(text).hint("write it as in 90s, 5m or 1h30m"));
        }
    };
    let dry_run = args.dry_run.dry_run.is_on();
    let mut path = format!(
        "/coracle/v1/drain?deleteEmptyDirData={}&dryRun={dry_run}",
        args.delete_emptydir_data
    );
    if let Ok(seconds) = u64::try_from(args.grace_period) {
        path += &format!("&gracePeriodSeconds={seconds}");
    }
    if let Some(selector) = &args.pod_selector {
        path += &format!("&labelSelector={}", encode(selector));
    }
    let deadline = patience.map(|patience| clock::now() + patience);
    let received = listen(client.send("POST", &path, None)?)?;
    let mut shown = Shown::new(&name, dry_run);
    loop {
        let next = match deadline {
            Some(at) => received.recv_timeout(at.saturating_duration_since(clock::now())),
            None => received.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match next {
            Ok(DrainEvent::Line(line)) => {
                if shown.take(&line)? {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            Ok(DrainEvent::Lost(why)) => {
                let lost = CliError::new("lost the agent while pods were leaving");
                return Err(why
                    .iter()
                    .fold(lost, |e, why| e.because(why))
                    .hint("the drain continues when the agent is back; the same command waits for its end"));
            }
            Ok(DrainEvent::Interrupted) => {
                shown.clear();
                eprintln!("{GOES_ON}");
                return Ok(ExitCode::from(130));
            }
            Err(RecvTimeoutError::Timeout) => {
                let left = shown.left.join(", ");
                let text = format!("global timeout reached: {}", args.timeout);
                let error = CliError::new(format!("unable to drain node \"{name}\"")).because(text);
                let error = match left.is_empty() {
                    true => error,
                    false => error.because(format!("still leaving: {left}")),
                };
                return Err(error.hint(GOES_ON));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CliError::new("lost the agent while pods were leaving"));
            }
        }
    }
}

/// What can happen while the client waits for a drain.
enum DrainEvent {
    Line(String),
    /// The answer ended before the drain did.
    Lost(Option<io::Error>),
    /// SIGINT (Ctrl-C) came.
    Interrupted,
}

/// Reads the answer and SIGINT on threads of their own, so that neither blocks the other.
fn listen(response: Response) -> Result<Receiver<DrainEvent>> {
    let (sender, received) = mpsc::channel();
    interrupts(sender.clone())
        .map_err(|e| CliError::new("could not watch for signals").because(e))?;
    thread::spawn(move || {
        for line in response.body.lines() {
            let lost = line.is_err();
            let said = line.map_or_else(|e| DrainEvent::Lost(Some(e)), DrainEvent::Line);
            if sender.send(said).is_err() || lost {
                return;
            }
        }
        let _ = sender.send(DrainEvent::Lost(None));
    });
    Ok(received)
}

fn interrupts(sender: Sender<DrainEvent>) -> io::Result<()> {
    let (mut reader, writer) = UnixStream::pair()?;
    for signal in signals::heeded(&[Signal::SIGINT]) {
        signal_hook::low_level::pipe::register(signal as i32, writer.try_clone()?)?;
    }
    thread::spawn(move || {
        if reader.read_exact(&mut [0]).is_ok() {
            let _ = sender.send(DrainEvent::Interrupted);
        }
    });
    Ok(())
}

/// What was printed so far.
struct Shown {
    node: String,
    dry_run: bool,
    /// Pods that are leaving.
    left: Vec<String>,
    bar: Option<ProgressBar>,
}

impl Shown {
    fn new(node: &str, dry_run: bool) -> Self {
        let bar = io::stderr().is_terminal() && io::stdout().is_terminal() && !dry_run;
        Self {
            node: node.to_owned(),
            dry_run,
            left: Vec::new(),
            bar: bar.then(ProgressBar::new_spinner),
        }
    }

    /// Prints one line of the answer; `true` for the last one.
    fn take(&mut self, line: &str) -> Result<bool> {
        let step: Value = serde_json::from_str(line).unwrap_or_default();
        let word = |name: &str| step[name].as_str().unwrap_or_default();
        let pod = format!("{}/{}", word("namespace"), word("name"));
        let dry = if self.dry_run { " (dry run)" } else { "" };
        match word("type") {
            "cordoned" => {
                let already = match step["already"] {
                    Value::Bool(true) => "already ",
                    _ => "",
                };
                self.print(&format!("node/{} {already}cordoned{dry}", self.node))?;
            }
            "evicting" => {
                self.left.push(pod.clone());
                self.print(&format!("evicting pod {pod}{dry}"))?;
            }
            "evicted" => {
                self.left.retain(|left| *left != pod);
                self.print(&format!("pod/{} evicted", word("name")))?;
            }
            "drained" => {
                self.clear();
                self.print(&format!("node/{} drained{dry}", self.node))?;
                return Ok(true);
            }
            "uncordoned" => {
                let text = "the drain was called off: the node was uncordoned";
                return Err(CliError::new(text));
            }
            // A newer agent may send more.
            _ => {}
        }
        Ok(false)
    }

    fn print(&self, text: &str) -> Result<()> {
        let Some(bar) = &self.bar else {
            return put(format!("{text}\n").as_bytes());
        };
        bar.set_message(match &self.left[..] {
            [] => String::new(),
            left => format!("waiting for {}", left.join(", ")),
        });
        bar.enable_steady_tick(Duration::from_millis(200));
        bar.suspend(|| put(format!("{text}\n").as_bytes()))
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.clear();
    }
}

impl DryRun {
    fn is_on(self) -> bool {
        match self {
            Self::None => false,
            Self::Client | Self::Server => true,
        }
    }
}
