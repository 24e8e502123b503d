//! What tests share.

use crate::lanes::Level;
use crate::parallel::{On, Rayon};

/// Every level of instructions that this processor has.
pub(crate) fn all() -> Vec<On<'static>> {
    let on = |level| On {
        level,
        threads: &Rayon,
    };
    Level::all().into_iter().map(on).collect()
}

/// Numbers between -1 and 1 that look random.
pub(crate) fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}
