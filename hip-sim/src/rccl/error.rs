//! What `ncclGetLastError` tells.

use std::ffi::c_char;
use std::sync::atomic::{AtomicU8, Ordering};

const ROOM: usize = 1024;

static TEXT: [AtomicU8; ROOM] = [const { AtomicU8::new(0) }; ROOM];

/// Remembers a message, cut to the room for it.
pub(super) fn set(message: &str) {
    let bytes = message.bytes().take(ROOM - 1).chain([0]);
    (TEXT.iter().zip(bytes)).for_each(|(slot, byte)| slot.store(byte, Ordering::Relaxed));
}

/// The last message of the process, a C string.
pub(super) fn get() -> *const c_char {
    TEXT.as_ptr().cast()
}
