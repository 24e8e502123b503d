//! Folders of families with a gated delta rule or short convolutions beside attention: what their `config.json` says in
//! words of its own, and their tensors.
//!
//! Facts are those of transformers' code and of llama.cpp's converter
//! (<https://github.com/ggml-org/llama.cpp/blob/master/conversion/qwen.py>, `lfm2.py` beside it).

use super::change::{Change, Places};
use super::config::{number, optional, refuse_others};
use super::experts;
use super::metadata::MetadataWriter;
use super::names::{part_of_block, TensorName, TensorNames};
use super::picked::Picked;
use crate::architectures::{Accepted, DeltaFolder};
use serde_json::{json, Value as Json};

/// What tensors need of the configuration.
#[derive(Debug, Clone)]
pub(super) struct Delta {
    family: DeltaFolder,
    key_heads: usize,
    value_heads: usize,
    key_size: usize,
    value_size: usize,
}

impl Delta {
    /// The configuration in the usual words, as far as these have a place for it.
    pub(super) fn usual(family: DeltaFolder, json: &Json) -> Result<Json, String> {
        let mut usual = json.clone();
        match family {
            DeltaFolder::Qwen3Next | DeltaFolder::Qwen35 => {
                let fraction = [json, &json["rope_parameters"]]
                    .iter()
                    .find_map(|part| part["partial_rotary_factor"].as_f64());
                usual["partial_rotary_factor"] = fraction.unwrap_or(0.25).into();
                if json["intermediate_size"].is_null() {
                    usual["intermediate_size"] = json["moe_intermediate_size"].clone();
                }
            }
            DeltaFolder::Lfm2 => {
                usual["hidden_act"] = "silu".into();
                usual["rms_norm_eps"] = json["norm_eps"].as_f64().unwrap_or(1e-5).into();
                usual["intermediate_size"] = feed_forward(json)?.into();
                let tied = ["tie_embedding", "tie_word_embeddings"];
                let tied = tied.iter().find_map(|key| json[*key].as_bool());
                usual["tie_word_embeddings"] = tied.unwrap_or(true).into();
                if json["rope_theta"].is_null() && json["rope_parameters"]["rope_theta"].is_null() {
                    usual["rope_theta"] = json!(1e6);
                }
                if !json["num_experts"].is_null() {
                    usual["first_k_dense_replace"] = json["num_dense_layers"].clone();
                    usual["scoring_func"] = "sigmoid".into();
                }
            }
        }
        Ok(usual)
    }

    /// Writes what the usual words have no place for.
    pub(super) fn write(
        family: DeltaFolder,
        json: &Json,
        writer: &mut MetadataWriter,
    ) -> Result<Self, String> {
        let recurrent = recurrent(family, json)?;
        if family == DeltaFolder::Lfm2 {
            refuse_others(
                json,
                "conv_bias",
                &[Accepted::Absent, Accepted::Bool(false)],
            )?;
            writer.number("shortconv.l_cache", number(json, "conv_L_cache")?);
            let heads = optional(json, "num_key_value_heads")?;
            let heads = heads.map_or_else(|| number(json, "num_attention_heads"), Ok)?;
            let heads = recurrent.iter().map(|r| if *r { 0 } else { heads as i32 });
            writer.remove("attention.head_count_kv");
            writer.list("attention.head_count_kv", heads.collect());
            return Ok(Self {
                family,
                key_heads: 0,
                value_heads: 0,
                key_size: 0,
                value_size: 0,
            });
        }
        let size = |key: &str| Ok::<_, String>(number(json, key)? as usize);
        let delta = Self {
            family,
            key_heads: size("linear_num_key_heads")?,
            value_heads: size("linear_num_value_heads")?,
            key_size: size("linear_key_head_dim")?,
            value_size: size("linear_value_head_dim")?,
        };
        if !delta.value_heads.is_multiple_of(delta.key_heads) {
            return Err(format!(
                "config.json: linear_num_value_heads {} cannot share {} key heads evenly",
                delta.value_heads, delta.key_heads
            ));
        }
        writer.number("ssm.conv_kernel", number(json, "linear_conv_kernel_dim")?);
        for (key, value) in [
            ("ssm.state_size", delta.key_size),
            ("ssm.group_count", delta.key_heads),
            ("ssm.time_step_rank", delta.value_heads),
            ("ssm.inner_size", delta.value_heads * delta.value_size),
        ] {
            writer.number(key, value as u32);
        }
        writer.switches("attention.recurrent_layers", recurrent);
        let interval = optional(json, "full_attention_interval")?.unwrap_or(4);
        writer.number("full_attention_interval", interval);
        if family == DeltaFolder::Qwen35 {
            writer.list("rope.dimension_sections", sections(json)?);
        }
        Ok(delta)
    }

    /// Where a tensor goes and what becomes of it: nowhere, to one place or several. `Err` for a name that the family
    /// does not have.
    pub(super) fn places(&self, name: &str, names: &TensorNames, tied: bool) -> Result<Places, ()> {
        let usual = |name: &str| {
            let place = names.place(name, tied)?;
            Ok(place.into_iter().map(|place| (place, None)).collect())
        };
        if self.family == DeltaFolder::Lfm2 {
            return match part_of_block(name) {
                Some((block, "conv.conv.weight")) => {
                    let place = format!("blk.{block}.shortconv.conv.weight");
                    Ok(vec![(TensorName::whole(&place), Some(Change::Squeezed))])
                }
                Some((block, part)) => match part.strip_prefix("conv.") {
                    Some(part) => {
                        let place = format!("blk.{block}.shortconv.{part}");
                        Ok(vec![(TensorName::whole(&place), None)])
                    }
                    None => usual(&format!("model.layers.{block}.{}", lfm2_part(part))),
                },
                None if name == "model.embedding_norm.weight" => usual("model.norm.weight"),
                None => usual(name),
            };
        }
        // What looks at images.
        let beside = ["visual.", "model.visual."];
        if beside.iter().any(|prefix| name.starts_with(prefix)) {
            return Ok(Vec::new());
        }
        let Some((block, part)) = part_of_block(name) else {
            return usual(name);
        };
        let to = |part: &str, change: Option<Change>| {
            (TensorName::whole(&format!("blk.{block}.{part}")), change)
        };
        if let Some(places) = experts::together(name) {
            return Ok(places);
        }
        match part.strip_prefix("linear_attn.") {
            Some(part) => self.linear_attention(part, to),
            None => usual(name),
        }
    }

    fn linear_attention(
        &self,
        part: &str,
        to: impl Fn(&str, Option<Change>) -> (TensorName, Option<Change>),
    ) -> Result<Places, ()> {
        let (keys, values) = (
            self.key_heads * self.key_size,
            self.value_heads * self.value_size,
        );
        let rows = |all: usize, rows: Vec<u32>| Picked {
            rows: Some((all, rows)),
            ..Picked::default()
        };
        let picked = |picked: Picked| Some(Change::Picked(picked));
        // Queries, keys and values behind each other, the latter in GGUF's order of heads.
        let mixed = || {
            let order = self.value_rows(self.value_size).into_iter();
            let values_behind = order.map(|row| row + 2 * keys as u32);
            let order = (0..2 * keys as u32).chain(values_behind).collect();
            picked(rows(2 * keys + values, order))
        };
        let heads = || rows(self.value_heads, self.value_rows(1));
        Ok(vec![match part {
            "in_proj_qkvz.weight" if self.family == DeltaFolder::Qwen3Next => {
                let [mixed, gates] = self.of_groups();
                let all = 2 * keys + 2 * values;
                return Ok(vec![
                    to("attn_qkv.weight", picked(rows(all, mixed))),
                    to("attn_gate.weight", picked(rows(all, gates))),
                ]);
            }
            "in_proj_ba.weight" if self.family == DeltaFolder::Qwen3Next => {
                to("ssm_ba.weight", None)
            }
            "in_proj_qkv.weight" => to("attn_qkv.weight", mixed()),
            "in_proj_z.weight" => {
                let order = rows(values, self.value_rows(self.value_size));
                to("attn_gate.weight", picked(order))
            }
            "in_proj_b.weight" => to("ssm_beta.weight", picked(heads())),
            "in_proj_a.weight" => to("ssm_alpha.weight", picked(heads())),
            "conv1d.weight" => to("ssm_conv1d.weight", mixed()),
            "dt_bias" => to("ssm_dt.bias", picked(heads())),
            "A_log" => {
                let rates = Picked {
                    rates: true,
                    ..heads()
                };
                to("ssm_a", picked(rates))
            }
            // It has no 1 less, unlike other norms.
            "norm.weight" => to("ssm_norm.weight", picked(Picked::default())),
            "out_proj.weight" => {
                let columns = Some((values, self.value_rows(self.value_size)));
                let order = Picked {
                    columns,
                    ..Picked::default()
                };
                to("ssm_out.weight", picked(order))
            }
            _ => return Err(()),
        }])
    }

    /// Rows of heads of values in GGUF's order, `size` of each: Qwen 3.5's go from key head to key head.
    fn value_rows(&self, size: usize) -> Vec<u32> {
        let group = self.value_heads / self.key_heads;
        let head = |place: usize| match self.family {
            DeltaFolder::Qwen35 => place % self.key_heads * group + place / self.key_heads,
            _ => place,
        };
        let heads = (0..self.value_heads).map(head);
        heads
            .flat_map(|head| head * size..(head + 1) * size)
            .map(|row| row as u32)
            .collect()
    }

    /// Rows of queries, keys and values, and of gates, where the file has all of a key head behind each other.
    fn of_groups(&self) -> [Vec<u32>; 2] {
        let (key, values) = (
            self.key_size,
            self.value_heads / self.key_heads * self.value_size,
        );
        let group = 2 * (key + values);
        let part = |start: usize, count: usize| {
            let groups = 0..self.key_heads;
            groups.flat_map(move |g| (g * group + start..).take(count).map(|row| row as u32))
        };
        let mixed = part(0, key)
            .chain(part(key, key))
            .chain(part(2 * key, values));
        [mixed.collect(), part(2 * key + values, values).collect()]
    }
}

/// Which layers are no attention.
fn recurrent(family: DeltaFolder, json: &Json) -> Result<Vec<bool>, String> {
    let layers = number(json, "num_hidden_layers")? as usize;
    let other = match family {
        DeltaFolder::Lfm2 => "conv",
        _ => "linear_attention",
    };
    if let Some(kinds) = json["layer_types"].as_array() {
        let is_recurrent = |kind: &Json| match kind.as_str() {
            Some("full_attention") => Some(false),
            kind => (kind == Some(other)).then_some(true),
        };
        let recurrent: Option<Vec<bool>> = kinds.iter().map(is_recurrent).collect();
        return recurrent.filter(|r| r.len() == layers).ok_or_else(|| {
            format!("config.json: layer_types must be {layers} of full_attention and {other}")
        });
    }
    if family == DeltaFolder::Lfm2 {
        let attention = json["full_attn_idxs"].as_array();
        let attention = attention.ok_or("config.json: layer_types is missing")?;
        return Ok((0..layers)
            .map(|i| !attention.contains(&i.into()))
            .collect());
    }
    let interval = optional(json, "full_attention_interval")?.unwrap_or(4) as usize;
    Ok((1..=layers).map(|i| !i.is_multiple_of(interval)).collect())
}

/// Pairs that turn by time, height and width in texts with images.
fn sections(json: &Json) -> Result<Vec<i32>, String> {
    let sections = &json["rope_parameters"]["mrope_section"];
    let Some(list) = sections.as_array() else {
        return Ok(vec![11, 11, 10, 0]);
    };
    let pairs = list.iter().map(|n| n.as_u64()?.try_into().ok());
    // GGUF has a fourth one.
    let pairs: Option<Vec<i32>> = pairs.chain([Some(0)]).take(4).collect();
    pairs.ok_or_else(|| format!("config.json: mrope_section {sections} must be whole numbers"))
}

/// What the feed-forward part's width in LFM2's configuration comes to.
fn feed_forward(json: &Json) -> Result<u32, String> {
    let key = match json["block_ff_dim"] {
        Json::Null => "intermediate_size",
        _ => "block_ff_dim",
    };
    let size = number(json, key)?;
    let is_moe = !json["num_experts"].is_null();
    if is_moe || json["block_auto_adjust_ff_dim"] == json!(false) {
        return Ok(size);
    }
    let mut size = (2 * u64::from(size) / 3) as u32;
    if let Some(factor) = json["block_ffn_dim_multiplier"].as_f64() {
        size = (factor * f64::from(size)) as u32;
    }
    let multiple = optional(json, "block_multiple_of")?.unwrap_or(256);
    size.checked_next_multiple_of(multiple)
        .ok_or_else(|| format!("config.json: {key} {size} is too large"))
}

/// LFM2's name of a part of a block as most families have it.
fn lfm2_part(part: &str) -> String {
    const NAMES: [(&str, &str); 11] = [
        ("operator_norm.", "input_layernorm."),
        ("ffn_norm.", "pre_feedforward_layernorm."),
        ("self_attn.out_proj.", "self_attn.o_proj."),
        ("self_attn.q_layernorm.", "self_attn.q_norm."),
        ("self_attn.k_layernorm.", "self_attn.k_norm."),
        ("feed_forward.w1.", "mlp.gate_proj."),
        ("feed_forward.w2.", "mlp.down_proj."),
        ("feed_forward.w3.", "mlp.up_proj."),
        ("feed_forward.expert_bias", "mlp.gate.expert_bias"),
        ("feed_forward.gate.", "mlp.gate."),
        ("feed_forward.experts.", "mlp.experts."),
    ];
    let renamed = NAMES
        .iter()
        .find_map(|(from, to)| Some(format!("{to}{}", part.strip_prefix(from)?)));
    renamed.unwrap_or_else(|| part.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(family: DeltaFolder) -> Delta {
        Delta {
            family,
            key_heads: 2,
            value_heads: 4,
            key_size: 1,
            value_size: 1,
        }
    }

    #[test]
    fn rows_go_where_gguf_has_them() {
        assert_eq!(delta(DeltaFolder::Qwen35).value_rows(1), [0, 2, 1, 3]);
        assert_eq!(delta(DeltaFolder::Qwen3Next).value_rows(2).len(), 8);
        // Query, key, two values and two gates of each key head.
        let [mixed, gates] = delta(DeltaFolder::Qwen3Next).of_groups();
        assert_eq!(mixed, [0, 6, 1, 7, 2, 3, 8, 9]);
        assert_eq!(gates, [4, 5, 10, 11]);
    }

    #[test]
    fn widths_of_lfm2_are_adjusted() {
        let adjusted = json!({"block_ff_dim": 12288, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0});
        assert_eq!(feed_forward(&adjusted).unwrap(), 8192);
        let plain = json!({"intermediate_size": 7168, "num_experts": 32});
        assert_eq!(feed_forward(&plain).unwrap(), 7168);
    }

    #[test]
    fn layers_are_listed_or_follow_an_interval() {
        let of = |json: Json| recurrent(DeltaFolder::Qwen35, &json);
        let every = json!({"num_hidden_layers": 4, "full_attention_interval": 2});
        assert_eq!(of(every).unwrap(), [true, false, true, false]);
        let other = json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]});
        assert!(of(other).unwrap_err().contains("layer_types"));
    }
}
