//! Folders of families whose blocks are the usual ones, and whose configurations or tensors have names of their own.
//!
//! Facts are those of transformers' code and of llama.cpp's converters
//! (<https://github.com/ggml-org/llama.cpp/tree/master/conversion>).

use super::change::{Change, Places};
use super::config::{number, optional, refuse_others};
use super::metadata::MetadataWriter;
use super::names::TensorName;
use super::picked::Picked;
use super::recurrent::granite_parts;
use crate::architectures::{Accepted, OlderFolder};
use serde_json::{json, Value as Json};

const OFF: [Accepted; 2] = [Accepted::Absent, Accepted::Bool(false)];
const ON: [Accepted; 2] = [Accepted::Absent, Accepted::Bool(true)];

/// What tensors need of the configuration.
#[derive(Debug, Clone)]
pub(super) struct Older {
    family: OlderFolder,
    heads: usize,
    kv_heads: usize,
    /// Elements of a head.
    size: usize,
}

/// Sets a key that is absent: to the first of others that is there, else to a default.
fn fill(json: &mut Json, key: &str, others: &[&str], default: Json) {
    if json[key].is_null() {
        let mut other = others.iter().map(|other| &json[*other]);
        let found = other.find(|value| !value.is_null()).cloned();
        json[key] = found.unwrap_or(default);
    }
}

impl Older {
    /// The configuration in the usual words.
    pub(super) fn usual(family: OlderFolder, json: &Json) -> Result<Json, String> {
        let mut usual = json.clone();
        match family {
            OlderFolder::Falcon => falcon(&mut usual)?,
            OlderFolder::BigCode | OlderFolder::Gpt2 => gpt(family, &mut usual)?,
            OlderFolder::Neox => {
                let fraction = &json["rope_parameters"]["partial_rotary_factor"];
                let fraction = fraction.as_f64().unwrap_or(0.25).into();
                fill(
                    &mut usual,
                    "partial_rotary_factor",
                    &["rotary_pct"],
                    fraction,
                );
                fill(&mut usual, "rope_theta", &["rotary_emb_base"], Json::Null);
            }
            OlderFolder::StableLm => {
                let fraction = &json["rope_parameters"]["partial_rotary_factor"];
                let fraction = fraction.as_f64().unwrap_or(0.25).into();
                fill(&mut usual, "partial_rotary_factor", &["rope_pct"], fraction);
                fill(&mut usual, "layer_norm_eps", &["norm_eps"], json!(1e-5));
            }
            OlderFolder::Olmo => fill(&mut usual, "layer_norm_eps", &[], json!(1e-5)),
            OlderFolder::Exaone => {
                fill(&mut usual, "num_hidden_layers", &["num_layers"], Json::Null);
                fill(
                    &mut usual,
                    "hidden_act",
                    &["activation_function"],
                    Json::Null,
                );
                fill(
                    &mut usual,
                    "rms_norm_eps",
                    &["layer_norm_epsilon"],
                    Json::Null,
                );
            }
            OlderFolder::GraniteMoe => {
                let width = json["shared_intermediate_size"].clone();
                usual["shared_expert_intermediate_size"] = width;
            }
            OlderFolder::InternLm2 | OlderFolder::Ling => {}
        }
        Ok(usual)
    }

    /// Writes what the usual words have no place for; `json` is in them otherwise.
    pub(super) fn write(
        family: OlderFolder,
        json: &Json,
        writer: &mut MetadataWriter,
    ) -> Result<Self, String> {
        if family == OlderFolder::Neox {
            let parallel = json["use_parallel_residual"].as_bool().unwrap_or(true);
            writer.bool("use_parallel_residual", parallel);
        }
        if family == OlderFolder::Olmo {
            if let Some(bound) = json["clip_qkv"].as_f64() {
                writer.float("attention.clamp_kqv", bound);
            }
        }
        let heads = number(json, "num_attention_heads")?;
        let size = match optional(json, "head_dim")? {
            Some(size) => size,
            None => number(json, "hidden_size")? / heads,
        };
        let kv_heads = optional(json, "num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "config.json: {heads} heads cannot share {kv_heads} of keys and values evenly"
            ));
        }
        Ok(Self {
            family,
            heads: heads as usize,
            kv_heads: kv_heads as usize,
            size: size as usize,
        })
    }

    /// Where a tensor goes and what becomes of it, where the usual names do not say it.
    pub(super) fn places(&self, name: &str, tied: bool) -> Option<Places> {
        let prefixes = ["transformer.", "gpt_neox.", "model."];
        let inner = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
        let inner = inner.unwrap_or(name);
        let whole = |name: &str| Some(vec![(TensorName::whole(name), None)]);
        match inner {
            "wte.weight"
            | "embed_in.weight"
            | "tok_embeddings.weight"
            | "word_embeddings.weight" => return whole("token_embd.weight"),
            "wpe.weight" => return whole("position_embd.weight"),
            "ln_f.weight" | "final_layer_norm.weight" => return whole("output_norm.weight"),
            "ln_f.bias" | "final_layer_norm.bias" => return whole("output_norm.bias"),
            "embed_out.weight" | "output.weight" if tied => return Some(Vec::new()),
            "embed_out.weight" | "output.weight" => return whole("output.weight"),
            _ => {}
        }
        let block = inner.strip_prefix("h.").or(inner.strip_prefix("layers."))?;
        let (block, part) = block.split_once('.')?;
        let to = |(part, change): (String, Option<Change>)| {
            let name = format!("blk.{block}.{part}");
            (TensorName::whole(&name), change)
        };
        Some(self.part(part)?.into_iter().map(to).collect())
    }

    /// What a part of a block becomes.
    fn part(&self, part: &str) -> Option<Vec<(String, Option<Change>)>> {
        // What follows from the configuration.
        const DERIVED: [&str; 3] = [".bias", ".masked_bias", ".rotary_emb.inv_freq"];
        let attention = ["attn", "attention", "self_attention"];
        let rest = attention.iter().find_map(|name| part.strip_prefix(name));
        if rest.is_some_and(|rest| DERIVED.contains(&rest)) {
            return Some(Vec::new());
        }
        if self.family == OlderFolder::GraniteMoe {
            let parts = granite_parts(part, true)?.into_iter();
            return Some(
                parts
                    .map(|(name, change)| (name.to_string(), change))
                    .collect(),
            );
        }
        let (part, kind) = part.rsplit_once('.')?;
        let named = |name: &str| format!("{name}.{kind}");
        let picked = |name: &str, rows: Vec<u32>| {
            let change = Change::Picked(Picked {
                rows: Some(((self.heads + 2 * self.kv_heads) * self.size, rows)),
                ..Picked::default()
            });
            (named(name), Some(change))
        };
        let apart = |[query, key, value]: [Vec<u32>; 3]| {
            Some(vec![
                picked("attn_q", self.in_pairs(query)),
                picked("attn_k", self.in_pairs(key)),
                picked("attn_v", value),
            ])
        };
        match (self.family, part) {
            (OlderFolder::Falcon, "self_attention.query_key_value")
            | (OlderFolder::Neox, "attention.query_key_value") => {
                return Some(vec![picked("attn_qkv", self.grouped().concat())])
            }
            (OlderFolder::InternLm2, "attention.wqkv") => return apart(self.grouped()),
            (OlderFolder::Ling, "attention.query_key_value") => return apart(self.behind()),
            _ => {}
        }
        let name = match part {
            "ln_1" | "ln_mlp" | "attention_norm" | "input_layernorm" => "attn_norm",
            "ln_attn" => "attn_norm_2",
            "ln_2" | "ffn_norm" | "post_attention_layernorm" => "ffn_norm",
            "attn.c_attn" => "attn_qkv",
            "attn.c_proj"
            | "self_attention.dense"
            | "attention.dense"
            | "attention.wo"
            | "attn.attention.out_proj" => "attn_output",
            "attn.attention.q_proj" => "attn_q",
            "attn.attention.k_proj" => "attn_k",
            "attn.attention.v_proj" => "attn_v",
            "mlp.c_fc" | "mlp.c_fc_1" | "mlp.dense_h_to_4h" | "feed_forward.w3" => "ffn_up",
            "mlp.c_fc_0" | "feed_forward.w1" => "ffn_gate",
            "mlp.c_proj" | "mlp.dense_4h_to_h" | "feed_forward.w2" => "ffn_down",
            _ => return None,
        };
        // GPT-2's matrices have rows of inputs.
        let matrix = part.contains(".c_") && kind == "weight";
        let turned = self.family == OlderFolder::Gpt2 && matrix;
        Some(vec![(named(name), turned.then_some(Change::Transposed))])
    }

    /// Rows of queries, keys and values, where the file has those of each head of keys and values behind each other.
    fn grouped(&self) -> [Vec<u32>; 3] {
        let queries = self.heads / self.kv_heads;
        let rows = |first: usize, heads: usize| -> Vec<u32> {
            let groups = 0..self.kv_heads;
            let starts = groups.map(|group| (group * (queries + 2) + first) * self.size);
            starts
                .flat_map(|start| start..start + heads * self.size)
                .map(|row| row as u32)
                .collect()
        };
        [rows(0, queries), rows(queries, 1), rows(queries + 1, 1)]
    }

    /// The same where it has all queries before all keys, and these before all values.
    fn behind(&self) -> [Vec<u32>; 3] {
        let rows = |first: usize, heads: usize| -> Vec<u32> {
            let rows = first * self.size..(first + heads) * self.size;
            rows.map(|row| row as u32).collect()
        };
        [
            rows(0, self.heads),
            rows(self.heads, self.kv_heads),
            rows(self.heads + self.kv_heads, self.kv_heads),
        ]
    }

    /// Rows of heads whose halves turn, as GGUF has them, whose neighbours turn.
    fn in_pairs(&self, rows: Vec<u32>) -> Vec<u32> {
        let half = self.size / 2;
        let pairs = |head: &[u32]| -> Vec<u32> {
            let pairs = head[..half].iter().zip(&head[half..]);
            pairs.flat_map(|(a, b)| [*a, *b]).collect()
        };
        rows.chunks_exact(self.size).flat_map(pairs).collect()
    }
}

/// Falcon of either architecture, with rotary positions.
fn falcon(json: &mut Json) -> Result<(), String> {
    refuse_others(json, "alibi", &OFF)?;
    fill(json, "num_attention_heads", &["n_head"], Json::Null);
    fill(json, "num_hidden_layers", &["n_layer"], Json::Null);
    fill(json, "hidden_size", &["n_embed"], Json::Null);
    if json["new_decoder_architecture"] == true {
        let heads = json["num_attention_heads"].clone();
        fill(
            json,
            "num_key_value_heads",
            &["num_kv_heads", "n_head_kv"],
            heads,
        );
    } else {
        // Others of the first architecture have heads of keys and values of their own, or one part behind the other.
        refuse_others(json, "multi_query", &ON)?;
        refuse_others(json, "parallel_attn", &ON)?;
        json["num_key_value_heads"] = 1.into();
    }
    let width = number(json, "hidden_size")?;
    let hidden = width.saturating_mul(4).into();
    fill(json, "intermediate_size", &["ffn_hidden_size"], hidden);
    fill(json, "hidden_act", &["activation"], "gelu".into());
    fill(json, "layer_norm_eps", &["layer_norm_epsilon"], json!(1e-5));
    fill(json, "max_position_embeddings", &[], 2048.into());
    Ok(())
}

/// GPT-2, and StarCoder with one head of keys and values.
fn gpt(family: OlderFolder, json: &mut Json) -> Result<(), String> {
    refuse_others(json, "scale_attn_weights", &ON)?;
    refuse_others(json, "scale_attn_by_inverse_layer_idx", &OFF)?;
    refuse_others(json, "add_cross_attention", &OFF)?;
    for (key, others) in [
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("hidden_size", "n_embd"),
        ("max_position_embeddings", "n_positions"),
        ("intermediate_size", "n_inner"),
    ] {
        fill(json, key, &[others], Json::Null);
    }
    if family == OlderFolder::BigCode {
        refuse_others(json, "multi_query", &ON)?;
        json["num_key_value_heads"] = 1.into();
    }
    let hidden = number(json, "hidden_size")?.saturating_mul(4).into();
    fill(json, "intermediate_size", &[], hidden);
    fill(
        json,
        "hidden_act",
        &["activation_function"],
        "gelu_new".into(),
    );
    fill(json, "layer_norm_eps", &["layer_norm_epsilon"], json!(1e-5));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_queries_keys_and_values_are_found() {
        let older = Older {
            family: OlderFolder::InternLm2,
            heads: 4,
            kv_heads: 2,
            size: 2,
        };
        let [query, key, value] = older.grouped();
        assert_eq!(query, [0, 1, 2, 3, 8, 9, 10, 11]);
        assert_eq!((key, value), (vec![4, 5, 12, 13], vec![6, 7, 14, 15]));
        let [_, key, value] = older.behind();
        assert_eq!((key, value), (vec![8, 9, 10, 11], vec![12, 13, 14, 15]));
        let wide = Older { size: 4, ..older };
        assert_eq!(wide.in_pairs((0..8).collect()), [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn what_follows_from_the_configuration_goes_nowhere() {
        let older = Older {
            family: OlderFolder::Neox,
            heads: 2,
            kv_heads: 2,
            size: 4,
        };
        let places = |name: &str| older.places(name, false).map(|places| places.len());
        assert_eq!(places("gpt_neox.layers.1.attention.masked_bias"), Some(0));
        assert_eq!(places("gpt_neox.layers.1.attention.dense.bias"), Some(1));
        assert_eq!(places("embed_out.weight"), Some(1));
        assert_eq!(older.places("embed_out.weight", true), Some(Vec::new()));
        assert_eq!(places("gpt_neox.layers.1.mlp.other.weight"), None);
    }
}
