//! Softmax.

use super::rows::Rows;
use crate::ops::operand::check_float;
use crate::{Args, Buffer, Device, Result, View};
use candle_rocm_kernels::Family;

/// Softmax along the last dimension, of f16, bf16, f32 or f64.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType); [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a tensor
/// without dimensions; [`Error::InvalidView`](crate::Error::InvalidView).
pub fn softmax_last_dim(device: &Device, x: &View) -> Result<Buffer> {
    const OP: &str = "softmax-last-dim";
    check_float(OP, x.dtype, true)?;
    let rows = Rows::new(device, OP, x)?;
    let out = rows.output(device)?;
    let args = rows
        .operand
        .push(Args::new())
        .ptr(&out, 0)
        .u64(rows.count as u64)
        .u32(rows.columns as u32)
        .u64(rows.stride as u64);
    rows.launch(device, Family::Nn, "softmax", &args)?;
    Ok(out)
}
