//! What the fixes of upstream's faults consist of (see `FIXES.md`), where it is more than a line.

pub(crate) mod activations;
pub(crate) mod lanes;
pub(crate) mod losses;
pub(crate) mod rows;
pub(crate) mod softmax;

use candle::{DType, Result, Tensor};

/// The dtype in which something of several steps is computed, so that nothing rounds or overflows between them: f32 for
/// the floats of less than 32 bits, any other itself.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        dtype => dtype,
    }
}

/// What `f` makes of a tensor in its wide dtype, rounded.
pub(crate) fn widened(xs: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    f(&xs.to_dtype(wide(xs.dtype()))?)?.to_dtype(xs.dtype())
}
