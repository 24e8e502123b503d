//! Blocks of Gemma 3n: several streams of which each block works on one, and guesses what that would change in the others.
//!
//! "Alternating Updates for Efficient Transformers", Baykal et al., 2023. A learned product of low rank goes beside
//! attention.

use super::block::Block;
use super::linear::Linear;
use super::memory::LayerMemory;
use super::mixers::Pass;
use super::norm::Norm;
use candle_core::{bail, Result, Tensor, D};
use std::f64::consts::FRAC_1_SQRT_2;

/// Least mean square that a stream is scaled by.
const LEAST_SQUARE: f64 = 1e-5;

/// What makes the streams of an embedding, and one of them in the end.
pub(super) struct Streams {
    /// A matrix for each stream but the first.
    pub projections: Vec<Linear>,
    pub back: Vec<Linear>,
}

/// What a block has besides attention and the feed-forward part.
pub(super) struct AltUp {
    /// The stream that it works on.
    pub active: usize,
    /// From that stream behind a norm, which divides by the width as well, to a number for each stream.
    pub router: Linear,
    pub router_norm: Norm,
    /// From those numbers to what streams are made of before, and to their share of the change behind.
    pub prediction: Linear,
    pub correction: Linear,
    /// A factor of each element of what the inputs of the block are gated by.
    pub correct_scale: Tensor,
    /// Beside attention: two matrices of low rank and a norm.
    pub left: Linear,
    pub right: Linear,
    pub low_rank_norm: Norm,
}

/// The root of the mean square of each row, `(..., 1)`.
fn magnitude(x: &Tensor, least: f64) -> Result<Tensor> {
    let square = x.sqr()?.mean_keepdim(D::Minus1)?;
    // The larger of both, without a number that a graph would have to bring.
    ((square - least)?.relu()? + least)?.sqrt()
}

impl Streams {
    /// The streams of an embedding `x`, `(rows, width)`: `(rows, streams, width)`.
    pub(super) fn spread(&self, x: &Tensor) -> Result<Tensor> {
        let size = magnitude(x, 0.0)?;
        let mut all = vec![x.clone()];
        for projection in &self.projections {
            all.push(scaled(&projection.forward(&x.clone().into())?, &size)?);
        }
        Tensor::stack(&all, 1)
    }

    /// One stream of all: their mean, `(rows, width)`.
    pub(super) fn join(&self, streams: &Tensor) -> Result<Tensor> {
        let stream = |i: usize| streams.narrow(1, i, 1)?.squeeze(1)?.contiguous();
        let first = stream(0)?;
        let size = magnitude(&first, 0.0)?;
        let mut sum = first;
        for (i, back) in self.back.iter().enumerate() {
            sum = (sum + scaled(&back.forward(&stream(i + 1)?.into())?, &size)?)?;
        }
        sum / (1.0 + self.back.len() as f64)
    }
}

/// A stream with the size of another.
fn scaled(x: &Tensor, size: &Tensor) -> Result<Tensor> {
    x.broadcast_mul(size)?
        .broadcast_div(&magnitude(x, LEAST_SQUARE)?)
}

impl AltUp {
    /// A number for each stream, `(rows, streams)`, of what the active one is.
    fn route(&self, x: &Tensor) -> Result<Tensor> {
        let seen = self.router_norm.forward(x)?;
        self.router.forward(&seen.into())?.tanh()
    }

    /// What streams are before the block: `(rows, streams, width)` to the same.
    fn predict(&self, streams: &Tensor) -> Result<Tensor> {
        let (rows, count, _) = streams.dims3()?;
        let active = streams
            .narrow(1, self.active, 1)?
            .squeeze(1)?
            .contiguous()?;
        let shares = self.prediction.forward(&self.route(&active)?.into())?;
        let shares = shares.reshape((rows, count, count))?;
        shares.matmul(&streams.contiguous()?)? + streams
    }

    /// What streams are behind the block: `predicted` and what `active`, `(rows, width)`, became.
    fn correct(&self, predicted: &Tensor, active: &Tensor) -> Result<Tensor> {
        let routed = self.route(active)?;
        let shares = (self.correction.forward(&routed.into())? + 1.0)?.unsqueeze(2)?;
        let change = (active.unsqueeze(1)? - predicted.narrow(1, self.active, 1)?)?;
        change.broadcast_mul(&shares)? + predicted
    }

    fn low_rank(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.left.forward(&x.clone().into())?;
        x + self
            .low_rank_norm
            .forward(&self.right.forward(&inner.into())?)?
    }
}

/// A norm that the block must have.
fn normed(norm: &Option<Norm>, x: &Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(x),
        None => bail!("a block of several streams has all four norms"),
    }
}

impl Block {
    /// `(rows, streams, width)` to the same.
    pub(super) fn forward_streams(
        &self,
        altup: &AltUp,
        streams: &Tensor,
        memories: &mut [LayerMemory],
        layer: usize,
        pass: &Pass,
    ) -> Result<Tensor> {
        let predicted = altup.predict(streams)?;
        let active = predicted
            .narrow(1, altup.active, 1)?
            .squeeze(1)?
            .contiguous()?;
        let input = normed(&self.attention_norm, &active)?;
        let mixed = self
            .mixer
            .forward(&input.clone().into(), memories, layer, pass)?;
        let mixed = self.mixed(mixed)?;
        let mixed = (&active + normed(&self.attention_post_norm, &mixed)?)?;
        let mixed = ((mixed + altup.low_rank(&input)?)? * FRAC_1_SQRT_2)?;
        let input = normed(&self.ffn_norm, &mixed)?;
        let Some(feed_forward) = &self.feed_forward else {
            bail!("a block of several streams has a feed-forward part")
        };
        let fed = self.fed(feed_forward.forward(&input.into())?)?;
        let changed = (mixed + normed(&self.ffn_post_norm, &fed)?)?;
        let corrected = altup.correct(&predicted, &changed)?;
        let (Some(per_block), Some(of_blocks)) = (&self.per_block, &pass.per_block) else {
            return Ok(corrected);
        };
        let active = corrected.narrow(1, altup.active, 1)?.squeeze(1)?;
        let active = active.broadcast_mul(&altup.correct_scale)?;
        let given = per_block.forward(&active, of_blocks, layer)?.unsqueeze(1)?;
        let count = corrected.dim(1)?;
        let others = corrected.narrow(1, 1, count - 1)?.broadcast_add(&given)?;
        Tensor::cat(&[corrected.narrow(1, 0, 1)?, others], 1)
    }
}
