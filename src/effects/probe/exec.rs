//! Exec probes: a program in the container, whose exit code decides (Kubernetes docs: Probes).

use std::io;
use std::time::Duration;

use super::hook::{COMMAND_BYTES, shown};
use super::{OUTPUT_BYTES, Outcome, Target, go_duration, within};
use crate::effects::exec::{kept_end, start_kept};
use crate::shim::protocol::{ExecRequest, Keep, KeptEnd};

/// The kubelet's shortest timeout of a program.
const SHORTEST: Duration = Duration::from_secs(1);

/// How long after its deadline, at which the shim ends it, a program counts as hung.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) async fn run(command: &[String], timeout: Duration, target: &Target) -> Outcome {
    let timeout = timeout.max(SHORTEST);
    let late = || {
        Outcome::Failure(format!(
            "command timed out: \"{}\" timed out after {}",
            shown(&command.join(" "), COMMAND_BYTES),
            go_duration(timeout)
        ))
    };
    let asked = request(command, Some(timeout), target);
    let program = match within(timeout, start_kept(&target.shim_socket, asked)).await {
        Some(Ok(program)) => program,
        Some(Err(error)) => return Outcome::Error(error.to_string()),
        None => return late(),
    };
    match within(timeout + PATIENCE, kept_end(&program)).await {
        Some(Ok(end)) if end.timed_out => late(),
        Some(Ok(end)) if end.code == 0 => Outcome::Success(output(&end)),
        Some(Ok(end)) => Outcome::Failure(output(&end)),
        Some(Err(error)) => Outcome::Error(error.to_string()),
        None => late(),
    }
}

/// Runs a program without a timeout, or joins it, and waits for its end.
pub(super) async fn to_the_end(command: &[String], target: &Target) -> io::Result<KeptEnd> {
    let asked = request(command, None, target);
    kept_end(&start_kept(&target.shim_socket, asked).await?).await
}

/// A program that survives an agent restart.
fn request(command: &[String], timeout: Option<Duration>, target: &Target) -> ExecRequest {
    let timeout_ms = timeout.map(|timeout| timeout.as_millis().try_into().unwrap_or(u64::MAX));
    ExecRequest {
        container: target.container.clone(),
        argv: command.to_vec(),
        env: Vec::new(),
        tty: false,
        size: None,
        keep: Some(Keep {
            purpose: target.purpose,
            attempt: target.attempt,
            timeout_ms,
        }),
        copy: None,
    }
}

/// The beginning of the program's output: standard output, then standard error.
pub(super) fn output(end: &KeptEnd) -> String {
    let mut text = format!("{}{}", end.output, end.errors);
    let most = text.len().min(OUTPUT_BYTES);
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}
