//! Experts in `config.json`, and what GGUF has for them.

use super::change::{Change, Places};
use super::config::{number, optional, refuse_others};
use super::metadata::MetadataWriter;
use super::names::{part_of_block, TensorName};
use crate::architectures::Accepted;
use serde_json::Value as Json;

/// Names of the number of experts.
const COUNTS: [&str; 4] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
];

/// Whole numbers that may be 0, by the names that configurations have for them, and GGUF's key.
const NUMBERS: [(&[&str], &str); 4] = [
    (
        &[
            "n_shared_experts",
            "num_shared_experts",
            "num_shared_expert",
            "moe_num_shared_experts",
        ],
        "expert_shared_count",
    ),
    (&["moe_intermediate_size"], "expert_feed_forward_length"),
    (
        &[
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ],
        "expert_shared_feed_forward_length",
    ),
    (
        &[
            "num_experts_per_tok",
            "num_experts_per_token",
            "top_k_experts",
            "moe_topk",
            "moe_k",
        ],
        "expert_used_count",
    ),
];

/// The number of experts, 0 if there are none.
pub(super) fn count(json: &Json) -> Result<u32, String> {
    for key in COUNTS {
        if let Some(count) = optional(json, key)? {
            // One expert is none.
            return Ok(if count == 1 { 0 } else { count });
        }
    }
    Ok(0)
}

/// Writes GGUF's metadata of a model with so many experts.
pub(super) fn write(json: &Json, experts: u32, writer: &mut MetadataWriter) -> Result<(), String> {
    use Accepted::{Absent, EmptyList, Number};
    refuse_others(json, "mlp_only_layers", &[Absent, EmptyList])?;
    refuse_others(json, "decoder_sparse_step", &[Absent, Number(1)])?;
    refuse_others(json, "moe_layer_freq", &[Absent, Number(1)])?;
    writer.number("expert_count", experts);
    for (names, key) in NUMBERS {
        let given = names.iter().find(|name| !json[**name].is_null());
        if let Some(value) = given.map(|name| whole(json, name)).transpose()? {
            writer.number(key, value);
        }
    }
    if let Some(leading) = leading(json)? {
        writer.number("leading_dense_block_count", leading);
    }
    refuse_last(json)?;
    if let Some(period) = optional(json, "moe_layer_interval")? {
        writer.number("interleave_moe_layer_step", period);
    }
    if let Some(scale) = json["routed_scaling_factor"].as_f64() {
        writer.float("expert_weights_scale", scale);
    }
    if let Some(normalised) = json["norm_topk_prob"].as_bool() {
        writer.bool("expert_weights_norm", normalised);
    }
    if let Some(scores) = scores(json)? {
        writer.number("expert_gating_func", scores);
    }
    // What chooses without regard to groups may have their numbers all the same.
    let grouped = match json["topk_method"].as_str() {
        Some("greedy") => false,
        None | Some("group_limited_greedy" | "noaux_tc") => true,
        Some(other) => {
            return Err(format!(
                "config.json: topk_method {other:?} is not implemented"
            ))
        }
    };
    if let Some(groups) = optional(json, "n_group")?.filter(|_| grouped) {
        writer.number("expert_group_count", groups);
        writer.number("expert_group_used_count", number(json, "topk_group")?);
    }
    Ok(())
}

fn whole(json: &Json, name: &str) -> Result<u32, String> {
    // A list has a number for each layer.
    let value = match json[name].as_array().map(Vec::as_slice) {
        Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => first,
        _ => &json[name],
    };
    match value.as_u64().map(u32::try_from) {
        Some(Ok(value)) => Ok(value),
        _ => Err(format!(
            "config.json: {name} must be a whole number, it is {}",
            json[name]
        )),
    }
}

/// Refuses layers without experts at the end.
fn refuse_last(json: &Json) -> Result<(), String> {
    let Some(last) = json["moe_layer_end_index"].as_i64() else {
        return Ok(());
    };
    match last == -1 || last + 1 == i64::from(number(json, "num_hidden_layers")?) {
        true => Ok(()),
        false => Err(format!(
            "config.json: moe_layer_end_index {last} is not implemented; experts to the last layer are"
        )),
    }
}

/// Blocks without experts at the beginning, as a list or a number says.
fn leading(json: &Json) -> Result<Option<u32>, String> {
    const COUNTS: [&str; 2] = ["first_k_dense_replace", "moe_layer_start_index"];
    let Some(kinds) = json["mlp_layer_types"].as_array() else {
        let given = COUNTS.iter().find(|count| !json[**count].is_null());
        return given.map(|count| whole(json, count)).transpose();
    };
    let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
    if kinds[dense..].iter().any(|kind| kind != "sparse") {
        return Err("config.json: these mlp_layer_types are not implemented".to_string());
    }
    Ok(Some(dense as u32))
}

/// GGUF's number of what the router's numbers become.
fn scores(json: &Json) -> Result<Option<u32>, String> {
    let keys = ["scoring_func", "score_function", "score_func"];
    let Some(key) = keys.iter().find(|key| !json[**key].is_null()) else {
        return Ok(None);
    };
    match json[*key].as_str() {
        Some("softmax") => Ok(Some(1)),
        Some("sigmoid") => Ok(Some(2)),
        _ => Err(format!(
            "config.json: {key} {} is not implemented",
            json[*key]
        )),
    }
}

/// The places of experts' matrices that lie in one tensor with rows of inputs, those of gates before those of what they
/// multiply; `None` for other tensors.
pub(super) fn together(name: &str) -> Option<Places> {
    let (block, part) = part_of_block(name)?;
    let to = |matrix: &str, change: Option<Change>| {
        let name = format!("blk.{block}.{matrix}.weight");
        (TensorName::whole(&name), change)
    };
    match part {
        "mlp.experts.gate_up_proj" => Some(vec![
            to("ffn_gate_exps", Some(Change::Half(0))),
            to("ffn_up_exps", Some(Change::Half(1))),
        ]),
        "mlp.experts.down_proj" => Some(vec![to("ffn_down_exps", None)]),
        _ => None,
    }
}
