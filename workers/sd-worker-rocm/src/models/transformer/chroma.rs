//! The transformer of Chroma: FLUX.1's, whose scales, shifts and gates come from one small network for all blocks, and
//! whose text alone is the prompt.

use super::attention::Rope;
use super::blocks::{JointBlock, JointKind, PlainNorm};
use super::flux::{positions, SingleBlock};
use super::{pack, unpack};
use crate::models::config::{check_axes, within, Others};
use crate::models::layers::{linear, sinusoidal, Linear, TimestepEmbedding};
use crate::models::norm::RmsNorm;
use crate::models::time::Time;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};
use serde::Deserialize;

/// Of the norms of the small network, which have what PyTorch takes for f32.
const EPS: f64 = f32::EPSILON as f64;

/// `config.json` of a `ChromaTransformer2DModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ChromaConfig {
    /// Patches, of what is 2x2 latents already.
    pub patch_size: usize,
    /// Channels of a patch of 2x2 latents.
    pub in_channels: usize,
    /// Channels of a patch of what is predicted; `None` is as many.
    pub out_channels: Option<usize>,
    /// Blocks with layers of their own for picture and text.
    pub num_layers: usize,
    /// Blocks with the same layers for both.
    pub num_single_layers: usize,
    /// Channels of a head.
    pub attention_head_dim: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Width of the text.
    pub joint_attention_dim: usize,
    /// Shares of a head that turn with index, row and column.
    pub axes_dims_rope: Vec<usize>,
    /// Numbers that the small network reads: half of them of time and guidance, half of what is asked for.
    pub approximator_num_channels: usize,
    /// Its width.
    pub approximator_hidden_dim: usize,
    /// Its layers.
    pub approximator_layers: usize,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for ChromaConfig {
    /// The sizes of the published models.
    fn default() -> Self {
        Self {
            patch_size: 1,
            in_channels: 64,
            out_channels: None,
            num_layers: 19,
            num_single_layers: 38,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 4096,
            axes_dims_rope: vec![16, 56, 56],
            approximator_num_channels: 64,
            approximator_hidden_dim: 5120,
            approximator_layers: 5,
            others: Others::default(),
        }
    }
}

impl ChromaConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse(&[])?;
        within(
            &[
                ("in_channels", self.in_channels),
                ("num_layers", self.num_layers),
                ("num_single_layers", self.num_single_layers),
                ("attention_head_dim", self.attention_head_dim),
                ("num_attention_heads", self.num_attention_heads),
                ("joint_attention_dim", self.joint_attention_dim),
                ("approximator_num_channels", self.approximator_num_channels),
                ("approximator_hidden_dim", self.approximator_hidden_dim),
                ("approximator_layers", self.approximator_layers),
            ],
            1 << 14,
        )?;
        check_axes::<3>(
            "axes_dims_rope",
            &self.axes_dims_rope,
            self.attention_head_dim,
        )?;
        let other = self
            .out_channels
            .is_some_and(|output| output != self.in_channels);
        if !self.in_channels.is_multiple_of(4) || other || self.patch_size != 1 {
            return Err(format!(
                "in_channels {} with out_channels {:?} and patch_size {} are not implemented",
                self.in_channels, self.out_channels, self.patch_size
            ));
        }
        if !self.approximator_num_channels.is_multiple_of(8) {
            return Err(format!(
                "approximator_num_channels is {}; it must be a multiple of 8",
                self.approximator_num_channels
            ));
        }
        Ok(())
    }

    /// Scales, shifts and gates of all blocks.
    fn parts(&self) -> usize {
        3 * self.num_single_layers + 12 * self.num_layers + 2
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Chroma {
    config: ChromaConfig,
    picture: Linear,
    text: Linear,
    /// The small network.
    begin: Linear,
    /// What is asked of it: `(parts, channels)` in f32.
    asked: Tensor,
    layers: Vec<(RmsNorm, TimestepEmbedding)>,
    end: Linear,
    double: Vec<JointBlock>,
    single: Vec<SingleBlock>,
    norm: PlainNorm,
    out: Linear,
    dtype: DType,
}

impl Chroma {
    /// Builds the network that `config` describes, from diffusers' names.
    ///
    /// # Errors
    /// If the configuration makes no sense, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &ChromaConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let heads = config.num_attention_heads;
        let width = heads * config.attention_head_dim;
        let small = vb.pp("distilled_guidance_layer");
        let inside = config.approximator_hidden_dim;
        let layer = |i: usize| {
            let norm = RmsNorm::new(small.pp("norms").pp(i), inside, EPS)?;
            let layer = TimestepEmbedding::new(small.pp("layers").pp(i), inside, inside, None)?;
            Ok((norm, layer))
        };
        let given = JointKind {
            given: true,
            ..JointKind::default()
        };
        let (double, single) = (
            vb.pp("transformer_blocks"),
            vb.pp("single_transformer_blocks"),
        );
        Ok(Self {
            picture: linear(vb.pp("x_embedder"), config.in_channels, width)?,
            text: linear(vb.pp("context_embedder"), config.joint_attention_dim, width)?,
            begin: linear(
                small.pp("in_proj"),
                config.approximator_num_channels,
                inside,
            )?,
            asked: {
                let parts = (0..config.parts()).map(|part| 1000.0 * part as f64);
                let parts: Vec<f64> = parts.collect();
                let size = config.approximator_num_channels / 2;
                sinusoidal(&parts, size, true, 0.0, vb.device())?
            },
            layers: (0..config.approximator_layers)
                .map(layer)
                .collect::<Result<_>>()?,
            end: linear(small.pp("out_proj"), inside, width)?,
            double: (0..config.num_layers)
                .map(|i| JointBlock::new(double.pp(i), width, heads, given))
                .collect::<Result<_>>()?,
            single: (0..config.num_single_layers)
                .map(|i| SingleBlock::new(single.pp(i), width, heads, true))
                .collect::<Result<_>>()?,
            norm: PlainNorm::default(),
            out: linear(vb.pp("proj_out"), width, config.in_channels)?,
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// Rotations for `tokens` of text and a picture of so many latents, height and width.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn rope(&self, tokens: usize, picture: (usize, usize), like: &Tensor) -> Result<Rope> {
        let sizes = &self.config.axes_dims_rope;
        let positions = positions(tokens, picture, &[]);
        Rope::new(&positions, sizes, 10_000.0, like.dtype(), like.device())
    }

    /// All scales, shifts and gates at time `t` in 0 to 1000, `(1, 1, width)` each.
    fn modulations(&self, t: Time, like: &Tensor) -> Result<Vec<Tensor>> {
        let (parts, device) = (self.config.parts(), like.device());
        let numbers = self.config.approximator_num_channels;
        let row = |value: Time| value.embedding(numbers / 4, true, 0.0, device);
        // The network has learnt guidance away: it is 0.
        let shared = Tensor::cat(&[row(t)?, row(t.constant(0.0))?], 1)?;
        let shared = shared.broadcast_as((parts, numbers / 2))?;
        let mut x = self.begin.forward(
            &Tensor::cat(&[&shared.contiguous()?, &self.asked], 1)?.to_dtype(self.dtype)?,
        )?;
        for (norm, layer) in &self.layers {
            x = (&x + layer.forward(&norm.forward(&x)?, None)?)?;
        }
        let x = self.end.forward(&x)?;
        (0..parts)
            .map(|part| x.narrow(0, part, 1)?.reshape((1, 1, x.dim(D::Minus1)?)))
            .collect()
    }

    /// The network's output for `x`, `(batch, channels, height, width)`, at time `t` in 0 to 1000, with a text `(batch,
    /// tokens, width)`.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward<'a>(
        &self,
        x: &Tensor,
        t: impl Into<Time<'a>>,
        text: &Tensor,
        rope: &Rope,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let by = self.modulations(t.into(), x)?;
        let mut picture = self.picture.forward(&pack(x)?)?;
        let mut text = self.text.forward(text)?;
        // Those of the single blocks come first, then those of pictures, of texts, and of the end.
        let pictures = 3 * self.single.len();
        let texts = pictures + 6 * self.double.len();
        for (i, block) in self.double.iter().enumerate() {
            let (of_picture, of_text) = (&by[pictures + 6 * i..], &by[texts + 6 * i..]);
            (picture, text) = block.forward_by(&picture, &text, of_picture, of_text, Some(rope))?;
        }
        let (tokens, patches) = (text.dim(1)?, picture.dim(1)?);
        let mut both = Tensor::cat(&[&text, &picture], 1)?;
        for (i, block) in self.single.iter().enumerate() {
            both = block.forward_by(&both, &by[3 * i..], rope)?;
        }
        let picture = both.narrow(1, tokens, patches)?.contiguous()?;
        let [.., shift, scale] = by.as_slice() else {
            candle_core::bail!("no modulation of the end")
        };
        let picture = self.norm.modulated(&picture, scale, Some(shift))?;
        unpack(&self.out.forward(&picture)?, height, width)
    }
}
