//! The mean of windows.

use super::accumulate::{by_dtype, Accumulate};
use crate::{CpuStorage, Layout, Result};

/// The mean of each window of a tensor `[batch, channels, height, width]`: rounded once, that of integers cut off
/// towards zero. Sums of integers are made in i64 and wrap, those of f32 in f32, as on other devices.
pub(crate) fn avg_pool2d(
    src: &CpuStorage,
    layout: &Layout,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<CpuStorage> {
    if let CpuStorage::F32(v) = src {
        let mean = |sum: f32, count: usize| sum / count as f32;
        let means = means(v, layout, window, step, |sum, v| sum + v, mean)?;
        return Ok(CpuStorage::F32(means));
    }
    fn wide<T: Accumulate>(
        src: &[T],
        layout: &Layout,
        window: (usize, usize),
        step: (usize, usize),
    ) -> Result<Vec<T>> {
        means(src, layout, window, step, T::added, T::mean)
    }
    Ok(by_dtype!(src, "avg_pool2d", v => wide(v, layout, window, step)?))
}

fn means<T: Copy, S: Copy + Default>(
    src: &[T],
    layout: &Layout,
    window: (usize, usize),
    step: (usize, usize),
    plus: impl Fn(S, T) -> S,
    mean: impl Fn(S, usize) -> T,
) -> Result<Vec<T>> {
    let (batch, channels, height, width) = layout.shape().dims4()?;
    let (out_h, out_w) = (
        (height - window.0) / step.0 + 1,
        (width - window.1) / step.1 + 1,
    );
    let strides = layout.stride();
    let mut out = Vec::with_capacity(batch * channels * out_h * out_w);
    for image in 0..batch {
        for channel in 0..channels {
            let plane = layout.start_offset() + image * strides[0] + channel * strides[1];
            for y in 0..out_h {
                for x in 0..out_w {
                    let first = plane + y * step.0 * strides[2] + x * step.1 * strides[3];
                    let places = (0..window.0)
                        .flat_map(|y| (0..window.1).map(move |x| y * strides[2] + x * strides[3]));
                    let sum = places.fold(S::default(), |sum, at| plus(sum, src[first + at]));
                    out.push(mean(sum, window.0 * window.1));
                }
            }
        }
    }
    Ok(out)
}
