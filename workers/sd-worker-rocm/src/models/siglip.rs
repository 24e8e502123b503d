//! SigLIP's view of pictures.

use super::clip::{Activation, ClipConfig, Layer};
use super::config::{check_heads, check_patches, tower_of, within, Others};
use super::layers::{conv, layer_norm, pixels_as_rows};
use super::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};
use serde::Deserialize;
use serde_json::Value;

/// `config.json` of a `SiglipVisionModel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct SiglipConfig {
    /// Width.
    pub hidden_size: usize,
    /// Width of the feed-forward layers.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Pixels of a picture, each way.
    pub image_size: usize,
    /// Pixels of a patch, each way.
    pub patch_size: usize,
    /// Of the layer norms.
    pub layer_norm_eps: f64,
    pub(crate) num_channels: usize,
    pub(crate) hidden_act: String,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for SiglipConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            image_size: 224,
            patch_size: 16,
            layer_norm_eps: 1e-6,
            num_channels: 3,
            hidden_act: "gelu_pytorch_tanh".to_string(),
            others: Others::default(),
        }
    }
}

impl SiglipConfig {
    /// Reads and checks a `config.json`, of which `vision_config` counts where there is one.
    ///
    /// # Errors
    /// Names the first setting that makes no sense or is not known.
    pub fn from_json(json: Value) -> std::result::Result<Self, String> {
        let config: Self =
            serde_json::from_value(tower_of(json, "vision_config")).map_err(|e| e.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        // Rows are looked at, not what the head makes of them.
        self.others.refuse_of_transformers(&["vision_use_head"])?;
        within(
            &[
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("num_hidden_layers", self.num_hidden_layers),
                ("num_attention_heads", self.num_attention_heads),
                ("image_size", self.image_size),
                ("patch_size", self.patch_size),
            ],
            1 << 14,
        )?;
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_patches(self.image_size, self.patch_size, self.num_channels)?;
        if self.hidden_act != "gelu_pytorch_tanh" {
            return Err(format!(
                "hidden_act {:?} is not implemented; there is gelu_pytorch_tanh",
                self.hidden_act
            ));
        }
        Ok(())
    }
}

/// The tower.
#[derive(Debug, Clone)]
pub struct Siglip {
    patches: Conv2d,
    positions: Tensor,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

impl Siglip {
    /// Reads `vision_model.*`.
    ///
    /// # Errors
    /// If the configuration makes no sense, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &SiglipConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let model = vb.pp("vision_model");
        let (size, patch) = (config.hidden_size, config.patch_size);
        let embeddings = model.pp("embeddings");
        let count = (config.image_size / patch).pow(2);
        let layers = model.pp("encoder.layers");
        let of_layers = ClipConfig {
            vocab_size: 1,
            hidden_size: size,
            intermediate_size: config.intermediate_size,
            num_hidden_layers: config.num_hidden_layers,
            num_attention_heads: config.num_attention_heads,
            max_position_embeddings: 1,
            hidden_act: Activation::GeluTanh,
            layer_norm_eps: config.layer_norm_eps,
            projection_dim: None,
            eos_token_id: None,
            others: Others::default(),
        };
        Ok(Self {
            patches: conv(embeddings.pp("patch_embedding"), 3, size, patch, patch, 0)?,
            positions: embeddings.get((count, size), "position_embedding.weight")?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(layers.pp(i), &of_layers))
                .collect::<Result<_>>()?,
            norm: layer_norm(model.pp("post_layernorm"), size, config.layer_norm_eps)?,
        })
    }

    /// A row for each patch of pictures `(batch, 3, image_size, image_size)`: `(batch, patches, hidden_size)`.
    ///
    /// # Errors
    /// If the pictures have another size, or the device fails.
    pub fn rows(&self, pictures: &Tensor) -> Result<Tensor> {
        let patches = pixels_as_rows(&self.patches.forward(pictures)?)?;
        let mut x = patches.broadcast_add(&self.positions)?;
        for layer in &self.layers {
            x = layer.forward(&x, false)?;
        }
        self.norm.forward(&x)
    }
}
