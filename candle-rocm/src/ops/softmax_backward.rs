//! Gradient of softmax.

use super::check::Op;
use super::operand::Operand;
use super::rows::{Rows, Team};
use crate::dtype::FLOATS_WITH_F64;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, Result, View};

kernels! {
    /// Gradients of rows with a team for each.
    backward = "softmax_backward{team}_{dtype}" [team: Team = Team::ALL, dtype: DType = FLOATS_WITH_F64]
        in Family::SoftmaxBackward => (result: Ptr, grad: Ptr, dst: Ptr, rows: u64, columns: u32);
}

/// The gradient of [`softmax_last_dim`](super::softmax::softmax_last_dim) out of its result and the gradient of that, of
/// the same shape and dtype: f16, bf16, f32 or f64.
///
/// # Errors
/// Those of [`softmax_last_dim`](super::softmax::softmax_last_dim),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch) and [`Error::DTypeMismatch`](crate::Error::DTypeMismatch).
pub fn softmax_last_dim_backward(device: &Device, result: &View, grad: &View) -> Result<Buffer> {
    const OP: Op = Op("softmax-last-dim gradient");
    OP.float(result.dtype, true)?;
    OP.same_dtype(result, grad)?;
    if result.dims != grad.dims {
        return Err(OP.mismatch(result, grad));
    }
    let rows = Rows::new(device, OP.0, result)?;
    grad.check(OP.0)?;
    let (y, g) = (
        Operand::contiguous(device, result)?,
        Operand::contiguous(device, grad)?,
    );
    let out = rows.output(device)?;
    let (team, config) = rows.team(device);
    // SAFETY: both operands are dense rows, and the output has room for as many.
    unsafe {
        backward::of(team, result.dtype)?.launch(
            device,
            config,
            y.ptr(),
            g.ptr(),
            Ptr::to(&out),
            rows.count as u64,
            rows.columns as u32,
        )?;
    }
    Ok(out)
}
