//! The memory that an input takes: an allocator that counts allocations by thread and refuses those beyond a limit, so
//! that an input without limits ends the test and not the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The limit of a thread: beyond it the process aborts.
const END: isize = 2 << 30;

thread_local! {
    static HAS: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(more: isize) -> bool {
    // A thread that ends has no counters any more.
    let has = HAS.try_with(|has| {
        has.set(has.get() + more);
        has.get()
    });
    let has = has.unwrap_or(0);
    let _ = MOST.try_with(|most| most.set(most.get().max(has)));
    has < END
}

fn length(layout: Layout) -> isize {
    isize::try_from(layout.size()).expect("an allocation's size")
}

// SAFETY: everything is passed on to the system's allocator, except refused requests, which get null.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !count(length(layout)) {
            return std::ptr::null_mut();
        }
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-length(layout));
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !count(length(layout)) {
            return std::ptr::null_mut();
        }
        // SAFETY: as our caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }
}

/// Resets the count of this thread.
pub(crate) fn begin() {
    HAS.with(|has| has.set(0));
    MOST.with(|most| most.set(0));
}

/// The maximum that this thread has had at a time since then.
pub(crate) fn most() -> usize {
    usize::try_from(MOST.with(Cell::get)).unwrap_or(0)
}

#[test]
fn the_allocations_of_a_thread_are_counted() {
    begin();
    drop(vec![0u8; 1 << 20]);
    let small = vec![0u8; 1 << 10];
    assert!((1 << 20..2 << 20).contains(&most()), "{}", most());
    drop(small);
}
