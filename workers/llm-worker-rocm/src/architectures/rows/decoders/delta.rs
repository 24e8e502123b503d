//! Families with a gated delta rule or short convolutions beside attention.

use crate::architectures::row::ArchitectureRow;

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[];
