//! The sections, in the order in which they run.
//!
//! | Section    | Asks                                                                     |
//! |------------|--------------------------------------------------------------------------|
//! | [`system`] | what there is, how old it is, who may use it, and what changes how it works |
//! | [`kernels`] | whether this product's kernels compile and load, and how long that takes |
//! | [`operations`] | whether every operation gives what the host computes                 |
//! | [`copies`] | whether bytes arrive as they were sent, and how fast                      |
//! | [`memory`] | whether device memory keeps what is written to it                         |
//! | [`overlap`] | whether results and copies stay right while both happen, also for hours   |
//! | [`speed`]  | how fast the GPU is beside its data sheet                                 |
//! | [`verification`] | which kernels were wrong when they were first used, and are switched off |

pub mod copies;
pub mod kernels;
pub mod memory;
pub mod operations;
pub mod overlap;
pub mod speed;
pub mod system;
pub mod verification;

use crate::Section;

/// The table of sections. A program may add its own.
pub const ALL: &[&dyn Section] = &[
    &system::System,
    &kernels::Kernels,
    &operations::Operations,
    &copies::Copies,
    &memory::Memory,
    &overlap::Overlap,
    &speed::Speed,
    // Behind all that uses kernels.
    &verification::Verification,
];

/// Bytes of a MiB and a GiB.
pub(crate) const MIB: usize = 1 << 20;
pub(crate) const GIB: usize = 1 << 30;

/// A number of bytes for people.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        b if b >= GIB => format!("{:.1} GiB", b as f64 / GIB as f64),
        b if b >= MIB => format!("{:.1} MiB", b as f64 / MIB as f64),
        b if b >= 1 << 10 => format!("{:.1} KiB", b as f64 / 1024.0),
        b => format!("{b} bytes"),
    }
}

/// What the host can give without hardship, in bytes: a quarter of what is available.
pub(crate) fn host_memory() -> usize {
    let available = worker::process::available_memory();
    available.map_or(GIB, |bytes| {
        usize::try_from(bytes / 4).unwrap_or(usize::MAX)
    })
}
