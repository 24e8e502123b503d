//! `config.json` in the terms of GGUF's metadata.

use serde_json::Value as Json;
use worker::gguf::Value;

/// The architectures whose weights and arithmetic are those of GGUF's `llama`.
const LLAMA_LIKE: [&str; 2] = ["LlamaForCausalLM", "MistralForCausalLM"];

/// What the rest of the conversion needs of `config.json`, checked.
pub(super) struct Config {
    name: String,
    pub blocks: u32,
    width: u32,
    feed_forward: u32,
    pub heads: u32,
    pub kv_heads: u32,
    head_dim: u32,
    context: u32,
    pub vocab: u32,
    epsilon: f32,
    rope_base: f32,
    pub rope_factors: Option<Vec<f32>>,
    /// Whether the output matrix is the embedding table.
    pub tied: bool,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
}

impl Config {
    /// Reads and checks; the error says what is wrong.
    pub(super) fn read(json: &Json) -> Result<Self, String> {
        let architecture = json["architectures"][0].as_str().unwrap_or("none");
        if !LLAMA_LIKE.contains(&architecture) {
            return Err(format!(
                "config.json: architecture {architecture} is not implemented for safetensors ({} are); take a GGUF file of the model",
                LLAMA_LIKE.join(" and ")
            ));
        }
        refuse(json, "attention_bias", &[Json::Null, false.into()])?;
        refuse(json, "mlp_bias", &[Json::Null, false.into()])?;
        refuse(json, "sliding_window", &[Json::Null])?;
        refuse(json, "quantization_config", &[Json::Null])?;
        refuse(json, "hidden_act", &["silu".into()])?;
        let heads = number(json, "num_attention_heads")?;
        let width = number(json, "hidden_size")?;
        let head_dim = match json.get("head_dim") {
            None | Some(Json::Null) => width / heads,
            Some(_) => number(json, "head_dim")?,
        };
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(format!(
                "config.json: heads of {head_dim} elements; an even number is needed"
            ));
        }
        let kv_heads = match json.get("num_key_value_heads") {
            None | Some(Json::Null) => heads,
            Some(_) => number(json, "num_key_value_heads")?,
        };
        // Newer files gather everything rotary in one object.
        let rope = json.get("rope_parameters").unwrap_or(&Json::Null);
        let base = rope.get("rope_theta").or(json.get("rope_theta"));
        let rope_base = match base {
            None | Some(Json::Null) => 10_000.0,
            Some(base) => base
                .as_f64()
                .ok_or("config.json: rope_theta is no number")?,
        };
        let scaling = json
            .get("rope_scaling")
            .filter(|s| !s.is_null())
            .unwrap_or(rope);
        let ids = |key: &str| -> Vec<u32> {
            match &json[key] {
                Json::Array(ids) => ids.iter().filter_map(id).collect(),
                other => id(other).into_iter().collect(),
            }
        };
        Ok(Self {
            name: json["_name_or_path"]
                .as_str()
                .unwrap_or("model")
                .to_string(),
            blocks: number(json, "num_hidden_layers")?,
            feed_forward: number(json, "intermediate_size")?,
            context: number(json, "max_position_embeddings")?,
            vocab: number(json, "vocab_size")?,
            epsilon: json["rms_norm_eps"]
                .as_f64()
                .ok_or("config.json: rms_norm_eps is missing")? as f32,
            rope_factors: rope_factors(scaling, rope_base, head_dim)?,
            rope_base: rope_base as f32,
            tied: json["tie_word_embeddings"].as_bool().unwrap_or(false),
            bos: ids("bos_token_id").first().copied(),
            eos: ids("eos_token_id"),
            width,
            heads,
            kv_heads,
            head_dim,
        })
    }

    /// The metadata that a GGUF file of the model would have, but for the tokenizer's.
    pub(super) fn metadata(&self) -> Vec<(String, Value)> {
        let text = |v: &str| Value::String(v.to_string());
        let llama = [
            ("block_count", self.blocks),
            ("context_length", self.context),
            ("embedding_length", self.width),
            ("feed_forward_length", self.feed_forward),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", self.head_dim),
            ("attention.value_length", self.head_dim),
            ("rope.dimension_count", self.head_dim),
            ("vocab_size", self.vocab),
        ];
        let mut metadata = vec![
            ("general.architecture".to_string(), text("llama")),
            ("general.name".to_string(), text(&self.name)),
            (
                "llama.attention.layer_norm_rms_epsilon".to_string(),
                Value::F32(self.epsilon),
            ),
            (
                "llama.rope.freq_base".to_string(),
                Value::F32(self.rope_base),
            ),
        ];
        metadata.extend(llama.map(|(key, value)| (format!("llama.{key}"), Value::U32(value))));
        metadata
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

/// The divisors of Llama 3.1's rotary frequencies: none for short wavelengths, `factor` for those beyond the original context, a blend
/// between. (Llama 3.1 model card and reference implementation.)
fn rope_factors(scaling: &Json, base: f64, head_dim: u32) -> Result<Option<Vec<f32>>, String> {
    let kind = scaling.get("rope_type").or(scaling.get("type"));
    match kind.and_then(Json::as_str) {
        None | Some("default") => return Ok(None),
        Some("llama3") => {}
        Some(other) => {
            return Err(format!(
                "config.json: rotary scaling of type {other} is not implemented"
            ))
        }
    }
    let get = |key: &str| {
        scaling[key]
            .as_f64()
            .filter(|v| v.is_finite() && *v > 0.0)
            .ok_or_else(|| format!("config.json: rope_scaling.{key} must be a number above 0"))
    };
    let (factor, low, high) = (
        get("factor")?,
        get("low_freq_factor")?,
        get("high_freq_factor")?,
    );
    let original = get("original_max_position_embeddings")?;
    if high <= low {
        return Err(
            "config.json: rope_scaling.high_freq_factor must be above low_freq_factor".to_string(),
        );
    }
    let divisor = |pair: u32| {
        let wavelength =
            2.0 * std::f64::consts::PI * base.powf(f64::from(2 * pair) / f64::from(head_dim));
        let turns = original / wavelength;
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let blend = (turns - low) / (high - low);
            1.0 / ((1.0 - blend) / factor + blend)
        }
    };
    Ok(Some(
        (0..head_dim / 2).map(|pair| divisor(pair) as f32).collect(),
    ))
}
