//! Griffin's recurrent block (arXiv 2402.19427): a convolution, and a gated linear recurrence behind it.

use super::host::floats;
use super::walk::{walk, Row};
use super::{rocm, Convolution, Recurrent};
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::{LayerMemory, StateBatch, StatePart};
use candle_core::{Device, Result, Tensor};
use candle_nn::{fused, Activation};

/// See the module.
pub(in crate::engine::decoder) struct Griffin {
    /// What the result is multiplied by, before its activation.
    pub gate: Linear,
    pub input: Linear,
    pub convolution: Convolution,
    pub input_gate: Diagonal,
    pub recurrent_gate: Diagonal,
    /// The channels' own share of the decay, f32.
    pub rates: Tensor,
    pub output: Linear,
    pub activation: Activation,
}

/// A matrix of blocks along the diagonal, with a bias.
pub(in crate::engine::decoder) struct Diagonal {
    pub blocks: Blocks,
    pub bias: Tensor,
}

/// The blocks: each `(outputs, inputs)`.
pub(in crate::engine::decoder) enum Blocks {
    /// Each on its own: on the CPU a row's result must not depend on other rows.
    Apart(Vec<Linear>),
    /// `(blocks, outputs, inputs)`, one product.
    Together(Tensor),
}

impl Diagonal {
    /// `(rows, channels)` to the same.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, channels) = x.dims2()?;
        let product = match &self.blocks {
            Blocks::Apart(blocks) => {
                let size = channels / blocks.len();
                let part = |(at, block): (usize, &Linear)| {
                    let x = x.narrow(1, at * size, size)?.contiguous()?;
                    block.forward(&x.into())
                };
                let parts: Vec<Tensor> =
                    blocks.iter().enumerate().map(part).collect::<Result<_>>()?;
                Tensor::cat(&parts, 1)?
            }
            Blocks::Together(blocks) => {
                let (count, size, _) = blocks.dims3()?;
                let x = x
                    .reshape((rows, count, size))?
                    .transpose(0, 1)?
                    .contiguous()?;
                let y = x.matmul(&blocks.transpose(1, 2)?)?;
                y.transpose(0, 1)?.contiguous()?.reshape((rows, channels))?
            }
        };
        product.broadcast_add(&self.bias)
    }
}

impl Recurrent for Griffin {
    fn state(&self) -> Vec<StatePart> {
        vec![
            self.convolution.state(),
            StatePart::f32([self.rates.elem_count()]),
        ]
    }

    fn takes_quantized(&self) -> bool {
        self.gate.takes_quantized() && self.input.takes_quantized()
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let [gate, x] = Linear::forward_each([&self.gate, &self.input], x)?;
        let x = self
            .convolution
            .forward(&x, None, &memory.state[0], states)?;
        let (input_gate, recurrent_gate) = (
            self.input_gate.forward(&x)?,
            self.recurrent_gate.forward(&x)?,
        );
        let y = self.scan(&x, &input_gate, &recurrent_gate, &memory.state[1], states)?;
        let y = fused::gate_mul(self.activation, &gate, &y)?;
        self.output.forward(&y.into())
    }
}

impl Griffin {
    fn scan(
        &self,
        x: &Tensor,
        input_gate: &Tensor,
        recurrent_gate: &Tensor,
        memory: &Tensor,
        batch: &StateBatch,
    ) -> Result<Tensor> {
        if let Device::Rocm(_) = x.device() {
            let tensors = [x, input_gate, recurrent_gate, &self.rates];
            return rocm::gated_recurrence(tensors, memory, batch);
        }
        let channels = x.dim(1)?;
        let (x, input, recurrent) = (floats(x)?, floats(input_gate)?, floats(recurrent_gate)?);
        let rates = floats(&self.rates)?;
        walk(memory, batch, channels, 1, |row: Row| {
            let at = row.row * channels + row.part;
            let log_decay = -8.0 * sigmoid(recurrent[at]) * rates[row.part];
            // A sequence's first row enters as it is.
            let root = match row.begins {
                true => 1.0,
                false => (-(2.0 * log_decay).exp_m1()).sqrt(),
            };
            let entering = x[at] * sigmoid(input[at]) * root;
            row.state[0] = log_decay.exp() * row.state[0] + entering;
            row.out[0] = row.state[0];
        })
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
