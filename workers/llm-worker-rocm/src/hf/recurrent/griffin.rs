//! RecurrentGemma.

use super::json::get;
use super::{heads_of, kinds, number, write_state_space, Recurrent, Usual, ENDLESS};
use crate::hf::change::Change;
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

pub(super) fn usual(json: &Json) -> Result<Usual, String> {
    let mut usual = json.clone();
    // Its code looks at no other size of heads.
    let width = number(json, &["hidden_size"])?;
    let heads = number(json, &["num_attention_heads"])?;
    usual["head_dim"] = (width / heads).into();
    // Both halves of the gated part together.
    let both = number(json, &["intermediate_size"])?;
    usual["intermediate_size"] = (both / 2).into();
    usual["max_position_embeddings"] = ENDLESS.into();
    let layers = number(json, &["num_hidden_layers"])? as usize;
    let kinds = get(json, &["block_types", "_block_types", "layer_types"]);
    let kinds = kinds.as_array().filter(|kinds| !kinds.is_empty());
    let kinds = kinds.ok_or("config.json: block_types is missing")?;
    let all: Vec<Json> = kinds.iter().cycle().take(layers).cloned().collect();
    usual["layer_types"] = all.into();
    Ok((usual, None))
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let width = number(json, &["hidden_size"])?;
    let inner = match json["lru_width"].as_u64() {
        Some(inner) => inner as u32,
        None => width,
    };
    let heads = number(json, &["num_attention_heads"])?;
    let kernel = number(json, &["conv1d_width"])?;
    write_state_space(writer, [kernel, inner, 1, heads, 1]);
    heads_of(&kinds(json)?, json, writer)?;
    // Its code stores the root as bf16.
    let root = half::bf16::from_f64(f64::from(width).sqrt());
    writer.float("embedding_scale", root.to_f64());
    Ok(recurrent)
}

/// What a part of a block becomes.
pub(super) fn part(part: &str) -> Option<(&'static str, Option<Change>)> {
    let name = match part {
        "temporal_pre_norm.weight" => "attn_norm.weight",
        "channel_pre_norm.weight" => "ffn_norm.weight",
        "mlp_block.gate_proj.weight" => "ffn_gate.weight",
        "mlp_block.gate_proj.bias" => "ffn_gate.bias",
        "mlp_block.up_proj.weight" => "ffn_up.weight",
        "mlp_block.up_proj.bias" => "ffn_up.bias",
        "mlp_block.down_proj.weight" => "ffn_down.weight",
        "mlp_block.down_proj.bias" => "ffn_down.bias",
        _ => return temporal(part.strip_prefix("temporal_block.")?),
    };
    Some((name, None))
}

fn temporal(part: &str) -> Option<(&'static str, Option<Change>)> {
    Some(match part {
        "linear_x.weight" => ("ssm_in.weight", None),
        "linear_x.bias" => ("ssm_in.bias", None),
        "linear_y.weight" => ("ssm_gate.weight", None),
        "linear_y.bias" => ("ssm_gate.bias", None),
        "linear_out.weight" => ("ssm_out.weight", None),
        "linear_out.bias" => ("ssm_out.bias", None),
        "conv_1d.weight" => ("ssm_conv1d.weight", Some(Change::Squeezed)),
        "conv_1d.bias" => ("ssm_conv1d.bias", None),
        "rg_lru.recurrent_param" => ("ssm_a", None),
        "rg_lru.input_gate_weight" => ("ssm_input_gate.weight", Some(Change::Transposed)),
        "rg_lru.input_gate_bias" => ("ssm_input_gate.bias", Some(Change::Flat)),
        "rg_lru.recurrent_gate_weight" => ("ssm_recurrent_gate.weight", Some(Change::Transposed)),
        "rg_lru.recurrent_gate_bias" => ("ssm_recurrent_gate.bias", Some(Change::Flat)),
        "q_proj.weight" => ("attn_q.weight", None),
        "q_proj.bias" => ("attn_q.bias", None),
        "k_proj.weight" => ("attn_k.weight", None),
        "k_proj.bias" => ("attn_k.bias", None),
        "v_proj.weight" => ("attn_v.weight", None),
        "v_proj.bias" => ("attn_v.bias", None),
        "o_proj.weight" => ("attn_output.weight", None),
        "o_proj.bias" => ("attn_output.bias", None),
        _ => return None,
    })
}
