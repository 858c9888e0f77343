//! The command line: one function a command; each talks to the agent through [`client`] and prints.

/// In place of the standard library's, which panics if the standard error takes nothing, as on a full disk.
macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::cli::streams::say(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// The same without an end of line.
macro_rules! eprint {
    ($($text:tt)*) => {
        $crate::cli::streams::say(format_args!($($text)*))
    };
}

pub mod args;
mod attach;
mod black_box;
mod boot;
mod bundle;
mod bundle_create;
mod chosen;
pub mod client;
mod complete;
mod condition;
mod config;
mod container;
mod convert;
mod copy;
mod cordon;
mod create;
mod debug;
mod delete;
mod describe;
mod describe_cgroups;
mod describe_claim;
mod describe_configuration;
mod describe_container;
mod describe_node;
mod describe_probe;
mod describe_security;
mod describe_service;
mod describe_workload;
mod directories;
mod doctor;
mod end_pods;
pub mod error;
mod events;
mod exec;
mod explain;
mod follow;
mod fsck;
mod get;
mod health;
mod help;
mod image;
mod image_details;
mod install;
mod jsonpath;
mod leading;
mod logs;
mod meant;
mod meant_below;
mod node_run;
mod output;
mod plan;
mod port_forward;
mod pull;
mod report;
mod restart;
mod retry;
mod rollout;
mod save;
mod secret;
mod session;
mod sheet;
mod shutdown;
mod similar;
mod status;
mod stop;
mod streams;
mod switches;
mod system;
mod table;
mod target;
mod top;
mod upgrade;
pub mod validate;
mod version;
mod volume;
mod wait;

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, FsckArgs};
use client::Client;
use error::{CliError, Result};
use streams::Patient;

use crate::layout::Layout;

/// Runs the command line and prints an error, if any.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = switches::plain(leading::behind(args.into_iter().collect()));
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => {
            let meant = meant::instead(&error, &args);
            if let Some(error) = meant.or_else(|| meant_below::instead(&error, &args)) {
                eprintln!("{error}");
                return ExitCode::from(error.exit_code());
            }
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    // Rust ignores SIGPIPE; a command should end when its reader has gone. The agent must not: programs it writes to
    // may close their input. The answer of a health check is its exit code, whether anybody reads the line or not.
    if !matches!(cli.command, Command::Run(_) | Command::Healthcheck(_))
        && let Err(error) = crate::sys::signals::default_sigpipe()
    {
        eprintln!("warning: could not reset SIGPIPE: {error}, ignoring");
    }
    if matches!(cli.command, Command::Run(_)) && names_socket(&args) {
        let error = CliError::usage("the agent makes its socket itself, and takes no --socket")
            .hint("--run-dir names the directory in which it is");
        eprintln!("{error}");
        return ExitCode::from(error.exit_code());
    }
    let given = names_socket(&args) || std::env::var_os("CORACLE_SOCKET").is_some();
    let client = Client {
        socket: match &cli.command {
            // The agent of that directory gets damaged images again, not the one of the default socket.
            Command::Fsck(FsckArgs {
                run_dir: Some(run_dir),
                ..
            }) if !given => Layout {
                run_dir: run_dir.clone(),
                ..Layout::default()
            }
            .api_socket(),
            _ => cli.socket,
        },
    };
    match dispatch(&client, cli.command) {
        Ok(code) => code,
        Err(error) => {
            let error = similar::with_hint(&client, error);
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}

/// Whether a socket is given on the command line, not by the environment.
fn names_socket(args: &[OsString]) -> bool {
    args.iter().any(|word| {
        let word = word.as_encoded_bytes();
        word == b"--socket" || word.starts_with(b"--socket=")
    })
}

/// Prints an error of a process that is not a command, such as a shim.
pub fn fail(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("{}", CliError::of(error));
    ExitCode::FAILURE
}

fn dispatch(client: &Client, command: Command) -> Result<ExitCode> {
    match command {
        Command::Run(args) => node_run::run(args),
        Command::Get(args) => get::run(client, &args),
        Command::Events(args) => events::run(client, args),
        Command::Describe(args) => describe::run(client, &args),
        Command::Top(args) => top::run(client, &args),
        Command::Logs(args) => logs::run(client, &args),
        Command::Exec(args) => exec::run(client, &args),
        Command::Attach(args) => attach::run(client, &args),
        Command::Cp(args) => copy::run(client, &args),
        Command::PortForward(args) => port_forward::run(client, &args),
        Command::Debug(args) => debug::run(client, &args),
        Command::Delete(args) => delete::run(client, &args),
        Command::Wait(args) => wait::run(client, &args),
        Command::Restart(args) => restart::run(client, &args),
        Command::Stop(args) => stop::stop(client, &args),
        Command::Start(args) => stop::start(client, &args),
        Command::Status(args) => status::run(client, &args),
        Command::System(command) => system::run(client, &command),
        Command::Retry(args) => retry::run(client, &args),
        Command::Rollout(command) => rollout::run(client, &command),
        Command::Condition(command) => condition::run(client, &command),
        Command::Image(command) => image::run(client, command),
        Command::Bundle(command) => bundle::run(client, command),
        Command::Volume(command) => volume::run(client, command),
        Command::Secret(command) => secret::run(&command),
        Command::Config(command) => config::run(client, &command),
        Command::Plan(args) => plan::run(client, &args),
        Command::Blackbox(args) => black_box::run(client, &args),
        Command::Report(args) => report::run(client, &args),
        Command::Healthcheck(args) => health::run(client, &args),
        Command::Cordon(args) => cordon::cordon(client, &args),
        Command::Drain(args) => cordon::drain(client, &args),
        Command::Uncordon(args) => cordon::uncordon(client, &args),
        Command::Boot(args) => boot::run(client, &args),
        Command::Shutdown(args) => shutdown::run(client, &args),
        Command::Create(args) => create::run(client, &args),
        Command::Explain(args) => explain::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Doctor(args) => doctor::run(client, &args),
        Command::Fsck(args) => fsck::run(client, &args),
        Command::Install(args) => install::run(client, &args),
        Command::Uninstall(args) => install::remove(client, &args),
        Command::Upgrade(args) => upgrade::run(client, &args),
        Command::EndPods(args) => end_pods::run(client, &args),
        Command::Version(args) => version::run(client, &args),
        Command::Completion { shell } => {
            put(complete::script(shell).as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Complete { words } => complete::run(client.clone(), &words),
        Command::Help { topic } => help::run(&topic),
        Command::Man { page } => {
            put(&help::man_page(&page)?)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Asks whether to remove this, on the terminal.
fn confirm(what: &str) -> Result<()> {
    eprint!("Remove {what}? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_err() || !matches!(answer.trim(), "y" | "Y" | "yes") {
        return Err(CliError::new("not confirmed").hint("use --force to skip the question"));
    }
    Ok(())
}

/// Writes to standard output and flushes.
fn put(text: &[u8]) -> Result<()> {
    let mut out = Patient(io::stdout().lock());
    out.write_all(text).map_err(|e| cannot_write(&e))
}

fn cannot_write(error: &io::Error) -> CliError {
    CliError::new("could not write to the standard output").because(error)
}

/// Returns the path of a pod, or of a namespace's pods if the name is empty.
fn pod_path(namespace: &str, name: &str) -> String {
    use crate::api::encode;
    match name {
        "" => format!("/api/v1/namespaces/{}/pods", encode(namespace)),
        name => format!(
            "/api/v1/namespaces/{}/pods/{}",
            encode(namespace),
            encode(name)
        ),
    }
}
