//! Rows by the names in files.

use super::row::{ArchitectureRow, Engine};
use super::rows::{decoders, ENCODERS, SPEECH};
use crate::engine::decoder::{ConfigError, DecoderConfig};
use serde_json::Value as Json;
use worker::gguf::Gguf;

/// Every row: the decoder's, encoders, speech to text.
pub fn rows() -> impl Iterator<Item = &'static ArchitectureRow> {
    decoders().chain(ENCODERS).chain(SPEECH)
}

/// The row of `general.architecture` in a GGUF file.
pub fn by_gguf_name(name: &str) -> Option<&'static ArchitectureRow> {
    rows().find(|row| row.gguf == Some(name))
}

/// The row of a name in `architectures` of `config.json`.
pub fn by_folder_name(name: &str) -> Option<&'static ArchitectureRow> {
    rows().find(|row| row.folders.contains(&name))
}

/// The decoder's row of a model without output matrix, as embedding models are stored: `Qwen3Model` for
/// `Qwen3ForCausalLM`.
pub fn by_base_name(name: &str) -> Option<&'static ArchitectureRow> {
    let base = name.strip_suffix("Model")?;
    decoders().find(|row| {
        let mut folders = row.folders.iter();
        folders.any(|folder| folder.strip_suffix("ForCausalLM") == Some(base))
    })
}

/// The decoder's configuration of a file in GGUF's terms, its tensors checked.
///
/// # Errors
/// [`ConfigError`] naming the architecture, key, tensor or feature.
pub fn decoder_config(header: &Gguf) -> Result<DecoderConfig, ConfigError> {
    let name = header.require_str("general.architecture")?;
    let (traits, _) = by_gguf_name(name)
        .and_then(ArchitectureRow::decoder_parts)
        .ok_or_else(|| ConfigError::Unsupported(format!("architecture {name:?}")))?;
    let config = DecoderConfig::from_gguf(header, traits)?;
    config.check_tensors(header)?;
    Ok(config)
}

/// Names of the architectures that folders of models that answer may have.
pub fn folder_names() -> impl Iterator<Item = &'static str> {
    let answers =
        |row: &&ArchitectureRow| !matches!(row.engine, Engine::Encoder(_) | Engine::Speech);
    rows().filter(answers).flat_map(|row| row.folders).copied()
}

/// The name of the architecture in a configuration, `none` if there is none.
pub fn name_in_config(config: &Json) -> &str {
    config["architectures"][0].as_str().unwrap_or("none")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_stands_for_two_rows() {
        let mut seen = HashSet::new();
        for row in rows() {
            assert!(row.gguf.is_some() || !row.folders.is_empty(), "{row:?}");
            for name in row.gguf.iter().chain(row.folders) {
                assert!(seen.insert(*name), "{name} stands in two rows");
            }
        }
    }

    #[test]
    fn models_without_output_matrix_are_found_by_their_base() {
        let gguf = |name| by_base_name(name).and_then(|row| row.gguf);
        assert_eq!(gguf("Qwen3Model"), Some("qwen3"));
        assert_eq!(gguf("LlamaModel"), Some("llama"));
        assert_eq!(gguf("FalconModel"), Some("falcon"));
        assert_eq!(gguf("MptModel"), None);
        assert_eq!(gguf("Qwen3"), None);
    }
}
