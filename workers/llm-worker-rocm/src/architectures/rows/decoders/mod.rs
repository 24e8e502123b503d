//! What the engine's decoder runs.

mod delta;
mod latent;
mod mixtures;
mod older;
mod state_space;
mod usual;
mod vision;
mod windows;

use crate::architectures::row::ArchitectureRow;

/// All of them.
pub(in crate::architectures) fn decoders() -> impl Iterator<Item = &'static ArchitectureRow> {
    [
        usual::ROWS,
        older::ROWS,
        windows::ROWS,
        mixtures::ROWS,
        latent::ROWS,
        delta::ROWS,
        state_space::ROWS,
        vision::ROWS,
    ]
    .into_iter()
    .flatten()
}
