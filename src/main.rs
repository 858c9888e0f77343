//! A signpost: which face of coracle was asked for?

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    // Before anything that could start a thread: a shim must have one only.
    match (args.next(), args.next()) {
        (Some(face), Some(config)) if face == "shim" => shim(Path::new(&config)),
        _ => ExitCode::SUCCESS,
    }
}

fn shim(config: &Path) -> ExitCode {
    let Err(error) = coracle::shim::run(config) else {
        return ExitCode::SUCCESS;
    };
    let mut text = format!("error: {error}");
    let mut cause = std::error::Error::source(&error);
    while let Some(next) = cause {
        text.push_str(&format!("\n  caused by: {next}"));
        cause = next.source();
    }
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::FAILURE
}
