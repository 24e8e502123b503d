//! `config.json` of DPT and Depth Anything, and of the transformer that the latter looks through.

use super::super::bit::BitConfig;
use super::super::vit::{Kind, VitShape};
use crate::models::config::{check_patches, read, within, Others};
use serde::Deserialize;
use serde_json::Value;

type Result<T> = std::result::Result<T, String>;

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

/// Settings of a `DPTForDepthEstimation`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct DptConfig {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    hidden_act: String,
    layer_norm_eps: f64,
    image_size: usize,
    patch_size: usize,
    num_channels: usize,
    qkv_bias: bool,
    is_hybrid: bool,
    backbone_config: Option<Value>,
    backbone_out_indices: Vec<usize>,
    backbone_featmap_shape: Vec<usize>,
    neck_ignore_stages: Vec<usize>,
    neck_hidden_sizes: Vec<usize>,
    reassemble_factors: Vec<f64>,
    fusion_hidden_size: usize,
    readout_type: Readout,
    use_batch_norm_in_fusion_residual: bool,
    use_bias_in_fusion_residual: Option<bool>,
    add_projection: bool,
    head_in_index: i64,
    #[serde(flatten)]
    others: Others,
}

impl Default for DptConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: "gelu".to_string(),
            layer_norm_eps: 1e-12,
            image_size: 384,
            patch_size: 16,
            num_channels: 3,
            qkv_bias: true,
            is_hybrid: false,
            backbone_config: None,
            backbone_out_indices: vec![2, 5, 8, 11],
            backbone_featmap_shape: vec![1, 1024, 24, 24],
            neck_ignore_stages: vec![0, 1],
            neck_hidden_sizes: vec![96, 192, 384, 768],
            reassemble_factors: vec![4.0, 2.0, 1.0, 0.5],
            fusion_hidden_size: 256,
            readout_type: Readout::Project,
            use_batch_norm_in_fusion_residual: false,
            use_bias_in_fusion_residual: None,
            add_projection: false,
            head_in_index: -1,
            others: Others::default(),
        }
    }
}

/// Of training, and of parts that depths do not go through.
const DPT_WITHOUT_EFFECT: [&str; 6] = [
    "auxiliary_loss_weight",
    "pooler_act",
    "pooler_output_size",
    "semantic_classifier_dropout",
    "semantic_loss_ignore_index",
    "use_auxiliary_head",
];

/// Settings of a `DepthAnythingForDepthEstimation`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
struct AnythingConfig {
    backbone_config: Option<Value>,
    patch_size: usize,
    reassemble_hidden_size: usize,
    neck_hidden_sizes: Vec<usize>,
    reassemble_factors: Vec<f64>,
    fusion_hidden_size: usize,
    head_in_index: i64,
    head_hidden_size: usize,
    depth_estimation_type: String,
    max_depth: f64,
    #[serde(flatten)]
    others: Others,
}

impl Default for AnythingConfig {
    fn default() -> Self {
        Self {
            backbone_config: None,
            patch_size: 14,
            reassemble_hidden_size: 384,
            neck_hidden_sizes: vec![48, 96, 192, 384],
            reassemble_factors: vec![4.0, 2.0, 1.0, 0.5],
            fusion_hidden_size: 64,
            head_in_index: -1,
            head_hidden_size: 32,
            depth_estimation_type: "relative".to_string(),
            max_depth: 1.0,
            others: Others::default(),
        }
    }
}

/// `backbone_config` of a `Dinov2Backbone`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Dinov2Config {
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    mlp_ratio: f64,
    hidden_act: String,
    layer_norm_eps: f64,
    image_size: usize,
    patch_size: usize,
    num_channels: usize,
    qkv_bias: bool,
    use_swiglu_ffn: bool,
    apply_layernorm: bool,
    reshape_hidden_states: bool,
    out_indices: Option<Vec<usize>>,
    out_features: Option<Vec<String>>,
    #[serde(flatten)]
    others: Others,
}

impl Default for Dinov2Config {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            mlp_ratio: 4.0,
            hidden_act: "gelu".to_string(),
            layer_norm_eps: 1e-6,
            image_size: 224,
            patch_size: 14,
            num_channels: 3,
            qkv_bias: true,
            use_swiglu_ffn: false,
            apply_layernorm: true,
            reshape_hidden_states: true,
            out_indices: None,
            out_features: None,
            others: Others::default(),
        }
    }
}

impl Dinov2Config {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> Result<()> {
        // Of training, and what layers are called.
        let without_effect = [
            "drop_path_rate",
            "layerscale_value",
            "stage_names",
            "use_mask_token",
        ];
        self.others.refuse_of_transformers(&without_effect)?;
        check_layers(&self.hidden_act, self.qkv_bias, self.num_channels)?;
        for (name, set) in [
            ("use_swiglu_ffn", self.use_swiglu_ffn),
            ("reshape_hidden_states", self.reshape_hidden_states),
        ] {
            if set {
                return Err(format!("{name} true of the backbone is not implemented"));
            }
        }
        self.stages()?;
        self.shape().map(drop)
    }

    fn shape(&self) -> Result<VitShape> {
        VitShape {
            kind: Kind::Dino,
            width: self.hidden_size,
            inner: (self.hidden_size as f64 * self.mlp_ratio) as usize,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            patch: self.patch_size,
            grid: grid(self.image_size, self.patch_size, self.num_channels)?,
            eps: self.layer_norm_eps,
        }
        .checked()
    }

    /// The layers whose outputs the backbone gives, from 0.
    fn stages(&self) -> Result<Vec<usize>> {
        let named = self.out_features.as_ref().map(|names| {
            let index = |name: &String| name.strip_prefix("stage")?.parse().ok();
            let all: Option<Vec<usize>> = names.iter().map(index).collect();
            all.ok_or_else(|| format!("out_features {names:?} of the backbone are not known"))
        });
        let indices = match (&self.out_indices, named.transpose()?) {
            (Some(indices), Some(named)) if named != *indices => {
                return Err(format!(
                    "out_features of the backbone are not those of its out_indices {indices:?}"
                ))
            }
            (Some(indices), _) => indices.clone(),
            (None, Some(named)) => named,
            (None, None) => return Err("the backbone has no out_indices".to_string()),
        };
        // The embeddings are counted, too.
        let layer = |i: &usize| {
            i.checked_sub(1)
                .ok_or_else(|| "out_indices of the backbone name the embeddings".to_string())
        };
        indices.iter().map(layer).collect()
    }
}

/// What both kinds of transformers are implemented with.
fn check_layers(hidden_act: &str, qkv_bias: bool, num_channels: usize) -> Result<()> {
    match (hidden_act, qkv_bias, num_channels) {
        ("gelu", true, 3) => Ok(()),
        ("gelu", true, channels) => {
            Err(format!("num_channels {channels} is not implemented; 3 is"))
        }
        ("gelu", false, _) => Err("qkv_bias false is not implemented".to_string()),
        (other, _, _) => Err(format!("hidden_act {other:?} is not implemented")),
    }
}

/// Patches of a training picture, each way.
fn grid(image_size: usize, patch_size: usize, num_channels: usize) -> Result<usize> {
    within(&[("patch_size", patch_size)], 1 << 14)?;
    check_patches(image_size, patch_size, num_channels)?;
    Ok(image_size / patch_size)
}

/// What is behind the transformer.
#[derive(Debug, Clone)]
pub(super) struct Neck {
    /// Channels of each stage.
    pub sizes: Vec<usize>,
    /// By how much each stage is made larger.
    pub factors: Vec<f64>,
    /// Channels where stages meet.
    pub fused: usize,
    pub readout: Readout,
    pub batch_norms: bool,
    /// Whether convolutions between stages have biases.
    pub biases: bool,
    pub projection: bool,
    pub head: Head,
}

/// Which of the two kinds it is, as far as its last layers go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Head {
    Dpt,
    Anything {
        /// Channels before the last layer.
        inner: usize,
        metric: bool,
        most: f64,
    },
}

/// `config.json` of a `DPTForDepthEstimation` or `DepthAnythingForDepthEstimation`.
#[derive(Debug, Clone)]
pub struct DepthConfig {
    pub(super) neck: Neck,
    pub(super) shape: VitShape,
    /// Layers of the transformer that are looked at, from 0.
    pub(super) layers: Vec<usize>,
    /// Whether these are normalised.
    pub(super) normed: bool,
    pub(super) hybrid: Option<BitConfig>,
}

/// Stages of a hybrid that come from the convolutions.
pub(super) const OF_CONVOLUTIONS: usize = 2;

impl DepthConfig {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// Names the first setting that makes no sense, is not known or not implemented.
    pub fn of(json: &Value) -> Result<Self> {
        let config = match json.get("model_type").and_then(Value::as_str) {
            Some("depth_anything") => Self::of_anything(read(json.clone())?),
            None | Some("dpt") => Self::of_dpt(read(json.clone())?),
            Some(other) => Err(format!("model_type {other:?} is not implemented")),
        }?;
        config.check().map(|()| config)
    }

    fn of_dpt(config: DptConfig) -> Result<Self> {
        config.others.refuse_of_transformers(&DPT_WITHOUT_EFFECT)?;
        check_layers(&config.hidden_act, config.qkv_bias, config.num_channels)?;
        let hybrid = match (config.is_hybrid, config.backbone_config) {
            (false, None) => None,
            (false, Some(backbone)) => {
                return Err(format!(
                    "backbone_config of the kind {} is not implemented where is_hybrid is false",
                    backbone["model_type"]
                ))
            }
            (true, backbone) => {
                let bit = BitConfig::of_hybrid(backbone.as_ref())?;
                let channels = bit.channels();
                if config.backbone_featmap_shape.get(1) != Some(&channels) {
                    return Err(format!(
                        "backbone_featmap_shape {:?} is not that of a backbone of {channels} channels",
                        config.backbone_featmap_shape
                    ));
                }
                if config.neck_ignore_stages != [0, 1] {
                    return Err(
                        "neck_ignore_stages other than 0 and 1 is not implemented".to_string()
                    );
                }
                if config.readout_type != Readout::Project {
                    return Err("readout_type of a hybrid must be \"project\"".to_string());
                }
                Some(bit)
            }
        };
        let batch_norms = config.use_batch_norm_in_fusion_residual;
        Ok(Self {
            shape: VitShape {
                kind: Kind::Dpt,
                width: config.hidden_size,
                inner: config.intermediate_size,
                layers: config.num_hidden_layers,
                heads: config.num_attention_heads,
                patch: config.patch_size,
                grid: grid(config.image_size, config.patch_size, config.num_channels)?,
                eps: config.layer_norm_eps,
            }
            .checked()?,
            layers: config.backbone_out_indices,
            normed: false,
            hybrid,
            neck: Neck {
                sizes: config.neck_hidden_sizes,
                factors: config.reassemble_factors,
                fused: config.fusion_hidden_size,
                readout: config.readout_type,
                batch_norms,
                biases: config.use_bias_in_fusion_residual.unwrap_or(!batch_norms),
                projection: config.add_projection,
                head: Head::Dpt,
            }
            .with_features(config.head_in_index)?,
        })
    }

    fn of_anything(config: AnythingConfig) -> Result<Self> {
        config.others.refuse_of_transformers(&[])?;
        let Some(backbone) = config.backbone_config else {
            return Err("backbone_config is missing".to_string());
        };
        if backbone["model_type"] != "dinov2" {
            return Err(format!(
                "backbone_config of the kind {} is not implemented; dinov2 is",
                backbone["model_type"]
            ));
        }
        let backbone: Dinov2Config = read(backbone).map_err(|e| format!("backbone_config: {e}"))?;
        backbone
            .check()
            .map_err(|e| format!("backbone_config: {e}"))?;
        for (name, said, of_backbone) in [
            ("patch_size", config.patch_size, backbone.patch_size),
            (
                "reassemble_hidden_size",
                config.reassemble_hidden_size,
                backbone.hidden_size,
            ),
        ] {
            if said != of_backbone {
                return Err(format!("{name} {said} is not the backbone's {of_backbone}"));
            }
        }
        let metric = match config.depth_estimation_type.as_str() {
            "relative" => false,
            "metric" => true,
            other => return Err(format!("depth_estimation_type {other:?} is not known")),
        };
        Ok(Self {
            layers: backbone.stages()?,
            shape: backbone.shape()?,
            normed: backbone.apply_layernorm,
            hybrid: None,
            neck: Neck {
                sizes: config.neck_hidden_sizes,
                factors: config.reassemble_factors,
                fused: config.fusion_hidden_size,
                readout: Readout::Ignore,
                batch_norms: false,
                biases: true,
                projection: false,
                head: Head::Anything {
                    inner: config.head_hidden_size,
                    metric,
                    most: config.max_depth,
                },
            }
            .with_features(config.head_in_index)?,
        })
    }

    fn check(&self) -> Result<()> {
        let neck = &self.neck;
        let count = neck.sizes.len();
        let inner = match neck.head {
            Head::Dpt => super::DPT_INNER,
            Head::Anything { inner, .. } => inner,
        };
        within(
            &[
                ("the number of neck_hidden_sizes", count),
                ("fusion_hidden_size", neck.fused),
                ("head_hidden_size", inner),
            ],
            1 << 12,
        )?;
        for size in &neck.sizes {
            within(&[("neck_hidden_sizes", *size)], 1 << 14)?;
        }
        if neck.factors.len() < count {
            return Err("reassemble_factors must be one for each of neck_hidden_sizes".to_string());
        }
        if self.hybrid.is_some() && count <= OF_CONVOLUTIONS {
            return Err(format!(
                "{count} neck_hidden_sizes are too few for a hybrid"
            ));
        }
        let layers = &self.layers;
        let rising = layers.windows(2).all(|pair| pair[0] < pair[1]);
        if layers.len() != count || !rising || layers.iter().any(|i| *i >= self.shape.layers) {
            return Err(format!(
                "the layers {layers:?} that are looked at (backbone_out_indices or out_indices) do not fit {count} neck_hidden_sizes and {} layers",
                self.shape.layers
            ));
        }
        Ok(())
    }
}

impl Neck {
    /// The same, if the last of its pictures is what the head sees.
    fn with_features(self, head_in_index: i64) -> Result<Self> {
        match head_in_index {
            -1 => Ok(self),
            other => Err(format!(
                "head_in_index {other} is not implemented; -1, the last, is"
            )),
        }
    }
}
