//! What blocks are given of each token besides the stream: embeddings of their own, as Gemma 3n and 4 have them.

use super::input::Input;
use super::linear::{Linear, Weight};
use super::norm::Norm;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Activation;

/// Makes them of tokens and of the embedding.
pub(super) struct PerBlock {
    /// A row for each token with all blocks' elements.
    pub table: Weight,
    /// u32 `(1)`: tokens from this one on have the row of the first.
    pub tokens: Option<Tensor>,
    /// From the embedding to as many.
    pub projection: Linear,
    pub norm: Norm,
    pub blocks: usize,
    /// Elements of a block's.
    pub size: usize,
}

/// What a block does with its own.
pub(super) struct PerBlockInput {
    pub gate: Linear,
    pub projection: Linear,
    pub norm: Norm,
    pub activation: Activation,
}

impl PerBlock {
    /// `(rows, blocks, size)` of the rows' ids and their scaled embedding, `(rows, width)`.
    pub(super) fn rows(&self, ids: &Tensor, embedding: &Tensor) -> Result<Tensor> {
        let (rows, width) = embedding.dims2()?;
        let shape = (rows, self.blocks, self.size);
        let own = match &self.tokens {
            Some(tokens) => {
                let there = ids.broadcast_lt(tokens)?.to_dtype(DType::U32)?;
                self.table.rows(&(there * ids)?, embedding.dtype())?
            }
            None => self.table.rows(ids, embedding.dtype())?,
        };
        let own = own.reshape(shape)?;
        let own = (own * (self.size as f64).sqrt())?;
        let projected = self.projection.forward(&embedding.clone().into())?;
        let projected = (projected / (width as f64).sqrt())?.reshape(shape)?;
        (self.norm.forward(&projected)? + own)? * std::f64::consts::FRAC_1_SQRT_2
    }
}

impl PerBlockInput {
    /// What the stream `x`, `(rows, width)`, is to be added; `of_blocks` is `(rows, blocks, size)`.
    pub(super) fn forward(&self, x: &Tensor, of_blocks: &Tensor, block: usize) -> Result<Tensor> {
        let open = self.gate.forward(&Input::from(x.clone()))?;
        let own = of_blocks.narrow(1, block, 1)?.squeeze(1)?;
        let gated = (self.activation.forward(&open)? * own)?;
        self.norm.forward(&self.projection.forward(&gated.into())?)
    }
}
