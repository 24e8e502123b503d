//! Families whose attention keeps a latent vector in place of keys and values.

use crate::architectures::row::ArchitectureRow;

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[];
