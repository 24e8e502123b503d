//! What happens when the machine's memory does not suffice.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

const MESSAGE: &[u8] = b"error: memory does not suffice; close other programs, raise the limit (ulimit -v, the container's), or take a smaller model or context\n";

/// Whether an allocation that fails ends the process with a message and the exit code of a failure.
static ENDS: AtomicBool = AtomicBool::new(false);

/// Lets allocations that fail end the process with a message and [`crate::error::EXIT_FAILURE`] in place of an abort.
/// For a program of one command, which cannot go on; a server goes on wherever its code tries an allocation and has a
/// way out, and is started anew after an abort.
pub fn end_cleanly(on: bool) {
    ENDS.store(on, Ordering::Relaxed);
}

/// The system's allocator, which tells the user when there is no more ([`end_cleanly`]).
pub struct Allocator;

fn checked(place: *mut u8) -> *mut u8 {
    if place.is_null() && ENDS.load(Ordering::Relaxed) {
        // SAFETY: writes from a constant of that length, then ends the process without running anything that could
        // allocate.
        unsafe {
            libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::_exit(crate::error::EXIT_FAILURE.into());
        }
    }
    place
}

// SAFETY: every call is the system allocator's own, with the caller's arguments.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as promised by the caller.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as promised by the caller.
        checked(unsafe { System.realloc(place, layout, size) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(place, layout) }
    }
}
