//! What the layers of a model differ in, as `config.json` says it, in the terms of GGUF's metadata.

use super::config::{number, optional};
use super::metadata::MetadataWriter;
use serde_json::Value as Json;

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// Writes the window and the layers that have it, if there is a window.
pub(super) fn write_windows(
    json: &Json,
    period: usize,
    writer: &mut MetadataWriter,
) -> Result<(), String> {
    let windows = windows(json, period)?;
    if let Some(window) = optional(json, "sliding_window")? {
        writer.number("attention.sliding_window", window);
        writer.switches("attention.sliding_window_pattern", windows);
        return Ok(());
    }
    let listed = json["layer_types"].is_array();
    match listed && windows.contains(&true) {
        true => {
            Err("config.json: layer_types has windows, but there is no sliding_window".to_string())
        }
        false => Ok(()),
    }
}

/// Which layers have a window.
fn windows(json: &Json, period: usize) -> Result<Vec<bool>, String> {
    let layers = number(json, "num_hidden_layers")? as usize;
    if let Some(kinds) = json["layer_types"].as_array() {
        let window = |kind: &Json| match kind.as_str() {
            Some(SLIDING) => Some(true),
            Some(FULL) => Some(false),
            _ => None,
        };
        let windows: Option<Vec<bool>> = kinds.iter().map(window).collect();
        return windows.filter(|w| w.len() == layers).ok_or_else(|| {
            format!("config.json: layer_types must be {layers} of {SLIDING} and {FULL}")
        });
    }
    let pattern = &json["sliding_window_pattern"];
    if let Some(letters) = pattern.as_str() {
        let letters: Vec<char> = letters.chars().collect();
        if letters.is_empty() || letters.iter().any(|l| !"LG".contains(*l)) {
            return Err(format!(
                "config.json: sliding_window_pattern {pattern} must be a number or letters L and G"
            ));
        }
        return Ok((0..layers)
            .map(|i| letters[i % letters.len()] == 'L')
            .collect());
    }
    let period = optional(json, "sliding_window_pattern")?.map_or(period, |p| p as usize);
    Ok((0..layers)
        .map(|i| !(i + 1).is_multiple_of(period))
        .collect())
}

/// Writes the layers that turn queries and keys, unless they are those that GGUF's readers take by themselves: all but
/// each `period`-th.
pub(super) fn write_turned(
    json: &Json,
    period: u32,
    writer: &mut MetadataWriter,
) -> Result<(), String> {
    let layers = number(json, "num_hidden_layers")?;
    let all_but = |period: u32| -> Vec<bool> {
        (1..=layers)
            .map(|layer| !layer.is_multiple_of(period))
            .collect()
    };
    // An empty list is none.
    let list = &json["no_rope_layers"];
    let turned = match list {
        _ if list.is_null() || list.as_array().is_some_and(Vec::is_empty) => {
            all_but(optional(json, "no_rope_layer_interval")?.unwrap_or(period))
        }
        Json::Array(list) => {
            let switch = |turns: &Json| match turns.as_u64() {
                Some(turns @ 0..=1) => Some(turns == 1),
                _ => turns.as_bool(),
            };
            let turned: Option<Vec<bool>> = list.iter().map(switch).collect();
            turned
                .filter(|t| t.len() == layers as usize)
                .ok_or_else(|| format!("config.json: no_rope_layers must be {layers} of 0 and 1"))?
        }
        other => return Err(format!("config.json: no_rope_layers {other} is no list")),
    };
    if turned != all_but(period) {
        writer.switches("attention.rotary_pattern", turned);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn windows_are_listed_or_follow_a_pattern() {
        let of = |json: Json| windows(&json, 4);
        let four =
            |pattern: Json| json!({"num_hidden_layers": 4, "sliding_window_pattern": pattern});
        assert_eq!(of(four(json!("LLG"))).unwrap(), [true, true, false, true]);
        assert_eq!(of(four(json!(2))).unwrap(), [true, false, true, false]);
        assert_eq!(of(four(Json::Null)).unwrap(), [true, true, true, false]);
        assert!(of(four(json!("LXG"))).unwrap_err().contains("LXG"));
        let listed = json!({"num_hidden_layers": 2, "layer_types": [FULL, SLIDING]});
        assert_eq!(of(listed).unwrap(), [false, true]);
        let other = json!({"num_hidden_layers": 2, "layer_types": [FULL, "chunked_attention"]});
        assert!(of(other).unwrap_err().contains("layer_types"));
        let mut writer = MetadataWriter::new("exaone4");
        let no_width = json!({"num_hidden_layers": 2, "layer_types": [FULL, SLIDING]});
        assert!(write_windows(&no_width, 4, &mut writer)
            .unwrap_err()
            .contains("sliding_window"));
    }

    #[test]
    fn layers_that_turn_are_written_where_no_reader_knows_them() {
        let written = |json: Json| {
            let mut writer = MetadataWriter::new("smollm3");
            write_turned(&json, 4, &mut writer).map(|()| writer.finish().len())
        };
        assert_eq!(written(json!({"num_hidden_layers": 4})).unwrap(), 0);
        let usual = json!({"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]});
        assert_eq!(written(usual).unwrap(), 0);
        let interval = json!({"num_hidden_layers": 4, "no_rope_layer_interval": 2});
        assert_eq!(written(interval).unwrap(), 1);
        let short = json!({"num_hidden_layers": 4, "no_rope_layers": [1, 0]});
        assert!(written(short).unwrap_err().contains("no_rope_layers"));
        let number = json!({"num_hidden_layers": 1, "no_rope_layers": [2]});
        assert!(written(number).is_err());
    }
}
