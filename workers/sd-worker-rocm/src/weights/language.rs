//! Language models' tensors under the names that the network reads, and their sizes where no configuration says them.

use super::packed::{blocks, dim};
use super::Weights;
use crate::models::language::vision::VisionConfig;
use crate::models::language::LanguageConfig;
use serde_json::{json, Value};

/// Where the decoder's tensors are in files of several kinds: alone, with a head, with a tower for pictures before.
const PLACES: [&str; 5] = [
    "",
    "model.",
    "language_model.model.",
    "model.language_model.",
    "language_model.",
];

/// The decoder's tensors without what stands before their names; what else a file has is left out.
pub fn decoder(weights: &Weights) -> Weights {
    let place = PLACES
        .iter()
        .find(|place| weights.contains(&format!("{place}embed_tokens.weight")));
    match place {
        Some(place) => weights.renamed(|name| {
            let name = name.strip_prefix(place)?;
            let ours = ["embed_tokens.", "layers.", "norm."];
            ours.iter()
                .any(|ours| name.starts_with(ours))
                .then(|| name.to_string())
        }),
        None => weights.clone(),
    }
}

/// The tensors of a tower for pictures, if there is one.
fn tower(weights: &Weights) -> Option<Weights> {
    ["visual.", "model.visual."].iter().find_map(|place| {
        let first = format!("{place}patch_embed.proj.weight");
        weights.contains(&first).then(|| weights.under(place))
    })
}

/// The same with the tensors of a tower for pictures, below `visual`.
pub fn seeing(weights: &Weights) -> Weights {
    let mut both = decoder(weights);
    if let Some(tower) = tower(weights) {
        both.extend(tower.renamed(|name| Some(format!("visual.{name}"))));
    }
    both
}

/// The settings of a tower for pictures without a configuration, if there is one: sizes are those of its tensors, the
/// rest is what the published models have in common.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn vision_config(weights: &Weights) -> Result<Option<VisionConfig>, String> {
    let Some(tower) = tower(weights) else {
        return Ok(None);
    };
    let depth = blocks(&tower, "blocks", "attn.qkv.weight");
    let config = json!({
        "depth": depth,
        "hidden_size": dim(&tower, "patch_embed.proj.weight", 0)?,
        "temporal_patch_size": dim(&tower, "patch_embed.proj.weight", 2)?,
        "patch_size": dim(&tower, "patch_embed.proj.weight", 3)?,
        "intermediate_size": dim(&tower, "blocks.0.mlp.gate_proj.weight", 0)?,
        "out_hidden_size": dim(&tower, "merger.mlp.2.weight", 0)?,
        // Every fourth part of the blocks ends with one that looks at the whole picture.
        "fullatt_block_indexes": (1..=4).map(|part| (part * depth / 4).saturating_sub(1)).collect::<Vec<_>>(),
    });
    let config: VisionConfig = serde_json::from_value(config).map_err(|e| e.to_string())?;
    config.check()?;
    Ok(Some(config))
}

/// The settings of a decoder without a configuration: sizes are those of its tensors, under the names of [`decoder`];
/// the rest is `known`, what configuration files of its family say. Without norms of the heads `known` has `head_dim`,
/// too.
///
/// # Errors
/// Names what is missing or makes no sense.
pub fn config(weights: &Weights, known: &Value) -> Result<LanguageConfig, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let of_layer = |name: &str| dim(&format!("layers.0.{name}.weight"), 0);
    let head = match known["head_dim"].as_u64() {
        Some(size) if size > 0 => size as usize,
        _ => of_layer("self_attn.q_norm")?,
    };
    let mut json = known.clone();
    let mut say = |name: &str, size: usize| json[name] = Value::from(size);
    say("vocab_size", dim("embed_tokens.weight", 0)?);
    say("hidden_size", dim("embed_tokens.weight", 1)?);
    say("intermediate_size", of_layer("mlp.gate_proj")?);
    say(
        "num_hidden_layers",
        blocks(weights, "layers", "self_attn.q_proj.weight"),
    );
    say("num_attention_heads", of_layer("self_attn.q_proj")? / head);
    say("num_key_value_heads", of_layer("self_attn.k_proj")? / head);
    say("head_dim", head);
    LanguageConfig::from_json(&json)
}
