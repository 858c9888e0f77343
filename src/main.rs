//! A signpost: which face of coracle was asked for?

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match (args.next(), args.next()) {
        // Before anything else, so that no thread exists yet: containers are cloned from this process.
        (Some(face), Some(config)) if face == "shim" => {
            report(coracle::shim::run(Path::new(&config)))
        }
        _ => coracle::cli::main(),
    }
}
fn report<E: std::error::Error>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
