//! Families with state spaces or other recurrences, beside attention or alone.

use crate::architectures::row::ArchitectureRow;

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[];
