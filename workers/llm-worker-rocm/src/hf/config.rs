//! `config.json` in the terms of GGUF's metadata.

use super::family::{Family, FAMILIES};
use super::rope::Rope;
use crate::engine::sequential::Source;
use serde_json::Value as Json;
use worker::gguf::Value;

/// More tokens than any vocabulary has.
const MAX_VOCABULARY: u32 = 4 << 20;

/// What the rest of the conversion needs of `config.json`, checked.
pub(super) struct Config {
    pub family: Family,
    pub blocks: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub experts: u32,
    pub vocab: u32,
    /// Whether the output matrix is the embedding table.
    pub tied: bool,
    pub rope: Rope,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    metadata: Vec<(String, Value)>,
}

impl Config {
    /// Reads and checks; the error says what is wrong.
    pub(super) fn read(json: &Json) -> Result<Self, String> {
        let name = json["architectures"][0].as_str().unwrap_or("none");
        Self::read_as(json, Family::of(name), name)
    }

    /// The same of a model that may have no output matrix.
    pub(super) fn read_base(json: &Json) -> Result<Self, String> {
        let name = json["architectures"][0].as_str().unwrap_or("none");
        Self::read_as(json, Family::of(name).or(Family::of_base(name)), name)
    }

    fn read_as(json: &Json, family: Option<Family>, name: &str) -> Result<Self, String> {
        let family = family.ok_or_else(|| {
            let own = FAMILIES.iter().map(|family| family.name);
            let known: Vec<&str> = own.chain(Source::architectures()).collect();
            format!(
                "config.json: architecture {name} is not implemented for safetensors ({} are); take a GGUF file of the model",
                known.join(", ")
            )
        })?;
        let outer = json;
        // Models that also see keep their language part in an object of its own.
        let json = json.get("text_config").unwrap_or(json);
        refuse(outer, "quantization_config", &[Json::Null])?;
        refuse_other_activations(json, &family)?;
        let heads = number(json, "num_attention_heads")?;
        let width = number(json, "hidden_size")?;
        let head_dim = match optional(json, "head_dim")? {
            Some(dim) => dim,
            None => width / heads,
        };
        let kv_heads = optional(json, "num_key_value_heads")?.unwrap_or(heads);
        let fraction = [
            &json["partial_rotary_factor"],
            &json["rope_parameters"]["partial_rotary_factor"],
        ];
        let fraction = fraction.iter().find_map(|f| f.as_f64()).unwrap_or(1.0);
        let rotary = (f64::from(head_dim) * fraction) as u32;
        if head_dim == 0
            || !head_dim.is_multiple_of(2)
            || rotary == 0
            || !rotary.is_multiple_of(2)
            || rotary > head_dim
        {
            return Err(format!(
                "config.json: heads of {head_dim} elements, {rotary} of them rotated; even numbers are needed"
            ));
        }
        let rope = Rope::read(json, rotary)?;
        let vocab = number(json, "vocab_size")?;
        if vocab > MAX_VOCABULARY {
            return Err(format!(
                "config.json: vocab_size {vocab}, at most {MAX_VOCABULARY} is allowed"
            ));
        }
        let experts = match optional(json, "num_experts")? {
            Some(experts) => experts,
            None => optional(json, "num_local_experts")?.unwrap_or(0),
        };
        let ids = |key: &str| -> Vec<u32> {
            let value = json.get(key).unwrap_or(&outer[key]);
            match value {
                Json::Array(ids) => ids.iter().filter_map(id).collect(),
                other => id(other).into_iter().collect(),
            }
        };
        let mut writer = Writer {
            architecture: family.architecture,
            metadata: Vec::new(),
        };
        let title = outer["_name_or_path"].as_str().filter(|n| !n.is_empty());
        writer.general("architecture", family.architecture);
        writer.general("name", title.unwrap_or("model"));
        for (key, value) in [
            ("block_count", number(json, "num_hidden_layers")?),
            ("context_length", number(json, "max_position_embeddings")?),
            ("embedding_length", width),
            ("feed_forward_length", number(json, "intermediate_size")?),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("rope.dimension_count", rotary),
            ("vocab_size", vocab),
        ] {
            writer.number(key, value);
        }
        let epsilon = ["rms_norm_eps", "norm_epsilon", "layer_norm_eps"]
            .iter()
            .find_map(|key| json[*key].as_f64())
            .ok_or("config.json: rms_norm_eps is missing")?;
        let epsilon_key = match family.layer_norm {
            true => "attention.layer_norm_epsilon",
            false => "attention.layer_norm_rms_epsilon",
        };
        writer.float(epsilon_key, epsilon);
        rope.write(&mut writer);
        if experts > 0 {
            write_experts(json, &family, experts, &mut writer)?;
        }
        write_own(json, &family, head_dim, &mut writer)?;
        Ok(Self {
            blocks: number(json, "num_hidden_layers")?,
            vocab,
            tied: [json, outer]
                .iter()
                .find_map(|j| j["tie_word_embeddings"].as_bool())
                .unwrap_or(family.tied_by_default),
            bos: ids("bos_token_id").first().copied(),
            eos: ids("eos_token_id"),
            metadata: writer.metadata,
            family,
            heads,
            kv_heads,
            experts,
            rope,
        })
    }

    /// The metadata that a GGUF file of the model would have, but for the tokenizer's.
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        self.metadata.clone()
    }
}

/// Metadata in the making.
pub(super) struct Writer {
    architecture: &'static str,
    metadata: Vec<(String, Value)>,
}

impl Writer {
    fn general(&mut self, key: &str, text: &str) {
        self.metadata
            .push((format!("general.{key}"), Value::String(text.to_string())));
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata
            .push((format!("{}.{key}", self.architecture), value));
    }

    pub(super) fn number(&mut self, key: &str, value: u32) {
        self.set(key, Value::U32(value));
    }

    pub(super) fn float(&mut self, key: &str, value: f64) {
        self.set(key, Value::F32(value as f32));
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.set(key, Value::String(value.to_string()));
    }
}

fn write_experts(
    json: &Json,
    family: &Family,
    experts: u32,
    writer: &mut Writer,
) -> Result<(), String> {
    refuse(
        json,
        "mlp_only_layers",
        &[Json::Null, Json::Array(Vec::new())],
    )?;
    refuse(json, "decoder_sparse_step", &[Json::Null, 1.into()])?;
    // Whether the chosen experts' shares are made to add up to 1 belongs to the architecture in GGUF.
    match family.architecture {
        "qwen2moe" | "olmoe" => refuse(json, "norm_topk_prob", &[Json::Null, false.into()])?,
        "qwen3moe" => refuse(json, "norm_topk_prob", &[true.into()])?,
        _ => {}
    }
    writer.number("expert_count", experts);
    writer.number("expert_used_count", number(json, "num_experts_per_tok")?);
    if let Some(length) = optional(json, "moe_intermediate_size")? {
        writer.number("expert_feed_forward_length", length);
    }
    if let Some(length) = optional(json, "shared_expert_intermediate_size")? {
        writer.number("expert_shared_feed_forward_length", length);
    }
    Ok(())
}

/// What a family has that others do not.
fn write_own(
    json: &Json,
    family: &Family,
    head_dim: u32,
    writer: &mut Writer,
) -> Result<(), String> {
    let float = |key: &str| -> Result<f64, String> {
        json[key]
            .as_f64()
            .ok_or_else(|| format!("config.json: {key} must be a number, it is {}", json[key]))
    };
    match family.architecture {
        "llama" => {
            // The window of Mistral's first models.
            if let Some(window) = optional(json, "sliding_window")? {
                writer.number("attention.sliding_window", window);
            }
        }
        "qwen2" | "qwen2moe" | "qwen3" | "qwen3moe" => {
            refuse(json, "use_sliding_window", &[Json::Null, false.into()])?;
        }
        "granite" => {
            writer.float("attention.scale", float("attention_multiplier")?);
            writer.float("embedding_scale", float("embedding_multiplier")?);
            writer.float("residual_scale", float("residual_multiplier")?);
            writer.float("logit_scale", float("logits_scaling")?);
        }
        "gemma2" | "gemma3" => {
            writer.number("attention.sliding_window", number(json, "sliding_window")?);
            let scalar = float("query_pre_attn_scalar")?;
            if scalar != f64::from(head_dim) {
                writer.float("attention.scale", scalar.sqrt().recip());
            }
            if family.architecture == "gemma2" {
                writer.float("attn_logit_softcapping", float("attn_logit_softcapping")?);
                writer.float("final_logit_softcapping", float("final_logit_softcapping")?);
            } else {
                refuse(json, "attn_logit_softcapping", &[Json::Null])?;
                refuse(json, "final_logit_softcapping", &[Json::Null])?;
                refuse_other_layers(json, 6)?;
            }
        }
        "phi3" => {
            if let Some(window) = optional(json, "sliding_window")? {
                writer.number("attention.sliding_window", window);
            }
        }
        "smollm3" => {
            refuse(json, "use_sliding_window", &[Json::Null, false.into()])?;
            refuse(json, "no_rope_layer_interval", &[Json::Null, 4.into()])?;
        }
        "starcoder2" => {
            refuse(json, "use_bias", &[Json::Null, true.into()])?;
            if let Some(window) = optional(json, "sliding_window")? {
                writer.number("attention.sliding_window", window);
            }
        }
        "ernie4_5" => refuse(json, "use_bias", &[Json::Null, false.into()])?,
        "olmoe" => refuse(json, "clip_qkv", &[Json::Null])?,
        "phi2" => refuse(json, "qk_layernorm", &[Json::Null, false.into()])?,
        "command-r" | "cohere2" => {
            writer.float("logit_scale", float("logit_scale")?);
            refuse(json, "use_qk_norm", &[Json::Null, false.into()])?;
            if family.architecture == "cohere2" {
                writer.number("attention.sliding_window", number(json, "sliding_window")?);
                refuse_other_layers(json, 4)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Every `pattern`th layer sees everything, the others a window; GGUF's architecture fixes the pattern.
fn refuse_other_layers(json: &Json, pattern: usize) -> Result<(), String> {
    refuse(
        json,
        "sliding_window_pattern",
        &[Json::Null, pattern.into()],
    )?;
    let kinds = json["layer_types"].as_array();
    let fits = kinds.into_iter().flatten().enumerate().all(|(i, kind)| {
        let full = (i + 1) % pattern == 0;
        *kind
            == if full {
                "full_attention"
            } else {
                "sliding_attention"
            }
    });
    match fits {
        true => Ok(()),
        false => Err("config.json: these layer_types are not implemented".to_string()),
    }
}

fn refuse_other_activations(json: &Json, family: &Family) -> Result<(), String> {
    let key = match json.get("hidden_activation") {
        Some(value) if !value.is_null() => "hidden_activation",
        _ => "hidden_act",
    };
    match json[key].as_str() {
        Some(activation) if family.activations.contains(&activation) => Ok(()),
        _ => Err(format!(
            "config.json: {key} {} is not implemented for {}",
            json[key], family.name
        )),
    }
}

fn id(json: &Json) -> Option<u32> {
    json.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A key whose other values call for something that is not implemented.
fn refuse(json: &Json, key: &str, accepted: &[Json]) -> Result<(), String> {
    match json.get(key).unwrap_or(&Json::Null) {
        value if accepted.contains(value) => Ok(()),
        value => Err(format!(
            "config.json: {key} {value} is not implemented for safetensors; take a GGUF file of the model"
        )),
    }
}

fn number(json: &Json, key: &str) -> Result<u32, String> {
    match id(&json[key]) {
        Some(value @ 1..) => Ok(value),
        _ => Err(format!(
            "config.json: {key} must be a whole number above 0, it is {}",
            json[key]
        )),
    }
}

/// A number that may be absent or null.
fn optional(json: &Json, key: &str) -> Result<Option<u32>, String> {
    match json.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(_) => number(json, key).map(Some),
    }
}
