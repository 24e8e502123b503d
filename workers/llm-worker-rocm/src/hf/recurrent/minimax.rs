//! MiniMax-Text-01 and M1.

use super::json::get;
use super::{kinds, number, Kind, Recurrent, Usual};
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

/// The factors of what norms give, and of what the parts behind them do, in transformers' words and in the makers'.
const FACTORS: [([&str; 2], [&str; 2]); 3] = [
    (
        ["full_attn_alpha_factor", "layernorm_full_attention_alpha"],
        ["full_attn_beta_factor", "layernorm_full_attention_beta"],
    ),
    (
        [
            "linear_attn_alpha_factor",
            "layernorm_linear_attention_alpha",
        ],
        ["linear_attn_beta_factor", "layernorm_linear_attention_beta"],
    ),
    (
        ["mlp_alpha_factor", "layernorm_mlp_alpha"],
        ["mlp_beta_factor", "layernorm_mlp_beta"],
    ),
];

pub(super) fn usual(json: &Json) -> Result<Usual, String> {
    let mut usual = json.clone();
    let layers = number(json, &["num_hidden_layers"])? as usize;
    let kind = |attends: bool| match attends {
        true => "full_attention",
        false => "linear_attention",
    };
    if json["layer_types"].is_null() {
        let kinds: Vec<&str> = match json["attn_type_list"].as_array() {
            Some(list) => list.iter().map(|number| kind(*number != 0)).collect(),
            // transformers' default.
            None => (0..layers).map(|layer| kind(layer % 2 == 0)).collect(),
        };
        usual["layer_types"] = kinds.into();
    }
    Ok((usual, None))
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let kinds = kinds(json)?;
    let layers = number(json, &["num_hidden_layers"])? as usize;
    if kinds.len() != layers {
        return Err(format!(
            "config.json: kinds of {} layers, the model has {layers}",
            kinds.len()
        ));
    }
    let linear = kinds.iter().map(|kind| *kind == Kind::Recurrent);
    writer.switches("attention.recurrent_layers", linear.collect());
    let factor = |keys: &[&str]| get(json, keys).as_f64().unwrap_or(1.0);
    let alpha = factor(&FACTORS[0].0);
    for (alphas, betas) in FACTORS {
        for (keys, followed) in [(alphas, alpha), (betas, 1.0)] {
            if factor(&keys) != followed {
                return Err(format!(
                    "config.json: {} {} is not implemented; {followed} is",
                    keys[0],
                    factor(&keys)
                ));
            }
        }
    }
    writer.float("residual_scale", alpha);
    Ok(recurrent)
}

/// What a part of a layer of linear attention becomes; `Some(None)` for what follows from the configuration.
pub(super) fn part(part: &str) -> Option<Option<&'static str>> {
    Some(match part.strip_prefix("self_attn.")? {
        "qkv_proj.weight" => Some("attn_qkv.weight"),
        "output_gate.weight" => Some("attn_gate.weight"),
        "norm.weight" => Some("attn_norm_2.weight"),
        "out_proj.weight" => Some("attn_output.weight"),
        "slope_rate" | "query_decay" | "key_decay" | "diagonal_decay" => None,
        _ => return None,
    })
}
