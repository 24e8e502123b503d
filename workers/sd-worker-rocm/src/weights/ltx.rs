//! LTX-Video's transformers under the original's names.

use super::packed::{blocks, dim};
use super::Weights;
use crate::models::transformer::ltx::LtxConfig;

/// The original's parts of names, and diffusers'.
const PARTS: [(&str, &str); 4] = [
    ("patchify_proj", "proj_in"),
    ("adaln_single", "time_embed"),
    ("q_norm", "norm_q"),
    ("k_norm", "norm_k"),
];

/// Heads of all models.
const HEADS: usize = 32;

/// diffusers' name of what the original names so; other names stay.
pub fn modern(name: &str) -> String {
    let mut name = name.to_string();
    for (old, new) in PARTS {
        name = name.replace(old, new);
    }
    name
}

/// A file's tensors under diffusers' names.
pub fn renamed(weights: &Weights) -> Weights {
    weights.renamed(|name| match name.starts_with("vae.") {
        true => None,
        false => Some(modern(name)),
    })
}

/// What the tensors, under diffusers' names, tell of the network.
///
/// # Errors
/// If they make no network.
pub fn config(weights: &Weights) -> Result<LtxConfig, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    if weights.names().any(|name| name.starts_with("audio_")) {
        return Err("LTX-2, which makes sound, is not implemented".to_string());
    }
    let width = dim("proj_in.weight", 0)?;
    let layers = blocks(weights, "transformer_blocks", "scale_shift_table");
    let head = width / HEADS;
    let config = LtxConfig {
        in_channels: dim("proj_in.weight", 1)?,
        out_channels: Some(dim("proj_out.weight", 0)?),
        num_attention_heads: HEADS,
        attention_head_dim: head,
        num_layers: layers,
        caption_channels: dim("caption_projection.linear_1.weight", 1)?,
        cross_attention_dim: width,
        ..LtxConfig::default()
    };
    config.check()?;
    Ok(config)
}

/// Whether a file says, in the configuration that its makers put into it, that a latent is where its first frame is: so
/// do those since 0.9.5. Those of 48 layers are all of that kind.
pub fn places_first_frames(weights: &Weights) -> bool {
    let said = weights.metadata("config").and_then(|json| {
        let json: serde_json::Value = serde_json::from_str(json).ok()?;
        json["transformer"]["causal_temporal_positioning"].as_bool()
    });
    said.unwrap_or(false) || blocks(weights, "transformer_blocks", "scale_shift_table") == 48
}
