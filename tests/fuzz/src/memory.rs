//! The allocator that counts what is in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
pub struct Counting;

/// Counts the most from now on.
pub fn start() -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    MOST.store(live, Ordering::Relaxed);
    live
}

/// The most bytes in use since [`start`].
pub fn most() -> usize {
    MOST.load(Ordering::Relaxed)
}

fn took(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's own, with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let place = unsafe { System.alloc(layout) };
        if !place.is_null() {
            took(layout.size());
        }
        place
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let place = unsafe { System.alloc_zeroed(layout) };
        if !place.is_null() {
            took(layout.size());
        }
        place
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        let place = unsafe { System.realloc(place, layout, size) };
        if !place.is_null() {
            took(size);
            LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        place
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(place, layout) }
    }
}
