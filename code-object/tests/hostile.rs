//! Corrupt objects: an error or facts, never a panic, and never much more memory than the file has. What is damaged in
//! several places at random is in `tests/fuzz`.

use code_object::{read, CodeObject, Error};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

const GFX1100: &[u8] = include_bytes!("fixtures/gfx1100.elf");

/// The most that reading takes for each byte of the file, and besides: serde sets aside up to 1 MiB for an array of
/// announced length, of kernels and of the arguments of one.
const BYTES_PER_BYTE: usize = 16;
const BYTES_BESIDES: usize = (2 << 20) + (64 << 10);

/// Counts the bytes that a thread holds, and the most that it held.
struct Counting;

thread_local! {
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn add(bytes: usize) {
    // A thread that ends allocates without being counted.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        let now = now.saturating_add(bytes);
        held.set((now, most.max(now)));
    });
}

fn take(bytes: usize) {
    let _ = HELD.try_with(|held| held.set((held.get().0.saturating_sub(bytes), held.get().1)));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        take(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads a file; fails if that takes too much memory.
fn read_within_bounds(file: &[u8]) -> Result<(), Error> {
    HELD.set((0, 0));
    let outcome = read(file).map(drop);
    let most = HELD.get().1;
    let allowed = BYTES_PER_BYTE * file.len() + BYTES_BESIDES;
    assert!(most <= allowed, "{most} bytes for a file of {}", file.len());
    outcome
}

#[test]
fn any_byte_may_be_wrong() {
    let mut refused = 0;
    for at in 0..GFX1100.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut file = GFX1100.to_vec();
            file[at] ^= change;
            refused += usize::from(read_within_bounds(&file).is_err());
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn any_length_may_be_missing() {
    for end in 0..GFX1100.len() {
        let outcome = read_within_bounds(&GFX1100[..end]);
        // The table of sections is at the end.
        assert!(outcome.is_err(), "{end} bytes");
    }
}

/// Metadata that announces more than it has, or has no end of levels.
#[test]
fn metadata_may_lie() {
    let header = GFX1100
        .windows(7)
        .position(|window| window == b"AMDGPU\0")
        .unwrap();
    let size = u32::from_le_bytes(GFX1100[header - 8..header - 4].try_into().unwrap()) as usize;
    let start = header + 8;
    let with = |metadata: &[u8]| {
        let mut file = GFX1100.to_vec();
        file[start..start + size].fill(0xc0);
        file[start..start + metadata.len()].copy_from_slice(metadata);
        match read_within_bounds(&file) {
            Err(Error::Metadata(_)) => {}
            other => panic!("{metadata:x?}: {other:?}"),
        }
    };
    let kernels = |value: &[u8]| {
        let mut metadata = vec![0x81, 0xae];
        metadata.extend(b"amdhsa.kernels");
        metadata.extend(value);
        metadata
    };
    with(b"");
    // Arrays and maps of 2^32 - 1 entries, strings and bytes of as many.
    for tag in [0xdd, 0xdf, 0xdb, 0xc6] {
        with(&[tag, 0xff, 0xff, 0xff, 0xff]);
        with(&kernels(&[tag, 0xff, 0xff, 0xff, 0xff]));
        with(&kernels(&[
            0x91, 0x81, 0xa5, b'.', b'n', b'a', b'm', b'e', tag, 0xff, 0xff, 0xff, 0xff,
        ]));
    }
    // Arrays in arrays, as deep as the note is long, where a value is ignored and where one is wanted.
    with(&vec![0x91; size]);
    with(&[&[0x81, 0xa1, b'x'][..], &vec![0x91; size - 3]].concat());
    with(&kernels(&vec![0x91; size - 16]));
}

#[test]
fn what_is_sound_is_read() {
    assert!(read_within_bounds(GFX1100).is_ok());
    assert!(CodeObject::parse(GFX1100).is_ok());
}
