//! Nemotron-H and Nemotron 3.

use super::{heads_of, kinds, number, write_limits, write_state_space, Kind, Recurrent, Usual};
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

pub(super) fn usual(json: &Json) -> Result<Usual, String> {
    let mut usual = json.clone();
    let kinds = kinds(json)?;
    usual["num_hidden_layers"] = kinds.len().into();
    usual["hidden_act"] = json["mlp_hidden_act"].clone();
    let act = &json["mamba_hidden_act"];
    if !act.is_null() && act != "silu" {
        return Err(format!(
            "config.json: mamba_hidden_act {act} is not implemented"
        ));
    }
    let head = number(json, &["head_dim", "attention_head_dim"])?;
    usual["head_dim"] = head.into();
    if let Some(epsilon) = json["layer_norm_epsilon"].as_f64() {
        usual["rms_norm_eps"] = epsilon.into();
    }
    if kinds.contains(&Kind::Experts) {
        usual["intermediate_size"] = json["moe_intermediate_size"].clone();
        return Ok((usual, Some("nemotron_h_moe")));
    }
    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
        usual[key] = Json::Null;
    }
    Ok((usual, None))
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let heads = number(json, &["mamba_num_heads"])?;
    let size = number(json, &["mamba_head_dim"])?;
    let groups = number(json, &["n_groups", "mamba_n_groups"])?;
    let states = number(json, &["ssm_state_size"])?;
    let kernel = number(json, &["conv_kernel", "mamba_d_conv"])?;
    let inner = heads.saturating_mul(size);
    write_state_space(writer, [kernel, inner, states, heads, groups]);
    let kinds = kinds(json)?;
    let experts = kinds.contains(&Kind::Experts);
    if experts && kinds.contains(&Kind::FeedForward) {
        return Err(
            "config.json: experts beside plain feed-forward layers are not implemented".to_string(),
        );
    }
    heads_of(&kinds, json, writer)?;
    let hidden = number(json, &["intermediate_size"])?;
    let width_of = |kind: &Kind| match kind {
        Kind::FeedForward | Kind::Experts => hidden,
        _ => 0,
    };
    let widths: Vec<u32> = kinds.iter().map(width_of).collect();
    writer.numbers("feed_forward_length", &widths);
    // Its code has this lower limit and no upper one.
    let least = json["time_step_min"].as_f64().unwrap_or(0.001);
    write_limits(writer, (Some(least), None));
    Ok(Recurrent {
        groups: groups as usize,
        experts,
        ..recurrent
    })
}
