//! What configurations have in common.

use crate::hf::metadata::MetadataWriter;
use serde_json::Value as Json;

/// A block's kind in `config.json`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Attention,
    Recurrent,
    FeedForward,
    Experts,
}

pub(super) fn get<'a>(json: &'a Json, keys: &[&str]) -> &'a Json {
    let mut found = keys.iter().map(|key| &json[*key]).filter(|v| !v.is_null());
    found.next().unwrap_or(&Json::Null)
}

/// A whole number above 0 under the first of these keys.
pub(super) fn number(json: &Json, keys: &[&str]) -> Result<u32, String> {
    let value = get(json, keys);
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
    number.filter(|n| *n > 0).ok_or_else(|| {
        format!(
            "config.json: {} must be a whole number above 0, it is {value}",
            keys[0]
        )
    })
}

pub(super) fn float(json: &Json, key: &str) -> Result<f64, String> {
    let value = json[key].as_f64();
    value.ok_or_else(|| format!("config.json: {key} must be a number, it is {}", json[key]))
}

/// Numbers of a list.
pub(super) fn floats(json: &Json, key: &str, count: usize) -> Result<Vec<f64>, String> {
    let values = json[key].as_array().into_iter().flatten();
    let values: Vec<f64> = values.filter_map(Json::as_f64).collect();
    match values.len() == count {
        true => Ok(values),
        false => Err(format!("config.json: {key} must be {count} numbers")),
    }
}

/// Steps' limits; infinity is no number in JSON.
pub(super) fn limits(json: &Json) -> (Option<f64>, Option<f64>) {
    let limits = &json["time_step_limit"];
    let limit = |at: usize| limits[at].as_f64().filter(|v| v.is_finite() && *v > 0.0);
    (limit(0), limit(1))
}

/// Writes them, as far as there are some.
pub(super) fn write_limits(writer: &mut MetadataWriter, (least, most): (Option<f64>, Option<f64>)) {
    for (key, limit) in [("ssm.time_step_min", least), ("ssm.time_step_max", most)] {
        if let Some(limit) = limit {
            writer.float(key, limit);
        }
    }
}

/// Writes kernel, channels, states, rank and groups.
pub(super) fn write_state_space(writer: &mut MetadataWriter, sizes: [u32; 5]) {
    for (key, size) in [
        ("ssm.conv_kernel", sizes[0]),
        ("ssm.inner_size", sizes[1]),
        ("ssm.state_size", sizes[2]),
        ("ssm.time_step_rank", sizes[3]),
        ("ssm.group_count", sizes[4]),
    ] {
        writer.number(key, size);
    }
}

/// The channels of heads of a size, which must be so many.
pub(super) fn inner_of(heads: u32, size: u32, inner: u32) -> Result<u32, String> {
    match heads.checked_mul(size) {
        Some(channels) if channels == inner => Ok(inner),
        _ => Err(format!(
            "config.json: {heads} heads of {size} do not make the {inner} channels of the state space"
        )),
    }
}

/// What each layer is.
pub(super) fn kinds(json: &Json) -> Result<Vec<Kind>, String> {
    let unknown = |what: &dyn std::fmt::Display| {
        format!("config.json: layers of kind {what} are not implemented")
    };
    if let Some(pattern) = json["hybrid_override_pattern"].as_str() {
        let kind = |letter| match letter {
            'M' => Ok(Kind::Recurrent),
            '*' => Ok(Kind::Attention),
            '-' => Ok(Kind::FeedForward),
            'E' => Ok(Kind::Experts),
            other => Err(unknown(&other)),
        };
        return pattern.chars().map(kind).collect();
    }
    let list = get(json, &["layer_types", "layers_block_type"]).as_array();
    let list = list.ok_or("config.json: layer_types is missing")?;
    let kind = |kind: &Json| match kind.as_str() {
        Some("mamba" | "linear_attention" | "recurrent") => Ok(Kind::Recurrent),
        Some("attention" | "full_attention" | "sliding_attention") => Ok(Kind::Attention),
        Some("mlp") => Ok(Kind::FeedForward),
        Some("moe") => Ok(Kind::Experts),
        _ => Err(unknown(kind)),
    };
    list.iter().map(kind).collect()
}

/// Writes the heads of keys and values of each layer: 0 where there is no attention.
pub(super) fn heads_of(
    kinds: &[Kind],
    json: &Json,
    writer: &mut MetadataWriter,
) -> Result<(), String> {
    let layers = number(json, &["num_hidden_layers"])?;
    if kinds.len() != layers as usize {
        return Err(format!(
            "config.json: kinds of {} layers, the model has {layers}",
            kinds.len()
        ));
    }
    let heads = number(json, &["num_key_value_heads", "num_attention_heads"])?;
    let of = |kind: &Kind| if *kind == Kind::Attention { heads } else { 0 };
    let heads: Vec<u32> = kinds.iter().map(of).collect();
    writer.numbers("attention.head_count_kv", &heads);
    Ok(())
}
