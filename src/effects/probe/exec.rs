//! Does a program in the container say so? Its exit code decides (kubelet-behaviour §5.4).

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use smol::Async;
use smol::channel::{self, Receiver};

use super::{OUTPUT_BYTES, Outcome, Target, go_duration, within};
use crate::effects::exec::{DRAIN, Program, exit_code, read_or_tire};
use crate::shim::protocol::ExecRequest;

/// The kubelet's shortest timeout of a program.
const SHORTEST: Duration = Duration::from_secs(1);

/// Once enough was read, the rest is thrown away at this pace (a pipe's content each time), so that a program that
/// writes without end does not keep the agent busy.
const PACE: Duration = Duration::from_millis(10);

pub(super) async fn run(command: &[String], timeout: Duration, target: &Target) -> Outcome {
    let timeout = timeout.max(SHORTEST);
    // Ending the attempt closes its connection, and the shim then kills the program.
    match within(timeout, to_the_end(command, target)).await {
        Some(Ok(ended)) if ended.code == 0 => Outcome::Success(ended.output),
        Some(Ok(ended)) => Outcome::Failure(ended.output),
        Some(Err(error)) => Outcome::Error(error.to_string()),
        None => Outcome::Failure(format!(
            "command timed out: \"{}\" timed out after {}",
            command.join(" "),
            go_duration(timeout)
        )),
    }
}

/// How a program ended.
pub(super) struct Ended {
    pub(super) code: i32,
    /// The beginning of what it wrote: output, then errors.
    pub(super) output: String,
    /// The beginning of its errors.
    pub(super) errors: String,
}

/// Runs it and waits for its end.
pub(super) async fn to_the_end(command: &[String], target: &Target) -> io::Result<Ended> {
    let asked = ExecRequest {
        container: target.container.clone(),
        argv: command.to_vec(),
        env: Vec::new(),
        tty: false,
        size: None,
    };
    let program = Program::start(&target.shim_socket, asked, false).await?;
    // Closed when the program has ended.
    let (running, ended) = channel::bounded::<Infallible>(1);
    let exit = async {
        let code = exit_code(&program.shim).await;
        drop(running);
        code
    };
    let outputs = smol::future::zip(collect(&program.stdout, &ended), async {
        match &program.stderr {
            Some(stderr) => collect(stderr, &ended).await,
            None => Vec::new(),
        }
    });
    let (code, (mut output, errors)) = smol::future::zip(exit, outputs).await;
    output.extend_from_slice(&errors);
    output.truncate(OUTPUT_BYTES);
    Ok(Ended {
        code: code?,
        output: String::from_utf8_lossy(&output).into_owned(),
        errors: String::from_utf8_lossy(&errors).into_owned(),
    })
}

/// Reads to the end and keeps the beginning.
async fn collect(source: &Async<std::fs::File>, ended: &Receiver<Infallible>) -> Vec<u8> {
    let mut patience = DRAIN;
    let mut kept = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    loop {
        match read_or_tire(source, &mut buffer, ended, &mut patience).await {
            Ok(0) | Err(_) => return kept,
            Ok(length) => {
                let room = OUTPUT_BYTES - kept.len();
                kept.extend_from_slice(&buffer[..length.min(room)]);
            }
        }
        if kept.len() == OUTPUT_BYTES {
            if ended.is_closed() {
                return kept;
            }
            buffer.resize(64 << 10, 0);
            smol::Timer::after(PACE).await;
        }
    }
}
