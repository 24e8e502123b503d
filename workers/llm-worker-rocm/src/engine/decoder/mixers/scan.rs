//! The selective scan on the CPU and on AMD GPUs.

use super::host::floats;
use super::rocm;
use super::walk::{walk, Row};
use crate::engine::decoder::memory::{StateBatch, StatePart};
use candle_core::{Device, Result, Tensor};

/// What a selective scan has of its own: all f32.
pub(in crate::engine::decoder) struct Selective {
    /// Rates of decay, below zero: `(heads)`, or `(heads, states)`.
    pub rates: Tensor,
    /// What goes around the state, `(heads)`.
    pub direct: Tensor,
    /// Added to steps, `(heads)`.
    pub step_bias: Tensor,
    /// Least and most step.
    pub limits: (f32, f32),
    pub heads: usize,
    /// Channels of a head.
    pub head_size: usize,
    /// Groups of heads that share inputs and outputs of the state.
    pub groups: usize,
    /// Elements of a channel's state.
    pub states: usize,
}

impl Selective {
    /// What a sequence carries on.
    pub(super) fn state(&self) -> StatePart {
        StatePart::f32([self.heads, self.head_size, self.states])
    }

    /// `x` is `(rows, heads * head_size)`, `steps` `(rows, heads)` before bias and softplus, `inputs` and `outputs` of
    /// the state are `(rows, groups * states)`; the result is like `x`.
    ///
    /// # Errors
    /// If the device fails, or has no kernel for the sizes.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        steps: &Tensor,
        inputs: &Tensor,
        outputs: &Tensor,
        memory: &Tensor,
        batch: &StateBatch,
    ) -> Result<Tensor> {
        match x.device() {
            Device::Rocm(_) => {
                rocm::selective_scan(self, [x, steps, inputs, outputs], memory, batch)
            }
            _ => self.on_cpu([x, steps, inputs, outputs], memory, batch),
        }
    }

    fn on_cpu(&self, tensors: [&Tensor; 4], memory: &Tensor, batch: &StateBatch) -> Result<Tensor> {
        let [x, steps, inputs, outputs] = tensors.map(floats);
        let (x, steps, inputs, outputs) = (x?, steps?, inputs?, outputs?);
        let (rates, direct) = (floats(&self.rates)?, floats(&self.direct)?);
        let bias = floats(&self.step_bias)?;
        let (heads, size, width) = (self.heads, self.head_size, self.states);
        let by_state = rates.len() > heads;
        let heads_of_group = heads / self.groups;
        walk(memory, batch, heads, size, |row: Row| {
            let head = row.part;
            let step = softplus(steps[row.row * heads + head] + bias[head]);
            let step = step.clamp(self.limits.0, self.limits.1);
            let read = (row.row * self.groups + head / heads_of_group) * width;
            let (inputs, outputs) = (&inputs[read..][..width], &outputs[read..][..width]);
            let x = &x[(row.row * heads + head) * size..][..size];
            let decay = (step * rates[head]).exp();
            let channels = row.state.chunks_exact_mut(width).zip(x).zip(row.out);
            for ((state, x), out) in channels {
                let mut sum = 0.0;
                for (n, state) in state.iter_mut().enumerate() {
                    let decay = match by_state {
                        true => (step * rates[head * width + n]).exp(),
                        false => decay,
                    };
                    *state = decay * *state + step * x * inputs[n];
                    sum += *state * outputs[n];
                }
                *out = sum + direct[head] * x;
            }
        })
    }
}

/// `ln(1 + e^x)`.
pub(super) fn softplus(x: f32) -> f32 {
    match x > 20.0 {
        true => x,
        false => x.exp().ln_1p(),
    }
}
