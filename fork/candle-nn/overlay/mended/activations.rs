//! Activation functions whose formula overflows, or whose gradient at a kink is not PyTorch's.

use candle::{Result, Tensor};

use super::widened;

/// x tanh(log(1 + exp(x))), with e = exp(x): x n / (n + 2), n = e (e + 2). Neither the quotient nor a power overflows,
/// as the quotient is 1 from 40 on, and nothing cancels for negative x.
pub(crate) fn mish(xs: &Tensor) -> Result<Tensor> {
    widened(xs, |x| {
        let power = x.minimum(40f64)?.exp()?;
        let numerator = (&power * (&power + 2.)?)?;
        let quotient = (&numerator / (&numerator + 2.)?)?;
        x * quotient
    })
}

/// x above 0, `negative` elsewhere. The gradient at 0 is that of `negative`.
pub(crate) fn positive_or(xs: &Tensor, negative: &Tensor) -> Result<Tensor> {
    xs.gt(&xs.zeros_like()?)?.where_cond(xs, negative)
}

/// x between two bounds, the bounds elsewhere. The gradient at the bounds is 0, as that of PyTorch's `hardtanh`, and not
/// 1, as that of `clamp`.
pub(crate) fn hard_tanh(xs: &Tensor, min: f64, max: f64) -> Result<Tensor> {
    if !xs.track_op() {
        return xs.clamp(min, max);
    }
    let is_within = (xs.gt(min)? * xs.lt(max)?)?;
    is_within.where_cond(xs, &xs.detach().clamp(min, max)?)
}
