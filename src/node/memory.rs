//! Memory that large work leaves free inside the heap, given back to the system when the work is done. The allocator by
//! itself gives back only what is free at the heap's end. Nothing wakes up for this: small work adds up until it is worth a
//! look.

use crate::sys::process;

/// Freed since the last look, before there is a next one. A look costs about as much as freeing this has cost.
pub(super) const LARGE: u64 = 1 << 20;

/// What one pod, or one manifest, holds at least.
pub(super) const SMALL: u64 = 16 << 10;

/// What was freed since memory was given back.
#[derive(Debug, Default)]
pub(super) struct Freed(u64);

impl Freed {
    /// Adds to it.
    pub(super) fn note(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Whether it is worth a look.
    pub(super) fn is_much(&self) -> bool {
        self.0 >= LARGE
    }

    /// Gives it back.
    pub(super) fn give_back(&mut self) {
        self.0 = 0;
        process::trim_memory();
    }
}
