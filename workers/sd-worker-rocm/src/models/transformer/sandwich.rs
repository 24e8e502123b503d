//! A block with norms before and after attention and feed-forward layers: Z-Image's and Lumina 2's.

use super::attention::{attend, Projections, Rope, PICTURE};
use super::blocks::Modulation;
use crate::models::layers::{linear, Linear};
use crate::models::norm::RmsNorm;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};

/// Names of a block's parts.
pub struct SandwichNames {
    /// The linear layer that makes scales and gates of the conditions.
    pub modulation: &'static str,
    /// The norm before attention, in blocks with conditions and in those without.
    pub before: [&'static str; 2],
    /// The norm after attention.
    pub after: &'static str,
    /// The norms before and after the feed-forward layers.
    pub feed: [&'static str; 2],
    /// Attention.
    pub attention: &'static str,
    /// The feed-forward layers: gate, up, down.
    pub layers: [&'static str; 3],
}

/// Sizes of a block.
pub struct SandwichSizes {
    /// Channels.
    pub width: usize,
    /// Channels inside the feed-forward layers.
    pub hidden: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub shared: usize,
    /// Width of the conditions, if there are any.
    pub conditions: Option<usize>,
    /// Of the norms.
    pub eps: f64,
    /// Of the norms of heads.
    pub head_eps: f64,
}

/// The block.
#[derive(Debug, Clone)]
pub struct SandwichBlock {
    modulation: Option<Modulation>,
    norms: [RmsNorm; 4],
    projections: Projections,
    out: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    shared: usize,
}

impl SandwichBlock {
    /// Reads a block.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: &VarBuilder, names: &SandwichNames, sizes: &SandwichSizes) -> Result<Self> {
        let (width, hidden) = (sizes.width, sizes.hidden);
        let norm = |name: &str| RmsNorm::new(vb.pp(name), width, sizes.eps);
        let attn = vb.pp(names.attention);
        let head = width / sizes.heads;
        let [gate, up, down] = names.layers;
        let [conditioned, plain] = names.before;
        Ok(Self {
            norms: [
                norm(if sizes.conditions.is_some() {
                    conditioned
                } else {
                    plain
                })?,
                norm(names.after)?,
                norm(names.feed[0])?,
                norm(names.feed[1])?,
            ],
            modulation: match sizes.conditions {
                Some(inputs) => Some(Modulation::new(vb.pp(names.modulation), inputs, width, 4)?),
                None => None,
            },
            projections: Projections::grouped(
                &attn,
                &PICTURE,
                width,
                sizes.shared * head,
                head,
                sizes.head_eps,
            )?,
            out: linear(attn.pp("to_out.0"), width, width)?,
            gate: linear(vb.pp(gate), width, hidden)?,
            up: linear(vb.pp(up), width, hidden)?,
            down: linear(vb.pp(down), hidden, width)?,
            heads: sizes.heads,
            shared: sizes.shared,
        })
    }

    /// As many heads of keys or values as there are of queries.
    fn all(&self, x: &Tensor) -> Result<Tensor> {
        if self.shared == self.heads {
            return Ok(x.clone());
        }
        let (batch, tokens, width) = x.dims3()?;
        let size = width / self.shared;
        x.reshape((batch, tokens, self.shared, 1, size))?
            .broadcast_as((batch, tokens, self.shared, self.heads / self.shared, size))?
            .contiguous()?
            .reshape((batch, tokens, self.heads * size))
    }

    /// `x`, `(batch, tokens, width)`, after the block; `conditions`, `(batch, width)`, are those of blocks that have
    /// some.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward(&self, x: &Tensor, rope: &Rope, conditions: Option<&Tensor>) -> Result<Tensor> {
        let by = match (&self.modulation, conditions) {
            (Some(modulation), Some(conditions)) => Some(modulation.forward(conditions)?),
            _ => None,
        };
        let scaled = |x: Tensor, part: usize| match &by {
            Some(by) => x.broadcast_mul(&(&by[part] + 1.0)?),
            None => Ok(x),
        };
        let gated = |x: Tensor, part: usize| match &by {
            Some(by) => x.broadcast_mul(&by[part].tanh()?),
            None => Ok(x),
        };
        let [before, after, before_feed, after_feed] = &self.norms;
        let h = scaled(before.forward(x)?, 0)?;
        let [q, k, v] = self.projections.forward(&h)?;
        let h = attend(&[q, self.all(&k)?, self.all(&v)?], self.heads, Some(rope))?;
        let h = after.forward(&self.out.forward(&h)?)?;
        let x = (x + gated(h, 1)?)?;
        let h = scaled(before_feed.forward(&x)?, 2)?;
        let h = candle_nn::fused::silu_mul(&self.gate.forward(&h)?, &self.up.forward(&h)?)?;
        let h = after_feed.forward(&self.down.forward(&h)?)?;
        x + gated(h, 3)?
    }
}
