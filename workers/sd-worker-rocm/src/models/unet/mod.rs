//! The conditional UNet of Stable Diffusion 1, 2 and XL.

pub mod blocks;
pub mod config;
pub mod transformer;

use super::layers::{sinusoidal, TimestepEmbedding};
use super::norm::GroupNorm;
use super::wrap::WrappedConv;
use crate::models::time::Time;
use crate::models::VarBuilder;
use crate::request::Way;
use blocks::{Common, DownBlock, Layers, MidBlock, UpBlock};
use candle_core::{DType, Device, Module, Result, Tensor};
use config::{Plan, UNetConfig};
use transformer::{PictureKeys, TextKeys};

/// The part that UNet and ControlNet have in common: time, the way down, the block between.
#[derive(Debug, Clone)]
pub struct Trunk {
    config: UNetConfig,
    time: TimestepEmbedding,
    addition: Option<TimestepEmbedding>,
    conv_in: WrappedConv,
    down: Vec<DownBlock>,
    mid: Option<MidBlock>,
    dtype: DType,
}

/// What stays the same over all steps of a picture.
#[derive(Debug, Clone)]
pub struct Condition {
    keys: Vec<TextKeys>,
    /// Added to the time embedding.
    addition: Option<Tensor>,
    /// Guidance, embedded, of latent consistency models.
    guidance: Option<Tensor>,
}

/// Conditions beside the text.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// SDXL's pooled text, `(batch, width)`.
    pub pooled: Option<Tensor>,
    /// SDXL's numbers for each prompt of the batch: original height and width, crop from top and left, target height
    /// and width; a refiner's end in an aesthetic score instead of the target's size.
    pub numbers: Vec<Vec<f64>>,
    /// The guidance that a latent consistency model was told to imitate.
    pub guidance: Option<f64>,
}

impl Extra {
    /// The same on another device.
    ///
    /// # Errors
    /// If a device fails.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let pooled = self.pooled.as_ref();
        Ok(Self {
            pooled: pooled.map(|x| x.to_device(device)).transpose()?,
            ..self.clone()
        })
    }
}

/// Picture and time on their way.
pub struct Down {
    /// After the block between.
    pub x: Tensor,
    /// For the way up.
    pub skips: Vec<Tensor>,
    /// The time embedding after SiLU.
    pub time: Tensor,
}

/// Where a layer that attends to the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The block.
    pub way: Way,
    /// The attention within it.
    pub attention: usize,
    /// How often latents are halved there.
    pub level: usize,
}

impl Condition {
    /// Shows a picture beside the text to one of the layers of [`UNet::places`].
    ///
    /// # Errors
    /// If there is no such layer.
    pub fn show(&mut self, place: usize, picture: PictureKeys) -> Result<()> {
        match self.keys.get_mut(place) {
            Some(keys) => keys.pictures.push(picture),
            None => candle_core::bail!("there is no attention {place}"),
        }
        Ok(())
    }

    /// The same with those pictures only whose number is `shown`.
    #[must_use]
    pub fn showing(&self, shown: &dyn Fn(usize) -> bool) -> Self {
        let mut condition = self.clone();
        for keys in &mut condition.keys {
            keys.pictures.retain(|picture| shown(picture.number));
        }
        condition
    }

    /// Adds something to the time embedding: `(1 or batch, width)`.
    ///
    /// # Errors
    /// If shapes do not fit together.
    pub(super) fn add(&mut self, told: &Tensor) -> Result<()> {
        self.addition = Some(match &self.addition {
            Some(addition) => addition.broadcast_add(told)?,
            None => told.clone(),
        });
        Ok(())
    }
}

impl Trunk {
    /// Reads `time_embedding`, `add_embedding`, `conv_in`, `down_blocks` and `mid_block`.
    pub fn new(vb: &VarBuilder, config: &UNetConfig, plan: &Plan) -> Result<Self> {
        let common = common(config);
        let first = config.block_out_channels[0];
        let width = config.time_width();
        let time = TimestepEmbedding::new(
            vb.pp("time_embedding"),
            first,
            width,
            config.time_cond_proj_dim,
        )?;
        let addition = match (
            config.addition_embed_type.is_some(),
            config.projection_class_embeddings_input_dim,
        ) {
            (false, _) => None,
            (true, None) => {
                candle_core::bail!("config.json lacks projection_class_embeddings_input_dim")
            }
            (true, Some(inputs)) => Some(TimestepEmbedding::new(
                vb.pp("add_embedding"),
                inputs,
                width,
                None,
            )?),
        };
        let mut inputs = first;
        let mut down = Vec::new();
        for (i, block) in plan.down.iter().enumerate() {
            let last = i + 1 == plan.down.len();
            let vb = vb.pp("down_blocks").pp(i);
            down.push(DownBlock::new(vb, inputs, block, last, &common)?);
            inputs = block.channels;
        }
        Ok(Self {
            conv_in: WrappedConv::new(vb.pp("conv_in"), config.in_channels, first, 3, 1, 1)?,
            time,
            addition,
            down,
            mid: match &plan.mid {
                Some(mid) => Some(MidBlock::new(vb.pp("mid_block"), mid, &common)?),
                None => None,
            },
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Prepares what does not change from step to step, for `text` of `(batch, tokens, width)`. `rest` adds the keys of
    /// the way up.
    pub fn condition(
        &self,
        text: &Tensor,
        extra: &Extra,
        rest: impl FnOnce(&Tensor, &mut Vec<TextKeys>) -> Result<()>,
    ) -> Result<Condition> {
        let text = text.to_dtype(self.dtype)?.contiguous()?;
        let (batch, device) = (text.dim(0)?, text.device().clone());
        let mut keys = Vec::new();
        for block in &self.down {
            block.layers.text_keys(&text, &mut keys)?;
        }
        if let Some(mid) = &self.mid {
            mid.layers.text_keys(&text, &mut keys)?;
        }
        rest(&text, &mut keys)?;
        let addition = match (&self.addition, &extra.pooled) {
            (None, _) => None,
            (Some(_), None) => candle_core::bail!("the network wants a pooled text"),
            (Some(layer), Some(pooled)) => {
                let size = self.config.addition_time_embed_dim.unwrap_or(256);
                let prompts = extra.numbers.len();
                if prompts == 0 || !batch.is_multiple_of(prompts) {
                    candle_core::bail!("numbers of {prompts} prompts for a batch of {batch}")
                }
                let numbers = extra.numbers.iter().map(|numbers| {
                    let row = self.embed(numbers, size, &device)?.flatten_all()?;
                    row.unsqueeze(0)?.repeat((batch / prompts, 1))
                });
                let numbers = Tensor::cat(&numbers.collect::<Result<Vec<_>>>()?, 0)?;
                let both = Tensor::cat(&[&pooled.to_dtype(self.dtype)?, &numbers], 1)?;
                Some(layer.forward(&both, None)?)
            }
        };
        let guidance = match self.config.time_cond_proj_dim {
            None => None,
            Some(size) => {
                // As latent consistency models were trained: sines first, a thousandfold.
                let scale = 1000.0 * (extra.guidance.unwrap_or(1.0) - 1.0);
                let row = sinusoidal(&[scale], size, false, 1.0, &device)?;
                Some(row.to_dtype(self.dtype)?.repeat((batch, 1))?)
            }
        };
        Ok(Condition {
            keys,
            addition,
            guidance,
        })
    }

    /// Arithmetic of the network.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Latents behind the first layer.
    ///
    /// # Errors
    /// If they have other channels than the network wants.
    pub fn entered(&self, x: &Tensor) -> Result<Tensor> {
        self.conv_in.forward(x)
    }

    fn embed(&self, values: &[f64], size: usize, device: &candle_core::Device) -> Result<Tensor> {
        let (flip, shift) = (self.config.flip_sin_to_cos, self.config.freq_shift);
        sinusoidal(values, size, flip, shift, device)?.to_dtype(self.dtype)
    }

    /// Time `t` (0 to 999) embedded for the residual layers, `(1 or batch, width)`.
    fn time(&self, t: Time, condition: &Condition, x: &Tensor) -> Result<Tensor> {
        let first = self.config.block_out_channels[0];
        let (flip, shift) = (self.config.flip_sin_to_cos, self.config.freq_shift);
        let row = t.embedding(first, flip, shift, x.device())?;
        let row = row.to_dtype(self.dtype)?;
        let row = match &condition.guidance {
            Some(guidance) => row.repeat((guidance.dim(0)?, 1))?,
            None => row,
        };
        let time = self.time.forward(&row, condition.guidance.as_ref())?;
        let time = match &condition.addition {
            Some(addition) => time.broadcast_add(addition)?,
            None => time,
        };
        time.silu()
    }

    /// The way down, with `hint` added to the first layer's output and an adapter's `features` to the blocks'.
    pub fn forward<'a, 't>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'t>>,
        condition: &'a Condition,
        hint: Option<&Tensor>,
        features: &[Tensor],
    ) -> Result<(Down, std::slice::Iter<'a, TextKeys>)> {
        let time = self.time(t.into(), condition, x)?;
        let mut text = condition.keys.iter();
        let mut x = self.conv_in.forward(x)?;
        if let Some(hint) = hint {
            x = x.broadcast_add(hint)?;
        }
        let mut skips = vec![x.clone()];
        let mut features = features.iter();
        for block in &self.down {
            x = block.forward(&x, &time, &mut text, &mut skips, features.next())?;
        }
        if let Some(mid) = &self.mid {
            x = mid.forward(&x, &time, &mut text)?;
            // One that is left over belongs here, if it is of the same size.
            if let Some(feature) = features.next().filter(|f| f.dims()[1..] == x.dims()[1..]) {
                x = x.broadcast_add(feature)?;
            }
        }
        Ok((Down { x, skips, time }, text))
    }
}

fn common(config: &UNetConfig) -> Common {
    Common {
        time: config.time_width(),
        groups: config.norm_num_groups,
        eps: config.norm_eps,
    }
}

/// Channels of what the way down leaves for the way up, in order.
pub(super) fn skip_channels(config: &UNetConfig, plan: &Plan) -> Vec<usize> {
    let mut channels = vec![config.block_out_channels[0]];
    for (i, block) in plan.down.iter().enumerate() {
        let downsampled = usize::from(i + 1 < plan.down.len());
        channels.extend(vec![block.channels; block.layers + downsampled]);
    }
    channels
}

/// What ControlNets and adapters add to a UNet.
#[derive(Debug, Clone, Default)]
pub struct Residuals {
    /// For the skips, in order; none without a ControlNet.
    pub down: Vec<Tensor>,
    /// For the block between.
    pub mid: Option<Tensor>,
    /// For the blocks on their way down; none without an adapter.
    pub features: Vec<Tensor>,
}

impl Residuals {
    /// The same with something done to each.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn each(&self, change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let all = |tensors: &[Tensor]| tensors.iter().map(&change).collect::<Result<Vec<_>>>();
        Ok(Self {
            down: all(&self.down)?,
            mid: self.mid.as_ref().map(&change).transpose()?,
            features: all(&self.features)?,
        })
    }

    /// The same on another device.
    ///
    /// # Errors
    /// If a device fails.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.each(|x| x.to_device(device))
    }

    /// Those of two networks together.
    ///
    /// # Errors
    /// If they are for different UNets, or the device fails.
    pub fn plus(&self, other: &Self) -> Result<Self> {
        Ok(Self {
            down: sums(&self.down, &other.down)?,
            mid: sums(self.mid.as_slice(), other.mid.as_slice())?.pop(),
            features: sums(&self.features, &other.features)?,
        })
    }
}

/// Sums of what two networks give; one of them may give nothing.
fn sums(a: &[Tensor], b: &[Tensor]) -> Result<Vec<Tensor>> {
    match (a, b) {
        (a, []) => Ok(a.to_vec()),
        ([], b) => Ok(b.to_vec()),
        (a, b) if a.len() == b.len() => {
            let pairs = a.iter().zip(b);
            pairs.map(|(a, b)| a.broadcast_add(b)).collect()
        }
        _ => candle_core::bail!("two ControlNets or adapters for different networks"),
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct UNet {
    trunk: Trunk,
    up: Vec<UpBlock>,
    norm_out: GroupNorm,
    conv_out: WrappedConv,
}

impl UNet {
    /// Builds the network that `config` describes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &UNetConfig) -> Result<Self> {
        let plan = config.plan().map_err(candle_core::Error::msg)?;
        if plan.up.len() != plan.down.len() || config.up_block_types.len() != plan.up.len() {
            candle_core::bail!(
                "up_block_types has {} entries for {} blocks",
                config.up_block_types.len(),
                plan.down.len()
            )
        }
        let common = common(config);
        let mut skips = skip_channels(config, &plan);
        let mut inputs = config.block_out_channels[plan.down.len() - 1];
        let mut up = Vec::new();
        for (i, block) in plan.up.iter().rev().enumerate() {
            let taken = skips.split_off(skips.len().saturating_sub(block.layers + 1));
            let taken: Vec<usize> = taken.into_iter().rev().collect();
            let last = i + 1 == plan.up.len();
            let vb = vb.pp("up_blocks").pp(i);
            up.push(UpBlock::new(vb, inputs, &taken, block, last, &common)?);
            inputs = block.channels;
        }
        let first = config.block_out_channels[0];
        let (groups, eps) = (config.norm_num_groups, config.norm_eps);
        Ok(Self {
            trunk: Trunk::new(&vb, config, &plan)?,
            up,
            norm_out: GroupNorm::new(vb.pp("conv_norm_out"), groups, first, eps)?,
            conv_out: WrappedConv::new(vb.pp("conv_out"), first, config.out_channels, 3, 1, 1)?,
        })
    }

    /// Arithmetic of the network.
    pub fn dtype(&self) -> DType {
        self.trunk.dtype
    }

    /// The layers that attend to the text, in the order of a [`Condition`]'s.
    pub fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        let mut add = |layers: &Layers, way, level| {
            for (attention, depth) in layers.depths().enumerate() {
                let place = Place {
                    way,
                    attention,
                    level,
                };
                places.extend(vec![place; depth]);
            }
        };
        let (down, last) = (&self.trunk.down, self.up.len().saturating_sub(1));
        for (i, block) in down.iter().enumerate() {
            add(&block.layers, Way::Down(i), i);
        }
        if let Some(mid) = &self.trunk.mid {
            add(&mid.layers, Way::Mid, last);
        }
        for (i, block) in self.up.iter().enumerate() {
            add(&block.layers, Way::Up(i), last - i);
        }
        places
    }

    /// Prepares what does not change from step to step, for `text` of `(batch, tokens, width)`.
    ///
    /// # Errors
    /// If the text has another width than the network wants.
    pub fn condition(&self, text: &Tensor, extra: &Extra) -> Result<Condition> {
        self.trunk.condition(text, extra, |text, keys| {
            self.up
                .iter()
                .try_for_each(|block| block.layers.text_keys(text, keys))
        })
    }

    /// The network's output for `x`, `(batch, in_channels, height, width)`, at time `t` (0 to 999).
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'t>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'t>>,
        condition: &Condition,
        residuals: Option<&Residuals>,
    ) -> Result<Tensor> {
        let (output, _) = self.forward_deep(x, t, condition, residuals)?;
        Ok(output)
    }

    /// As [`Self::forward`], with what goes into the outermost block on the way up, for [`Self::forward_shallow`].
    ///
    /// # Errors
    /// Those of [`Self::forward`].
    pub fn forward_deep<'t>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'t>>,
        condition: &Condition,
        residuals: Option<&Residuals>,
    ) -> Result<(Tensor, Tensor)> {
        let none = Residuals::default();
        let added = residuals.unwrap_or(&none);
        let (mut way, mut text) = self.trunk.forward(x, t, condition, None, &added.features)?;
        if !added.down.is_empty() {
            if added.down.len() != way.skips.len() {
                candle_core::bail!(
                    "a ControlNet with {} residuals for a network with {}",
                    added.down.len(),
                    way.skips.len()
                )
            }
            for (skip, residual) in way.skips.iter_mut().zip(&added.down) {
                *skip = skip.broadcast_add(residual)?;
            }
        }
        if let Some(mid) = &added.mid {
            way.x = way.x.broadcast_add(mid)?;
        }
        let mut x = way.x;
        let mut deep = x.clone();
        for block in &self.up {
            deep = x;
            x = block.forward(&deep, &way.time, &mut text, &mut way.skips)?;
        }
        let output = self.conv_out.forward(&self.norm_out.forward_silu(&x)?)?;
        Ok((output, deep))
    }

    /// The output by the outermost blocks alone (Ma et al. 2024): what goes into the last of them is that of an earlier
    /// step.
    ///
    /// # Errors
    /// Those of [`Self::forward`].
    pub fn forward_shallow<'t>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'t>>,
        condition: &Condition,
        residuals: Option<&Residuals>,
        deep: &Tensor,
    ) -> Result<Tensor> {
        let (Some(down), Some(up)) = (self.trunk.down.first(), self.up.last()) else {
            candle_core::bail!("a network without blocks")
        };
        let time = self.trunk.time(t.into(), condition, x)?;
        let x = self.trunk.conv_in.forward(x)?;
        let mut skips = vec![x.clone()];
        let none = Residuals::default();
        let added = residuals.unwrap_or(&none);
        let mut text = condition.keys.iter();
        down.forward(&x, &time, &mut text, &mut skips, added.features.first())?;
        skips.truncate(up.layers.count());
        for (skip, residual) in skips.iter_mut().zip(&added.down) {
            *skip = skip.broadcast_add(residual)?;
        }
        let last = condition.keys.len().saturating_sub(up.layers.keys());
        let mut text = condition.keys[last..].iter();
        let x = up.forward(deep, &time, &mut text, &mut skips)?;
        self.conv_out.forward(&self.norm_out.forward_silu(&x)?)
    }

    /// The same network, in some of whose blocks pixels attend to themselves only (Ahn et al. 2024). Blocks are named as
    /// diffusers' modules: `mid`, `down_blocks.1`, `up_blocks.0.attentions.1`.
    ///
    /// # Errors
    /// Says which name is none, with examples of some.
    pub fn without_attention(&self, names: &[String]) -> std::result::Result<Self, String> {
        let mut worse = self.clone();
        for name in names {
            let unknown = || {
                format!("{name:?} is no block with attention of this model; they are named as mid, down_blocks.1 or up_blocks.1.attentions.0")
            };
            let parts: Vec<&str> = name.split('.').collect();
            let number = |text: &str| text.parse::<usize>().map_err(|_| unknown());
            let (block, which) = match parts.as_slice() {
                [block @ ("mid" | "mid_block")] => ((*block, 0), None),
                [block, i] => ((*block, number(i)?), None),
                [block, i, "attentions", which] => ((*block, number(i)?), Some(number(which)?)),
                _ => return Err(unknown()),
            };
            let layers = match block {
                ("mid" | "mid_block", _) => worse.trunk.mid.as_mut().map(|b| &mut b.layers),
                ("down_blocks", i) => worse.trunk.down.get_mut(i).map(|b| &mut b.layers),
                ("up_blocks", i) => worse.up.get_mut(i).map(|b| &mut b.layers),
                _ => None,
            };
            if !layers.is_some_and(|layers| layers.without_attention(which)) {
                return Err(unknown());
            }
        }
        Ok(worse)
    }
}
