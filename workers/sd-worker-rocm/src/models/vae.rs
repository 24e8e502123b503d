//! The autoencoder between pixels and latents.

use super::attention::attention;
use super::config::within;
use super::layers::{conv, linear, pixels_as_rows, rows_as_pixels, Upsample};
use super::norm::GroupNorm;
use super::unet::blocks::ResnetBlock;
use super::vae_tiles::Tiles;
use crate::models::layers::Linear;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Conv2d;
use serde::Deserialize;

const EPS: f64 = 1e-6;

/// `config.json` of an `AutoencoderKL`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Channels of a picture.
    pub in_channels: usize,
    /// Channels of a picture.
    pub out_channels: usize,
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of the blocks.
    pub block_out_channels: Vec<usize>,
    /// Residual layers a block; one more when decoding.
    pub layers_per_block: usize,
    /// Groups of the norms.
    pub norm_num_groups: usize,
    /// Latents are multiplied by this for the denoiser.
    pub scaling_factor: f64,
    /// And lessened by this before.
    pub shift_factor: Option<f64>,
    /// Whether there is a 1x1 convolution behind the encoder.
    pub use_quant_conv: bool,
    /// Whether there is one in front of the decoder.
    pub use_post_quant_conv: bool,
    /// Whether 16-bit floats overflow in it.
    pub force_upcast: bool,
    pub(crate) mid_block_add_attention: bool,
    pub(crate) act_fn: String,
    pub(crate) down_block_types: Vec<String>,
    pub(crate) up_block_types: Vec<String>,
}

impl Default for VaeConfig {
    fn default() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            scaling_factor: 0.18215,
            shift_factor: None,
            use_quant_conv: true,
            use_post_quant_conv: true,
            force_upcast: true,
            mid_block_add_attention: true,
            act_fn: "silu".to_string(),
            down_block_types: Vec::new(),
            up_block_types: Vec::new(),
        }
    }
}

impl VaeConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        within(
            &[
                ("latent_channels", self.latent_channels),
                ("layers_per_block", self.layers_per_block),
                ("norm_num_groups", self.norm_num_groups),
                ("number of blocks", self.block_out_channels.len()),
            ],
            1024,
        )?;
        for channels in &self.block_out_channels {
            within(&[("block_out_channels", *channels)], 1 << 16)?;
            if !channels.is_multiple_of(self.norm_num_groups) {
                return Err(format!(
                    "{} norm_num_groups do not divide {channels} channels",
                    self.norm_num_groups
                ));
            }
        }
        if self.in_channels != 3 || self.out_channels != 3 {
            return Err("only pictures of 3 channels are implemented".to_string());
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!("scaling_factor is {}", self.scaling_factor));
        }
        if self.act_fn != "silu" || !self.mid_block_add_attention {
            return Err("only act_fn silu with mid_block_add_attention is implemented".to_string());
        }
        let kinds = self.down_block_types.iter().chain(&self.up_block_types);
        for kind in kinds {
            if kind != "DownEncoderBlock2D" && kind != "UpDecoderBlock2D" {
                return Err(format!("blocks of kind {kind} are not implemented"));
            }
        }
        Ok(())
    }

    /// Pixels a latent, each way.
    pub fn factor(&self) -> usize {
        1 << (self.block_out_channels.len() - 1).min(16)
    }

    fn resnet(&self, vb: VarBuilder, inputs: usize, outputs: usize) -> Result<ResnetBlock> {
        ResnetBlock::new(vb, inputs, outputs, None, self.norm_num_groups, EPS)
    }
}

/// Residual layer, attention of all pixels to each other, residual layer.
#[derive(Debug, Clone)]
struct MidBlock {
    first: ResnetBlock,
    norm: GroupNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    last: ResnetBlock,
}

impl MidBlock {
    fn new(vb: VarBuilder, channels: usize, config: &VaeConfig) -> Result<Self> {
        let attn = vb.pp("attentions.0");
        let groups = config.norm_num_groups;
        let project = |name: &str| linear(attn.pp(name), channels, channels);
        Ok(Self {
            first: config.resnet(vb.pp("resnets.0"), channels, channels)?,
            norm: GroupNorm::new(attn.pp("group_norm"), groups, channels, EPS)?,
            q: project("to_q")?,
            k: project("to_k")?,
            v: project("to_v")?,
            out: project("to_out.0")?,
            last: config.resnet(vb.pp("resnets.1"), channels, channels)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x, None)?;
        let (_, _, height, width) = x.dims4()?;
        let h = pixels_as_rows(&self.norm.forward(&x)?)?;
        let (q, k, v) = (
            self.q.forward(&h)?,
            self.k.forward(&h)?,
            self.v.forward(&h)?,
        );
        let h = self.out.forward(&attention(&q, &k, &v, 1, false)?)?;
        let x = (x + rows_as_pixels(&h, height, width)?)?;
        self.last.forward(&x, None)
    }
}

#[derive(Debug, Clone)]
struct Encoder {
    conv_in: Conv2d,
    blocks: Vec<(Vec<ResnetBlock>, Option<Conv2d>)>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Encoder {
    fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        let widths = &config.block_out_channels;
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let mut inputs = first;
        let mut blocks = Vec::new();
        for (i, channels) in widths.iter().enumerate() {
            let vb = vb.pp("down_blocks").pp(i);
            let mut layers = Vec::new();
            for layer in 0..config.layers_per_block {
                layers.push(config.resnet(vb.pp("resnets").pp(layer), inputs, *channels)?);
                inputs = *channels;
            }
            let downsample = match i + 1 < widths.len() {
                true => Some(conv(vb.pp("downsamplers.0.conv"), inputs, inputs, 3, 2, 0)?),
                false => None,
            };
            blocks.push((layers, downsample));
        }
        Ok(Self {
            conv_in: conv(vb.pp("conv_in"), config.in_channels, first, 3, 1, 1)?,
            blocks,
            mid: MidBlock::new(vb.pp("mid_block"), last, config)?,
            norm_out: GroupNorm::new(vb.pp("conv_norm_out"), config.norm_num_groups, last, EPS)?,
            conv_out: conv(vb.pp("conv_out"), last, 2 * config.latent_channels, 3, 1, 1)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.conv_in.forward(x)?;
        for (layers, downsample) in &self.blocks {
            for layer in layers {
                x = layer.forward(&x, None)?;
            }
            if let Some(downsample) = downsample {
                // The original pads on the right and below only.
                let padded = x.pad_with_zeros(2, 0, 1)?.pad_with_zeros(3, 0, 1)?;
                x = downsample.forward(&padded)?;
            }
        }
        let x = self.mid.forward(&x)?;
        self.conv_out.forward(&self.norm_out.forward_silu(&x)?)
    }
}

#[derive(Debug, Clone)]
struct Decoder {
    conv_in: Conv2d,
    mid: MidBlock,
    blocks: Vec<(Vec<ResnetBlock>, Option<Upsample>)>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Decoder {
    fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        let widths = &config.block_out_channels;
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let mut inputs = last;
        let mut blocks = Vec::new();
        for (i, channels) in widths.iter().rev().enumerate() {
            let vb = vb.pp("up_blocks").pp(i);
            let mut layers = Vec::new();
            for layer in 0..=config.layers_per_block {
                layers.push(config.resnet(vb.pp("resnets").pp(layer), inputs, *channels)?);
                inputs = *channels;
            }
            let upsample = match i + 1 < widths.len() {
                true => Some(Upsample::new(vb.pp("upsamplers.0"), inputs)?),
                false => None,
            };
            blocks.push((layers, upsample));
        }
        Ok(Self {
            conv_in: conv(vb.pp("conv_in"), config.latent_channels, last, 3, 1, 1)?,
            mid: MidBlock::new(vb.pp("mid_block"), last, config)?,
            blocks,
            norm_out: GroupNorm::new(vb.pp("conv_norm_out"), config.norm_num_groups, first, EPS)?,
            conv_out: conv(vb.pp("conv_out"), first, config.out_channels, 3, 1, 1)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.mid.forward(&self.conv_in.forward(x)?)?;
        for (layers, upsample) in &self.blocks {
            for layer in layers {
                x = layer.forward(&x, None)?;
            }
            if let Some(upsample) = upsample {
                x = upsample.forward(&x, None)?;
            }
        }
        self.conv_out.forward(&self.norm_out.forward_silu(&x)?)
    }
}

impl Decoder {
    /// How many latents around a pixel can have a say in it from block `block` on, or from the last norm on.
    fn reach(&self, block: usize) -> usize {
        // Half-open: in eighths or less of a latent, a convolution of 3 reaches one pixel of its level.
        let levels = self.blocks.len();
        let mut reach = 1.0 / f64::from(1u32 << (levels - 1).min(31));
        for (level, (layers, upsample)) in self.blocks.iter().enumerate().skip(block) {
            let pixel = 1.0 / f64::from(1u32 << level.min(31));
            reach += 2.0 * layers.len() as f64 * pixel;
            if upsample.is_some() {
                reach += pixel / 2.0;
            }
        }
        reach.ceil() as usize
    }

    fn forward_tiled(&self, x: &Tensor, size: usize) -> Result<Tensor> {
        let x = self.mid.forward(&self.conv_in.forward(x)?)?;
        let mut tiles = Tiles::cut(&x, size, self.reach(0))?;
        for (level, (layers, upsample)) in self.blocks.iter().enumerate() {
            tiles.shrink(self.reach(level))?;
            for layer in layers {
                tiles.resnet(layer)?;
            }
            if let Some(upsample) = upsample {
                tiles.upsample(&|x| upsample.forward(x, None))?;
            }
        }
        tiles.norm_silu(&self.norm_out, &|x| self.conv_out.forward(x))?;
        tiles.join()
    }
}

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct Vae {
    encoder: Option<Encoder>,
    quant: Option<Conv2d>,
    decoder: Decoder,
    post_quant: Option<Conv2d>,
    config: VaeConfig,
    dtype: DType,
}

impl Vae {
    /// Builds the network that `config` describes. A file without an encoder gives one that only decodes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &VaeConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let latents = config.latent_channels;
        let encodes = vb.contains_tensor("encoder.conv_in.weight");
        Ok(Self {
            encoder: match encodes {
                true => Some(Encoder::new(vb.pp("encoder"), config)?),
                false => None,
            },
            quant: match encodes && config.use_quant_conv {
                true => Some(conv(
                    vb.pp("quant_conv"),
                    2 * latents,
                    2 * latents,
                    1,
                    1,
                    0,
                )?),
                false => None,
            },
            decoder: Decoder::new(vb.pp("decoder"), config)?,
            post_quant: match config.use_post_quant_conv {
                true => Some(conv(vb.pp("post_quant_conv"), latents, latents, 1, 1, 0)?),
                false => None,
            },
            config: config.clone(),
            dtype: vb.dtype(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Arithmetic of the network.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Mean of the latents, unscaled, of pictures `(batch, 3, height, width)` in -1..1; f32.
    ///
    /// # Errors
    /// If there is no encoder, or the device fails.
    pub fn encode_mean(&self, pictures: &Tensor) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            candle_core::bail!("this VAE has no encoder; pictures cannot be started from")
        };
        let mut x = encoder.forward(&pictures.to_dtype(self.dtype)?)?;
        if let Some(quant) = &self.quant {
            x = quant.forward(&x)?;
        }
        x.narrow(1, 0, self.config.latent_channels)?
            .to_dtype(DType::F32)
    }

    /// Pictures, about -1..1, of unscaled latents; f32.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode_raw(&self, latents: &Tensor) -> Result<Tensor> {
        let mut x = latents.to_dtype(self.dtype)?;
        if let Some(post_quant) = &self.post_quant {
            x = post_quant.forward(&x)?;
        }
        self.decoder.forward(&x)?.to_dtype(DType::F32)
    }

    /// [`Vae::decode_raw`] in tiles of up to `size` latents each way, with the same result up to rounding.
    ///
    /// # Errors
    /// If the device fails.
    pub fn decode_tiled(&self, latents: &Tensor, size: usize) -> Result<Tensor> {
        let mut x = latents.to_dtype(self.dtype)?;
        if let Some(post_quant) = &self.post_quant {
            x = post_quant.forward(&x)?;
        }
        self.decoder.forward_tiled(&x, size)?.to_dtype(DType::F32)
    }

    /// Latents as the denoiser has them from unscaled ones.
    ///
    /// # Errors
    /// If the device fails.
    pub fn scale(&self, latents: &Tensor) -> Result<Tensor> {
        let factor = self.config.scaling_factor;
        latents.affine(factor, -self.config.shift_factor.unwrap_or(0.0) * factor)
    }

    /// Undoes [`Vae::scale`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn unscale(&self, latents: &Tensor) -> Result<Tensor> {
        latents.affine(
            1.0 / self.config.scaling_factor,
            self.config.shift_factor.unwrap_or(0.0),
        )
    }
}
