//! Softmax.

use super::check::Op;
use super::rows::{Rows, Team};
use crate::dtype::FLOATS_WITH_F64;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, Result, View};

kernels! {
    /// Softmax of rows with a team for each.
    softmax = "softmax{team}_{dtype}" [team: Team = Team::ALL, dtype: DType = FLOATS_WITH_F64]
        in Family::Softmax => (src: Ptr, dst: Ptr, rows: u64, columns: u32, row_stride: u64);
}

/// Softmax along the last dimension, of f16, bf16, f32 or f64.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType);
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a tensor without dimensions;
/// [`Error::InvalidView`](crate::Error::InvalidView).
pub fn softmax_last_dim(device: &Device, x: &View) -> Result<Buffer> {
    const OP: Op = Op("softmax-last-dim");
    OP.float(x.dtype, true)?;
    let rows = Rows::new(device, OP.0, x)?;
    let out = rows.output(device)?;
    let (team, config) = rows.team(device);
    // SAFETY: the rows lie in their view, and the output has room for as many packed ones.
    unsafe {
        softmax::of(team, x.dtype)?.launch(
            device,
            config,
            rows.operand.ptr(),
            Ptr::to(&out),
            rows.count as u64,
            rows.columns as u32,
            rows.stride as u64,
        )?;
    }
    Ok(out)
}
