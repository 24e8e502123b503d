//! Mamba, Falcon Mamba and Mamba 2.

use super::{inner_of, limits, number, write_limits, write_state_space, Recurrent, Usual, ENDLESS};
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

pub(super) fn usual(json: &Json) -> Usual {
    let mut usual = json.clone();
    let epsilon = json["layer_norm_epsilon"].as_f64().unwrap_or(1e-5);
    usual["rms_norm_eps"] = epsilon.into();
    usual["ssm_head_dim"] = json["head_dim"].clone();
    for (key, value) in [
        ("num_attention_heads", 1),
        ("num_key_value_heads", 1),
        // Of attention that is not there.
        ("head_dim", 2),
        ("intermediate_size", 1),
        ("max_position_embeddings", ENDLESS),
    ] {
        usual[key] = value.into();
    }
    (usual, None)
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let width = number(json, &["hidden_size"])?;
    let kernel = number(json, &["conv_kernel"])?;
    let inner = match json["expand"].as_u64() {
        Some(expand) => (u64::from(width) * expand) as u32,
        None => 2 * width,
    };
    let rank = match json["time_step_rank"].as_str() {
        Some("auto") => width.div_ceil(16),
        _ => number(json, &["time_step_rank"])?,
    };
    let falcon = json["model_type"] == "falcon_mamba";
    let states = number(json, &["state_size"])?;
    write_state_space(writer, [kernel, inner, states, rank, 1]);
    writer.bool("ssm.dt_b_c_rms", falcon);
    if falcon {
        let epsilon = json["mixer_rms_eps"].as_f64().unwrap_or(1e-6);
        writer.float("ssm.norm_rms_epsilon", epsilon);
    }
    without_attention(writer);
    Ok(recurrent)
}

/// Mamba 2's.
pub(super) fn write_second(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let width = number(json, &["hidden_size"])?;
    let heads = number(json, &["num_heads"])?;
    let expand = json["expand"].as_u64().unwrap_or(2) as u32;
    let size = json["ssm_head_dim"].as_u64().unwrap_or(0) as u32;
    let inner = inner_of(heads, size, width.saturating_mul(expand))?;
    let groups = number(json, &["n_groups"])?;
    let states = number(json, &["state_size"])?;
    let kernel = number(json, &["conv_kernel"])?;
    write_state_space(writer, [kernel, inner, states, heads, groups]);
    without_attention(writer);
    write_limits(writer, limits(json));
    Ok(Recurrent {
        groups: groups as usize,
        ..recurrent
    })
}

/// Models of states alone: llama.cpp's values for what they lack.
pub(super) fn without_attention(writer: &mut MetadataWriter) {
    for key in ["attention.head_count", "feed_forward_length"] {
        writer.number(key, 0);
    }
    for key in [
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "rope.freq_base",
    ] {
        writer.remove(key);
    }
}
