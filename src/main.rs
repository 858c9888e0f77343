//! A signpost: which face of coracle was asked for? The faces that must be alone in their process come first.

use std::process::ExitCode;

fn main() -> ExitCode {
    coracle::cli::main(std::env::args_os())
}
