//! Gated activations.

use super::check::Op;
use super::copy::check_count;
use super::rows::Rows;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Axis, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::gated::Gated;

kernels! {
    /// The gates through their activation, times `ups`.
    multiply = "{act}_mul_{dtype}" [act: Gate = Gate::ALL, dtype: DType = FLOATS] in Family::Gated
        => (gates: Ptr, ups: Ptr, out: Ptr, layout: Gated);
}

/// Activation of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gate {
    /// x / (1 + e⁻ˣ)
    Silu,
    /// GELU by tanh, as PyTorch's `approximate="tanh"`.
    Gelu,
    /// GELU by erf.
    GeluErf,
    /// max(x, 0)
    Relu,
}

impl Gate {
    /// Every activation.
    pub const ALL: [Gate; 4] = [Gate::Silu, Gate::Gelu, Gate::GeluErf, Gate::Relu];

    /// The name, as kernel names begin.
    pub const fn as_str(self) -> &'static str {
        match self {
            Gate::Silu => "silu",
            Gate::Gelu => "gelu",
            Gate::GeluErf => "gelu_erf",
            Gate::Relu => "relu",
        }
    }
}

impl std::fmt::Display for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Axis for Gate {}

/// `act(gate) * up` of two tensors of one shape and dtype (f16, bf16 or f32), in one pass over memory and rounded once.
/// Both may be halves of one packed tensor `[.., 2 n]`: views with dense rows are read in place.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidArgument`](crate::Error::InvalidArgument) for
/// tensors without dimensions, [`Error::InvalidView`](crate::Error::InvalidView),
/// [`Error::TooLarge`](crate::Error::TooLarge) for 64 GiB or more.
pub fn gate_mul(device: &Device, act: Gate, gate: &View, up: &View) -> Result<Buffer> {
    const OP: Op = Op("gate-mul");
    OP.float(gate.dtype, false)?;
    OP.same_dtype(gate, up)?;
    if gate.dims != up.dims {
        return Err(OP.mismatch(gate, up));
    }
    let (mut gates, mut ups) = (Rows::new(device, OP.0, gate)?, Rows::new(device, OP.0, up)?);
    let out = gates.output(device)?;
    if out.is_empty() {
        return Ok(out);
    }
    let layout = layout(OP.0, &mut gates, &mut ups, gate.dtype)?;
    // SAFETY: the rows lie in their views, and the output has room for as many packed ones.
    unsafe {
        multiply::of(act, gate.dtype)?.launch(
            device,
            LaunchConfig::for_elements(layout.steps as usize),
            gates.operand.ptr(),
            ups.operand.ptr(),
            Ptr::to(&out),
            layout,
        )?;
    }
    Ok(out)
}

/// How the rows of gates and of what they multiply are walked, 16 bytes at a time. Packed rows become one.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge).
pub(super) fn layout(
    op: &'static str,
    gates: &mut Rows,
    ups: &mut Rows,
    dtype: DType,
) -> Result<Gated> {
    if gates.stride == gates.columns && ups.stride == ups.columns {
        gates.columns *= std::mem::replace(&mut gates.count, 1);
        ups.columns *= std::mem::replace(&mut ups.count, 1);
    }
    let pack = 16 / dtype.size_in_bytes();
    let row_steps = gates.columns.div_ceil(pack);
    let steps = gates.count.saturating_mul(row_steps);
    check_count(op, steps)?;
    Ok(Gated {
        gate_stride: gates.stride as u64,
        up_stride: ups.stride as u64,
        columns: gates.columns as u64,
        row_steps: row_steps as u32,
        steps: steps as u32,
    })
}
