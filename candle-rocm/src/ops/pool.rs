//! Pooling over windows of images.

use super::copy::check_count;
use super::images::Images;
use crate::{Args, Buffer, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// The mean of each window of `[batch, channels, height, width]`, of any dtype: `[batch, channels, (height - window) / step + 1, …]`.
/// `window` and `step` are (height, width). Floats add up in f32 (f64 for f64) and are rounded once; the mean of integers is cut off
/// towards zero, as candle's CUDA back end does it.
///
/// # Errors
/// [`Error::InvalidArgument`] for other ranks, and for a window or step that is 0 or a window larger than the image;
/// [`Error::InvalidView`]; [`Error::TooLarge`] for an input that spans, or an output of, 2^32 elements or more.
pub fn avg_pool2d(
    device: &Device,
    x: &View,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<Buffer> {
    pool(device, "avg_pool2d", x, window, step)
}

/// The largest element of each window, otherwise as [`avg_pool2d`]. A NaN is the largest if it comes first in its window, and passed
/// over elsewhere, as on candle's CPU back end.
///
/// # Errors
/// Those of [`avg_pool2d`].
pub fn max_pool2d(
    device: &Device,
    x: &View,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<Buffer> {
    pool(device, "max_pool2d", x, window, step)
}

/// The fields are those of `Pool` in `pool.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Pool {
    outputs: u32,
    channels: u32,
    out_h: u32,
    out_w: u32,
    window_h: u32,
    window_w: u32,
    step_h: u32,
    step_w: u32,
    strides: [u32; 4],
}

fn pool(
    device: &Device,
    op: &'static str,
    x: &View,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<Buffer> {
    let images = Images::new(op, x)?;
    let windows = |size: usize, window: usize, step: usize| {
        if window == 0 || step == 0 || window > size {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "a window of {window} in steps of {step} does not fit into {size} elements"
                ),
            });
        }
        Ok((size - window) / step + 1)
    };
    let out_h = windows(images.height, window.0, step.0)?;
    let out_w = windows(images.width, window.1, step.1)?;
    let outputs = [images.batch, images.channels, out_h, out_w]
        .into_iter()
        .fold(1, usize::saturating_mul);
    check_count(op, outputs)?;
    let dst = device.alloc(outputs.saturating_mul(x.dtype.size_in_bytes()))?;
    if outputs == 0 {
        return Ok(dst);
    }
    let layout = Pool {
        outputs: outputs as u32,
        channels: images.channels as u32,
        out_h: out_h as u32,
        out_w: out_w as u32,
        window_h: window.0 as u32,
        window_w: window.1 as u32,
        // A single window starts at 0, however large the step is.
        step_h: if out_h > 1 { step.0 as u32 } else { 0 },
        step_w: if out_w > 1 { step.1 as u32 } else { 0 },
        strides: images.strides,
    };
    let args = Args::new()
        .ptr(x.buffer, x.offset * x.dtype.size_in_bytes())
        .ptr(&dst, 0)
        .value(&layout);
    device
        .kernel(Family::Pool, &format!("{op}_{}", x.dtype))?
        .launch(LaunchConfig::for_elements(outputs), &args)?;
    Ok(dst)
}
