//! One block of the decoder.

use super::altup::AltUp;
use super::experts::{Beside, FeedForward};
use super::input::Input;
use super::memory::LayerMemory;
use super::mixers::{Mixer, Pass};
use super::norm::{Norm, Residual};
use super::per_block::PerBlockInput;
use super::shares::Shares;
use candle_core::{Result, Tensor};

/// What mixes tokens and the feed-forward part, with the norms that a model has.
pub(super) struct Block {
    pub mixer: Mixer,
    /// None where the mixer is all.
    pub feed_forward: Option<FeedForward>,
    pub attention_norm: Option<Norm>,
    pub attention_post_norm: Option<Norm>,
    pub ffn_norm: Option<Norm>,
    pub ffn_post_norm: Option<Norm>,
    /// Both parts work on the block's input.
    pub parallel: bool,
    pub residual_scale: Option<f64>,
    /// What it has if it works on one of several streams.
    pub altup: Option<Box<AltUp>>,
    /// Experts beside the feed-forward part.
    pub beside: Option<Box<Beside>>,
    /// What it does with what it is given besides the stream, and the factor of the stream in the end.
    pub per_block: Option<PerBlockInput>,
    pub stream_scale: Option<Tensor>,
    /// The factor of what a part's norm gives, where that takes the stream's place.
    pub normed_stream: Option<f64>,
    /// What makes the results of parts that several GPUs share.
    pub shares: Option<Shares>,
}

impl Block {
    /// Adds what the block gives to the stream; its own memory is `memories[layer]`.
    pub(super) fn forward(
        &self,
        stream: &mut Residual,
        memories: &mut [LayerMemory],
        layer: usize,
        pass: &Pass,
    ) -> Result<()> {
        let normed = |stream: &mut Residual, norm: &Option<Norm>, wanted| match norm {
            Some(norm) => stream.normed(norm, wanted),
            None => Ok(stream.sum()?.into()),
        };
        let wanted = self.mixer.wants(stream.rows()?)?;
        let input = normed(stream, &self.attention_norm, wanted)?;
        let mixed = self.mixer.forward(&input, memories, layer, pass)?;
        self.restart(stream, &input)?;
        let Some(feed_forward) = &self.feed_forward else {
            let mixed = self.mixed(mixed)?;
            return stream.add(self.finish(mixed, &self.attention_post_norm)?);
        };
        let wanted = feed_forward.wants(stream.rows()?)?;
        if self.parallel {
            let input = match &self.ffn_norm {
                Some(_) => normed(stream, &self.ffn_norm, wanted)?,
                None => input,
            };
            let fed = feed_forward.forward(&input)?;
            let norms = [&self.attention_post_norm, &self.ffn_post_norm];
            if norms.iter().all(|norm| norm.is_none())
                && self.shares.as_ref().is_some_and(Shares::are_both)
            {
                return stream.add(self.finish(self.fed((mixed + fed)?)?, &None)?);
            }
            stream.add(self.finish(self.mixed(mixed)?, &self.attention_post_norm)?)?;
            return stream.add(self.finish(self.fed(fed)?, &self.ffn_post_norm)?);
        }
        let mixed = self.mixed(mixed)?;
        stream.add(self.finish(mixed, &self.attention_post_norm)?)?;
        let before = match &self.beside {
            Some(_) => Some(stream.sum()?),
            None => None,
        };
        let input = normed(stream, &self.ffn_norm, wanted)?;
        let mut fed = self.fed(feed_forward.forward(&input)?)?;
        self.restart(stream, &input)?;
        if let (Some(beside), Some(before)) = (&self.beside, &before) {
            let shares = self.shares.as_ref();
            fed = beside.forward(&fed, before, |experts| match shares {
                Some(shares) => shares.beside(experts),
                None => Ok(experts),
            })?;
        }
        stream.add(self.finish(fed, &self.ffn_post_norm)?)?;
        if let (Some(input), Some(of_blocks)) = (&self.per_block, &pass.per_block) {
            let given = input.forward(&stream.sum()?, of_blocks, layer)?;
            stream.add(given)?;
        }
        match &self.stream_scale {
            Some(scale) => stream.scale(scale),
            None => Ok(()),
        }
    }

    /// What the mixer gives, from what this GPU has of it.
    pub(super) fn mixed(&self, share: Tensor) -> Result<Tensor> {
        match &self.shares {
            Some(shares) => shares.mixed(share),
            None => Ok(share),
        }
    }

    /// The same of the feed-forward part.
    pub(super) fn fed(&self, share: Tensor) -> Result<Tensor> {
        match &self.shares {
            Some(shares) => shares.fed(share),
            None => Ok(share),
        }
    }

    /// Lets the stream go on from what a norm gave, if the block does so.
    fn restart(&self, stream: &mut Residual, normed: &Input) -> Result<()> {
        if let Some(factor) = self.normed_stream {
            *stream = Residual::new((&normed.floats * factor)?);
        }
        Ok(())
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
