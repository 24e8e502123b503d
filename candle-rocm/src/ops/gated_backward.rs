//! Gradients of gated activations.

use super::check::Op;
use super::gated::{layout, Gate};
use super::operand::Operand;
use super::rows::Rows;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::gated::Gated;

kernels! {
    /// Of the gates and of what they multiply.
    backward = "{act}_mul_backward_{dtype}" [act: Gate = Gate::ALL, dtype: DType = FLOATS] in Family::GatedBackward
        => (gates: Ptr, ups: Ptr, grads: Ptr, out_gates: Ptr, out_ups: Ptr, layout: Gated);
}

/// The gradients of [`gate_mul`](super::gated::gate_mul) with respect to `gate` and `up`, given that of its result; all
/// of one shape and dtype. ReLU has a slope of 0 at 0.
///
/// # Errors
/// Those of [`gate_mul`](super::gated::gate_mul).
pub fn gate_mul_backward(
    device: &Device,
    act: Gate,
    gate: &View,
    up: &View,
    grad: &View,
) -> Result<(Buffer, Buffer)> {
    const OP: Op = Op("gate-mul gradient");
    OP.float(gate.dtype, false)?;
    for other in [up, grad] {
        OP.same_dtype(gate, other)?;
        if gate.dims != other.dims {
            return Err(OP.mismatch(gate, other));
        }
    }
    let (mut gates, mut ups) = (Rows::new(device, OP.0, gate)?, Rows::new(device, OP.0, up)?);
    grad.check(OP.0)?;
    let grad = Operand::contiguous(device, grad)?;
    let (of_gates, of_ups) = (gates.output(device)?, ups.output(device)?);
    if of_gates.is_empty() {
        return Ok((of_gates, of_ups));
    }
    let layout = layout(OP.0, &mut gates, &mut ups, gate.dtype)?;
    // SAFETY: the rows lie in their views, and there is room for as many packed ones.
    unsafe {
        backward::of(act, gate.dtype)?.launch(
            device,
            LaunchConfig::for_elements(layout.steps as usize),
            gates.operand.ptr(),
            ups.operand.ptr(),
            grad.ptr(),
            Ptr::to(&of_gates),
            Ptr::to(&of_ups),
            layout,
        )?;
    }
    Ok((of_gates, of_ups))
}
