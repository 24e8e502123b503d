//! Residual layers, and the blocks that they make up with attention and changes of size.

use super::config::BlockPlan;
use super::transformer::{TextKeys, Transformer};
use crate::models::layers::Linear;
use crate::models::layers::{linear, Upsample};
use crate::models::norm::GroupNorm;
use crate::models::wrap::WrappedConv;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};

/// Two convolutions with norms, the time in between, around a residual connection.
#[derive(Debug, Clone)]
pub struct ResnetBlock {
    pub(crate) norm1: GroupNorm,
    pub(crate) conv1: WrappedConv,
    time: Option<Linear>,
    pub(crate) norm2: GroupNorm,
    pub(crate) conv2: WrappedConv,
    shortcut: Option<WrappedConv>,
}

impl ResnetBlock {
    /// From `inputs` to `outputs` channels; `time` is the width of the time embedding, for networks that have one.
    pub fn new(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        time: Option<usize>,
        groups: usize,
        eps: f64,
    ) -> Result<Self> {
        Ok(Self {
            norm1: GroupNorm::new(vb.pp("norm1"), groups, inputs, eps)?,
            conv1: WrappedConv::new(vb.pp("conv1"), inputs, outputs, 3, 1, 1)?,
            time: match time {
                Some(width) => Some(linear(vb.pp("time_emb_proj"), width, outputs)?),
                None => None,
            },
            norm2: GroupNorm::new(vb.pp("norm2"), groups, outputs, eps)?,
            conv2: WrappedConv::new(vb.pp("conv2"), outputs, outputs, 3, 1, 1)?,
            shortcut: match inputs == outputs {
                true => None,
                false => Some(WrappedConv::new(
                    vb.pp("conv_shortcut"),
                    inputs,
                    outputs,
                    1,
                    1,
                    0,
                )?),
            },
        })
    }

    /// `time` is the time embedding after SiLU.
    pub fn forward(&self, x: &Tensor, time: Option<&Tensor>) -> Result<Tensor> {
        let time = match (&self.time, time) {
            (Some(layer), Some(time)) => Some(layer.forward(time)?),
            _ => None,
        };
        let h = self.norm1.forward_silu(x)?;
        let h = self.conv1.forward_added(&h, time.as_ref(), None)?;
        let h = self.norm2.forward_silu(&h)?;
        self.conv2.forward_added(&h, None, Some(&self.skip(x)?))
    }

    /// What the input contributes past the convolutions.
    pub(crate) fn skip(&self, x: &Tensor) -> Result<Tensor> {
        match &self.shortcut {
            Some(shortcut) => shortcut.forward(x),
            None => Ok(x.clone()),
        }
    }
}

/// What all blocks of a network share.
#[derive(Debug, Clone, Copy)]
pub struct Common {
    /// Width of the time embedding.
    pub time: usize,
    /// Groups of the norms.
    pub groups: usize,
    /// Of the residual layers' norms.
    pub eps: f64,
}

impl Common {
    fn resnet(&self, vb: VarBuilder, inputs: usize, outputs: usize) -> Result<ResnetBlock> {
        ResnetBlock::new(vb, inputs, outputs, Some(self.time), self.groups, self.eps)
    }

    fn transformer(&self, vb: VarBuilder, plan: &BlockPlan, depth: usize) -> Result<Transformer> {
        Transformer::new(vb, plan.channels, depth, plan.heads, plan.text, self.groups)
    }
}

/// Residual layers, each followed by attention where the block has it.
#[derive(Debug, Clone)]
pub(super) struct Layers {
    resnets: Vec<ResnetBlock>,
    transformers: Vec<Transformer>,
}

impl Layers {
    fn new(vb: &VarBuilder, inputs: &[usize], plan: &BlockPlan, common: &Common) -> Result<Self> {
        let resnets = inputs
            .iter()
            .enumerate()
            .map(|(i, inputs)| common.resnet(vb.pp("resnets").pp(i), *inputs, plan.channels));
        let transformers = plan.transformers.iter().enumerate();
        let transformers = transformers
            .map(|(i, depth)| common.transformer(vb.pp("attentions").pp(i), plan, *depth));
        Ok(Self {
            resnets: resnets.collect::<Result<_>>()?,
            transformers: transformers.collect::<Result<_>>()?,
        })
    }

    fn forward(
        &self,
        layer: usize,
        x: &Tensor,
        time: &Tensor,
        text: &mut std::slice::Iter<TextKeys>,
    ) -> Result<Tensor> {
        let x = self.resnets[layer].forward(x, Some(time))?;
        match self.transformers.get(layer) {
            Some(transformer) => transformer.forward(&x, text),
            None => Ok(x),
        }
    }

    /// Layers of each attention.
    pub(super) fn depths(&self) -> impl Iterator<Item = usize> + '_ {
        self.transformers.iter().map(Transformer::depth)
    }

    /// Lets pixels attend to themselves only, in one of the attentions or in all; whether there is any.
    pub(super) fn without_attention(&mut self, which: Option<usize>) -> bool {
        let all = self.transformers.iter_mut().enumerate();
        let chosen = all.filter(|(i, _)| which.is_none_or(|which| which == *i));
        chosen
            .map(|(_, transformer)| transformer.without_attention())
            .count()
            > 0
    }

    /// Residual layers.
    pub(super) fn count(&self) -> usize {
        self.resnets.len()
    }

    /// How many keys of the text its attention takes.
    pub(super) fn keys(&self) -> usize {
        self.transformers.iter().map(Transformer::depth).sum()
    }

    /// Keys and values of a text for the attention.
    pub(super) fn text_keys(&self, text: &Tensor, keys: &mut Vec<TextKeys>) -> Result<()> {
        self.transformers
            .iter()
            .try_for_each(|transformer| transformer.text_keys(text, keys))
    }
}

/// A block going down; all but the innermost halve height and width at their end.
#[derive(Debug, Clone)]
pub struct DownBlock {
    pub(super) layers: Layers,
    downsample: Option<WrappedConv>,
}

impl DownBlock {
    /// Reads `resnets`, `attentions` and `downsamplers.0`.
    pub fn new(
        vb: VarBuilder,
        inputs: usize,
        plan: &BlockPlan,
        last: bool,
        common: &Common,
    ) -> Result<Self> {
        let channels = plan.channels;
        let mut all = vec![channels; plan.layers];
        all[0] = inputs;
        Ok(Self {
            layers: Layers::new(&vb, &all, plan, common)?,
            downsample: match last {
                true => None,
                false => Some(WrappedConv::new(
                    vb.pp("downsamplers.0.conv"),
                    channels,
                    channels,
                    3,
                    2,
                    1,
                )?),
            },
        })
    }

    /// Pushes what the way up needs onto `skips`. `feature` is what an adapter adds: behind the last attention, or, in
    /// blocks without, at the end.
    pub fn forward(
        &self,
        x: &Tensor,
        time: &Tensor,
        text: &mut std::slice::Iter<TextKeys>,
        skips: &mut Vec<Tensor>,
        feature: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        let layers = self.layers.resnets.len();
        let attends = !self.layers.transformers.is_empty();
        let add = |x: Tensor, here: bool| match feature.filter(|_| here) {
            Some(feature) => x.broadcast_add(feature),
            None => Ok(x),
        };
        for layer in 0..layers {
            x = self.layers.forward(layer, &x, time, text)?;
            let last = layer + 1 == layers;
            x = add(x, last && (attends || self.downsample.is_none()))?;
            skips.push(x.clone());
        }
        if let Some(downsample) = &self.downsample {
            x = add(downsample.forward(&x)?, !attends)?;
            skips.push(x.clone());
        }
        Ok(x)
    }
}

/// The block between: a residual layer, then, in most networks, attention and a residual layer.
#[derive(Debug, Clone)]
pub struct MidBlock {
    pub(super) layers: Layers,
    last: Option<ResnetBlock>,
}

impl MidBlock {
    /// Reads `resnets.0`, and `attentions.0` and `resnets.1` where there is attention.
    pub fn new(vb: VarBuilder, plan: &BlockPlan, common: &Common) -> Result<Self> {
        let channels = plan.channels;
        Ok(Self {
            layers: Layers::new(&vb, &[channels], plan, common)?,
            last: match plan.transformers.is_empty() {
                true => None,
                false => Some(common.resnet(vb.pp("resnets.1"), channels, channels)?),
            },
        })
    }

    /// The block.
    pub fn forward(
        &self,
        x: &Tensor,
        time: &Tensor,
        text: &mut std::slice::Iter<TextKeys>,
    ) -> Result<Tensor> {
        let x = self.layers.forward(0, x, time, text)?;
        match &self.last {
            Some(last) => last.forward(&x, Some(time)),
            None => Ok(x),
        }
    }
}

/// A block going up; all but the outermost double height and width at their end.
#[derive(Debug, Clone)]
pub struct UpBlock {
    pub(super) layers: Layers,
    upsample: Option<Upsample>,
}

impl UpBlock {
    /// Reads `resnets`, `attentions` and `upsamplers.0`. `inputs` come from the block before; `skips` are the channels
    /// of what the way down left, in the order in which it is taken.
    pub fn new(
        vb: VarBuilder,
        inputs: usize,
        skips: &[usize],
        plan: &BlockPlan,
        last: bool,
        common: &Common,
    ) -> Result<Self> {
        let inputs: Vec<usize> = skips
            .iter()
            .enumerate()
            .map(|(i, skip)| skip + if i == 0 { inputs } else { plan.channels })
            .collect();
        Ok(Self {
            layers: Layers::new(&vb, &inputs, plan, common)?,
            upsample: match last {
                true => None,
                false => Some(Upsample::new(vb.pp("upsamplers.0"), plan.channels)?),
            },
        })
    }

    /// Takes its layers' skips off the end of `skips`.
    pub fn forward(
        &self,
        x: &Tensor,
        time: &Tensor,
        text: &mut std::slice::Iter<TextKeys>,
        skips: &mut Vec<Tensor>,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in 0..self.layers.resnets.len() {
            let Some(skip) = skips.pop() else {
                candle_core::bail!("the way up has more layers than the way down")
            };
            x = self
                .layers
                .forward(layer, &Tensor::cat(&[&x, &skip], 1)?, time, text)?;
        }
        match &self.upsample {
            // Sizes that do not halve evenly meet the skip's again.
            Some(upsample) => {
                let size = skips.last().map(|skip| (skip.dims()[2], skip.dims()[3]));
                upsample.forward(&x, size)
            }
            None => Ok(x),
        }
    }
}
