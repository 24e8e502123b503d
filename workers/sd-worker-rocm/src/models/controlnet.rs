//! ControlNet: a copy of the UNet's way down that follows a picture.

use super::attention::attention;
use super::layers::{layer_norm, linear, sinusoidal, Linear, TimestepEmbedding};
use super::unet::config::UNetConfig;
use super::unet::{Condition, Extra, Residuals, Trunk};
use super::wrap::WrappedConv;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::LayerNorm;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// What is in `config.json` besides the UNet's settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ControlSettings {
    /// Channels in front, from the picture inwards.
    pub conditioning_embedding_out_channels: Vec<usize>,
    /// Channels of the picture.
    pub conditioning_channels: usize,
    /// `rgb` or `bgr`.
    pub controlnet_conditioning_channel_order: String,
    /// Residuals are means over the picture: it is followed in content, not in place (Shuffle).
    pub global_pool_conditions: bool,
    /// Of unions of ControlNets: how many kinds of pictures they know.
    pub num_control_type: usize,
    /// Of unions: width of the transformer that mixes pictures.
    pub num_trans_channel: usize,
    /// Of unions: its heads.
    pub num_trans_head: usize,
    /// Of unions: its layers.
    pub num_trans_layer: usize,
    /// Of unions: channels that it gives.
    pub num_proj_channel: usize,
}

impl Default for ControlSettings {
    fn default() -> Self {
        Self {
            conditioning_embedding_out_channels: vec![16, 32, 96, 256],
            conditioning_channels: 3,
            controlnet_conditioning_channel_order: "rgb".to_string(),
            global_pool_conditions: false,
            num_control_type: 6,
            num_trans_channel: 320,
            num_trans_head: 8,
            num_trans_layer: 1,
            num_proj_channel: 320,
        }
    }
}

/// `config.json` of a `ControlNetModel` or `ControlNetUnionModel`.
#[derive(Debug, Clone)]
pub struct ControlConfig {
    /// Of the UNet's way down.
    pub unet: UNetConfig,
    /// What is its own.
    pub settings: ControlSettings,
    /// Whether it is a union of ControlNets, which is told the kind of the picture.
    pub union: bool,
}

impl<'de> Deserialize<'de> for ControlConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        const OWN: [&str; 9] = [
            "conditioning_embedding_out_channels",
            "conditioning_channels",
            "controlnet_conditioning_channel_order",
            "global_pool_conditions",
            "num_control_type",
            "num_trans_channel",
            "num_trans_head",
            "num_trans_layer",
            "num_proj_channel",
        ];
        let all = Map::deserialize(deserializer)?;
        let union = match all.get("_class_name").and_then(Value::as_str) {
            None | Some("ControlNetModel") => false,
            Some("ControlNetUnionModel") => true,
            Some(other) => {
                return Err(D::Error::custom(format!(
                    "a network of kind {other} does not steer UNets here"
                )))
            }
        };
        let (own, unet): (Map<_, _>, Map<_, _>) = all
            .into_iter()
            .partition(|(name, _)| OWN.contains(&name.as_str()));
        let usual = |own: Map<String, Value>| {
            let mut own = own;
            if union {
                own.entry("conditioning_embedding_out_channels")
                    .or_insert(Value::from(vec![48, 96, 192, 384]));
            }
            own
        };
        Ok(Self {
            settings: serde_json::from_value(Value::Object(usual(own)))
                .map_err(D::Error::custom)?,
            unet: serde_json::from_value(Value::Object(unet)).map_err(D::Error::custom)?,
            union,
        })
    }
}

impl ControlConfig {
    /// Of a file without a configuration: the structure of the UNet that it was trained for.
    pub fn beside(unet: &UNetConfig, union: Option<usize>) -> Self {
        let settings = ControlSettings::default();
        let unet = UNetConfig {
            in_channels: unet.out_channels,
            ..unet.clone()
        };
        match union {
            None => Self {
                unet,
                settings,
                union: false,
            },
            Some(kinds) => Self {
                settings: ControlSettings {
                    num_control_type: kinds,
                    num_trans_channel: unet.block_out_channels[0],
                    num_proj_channel: unet.block_out_channels[0],
                    conditioning_embedding_out_channels: vec![48, 96, 192, 384],
                    ..settings
                },
                unet,
                union: true,
            },
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Names the first that makes no sense or is not implemented.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.unet.plan()?;
        let own = &self.settings;
        let widths = &own.conditioning_embedding_out_channels;
        super::config::within(
            &[
                (
                    "the number of conditioning_embedding_out_channels",
                    widths.len(),
                ),
                ("num_control_type", own.num_control_type),
                ("num_trans_layer", own.num_trans_layer),
            ],
            64,
        )?;
        for width in widths {
            super::config::within(&[("conditioning_embedding_out_channels", *width)], 1 << 16)?;
        }
        super::config::within(
            &[
                ("num_trans_channel", own.num_trans_channel),
                ("num_trans_head", own.num_trans_head),
                ("num_proj_channel", own.num_proj_channel),
            ],
            1 << 16,
        )?;
        if own.conditioning_channels != 3 {
            return Err("conditioning_channels must be 3".to_string());
        }
        let order = own.controlnet_conditioning_channel_order.as_str();
        if !["rgb", "bgr"].contains(&order) {
            return Err(format!(
                "controlnet_conditioning_channel_order {order} is not implemented"
            ));
        }
        let first = self.unet.block_out_channels[0];
        if self.union && (own.num_trans_channel != first || own.num_proj_channel != first) {
            return Err(format!(
                "num_trans_channel and num_proj_channel must be those of the first block, {first}"
            ));
        }
        Ok(())
    }
}

/// Convolutions in front of a ControlNet that sees pixels: all pairs but the last end in one that halves the picture.
#[derive(Debug, Clone)]
pub(super) struct HintEmbedder {
    first: WrappedConv,
    blocks: Vec<WrappedConv>,
    last: WrappedConv,
}

impl HintEmbedder {
    /// Reads `conv_in`, `blocks` and `conv_out`: from `channels` of a picture through `widths` to `out`.
    ///
    /// # Errors
    /// If there are no widths, or tensors are missing or of other shapes.
    pub(super) fn new(
        vb: VarBuilder,
        channels: usize,
        widths: &[usize],
        out: usize,
    ) -> Result<Self> {
        let (Some(first), Some(last)) = (widths.first(), widths.last()) else {
            candle_core::bail!("conditioning_embedding_out_channels is empty")
        };
        let mut blocks = Vec::new();
        for (i, pair) in widths.windows(2).enumerate() {
            let (inputs, outputs) = (pair[0], pair[1]);
            let vb = vb.pp("blocks");
            blocks.push(WrappedConv::new(vb.pp(2 * i), inputs, inputs, 3, 1, 1)?);
            blocks.push(WrappedConv::new(
                vb.pp(2 * i + 1),
                inputs,
                outputs,
                3,
                2,
                1,
            )?);
        }
        Ok(Self {
            first: WrappedConv::new(vb.pp("conv_in"), channels, *first, 3, 1, 1)?,
            blocks,
            last: WrappedConv::new(vb.pp("conv_out"), *last, out, 3, 1, 1)?,
        })
    }

    /// The picture, `(batch, channels, height, width)`, embedded.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn forward(&self, picture: &Tensor) -> Result<Tensor> {
        let mut x = self.first.forward(picture)?.silu()?;
        for layer in &self.blocks {
            x = layer.forward(&x)?.silu()?;
        }
        self.last.forward(&x)
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct ControlNet {
    trunk: Trunk,
    hint: HintEmbedder,
    down: Vec<WrappedConv>,
    mid: Option<WrappedConv>,
    union: Option<Union>,
    settings: ControlSettings,
}

impl ControlNet {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &ControlConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let plan = config.unet.plan().map_err(candle_core::Error::msg)?;
        let settings = &config.settings;
        let out = config.unet.block_out_channels[0];
        let zero = |vb: VarBuilder, channels| WrappedConv::new(vb, channels, channels, 1, 1, 0);
        Ok(Self {
            hint: HintEmbedder::new(
                vb.pp("controlnet_cond_embedding"),
                settings.conditioning_channels,
                &settings.conditioning_embedding_out_channels,
                out,
            )?,
            down: super::unet::skip_channels(&config.unet, &plan)
                .into_iter()
                .enumerate()
                .map(|(i, channels)| zero(vb.pp("controlnet_down_blocks").pp(i), channels))
                .collect::<Result<_>>()?,
            mid: match &plan.mid {
                Some(mid) => Some(zero(vb.pp("controlnet_mid_block"), mid.channels)?),
                None => None,
            },
            trunk: Trunk::new(&vb, &config.unet, &plan)?,
            union: match config.union {
                true => Some(Union::new(&vb, config)?),
                false => None,
            },
            settings: settings.clone(),
        })
    }

    /// Kinds of pictures that a union knows; `None` for other networks.
    pub fn kinds(&self) -> Option<usize> {
        Some(self.settings.num_control_type).filter(|_| self.union.is_some())
    }

    /// Whether only the prompt's half of guidance is steered, whatever a request says.
    pub fn pools(&self) -> bool {
        self.settings.global_pool_conditions
    }

    /// Embeds the picture, `(1, 3, height, width)` in 0..1 with 8 pixels a latent: done once for all steps.
    ///
    /// # Errors
    /// If the device fails.
    pub fn hint(&self, picture: &Tensor) -> Result<Tensor> {
        let picture = match self.settings.controlnet_conditioning_channel_order.as_str() {
            "bgr" => {
                let channels = (0..3).rev().map(|i| picture.narrow(1, i, 1));
                Tensor::cat(&channels.collect::<Result<Vec<_>>>()?, 1)?
            }
            _ => picture.clone(),
        };
        self.hint.forward(&picture)
    }

    /// Prepares what does not change from step to step; a union is told the `kind` of the picture.
    ///
    /// # Errors
    /// If the text has another width than the network wants.
    pub fn condition(&self, text: &Tensor, extra: &Extra, kind: usize) -> Result<Condition> {
        let mut condition = self.trunk.condition(text, extra, |_, _| Ok(()))?;
        if let Some(union) = &self.union {
            let told = union.told(kind, &self.trunk, text)?;
            condition.add(&told)?;
        }
        Ok(condition)
    }

    /// Number of residuals for the UNet's way down.
    pub fn residuals(&self) -> usize {
        self.down.len()
    }

    /// Residuals for the UNet at time `t`, each times its strength: those of the way down, then that of the block
    /// between. `x` has so many `pictures` of each prompt.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        condition: &Condition,
        (hint, kind): (&Tensor, usize),
        pictures: usize,
        strengths: &[f64],
    ) -> Result<Residuals> {
        let hint = match &self.union {
            None => hint.clone(),
            Some(union) => union.mixed(&self.trunk.entered(x)?, pictures, hint, kind)?,
        };
        let (way, _) = self.trunk.forward(x, t, condition, Some(&hint), &[])?;
        let pooled = |x: Tensor| match self.settings.global_pool_conditions {
            true => x.mean_keepdim((2, 3)),
            false => Ok(x),
        };
        let mut strengths = strengths.iter().copied();
        let mut strength = || strengths.next().unwrap_or(1.0);
        let down = self.down.iter().zip(&way.skips);
        Ok(Residuals {
            down: down
                .map(|(layer, skip)| pooled((layer.forward(skip)? * strength())?))
                .collect::<Result<_>>()?,
            mid: match &self.mid {
                Some(mid) => Some(pooled((mid.forward(&way.x)? * strength())?)?),
                None => None,
            },
            features: Vec::new(),
        })
    }
}

/// What a union of ControlNets has besides: it is told the kind of the picture, and mixes picture and latents.
#[derive(Debug, Clone)]
struct Union {
    /// A row for each kind.
    kinds: Tensor,
    layers: Vec<Mixer>,
    out: Linear,
    time: TimestepEmbedding,
    width: usize,
    flip: bool,
    shift: f64,
}

impl Union {
    fn new(vb: &VarBuilder, config: &ControlConfig) -> Result<Self> {
        let own = &config.settings;
        let width = config.unet.addition_time_embed_dim.unwrap_or(256);
        let (kinds, channels) = (own.num_control_type, own.num_trans_channel);
        let layers = vb.pp("transformer_layes");
        Ok(Self {
            kinds: vb.get((kinds, channels), "task_embedding")?,
            layers: (0..own.num_trans_layer)
                .map(|i| Mixer::new(layers.pp(i), channels, own.num_trans_head))
                .collect::<Result<_>>()?,
            out: linear(vb.pp("spatial_ch_projs"), channels, own.num_proj_channel)?,
            time: TimestepEmbedding::new(
                vb.pp("control_add_embedding"),
                width * kinds,
                config.unet.time_width(),
                None,
            )?,
            width,
            flip: config.unet.flip_sin_to_cos,
            shift: config.unet.freq_shift,
        })
    }

    /// What is added to the time embedding: which of the kinds it is.
    fn told(&self, kind: usize, trunk: &Trunk, like: &Tensor) -> Result<Tensor> {
        let mut switches = vec![0.0; self.kinds.dim(0)?];
        if let Some(switch) = switches.get_mut(kind) {
            *switch = 1.0;
        }
        let row = sinusoidal(&switches, self.width, self.flip, self.shift, like.device())?;
        let row = row.to_dtype(trunk.dtype())?.flatten_all()?.unsqueeze(0)?;
        self.time.forward(&row, None)
    }

    /// The hint for latents that have entered the network, `(batch, channels, height, width)`.
    fn mixed(
        &self,
        latents: &Tensor,
        pictures: usize,
        hint: &Tensor,
        kind: usize,
    ) -> Result<Tensor> {
        let batch = latents.dim(0)?;
        let token = |x: &Tensor| x.mean((2, 3))?.unsqueeze(1);
        let of_hint = token(hint)?.broadcast_add(&self.kinds.narrow(0, kind, 1)?.unsqueeze(0)?)?;
        let mut x = Tensor::cat(&[&of_hint.repeat((batch, 1, 1))?, &token(latents)?], 1)?;
        for layer in &self.layers {
            x = layer.forward(&x, pictures)?;
        }
        let told = self.out.forward(&x.narrow(1, 0, 1)?.squeeze(1)?)?;
        let (batch, channels) = told.dims2()?;
        hint.broadcast_add(&told.reshape((batch, channels, 1, 1))?)
    }
}

/// A transformer layer as CLIP has them.
#[derive(Debug, Clone)]
struct Mixer {
    norm1: LayerNorm,
    /// Query, key and value in one.
    qkv: Linear,
    out: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
}

impl Mixer {
    fn new(vb: VarBuilder, width: usize, heads: usize) -> Result<Self> {
        let mlp = vb.pp("mlp");
        Ok(Self {
            norm1: layer_norm(vb.pp("ln_1"), width, 1e-5)?,
            // PyTorch's own attention, whose names have no dot here.
            qkv: Linear::Plain(candle_nn::Linear::new(
                vb.get((3 * width, width), "attn.in_proj_weight")?,
                Some(vb.get(3 * width, "attn.in_proj_bias")?),
            )),
            out: linear(vb.pp("attn.out_proj"), width, width)?,
            norm2: layer_norm(vb.pp("ln_2"), width, 1e-5)?,
            up: linear(mlp.pp("c_fc"), width, 4 * width)?,
            down: linear(mlp.pp("c_proj"), 4 * width, width)?,
            heads,
        })
    }

    /// As published and trained, a token looks at itself in the batch's other rows, not at its row's other tokens. Here
    /// these are the same picture's other prompts: pictures must not look at each other.
    fn forward(&self, x: &Tensor, pictures: usize) -> Result<Tensor> {
        let (rows, tokens, width) = x.dims3()?;
        let prompts = rows / pictures;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?.chunk(3, 2)?;
        let part = |i: usize| {
            let part = qkv[i]
                .contiguous()?
                .reshape((prompts, pictures * tokens, width))?;
            part.transpose(0, 1)?.contiguous()
        };
        let h = attention(&part(0)?, &part(1)?, &part(2)?, self.heads, false)?;
        let h = h.transpose(0, 1)?.contiguous()?;
        let x = (x + self.out.forward(&h.reshape((rows, tokens, width))?)?)?;
        let h = self.up.forward(&self.norm2.forward(&x)?)?;
        // GELU as CLIP approximates it.
        let h = (&h * candle_nn::ops::sigmoid(&(&h * 1.702)?)?)?;
        x + self.down.forward(&h)?
    }
}
