//! What a folder's `config.json` says about quantized weights.

use serde_json::Value;

/// How the 8-bit floats of some files are stored, as far as the tensors do not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// Rows and columns for which there is a scale.
    pub area: Option<[usize; 2]>,
    /// Whether every matrix has one.
    pub scaled: bool,
}

impl Layout {
    /// Reads the `quantization_config` of a part's configuration, if it has one.
    ///
    /// # Errors
    /// Names a method or a setting that is not implemented.
    pub fn of_config(config: &Value) -> Result<Self, String> {
        let keys = ["quantization_config", "compression_config"];
        let both = [Some(config), config.get("text_config")];
        let mut found = both.into_iter().flatten();
        let found = found.find_map(|config| keys.iter().find_map(|key| config.get(key)));
        match found {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(settings) => Self::of_settings(settings),
        }
    }

    fn of_settings(settings: &Value) -> Result<Self, String> {
        let text = |key: &str| settings.get(key).and_then(Value::as_str);
        let method = text("quant_method").unwrap_or("no named method");
        let refused = |what: String| {
            Err(format!(
                "weights quantized by {what} are not implemented; 8-bit floats are (quant_method fp8, fbgemm_fp8, compressed-tensors' float-quantized, modelopt's FP8), and GGUF files"
            ))
        };
        let mut layout = Self {
            area: None,
            scaled: true,
        };
        match method {
            "fp8" => layout.area = area(settings.get("weight_block_size"))?,
            "fbgemm_fp8" => {}
            "compressed-tensors" => {
                match text("format") {
                    Some("float-quantized" | "naive-quantized") => {}
                    other => {
                        return refused(format!("{method} ({})", other.unwrap_or("no format")))
                    }
                }
                let groups = settings.get("config_groups").and_then(Value::as_object);
                for group in groups.into_iter().flat_map(|groups| groups.values()) {
                    let Some(weights) = group.get("weights").filter(|w| !w.is_null()) else {
                        continue;
                    };
                    let (kind, bits) = (weights.get("type"), weights.get("num_bits"));
                    if kind.and_then(Value::as_str) != Some("float")
                        || bits.and_then(Value::as_u64) != Some(8)
                    {
                        let or_nothing = |value: Option<&Value>| match value {
                            Some(value) => value.to_string(),
                            None => "nothing".to_string(),
                        };
                        let said = [or_nothing(kind), or_nothing(bits)];
                        return refused(format!(
                            "{method} (type {}, num_bits {})",
                            said[0], said[1]
                        ));
                    }
                    layout.area = area(weights.get("block_structure"))?.or(layout.area);
                }
            }
            "modelopt" => match text("quant_algo") {
                Some("FP8") => {}
                other => {
                    return refused(format!("{method} ({})", other.unwrap_or("no quant_algo")))
                }
            },
            other => return refused(other.to_string()),
        }
        Ok(layout)
    }
}

/// Two numbers, rows and columns.
fn area(value: Option<&Value>) -> Result<Option<[usize; 2]>, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let numbers = value.as_array().map(|numbers| {
        let numbers = numbers.iter().filter_map(Value::as_u64);
        let numbers = numbers.filter_map(|number| usize::try_from(number).ok());
        numbers.filter(|n| *n > 0).collect::<Vec<_>>()
    });
    match numbers.as_deref() {
        Some([rows, columns]) => Ok(Some([*rows, *columns])),
        _ => Err(format!("a block of {value} is not two positive numbers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn methods_are_followed_or_named() {
        let of = |settings: Value| Layout::of_config(&json!({ "quantization_config": settings }));
        let scaled = |area| Ok(Layout { area, scaled: true });
        assert_eq!(Layout::of_config(&json!({})), Ok(Layout::default()));
        assert_eq!(of(Value::Null), Ok(Layout::default()));
        let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 64]});
        assert_eq!(of(fp8.clone()), scaled(Some([128, 64])));
        let inner = json!({"text_config": {"quantization_config": fp8}});
        assert_eq!(Layout::of_config(&inner), scaled(Some([128, 64])));
        assert_eq!(
            of(json!({"quant_method": "fp8", "weight_block_size": null})),
            scaled(None)
        );
        assert_eq!(
            of(json!({"quant_method": "modelopt", "quant_algo": "FP8"})),
            scaled(None)
        );
        let groups = |kind: &str, bits: u64| {
            let weights = json!({"type": kind, "num_bits": bits, "block_structure": [128, 128]});
            of(
                json!({"quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": {"group_0": {"weights": weights}, "group_1": {"weights": null}}}),
            )
        };
        assert_eq!(groups("float", 8), scaled(Some([128, 128])));
        for (refused, word) in [
            (groups("int", 8), "\"int\""),
            (groups("float", 4), "num_bits 4"),
            (of(json!({"quant_method": "torchao"})), "torchao"),
            (of(json!({"quant_method": "bitsandbytes"})), "bitsandbytes"),
            (of(json!({"quant_method": "quanto"})), "quanto"),
            (
                of(json!({"quant_method": "modelopt", "quant_algo": "NVFP4"})),
                "NVFP4",
            ),
            (
                of(json!({"quant_method": "compressed-tensors", "format": "pack-quantized"})),
                "pack-quantized",
            ),
            (of(json!({"load_in_8bit": true})), "no named method"),
            (
                of(json!({"quant_method": "fp8", "weight_block_size": [128]})),
                "[128]",
            ),
            (
                of(json!({"quant_method": "fp8", "weight_block_size": [0, 128]})),
                "[0,128]",
            ),
        ] {
            let refused = refused.unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
