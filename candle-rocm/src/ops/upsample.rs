//! Images at another size.

use super::copy::{check_count, contiguous};
use super::images::Images;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::upsample::Upsample;

kernels! {
    /// The nearest element, of so many bits.
    nearest_bits = "upsample_nearest_b{bits}" [bits: u32 = [8, 16, 32, 64]] in Family::Upsample
        => (src: Ptr, dst: Ptr, layout: Upsample);

    /// Interpolation.
    bilinear = "upsample_bilinear2d_{dtype}" [dtype: DType = DType::ALL] in Family::Upsample
        => (src: Ptr, dst: Ptr, layout: Upsample);
}

const BILINEAR: &str = "upsample_bilinear2d";

/// `[batch, channels, length]` of any dtype at length `size`: output `i` is input `i * length / size`, cut off.
///
/// # Errors
/// [`Error::InvalidArgument`] for other ranks and for an input without elements to choose from; [`Error::InvalidView`];
/// [`Error::TooLarge`] for an input that spans, or an output of, 2^32 elements or more.
pub fn upsample_nearest1d(device: &Device, x: &View, size: usize) -> Result<Buffer> {
    const OP: &str = "upsample_nearest1d";
    let ([batch, channels, length], [b, c, l]) = (x.dims, x.strides) else {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!(
                "the input must be [batch, channels, length], not of the shape {:?}",
                x.dims
            ),
        });
    };
    let row = View {
        dims: &[*batch, *channels, 1, *length],
        strides: &[*b, *c, 0, *l],
        ..*x
    };
    nearest(device, OP, &row, (1, size))
}

/// `[batch, channels, height, width]` of any dtype at `size` (height, width), each as in [`upsample_nearest1d`].
///
/// # Errors
/// Those of [`upsample_nearest1d`].
pub fn upsample_nearest2d(device: &Device, x: &View, size: (usize, usize)) -> Result<Buffer> {
    nearest(device, "upsample_nearest2d", x, size)
}

/// `[batch, channels, height, width]` of any dtype at `size` (height, width), interpolated bilinearly: f32 in f32, all
/// others in f64 and rounded once (integers are cut off towards zero). Positions are PyTorch's: with `align_corners`,
/// the centres of the corner elements stay in place; without, the outer edges do, and one output is `1 / factor` inputs
/// long if `factors` (height, width) has one, else the quotient of the sizes.
///
/// # Errors
/// Those of [`upsample_nearest1d`]; [`Error::InvalidArgument`] for a factor that is not positive.
pub fn upsample_bilinear2d(
    device: &Device,
    x: &View,
    size: (usize, usize),
    align_corners: bool,
    factors: (Option<f64>, Option<f64>),
) -> Result<Buffer> {
    const OP: &str = BILINEAR;
    let images = Images::new(OP, x)?;
    if size == (images.height, images.width) {
        return contiguous(device, x);
    }
    let scale = |input: usize, output: usize, factor: Option<f64>| match factor {
        _ if align_corners && output > 1 => {
            Ok(input.saturating_sub(1) as f64 / (output - 1) as f64)
        }
        _ if align_corners => Ok(0.0),
        Some(factor) if factor > 0.0 => Ok(1.0 / factor),
        Some(factor) => Err(Error::InvalidArgument {
            op: OP,
            reason: format!("a scale factor must be positive, not {factor}"),
        }),
        None => Ok(input as f64 / output as f64),
    };
    let scales = (
        scale(images.height, size.0, factors.0)?,
        scale(images.width, size.1, factors.1)?,
    );
    run(device, OP, x, &images, size, scales, align_corners)
}

fn nearest(device: &Device, op: &'static str, x: &View, size: (usize, usize)) -> Result<Buffer> {
    let images = Images::new(op, x)?;
    let scales = (
        images.height as f64 / size.0 as f64,
        images.width as f64 / size.1 as f64,
    );
    run(device, op, x, &images, size, scales, false)
}

fn run(
    device: &Device,
    op: &'static str,
    x: &View,
    images: &Images,
    (out_h, out_w): (usize, usize),
    (scale_h, scale_w): (f64, f64),
    align_corners: bool,
) -> Result<Buffer> {
    let outputs = [images.batch, images.channels, out_h, out_w]
        .into_iter()
        .fold(1, usize::saturating_mul);
    check_count(op, outputs)?;
    let dst = device.alloc(outputs.saturating_mul(x.dtype.size_in_bytes()))?;
    if outputs == 0 {
        return Ok(dst);
    }
    if images.height == 0 || images.width == 0 {
        return Err(Error::InvalidArgument {
            op,
            reason: format!("the shape {:?} has no elements to choose from", x.dims),
        });
    }
    let layout = Upsample {
        outputs: outputs as u32,
        channels: images.channels as u32,
        out_h: out_h as u32,
        out_w: out_w as u32,
        in_h: images.height as u32,
        in_w: images.width as u32,
        strides: images.strides,
        scale_h,
        scale_w,
        align_corners: align_corners.into(),
    };
    let config = LaunchConfig::for_elements(outputs);
    let (src, to) = (Ptr::of(x), Ptr::to(&dst));
    // SAFETY: the view was checked, positions lie in their images, and the output has an element for each.
    unsafe {
        match op {
            BILINEAR => bilinear::of(x.dtype)?.launch(device, config, src, to, layout)?,
            _ => nearest_bits::of(8 * x.dtype.size_in_bytes() as u32)?
                .launch(device, config, src, to, layout)?,
        }
    }
    Ok(dst)
}
