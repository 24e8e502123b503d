//! Gradients of functions, finite wherever the function's slope is.

use super::accumulate::wide;
use crate::{Result, Tensor};

/// `grad` times a function of `at`, computed in f32 for floats of less than 32 bits.
fn chain(
    grad: &Tensor,
    at: &Tensor,
    slope: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (dtype, wide) = (grad.dtype(), wide(grad.dtype()));
    let slope = slope(&at.to_dtype(wide)?)?;
    (grad.to_dtype(wide)? * slope)?.to_dtype(dtype)
}

/// tanh, of which `node` is the outcome: 1 - tanh².
pub(crate) fn tanh(node: &Tensor, grad: &Tensor) -> Result<Tensor> {
    chain(grad, node, |y| 1. - y.sqr()?)
}

/// GELU by tanh. Beyond ±10 the slope is 1 or 0 in every dtype, where cubes may overflow.
pub(crate) fn gelu(arg: &Tensor, grad: &Tensor) -> Result<Tensor> {
    const CUBIC: f64 = 0.044715;
    let scale = (2. / std::f64::consts::PI).sqrt();
    chain(grad, arg, |x| {
        let x = x.maximum(-10f64)?.minimum(10f64)?;
        let square = x.sqr()?;
        let tanh = ((&square * (scale * CUBIC))? + scale)?.mul(&x)?.tanh()?;
        let inner = ((square * (3. * scale * CUBIC))? + scale)?;
        let bend = (x * (1. - tanh.sqr()?)?)?.mul(&inner)?;
        ((bend + tanh)? + 1.)? * 0.5
    })
}

/// GELU by erf: Φ(x) + x φ(x) of the normal distribution.
pub(crate) fn gelu_erf(arg: &Tensor, grad: &Tensor) -> Result<Tensor> {
    chain(grad, arg, |x| {
        let density = ((x.sqr()? * -0.5)?.exp()? * (0.5 / std::f64::consts::PI).sqrt())?;
        let share = (((x * std::f64::consts::FRAC_1_SQRT_2)?.erf()? + 1.)? * 0.5)?;
        density.mul(x)? + share
    })
}

/// erf: 2/√π exp(-x²)
pub(crate) fn erf(arg: &Tensor, grad: &Tensor) -> Result<Tensor> {
    chain(grad, arg, |x| {
        x.sqr()?.neg()?.exp()? * std::f64::consts::FRAC_2_SQRT_PI
    })
}

/// SiLU: s (1 + x (1 - s)) with s = 1 / (1 + exp(-x)). With the outcome in the place of x s, numbers from some thousand
/// on would cancel.
pub(crate) fn silu(arg: &Tensor, grad: &Tensor) -> Result<Tensor> {
    chain(grad, arg, |x| {
        let sigmoid = (x.neg()?.exp()? + 1.)?.recip()?;
        let rest = ((1. - &sigmoid)? * x)?;
        sigmoid * (rest + 1.)?
    })
}

/// ELU: 1 above 0, alpha exp(x) elsewhere.
pub(crate) fn elu(arg: &Tensor, alpha: f64, grad: &Tensor) -> Result<Tensor> {
    let below = chain(grad, arg, |x| x.exp()? * alpha)?;
    arg.gt(&arg.zeros_like()?)?.where_cond(grad, &below)
}

/// ReLU: 0 at 0.
pub(crate) fn relu(arg: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let zeros = arg.zeros_like()?;
    arg.le(&zeros)?.where_cond(&zeros, grad)
}

/// x^e: e x^(e-1), and 0 of the 0th power, which is 1 everywhere.
pub(crate) fn powf(arg: &Tensor, e: f64, grad: &Tensor) -> Result<Tensor> {
    if e == 0. {
        return grad.zeros_like();
    }
    chain(grad, arg, |x| x.powf(e - 1.)? * e)
}

/// a / b, of which `node` is the outcome, for b: -a / b², but squares may overflow.
pub(crate) fn divisor(rhs: &Tensor, node: &Tensor, grad: &Tensor) -> Result<Tensor> {
    grad.mul(node)?.div(rhs)?.neg()
}

/// 1 / x, of which `node` is the outcome: -1 / x², but squares may overflow.
pub(crate) fn recip(node: &Tensor, grad: &Tensor) -> Result<Tensor> {
    grad.mul(node)?.mul(node)?.neg()
}

/// The greater (or smaller) of two: the chosen one's, and half each of equal ones'.
pub(crate) fn of_two(
    lhs: &Tensor,
    rhs: &Tensor,
    greater: bool,
    grad: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let zeros = grad.zeros_like()?;
    let shared = lhs.eq(rhs)?.where_cond(&(grad * 0.5)?, grad)?;
    let (first_loses, second_loses) = match greater {
        true => (lhs.lt(rhs)?, lhs.gt(rhs)?),
        false => (lhs.gt(rhs)?, lhs.lt(rhs)?),
    };
    let first = first_loses.where_cond(&zeros, &shared)?;
    Ok((first, second_loses.where_cond(&zeros, &shared)?))
}

/// An extremum `node` of `arg`, both with all axes, the reduced ones of size 1 in `node` and `grad`: shared by all
/// elements that are the extremum.
pub(crate) fn extremum(arg: &Tensor, node: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let dtype = grad.dtype();
    let chosen = is_same(arg, &node.broadcast_as(arg.shape())?)?;
    let axes: Vec<usize> = (0..arg.rank())
        .filter(|&axis| node.dims()[axis] != arg.dims()[axis])
        .collect();
    let count = chosen.to_dtype(wide(dtype))?.sum_keepdim(axes)?;
    let share = (grad.to_dtype(wide(dtype))? / count)?.to_dtype(dtype)?;
    let share = share.broadcast_as(arg.shape())?;
    chosen.where_cond(&share, &share.zeros_like()?)
}

/// Where elements are equal or both NaN, as u8.
pub(crate) fn is_same(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.eq(b)? + (a.ne(a)? * b.ne(b)?)?
}
