//! Granite 4.

use super::{
    heads_of, inner_of, kinds, limits, number, write_limits, write_state_space, Recurrent, Usual,
};
use crate::hf::change::Change;
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

pub(super) fn usual(json: &Json) -> Result<Usual, String> {
    let mut usual = json.clone();
    let width = number(json, &["shared_intermediate_size"])?;
    if json["num_local_experts"] == 0 {
        usual["num_local_experts"] = Json::Null;
        usual["intermediate_size"] = width.into();
    } else {
        usual["shared_expert_intermediate_size"] = width.into();
    }
    Ok((usual, None))
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let width = number(json, &["hidden_size"])?;
    let heads = number(json, &["mamba_n_heads"])?;
    let expand = json["mamba_expand"].as_u64().unwrap_or(2) as u32;
    let inner = width.saturating_mul(expand);
    let size = match json["mamba_d_head"].as_u64() {
        Some(size) => size as u32,
        None => inner / heads,
    };
    let inner = inner_of(heads, size, inner)?;
    let groups = json["mamba_n_groups"].as_u64().unwrap_or(1) as u32;
    let states = json["mamba_d_state"].as_u64().unwrap_or(256) as u32;
    let kernel = json["mamba_d_conv"].as_u64().unwrap_or(4) as u32;
    write_state_space(writer, [kernel, inner, states, heads, groups.max(1)]);
    heads_of(&kinds(json)?, json, writer)?;
    let position = &json["position_embedding_type"];
    writer.bool("rope.scaling.finetuned", position == "rope");
    write_limits(writer, limits(json));
    Ok(Recurrent {
        groups: groups.max(1) as usize,
        experts: !json["num_local_experts"].is_null(),
        ..recurrent
    })
}

/// What a part of a block becomes: the feed-forward part, with experts or without.
pub(in crate::hf) fn parts(
    part: &str,
    experts: bool,
) -> Option<Vec<(&'static str, Option<Change>)>> {
    let halves = |first, second| {
        vec![
            (first, Some(Change::Half(0))),
            (second, Some(Change::Half(1))),
        ]
    };
    Some(match part {
        "block_sparse_moe.input_linear.weight" => {
            halves("ffn_gate_exps.weight", "ffn_up_exps.weight")
        }
        "block_sparse_moe.output_linear.weight" => vec![("ffn_down_exps.weight", None)],
        "block_sparse_moe.router.layer.weight" => vec![("ffn_gate_inp.weight", None)],
        "shared_mlp.input_linear.weight" => match experts {
            true => halves("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
            false => halves("ffn_gate.weight", "ffn_up.weight"),
        },
        "shared_mlp.output_linear.weight" => match experts {
            true => vec![("ffn_down_shexp.weight", None)],
            false => vec![("ffn_down.weight", None)],
        },
        _ => return None,
    })
}
