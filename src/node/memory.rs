//! Free memory inside the heap, returned to the system after large work. The allocator by itself returns only what
//! is free at the heap's end. No timer is needed: small work adds up until a trim is worth it.

use crate::sys::allocator;

/// Bytes freed before the next trim. A trim costs about as much as freeing this did.
pub(super) const LARGE: u64 = 1 << 20;

/// What one pod, or one manifest, takes at least.
pub(super) const SMALL: u64 = 16 << 10;

/// What the start of a pod leaves behind, spread over the heap: a trim is worth it after eight.
pub(super) const STARTED: u64 = LARGE / 8;

/// Bytes freed since the last trim.
#[derive(Debug, Default)]
pub(super) struct Freed(u64);

impl Freed {
    /// Adds freed bytes.
    pub(super) fn note(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Whether a trim is worth it.
    pub(super) fn is_much(&self) -> bool {
        self.0 >= LARGE
    }

    /// Returns free memory to the system.
    pub(super) fn give_back(&mut self) {
        self.0 = 0;
        allocator::trim();
    }
}
