//! Gradients of group norm.

use super::check::Op;
use super::copy::check_count;
use super::group_norm::GroupNorm;
use super::operand::Operand;
use super::rows::MAX_BLOCK;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::backward::Statistics;
use candle_rocm_kernels::shared::group_norm::Groups;

const OP: Op = Op("group-norm gradient");

kernels! {
    /// Gradients of rows with a block for each, and what their norms did.
    of_rows = "group_norm_backward_{dtype}" [dtype: DType = FLOATS] in Family::GroupNormBackward
        => (src: Ptr, grad: Ptr, weight: Ptr, bias: Ptr, out: Ptr, statistics: Ptr, shape: Groups);

    /// Those of weight and bias with a block for each channel.
    of_channels = "group_norm_channels_{dtype}" [dtype: DType = FLOATS] in Family::GroupNormBackward
        => (src: Ptr, grad: Ptr, weight: Ptr, bias: Ptr, statistics: Ptr, weights: Ptr, biases: Ptr, shape: Groups);
}

/// Threads of a channel's block.
const CHANNEL_THREADS: u32 = 256;

/// Gradients of a group norm, in the dtype of its input.
pub struct GroupNormGradients {
    /// Of the input.
    pub x: Buffer,
    /// Of the weight.
    pub weight: Buffer,
    /// Of the bias.
    pub bias: Buffer,
}

/// The gradients of [`group_norm`](super::group_norm::group_norm), given that of its result, which has the shape and
/// dtype of `x`.
///
/// # Errors
/// Those of [`group_norm`](super::group_norm::group_norm).
pub fn group_norm_backward(
    device: &Device,
    x: &View,
    weight: &View,
    bias: &View,
    grad: &View,
    norm: GroupNorm,
) -> Result<GroupNormGradients> {
    OP.float(x.dtype, false)?;
    x.check(OP.0)?;
    let &[batch, channels, ref pixels @ ..] = x.dims else {
        return Err(OP.invalid(format!("{:?} has no batch and channels", x.dims)));
    };
    if norm.groups == 0 || !channels.is_multiple_of(norm.groups) {
        let groups = norm.groups;
        return Err(OP.invalid(format!("{groups} groups do not divide {channels} channels")));
    }
    for parameter in [weight, bias] {
        OP.same_dtype(x, parameter)?;
        parameter.check(OP.0)?;
        if *parameter.dims != [channels] {
            return Err(OP.mismatch(x, parameter));
        }
    }
    OP.same_dtype(x, grad)?;
    grad.check(OP.0)?;
    if x.dims != grad.dims {
        return Err(OP.mismatch(x, grad));
    }
    let pixels: usize = pixels.iter().product();
    let (rows, columns) = (batch * norm.groups, channels / norm.groups * pixels);
    check_count(OP.0, columns)?;
    check_count(OP.0, channels)?;
    let size = x.dtype.size_in_bytes();
    let out = device.alloc((rows * columns).saturating_mul(size))?;
    if rows * columns == 0 {
        return Ok(GroupNormGradients {
            x: out,
            weight: device.alloc_zeroed(channels * size)?,
            bias: device.alloc_zeroed(channels * size)?,
        });
    }
    let operands = [x, grad, weight, bias].map(|view| Operand::contiguous(device, view));
    let [x, grad, weight, bias] = operands;
    let (x, grad, weight, bias) = (x?, grad?, weight?, bias?);
    let gradients = GroupNormGradients {
        x: out,
        weight: device.alloc(channels * size)?,
        bias: device.alloc(channels * size)?,
    };
    let statistics = device.alloc(rows * size_of::<Statistics>())?;
    let shape = Groups {
        rows: rows as u64,
        groups: norm.groups as u32,
        channels: (channels / norm.groups) as u32,
        pixels: pixels as u32,
        parts: 1,
        part: columns as u32,
        eps: norm.eps,
        silu: u32::from(norm.silu),
    };
    let wave = device.properties().wave_size as usize;
    let of_row = LaunchConfig {
        grid: rows.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: columns.next_multiple_of(wave).min(MAX_BLOCK) as u32,
        shared_bytes: 0,
    };
    let of_channel = LaunchConfig {
        grid: channels as u32,
        block: CHANNEL_THREADS,
        shared_bytes: 0,
    };
    let (src, grads, weights, biases) = (x.ptr(), grad.ptr(), weight.ptr(), bias.ptr());
    let (between, dtype) = (Ptr::to(&statistics), x.view.dtype);
    let to = [&gradients.x, &gradients.weight, &gradients.bias].map(Ptr::to);
    // SAFETY: operands are dense, with weight and bias for each channel, and there is room for the gradients of all of
    // them and the statistics of each row.
    unsafe {
        of_rows::of(dtype)?.launch(
            device, of_row, src, grads, weights, biases, to[0], between, shape,
        )?;
        of_channels::of(dtype)?.launch(
            device, of_channel, src, grads, weights, biases, between, to[1], to[2], shape,
        )?;
    }
    Ok(gradients)
}
