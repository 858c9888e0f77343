//! A signpost: which face of coracle was asked for?

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    // Before anything that could start a thread: a shim must have one only.
    if let (Some(face), Some(config)) = (args.next(), args.next())
        && face == "shim"
    {
        return match coracle::shim::run(Path::new(&config)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                use std::io::Write;
                let mut text = format!("error: {error}");
                let mut cause = std::error::Error::source(&error);
                while let Some(next) = cause {
                    text.push_str(&format!("\n  caused by: {next}"));
                    cause = next.source();
                }
                let _ = writeln!(std::io::stderr(), "{text}");
                ExitCode::FAILURE
            }
        };
    }
    ExitCode::SUCCESS
}
