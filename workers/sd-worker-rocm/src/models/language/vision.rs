//! Qwen 2.5 VL's tower: pictures to rows that stand among a text's tokens.
//!
//! A picture is cut into patches, of which four neighbours become one row. Most blocks look within windows, a few at
//! the whole picture.

use super::rope::Turns;
use crate::models::attention::attention;
use crate::models::config::{within, Others};
use crate::models::layers::{linear, Linear};
use crate::models::norm::RmsNorm;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::Activation;
use image::RgbImage;
use serde::Deserialize;

/// `vision_config` of a Qwen 2.5 VL model.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct VisionConfig {
    /// Blocks.
    #[serde(default = "depth")]
    pub depth: usize,
    /// Channels.
    #[serde(default = "width")]
    pub hidden_size: usize,
    /// Channels inside the feed-forward layers.
    #[serde(default = "intermediate")]
    pub intermediate_size: usize,
    /// Heads.
    #[serde(default = "heads")]
    pub num_heads: usize,
    /// Pixels of a patch, each way.
    #[serde(default = "patch")]
    pub patch_size: usize,
    /// Patches that become one row, each way.
    #[serde(default = "merge")]
    pub spatial_merge_size: usize,
    /// Pictures of a film that a patch has; a still one is taken so many times.
    #[serde(default = "frames")]
    pub temporal_patch_size: usize,
    /// Pixels of a window, each way.
    #[serde(default = "window")]
    pub window_size: usize,
    /// Blocks that look at the whole picture.
    #[serde(default = "whole")]
    pub fullatt_block_indexes: Vec<usize>,
    /// Channels of a row.
    #[serde(default = "width")]
    pub out_hidden_size: usize,
    #[serde(default = "activation")]
    hidden_act: Activation,
    #[serde(default = "colours")]
    in_channels: usize,
    #[serde(default)]
    rope_parameters: Option<Axial>,
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Axial {
    #[serde(default)]
    rope_type: Option<String>,
    #[serde(default)]
    rope_theta: Option<f64>,
}

fn depth() -> usize {
    32
}

fn width() -> usize {
    3584
}

fn intermediate() -> usize {
    3420
}

fn heads() -> usize {
    16
}

fn patch() -> usize {
    14
}

fn merge() -> usize {
    2
}

fn frames() -> usize {
    2
}

fn window() -> usize {
    112
}

fn whole() -> Vec<usize> {
    vec![7, 15, 23, 31]
}

fn activation() -> Activation {
    Activation::Silu
}

fn colours() -> usize {
    3
}

impl VisionConfig {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // Of videos, and other names for what `in_channels` and `patch_size` say.
        self.others.refuse_of_transformers(&[
            "in_chans",
            "spatial_patch_size",
            "tokens_per_second",
        ])?;
        within(
            &[
                ("depth", self.depth),
                ("patch_size", self.patch_size),
                ("spatial_merge_size", self.spatial_merge_size),
                ("temporal_patch_size", self.temporal_patch_size),
            ],
            1 << 8,
        )?;
        within(
            &[
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("num_heads", self.num_heads),
                ("out_hidden_size", self.out_hidden_size),
                ("window_size", self.window_size),
            ],
            1 << 16,
        )?;
        if !self.hidden_size.is_multiple_of(4 * self.num_heads) {
            return Err(format!(
                "{} heads do not divide hidden_size {} into fours",
                self.num_heads, self.hidden_size
            ));
        }
        if self.window_rows() == 0 {
            return Err(format!(
                "window_size {} is less than a row's patches",
                self.window_size
            ));
        }
        if self.in_channels != 3 {
            return Err("in_channels other than 3 is not implemented".to_string());
        }
        let kind = self.rope_parameters.as_ref();
        let kind = kind.and_then(|rope| rope.rope_type.as_deref());
        if !matches!(kind, None | Some("axial" | "default")) {
            return Err(format!(
                "rope_type {} of the vision tower is not implemented",
                kind.unwrap_or_default()
            ));
        }
        let theta = self.theta();
        match theta.is_finite() && theta >= 1.0 {
            true => Ok(()),
            false => Err(format!("rope_theta {theta} is not possible")),
        }
    }

    fn theta(&self) -> f64 {
        let said = self.rope_parameters.as_ref();
        said.and_then(|rope| rope.rope_theta).unwrap_or(10_000.0)
    }

    /// Rows of a window, each way.
    fn window_rows(&self) -> usize {
        self.window_size / self.spatial_merge_size / self.patch_size
    }

    /// Pixels of a row, each way: pictures' sides are multiples of it.
    pub fn unit(&self) -> usize {
        self.patch_size * self.spatial_merge_size
    }
}

/// Patches of a picture: of each row those that become it, row by row.
#[derive(Debug, Clone)]
pub struct Patches {
    /// Channels outermost, `(patches, 3 * patch * patch)`, f32, on the CPU.
    pixels: Tensor,
    /// Rows of the picture, downwards and across.
    pub grid: [usize; 2],
}

impl Patches {
    /// Cuts a picture whose sides are multiples of [`VisionConfig::unit`]; colours have `mean` taken away and are
    /// divided by `deviation`.
    ///
    /// # Errors
    /// If the sides are not.
    pub fn new(
        picture: &RgbImage,
        mean: [f32; 3],
        deviation: [f32; 3],
        config: &VisionConfig,
    ) -> Result<Self> {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (unit, side, merge) = (config.unit(), config.patch_size, config.spatial_merge_size);
        let [down, across] = [height / unit, width / unit];
        if down * unit != height || across * unit != width || down * across == 0 {
            candle_core::bail!("a picture of {width} x {height} is not made of rows of {unit}")
        }
        let mut pixels = Vec::with_capacity(3 * width * height);
        let bytes = picture.as_raw();
        for unit_row in 0..down {
            for unit_column in 0..across {
                for part in 0..merge * merge {
                    let top = (unit_row * merge + part / merge) * side;
                    let left = (unit_column * merge + part % merge) * side;
                    for colour in 0..3 {
                        for y in top..top + side {
                            pixels.extend((left..left + side).map(|x| {
                                let byte = bytes[3 * (y * width + x) + colour];
                                (f32::from(byte) / 255.0 - mean[colour]) / deviation[colour]
                            }));
                        }
                    }
                }
            }
        }
        let count = down * across * merge * merge;
        Ok(Self {
            pixels: Tensor::from_vec(pixels, (count, 3 * side * side), &candle_core::Device::Cpu)?,
            grid: [down, across],
        })
    }
}

#[derive(Debug, Clone)]
struct Block {
    norms: [RmsNorm; 2],
    qkv: Linear,
    out: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
}

impl Block {
    fn new(vb: VarBuilder, config: &VisionConfig) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let norm = |name: &str| RmsNorm::new(vb.pp(name), width, 1e-6);
        let mlp = vb.pp("mlp");
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?],
            qkv: linear(vb.pp("attn.qkv"), width, 3 * width)?,
            out: linear(vb.pp("attn.proj"), width, width)?,
            gate: linear(mlp.pp("gate_proj"), width, inner)?,
            up: linear(mlp.pp("up_proj"), width, inner)?,
            down: linear(mlp.pp("down_proj"), inner, width)?,
            activation: config.hidden_act,
            heads: config.num_heads,
        })
    }

    /// `x`, `(patches, width)`, of which each window looks at itself alone.
    fn forward(&self, x: &Tensor, turns: &Turns, windows: &[Windows]) -> Result<Tensor> {
        let (tokens, width) = x.dims2()?;
        let qkv = self.qkv.forward(&self.norms[0].forward(x)?)?;
        let turned = |at: usize| {
            let x = qkv.narrow(D::Minus1, at * width, width)?.contiguous()?;
            let x = x.reshape((1, tokens, self.heads, width / self.heads))?;
            let x = turns.apply(&x.transpose(1, 2)?)?.transpose(1, 2)?;
            x.contiguous()?.reshape((tokens, width))
        };
        let (q, k) = (turned(0)?, turned(1)?);
        let v = qkv.narrow(D::Minus1, 2 * width, width)?.contiguous()?;
        let mut first = 0;
        let mut seen = Vec::with_capacity(windows.len());
        for group in windows {
            let size = group.count * group.patches;
            let part = |x: &Tensor| {
                let x = x.narrow(0, first, size)?;
                x.reshape((group.count, group.patches, width))
            };
            let rows = attention(&part(&q)?, &part(&k)?, &part(&v)?, self.heads, false)?;
            seen.push(rows.reshape((size, width))?);
            first += size;
        }
        let x = (x + self.out.forward(&Tensor::cat(&seen, 0)?)?)?;
        let h = self.norms[1].forward(&x)?;
        let gate = self.activation.forward(&self.gate.forward(&h)?)?;
        x + self.down.forward(&(gate * self.up.forward(&h)?)?)?
    }
}

/// So many windows of so many patches each, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Windows {
    count: usize,
    patches: usize,
}

/// Rows of a grid window by window, windows of a size together, and those windows in patches.
fn windows([down, across]: [usize; 2], side: usize, unit: usize) -> (Vec<u32>, Vec<Windows>) {
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for top in (0..down).step_by(side) {
        for left in (0..across).step_by(side) {
            let rows = top..(top + side).min(down);
            let columns = left..(left + side).min(across);
            let row = |row: usize| {
                columns
                    .clone()
                    .map(move |column| (row * across + column) as u32)
            };
            parts.push(rows.flat_map(row).collect());
        }
    }
    // Windows at the right and lower edge are smaller.
    parts.sort_by_key(|part| part.len());
    let mut sizes: Vec<Windows> = Vec::new();
    for part in &parts {
        let patches = part.len() * unit;
        match sizes.last_mut() {
            Some(last) if last.patches == patches => last.count += 1,
            _ => sizes.push(Windows { count: 1, patches }),
        }
    }
    (parts.concat(), sizes)
}

/// The tower.
#[derive(Debug, Clone)]
pub struct Vision {
    config: VisionConfig,
    /// Of patches whose pictures of a film are all the same.
    patches: Linear,
    blocks: Vec<Block>,
    norm: RmsNorm,
    merge: [Linear; 2],
    dtype: DType,
}

impl Vision {
    /// Reads `patch_embed`, `blocks` and `merger`.
    ///
    /// # Errors
    /// If the configuration is not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &VisionConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let (width, side) = (config.hidden_size, config.patch_size);
        let shape = vec![width, 3, config.temporal_patch_size, side, side];
        let kernel = vb.pp("patch_embed.proj").get(shape, "weight")?;
        let kernel = kernel.sum(2)?.reshape((width, 3 * side * side))?;
        let blocks = vb.pp("blocks");
        let merger = vb.pp("merger");
        let four = width * config.spatial_merge_size.pow(2);
        Ok(Self {
            patches: Linear::Plain(candle_nn::Linear::new(kernel, None)),
            blocks: (0..config.depth)
                .map(|i| Block::new(blocks.pp(i), config))
                .collect::<Result<_>>()?,
            norm: RmsNorm::new(merger.pp("ln_q"), width, 1e-6)?,
            merge: [
                linear(merger.pp("mlp.0"), four, four)?,
                linear(merger.pp("mlp.2"), four, config.out_hidden_size)?,
            ],
            dtype: vb.dtype(),
            config: config.clone(),
        })
    }

    /// What stands for a picture among tokens: `(rows, out_hidden_size)`, row by row.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, picture: &Patches, like: &Tensor) -> Result<Tensor> {
        let device = like.device();
        let merge = self.config.spatial_merge_size;
        let unit = merge * merge;
        let [down, across] = picture.grid;
        let (order, sizes) = windows(picture.grid, self.config.window_rows(), unit);
        let whole = [Windows {
            count: 1,
            patches: down * across * unit,
        }];
        let half = self.config.hidden_size / self.config.num_heads / 2;
        let quarter = half / 2;
        let theta = self.config.theta();
        let angles = order.iter().flat_map(|row| {
            let (row, column) = (*row as usize / across, *row as usize % across);
            (0..unit).flat_map(move |part| {
                let place = [row * merge + part / merge, column * merge + part % merge];
                (0..half).map(move |i| {
                    let frequency = theta.powf(-((i % quarter) as f64) / quarter as f64);
                    place[i / quarter] as f64 * frequency
                })
            })
        });
        let turns = Turns::of_angles(angles.collect(), half, self.dtype, device)?;
        let mut back = vec![0u32; order.len()];
        for (at, row) in order.iter().enumerate() {
            back[*row as usize] = at as u32;
        }
        let order = Tensor::new(order, device)?;
        let pixels = picture.pixels.to_device(device)?.to_dtype(self.dtype)?;
        let x = self.patches.forward(&pixels)?;
        let width = self.config.hidden_size;
        let x = x.reshape((down * across, unit * width))?;
        let mut x = x.index_select(&order, 0)?.reshape(((), width))?;
        for (at, block) in self.blocks.iter().enumerate() {
            let windows = match self.config.fullatt_block_indexes.contains(&at) {
                true => &whole[..],
                false => &sizes[..],
            };
            x = block.forward(&x, &turns, windows)?;
        }
        let x = self
            .norm
            .forward(&x)?
            .reshape((down * across, unit * width))?;
        let [first, second] = &self.merge;
        let rows = second.forward(&first.forward(&x)?.gelu_erf()?)?;
        rows.index_select(&Tensor::new(back, device)?, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_size_stand_together() {
        let (order, sizes) = windows([3, 5], 2, 4);
        // Two whole ones, then what is left on the right, below, and in the corner.
        let of = |count, patches| Windows { count, patches };
        assert_eq!(sizes, [of(1, 4), of(3, 8), of(2, 16)]);
        assert_eq!(order, [14, 4, 9, 10, 11, 12, 13, 0, 1, 5, 6, 2, 3, 7, 8]);
        assert_eq!(windows([2, 2], 4, 4), (vec![0, 1, 2, 3], vec![of(1, 16)]));
    }
}
