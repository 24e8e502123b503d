//! LFM2's short convolution: gated before and behind.

use super::convolution::{Convolution, Gates};
use super::Recurrent;
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::{LayerMemory, StateBatch, StatePart};
use candle_core::{Result, Tensor};

/// A convolution of one of three parts of a product, gated by the others.
pub(in crate::engine::decoder) struct ShortConvolution {
    /// The gate before, the gate behind, and what is convolved, behind each other.
    pub input: Linear,
    pub convolution: Convolution,
    pub output: Linear,
}

impl Recurrent for ShortConvolution {
    fn state(&self) -> Vec<StatePart> {
        vec![self.convolution.state()]
    }

    fn takes_quantized(&self) -> bool {
        self.input.takes_quantized()
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let all = self.input.forward(x)?;
        let width = all.dim(1)? / 3;
        let gates = Gates {
            before: &all.narrow(1, 0, width)?,
            after: &all.narrow(1, width, width)?,
        };
        let input = all.narrow(1, 2 * width, width)?;
        let convolved = self
            .convolution
            .forward(&input, Some(&gates), &memory.state[0], states)?;
        self.output.forward(&convolved.into())
    }
}
