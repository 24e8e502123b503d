//! One block of the decoder.

use super::config::Base;
use super::experts::FeedForward;
use super::input::Input;
use super::linear::Linear;
use super::norm::{Norm, Residual};
use super::projections::{normed, Heads, Projections};
use super::rocm;
use candle_core::{Result, Tensor};
use candle_rocm_flash_attn::paged::{PagedBatch, PagedCache, Rotary};

/// Attention and the feed-forward part, with the norms that a model has.
pub(super) struct Block {
    pub attention: Attention,
    pub feed_forward: FeedForward,
    pub attention_norm: Option<Norm>,
    pub attention_post_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub ffn_post_norm: Option<Norm>,
    /// Both parts work on the block's input.
    pub parallel: bool,
    pub residual_scale: Option<f64>,
}

/// Grouped-query attention over a paged cache.
pub(super) struct Attention {
    pub projections: Projections,
    pub output: Linear,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub heads: Heads,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// Keys before its own that a row sees.
    pub left: Option<usize>,
    pub rotary: Option<Base>,
}

impl Block {
    /// Adds what the block gives to the stream.
    pub(super) fn forward(
        &self,
        stream: &mut Residual,
        cache: &mut PagedCache,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<()> {
        let normed = |stream: &mut Residual, norm: &Option<Norm>, quantized| match norm {
            Some(norm) => stream.normed(norm, quantized),
            None => Ok(stream.sum()?.into()),
        };
        let quantized = self.attention.projections.takes_quantized();
        let input = normed(stream, &self.attention_norm, quantized)?;
        let attended = self.attention.forward(&input, cache, batch, rotary)?;
        let quantized = self.feed_forward.takes_quantized();
        if self.parallel {
            let input = match &self.ffn_norm {
                Some(_) => normed(stream, &self.ffn_norm, quantized)?,
                None => input,
            };
            let fed = self.feed_forward.forward(&input)?;
            stream.add(self.finish(attended, &self.attention_post_norm)?)?;
            return stream.add(self.finish(fed, &self.ffn_post_norm)?);
        }
        stream.add(self.finish(attended, &self.attention_post_norm)?)?;
        let input = normed(stream, &self.ffn_norm, quantized)?;
        let fed = self.feed_forward.forward(&input)?;
        stream.add(self.finish(fed, &self.ffn_post_norm)?)
    }

    fn finish(&self, part: Tensor, norm: &Option<Norm>) -> Result<Tensor> {
        let part = match norm {
            Some(norm) => norm.forward(&part)?,
            None => part,
        };
        match self.residual_scale {
            Some(scale) => part * scale,
            None => Ok(part),
        }
    }
}

impl Attention {
    /// `(tokens, width)` to the same.
    fn forward(
        &self,
        x: &Input,
        cache: &mut PagedCache,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<Tensor> {
        let [query, key, value] = self.projections.forward(x, self.heads)?;
        let query = normed(query, &self.query_norm)?;
        let key = normed(key, &self.key_norm)?;
        let query = match rotary {
            Some(_) => cache.write(Some(&query), &key, &value, batch, rotary)?,
            None => cache.write(None, &key, &value, batch, None)?,
        }
        .unwrap_or(query);
        self.output.forward(&self.attend(&query, cache, batch)?)
    }

    /// `(tokens, heads, size)` to `(tokens, width)`; in 8 bits as well, where that is for the matrix behind and the
    /// device has it in one.
    fn attend(&self, query: &Tensor, cache: &PagedCache, batch: &PagedBatch) -> Result<Input> {
        let shape = (query.dim(0)?, self.heads.count * self.heads.v_size);
        if self.output.takes_quantized() && rocm::gains_by_quantized(query, shape) {
            let (floats, quantized) =
                cache.attend_quantized(query, batch, self.scale, self.left, self.softcap)?;
            return Ok(Input {
                floats: floats.reshape(shape)?,
                quantized: Some(quantized),
            });
        }
        let attended = cache.attend(query, batch, self.scale, self.left, self.softcap)?;
        Ok(attended.reshape(shape)?.into())
    }
}
