//! RWKV 7, as fla-hub's folders have it.

use super::{number, Recurrent, Usual, ENDLESS};
use crate::hf::change::Change;
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

/// What tokens are mixed with the one before for, in GGUF's order.
pub(in crate::hf) const MIXED: [&str; 6] = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g"];

/// The ranks of its narrow matrices, and GGUF's keys for them, which its other readers need.
const RANKS: [(&str, &str); 4] = [
    ("decay_low_rank_dim", "attention.decay_lora_rank"),
    ("a_low_rank_dim", "attention.iclr_lora_rank"),
    ("v_low_rank_dim", "attention.value_residual_mix_lora_rank"),
    ("gate_low_rank_dim", "attention.gate_lora_rank"),
];

pub(super) fn usual(json: &Json) -> Result<Usual, String> {
    let mut usual = json.clone();
    usual["layer_norm_eps"] = json["norm_eps"].as_f64().unwrap_or(1e-5).into();
    usual["wkv_head_size"] = json["head_dim"].as_u64().unwrap_or(64).into();
    if json["intermediate_size"].is_null() {
        let width = number(json, &["hidden_size"])?;
        usual["intermediate_size"] = width.saturating_mul(4).into();
    }
    for (key, value) in [
        // Of attention that is not there.
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
        ("head_dim", 2),
        ("max_position_embeddings", ENDLESS),
    ] {
        usual[key] = value.into();
    }
    Ok((usual, None))
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    super::mamba::without_attention(writer);
    writer.remove("feed_forward_length");
    writer.number("feed_forward_length", number(json, &["intermediate_size"])?);
    writer.number("wkv.head_size", number(json, &["wkv_head_size"])?);
    for (rank, key) in RANKS {
        if !json[rank].is_null() {
            writer.number(key, number(json, &[rank])?);
        }
    }
    Ok(recurrent)
}

/// A place among those that GGUF has in one tensor; names, and changes.
type Part = (Option<u32>, Vec<(String, Option<Change>)>);

/// What a part of a block becomes.
pub(super) fn part(block: &str, part: &str) -> Option<Part> {
    let one = |name: &str, change| Some((None, vec![(name.to_string(), change)]));
    if let Some(part) = part.strip_prefix("attn.") {
        if let Some(at) = MIXED.iter().position(|mixed| *mixed == part) {
            let name = "time_mix_lerp_fused.weight".to_string();
            return Some((Some(at as u32), vec![(name, None)]));
        }
        if let Some((matrix, part)) = part.split_once("_lora.lora.") {
            let number = match part {
                "0.weight" => 1,
                "2.weight" => 2,
                "2.bias" => 0,
                _ => return None,
            };
            let name = |letter: &str| (format!("time_mix_{letter}{number}.weight"), None);
            // llama.cpp wants those of values in the first block, too, and does not use them.
            return Some(match (block, matrix) {
                ("0", "v") => (None, Vec::new()),
                ("0", "a") => (None, vec![name("a"), name("v")]),
                (_, "w" | "a" | "v" | "g") => (None, vec![name(matrix)]),
                _ => return None,
            });
        }
        let flat = Some(Change::Flat);
        return match part {
            "k_k" => one("time_mix_k_k.weight", flat),
            "k_a" => one("time_mix_k_a.weight", flat),
            "r_k" => one("time_mix_r_k.weight", flat),
            "r_proj.weight" => one("time_mix_receptance.weight", None),
            "k_proj.weight" => one("time_mix_key.weight", None),
            "v_proj.weight" => one("time_mix_value.weight", None),
            "o_proj.weight" => one("time_mix_output.weight", None),
            "g_norm.weight" => one("time_mix_ln.weight", None),
            "g_norm.bias" => one("time_mix_ln.bias", None),
            _ => None,
        };
    }
    match part {
        "attn_norm.weight" => one("attn_norm.weight", None),
        "attn_norm.bias" => one("attn_norm.bias", None),
        "ffn_norm.weight" => one("attn_norm_2.weight", None),
        "ffn_norm.bias" => one("attn_norm_2.bias", None),
        "ffn.x_k" => one("channel_mix_lerp_k.weight", Some(Change::Flat)),
        "ffn.key.weight" => one("channel_mix_key.weight", None),
        "ffn.value.weight" => one("channel_mix_value.weight", None),
        _ => None,
    }
}
