//! Recurrences on AMD GPUs.

use super::device::{states_of, tensor, with_view, Sequences};
use super::scan::Selective;
use crate::engine::decoder::memory::StateBatch;
use candle_core::rocm_backend::candle_rocm::ops::state_space::{
    self, Gated, Selective as Operands, Wkv7,
};
use candle_core::rocm_backend::candle_rocm::View;
use candle_core::{Result, Tensor};

const OP: &str = "recurrence";

/// A view of rows whose elements are `[dims]`.
fn of_rows<'a>(rows: &View<'a>, dims: &'a [usize; 3], strides: &'a [usize; 3]) -> View<'a> {
    View {
        dims,
        strides,
        ..*rows
    }
}

/// See [`Selective::forward`].
pub(super) fn selective_scan(
    scan: &Selective,
    [x, steps, inputs, outputs]: [&Tensor; 4],
    memory: &Tensor,
    batch: &StateBatch,
) -> Result<Tensor> {
    let (rows, channels) = x.dims2()?;
    with_view!(values = x, OP);
    with_view!(dt = steps, OP);
    with_view!(b = inputs, OP);
    with_view!(c = outputs, OP);
    with_view!(a = scan.rates, OP);
    with_view!(d = scan.direct, OP);
    with_view!(bias = scan.step_bias, OP);
    with_view!(states = memory, OP);
    let x_dims = [rows, scan.heads, scan.head_size];
    let read_dims = [rows, scan.groups, scan.states];
    let strides = |view: &View, size| [view.strides[0], size, 1];
    let (x_strides, b_strides, c_strides) = (
        strides(&values, scan.head_size),
        strides(&b, scan.states),
        strides(&c, scan.states),
    );
    let operands = Operands {
        x: of_rows(&values, &x_dims, &x_strides),
        dt,
        b: of_rows(&b, &read_dims, &b_strides),
        c: of_rows(&c, &read_dims, &c_strides),
        a,
        d,
        dt_bias: Some(bias),
        limits: scan.limits,
    };
    states_of!(sequences = batch, OP);
    let device = values.buffer.device();
    let y = state_space::selective_scan(device, &operands, &states, &sequences)?;
    tensor(x, y, (rows, channels))
}

/// Griffin's recurrence: `(rows, channels)`, gates before their sigmoid, and rates.
pub(super) fn gated_recurrence(
    [x, input_gate, recurrent_gate, rates]: [&Tensor; 4],
    memory: &Tensor,
    batch: &StateBatch,
) -> Result<Tensor> {
    with_view!(values = x, OP);
    with_view!(input = input_gate, OP);
    with_view!(recurrent = recurrent_gate, OP);
    with_view!(rates = rates, OP);
    with_view!(states = memory, OP);
    let operands = Gated {
        x: values,
        input_gate: input,
        recurrent_gate: recurrent,
        rates,
    };
    states_of!(sequences = batch, OP);
    let device = values.buffer.device();
    let y = state_space::gated_recurrence(device, &operands, &states, &sequences)?;
    tensor(x, y, x.shape().clone())
}

/// RWKV 7's scan of f32 `(rows, heads, size)`.
pub(super) fn wkv7(
    [r, w, k, v, a, b]: [&Tensor; 6],
    memory: &Tensor,
    batch: &StateBatch,
) -> Result<Tensor> {
    let like = r;
    with_view!(r = r, OP);
    with_view!(w = w, OP);
    with_view!(k = k, OP);
    with_view!(v = v, OP);
    with_view!(a = a, OP);
    with_view!(b = b, OP);
    with_view!(states = memory, OP);
    states_of!(sequences = batch, OP);
    let operands = Wkv7 { r, w, k, v, a, b };
    let y = state_space::wkv7(r.buffer.device(), &operands, &states, &sequences)?;
    tensor(like, y, like.shape().clone())
}
