//! Adapters in GGUF files, as llama.cpp's `convert_lora_to_gguf.py` writes them: each matrix beside its tensor's name,
//! rows ordered as the base model's file has them.

use super::{bad, pair_up, Halves, Matrix, Part};
use candle_core::Device;
use std::collections::BTreeMap;
use std::path::Path;
use worker::gguf::{self, Gguf, MappedGguf, Weights};
use worker::Result;

pub(super) fn read(path: &Path, base: &Gguf) -> Result<BTreeMap<String, Part>> {
    let file = MappedGguf::open(path)?;
    parts(&file, base).map_err(|reason| bad(path, reason))
}

fn parts(file: &MappedGguf, base: &Gguf) -> std::result::Result<BTreeMap<String, Part>, String> {
    let header = file.header();
    let text = |gguf: &Gguf, key: &str| {
        let text = gguf.get_str(key).map_err(|e| e.to_string())?;
        Ok::<_, String>(text.unwrap_or("none").to_string())
    };
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        let found = text(header, key)?;
        if found != expected {
            return Err(format!(
                "{key} is {found}, not {expected}: it is no LoRA adapter"
            ));
        }
    }
    let (own, of_base) = (
        text(header, "general.architecture")?,
        text(base, "general.architecture")?,
    );
    if own != of_base {
        return Err(format!("it is for {own}, the model is {of_base}"));
    }
    // Adapters that begin at a phrase of the prompt.
    if header.get("adapter.alora.invocation_tokens").is_some() {
        return Err(
            "adapters that are switched on by tokens (aLoRA) are not implemented".to_string(),
        );
    }
    let alpha = header
        .get_f32("adapter.lora.alpha")
        .map_err(|e| e.to_string())?;
    let mut halves = Halves::new();
    for (name, info) in header.tensors() {
        let found = [(".weight.lora_a", 0), (".weight.lora_b", 1)]
            .into_iter()
            .find_map(|(end, half)| Some((name.strip_suffix(end)?, half)));
        // A matrix, or one for each expert.
        let (columns, rows, count) = match info.dims[..] {
            [columns, rows] => (columns as usize, rows as usize, 1),
            [columns, rows, count] => (columns as usize, rows as usize, count as usize),
            _ => (0, 0, 0),
        };
        let Some((tensor, half)) = found.filter(|_| columns * rows * count > 0) else {
            return Err(format!("tensor {name} is not implemented for adapters"));
        };
        let load = || {
            let tensor = gguf::load(file, name, &Device::Cpu).map_err(candle_core::Error::wrap)?;
            tensor.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1()
        };
        let values: Vec<f32> = load().map_err(|e| format!("tensor {name}: {e}"))?;
        let of_tensor = halves.entry(tensor.to_string()).or_default();
        for (expert, values) in values.chunks_exact(columns * rows).enumerate() {
            of_tensor.entry(expert as u32).or_default()[half] = Some(Matrix {
                rows,
                columns,
                values: values.to_vec(),
            });
        }
    }
    pair_up(halves, base, |rank| match alpha {
        Some(alpha) if alpha != 0.0 => alpha / rank as f32,
        _ => 1.0,
    })
}
