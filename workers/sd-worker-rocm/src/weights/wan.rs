//! Transformers of Wan under the original's names.

use super::Weights;
use crate::models::transformer::wan::WanConfig;

/// The original's layers of a block, and diffusers'.
const LAYERS: &[(&str, &str)] = &[
    ("self_attn.q.", "attn1.to_q."),
    ("self_attn.k.", "attn1.to_k."),
    ("self_attn.v.", "attn1.to_v."),
    ("self_attn.o.", "attn1.to_out.0."),
    ("self_attn.norm_q.", "attn1.norm_q."),
    ("self_attn.norm_k.", "attn1.norm_k."),
    ("cross_attn.q.", "attn2.to_q."),
    ("cross_attn.k.", "attn2.to_k."),
    ("cross_attn.v.", "attn2.to_v."),
    ("cross_attn.o.", "attn2.to_out.0."),
    ("cross_attn.norm_q.", "attn2.norm_q."),
    ("cross_attn.norm_k.", "attn2.norm_k."),
    ("cross_attn.k_img.", "attn2.add_k_proj."),
    ("cross_attn.v_img.", "attn2.add_v_proj."),
    ("cross_attn.norm_k_img.", "attn2.norm_added_k."),
    ("norm3.", "norm2."),
    ("ffn.0.", "ffn.net.0.proj."),
    ("ffn.2.", "ffn.net.2."),
];

/// The original's other layers, and diffusers'.
const OTHERS: &[(&str, &str)] = &[
    (
        "time_embedding.0.",
        "condition_embedder.time_embedder.linear_1.",
    ),
    (
        "time_embedding.2.",
        "condition_embedder.time_embedder.linear_2.",
    ),
    ("time_projection.1.", "condition_embedder.time_proj."),
    (
        "text_embedding.0.",
        "condition_embedder.text_embedder.linear_1.",
    ),
    (
        "text_embedding.2.",
        "condition_embedder.text_embedder.linear_2.",
    ),
    (
        "img_emb.proj.0.",
        "condition_embedder.image_embedder.norm1.",
    ),
    (
        "img_emb.proj.1.",
        "condition_embedder.image_embedder.ff.net.0.proj.",
    ),
    (
        "img_emb.proj.3.",
        "condition_embedder.image_embedder.ff.net.2.",
    ),
    (
        "img_emb.proj.4.",
        "condition_embedder.image_embedder.norm2.",
    ),
    (
        "img_emb.emb_pos",
        "condition_embedder.image_embedder.pos_embed",
    ),
    ("head.head.", "proj_out."),
    ("head.modulation", "scale_shift_table"),
];

/// diffusers' name of a tensor of the original; other names stay.
pub fn modern(name: &str) -> String {
    let renamed = match name.strip_prefix("blocks.").and_then(|n| n.split_once('.')) {
        Some((block, "modulation")) => Some(format!("blocks.{block}.scale_shift_table")),
        Some((block, layer)) => LAYERS.iter().find_map(|(old, new)| {
            let rest = layer.strip_prefix(old)?;
            Some(format!("blocks.{block}.{new}{rest}"))
        }),
        None => OTHERS.iter().find_map(|(old, new)| {
            let rest = name.strip_prefix(old)?;
            Some(format!("{new}{rest}"))
        }),
    };
    renamed.unwrap_or_else(|| name.to_string())
}

/// diffusers' name of a layer of the original, with underscores for dots as LoRAs have them.
pub fn from_original(layer: &str) -> Option<String> {
    let flat = |name: &str| name.trim_end_matches('.').replace('.', "_");
    let find = |layer: &str, table: &[(&str, &str)]| {
        let found = table.iter().find(|(old, _)| flat(old) == layer)?;
        Some(flat(found.1))
    };
    match layer
        .strip_prefix("blocks_")
        .and_then(|rest| rest.split_once('_'))
    {
        Some((block, layer)) => Some(format!("blocks_{block}_{}", find(layer, LAYERS)?)),
        None => find(layer, OTHERS),
    }
}

/// A file's tensors under diffusers' names.
pub fn renamed(weights: &Weights) -> Weights {
    let original = weights.names().any(|name| name.contains(".self_attn.q."));
    match original {
        true => weights.renamed(|name| Some(modern(name))),
        false => weights.clone(),
    }
}

/// What the tensors, under diffusers' names, tell of the network.
///
/// # Errors
/// If they make no network.
pub fn config(weights: &Weights) -> Result<WanConfig, String> {
    let shape = |name: &str| {
        weights
            .shape(name)
            .ok_or_else(|| format!("there is no tensor {name}"))
    };
    let dim = |name: &str, i: usize| {
        let shape = shape(name)?;
        shape
            .get(i)
            .copied()
            .ok_or_else(|| format!("{name} has shape {shape:?}"))
    };
    let embed = "condition_embedder";
    let width = dim(&format!("{embed}.text_embedder.linear_1.weight"), 0)?;
    let patch: usize = shape("patch_embedding.weight")?.iter().product();
    let count = |i: &usize| weights.contains(&format!("blocks.{i}.attn1.to_q.weight"));
    let picture = format!("{embed}.image_embedder.norm1.weight");
    let size = WanConfig::default().attention_head_dim;
    let config = WanConfig {
        num_attention_heads: width / size,
        attention_head_dim: size,
        in_channels: patch / width.max(1) / 4,
        out_channels: dim("proj_out.weight", 0)? / 4,
        text_dim: dim(&format!("{embed}.text_embedder.linear_1.weight"), 1)?,
        freq_dim: dim(&format!("{embed}.time_embedder.linear_1.weight"), 1)?,
        ffn_dim: dim("blocks.0.ffn.net.0.proj.weight", 0)?,
        num_layers: (0..1000).take_while(count).count(),
        cross_attn_norm: weights.contains("blocks.0.norm2.weight"),
        image_dim: weights
            .shape(&picture)
            .and_then(|shape| shape.first().copied()),
        added_kv_proj_dim: weights
            .shape("blocks.0.attn2.add_k_proj.weight")
            .and_then(|shape| shape.get(1).copied()),
        pos_embed_seq_len: weights
            .shape(&format!("{embed}.image_embedder.pos_embed"))
            .and_then(|shape| shape.get(1).copied()),
        ..WanConfig::default()
    };
    config.check()?;
    Ok(config)
}
