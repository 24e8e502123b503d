//! Layer norm that is scaled and shifted by what is given for each row: the adaptive norms of diffusion transformers
//! ("Scalable Diffusion Models with Transformers", arXiv 2212.09748).

use super::check::Op;
use super::norm::shape;
use super::rows::{Rows, Team};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, Result, View};
use candle_rocm_kernels::shared::norm::Shape;
use candle_rocm_kernels::shared::rows::RowVectors;

kernels! {
    /// The norm of rows with a team for each.
    normalize = "modulated_norm{team}_{dtype}" [team: Team = Team::ALL, dtype: DType = FLOATS]
        in Family::Norm, part dtype
        => (src: Ptr, scale: Ptr, shift: Ptr, out: Ptr, shape: Shape, scales: RowVectors, shifts: RowVectors);
}

/// `(x - mean) / sqrt(variance + eps) * (1 + scale) + shift` along the last dimension, of f16, bf16 or f32, in one pass
/// over memory and rounded once. `scale` and `shift` have the shape and dtype of `x`; what rows share has strides of
/// zero.
///
/// # Errors
/// Those of [`layer_norm`](super::norm::layer_norm).
pub fn modulated_norm(
    device: &Device,
    x: &View,
    scale: &View,
    shift: Option<&View>,
    eps: f32,
) -> Result<Buffer> {
    const OP: &str = "modulated-norm";
    Op(OP).float(x.dtype, false)?;
    let rows = Rows::new(device, OP, x)?;
    let (scale, scales) = rows.beside(device, OP, scale)?;
    let shift = shift
        .map(|shift| rows.beside(device, OP, shift))
        .transpose()?;
    let out = rows.output(device)?;
    let (team, config) = rows.team(device);
    let shape = shape(&rows, None, eps);
    // SAFETY: the rows lie in their view, scale and shift have an element for each of theirs, and the output has room
    // for as many rows.
    unsafe {
        normalize::of(team, x.dtype)?.launch(
            device,
            config,
            rows.operand.ptr(),
            scale.ptr(),
            shift.as_ref().map_or(Ptr::NULL, |(shift, _)| shift.ptr()),
            Ptr::to(&out),
            shape,
            scales,
            shift.as_ref().map_or(scales, |(_, shifts)| *shifts),
        )?;
    }
    Ok(out)
}
