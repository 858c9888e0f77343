#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

static ROOM: LazyLock<PathBuf> = LazyLock::new(|| {
    let room = std::env::temp_dir().join(format!("coracle-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&room).expect("a folder");
    room
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    targets::images(&ROOM, input);
});
