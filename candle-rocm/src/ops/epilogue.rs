//! What follows a product: bias, activation, gate and residual connection.

use super::check::Op;
use super::copy::check_count;
use super::gated::Gate;
use super::operand::Operand;
use super::rows::Rows;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Axis, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::epilogue::Epilogue as Layout;
use candle_rocm_kernels::shared::rows::RowVectors;

kernels! {
    /// All of it, element by element.
    finish = "epilogue_{act}_{dtype}" [act: Act = Act::ALL, dtype: DType = FLOATS] in Family::Epilogue
        => (product: Ptr, bias: Ptr, gate: Ptr, residual: Ptr, out: Ptr, layout: Layout, biases: RowVectors,
            gates: RowVectors);
}

/// An activation, or none, as kernels' names have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Act(Option<Gate>);

impl Act {
    const ALL: [Act; 5] = {
        let [a, b, c, d] = Gate::ALL;
        [
            Act(None),
            Act(Some(a)),
            Act(Some(b)),
            Act(Some(c)),
            Act(Some(d)),
        ]
    };
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.0.map_or("none", Gate::as_str))
    }
}

impl Axis for Act {}

/// What becomes of a product.
#[derive(Clone, Copy, Default)]
pub struct Epilogue<'a> {
    /// Of the product's shape; what rows share has strides of zero, and so may the columns of a row.
    pub bias: Option<&'a View<'a>>,
    /// Applied to the sum of product and bias.
    pub activation: Option<Gate>,
    /// Multiplies that: of the product's shape; what rows share has strides of zero.
    pub gate: Option<&'a View<'a>>,
    /// Is added to that: of the product's shape.
    pub residual: Option<&'a View<'a>>,
}

/// `residual + gate * act(product + bias)` of f16, bf16 or f32, in one pass over memory and rounded once; all have the
/// product's dtype.
///
/// # Errors
/// Those of [`gate_mul`](super::gated::gate_mul).
pub fn epilogue(device: &Device, product: &View, after: &Epilogue) -> Result<Buffer> {
    const OP: &str = "epilogue";
    Op(OP).float(product.dtype, false)?;
    let rows = Rows::new(device, OP, product)?;
    let one_bias = match after.bias {
        Some(bias) => rows.numbers_beside(OP, bias)?,
        None => None,
    };
    let bias = match (after.bias, one_bias) {
        (None, _) => None,
        (Some(bias), Some(beside)) => Some((Operand::in_place(bias), beside)),
        (Some(bias), None) => Some(rows.beside(device, OP, bias)?),
    };
    let gate = after
        .gate
        .map(|gate| rows.beside(device, OP, gate))
        .transpose()?;
    let residual = after
        .residual
        .map(|residual| rows.addend(device, OP, residual))
        .transpose()?;
    let out = rows.output(device)?;
    if out.is_empty() {
        return Ok(out);
    }
    let row_steps = rows.columns.div_ceil(16 / product.dtype.size_in_bytes());
    let steps = rows.count.saturating_mul(row_steps);
    check_count(OP, steps)?;
    let layout = Layout {
        stride: rows.stride as u64,
        residual_stride: residual.as_ref().map_or(0, |rows| rows.stride as u64),
        columns: rows.columns as u64,
        row_steps: row_steps as u32,
        steps: steps as u32,
        one_bias: one_bias.is_some().into(),
    };
    let nowhere = RowVectors {
        inner: 1,
        outer: 0,
        step: 0,
    };
    // SAFETY: the rows lie in their views, each has a bias and a gate where there are some, and the output has room
    // for as many packed rows.
    unsafe {
        finish::of(Act(after.activation), product.dtype)?.launch(
            device,
            LaunchConfig::for_elements(steps),
            rows.operand.ptr(),
            bias.as_ref().map_or(Ptr::NULL, |(bias, _)| bias.ptr()),
            gate.as_ref().map_or(Ptr::NULL, |(gate, _)| gate.ptr()),
            residual
                .as_ref()
                .map_or(Ptr::NULL, |rows| rows.operand.ptr()),
            Ptr::to(&out),
            layout,
            bias.as_ref().map_or(nowhere, |(_, biases)| *biases),
            gate.as_ref().map_or(nowhere, |(_, gates)| *gates),
        )?;
    }
    Ok(out)
}
