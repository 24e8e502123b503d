//! Which tier a problem goes to first.

use super::problem::Problem;
use super::{matrix, OP};
use crate::{DType, Device, Error, Result};
use std::fmt;

/// A way to compute attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Composable Kernel's attention, if the build has it (feature `ck`).
    Ck,
    /// Matrix instructions (MFMA, WMMA, mma.sync).
    Matrix,
    /// Tiles through LDS on any GPU; for few rows, waves that split the keys.
    Tiled,
    /// Product, softmax, product, over as many rows at once as memory allows: f64, any head size.
    Naive,
}

impl Tier {
    /// Every tier, fastest first.
    pub const ALL: [Tier; 4] = [Tier::Ck, Tier::Matrix, Tier::Tiled, Tier::Naive];

    /// The tier that `CANDLE_ROCM_ATTENTION` names, if it is set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value that names none.
    pub(super) fn from_env() -> Result<Option<Tier>> {
        let Some(value) = std::env::var_os("CANDLE_ROCM_ATTENTION") else {
            return Ok(None);
        };
        let tier = Self::ALL
            .into_iter()
            .find(|tier| tier.to_string().as_str() == value);
        match tier {
            Some(_) => Ok(tier),
            None => Err(Error::InvalidArgument {
                op: OP,
                reason: format!(
                    "CANDLE_ROCM_ATTENTION={} names no tier; use {}, or unset it",
                    value.to_string_lossy(),
                    Self::ALL.map(|tier| tier.to_string()).join(", ")
                ),
            }),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Tier::Ck => "ck",
            Tier::Matrix => "matrix",
            Tier::Tiled => "tiled",
            Tier::Naive => "naive",
        })
    }
}

/// Rows times group up to which reading keys and values once is what takes the time: then splitting the keys beats tiles, of vector or
/// matrix instructions.
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
pub(super) fn gains_by_rounding(device: &Device, problem: &Problem) -> bool {
    problem.dtype == DType::F32
        && matches!(problem.kv_dtype, DType::F16 | DType::BF16)
        && matrix::is_available(device.properties())
        && !is_short(problem)
}

/// Tiers to try, in order.
pub(super) fn order(_device: &Device, problem: &Problem) -> &'static [Tier] {
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

/// Dies of a GPU that is made of several, each with a cache of its own; blocks go to them in turn.
const DIES: u32 = 8;

/// Whether neighbouring blocks are of different heads: so that each die reads heads of its own. Otherwise neighbours are tiles of one head,
/// whose keys they share in the cache.
pub(super) fn heads_first(device: &Device, problem: &Problem) -> bool {
    let pairs = problem.shape.batch * problem.shape.kv_heads;
    matches!(device.properties().arch.as_str(), "gfx942" | "gfx950") && pairs.is_multiple_of(DIES)
}
