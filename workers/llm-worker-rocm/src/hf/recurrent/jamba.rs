//! Jamba.

use super::{heads_of, kinds, number, write_state_space, Recurrent, Usual};
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

pub(super) fn usual(json: &Json) -> Result<Usual, String> {
    let mut usual = json.clone();
    let layers = number(json, &["num_hidden_layers"])?;
    let period = number(json, &["attn_layer_period"])?;
    let offset = json["attn_layer_offset"].as_u64().unwrap_or(0);
    let kind = |layer: u32| match u64::from(layer % period) == offset {
        true => "full_attention",
        false => "linear_attention",
    };
    let kinds: Vec<&str> = (0..layers).map(kind).collect();
    usual["layer_types"] = kinds.into();
    Ok((usual, None))
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let width = number(json, &["hidden_size"])?;
    let inner = width.saturating_mul(number(json, &["mamba_expand"])?);
    let rank = match json["mamba_dt_rank"].as_u64() {
        Some(_) => number(json, &["mamba_dt_rank"])?,
        None => width.div_ceil(16),
    };
    let kernel = number(json, &["mamba_d_conv"])?;
    let states = number(json, &["mamba_d_state"])?;
    write_state_space(writer, [kernel, inner, states, rank, 1]);
    heads_of(&kinds(json)?, json, writer)?;
    Ok(recurrent)
}
