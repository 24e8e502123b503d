//! CLIP's view of pictures.

use super::clip::{Activation, ClipConfig, Layer};
use super::config::{check_heads, check_patches, tower_of, within, Others};
use super::layers::{conv, layer_norm, linear, pixels_as_rows, Linear};
use super::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, LayerNorm};
use serde::Deserialize;
use serde_json::Value;

/// `config.json` of a `CLIPVisionModel` or `CLIPVisionModelWithProjection`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct ClipVisionConfig {
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
    /// Activation.
    pub hidden_act: Activation,
    /// Of the layer norms.
    pub layer_norm_eps: f64,
    /// Width of the projection, where there is one.
    pub projection_dim: usize,
    pub(crate) num_channels: usize,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

impl Default for ClipVisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            image_size: 224,
            patch_size: 32,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            projection_dim: 512,
            num_channels: 3,
            others: Others::default(),
        }
    }
}

impl ClipVisionConfig {
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

    /// Whether the sizes make sense.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse_of_transformers(&[])?;
        within(
            &[
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("num_hidden_layers", self.num_hidden_layers),
                ("num_attention_heads", self.num_attention_heads),
                ("image_size", self.image_size),
                ("patch_size", self.patch_size),
                ("projection_dim", self.projection_dim),
            ],
            1 << 16,
        )?;
        check_heads(self.hidden_size, self.num_attention_heads)?;
        check_patches(self.image_size, self.patch_size, self.num_channels)?;
        Ok(())
    }

    /// Of the layers, which are those of text towers.
    fn layers(&self) -> ClipConfig {
        ClipConfig {
            vocab_size: 1,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            max_position_embeddings: 1,
            hidden_act: self.hidden_act,
            layer_norm_eps: self.layer_norm_eps,
            projection_dim: None,
            eos_token_id: None,
            others: Others::default(),
        }
    }
}

/// The tower.
#[derive(Debug, Clone)]
pub struct ClipVision {
    patches: Conv2d,
    class: Tensor,
    positions: Tensor,
    norm: LayerNorm,
    layers: Vec<Layer>,
    last_norm: LayerNorm,
    projection: Option<Linear>,
}

impl ClipVision {
    /// Reads `vision_model.*` and, where there is one, `visual_projection`.
    ///
    /// # Errors
    /// If the configuration makes no sense, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &ClipVisionConfig) -> Result<Self> {
        config.check().map_err(candle_core::Error::msg)?;
        let model = vb.pp("vision_model");
        let size = config.hidden_size;
        let embeddings = model.pp("embeddings");
        let patch = config.patch_size;
        let count = (config.image_size / patch).pow(2);
        let layers = model.pp("encoder.layers");
        let of_layers = config.layers();
        let norm = |name: &str| layer_norm(model.pp(name), size, config.layer_norm_eps);
        Ok(Self {
            patches: conv(embeddings.pp("patch_embedding"), 3, size, patch, patch, 0)?,
            class: embeddings.get(size, "class_embedding")?,
            positions: embeddings.get((count + 1, size), "position_embedding.weight")?,
            // The name is the original's.
            norm: norm("pre_layrnorm")?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(layers.pp(i), &of_layers))
                .collect::<Result<_>>()?,
            last_norm: norm("post_layernorm")?,
            projection: match vb.contains_tensor("visual_projection.weight") {
                true => Some(linear(
                    vb.pp("visual_projection"),
                    size,
                    config.projection_dim,
                )?),
                false => None,
            },
        })
    }

    /// The rows, the class's first, of pictures `(batch, 3, image_size, image_size)`, before the last `leave_out`
    /// layers: `(batch, 1 + patches, hidden_size)`.
    ///
    /// # Errors
    /// If the pictures have another size, there are not so many layers, or the device fails.
    pub fn rows(&self, pictures: &Tensor, leave_out: usize) -> Result<Tensor> {
        let batch = pictures.dim(0)?;
        let Some(count) = self.layers.len().checked_sub(leave_out) else {
            candle_core::bail!("{leave_out} of {} layers left out", self.layers.len())
        };
        let patches = pixels_as_rows(&self.patches.forward(pictures)?)?;
        let class = self.class.reshape((1, 1, ()))?.repeat((batch, 1, 1))?;
        let x = Tensor::cat(&[&class, &patches], 1)?.broadcast_add(&self.positions)?;
        let mut x = self.norm.forward(&x)?;
        for layer in &self.layers[..count] {
            x = layer.forward(&x, false)?;
        }
        Ok(x)
    }

    /// The pictures' embeddings, `(batch, projection_dim)`, or of width `hidden_size` without a projection.
    ///
    /// # Errors
    /// Those of [`ClipVision::rows`].
    pub fn embeddings(&self, pictures: &Tensor) -> Result<Tensor> {
        let class = self.rows(pictures, 0)?.narrow(1, 0, 1)?.squeeze(1)?;
        let class = self.last_norm.forward(&class.contiguous()?)?;
        match &self.projection {
            Some(projection) => projection.forward(&class),
            None => Ok(class),
        }
    }
}
