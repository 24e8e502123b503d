//! Mamba and Mamba 2: a convolution over the last few rows, and a selective scan behind it.

use super::{Convolution, Recurrent, Selective};
use crate::engine::decoder::config::StateSpace;
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::{LayerMemory, StateBatch, StatePart};
use crate::engine::decoder::norm::Norm;
use candle_core::{Result, Tensor, D};
use candle_nn::{fused, Activation};

/// What a sequence carries on: the last rows of the convolution, and the states of the scan behind it.
fn state_of(convolution: &Convolution, scan: &Selective) -> Vec<StatePart> {
    vec![convolution.state(), scan.state()]
}

/// Mamba 2 (arXiv 2405.21060): gate, what is convolved, and steps come of one product.
pub(in crate::engine::decoder) struct Mamba2 {
    pub input: Linear,
    pub convolution: Convolution,
    pub scan: Selective,
    /// Without weights, along a group's channels...
    pub group_norm: Norm,
    /// ...and the weights of all channels; none where there is no norm.
    pub norm: Option<Tensor>,
    pub output: Linear,
    pub sizes: StateSpace,
}

impl Recurrent for Mamba2 {
    fn state(&self) -> Vec<StatePart> {
        state_of(&self.convolution, &self.scan)
    }

    fn takes_quantized(&self) -> bool {
        self.input.takes_quantized()
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let StateSpace {
            inner,
            groups,
            states: width,
            ..
        } = self.sizes;
        let (all, read) = (self.input.forward(x)?, groups * width);
        let gate = all.narrow(1, 0, inner)?;
        let convolved = inner + 2 * read;
        let steps = all.narrow(1, inner + convolved, self.scan.heads)?;
        let convolved = all.narrow(1, inner, convolved)?;
        let convolved = self
            .convolution
            .forward(&convolved, None, &memory.state[0], states)?;
        let y = self.scan.forward(
            &convolved.narrow(1, 0, inner)?,
            &steps,
            &convolved.narrow(1, inner, read)?,
            &convolved.narrow(1, inner + read, read)?,
            &memory.state[1],
            states,
        )?;
        let y = fused::gate_mul(Activation::Silu, &gate, &y)?;
        let y = match &self.norm {
            None => y,
            Some(weights) => {
                let rows = y.dim(0)?;
                let y = y.reshape((rows * groups, inner / groups))?;
                let y = self.group_norm.forward(&y)?.reshape((rows, inner))?;
                y.broadcast_mul(weights)?
            }
        };
        self.output.forward(&y.into())
    }
}

/// Mamba (arXiv 2312.00752): what is convolved says how it is scanned.
pub(in crate::engine::decoder) struct Mamba {
    pub input: Linear,
    pub convolution: Convolution,
    /// Steps, inputs and outputs of the state from what is convolved.
    pub selection: Linear,
    /// Spreads steps over channels.
    pub steps: Linear,
    /// Norms of steps, inputs and outputs.
    pub norms: Option<[Norm; 3]>,
    pub scan: Selective,
    pub output: Linear,
    pub sizes: StateSpace,
}

impl Recurrent for Mamba {
    fn state(&self) -> Vec<StatePart> {
        state_of(&self.convolution, &self.scan)
    }

    fn takes_quantized(&self) -> bool {
        self.input.takes_quantized()
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let StateSpace {
            inner,
            rank,
            states: width,
            ..
        } = self.sizes;
        let both = self.input.forward(x)?;
        let gate = both.narrow(1, inner, inner)?;
        let x = both.narrow(1, 0, inner)?;
        let x = self
            .convolution
            .forward(&x, None, &memory.state[0], states)?;
        let selection = self.selection.forward(&x.clone().into())?;
        let part = |start, count, norm: Option<&Norm>| -> Result<Tensor> {
            let part = selection.narrow(D::Minus1, start, count)?;
            match norm {
                Some(norm) => norm.forward(&part.contiguous()?),
                None => Ok(part),
            }
        };
        let [of_steps, of_inputs, of_outputs] = match &self.norms {
            Some(norms) => norms.each_ref().map(Some),
            None => [None; 3],
        };
        let steps = part(0, rank, of_steps)?.contiguous()?;
        let steps = self.steps.forward(&steps.into())?;
        let y = self.scan.forward(
            &x,
            &steps,
            &part(rank, width, of_inputs)?,
            &part(rank + width, width, of_outputs)?,
            &memory.state[1],
            states,
        )?;
        let y = fused::gate_mul(Activation::Silu, &gate, &y)?;
        self.output.forward(&y.into())
    }
}
