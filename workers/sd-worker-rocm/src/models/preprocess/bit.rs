//! BiT (arXiv:1912.11370), the convolutions before the transformer of DPT-hybrid: residual blocks whose weights are
//! standardised and whose channels are normalised in groups.

use crate::models::config::{read, within, Others};
use crate::models::norm::GroupNorm;
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig};
use serde::Deserialize;
use serde_json::Value;

/// Of the group norms.
const EPS: f64 = 1e-5;

/// `backbone_config` of a `BitBackbone`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct BitConfig {
    /// Channels behind the first layer.
    pub embedding_size: usize,
    /// Channels of each stage.
    pub hidden_sizes: Vec<usize>,
    /// Blocks of each stage.
    pub depths: Vec<usize>,
    /// Groups of the norms.
    pub num_groups: usize,
    layer_type: String,
    global_padding: Option<String>,
    embedding_dynamic_padding: bool,
    hidden_act: String,
    output_stride: usize,
    width_factor: usize,
    num_channels: usize,
    out_indices: Option<Vec<usize>>,
    out_features: Option<Vec<String>>,
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

impl Default for BitConfig {
    fn default() -> Self {
        Self {
            embedding_size: 64,
            hidden_sizes: vec![256, 512, 1024, 2048],
            depths: vec![3, 4, 6, 3],
            num_groups: 32,
            layer_type: "preactivation".to_string(),
            global_padding: None,
            embedding_dynamic_padding: false,
            hidden_act: "relu".to_string(),
            output_stride: 32,
            width_factor: 1,
            num_channels: 3,
            out_indices: None,
            out_features: None,
            others: Others::default(),
        }
    }
}

impl BitConfig {
    /// Reads and checks the one before DPT's transformer; without settings it is the published model's.
    ///
    /// # Errors
    /// Names the first setting that makes no sense, is not known or not implemented.
    pub fn of_hybrid(json: Option<&Value>) -> std::result::Result<Self, String> {
        let config = match json {
            None => Self {
                depths: vec![3, 4, 9],
                layer_type: "bottleneck".to_string(),
                global_padding: Some("same".to_string()),
                embedding_dynamic_padding: true,
                ..Self::default()
            },
            Some(json) => match json.get("model_type").and_then(Value::as_str) {
                None | Some("bit") => {
                    read(json.clone()).map_err(|e| format!("backbone_config: {e}"))?
                }
                Some(other) => {
                    return Err(format!(
                    "backbone_config of the kind {other:?} is not implemented in a hybrid; bit is"
                ))
                }
            },
        };
        config
            .check()
            .map_err(|e| format!("backbone_config: {e}"))?;
        Ok(config)
    }

    /// Channels behind the last stage.
    pub fn channels(&self) -> usize {
        let last = self.hidden_sizes.iter().take(self.depths.len()).next_back();
        last.map_or(0, |size| rounded(*size))
    }

    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // Of training, and what stages are called.
        let without_effect = ["drop_path_rate", "stage_names"];
        self.others.refuse_of_transformers(&without_effect)?;
        within(
            &[
                ("embedding_size", self.embedding_size),
                ("num_groups", self.num_groups),
                ("the number of depths", self.depths.len()),
            ],
            1 << 12,
        )?;
        if self.hidden_sizes.len() < self.depths.len() {
            return Err("hidden_sizes has fewer stages than depths".to_string());
        }
        for size in self.depths.iter().chain(&self.hidden_sizes) {
            within(&[("a stage's size (depths, hidden_sizes)", *size)], 1 << 14)?;
        }
        let same = |text: &Option<String>| {
            text.as_deref()
                .is_some_and(|text| text.eq_ignore_ascii_case("same"))
        };
        for (name, value, is) in [
            (
                "layer_type",
                &self.layer_type,
                self.layer_type == "bottleneck",
            ),
            ("hidden_act", &self.hidden_act, self.hidden_act == "relu"),
        ] {
            if !is {
                return Err(format!(
                    "{name} {value:?} of the backbone is not implemented"
                ));
            }
        }
        if !same(&self.global_padding) {
            return Err("global_padding of the backbone must be \"same\"".to_string());
        }
        if !self.embedding_dynamic_padding {
            return Err("embedding_dynamic_padding of the backbone must be true".to_string());
        }
        for (name, value, is) in [
            ("output_stride", self.output_stride, 32),
            ("width_factor", self.width_factor, 1),
            ("num_channels", self.num_channels, 3),
        ] {
            if value != is {
                return Err(format!("{name} of the backbone must be {is}"));
            }
        }
        // All stages are looked at.
        let all: Vec<usize> = (1..=self.depths.len()).collect();
        let names: Vec<String> = all.iter().map(|i| format!("stage{i}")).collect();
        let other = |name: &str| Err(format!("{name} of the backbone must be all of its stages"));
        match (&self.out_indices, &self.out_features) {
            (Some(indices), _) if *indices != all => other("out_indices"),
            (_, Some(features)) if *features != names => other("out_features"),
            _ => Ok(()),
        }
    }
}

/// Channels as multiples of 8, which all are.
fn rounded(channels: usize) -> usize {
    8 * ((channels + 4) / 8).max(1)
}

/// A multiple of 8 near a quarter of some channels.
fn quarter(channels: usize) -> usize {
    let quarter = channels as f64 * 0.25;
    let near = ((quarter + 4.0) as usize / 8 * 8).max(8);
    match (near as f64) < 0.9 * quarter {
        true => near + 8,
        false => near,
    }
}

/// Pads so that a convolution with this kernel and stride gives as many pixels as strides begin in the picture; more
/// below and on the right.
fn padded(x: &Tensor, kernel: usize, stride: usize) -> Result<Tensor> {
    let mut x = x.clone();
    for dim in [2, 3] {
        let size = x.dim(dim)?;
        let wanted = (size.div_ceil(stride).saturating_sub(1)) * stride + kernel;
        let more = wanted.saturating_sub(size);
        x = x.pad_with_zeros(dim, more / 2, more - more / 2)?;
    }
    Ok(x)
}

/// A convolution whose weights have mean 0 and variance 1 for each output.
#[derive(Debug, Clone)]
struct Standardised {
    conv: Conv2d,
    kernel: usize,
    stride: usize,
}

impl Standardised {
    fn new(
        vb: VarBuilder,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<Self> {
        let weight = vb.get((outputs, inputs, kernel, kernel), "weight")?;
        let rows = weight.reshape((outputs, inputs * kernel * kernel))?;
        let rows = rows.broadcast_sub(&rows.mean_keepdim(1)?)?;
        let variance = rows.sqr()?.mean_keepdim(1)?;
        let rows = rows.broadcast_div(&(variance + 1e-8)?.sqrt()?)?;
        let config = Conv2dConfig {
            stride,
            ..Default::default()
        };
        let weight = rows.reshape(weight.shape())?;
        Ok(Self {
            conv: Conv2d::new(weight, None, config),
            kernel,
            stride,
        })
    }
}

impl Module for Standardised {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = padded(x, self.kernel, self.stride)?;
        self.conv.forward(&x.contiguous()?)
    }
}

type Normed = (Standardised, GroupNorm);

#[derive(Debug, Clone)]
struct Block {
    layers: [Normed; 3],
    /// Past them, where channels change.
    downsample: Option<Normed>,
}

impl Block {
    fn new(
        vb: VarBuilder,
        (inputs, outputs): (usize, usize),
        stride: usize,
        first: bool,
        groups: usize,
    ) -> Result<Self> {
        let within = quarter(outputs);
        let layer = |i: usize, inputs, outputs, kernel, stride| {
            let conv = vb.pp(format!("conv{i}"));
            let norm = vb.pp(format!("norm{i}"));
            Ok::<_, candle_core::Error>((
                Standardised::new(conv, inputs, outputs, kernel, stride)?,
                GroupNorm::new(norm, groups, outputs, EPS)?,
            ))
        };
        Ok(Self {
            layers: [
                layer(1, inputs, within, 1, 1)?,
                layer(2, within, within, 3, stride)?,
                layer(3, within, outputs, 1, 1)?,
            ],
            downsample: match first {
                true => {
                    let vb = vb.pp("downsample");
                    Some((
                        Standardised::new(vb.pp("conv"), inputs, outputs, 1, stride)?,
                        GroupNorm::new(vb.pp("norm"), groups, outputs, EPS)?,
                    ))
                }
                false => None,
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let past = match &self.downsample {
            Some((conv, norm)) => norm.forward(&conv.forward(x)?)?,
            None => x.clone(),
        };
        let [(conv1, norm1), (conv2, norm2), (conv3, norm3)] = &self.layers;
        let x = norm1.forward(&conv1.forward(x)?)?.relu()?;
        let x = norm2.forward(&conv2.forward(&x)?)?.relu()?;
        let x = norm3.forward(&conv3.forward(&x)?)?;
        (x + past)?.relu()
    }
}

/// The network.
#[derive(Debug, Clone)]
pub struct Bit {
    first: Normed,
    stages: Vec<Vec<Block>>,
}

impl Bit {
    /// Reads `embedder` and `encoder.stages`.
    ///
    /// # Errors
    /// If the settings are not implemented, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &BitConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let (size, groups) = (config.embedding_size, config.num_groups);
        let embedder = vb.pp("embedder");
        let mut inputs = size;
        let mut stages = Vec::new();
        for (i, (depth, outputs)) in config.depths.iter().zip(&config.hidden_sizes).enumerate() {
            let outputs = rounded(*outputs);
            let vb = vb.pp("encoder.stages").pp(i).pp("layers");
            let mut blocks = Vec::new();
            for j in 0..*depth {
                let stride = if i > 0 && j == 0 { 2 } else { 1 };
                blocks.push(Block::new(
                    vb.pp(j),
                    (inputs, outputs),
                    stride,
                    j == 0,
                    groups,
                )?);
                inputs = outputs;
            }
            stages.push(blocks);
        }
        Ok(Self {
            first: (
                Standardised::new(embedder.pp("convolution"), 3, size, 7, 2)?,
                GroupNorm::new(embedder.pp("norm"), groups, size, EPS)?,
            ),
            stages,
        })
    }

    /// What is behind each stage, `(1, channels, height, width)`; the first is a quarter as large as the picture.
    ///
    /// # Errors
    /// If the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        let (conv, norm) = &self.first;
        let x = norm.forward(&conv.forward(x)?)?.relu()?;
        // Nothing is below zero, so the padding is never the most.
        let mut x = padded(&x, 3, 2)?.max_pool2d_with_stride(3, 2)?;
        let mut seen = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            for block in stage {
                x = block.forward(&x)?;
            }
            seen.push(x.clone());
        }
        Ok(seen)
    }
}
