//! Families of windows, sinks, and caches that layers share.

use crate::architectures::row::ArchitectureRow;

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[];
