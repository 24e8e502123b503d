//! Single files that have a transformer with other parts of its model, as its makers and ComfyUI pack them.
//!
//! The transformer lies under `model.diffusion_model`, the VAE under `first_stage_model` or `vae`, text encoders under
//! `text_encoders`; parts may be missing. There is no configuration: sizes are those of the tensors, the rest is what
//! all models of a family have in common.

use super::Weights;
use crate::models::config::Others;
use crate::models::transformer::flux::FluxConfig;
use crate::models::transformer::lumina2::Lumina2Config;
use crate::models::transformer::qwen_image::QwenImageConfig;
use crate::models::transformer::sd3::Sd3Config;
use crate::models::transformer::z_image::ZImageConfig;
use crate::pipeline::families::Row;
use candle_transformers::models::t5::{ActivationWithOptionalGating, Config as T5Config};

/// Most blocks that are looked for.
const BLOCKS: usize = 1024;

/// A file taken apart. Parts that it does not have are empty.
pub(crate) struct Packed {
    /// The family.
    pub row: &'static Row,
    /// The transformer under diffusers' names.
    pub transformer: Weights,
    /// The autoencoder under the original's names.
    pub vae: Weights,
    /// Text encoders, as `NAME.transformer.TENSOR` with ComfyUI's names: `clip_l`, `clip_g`, `t5xxl`, `qwen3_4b`.
    pub encoders: Weights,
}

impl Packed {
    /// The parts of a file, if it has a transformer.
    pub fn take_apart(weights: &Weights) -> Option<Self> {
        let (row, transformer) = Row::take(weights)?;
        let vae = weights.under("first_stage_model.");
        Some(Self {
            row,
            transformer,
            vae: match vae.is_empty() {
                true => weights.under("vae."),
                false => vae,
            },
            encoders: weights.under("text_encoders."),
        })
    }

    /// Whether there is more than the transformer.
    pub fn is_model(&self) -> bool {
        !self.vae.is_empty() || !self.encoders.is_empty()
    }
}

/// A dimension of a tensor.
pub(crate) fn dim(weights: &Weights, name: &str, at: usize) -> Result<usize, String> {
    let shape = weights.shape(name);
    let dim = shape.and_then(|shape| shape.get(at).copied());
    dim.filter(|dim| *dim > 0)
        .ok_or_else(|| format!("there is no usable tensor {name}"))
}

/// Number of blocks, of which each has the tensor `prefix.N.rest`.
pub(crate) fn blocks(weights: &Weights, prefix: &str, rest: &str) -> usize {
    (0..BLOCKS)
        .take_while(|i| weights.contains(&format!("{prefix}.{i}.{rest}")))
        .count()
}

/// What the tensors of Stable Diffusion 3's transformer, under diffusers' names, tell about it.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn sd3_config(weights: &Weights) -> Result<Sd3Config, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let width = dim("pos_embed.proj.weight", 0)?;
    let layers = blocks(weights, "transformer_blocks", "norm1.linear.weight");
    // The norm of queries and keys has a head's size; models without it have as many heads as blocks.
    let norm = "transformer_blocks.0.attn.norm_q.weight";
    let head = match weights.contains(norm) {
        true => dim(norm, 0)?,
        false => width / layers.max(1),
    };
    if head == 0 || !width.is_multiple_of(head) {
        return Err(format!("{layers} blocks of width {width} have no heads"));
    }
    let places = dim("pos_embed.pos_embed", 1)?;
    let side = places.isqrt();
    if side * side != places {
        return Err(format!("{places} positions are not a square"));
    }
    let config = Sd3Config {
        patch_size: dim("pos_embed.proj.weight", 2)?,
        in_channels: dim("pos_embed.proj.weight", 1)?,
        num_layers: layers,
        num_attention_heads: width / head,
        attention_head_dim: head,
        joint_attention_dim: dim("context_embedder.weight", 1)?,
        pooled_projection_dim: dim("time_text_embed.text_embedder.linear_1.weight", 1)?,
        pos_embed_max_size: side,
        dual_attention_layers: (0..layers)
            .filter(|i| weights.contains(&format!("transformer_blocks.{i}.attn2.to_q.weight")))
            .collect(),
        qk_norm: weights.contains(norm).then(|| "rms_norm".to_string()),
        caption_projection_dim: None,
        out_channels: None,
        others: Others::default(),
    };
    config.check().map(|()| config)
}

/// What the tensors of FLUX.1's transformer, under diffusers' names, tell about it.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn flux_config(weights: &Weights) -> Result<FluxConfig, String> {
    let config = FluxConfig {
        out_channels: Some(dim(weights, "proj_out.weight", 0)?),
        ..flux_sizes(weights)?
    };
    config.check().map(|()| config)
}

/// The same of what FLUX.1's ControlNets have, too; they are not checked.
///
/// # Errors
/// Names what is missing or makes no sense.
pub(super) fn flux_sizes(weights: &Weights) -> Result<FluxConfig, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let width = dim("x_embedder.weight", 0)?;
    let head = dim("transformer_blocks.0.attn.norm_q.weight", 0)?;
    // An eighth of a head turns with the index, the rest in equal parts with row and column.
    if !head.is_multiple_of(16) || !width.is_multiple_of(head) {
        return Err(format!("heads of {head} in a width of {width}"));
    }
    let place = head / 16 * 7;
    Ok(FluxConfig {
        in_channels: dim("x_embedder.weight", 1)?,
        out_channels: None,
        patch_size: 1,
        num_layers: blocks(weights, "transformer_blocks", "norm1.linear.weight"),
        num_single_layers: blocks(weights, "single_transformer_blocks", "norm.linear.weight"),
        attention_head_dim: head,
        num_attention_heads: width / head,
        joint_attention_dim: dim("context_embedder.weight", 1)?,
        pooled_projection_dim: dim("time_text_embed.text_embedder.linear_1.weight", 1)?,
        guidance_embeds: weights.contains("time_text_embed.guidance_embedder.linear_1.weight"),
        axes_dims_rope: vec![head - 2 * place, place, place],
        others: Others::default(),
    })
}

/// What the tensors of Z-Image's transformer, under diffusers' names, tell about it.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn z_image_config(weights: &Weights) -> Result<ZImageConfig, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, patch) = (
        dim("all_x_embedder.2-1.weight", 0)?,
        dim("all_x_embedder.2-1.weight", 1)?,
    );
    let head = dim("layers.0.attention.norm_q.weight", 0)?;
    // A quarter of a head turns with the index, the rest in equal parts with row and column.
    if !head.is_multiple_of(16) || !width.is_multiple_of(head) || !patch.is_multiple_of(4) {
        return Err(format!(
            "heads of {head} in a width of {width}, {patch} numbers a patch"
        ));
    }
    let place = head / 8 * 3;
    let config = ZImageConfig {
        in_channels: patch / 4,
        dim: width,
        n_layers: blocks(weights, "layers", "attention.to_q.weight"),
        n_refiner_layers: blocks(weights, "noise_refiner", "attention.to_q.weight"),
        n_heads: width / head,
        n_kv_heads: dim("layers.0.attention.to_k.weight", 0)? / head,
        cap_feat_dim: dim("cap_embedder.1.weight", 1)?,
        axes_dims: vec![head - 2 * place, place, place],
        ..ZImageConfig::default()
    };
    config.check().map(|()| config)
}

/// What the tensors of Qwen-Image's transformer, under diffusers' names, tell about it.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn qwen_image_config(weights: &Weights) -> Result<QwenImageConfig, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, channels) = (dim("img_in.weight", 0)?, dim("img_in.weight", 1)?);
    let head = dim("transformer_blocks.0.attn.norm_q.weight", 0)?;
    // An eighth of a head turns with the picture, the rest in equal parts with row and column.
    if !head.is_multiple_of(16) || !width.is_multiple_of(head) {
        return Err(format!("heads of {head} in a width of {width}"));
    }
    let place = head / 16 * 7;
    let config = QwenImageConfig {
        in_channels: channels,
        out_channels: Some(channels / 4),
        num_layers: blocks(weights, "transformer_blocks", "img_mod.1.weight"),
        attention_head_dim: head,
        num_attention_heads: width / head,
        joint_attention_dim: dim("txt_in.weight", 1)?,
        axes_dims_rope: vec![head - 2 * place, place, place],
        // ComfyUI's files of the models of this kind have a tensor that says so.
        zero_cond_t: weights.contains("__index_timestep_zero__"),
        ..QwenImageConfig::default()
    };
    if weights.contains("time_text_embed.addition_t_embedding.weight") {
        return Err("Qwen-Image-Layered is not implemented".to_string());
    }
    config.check().map(|()| config)
}

/// What the tensors of Lumina 2's transformer, under diffusers' names, tell about it.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn lumina2_config(weights: &Weights) -> Result<Lumina2Config, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, patch) = (dim("x_embedder.weight", 0)?, dim("x_embedder.weight", 1)?);
    let head = dim("layers.0.attn.norm_q.weight", 0)?;
    // A third of a head each turns with index, row and column.
    if !head.is_multiple_of(6) || !width.is_multiple_of(head) || !patch.is_multiple_of(4) {
        return Err(format!(
            "heads of {head} in a width of {width}, {patch} numbers a patch"
        ));
    }
    let config = Lumina2Config {
        in_channels: patch / 4,
        hidden_size: width,
        num_layers: blocks(weights, "layers", "attn.to_q.weight"),
        num_refiner_layers: blocks(weights, "noise_refiner", "attn.to_q.weight"),
        num_attention_heads: width / head,
        num_kv_heads: dim("layers.0.attn.to_k.weight", 0)? / head,
        inner: Some(dim("layers.0.feed_forward.linear_1.weight", 0)?),
        cap_feat_dim: dim("time_caption_embed.caption_embedder.1.weight", 1)?,
        axes_dim_rope: vec![head / 3; 3],
        ..Lumina2Config::default()
    };
    config.check().map(|()| config)
}

/// What the tensors of T5's encoder tell about it.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn t5_config(weights: &Weights) -> Result<T5Config, String> {
    let first = "encoder.block.0.layer.0.SelfAttention";
    let dim = |name: &str, at| dim(weights, name, at);
    let bias = format!("{first}.relative_attention_bias.weight");
    let heads = dim(&bias, 1)?;
    Ok(T5Config {
        vocab_size: dim("shared.weight", 0)?,
        d_model: dim("shared.weight", 1)?,
        d_kv: dim(&format!("{first}.q.weight"), 0)? / heads,
        d_ff: dim("encoder.block.0.layer.1.DenseReluDense.wi_0.weight", 0)?,
        num_layers: blocks(weights, "encoder.block", "layer.0.SelfAttention.q.weight"),
        num_heads: heads,
        relative_attention_num_buckets: dim(&bias, 0)?,
        feed_forward_proj: ActivationWithOptionalGating {
            gated: true,
            activation: candle_nn::Activation::NewGelu,
        },
        ..T5Config::default()
    })
}
