//! Pooling over windows of images.

use super::copy::check_count;
use super::images::Images;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::pool::Pool;

kernels! {
    /// A thread for each window.
    over_windows = "{op}_{dtype}" [op: &'static str = [AVERAGE, MAXIMUM], dtype: DType = DType::ALL] in Family::Pool
        => (src: Ptr, dst: Ptr, layout: Pool);
}

const AVERAGE: &str = "avg_pool2d";
const MAXIMUM: &str = "max_pool2d";

/// The mean of each window of `[batch, channels, height, width]`, of any dtype: `[batch, channels, (height - window) /
/// step + 1, …]`. `window` and `step` are (height, width). Floats add up in f32 (f64 for f64) and are rounded once; the
/// mean of integers is cut off towards zero, as candle's CUDA back end does it.
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
    pool(device, AVERAGE, x, window, step)
}

/// The largest element of each window, otherwise as [`avg_pool2d`]. NaN is the largest, as in PyTorch.
///
/// # Errors
/// Those of [`avg_pool2d`].
pub fn max_pool2d(
    device: &Device,
    x: &View,
    window: (usize, usize),
    step: (usize, usize),
) -> Result<Buffer> {
    pool(device, MAXIMUM, x, window, step)
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
    let config = LaunchConfig::for_elements(outputs);
    let kernel = over_windows::of(op, x.dtype)?;
    // SAFETY: the view was checked, windows lie in their images, and the output has an element for each.
    unsafe { kernel.launch(device, config, Ptr::of(x), Ptr::to(&dst), layout)? };
    Ok(dst)
}
