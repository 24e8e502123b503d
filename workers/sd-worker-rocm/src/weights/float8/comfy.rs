//! What ComfyUI's files say about their layers: JSON for each, in a tensor `….comfy_quant` or all together in the
//! file's metadata.

use crate::weights::file::Float8;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Key of the metadata.
pub const METADATA: &str = "_quantization_metadata";

/// End of the names of the tensors with a layer's settings.
pub const MARK: &str = "comfy_quant";

/// Settings that change nothing here: how products are computed, and what there was before.
const WITHOUT_EFFECT: [&str; 4] = [
    "full_precision_matrix_mult",
    "orig_dtype",
    "orig_shape",
    "scale_dtype",
];

/// A layer's format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// 8-bit floats with scales as they are.
    Float8(Float8),
    /// 8-bit floats (e4m3) with a power of two for each 32 in a row, in tiles.
    Mxfp8,
    /// 4-bit floats with a scale for each 16 in a row, in tiles, and one for all.
    Nvfp4,
}

/// A layer's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// How its weights are stored.
    pub format: Format,
    /// Rows and columns for which there is a scale, if that is said.
    pub area: Option<[usize; 2]>,
}

impl Layer {
    /// Reads one layer's settings.
    ///
    /// # Errors
    /// Names a format or a setting that is not implemented.
    pub fn of_json(json: &[u8]) -> Result<Self, String> {
        let settings: Map<String, Value> =
            worker::json::of_python(json).map_err(|e| format!("{MARK}: {e}"))?;
        Self::of_settings(&settings)
    }

    fn of_settings(settings: &Map<String, Value>) -> Result<Self, String> {
        let format = settings.get("format").and_then(Value::as_str);
        let format = match format.unwrap_or("none") {
            // The last two are those of converters beside ComfyUI.
            "float8_e4m3fn" | "float8_e4m3fn_rowwise" | "float8_e4m3fn_blockwise" => {
                Format::Float8(Float8::E4m3)
            }
            "float8_e5m2" => Format::Float8(Float8::E5m2),
            "mxfp8" => Format::Mxfp8,
            "nvfp4" => Format::Nvfp4,
            other => {
                return Err(format!(
                    "weights in ComfyUI's format {other} are not implemented; float8_e4m3fn, float8_e5m2, mxfp8 and nvfp4 are, and GGUF files"
                ))
            }
        };
        let mut area = None;
        for (name, value) in settings {
            match name.as_str() {
                "format" => {}
                "group_size" | "block_size" => {
                    let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
                    let size = size.filter(|size| *size > 0);
                    let size = size.ok_or_else(|| format!("{name} is {value}"))?;
                    area = Some([size; 2]);
                }
                name if WITHOUT_EFFECT.contains(&name) => {}
                _ if matches!(value, Value::Null | Value::Bool(false)) => {}
                _ => {
                    return Err(format!(
                        "ComfyUI's setting {name} ({value}) of quantized weights is not implemented"
                    ))
                }
            }
        }
        Ok(Self { format, area })
    }
}

/// The layers of a file's metadata.
///
/// # Errors
/// As [`Layer::of_json`], with the layer's name.
pub fn layers(metadata: &str) -> Result<BTreeMap<String, Layer>, String> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        layers: BTreeMap<String, Map<String, Value>>,
    }
    let Metadata { layers } =
        worker::json::of_python(metadata.as_bytes()).map_err(|e| format!("{METADATA}: {e}"))?;
    let layers = layers.into_iter().map(|(name, settings)| {
        let layer = Layer::of_settings(&settings).map_err(|e| format!("layer {name}: {e}"))?;
        Ok((name, layer))
    });
    layers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_followed_or_named() {
        let of = |json: &str| Layer::of_json(json.as_bytes());
        let layer = |format, area| Ok(Layer { format, area });
        let e4m3 = Format::Float8(Float8::E4m3);
        let plain = layer(e4m3, None);
        assert_eq!(of(r#"{"format": "float8_e4m3fn"}"#), plain);
        let more =
            r#"{"format": "float8_e4m3fn", "full_precision_matrix_mult": true, "convrot": false}"#;
        assert_eq!(of(more), plain);
        assert_eq!(
            of(r#"{"format": "float8_e5m2"}"#),
            layer(Format::Float8(Float8::E5m2), None)
        );
        let blocks = r#"{"format": "float8_e4m3fn_blockwise", "group_size": 64}"#;
        assert_eq!(of(blocks), layer(e4m3, Some([64, 64])));
        assert_eq!(of(r#"{"format": "mxfp8"}"#), layer(Format::Mxfp8, None));
        assert_eq!(of(r#"{"format": "nvfp4"}"#), layer(Format::Nvfp4, None));
        for (json, word) in [
            (r#"{"format": "int8_tensorwise"}"#, "int8_tensorwise"),
            (r#"{"format": 8}"#, "format none"),
            ("{}", "format none"),
            ("[]", "comfy_quant"),
            (r#"{"format": "float8_e4m3fn", "convrot": true}"#, "convrot"),
            (
                r#"{"format": "float8_e4m3fn", "group_size": 0}"#,
                "group_size",
            ),
        ] {
            let refused = of(json).unwrap_err();
            assert!(refused.contains(word), "{refused}");
        }
        let all =
            layers(r#"{"format_version": "1.0", "layers": {"a.b": {"format": "float8_e4m3fn"}}}"#);
        assert_eq!(all.unwrap()["a.b"].format, e4m3);
        let refused = layers(r#"{"layers": {"a.b": {"format": "svdquant_w4a4"}}}"#).unwrap_err();
        assert!(
            refused.contains("a.b") && refused.contains("svdquant_w4a4"),
            "{refused}"
        );
        assert!(layers("{}").unwrap_err().contains(METADATA));
    }
}
