//! Which tier a problem goes to first.

use super::problem::Problem;
pub use crate::config::Tier;
use crate::{DType, Device, Result};

/// Rows times group up to which reading keys and values once is what takes the time: then splitting the keys beats
/// tiles, of vector or matrix instructions.
const SHORT: [(u32, u32); 3] = [(64, 8), (128, 16), (512, 16)];

/// Whether the problem's rows are so few that the keys are split.
pub(super) fn is_short(problem: &Problem) -> bool {
    let shape = &problem.shape;
    let width = shape.width.max(shape.v_width);
    let packed = shape.rows.saturating_mul(shape.group);
    SHORT
        .iter()
        .find(|(head, _)| width <= *head)
        .is_some_and(|(_, rows)| packed <= *rows)
}

/// Whether queries rounded to the keys' dtype can be multiplied by matrix instructions, and there are enough of them.
pub(super) fn gains_by_rounding(device: &Device, problem: &Problem) -> Result<bool> {
    Ok(problem.dtype == DType::F32
        && matches!(problem.kv_dtype, DType::F16 | DType::BF16)
        && !is_short(problem)
        && device.matrix()?.is_some())
}

/// Tiers to try, in order.
pub(super) fn order(problem: &Problem) -> &'static [Tier] {
    let halves = [problem.dtype, problem.kv_dtype].map(|d| d == DType::F16 || d == DType::BF16);
    if problem.dtype == DType::F64 {
        return &[Tier::Naive];
    }
    if halves == [true; 2] && !is_short(problem) {
        // Who builds with the feature `ck` wants it wherever it fits.
        let first = usize::from(!cfg!(feature = "ck"));
        return &Tier::ALL[first..];
    }
    &[Tier::Tiled, Tier::Naive]
}

/// Whether neighbouring blocks are of different heads: so that each die reads heads of its own. Otherwise neighbours
/// are tiles of one head, whose keys they share in the cache.
pub(super) fn heads_first(device: &Device, problem: &Problem) -> bool {
    let pairs = problem.shape.batch * problem.shape.kv_heads;
    let dies = device.properties().arch.generation().dies();
    dies > 1 && pairs.is_multiple_of(dies)
}
