//! Families of many experts whose attention is the usual one.

use crate::architectures::row::ArchitectureRow;

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[];
