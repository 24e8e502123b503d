//! The deep compression autoencoder (Chen et al. 2024) of Sana: many pixels a latent, attention in its inner blocks.
//!
//! Its attention sees the whole picture, which is therefore never cut into tiles.

use super::attention::linear_attention;
use super::codec::LatentCodec;
use super::config::{within, Others, PerBlock};
use super::layers::{conv, depthwise, linear, pixels_as_rows, rows_as_pixels, Linear};
use super::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::ops::{pixel_shuffle, pixel_unshuffle};
use candle_nn::Conv2d;
use serde::Deserialize;

/// `config.json` of an `AutoencoderDC`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct DcVaeConfig {
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Size of a head.
    pub attention_head_dim: usize,
    /// Kinds of the encoder's blocks.
    pub encoder_block_types: PerBlock<String>,
    /// Kinds of the decoder's blocks.
    pub decoder_block_types: PerBlock<String>,
    /// Channels of the encoder's blocks.
    pub encoder_block_out_channels: Vec<usize>,
    /// Channels of the decoder's blocks.
    pub decoder_block_out_channels: Vec<usize>,
    /// Layers of the encoder's blocks.
    pub encoder_layers_per_block: Vec<usize>,
    /// Layers of the decoder's blocks.
    pub decoder_layers_per_block: Vec<usize>,
    /// Sizes of further convolutions in front of the encoder's attention.
    pub encoder_qkv_multiscales: Vec<Vec<usize>>,
    /// The same of the decoder's.
    pub decoder_qkv_multiscales: Vec<Vec<usize>>,
    /// How pictures become larger.
    pub upsample_block_type: String,
    /// How they become smaller.
    pub downsample_block_type: String,
    /// Norms of the decoder.
    pub decoder_norm_types: PerBlock<String>,
    /// Activations of the decoder's residual layers.
    pub decoder_act_fns: PerBlock<String>,
    /// In front of its last convolution.
    pub decoder_conv_act_fn: String,
    /// Whether means of the encoder's channels go past its last convolution.
    pub encoder_out_shortcut: bool,
    /// Whether repeated latents go past the decoder's first convolution.
    pub decoder_in_shortcut: bool,
    /// Latents are multiplied by this for the denoiser.
    pub scaling_factor: f64,
    pub(crate) in_channels: usize,
    /// Settings that are not known.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for DcVaeConfig {
    fn default() -> Self {
        let one = |name: &str| PerBlock::One(name.to_string());
        let widths = vec![128, 256, 512, 512, 1024, 1024];
        let scales = [&[][..], &[], &[], &[5], &[5], &[5]]
            .map(<[usize]>::to_vec)
            .to_vec();
        Self {
            latent_channels: 32,
            attention_head_dim: 32,
            encoder_block_types: one("ResBlock"),
            decoder_block_types: one("ResBlock"),
            encoder_block_out_channels: widths.clone(),
            decoder_block_out_channels: widths,
            encoder_layers_per_block: vec![2, 2, 2, 3, 3, 3],
            decoder_layers_per_block: vec![3; 6],
            encoder_qkv_multiscales: scales.clone(),
            decoder_qkv_multiscales: scales,
            upsample_block_type: "pixel_shuffle".to_string(),
            downsample_block_type: "pixel_unshuffle".to_string(),
            decoder_norm_types: one("rms_norm"),
            decoder_act_fns: one("silu"),
            decoder_conv_act_fn: "relu".to_string(),
            encoder_out_shortcut: true,
            decoder_in_shortcut: true,
            scaling_factor: 1.0,
            in_channels: 3,
            others: Others::default(),
        }
    }
}

/// A block's settings.
struct BlockConfig {
    width: usize,
    layers: usize,
    attends: bool,
    scales: Vec<usize>,
    relu: bool,
}

impl DcVaeConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        within(
            &[
                ("latent_channels", self.latent_channels),
                ("attention_head_dim", self.attention_head_dim),
            ],
            1 << 12,
        )?;
        for (name, value, known) in [
            (
                "upsample_block_type",
                &self.upsample_block_type,
                ["pixel_shuffle", "interpolate"],
            ),
            (
                "downsample_block_type",
                &self.downsample_block_type,
                ["pixel_unshuffle", "conv"],
            ),
            (
                "decoder_conv_act_fn",
                &self.decoder_conv_act_fn,
                ["relu", "silu"],
            ),
        ] {
            if !known.contains(&value.to_lowercase().as_str()) {
                return Err(format!("{name} {value} is not implemented"));
            }
        }
        if self.in_channels != 3 {
            return Err(format!(
                "in_channels {} is not implemented",
                self.in_channels
            ));
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!(
                "scaling_factor {} is not possible",
                self.scaling_factor
            ));
        }
        let (encoder, decoder) = (self.encoder_blocks()?, self.decoder_blocks()?);
        if encoder.len() != decoder.len() {
            return Err("encoder and decoder have different numbers of blocks".to_string());
        }
        for (side, blocks) in [("encoder", &encoder), ("decoder", &decoder)] {
            // Only the first may have no layers: the others would not make the picture smaller.
            if blocks.iter().skip(1).any(|block| block.layers == 0) {
                return Err(format!("{side}_layers_per_block of 0 is not implemented"));
            }
            for pair in blocks.windows(2) {
                let (narrow, wide) = (pair[0].width, pair[1].width);
                if !wide.is_multiple_of(4) || !(4 * narrow).is_multiple_of(wide) {
                    return Err(format!(
                        "{side}_block_out_channels: {narrow} cannot go with {wide}"
                    ));
                }
            }
            let last = blocks.last().map_or(0, |block| block.width);
            if !last.is_multiple_of(self.latent_channels) {
                return Err(format!(
                    "{side}_block_out_channels: {last} is no multiple of latent_channels {}",
                    self.latent_channels
                ));
            }
        }
        self.others.refuse(&[])
    }

    fn encoder_blocks(&self) -> std::result::Result<Vec<BlockConfig>, String> {
        let silu = PerBlock::One("silu".to_string());
        self.blocks(
            "encoder",
            &self.encoder_block_out_channels,
            &self.encoder_layers_per_block,
            &self.encoder_block_types,
            &self.encoder_qkv_multiscales,
            &silu,
        )
    }

    fn decoder_blocks(&self) -> std::result::Result<Vec<BlockConfig>, String> {
        let count = self.decoder_block_out_channels.len();
        let norms = self
            .decoder_norm_types
            .values(count, "decoder_norm_types")?;
        if let Some(other) = norms.iter().find(|norm| *norm != "rms_norm") {
            return Err(format!(
                "decoder_norm_types {other} is not implemented; rms_norm is"
            ));
        }
        self.blocks(
            "decoder",
            &self.decoder_block_out_channels,
            &self.decoder_layers_per_block,
            &self.decoder_block_types,
            &self.decoder_qkv_multiscales,
            &self.decoder_act_fns,
        )
    }

    fn blocks(
        &self,
        side: &str,
        widths: &[usize],
        layers: &[usize],
        kinds: &PerBlock<String>,
        scales: &[Vec<usize>],
        activations: &PerBlock<String>,
    ) -> std::result::Result<Vec<BlockConfig>, String> {
        let count = widths.len();
        if !(2..=16).contains(&count) || layers.len() != count || scales.len() != count {
            return Err(format!(
                "{side}: {count} block_out_channels, {} layers_per_block and {} qkv_multiscales are not possible",
                layers.len(),
                scales.len()
            ));
        }
        let kinds = kinds.values(count, &format!("{side}_block_types"))?;
        let activations = activations.values(count, &format!("{side}_act_fns"))?;
        let blocks = (0..count).map(|i| {
            within(&[("block_out_channels", widths[i])], 1 << 14)?;
            if layers[i] > 64 {
                return Err(format!("{side}_layers_per_block {} is too much", layers[i]));
            }
            let attends = match kinds[i].as_str() {
                "ResBlock" => false,
                "EfficientViTBlock" => true,
                other => return Err(format!("{side}_block_types {other} is not implemented")),
            };
            if attends && !widths[i].is_multiple_of(self.attention_head_dim) {
                return Err(format!(
                    "{side}: heads do not divide {} channels",
                    widths[i]
                ));
            }
            let odd = scales[i].iter().all(|size| size % 2 == 1 && *size < 32);
            if !odd || scales[i].len() > 8 {
                return Err(format!(
                    "{side}_qkv_multiscales {:?} is not implemented",
                    scales[i]
                ));
            }
            Ok(BlockConfig {
                width: widths[i],
                layers: layers[i],
                attends,
                scales: scales[i].clone(),
                relu: match activations[i].as_str() {
                    "silu" => false,
                    "relu" => true,
                    other => return Err(format!("{side}_act_fns {other} is not implemented")),
                },
            })
        });
        blocks.collect()
    }

    /// Pixels a latent, each way.
    pub fn factor(&self) -> usize {
        1 << (self.encoder_block_out_channels.len().max(1) - 1).min(16)
    }
}

/// An RMS norm of each pixel's channels, with a bias.
#[derive(Debug, Clone)]
struct PixelNorm {
    weight: Tensor,
    bias: Tensor,
}

impl PixelNorm {
    fn new(vb: VarBuilder, channels: usize) -> Result<Self> {
        let column = |name| vb.get(channels, name)?.reshape((1, channels, 1, 1));
        Ok(Self {
            weight: column("weight")?,
            bias: column("bias")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let wide = x.to_dtype(DType::F32)?;
        let root = (wide.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?;
        wide.broadcast_div(&root)?
            .to_dtype(x.dtype())?
            .broadcast_mul(&self.weight)?
            .broadcast_add(&self.bias)
    }
}

/// Two convolutions with a norm behind them.
#[derive(Debug, Clone)]
struct Residual {
    convs: [Conv2d; 2],
    norm: PixelNorm,
    relu: bool,
}

/// Attention, and a feed-forward layer in which pixels see their neighbours.
#[derive(Debug, Clone)]
struct Attending {
    qkv: [Linear; 3],
    /// For each further size a convolution of each channel, and a matrix of each part of a head.
    scales: Vec<(Tensor, Tensor)>,
    out: Linear,
    norm: PixelNorm,
    up: Conv2d,
    depth: (Tensor, Tensor),
    down: Conv2d,
    feed_norm: PixelNorm,
    size: usize,
}

#[derive(Debug, Clone)]
enum Layer {
    Residual(Residual),
    Attending(Box<Attending>),
}

impl Layer {
    fn new(vb: VarBuilder, block: &BlockConfig, size: usize) -> Result<Self> {
        let width = block.width;
        if !block.attends {
            return Ok(Self::Residual(Residual {
                convs: [
                    conv(vb.pp("conv1"), width, width, 3, 1, 1)?,
                    conv(vb.pp("conv2"), width, width, 3, 1, 1)?,
                ],
                norm: PixelNorm::new(vb.pp("norm"), width)?,
                relu: block.relu,
            }));
        }
        let (attn, feed) = (vb.pp("attn"), vb.pp("conv_out"));
        let project = |name| linear(attn.pp(name), width, width);
        let (all, hidden) = (3 * width, 4 * width);
        let scales = block.scales.iter().enumerate().map(|(i, kernel)| {
            let vb = attn.pp(format!("to_qkv_multiscale.{i}"));
            Ok((
                vb.pp("proj_in").get((all, 1, *kernel, *kernel), "weight")?,
                (vb.pp("proj_out").get((all, size, 1, 1), "weight")?).reshape((
                    1,
                    all / size,
                    size,
                    size,
                ))?,
            ))
        });
        let depth = feed.pp("conv_depth");
        Ok(Self::Attending(Box::new(Attending {
            qkv: [project("to_q")?, project("to_k")?, project("to_v")?],
            scales: scales.collect::<Result<_>>()?,
            out: linear(attn.pp("to_out"), width * (1 + block.scales.len()), width)?,
            norm: PixelNorm::new(attn.pp("norm_out"), width)?,
            up: conv(feed.pp("conv_inverted"), width, 2 * hidden, 1, 1, 0)?,
            depth: (
                depth.get((2 * hidden, 1, 3, 3), "weight")?,
                depth.get(2 * hidden, "bias")?,
            ),
            down: conv(feed.pp("conv_point"), hidden, width, 1, 1, 0)?,
            feed_norm: PixelNorm::new(feed.pp("norm"), width)?,
            size,
        })))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Residual(layer) => {
                let h = layer.convs[0].forward(x)?;
                let h = if layer.relu { h.relu()? } else { h.silu()? };
                x + layer.norm.forward(&layer.convs[1].forward(&h)?)?
            }
            Self::Attending(layer) => layer.forward(x),
        }
    }
}

impl Attending {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.norm.forward(&self.attend(x)?)?)?;
        let h = self.up.forward(&x)?.silu()?;
        let h = depthwise(&h, &self.depth.0, Some(&self.depth.1))?;
        let halves = h.chunk(2, 1)?;
        let h = self.down.forward(&(&halves[0] * halves[1].silu()?)?)?;
        x + self.feed_norm.forward(&h)?
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, _, height, width) = x.dims4()?;
        let rows = pixels_as_rows(x)?;
        let parts = self.qkv.iter().map(|layer| layer.forward(&rows));
        let plain = Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, D::Minus1)?;
        let pixels = rows_as_pixels(&plain, height, width)?;
        let mut all = vec![pixels.clone()];
        for (each, matrices) in &self.scales {
            let (_, groups, size, _) = matrices.dims4()?;
            let seen = depthwise(&pixels, each, None)?;
            let seen = seen.reshape((batch, groups, size, height * width))?;
            let mixed = matrices.broadcast_matmul(&seen)?;
            all.push(mixed.reshape((batch, groups * size, height, width))?);
        }
        // Queries, keys and values of a head are neighbours.
        let all = Tensor::cat(&all, 1)?;
        let heads = all.dim(1)? / (3 * self.size);
        let all = all.reshape((batch, heads, 3, self.size, height * width))?;
        let part = |i| {
            all.narrow(2, i, 1)?
                .reshape((batch, heads * self.size, height * width))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (q, k) = (part(0)?.relu()?, part(1)?.relu()?);
        let h = linear_attention(&q, &k, &part(2)?, heads)?;
        rows_as_pixels(&self.out.forward(&h)?, height, width)
    }
}

/// Halves height and width, or doubles them.
#[derive(Debug, Clone)]
struct Resample {
    conv: Conv2d,
    /// Whether pixels are folded into channels or back.
    folds: bool,
    /// How many channels become one beside it, or one becomes.
    around: Option<usize>,
}

impl Resample {
    fn down(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        folds: bool,
        around: bool,
    ) -> Result<Self> {
        let vb = vb.pp("conv");
        Ok(Self {
            conv: match folds {
                true => conv(vb, inputs, outputs / 4, 3, 1, 1)?,
                false => conv(vb, inputs, outputs, 3, 2, 1)?,
            },
            folds,
            around: around.then_some(4 * inputs / outputs),
        })
    }

    fn up(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        folds: bool,
        around: bool,
    ) -> Result<Self> {
        let wide = if folds { 4 * outputs } else { outputs };
        Ok(Self {
            conv: conv(vb.pp("conv"), inputs, wide, 3, 1, 1)?,
            folds,
            around: around.then_some(4 * outputs / inputs),
        })
    }

    fn smaller(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = self.conv.forward(x)?;
        if self.folds {
            h = pixel_unshuffle(&h, 2)?;
        }
        match self.around {
            None => Ok(h),
            Some(together) => h + means(&pixel_unshuffle(x, 2)?, together)?,
        }
    }

    fn larger(&self, x: &Tensor) -> Result<Tensor> {
        let h = match self.folds {
            true => pixel_shuffle(&self.conv.forward(x)?, 2)?,
            false => {
                let (_, _, height, width) = x.dims4()?;
                self.conv
                    .forward(&x.upsample_nearest2d(2 * height, 2 * width)?)?
            }
        };
        match self.around {
            None => Ok(h),
            Some(times) => h + pixel_shuffle(&repeated(x, times)?, 2)?,
        }
    }
}

/// The mean of each `together` neighbouring channels.
fn means(x: &Tensor, together: usize) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4()?;
    x.reshape((b, c / together, together, h * w))?
        .mean(2)?
        .reshape((b, c / together, h, w))
}

/// Each channel `times` times.
fn repeated(x: &Tensor, times: usize) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4()?;
    x.unsqueeze(2)?
        .broadcast_as((b, c, times, h, w))?
        .contiguous()?
        .reshape((b, c * times, h, w))
}

/// How pictures enter the encoder and leave the decoder: by a convolution, or at half the size.
#[derive(Debug, Clone)]
enum End {
    Conv(Conv2d),
    Half(Resample),
}

/// Layers, and what makes the picture smaller behind or larger before them.
type Blocks = Vec<(Vec<Layer>, Option<Resample>)>;

#[derive(Debug, Clone)]
struct Encoder {
    start: End,
    blocks: Blocks,
    out: Conv2d,
    /// How many channels become one beside the last convolution.
    around: Option<usize>,
}

#[derive(Debug, Clone)]
struct Decoder {
    start: Conv2d,
    /// How often latents are repeated beside the first convolution.
    around: Option<usize>,
    blocks: Blocks,
    norm: PixelNorm,
    silu: bool,
    end: End,
}

impl Encoder {
    fn new(vb: VarBuilder, config: &DcVaeConfig) -> Result<Self> {
        let blocks = config.encoder_blocks().map_err(candle_core::Error::msg)?;
        let folds = config.downsample_block_type == "pixel_unshuffle";
        let first = vb.pp("conv_in");
        let start = match blocks[0].layers {
            0 => End::Half(Resample::down(first, 3, blocks[1].width, folds, false)?),
            _ => End::Conv(conv(first, 3, blocks[0].width, 3, 1, 1)?),
        };
        let mut built = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let vb = vb.pp(format!("down_blocks.{i}"));
            let layers = (0..block.layers)
                .map(|j| Layer::new(vb.pp(j), block, config.attention_head_dim))
                .collect::<Result<Vec<_>>>()?;
            let smaller = match blocks.get(i + 1).filter(|_| block.layers > 0) {
                Some(next) => {
                    let vb = vb.pp(block.layers);
                    Some(Resample::down(vb, block.width, next.width, folds, true)?)
                }
                None => None,
            };
            built.push((layers, smaller));
        }
        let (last, latents) = (blocks[blocks.len() - 1].width, config.latent_channels);
        Ok(Self {
            start,
            blocks: built,
            out: conv(vb.pp("conv_out"), last, latents, 3, 1, 1)?,
            around: config.encoder_out_shortcut.then_some(last / latents),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = match &self.start {
            End::Conv(conv) => conv.forward(x)?,
            End::Half(half) => half.smaller(x)?,
        };
        for (layers, smaller) in &self.blocks {
            for layer in layers {
                x = layer.forward(&x)?;
            }
            if let Some(smaller) = smaller {
                x = smaller.smaller(&x)?;
            }
        }
        let out = self.out.forward(&x)?;
        match self.around {
            None => Ok(out),
            Some(together) => out + means(&x, together)?,
        }
    }
}

impl Decoder {
    fn new(vb: VarBuilder, config: &DcVaeConfig) -> Result<Self> {
        let blocks = config.decoder_blocks().map_err(candle_core::Error::msg)?;
        let folds = config.upsample_block_type == "pixel_shuffle";
        let mut built = Vec::new();
        for (i, block) in blocks.iter().enumerate().rev() {
            let vb = vb.pp(format!("up_blocks.{i}"));
            let larger = match blocks.get(i + 1).filter(|_| block.layers > 0) {
                Some(before) => Some(Resample::up(
                    vb.pp(0),
                    before.width,
                    block.width,
                    folds,
                    true,
                )?),
                None => None,
            };
            let behind = usize::from(larger.is_some());
            let layers = (0..block.layers)
                .map(|j| Layer::new(vb.pp(j + behind), block, config.attention_head_dim))
                .collect::<Result<Vec<_>>>()?;
            built.push((layers, larger));
        }
        let halves = blocks[0].layers == 0;
        let (last, latents) = (blocks[blocks.len() - 1].width, config.latent_channels);
        let width = blocks[usize::from(halves)].width;
        let end = vb.pp("conv_out");
        Ok(Self {
            start: conv(vb.pp("conv_in"), latents, last, 3, 1, 1)?,
            around: config.decoder_in_shortcut.then_some(last / latents),
            blocks: built,
            norm: PixelNorm::new(vb.pp("norm_out"), width)?,
            silu: config.decoder_conv_act_fn == "silu",
            end: match halves {
                true => End::Half(Resample::up(end, width, 3, folds, false)?),
                false => End::Conv(conv(end, width, 3, 3, 1, 1)?),
            },
        })
    }

    fn forward(&self, latents: &Tensor) -> Result<Tensor> {
        let mut x = self.start.forward(latents)?;
        if let Some(times) = self.around {
            x = (x + repeated(latents, times)?)?;
        }
        for (layers, larger) in &self.blocks {
            if let Some(larger) = larger {
                x = larger.larger(&x)?;
            }
            for layer in layers {
                x = layer.forward(&x)?;
            }
        }
        let x = self.norm.forward(&x)?;
        let x = if self.silu { x.silu()? } else { x.relu()? };
        match &self.end {
            End::Conv(conv) => conv.forward(&x),
            End::Half(half) => half.larger(&x),
        }
    }
}

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct DcVae {
    encoder: Option<Encoder>,
    decoder: Decoder,
    scale: f64,
    dtype: DType,
}

impl DcVae {
    /// Builds the network that `config` describes. A file without an encoder gives one that only decodes.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &DcVaeConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        Ok(Self {
            encoder: match vb.contains_tensor("encoder.conv_out.weight") {
                true => Some(Encoder::new(vb.pp("encoder"), config)?),
                false => None,
            },
            decoder: Decoder::new(vb.pp("decoder"), config)?,
            scale: config.scaling_factor,
            dtype: vb.dtype(),
        })
    }
}

impl LatentCodec for DcVae {
    fn encode(&self, pixels: &Tensor) -> Result<Tensor> {
        let Some(encoder) = &self.encoder else {
            candle_core::bail!("this VAE has no encoder; pictures cannot be started from")
        };
        encoder
            .forward(&pixels.to_dtype(self.dtype)?)?
            .to_dtype(DType::F32)?
            * self.scale
    }

    fn decode(&self, latents: &Tensor, _tile: Option<usize>) -> Result<Tensor> {
        let latents = (latents / self.scale)?.to_dtype(self.dtype)?;
        self.decoder.forward(&latents)?.to_dtype(DType::F32)
    }
}
