//! Lightning attention: linear attention whose heads forget at rates of their own ("MiniMax-01: Scaling Foundation Models
//! with Lightning Attention", arXiv 2501.08313, 2.2).
//!
//! A head's state takes the product of each token's key and value; queries read it. That is a selective scan of Mamba 2
//! with steps of 1: values are what is scanned, keys and queries the inputs and outputs of a head's own state.

use super::{Recurrent, Selective};
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::{LayerMemory, StateBatch, StatePart};
use crate::engine::decoder::norm::Norm;
use candle_core::{Result, Tensor};
use candle_nn::ops;

/// See the module.
pub(in crate::engine::decoder) struct Lightning {
    /// Queries, keys and values, before their activation, SiLU.
    pub projections: [Linear; 3],
    /// What the result is multiplied by, before its sigmoid.
    pub gate: Linear,
    pub scan: Selective,
    /// Of all heads together.
    pub norm: Norm,
    pub output: Linear,
}

/// What a bias has to be for a softplus of 1: `ln(e - 1)`.
pub(in crate::engine::decoder) const BIAS_OF_ONE: f32 = 0.541_324_85;

impl Recurrent for Lightning {
    fn state(&self) -> Vec<StatePart> {
        vec![self.scan.state()]
    }

    fn takes_quantized(&self) -> bool {
        let [query, key, value] = &self.projections;
        let all = [query, key, value, &self.gate];
        all.iter().all(|linear| linear.takes_quantized())
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let [query, key, value] = &self.projections;
        let [query, key, value, gate] = Linear::forward_each([query, key, value, &self.gate], x)?;
        let (query, key, value) = (query.silu()?, key.silu()?, value.silu()?);
        let steps = value.zeros_like()?.narrow(1, 0, self.scan.heads)?;
        let mixed = self
            .scan
            .forward(&value, &steps, &key, &query, &memory.state[0], states)?;
        let gated = (self.norm.forward(&mixed)? * ops::sigmoid(&gate)?)?;
        self.output.forward(&gated.into())
    }
}
