//! Gradients of pooling with windows side by side.

use super::{accumulate::wide, slopes};
use crate::{Result, Tensor};

/// Gradient of the input `[…, height, width]` of `avg_pool2d`: each element of a window gets its part, those outside of
/// all none.
pub(crate) fn avg(grad: &Tensor, size: (usize, usize), window: (usize, usize)) -> Result<Tensor> {
    let share = (grad / (window.0 * window.1) as f64)?;
    pad(&spread(&share, window)?, size)
}

/// Gradient of the input `arg` of `max_pool2d`, of which `node` is the outcome: shared by a window's maxima.
pub(crate) fn max(
    arg: &Tensor,
    node: &Tensor,
    grad: &Tensor,
    size: (usize, usize),
    window: (usize, usize),
) -> Result<Tensor> {
    let largest = spread(node, window)?;
    let (height, width) = (largest.dim(2)?, largest.dim(3)?);
    let covered = arg.narrow(2, 0, height)?.narrow(3, 0, width)?;
    let (dtype, wide) = (grad.dtype(), wide(grad.dtype()));
    let is_largest = slopes::is_same(&covered, &largest)?;
    let area = (window.0 * window.1) as f64;
    let count = (is_largest.to_dtype(wide)?.avg_pool2d(window)? * area)?.round()?;
    let share = spread(&(grad.to_dtype(wide)? / count)?.to_dtype(dtype)?, window)?;
    let shared = is_largest.where_cond(&share, &share.zeros_like()?)?;
    pad(&shared, size)
}

/// Every element of the window gets the window's value.
fn spread(pooled: &Tensor, window: (usize, usize)) -> Result<Tensor> {
    let (_, _, height, width) = pooled.dims4()?;
    pooled.upsample_nearest2d(height * window.0, width * window.1)
}

fn pad(covered: &Tensor, size: (usize, usize)) -> Result<Tensor> {
    let (_, _, height, width) = covered.dims4()?;
    covered
        .pad_with_zeros(2, 0, size.0 - height)?
        .pad_with_zeros(3, 0, size.1 - width)
}
