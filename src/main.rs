//! A signpost: which face of coracle was asked for?

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        // First of all, before anything could start a thread: containers are cloned from this very process.
        Some(face) if face == "shim" => {
            let config = args.next().unwrap_or_default();
            match coracle::shim::run(Path::new(&config)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => coracle::cli::fail(&error),
            }
        }
        Some(face) if face == "image-worker" => coracle::images::worker::run(args),
        _ => coracle::cli::main(std::env::args_os()),
    }
}
