//! The mean of integers.

use num_traits::AsPrimitive;

use crate::{CpuStorage, Layout, Result};

/// The mean of each window of an integer tensor `[batch, channels, height, width]`, cut off towards zero. Sums are made
/// in i64 and wrap.
pub(crate) fn integers(
    src: &CpuStorage,
    layout: &Layout,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<CpuStorage> {
    use CpuStorage::{I16, I32, I64, U32, U8};
    Ok(match src {
        U8(v) => U8(means(v, layout, window, step)?),
        U32(v) => U32(means(v, layout, window, step)?),
        I16(v) => I16(means(v, layout, window, step)?),
        I32(v) => I32(means(v, layout, window, step)?),
        I64(v) => I64(means(v, layout, window, step)?),
        _ => crate::bail!("internal error: the mean of integers was asked of floats"),
    })
}

fn means<T>(
    src: &[T],
    layout: &Layout,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<Vec<T>>
where
    T: AsPrimitive<i64>,
    i64: AsPrimitive<T>,
{
    let (batch, channels, height, width) = layout.shape().dims4()?;
    let (out_h, out_w) = (
        (height - window.0) / step.0 + 1,
        (width - window.1) / step.1 + 1,
    );
    let strides = layout.stride();
    let count = (window.0 * window.1) as i64;
    let mut out = Vec::with_capacity(batch * channels * out_h * out_w);
    for image in 0..batch {
        for channel in 0..channels {
            let plane = layout.start_offset() + image * strides[0] + channel * strides[1];
            for y in 0..out_h {
                for x in 0..out_w {
                    let first = plane + y * step.0 * strides[2] + x * step.1 * strides[3];
                    let places = (0..window.0)
                        .flat_map(|y| (0..window.1).map(move |x| y * strides[2] + x * strides[3]));
                    let sum = places.fold(0i64, |sum, at| sum.wrapping_add(src[first + at].as_()));
                    out.push((sum / count).as_());
                }
            }
        }
    }
    Ok(out)
}
