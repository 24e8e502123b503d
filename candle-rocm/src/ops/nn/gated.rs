//! Gated activations.

use super::rows::Rows;
use crate::ops::copy::check_count;
use crate::ops::operand::{check_float, check_same_dtype, shape_mismatch};
use crate::{Args, Buffer, Device, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

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

/// The fields are those of `Gated` in `gated.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Gated {
    gate_stride: u64,
    up_stride: u64,
    columns: u64,
    row_steps: u32,
    steps: u32,
}

/// `act(gate) * up` of two tensors of one shape and dtype (f16, bf16 or f32), in one pass over memory and rounded once. Both may be halves of one
/// packed tensor `[.., 2 n]`: views with dense rows are read in place.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidArgument`](crate::Error::InvalidArgument) for tensors without dimensions,
/// [`Error::InvalidView`](crate::Error::InvalidView), [`Error::TooLarge`](crate::Error::TooLarge) for 64 GiB or more.
pub fn gate_mul(device: &Device, act: Gate, gate: &View, up: &View) -> Result<Buffer> {
    const OP: &str = "gate-mul";
    check_float(OP, gate.dtype, false)?;
    check_same_dtype(OP, gate, up)?;
    if gate.dims != up.dims {
        return Err(shape_mismatch(OP, gate, up));
    }
    let (mut gates, mut ups) = (Rows::new(device, OP, gate)?, Rows::new(device, OP, up)?);
    let out = gates.output(device)?;
    if out.is_empty() {
        return Ok(out);
    }
    // Packed rows are one.
    if [&gates, &ups]
        .iter()
        .all(|rows| rows.stride == rows.columns)
    {
        for rows in [&mut gates, &mut ups] {
            rows.columns *= std::mem::replace(&mut rows.count, 1);
        }
    }
    let pack = 16 / gate.dtype.size_in_bytes();
    let row_steps = gates.columns.div_ceil(pack);
    let steps = gates.count.saturating_mul(row_steps);
    check_count(OP, steps)?;
    let layout = Gated {
        gate_stride: gates.stride as u64,
        up_stride: ups.stride as u64,
        columns: gates.columns as u64,
        row_steps: row_steps as u32,
        steps: steps as u32,
    };
    let args = ups.operand.push(gates.operand.push(Args::new()));
    device
        .kernel(
            Family::Gated,
            &format!("{}_mul_{}", act.as_str(), gate.dtype),
        )?
        .launch(
            LaunchConfig::for_elements(steps),
            &args.ptr(&out, 0).value(&layout),
        )?;
    Ok(out)
}
