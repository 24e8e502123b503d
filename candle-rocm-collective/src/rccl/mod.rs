//! Ranks whose tensors go through RCCL, AMD's library of collectives, which is found when the program runs.
//!
//! One process has a rank for each of its GPUs ([`group`]); several processes, on one host or many, meet first
//! ([`connect`]). A missing library is [`Error::Unavailable`], and no reason to stop: [`host`](crate::host) and
//! [`tcp`](crate::tcp) work without.
//!
//! # What is guaranteed
//!
//! * All ranks get the same bits from an all-reduce: RCCL computes each element on one rank and hands it to the others.
//!   The order of its sums is RCCL's own, depends on sizes, algorithm and the number of ranks, and is not that of the
//!   ranks; halves may be rounded after each addition. Results of other backends differ from it in the last bits.
//! * Floats of 8 bits are moved, never added up: they mean different numbers on different GPUs. `i16`, which RCCL does
//!   not know, is added up as `i32`.
//! * Calls enqueue work on the device's own stream and can be recorded in graphs.
//!
//! # What can go wrong
//!
//! RCCL waits for ever for what does not come: where GPUs do not reach each other, where PCIe atomics are missing,
//! where the kernel's IOMMU is in the way, where ranks make different calls. Therefore a group that does not come up,
//! or whose first collectives do not end or give wrong sums, is aborted within the limits of [`Settings`], with an
//! error that says what to try. Later, a thread asks RCCL for errors and looks whether collectives end; of the calls of
//! one process it is known which rank is behind, and calls that do not fit together are [`Error::Mismatch`]. Between
//! processes, signs of life ([`Lifeline`](crate::Lifeline)) tell within 5 s which one is gone. Whatever fails, the
//! communicators are aborted, which ends what waits on the GPUs, and everybody gets the error.

mod comm;
mod group;
mod ledger;
mod rank;
mod start;

pub use group::Settings;
pub use start::{connect, connect_with, group, group_with, group_within, version};

#[cfg(doc)]
use crate::Error;
