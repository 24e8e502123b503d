//! Group norm of images, with or without SiLU behind it.

use super::rows::MAX_BLOCK;
use crate::ops::copy::check_count;
use crate::ops::operand::{check_float, check_same_dtype, shape_mismatch, Operand};
use crate::{Args, Buffer, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

const OP: &str = "group-norm";

/// Elements of a row that one thread keeps in registers, as in `group_norm.hip`.
const KEPT: usize = 16;
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

/// The fields are those of `Groups` in `group_norm.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Groups {
    rows: u64,
    groups: u32,
    channels: u32,
    pixels: u32,
    parts: u32,
    part: u32,
    eps: f32,
    silu: u32,
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` of `(batch, channels, ..)` in f16, bf16 or f32, with mean and variance of a group of neighbouring
/// channels over all their elements, and weight and bias, of the dtype of `x`, for each channel. Statistics are taken in f32, the variance from
/// differences to the mean. One kernel; two where rows are so few and long that a block for each leaves much of the GPU idle.
///
/// # Errors
/// [`Error::InvalidArgument`] if the groups do not divide the channels, [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for weight and bias,
/// [`Error::UnsupportedDType`], and the device's.
pub fn group_norm(
    device: &Device,
    x: &View,
    weight: &View,
    bias: &View,
    norm: GroupNorm,
) -> Result<Buffer> {
    check_float(OP, x.dtype, false)?;
    x.check(OP)?;
    let &[batch, channels, ref pixels @ ..] = x.dims else {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("{:?} has no batch and channels", x.dims),
        });
    };
    if norm.groups == 0 || !channels.is_multiple_of(norm.groups) {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("{} groups do not divide {channels} channels", norm.groups),
        });
    }
    for parameter in [weight, bias] {
        check_same_dtype(OP, x, parameter)?;
        parameter.check(OP)?;
        if *parameter.dims != [channels] {
            return Err(shape_mismatch(OP, x, parameter));
        }
    }
    let pixels: usize = pixels.iter().product();
    let (rows, columns) = (batch * norm.groups, channels / norm.groups * pixels);
    check_count(OP, columns)?;
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
    let launch = |kernel: &str, args: Args| {
        let name = format!("{kernel}_{}", x.view.dtype);
        device
            .kernel(Family::GroupNorm, &name)?
            .launch(config, &args.value(&shape))
    };
    let source = || x.push(Args::new());
    if parts == 1 {
        let args = bias.push(weight.push(source())).ptr(&out, 0);
        launch("group_norm", args)?;
        return Ok(out);
    }
    // A mean and a sum of squares for each part.
    let moments = device.alloc(rows * parts * 2 * size_of::<f32>())?;
    launch("group_moments", source().ptr(&moments, 0))?;
    let args = bias.push(weight.push(source().ptr(&moments, 0)));
    launch("group_apply", args.ptr(&out, 0))?;
    Ok(out)
}

/// Into how many parts rows are cut: one while there are enough rows for the GPU, or nothing is gained by reading a row by two kernels.
fn parts(device: &Device, rows: usize, columns: usize) -> usize {
    let units = device.properties().compute_units as usize;
    match rows >= units || columns <= 2 * PART {
        true => 1,
        false => columns.div_ceil(PART).min(MAX_PARTS),
    }
}
