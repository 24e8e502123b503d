//! Rotary embeddings.

use super::check::Op;
use super::copy::check_count;
use super::operand::Operand;
use crate::dtype::FLOATS_WITH_F64;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::rope::Rope;

kernels! {
    /// Turns pairs; `cos` and `sin` are the tables.
    turn = "rope_{dtype}" [dtype: DType = FLOATS_WITH_F64] in Family::Rope
        => (src: Ptr, cos: Ptr, sin: Ptr, dst: Ptr, layout: Rope);
}

/// Rotary embedding of `x`, `[batch, heads, time, 2 half]`: the pair (i, i + half) turns by the angle whose cosine and
/// sine the tables give, `[time, half]` or `[batch, time, half]`; the tables may be longer in time. All of one dtype:
/// f16, bf16, f32 or f64.
///
/// # Errors
/// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidView`],
/// [`Error::TooLarge`] for 2^32 pairs or more.
pub fn rope(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope", x, cos, sin, Order::HeadsTime, false)
}

/// As [`rope`], of the pairs (2i, 2i + 1).
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope-i", x, cos, sin, Order::HeadsTime, true)
}

/// As [`rope`], of `x` as `[batch, time, heads, 2 half]`.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_thd(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope-thd", x, cos, sin, Order::TimeHeads, false)
}

/// As [`rope_i`], of `x` as `[batch, time, heads, 2 half]`.
///
/// # Errors
/// Those of [`rope`].
pub fn rope_i_thd(device: &Device, x: &View, cos: &View, sin: &View) -> Result<Buffer> {
    rotate(device, "rope-i-thd", x, cos, sin, Order::TimeHeads, true)
}

/// With pairs for so many times the threads that fill the GPU, a thread turns those of two heads: the tables are read
/// half as often, and there are threads enough without. From 2^21 pairs on with 132 units.
const ROUNDS_TO_SHARE: usize = 16;

/// Order of the middle dimensions of a rotary embedding's input.
#[derive(Clone, Copy)]
enum Order {
    HeadsTime,
    TimeHeads,
}

fn rotate(
    device: &Device,
    op: &'static str,
    x: &View,
    cos: &View,
    sin: &View,
    order: Order,
    interleaved: bool,
) -> Result<Buffer> {
    Op(op).float(x.dtype, true)?;
    let [batch, second, third, size] = *x.dims else {
        return Err(Error::InvalidArgument {
            op,
            reason: format!(
                "the input must have four dimensions, not the shape {:?}",
                x.dims
            ),
        });
    };
    let (heads, time) = match order {
        Order::HeadsTime => (second, third),
        Order::TimeHeads => (third, second),
    };
    x.check(op)?;
    // Elements between batches of a table.
    let table = |table: &View| -> Result<usize> {
        Op(op).same_dtype(x, table)?;
        table.check(op)?;
        match *table.dims {
            [t, half] if t >= time && 2 * half == size => Ok(0),
            [b, t, half] if b == batch && t >= time && 2 * half == size => Ok(t * half),
            _ => Err(Op(op).mismatch(x, table)),
        }
    };
    let (cos_batch, sin_batch) = (table(cos)?, table(sin)?);
    let dst = device.alloc(x.elem_count() * x.dtype.size_in_bytes())?;
    let pairs = x.elem_count() / 2;
    if pairs == 0 {
        return Ok(dst);
    }
    for count in [pairs, cos.elem_count(), sin.elem_count()] {
        check_count(op, count)?;
    }
    let group = if device.properties().fills(pairs / ROUNDS_TO_SHARE) {
        heads.div_ceil(2)
    } else {
        heads
    };
    let group_pairs = batch * group * time * size / 2;
    let layout = Rope {
        pairs: group_pairs as u32,
        half: (size / 2) as u32,
        time: time as u32,
        heads: heads as u32,
        group: group as u32,
        time_inner: matches!(order, Order::HeadsTime).into(),
        cos_batch: cos_batch as u32,
        sin_batch: sin_batch as u32,
        interleaved: interleaved.into(),
    };
    let pack = 16 / x.dtype.size_in_bytes();
    let steps = if (size / 2).is_multiple_of(pack) {
        group_pairs / pack
    } else {
        group_pairs
    };
    let x_dense = Operand::contiguous(device, x)?;
    let cos = Operand::contiguous(device, cos)?;
    let sin = Operand::contiguous(device, sin)?;
    // SAFETY: operands are dense, and the tables were checked to have all positions.
    unsafe {
        turn::of(x.dtype)?.launch(
            device,
            LaunchConfig::for_elements(steps),
            x_dense.ptr(),
            cos.ptr(),
            sin.ptr(),
            Ptr::to(&dst),
            layout,
        )?;
    }
    Ok(dst)
}
