//! `config.json`, checked before anything is made from it.

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

/// No number of a configuration is larger.
const MAX_NUMBER: u64 = 1 << 26;
/// Positions that tables are made for, whatever the file claims: they lie in memory from the start.
pub(super) const MAX_CONTEXT: usize = 1 << 17;

/// What sizes things or divides them, and how large it may be.
const COUNTS: [(&str, u64); 32] = [
    ("attention_window_size", MAX_NUMBER),
    ("block_multiple_of", 1 << 16),
    ("conv1d_width", 64),
    ("conv_L_cache", 64),
    ("conv_kernel", 64),
    ("expand", 64),
    ("head_dim", 1024),
    ("hidden_size", 1 << 17),
    ("intermediate_size", 1 << 20),
    ("kv_lora_rank", 1 << 16),
    ("lru_width", 1 << 17),
    ("max_position_embeddings", MAX_NUMBER),
    ("moe_intermediate_size", 1 << 20),
    ("moe_layer_freq", 1024),
    ("n_embd", 1 << 17),
    ("n_group", 4096),
    ("n_groups", 1024),
    ("n_head", 4096),
    ("n_inner", 1 << 20),
    ("n_layer", 1024),
    ("n_positions", MAX_NUMBER),
    ("n_routed_experts", 4096),
    ("num_attention_heads", 4096),
    ("num_experts_per_tok", 4096),
    ("num_heads", 4096),
    ("num_hidden_layers", 1024),
    ("num_key_value_heads", 4096),
    ("qk_rope_head_dim", 1024),
    ("state_size", 1024),
    ("topk_group", 4096),
    ("v_head_dim", 1024),
    ("vocab_size", 4 << 20),
];

/// A checked configuration.
pub(crate) struct Settings {
    json: Json,
    /// Longest sequence that will come, if that is known.
    asked: Option<usize>,
}

type Result<T> = std::result::Result<T, String>;

impl Settings {
    /// Checks a configuration; `asked` is the longest sequence that will come.
    pub(super) fn new(mut json: Json, asked: Option<usize>) -> Result<Self> {
        check_numbers(&json, "")?;
        for (key, most) in COUNTS {
            match json.get(key) {
                None | Some(Json::Null) => {}
                Some(value) if value.as_u64().is_some_and(|n| n > 0 && n <= most) => {}
                // The families without experts write 0.
                Some(value) if key == "num_experts_per_tok" && value.as_u64() == Some(0) => {}
                Some(value) => {
                    return Err(format!(
                        "config.json: {key} must be a whole number from 1 to {most}, it is {value}"
                    ))
                }
            }
        }
        lift_rotary(&mut json);
        if !json["quantization_config"].is_null() {
            return Err(
                "config.json: quantization_config is not implemented for this family".to_string(),
            );
        }
        let settings = Self { json, asked };
        settings.check_heads("hidden_size", "num_attention_heads", "num_key_value_heads")?;
        settings.check_heads("n_embd", "n_head", "n_head")?;
        Ok(settings)
    }

    fn check_heads(&self, width: &str, heads: &str, kv_heads: &str) -> Result<()> {
        let number = |key: &str| self.json[key].as_u64();
        let (Some(width), Some(heads)) = (number(width), number(heads)) else {
            return Ok(());
        };
        let kv_heads = number(kv_heads).unwrap_or(heads);
        let explicit = number("head_dim").is_some();
        if heads % kv_heads != 0 || (!explicit && width % heads != 0) {
            return Err(format!(
                "config.json: a width of {width}, {heads} heads and {kv_heads} key-value heads do not divide evenly"
            ));
        }
        Ok(())
    }

    /// The configuration as candle-transformers has it, with other values of some keys.
    pub(super) fn parse_with<T: DeserializeOwned>(&self, changes: &[(&str, Json)]) -> Result<T> {
        let mut json = self.json.clone();
        for (key, value) in changes {
            json[*key] = value.clone();
        }
        T::deserialize(&json).map_err(|e| format!("config.json: {e}"))
    }

    /// The same of a configuration that has the longest sequence in tokens, which is bounded by what will come.
    pub(super) fn parse_bounded<T: DeserializeOwned>(
        &self,
        changes: &[(&str, Json)],
    ) -> Result<(usize, T)> {
        const POSITIONS: &str = "max_position_embeddings";
        let context = self.context(self.number(POSITIONS)?);
        let bounded = [changes, &[(POSITIONS, context.into())]].concat();
        Ok((context, self.parse_with(&bounded)?))
    }

    pub(super) fn get(&self, key: &str) -> &Json {
        self.json.get(key).unwrap_or(&Json::Null)
    }

    /// A number that has to be there.
    pub(super) fn number(&self, key: &str) -> Result<usize> {
        let value = self.get(key);
        value
            .as_u64()
            .map(|n| n as usize)
            .ok_or_else(|| format!("config.json: {key} must be a whole number, it is {value}"))
    }

    /// A number that may be absent.
    pub(super) fn number_or(&self, key: &str, default: usize) -> Result<usize> {
        match self.get(key) {
            Json::Null => Ok(default),
            _ => self.number(key),
        }
    }

    /// Refuses all values of a key but some.
    pub(super) fn require(&self, key: &str, accepted: &[Json]) -> Result<()> {
        let value = self.get(key);
        match accepted.contains(value) {
            true => Ok(()),
            false => Err(format!(
                "config.json: {key} {value} is not implemented for this family"
            )),
        }
    }

    /// The longest sequence in tokens: that of the file as far as tables go, and no more than will come.
    pub(super) fn context(&self, own: usize) -> usize {
        own.min(MAX_CONTEXT).min(self.asked.unwrap_or(usize::MAX))
    }

    /// Elements that a token adds to the keys and values of attention in all layers.
    pub(super) fn attention_elements(&self) -> Result<usize> {
        let heads = self.number("num_attention_heads")?;
        let kv_heads = self.number_or("num_key_value_heads", heads)?;
        let head_dim = self.number_or("head_dim", self.number("hidden_size")? / heads)?;
        Ok(2 * kv_heads * head_dim * self.number("num_hidden_layers")?)
    }
}

fn check_numbers(json: &Json, path: &str) -> Result<()> {
    match json {
        Json::Number(number) if number.as_u64().is_some_and(|n| n > MAX_NUMBER) => Err(format!(
            "config.json: {path} is {number}, which no model has"
        )),
        Json::Array(values) => values.iter().try_for_each(|v| check_numbers(v, path)),
        Json::Object(values) => values.iter().try_for_each(|(k, v)| check_numbers(v, k)),
        _ => Ok(()),
    }
}

/// Brings the newer `rope_parameters` into the form that candle-transformers reads: `rope_theta`,
/// `partial_rotary_factor` and `rope_scaling`.
fn lift_rotary(json: &mut Json) {
    let Some(parameters) = json.get("rope_parameters").filter(|p| p.is_object()) else {
        return;
    };
    let mut parameters = parameters.clone();
    for key in ["rope_theta", "partial_rotary_factor"] {
        if let Some(value) = parameters.get(key).cloned() {
            json[key] = value;
        }
    }
    let kind = parameters["rope_type"].clone();
    if kind.as_str().is_some_and(|kind| kind != "default") {
        parameters["type"] = kind;
        json["rope_scaling"] = parameters;
    }
}
