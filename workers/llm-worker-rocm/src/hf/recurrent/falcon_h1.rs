//! Falcon-H1.

use super::json::{float, floats};
use super::{inner_of, limits, number, scaled, write_limits, write_state_space, Recurrent};
use crate::hf::change::Change;
use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

/// Its factors, which GGUF has in its matrices.
#[derive(Debug, Clone)]
pub(super) struct Multipliers {
    pub embedding: f64,
    pub output: f64,
    query: f64,
    key: f64,
    attention_output: f64,
    gate: f64,
    down: f64,
    pub state_space_output: f64,
    /// Of gate, channels, inputs and outputs of the state, and steps: rows, and the factor.
    pub state_space_input: Vec<(usize, f64)>,
}

pub(super) fn write(
    recurrent: Recurrent,
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<Recurrent, String> {
    let width = number(json, &["hidden_size"])?;
    let heads = number(json, &["mamba_n_heads"])?;
    let inner = match json["mamba_d_ssm"].as_u64() {
        Some(inner) => inner as u32,
        None => width.saturating_mul(number(json, &["mamba_expand"])?),
    };
    let size = match json["mamba_d_head"].as_u64() {
        Some(size) => size as u32,
        None => inner / heads,
    };
    let inner = inner_of(heads, size, inner)?;
    let groups = number(json, &["mamba_n_groups"])?;
    let states = number(json, &["mamba_d_state"])?;
    let kernel = number(json, &["mamba_d_conv"])?;
    write_state_space(writer, [kernel, inner, states, heads, groups]);
    write_limits(writer, limits(json));
    let sizes = [inner, inner, groups * states, groups * states, heads];
    Ok(Recurrent {
        groups: groups as usize,
        multipliers: Some(Multipliers::read(json, sizes)?),
        ..recurrent
    })
}

impl Multipliers {
    fn read(json: &Json, sizes: [u32; 5]) -> Result<Self, String> {
        let factor = |key: &str| match json[key].is_null() {
            true => Ok(1.0),
            false => float(json, key),
        };
        let list = |key: &str, count: usize| match json[key].is_null() {
            true => Ok(vec![1.0; count]),
            false => floats(json, key, count),
        };
        let input = factor("attention_in_multiplier")?;
        let feed_forward = list("mlp_multipliers", 2)?;
        let state_space = list("ssm_multipliers", 5)?;
        let state_space_in = factor("ssm_in_multiplier")?;
        let runs = sizes.iter().zip(&state_space);
        Ok(Self {
            embedding: factor("embedding_multiplier")?,
            output: factor("lm_head_multiplier")?,
            query: input,
            key: input * factor("key_multiplier")?,
            attention_output: factor("attention_out_multiplier")?,
            gate: feed_forward[0],
            down: feed_forward[1],
            state_space_output: factor("ssm_out_multiplier")?,
            state_space_input: runs
                .map(|(rows, factor)| (*rows as usize, factor * state_space_in))
                .collect(),
        })
    }

    /// What a matrix of attention becomes.
    pub(super) fn attention(&self, part: &str) -> Option<(&'static str, Option<Change>)> {
        Some(match part {
            "self_attn.q_proj.weight" => ("attn_q.weight", scaled(self.query)),
            "self_attn.k_proj.weight" => ("attn_k.weight", scaled(self.key)),
            "self_attn.v_proj.weight" => ("attn_v.weight", scaled(self.query)),
            "self_attn.o_proj.weight" => ("attn_output.weight", scaled(self.attention_output)),
            _ => return None,
        })
    }

    /// The factors of gates and of what comes of the feed-forward part.
    pub(super) fn feed_forward(&self) -> [Option<Change>; 2] {
        [scaled(self.gate), scaled(self.down)]
    }
}
