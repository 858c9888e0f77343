//! Fuzzing of all inputs from outside: mutated manifests, images, answers of registries, settings for them, requests,
//! frames and name queries, each at the function that receives them. No input may panic, take memory or time beyond a
//! limit, or leave anything outside its folder.
//!
//! The inputs kept in `tests/fuzz/corpus` come first, as they are; then mutations. `cargo fuzz` runs the same functions
//! from the same corpus (`tests/README.md`).
//!
//! Each input follows from the seed and its number, so that a failure can be reproduced: `CORACLE_FUZZ_SEED=7
//! CORACLE_FUZZ_ONLY=1234 cargo test --test fuzz manifests`. The long run: `CORACLE_FUZZ_INPUTS=1000000 cargo test
//! --test fuzz`; the entrances share the inputs by their cost.

#[path = "fuzz/api.rs"]
mod api;
#[path = "images/fixture.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a part is used")]
mod fixture;
#[path = "fuzz/frames.rs"]
mod frames;
#[path = "fuzz/images.rs"]
mod images;
#[path = "fuzz/manifests.rs"]
mod manifests;
#[path = "fuzz/memory.rs"]
mod memory;
#[path = "fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/names.rs"]
mod names;
#[path = "fuzz/registries.rs"]
mod registries;
#[path = "fuzz/targets.rs"]
#[allow(unreachable_pub, missing_docs, reason = "cargo-fuzz uses it, too")]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mutate::Random;
use nix::time::{ClockId, clock_gettime};

/// The default number of inputs, of all entrances together.
const FEW: u64 = 4_000;

/// One entrance: its share of all inputs, and the limits for one input.
#[derive(Debug, Clone, Copy)]
struct Entrance {
    name: &'static str,
    /// The share, of 1000 inputs; cheap entrances take more.
    share: u64,
    most_bytes: usize,
    most_time: Duration,
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// Runs an entrance with its share of inputs.
#[allow(clippy::print_stderr, reason = "how to reproduce it")]
fn fuzz(entrance: Entrance, make: impl Fn(&mut Random) -> Vec<u8>, mut take: impl FnMut(&[u8])) {
    let seed = number("CORACLE_FUZZ_SEED").unwrap_or(1);
    let inputs = number("CORACLE_FUZZ_INPUTS").unwrap_or(FEW);
    let inputs = (inputs * entrance.share / 1000).max(1);
    let only = number("CORACLE_FUZZ_ONLY");
    let all = only.map_or(0..inputs, |only| only..only + 1);
    eprintln!("{}: seed {seed}, inputs {all:?}", entrance.name);
    for (path, input) in corpus(entrance.name) {
        if let Some(why) = fault(&entrance, &input, &mut take) {
            panic!("{why}: the input is {}", path.display());
        }
    }
    for at in all {
        let input = make(&mut Random::new(seed, at));
        let Some(why) = fault(&entrance, &input, &mut take) else {
            continue;
        };
        let name = format!("coracle-fuzz-{}-{seed}-{at}", entrance.name);
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, &input).expect("a temporary file");
        panic!(
            "{why}: CORACLE_FUZZ_SEED={seed} CORACLE_FUZZ_ONLY={at} cargo test --test fuzz {}; the input is {}",
            entrance.name,
            path.display()
        );
    }
}

/// What is wrong with what happens to an input.
fn fault(entrance: &Entrance, input: &[u8], take: &mut impl FnMut(&[u8])) -> Option<String> {
    let began = cpu_time();
    memory::begin();
    let ended = catch_unwind(AssertUnwindSafe(|| take(input)));
    let (bytes, time) = (memory::most(), cpu_time() - began);
    match ended {
        Err(_) => Some("it panics".to_owned()),
        Ok(()) if bytes > entrance.most_bytes => Some(format!("it takes {bytes} bytes")),
        Ok(()) if time > entrance.most_time => Some(format!("it takes {time:?}")),
        Ok(()) => None,
    }
}

/// The kept inputs of an entrance, by name.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let entries = std::fs::read_dir(folder.join(name)).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("a kept input");
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// The CPU time of this thread, because the machine may be busy with other work.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a thread has a clock");
    Duration::from(time)
}
