//! Losses: computed in f32 for floats of less than 32 bits, and rounded once.

use candle::{Result, Tensor};

use super::{wide, widened};

/// log(1 + x) for x from 0 on, accurate for small ones, too: what was rounded in the sum is made good (Kahan).
fn log1p(x: &Tensor) -> Result<Tensor> {
    let sum = (x + 1.)?;
    let rounded = ((&sum - 1.)? - x)?;
    sum.log()? - (rounded / sum)?
}

/// log(1 / (1 + exp(-x))) = min(x, 0) - log(1 + exp(-|x|)). At 0, where the slope is 1/2, the minimum's is half and that
/// of |x| 0.
fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    let rest = log1p(&x.abs()?.neg()?.exp()?)?;
    x.minimum(&x.zeros_like()?)? - rest
}

/// The mean of (1 - t) x - log(sigmoid(x)).
pub(crate) fn binary_cross_entropy_with_logit(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    widened(inp, |x| {
        let target = target.to_dtype(x.dtype())?;
        let loss = ((target.affine(-1., 1.)? * x)? - log_sigmoid(x)?)?;
        loss.mean_all()
    })
}

/// The mean of (x - t)².
pub(crate) fn mse(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    widened(inp, |x| {
        (x - target.to_dtype(wide(target.dtype()))?)?
            .sqr()?
            .mean_all()
    })
}
