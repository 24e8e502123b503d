//! Softmax and its logarithm along any dimension.

use candle::{DType, Result, Tensor};

use super::widened;

/// The maximum cancels out of both, and no gradient goes through it.
fn below_max(xs: &Tensor, dim: usize) -> Result<Tensor> {
    xs.broadcast_sub(&xs.detach().max_keepdim(dim)?)
}

/// exp(x) / sum(exp(x)) along `dim`.
pub(crate) fn softmax(xs: &Tensor, dim: usize) -> Result<Tensor> {
    let is_fused = matches!(
        xs.dtype(),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64
    ) && (xs.device().is_cpu() || xs.device().is_rocm());
    if is_fused && !xs.track_op() && dim + 1 == xs.rank() && xs.elem_count() > 0 {
        return crate::ops::softmax_last_dim(&xs.contiguous()?);
    }
    widened(xs, |xs| {
        let powers = below_max(xs, dim)?.exp()?;
        powers.broadcast_div(&powers.sum_keepdim(dim)?)
    })
}

/// x - log(sum(exp(x))) along `dim`.
pub(crate) fn log_softmax(xs: &Tensor, dim: usize) -> Result<Tensor> {
    widened(xs, |xs| {
        let below = below_max(xs, dim)?;
        let sums = below.exp()?.sum_keepdim(dim)?;
        below.broadcast_sub(&sums.log()?)
    })
}
