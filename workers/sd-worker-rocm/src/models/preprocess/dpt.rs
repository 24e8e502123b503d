//! Depths of pictures: DPT (arXiv:2103.13413), also known as MiDaS 3, and Depth Anything (arXiv:2401.10891), which has the
//! same layers behind another transformer.

use super::bit::{Bit, BitConfig};
use super::layers::{spread, BatchNorm};
use super::vit::{Kind, Vit, VitShape};
use crate::editing::resample::Resample;
use crate::models::config::within;
use crate::models::layers::{conv, linear, rows_as_pixels, Linear};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, ConvTranspose2d};
use serde::Deserialize;
use serde_json::Value;

/// What becomes of the token that stands for the whole picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Readout {
    /// It is left out.
    Ignore,
    /// It is added to each patch.
    Add,
    /// A layer mixes it into each patch.
    Project,
}

/// Settings of the layers behind the transformer.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct NeckConfig {
    neck_hidden_sizes: Vec<usize>,
    reassemble_factors: Vec<f64>,
    fusion_hidden_size: usize,
    readout_type: Readout,
    use_batch_norm_in_fusion_residual: bool,
    use_bias_in_fusion_residual: Option<bool>,
    add_projection: bool,
    head_in_index: i64,
    head_hidden_size: usize,
    depth_estimation_type: String,
    max_depth: Option<f64>,
}

impl Default for NeckConfig {
    fn default() -> Self {
        Self {
            neck_hidden_sizes: vec![96, 192, 384, 768],
            reassemble_factors: vec![4.0, 2.0, 1.0, 0.5],
            fusion_hidden_size: 256,
            readout_type: Readout::Project,
            use_batch_norm_in_fusion_residual: false,
            use_bias_in_fusion_residual: None,
            add_projection: false,
            head_in_index: -1,
            head_hidden_size: 32,
            depth_estimation_type: "relative".to_string(),
            max_depth: None,
        }
    }
}

/// Settings of a vision transformer, DPT's own or DINOv2's.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct VitConfig {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: Option<usize>,
    mlp_ratio: f64,
    hidden_act: String,
    layer_norm_eps: Option<f64>,
    image_size: usize,
    patch_size: usize,
    use_swiglu_ffn: bool,
    apply_layernorm: bool,
    reshape_hidden_states: bool,
    out_indices: Option<Vec<usize>>,
    out_features: Option<Vec<String>>,
}

impl Default for VitConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: None,
            mlp_ratio: 4.0,
            hidden_act: "gelu".to_string(),
            layer_norm_eps: None,
            image_size: 384,
            patch_size: 16,
            use_swiglu_ffn: false,
            apply_layernorm: true,
            reshape_hidden_states: true,
            out_indices: None,
            out_features: None,
        }
    }
}

impl VitConfig {
    fn shape(&self, kind: Kind) -> std::result::Result<VitShape, String> {
        if self.hidden_act != "gelu" {
            return Err(format!(
                "hidden_act {:?} is not implemented",
                self.hidden_act
            ));
        }
        if self.use_swiglu_ffn {
            return Err("use_swiglu_ffn is not implemented".to_string());
        }
        within(
            &[
                ("patch_size", self.patch_size),
                ("hidden_size", self.hidden_size),
            ],
            1 << 14,
        )?;
        let by_ratio = (self.hidden_size as f64 * self.mlp_ratio) as usize;
        let (inner, eps) = match kind {
            Kind::Dpt => (4 * self.hidden_size, 1e-12),
            Kind::Dino => (by_ratio, 1e-6),
        };
        let shape = VitShape {
            kind,
            width: self.hidden_size,
            inner: match kind {
                Kind::Dpt => self.intermediate_size.unwrap_or(inner),
                Kind::Dino => inner,
            },
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            patch: self.patch_size,
            grid: self.image_size / self.patch_size,
            eps: self.layer_norm_eps.unwrap_or(eps),
        };
        shape.check().map(|()| shape)
    }
}

/// `config.json` of a `DPTForDepthEstimation` or `DepthAnythingForDepthEstimation`.
#[derive(Debug, Clone)]
pub struct DepthConfig {
    neck: NeckConfig,
    shape: VitShape,
    /// Layers of the transformer that are looked at, from 0.
    layers: Vec<usize>,
    /// Whether these are normalised.
    normed: bool,
    hybrid: Option<BitConfig>,
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> std::result::Result<T, String> {
    serde_json::from_value(json.clone()).map_err(|e| e.to_string())
}

impl DepthConfig {
    /// Reads a configuration.
    ///
    /// # Errors
    /// Names the first setting that makes no sense or is not implemented.
    pub fn of(json: &Value) -> std::result::Result<Self, String> {
        let mut json = json.clone();
        // Settings that are null are those left out.
        if let Value::Object(fields) = &mut json {
            fields.retain(|_, value| !value.is_null());
        }
        let neck: NeckConfig = read(&json)?;
        let backbone = json.get("backbone_config").unwrap_or(&Value::Null);
        let kind = backbone.get("model_type").and_then(Value::as_str);
        let hybrid = json.get("is_hybrid").and_then(Value::as_bool) == Some(true);
        let config = match (hybrid, kind) {
            (false, None) | (true, _) => {
                let vit: VitConfig = read(&json)?;
                let usual = Value::from(vec![2, 5, 8, 11]);
                let layers = json.get("backbone_out_indices").unwrap_or(&usual);
                let bit = backbone.as_object().map(|_| backbone.clone());
                let bit = bit.unwrap_or_else(|| serde_json::json!({}));
                if hybrid && !matches!(kind, None | Some("bit")) {
                    return Err(format!("a hybrid with {kind:?} is not implemented"));
                }
                Self {
                    shape: vit.shape(Kind::Dpt)?,
                    layers: read(layers)?,
                    normed: false,
                    hybrid: if hybrid { Some(read(&bit)?) } else { None },
                    neck,
                }
            }
            (false, Some("dinov2")) => {
                let mut backbone = backbone.clone();
                if let Value::Object(fields) = &mut backbone {
                    fields.retain(|_, value| !value.is_null());
                }
                let vit: VitConfig = read(&backbone)?;
                if vit.reshape_hidden_states {
                    return Err("reshape_hidden_states of the backbone must be false".to_string());
                }
                Self {
                    layers: stages(&vit)?,
                    shape: vit.shape(Kind::Dino)?,
                    normed: vit.apply_layernorm,
                    hybrid: None,
                    neck,
                }
            }
            (false, Some(other)) => {
                return Err(format!(
                    "a backbone of the kind {other:?} is not implemented; DPT's own, bit and dinov2 are"
                ))
            }
        };
        config.check().map(|()| config)
    }

    fn is_anything(&self) -> bool {
        self.shape.kind == Kind::Dino
    }

    fn check(&self) -> std::result::Result<(), String> {
        let neck = &self.neck;
        let count = neck.neck_hidden_sizes.len();
        within(
            &[
                ("the number of neck_hidden_sizes", count),
                ("fusion_hidden_size", neck.fusion_hidden_size),
                ("head_hidden_size", neck.head_hidden_size),
            ],
            1 << 12,
        )?;
        for size in &neck.neck_hidden_sizes {
            within(&[("neck_hidden_sizes", *size)], 1 << 14)?;
        }
        if neck.reassemble_factors.len() < count || neck.head_in_index != -1 {
            return Err("reassemble_factors must be one a stage, and head_in_index -1".to_string());
        }
        let layers = &self.layers;
        let of_bit = if self.hybrid.is_some() { 2 } else { 0 };
        let rising = layers.windows(2).all(|pair| pair[0] < pair[1]);
        if layers.len() != count || !rising || layers.iter().any(|i| *i >= self.shape.layers) {
            return Err(format!(
                "the layers {layers:?} that are looked at do not fit {count} neck_hidden_sizes and {} layers",
                self.shape.layers
            ));
        }
        if self.hybrid.is_some() && (count <= of_bit || neck.readout_type != Readout::Project) {
            return Err("readout_type of a hybrid must be \"project\"".to_string());
        }
        match neck.depth_estimation_type.as_str() {
            "relative" | "metric" => Ok(()),
            other => Err(format!("depth_estimation_type {other:?} is not known")),
        }
    }
}

/// The layers whose outputs a backbone gives, from 0.
fn stages(vit: &VitConfig) -> std::result::Result<Vec<usize>, String> {
    let indices = match (&vit.out_indices, &vit.out_features) {
        (Some(indices), _) => indices.clone(),
        (None, Some(names)) => {
            let index = |name: &String| name.strip_prefix("stage")?.parse().ok();
            let all: Option<Vec<usize>> = names.iter().map(index).collect();
            all.ok_or_else(|| format!("out_features {names:?} of the backbone are not known"))?
        }
        (None, None) => return Err("the backbone has no out_indices".to_string()),
    };
    // The embeddings are counted, too.
    let layer = |i: &usize| {
        i.checked_sub(1)
            .ok_or_else(|| "out_indices of the backbone name the embeddings".to_string())
    };
    indices.iter().map(layer).collect()
}

#[derive(Debug, Clone)]
enum Resize {
    Larger(ConvTranspose2d),
    Same,
    Smaller(Conv2d),
}

/// Tokens of a layer as a picture of its own size.
#[derive(Debug, Clone)]
struct Reassemble {
    readout: Option<Linear>,
    projection: Conv2d,
    resize: Resize,
}

impl Reassemble {
    fn new(vb: &VarBuilder, i: usize, width: usize, config: &DepthConfig) -> Result<Self> {
        let neck = &config.neck;
        let (channels, factor) = (neck.neck_hidden_sizes[i], neck.reassemble_factors[i]);
        let layer = vb.pp("layers").pp(i);
        let resize = layer.pp("resize");
        let projects = neck.readout_type == Readout::Project && !config.is_anything();
        let whole = |factor: f64| -> Result<usize> {
            let rounded = factor.round();
            if (factor - rounded).abs() > 1e-6 || !(1.0..=64.0).contains(&rounded) {
                candle_core::bail!("reassemble_factors has {factor}, which is not implemented")
            }
            Ok(rounded as usize)
        };
        Ok(Self {
            readout: match projects {
                true => {
                    let vb = vb.pp("readout_projects").pp(i).pp(0);
                    Some(linear(vb, 2 * width, width)?)
                }
                false => None,
            },
            projection: conv(layer.pp("projection"), width, channels, 1, 1, 0)?,
            resize: match factor {
                factor if factor > 1.0 => Resize::Larger(spread(resize, channels, whole(factor)?)?),
                1.0 => Resize::Same,
                factor => {
                    let stride = whole(1.0 / factor)?;
                    Resize::Smaller(conv(resize, channels, channels, 3, stride, 1)?)
                }
            },
        })
    }

    /// Of `(1, 1 + patches, width)`.
    fn forward(
        &self,
        x: &Tensor,
        (high, wide): (usize, usize),
        readout: Readout,
    ) -> Result<Tensor> {
        let (class, patches) = (x.narrow(1, 0, 1)?, x.narrow(1, 1, high * wide)?);
        let patches = match (&self.readout, readout) {
            (Some(layer), _) => {
                let class = class.broadcast_as(patches.shape())?;
                let both = Tensor::cat(&[&patches.contiguous()?, &class.contiguous()?], 2)?;
                layer.forward(&both)?.gelu_erf()?
            }
            (None, Readout::Add) => patches.broadcast_add(&class)?,
            (None, _) => patches,
        };
        let x = self
            .projection
            .forward(&rows_as_pixels(&patches, high, wide)?)?;
        match &self.resize {
            Resize::Larger(layer) => layer.forward(&x),
            Resize::Same => Ok(x),
            Resize::Smaller(layer) => layer.forward(&x),
        }
    }
}

/// Two convolutions around a residual connection.
#[derive(Debug, Clone)]
struct Residual {
    convs: [Conv2d; 2],
    norms: Option<[BatchNorm; 2]>,
}

impl Residual {
    fn new(vb: VarBuilder, neck: &NeckConfig) -> Result<Self> {
        let width = neck.fusion_hidden_size;
        let layer = |i: usize| conv(vb.pp(format!("convolution{i}")), width, width, 3, 1, 1);
        let norm = |i: usize| BatchNorm::new(vb.pp(format!("batch_norm{i}")), width, 1e-5);
        Ok(Self {
            convs: [layer(1)?, layer(2)?],
            norms: match neck.use_batch_norm_in_fusion_residual {
                true => Some([norm(1)?, norm(2)?]),
                false => None,
            },
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut h = x.clone();
        for (i, conv) in self.convs.iter().enumerate() {
            h = conv.forward(&h.relu()?)?;
            if let Some(norms) = &self.norms {
                h = norms[i].forward(&h)?;
            }
        }
        x + h
    }
}

#[derive(Debug, Clone)]
struct Fusion {
    projection: Conv2d,
    residuals: [Residual; 2],
}

impl Fusion {
    fn new(vb: VarBuilder, neck: &NeckConfig) -> Result<Self> {
        let width = neck.fusion_hidden_size;
        let residual = |i: usize| Residual::new(vb.pp(format!("residual_layer{i}")), neck);
        Ok(Self {
            projection: conv(vb.pp("projection"), width, width, 1, 1, 0)?,
            residuals: [residual(1)?, residual(2)?],
        })
    }

    /// To `size`, or to twice the size without one.
    fn forward(
        &self,
        x: &Tensor,
        beside: Option<&Tensor>,
        size: Option<(usize, usize)>,
    ) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let x = match beside {
            Some(beside) => {
                let resample = Resample::Bilinear { antialias: false };
                let beside = resample.apply(beside, height, width)?;
                (x + self.residuals[0].forward(&beside)?)?
            }
            None => x.clone(),
        };
        let x = self.residuals[1].forward(&x)?;
        let (height, width) = size.unwrap_or((2 * height, 2 * width));
        self.projection
            .forward(&Resample::Corners.apply(&x, height, width)?)
    }
}

/// The last convolutions.
#[derive(Debug, Clone)]
struct Head {
    projection: Option<Conv2d>,
    layers: [Conv2d; 3],
}

/// The network.
#[derive(Debug, Clone)]
pub struct Depth {
    before: Option<(Bit, Conv2d)>,
    vit: Vit,
    /// `None` for stages that come from the network before the transformer.
    reassemble: Vec<Option<Reassemble>>,
    convs: Vec<Conv2d>,
    fusion: Vec<Fusion>,
    head: Head,
    config: DepthConfig,
}

impl Depth {
    /// Builds the network that `config` describes, from transformers' names.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &DepthConfig) -> Result<Self> {
        let neck = &config.neck;
        let width = config.shape.width;
        let model = match config.is_anything() {
            true => vb.pp("backbone"),
            false => vb.pp("dpt"),
        };
        let before = match &config.hybrid {
            None => None,
            Some(bit) => {
                let vb = model.pp("embeddings");
                let stage = config.hybrid.as_ref().map_or(0, |bit| bit.depths.len());
                let inputs = bit.hidden_sizes.get(stage.saturating_sub(1));
                let inputs = inputs.copied().unwrap_or(0);
                let network = Bit::new(vb.pp("backbone.bit"), bit)?;
                Some((network, conv(vb.pp("projection"), inputs, width, 1, 1, 0)?))
            }
        };
        let stages = neck.neck_hidden_sizes.iter().enumerate();
        let parts = vb.pp("neck");
        let reassemble = parts.pp("reassemble_stage");
        let skipped = if before.is_some() { 2 } else { 0 };
        let (fused, head) = (neck.fusion_hidden_size, vb.pp("head"));
        let fusion = parts.pp("fusion_stage.layers");
        let (names, inner) = match config.is_anything() {
            true => (["conv1", "conv2", "conv3"], neck.head_hidden_size),
            false => (["head.0", "head.2", "head.4"], 32),
        };
        Ok(Self {
            vit: Vit::new(model, &config.shape, before.is_none())?,
            before,
            reassemble: stages
                .clone()
                .map(|(i, _)| match i < skipped {
                    true => Ok(None),
                    false => Reassemble::new(&reassemble, i, width, config).map(Some),
                })
                .collect::<Result<_>>()?,
            convs: stages
                .map(|(i, channels)| conv(parts.pp("convs").pp(i), *channels, fused, 3, 1, 1))
                .collect::<Result<_>>()?,
            fusion: (0..neck.neck_hidden_sizes.len())
                .map(|i| Fusion::new(fusion.pp(i), neck))
                .collect::<Result<_>>()?,
            head: Head {
                projection: match neck.add_projection {
                    true => Some(conv(head.pp("projection"), 256, 256, 3, 1, 1)?),
                    false => None,
                },
                layers: [
                    conv(head.pp(names[0]), fused, fused / 2, 3, 1, 1)?,
                    conv(head.pp(names[1]), fused / 2, inner, 3, 1, 1)?,
                    conv(head.pp(names[2]), inner, 1, 1, 1, 0)?,
                ],
            },
            config: config.clone(),
        })
    }

    /// Depths, `(1, 1, height, width)`: near is more, but for metric ones, which are metres. The size is about that of the
    /// picture, `(1, 3, height, width)`, which has been normalised and whose sides are multiples of [`Self::multiple`].
    ///
    /// # Errors
    /// If the picture has other sides, or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, height, width) = x.dims4()?;
        let patch = self.multiple();
        if height < patch || width < patch || height % patch != 0 || width % patch != 0 {
            candle_core::bail!(
                "depths of {width} x {height} pixels: multiples of {patch} are wanted"
            )
        }
        let grid = (height / patch, width / patch);
        let layers = &self.config.layers;
        let mut stages = match &self.before {
            None => self.vit.forward(x, layers)?,
            Some((network, projection)) => {
                let mut stages = network.forward(x)?;
                let Some(last) = stages.last() else {
                    candle_core::bail!("a backbone without stages")
                };
                let patches = projection.forward(last)?;
                stages.truncate(2);
                stages.extend(self.vit.forward(&patches, &layers[2..])?);
                stages
            }
        };
        if self.config.normed {
            for stage in &mut stages {
                *stage = self.vit.normed(stage)?;
            }
        }
        let readout = match self.config.is_anything() {
            true => Readout::Ignore,
            false => self.config.neck.readout_type,
        };
        let mut features = Vec::with_capacity(stages.len());
        for ((stage, reassemble), conv) in stages.iter().zip(&self.reassemble).zip(&self.convs) {
            let stage = match reassemble {
                Some(layer) => layer.forward(stage, grid, readout)?,
                None => stage.clone(),
            };
            features.push(conv.forward(&stage)?);
        }
        let size = |i: usize| {
            // Depth Anything meets the next stage's size, DPT doubles.
            let next = features.len().checked_sub(i + 2)?;
            let (height, width) = (features[next].dim(2).ok()?, features[next].dim(3).ok()?);
            self.config.is_anything().then_some((height, width))
        };
        let mut fused: Option<Tensor> = None;
        for (i, (feature, layer)) in features.iter().rev().zip(&self.fusion).enumerate() {
            fused = Some(match &fused {
                None => layer.forward(feature, None, size(i))?,
                Some(fused) => layer.forward(fused, Some(feature), size(i))?,
            });
        }
        let Some(x) = fused else {
            candle_core::bail!("a network without stages")
        };
        self.depths(&x, (height, width))
    }

    fn depths(&self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let x = match &self.head.projection {
            Some(projection) => projection.forward(x)?.relu()?,
            None => x.clone(),
        };
        let [first, second, third] = &self.head.layers;
        let x = first.forward(&x)?;
        let (_, _, h, w) = x.dims4()?;
        let (height, width) = match self.config.is_anything() {
            true => (height, width),
            false => (2 * h, 2 * w),
        };
        let x = Resample::Corners.apply(&x, height, width)?;
        let x = third.forward(&second.forward(&x)?.relu()?)?;
        let neck = &self.config.neck;
        match self.is_metric() {
            true => candle_nn::ops::sigmoid(&x)? * neck.max_depth.unwrap_or(1.0),
            false if self.config.is_anything() => x.relu()? * neck.max_depth.unwrap_or(1.0),
            false => x.relu(),
        }
    }

    /// Whether depths are distances: far is more.
    pub fn is_metric(&self) -> bool {
        self.config.is_anything() && self.config.neck.depth_estimation_type == "metric"
    }

    /// Of what the sides of pictures are multiples.
    pub fn multiple(&self) -> usize {
        self.vit.patch()
    }
}
