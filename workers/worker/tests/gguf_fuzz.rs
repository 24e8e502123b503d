//! The GGUF reader on files that were damaged at random: an error or a file whose tensors lie inside it, never a panic,
//! and no more memory than the file's own bytes justify.

mod common;

use common::tiny_llama;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Cursor;
use std::sync::LazyLock;
use worker::gguf::Gguf;

/// The system's allocator, remembering the largest request of each thread.
struct Watching;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

static VALID: LazyLock<Vec<u8>> = LazyLock::new(|| tiny_llama().bytes());

/// Bytes before the tensors' data, where damage can mean anything.
static HEADER_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let gguf = Gguf::read(Cursor::new(&VALID[..])).expect("the file that is damaged is valid");
    gguf.data_offset as usize
});
/// Numbers that break what forgets to check: sizes near every limit.
const EXTREMES: [u64; 8] = [
    0,
    1,
    7,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64,
    u64::MAX - 31,
    u64::MAX,
];

#[derive(Debug, Clone)]
enum Damage {
    Byte(usize, u8),
    Extreme(usize, usize),
    Cut(usize),
    Copy { from: usize, to: usize, len: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || 0..*HEADER_BYTES;
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        (place(), 0..EXTREMES.len()).prop_map(|(at, which)| Damage::Extreme(at, which)),
        (0..VALID.len()).prop_map(Damage::Cut),
        (place(), place(), 1..64usize).prop_map(|(from, to, len)| Damage::Copy { from, to, len }),
    ]
}

fn apply(file: &mut Vec<u8>, damage: &Damage) {
    let end = file.len();
    match *damage {
        Damage::Byte(at, byte) if at < end => file[at] = byte,
        Damage::Extreme(at, which) if at + 8 <= end => {
            file[at..at + 8].copy_from_slice(&EXTREMES[which].to_le_bytes());
        }
        Damage::Cut(at) => file.truncate(at),
        Damage::Copy { from, to, len } if from.max(to) + len <= end => {
            file.copy_within(from..from + len, to);
        }
        _ => {}
    }
}

/// Reads `file`; what it says of itself must hold.
fn read(file: &[u8]) -> Result<(), TestCaseError> {
    LARGEST.set(0);
    let outcome = Gguf::read(Cursor::new(file));
    // One string per byte of the file is the worst that can be justified.
    let justified = 64 * file.len() + (64 << 10);
    prop_assert!(
        LARGEST.get() <= justified,
        "an allocation of {} bytes",
        LARGEST.get()
    );
    if let Ok(gguf) = outcome {
        for (name, info) in gguf.tensors() {
            let end = gguf
                .data_offset
                .checked_add(info.offset)
                .and_then(|at| at.checked_add(info.bytes));
            prop_assert!(
                end.is_some_and(|end| end <= file.len() as u64),
                "{name} reaches past the end"
            );
            prop_assert!(info.elem_count() > 0, "{name} is empty");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files(damages in proptest::collection::vec(damage(), 1..6)) {
        let mut file = VALID.clone();
        for damage in &damages {
            apply(&mut file, damage);
        }
        read(&file)?;
    }

    #[test]
    fn noise_behind_a_magic(noise in proptest::collection::vec(any::<u8>(), 0..256)) {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(noise);
        read(&file)?;
    }
}
