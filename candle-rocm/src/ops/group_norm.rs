//! Group norm of images, with or without SiLU behind it.

use super::check::Op;
use super::copy::check_count;
use super::operand::Operand;
use super::rows::MAX_BLOCK;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::group_norm::{Groups, Moments, GROUP_KEPT};

const OP: Op = Op("group-norm");

kernels! {
    /// Rows as a whole.
    whole = "group_norm_{dtype}" [dtype: DType = FLOATS] in Family::GroupNorm, part dtype
        => (src: Ptr, weight: Ptr, bias: Ptr, out: Ptr, shape: Groups);

    /// The moments of parts of rows.
    group_moments = "group_moments_{dtype}" [dtype: DType = FLOATS] in Family::GroupNorm, part dtype
        => (src: Ptr, moments: Ptr, shape: Groups);

    /// Parts of rows by the moments of all.
    group_apply = "group_apply_{dtype}" [dtype: DType = FLOATS] in Family::GroupNorm, part dtype
        => (src: Ptr, moments: Ptr, weight: Ptr, bias: Ptr, out: Ptr, shape: Groups);
}

/// Elements of a row that one thread keeps in registers.
const KEPT: usize = GROUP_KEPT as usize;
/// Elements of a part of a row: what the largest block keeps in registers. A multiple of the packs in `rows.h`.
const PART: usize = KEPT * MAX_BLOCK;
/// Most parts of a row: each block of the second kernel reads all their moments.
const MAX_PARTS: usize = 256;

/// What a [`group_norm`] does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// Groups of channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether `x * sigmoid(x)` of the result is wanted.
    pub silu: bool,
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of `(batch, channels, ..)` in f16, bf16 or f32, with mean and
/// variance of a group of neighbouring channels over all their elements, and weight and bias, of the dtype of `x`, for
/// each channel. Statistics are taken in f32, the variance from differences to the mean. One kernel; two where rows are
/// so few and long that a block for each leaves much of the GPU idle.
///
/// # Errors
/// [`Error::InvalidArgument`] if the groups do not divide the channels, [`Error::ShapeMismatch`] and
/// [`Error::DTypeMismatch`] for weight and bias, [`Error::UnsupportedDType`], and the device's.
pub fn group_norm(
    device: &Device,
    x: &View,
    weight: &View,
    bias: &View,
    norm: GroupNorm,
) -> Result<Buffer> {
    OP.float(x.dtype, false)?;
    x.check(OP.0)?;
    let &[batch, channels, ref pixels @ ..] = x.dims else {
        return Err(Error::InvalidArgument {
            op: OP.0,
            reason: format!("{:?} has no batch and channels", x.dims),
        });
    };
    if norm.groups == 0 || !channels.is_multiple_of(norm.groups) {
        return Err(Error::InvalidArgument {
            op: OP.0,
            reason: format!("{} groups do not divide {channels} channels", norm.groups),
        });
    }
    for parameter in [weight, bias] {
        OP.same_dtype(x, parameter)?;
        parameter.check(OP.0)?;
        if *parameter.dims != [channels] {
            return Err(OP.mismatch(x, parameter));
        }
    }
    let pixels: usize = pixels.iter().product();
    let (rows, columns) = (batch * norm.groups, channels / norm.groups * pixels);
    check_count(OP.0, columns)?;
    let size = x.dtype.size_in_bytes();
    let out = device.alloc((rows * columns).saturating_mul(size))?;
    if rows * columns == 0 {
        return Ok(out);
    }
    let x = Operand::contiguous(device, x)?;
    let weight = Operand::contiguous(device, weight)?;
    let bias = Operand::contiguous(device, bias)?;
    let parts = parts(device, rows, columns);
    let part = columns.div_ceil(parts).next_multiple_of(KEPT);
    let parts = columns.div_ceil(part);
    let shape = Groups {
        rows: rows as u64,
        groups: norm.groups as u32,
        channels: (channels / norm.groups) as u32,
        pixels: pixels as u32,
        parts: parts as u32,
        part: part as u32,
        eps: norm.eps,
        silu: u32::from(norm.silu),
    };
    let wave = device.properties().wave_size as usize;
    let threads = part.div_ceil(KEPT).next_multiple_of(wave).min(MAX_BLOCK);
    let config = LaunchConfig {
        grid: (rows * parts).min(LaunchConfig::MAX_GRID as usize) as u32,
        block: threads as u32,
        shared_bytes: 0,
    };
    let (src, weight, bias) = (x.ptr(), weight.ptr(), bias.ptr());
    let (to, dtype) = (Ptr::to(&out), x.view.dtype);
    if parts == 1 {
        // SAFETY: operands are dense, with weight and bias for each channel, and the output has room for the input's
        // elements.
        unsafe {
            whole::of(dtype)?.launch(device, config, src, weight, bias, to, shape)?;
        }
        return Ok(out);
    }
    let moments = device.alloc(rows * parts * size_of::<Moments>())?;
    let between = Ptr::to(&moments);
    // SAFETY: as above, and there is room for the moments of each part.
    unsafe {
        group_moments::of(dtype)?.launch(device, config, src, between, shape)?;
        group_apply::of(dtype)?.launch(device, config, src, between, weight, bias, to, shape)?;
    }
    Ok(out)
}

/// Into how many parts rows are cut: one while there are enough rows for the GPU, or nothing is gained by reading a row
/// by two kernels.
fn parts(device: &Device, rows: usize, columns: usize) -> usize {
    let units = device.properties().compute_units as usize;
    match rows >= units || columns <= 2 * PART {
        true => 1,
        false => columns.div_ceil(PART).min(MAX_PARTS),
    }
}
