//! A signpost: which face of coracle was asked for?

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(face) if face == "image-worker" => coracle::effects::image::worker::run(args),
        _ => ExitCode::from(2),
    }
}
