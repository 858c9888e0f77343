//! What containers of the simulated world do.

use super::Rng;
use coracle::plan::event::*;

/// What a container does, by name and UID; always the same within a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Habit {
    Stays,
    StaysAndHangs,
    CrashesAtOnce,
    CrashesLate,
    /// Exits with a code that restart rules match.
    AsksForRestart,
    /// Fails every second time.
    Fails,
    EndsWell,
}

/// The habit of an instance.
pub(super) fn habit(salt: u64, instance: &Instance) -> Habit {
    let mut sum = salt;
    for byte in instance
        .pod
        .as_str()
        .bytes()
        .chain(instance.container.bytes())
    {
        sum = sum.wrapping_mul(31).wrapping_add(u64::from(byte));
    }
    // Its lowest bits depend on too few others.
    sum = Rng(sum | 1).next() >> 32;
    if instance.container.starts_with('i') {
        return match sum % 5 {
            0..3 => Habit::EndsWell,
            3 => Habit::Fails,
            _ => Habit::CrashesLate,
        };
    }
    match instance.container.as_str() {
        // Pods of documents that are to be available in the end, and of Jobs that are to succeed.
        "w" => return Habit::Stays,
        "j" if sum % 8 > 1 => return Habit::EndsWell,
        "j" if sum % 8 == 1 => return Habit::Fails,
        "j" => return Habit::CrashesAtOnce,
        _ => {}
    }
    match sum % 8 {
        7 => Habit::AsksForRestart,
        0 | 1 => Habit::Stays,
        2 => Habit::StaysAndHangs,
        3 => Habit::CrashesAtOnce,
        4 | 5 => Habit::CrashesLate,
        _ => Habit::EndsWell,
    }
}
