//! Sizes of Gemma's later models in `config.json`, which differ between layers, in the terms of GGUF's metadata.

use super::config::{number, optional};
use super::metadata::MetadataWriter;
use serde_json::Value as Json;

/// Writes what layers differ in; `head_dim` is the size of a head in layers with a window.
pub(super) fn write(json: &Json, head_dim: u32, writer: &mut MetadataWriter) -> Result<(), String> {
    let layers = number(json, "num_hidden_layers")?;
    let vocab = number(json, "vocab_size")?;
    if json["per_layer_config"].is_object() && json["global_head_dim"].is_null() {
        return Err(
            "config.json: per_layer_config is not implemented without global_head_dim".to_string(),
        );
    }
    if json["use_bidirectional_attention"] == "all" {
        return Err(
            "config.json: use_bidirectional_attention \"all\" is not implemented".to_string(),
        );
    }
    if let Some(full) = optional(json, "global_head_dim")? {
        for (key, size) in [
            ("attention.key_length", full),
            ("attention.value_length", full),
            ("rope.dimension_count", full),
            ("attention.key_length_swa", head_dim),
            ("attention.value_length_swa", head_dim),
            ("rope.dimension_count_swa", head_dim),
        ] {
            writer.number(key, size);
        }
    }
    if let Some(size) = json["hidden_size_per_layer_input"]
        .as_u64()
        .filter(|s| *s > 0)
    {
        writer.number("embedding_length_per_layer_input", size as u32);
        let of_table = optional(json, "vocab_size_per_layer_input")?.unwrap_or(vocab);
        if of_table > vocab {
            return Err(format!(
                "config.json: vocab_size_per_layer_input {of_table} is above vocab_size {vocab}"
            ));
        }
    }
    let sharing = json["num_kv_shared_layers"].as_u64().unwrap_or(0) as u32;
    if sharing > 0 {
        writer.number("attention.shared_kv_layers", sharing);
    }
    if json["use_double_wide_mlp"] == true {
        let width = number(json, "intermediate_size")?;
        let of = |layer: u32| match layer < layers.saturating_sub(sharing) {
            true => width,
            false => 2 * width,
        };
        let widths: Vec<u32> = (0..layers).map(of).collect();
        writer.numbers("feed_forward_length", &widths);
    }
    let full = optional(json, "num_global_key_value_heads")?;
    if let (Some(full), true) = (full, json["attention_k_eq_v"] == true) {
        let heads = number(json, "num_key_value_heads")?;
        let kinds = json["layer_types"].as_array();
        let kinds = kinds.ok_or("config.json: layer_types is missing")?;
        let of = |kind: &Json| {
            if kind == "full_attention" {
                full
            } else {
                heads
            }
        };
        let heads: Vec<u32> = kinds.iter().map(of).collect();
        writer.numbers("attention.head_count_kv", &heads);
    }
    if let Some(count) = optional(json, "altup_num_inputs")? {
        writer.number("altup.num_inputs", count);
        let active = json["altup_active_idx"].as_u64().unwrap_or(0);
        writer.number("altup.active_idx", active as u32);
        if json["altup_correct_scale"] == false {
            return Err("config.json: altup_correct_scale false is not implemented".to_string());
        }
    }
    if let Some(cap) = json["final_logit_softcapping"].as_f64() {
        writer.float("final_logit_softcapping", cap);
    }
    if let Some(pattern) = json["activation_sparsity_pattern"].as_array() {
        let deviations = pattern.iter().map(|share| {
            let share = share.as_f64().filter(|share| (0.0..1.0).contains(share));
            share.map(|share| match share > 0.0 {
                true => quantile(share) as f32,
                false => f32::NEG_INFINITY,
            })
        });
        let deviations: Option<Vec<f32>> = deviations.collect();
        let deviations = deviations
            .ok_or("config.json: activation_sparsity_pattern has shares from 0 to below 1")?;
        writer.floats("activation_sparsity_scale", deviations);
    }
    Ok(())
}

/// The number that so large a share of the standard normal distribution lies below: its inverse by bisection of a
/// distribution that is integrated by Simpson's rule.
fn quantile(share: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let below = |x: f64| {
        const STEPS: usize = 256;
        let h = x / STEPS as f64;
        let weight = |i: usize| match i {
            0 | STEPS => 1.0,
            i if i % 2 == 1 => 4.0,
            _ => 2.0,
        };
        let sum: f64 = (0..=STEPS).map(|i| weight(i) * density(i as f64 * h)).sum();
        0.5 + sum * h / 3.0
    };
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        match below(middle) < share {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_those_of_tables() {
        for (share, expected) in [
            (0.95, 1.644_853_6),
            (0.5, 0.0),
            (0.975, 1.959_964),
            (0.1, -1.281_551_6),
        ] {
            assert!((quantile(share) - expected).abs() < 1e-6, "{share}");
        }
    }
}
