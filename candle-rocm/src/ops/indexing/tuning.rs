//! The numbers that choose between the kernels of indexing, with where they are from.
//!
//! Sections named here are those of docs/tuning-log.md: measured on an NVIDIA H200 (132 units, waves of 32). Numbers
//! without one were chosen by what they say.

/// Ids of a row from which on a block takes the whole row into LDS, eight for each thread: rows of 256 ids were slower
/// so ("gather and index_select along a dense dimension").
pub(super) const ENOUGH_IDS: usize = 2048;
/// Such a thread keeps a compute unit as busy as so many that have two ids each.
pub(super) const WORTH: usize = 4;

/// With this many columns (places outside of the indexed dimension), one thread for each is enough to do in parallel. A
/// constant, as [`ENOUGH_WINDOWS`] is, so that floats are added in order on all GPUs or on none.
pub(super) const ENOUGH_COLUMNS: usize = 4096;
/// So many steps along the indexed dimension cost a thread less than a second launch or contended atomics would.
pub(super) const FEW_STEPS: usize = 256;
/// Parts of the places of a column at most, each of which reads all ids ("scatter across columns").
pub(super) const MOST_PARTS: usize = 64;
/// Steps along the indexed dimension that are worth a wave of their own.
pub(super) const ENOUGH_STEPS: usize = 64;
/// Windows of a row at most, each of which reads all ids ("scatter and scatter_add along a dense dimension").
pub(super) const MOST_WINDOWS: usize = 8;
/// With so many windows there is enough to do in parallel.
pub(super) const ENOUGH_WINDOWS: usize = 64;
/// So many ids of `index_add` cost a thread for each column less than sorting them would ("index_add: sorted ids").
pub(super) const FEW_IDS: usize = 32;
