//! Families of windows, sinks, and caches that layers share.

use super::usual::{GEMMA, GEMMA_FOLDER, HALVES, LLAMA, NEIGHBOURS, USUAL, WINDOW};
use crate::architectures::folder::{Accepted, ConfigRule, ExpertFiles, FolderTraits};
use crate::architectures::row::ArchitectureRow;
use crate::engine::decoder::{ClampedGate, DecoderTraits, Layers, Routing, Temperature};
use serde_json::Value as Json;
use Accepted::{Absent, Bool, Number};
use ConfigRule::{
    Check, Count, FullAttentionEvery, LayerSizes, Only, OnlyFloat, OptionalCount, TurnedLayers,
    Windows,
};

const BOTH_FORMATS: &str = "transformers, both formats";

/// Experts of the model of Llama 4 that has no norms of queries and keys.
const LARGEST_LLAMA_4: u64 = 128;

/// See the module.
pub(super) static ROWS: &[ArchitectureRow] = &[
    ArchitectureRow::decoder(
        "gpt-oss",
        "gpt-oss",
        DecoderTraits {
            layers: Layers::Windowed {
                period: 2,
                local_base: None,
                positionless: false,
            },
            sinks: true,
            clamped_gates: Some(ClampedGate {
                alpha: 1.702,
                limit: 7.0,
            }),
            yarn_whole_pairs: false,
            ..HALVES
        },
    )
    .folders(
        &["GptOssForCausalLM"],
        FolderTraits {
            post_attention_is_ffn_norm: false,
            experts: ExpertFiles::Turns,
            rules: &[
                Count("sliding_window", WINDOW),
                Count("intermediate_size", "expert_feed_forward_length"),
                FullAttentionEvery(2),
                OnlyFloat("swiglu_alpha", 1.702),
                OnlyFloat("swiglu_limit", 7.0),
            ],
            ..USUAL
        },
    )
    .compared_with(BOTH_FORMATS),
    ArchitectureRow::decoder(
        "llama4",
        "Llama 4 (text)",
        DecoderTraits {
            plain_qk_norms: true,
            routing: Routing::INPUT,
            layers: Layers::Positionless { period: 4 },
            chunk: Some(8192),
            temperature: Some(Temperature {
                scale: 0.1,
                length: 8192,
                offset: 1,
            }),
            ..LLAMA
        },
    )
    .folders(
        &["Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        FolderTraits {
            experts: ExpertFiles::Halves,
            rules: &[
                Count("intermediate_size_mlp", "feed_forward_length"),
                Count("intermediate_size", "expert_feed_forward_length"),
                OptionalCount("interleave_moe_layer_step", "interleave_moe_layer_step"),
                TurnedLayers(4),
                OptionalCount("attention_chunk_size", "attention.chunk_size"),
                // A number in the first files.
                Only("attn_temperature_tuning", &[Absent, Bool(true), Number(4)]),
                OnlyFloat("attn_scale", 0.1),
                OptionalCount("floor_scale", "attention.temperature_length"),
                Check(llama4_as_its_size_has_it),
            ],
            ..NEIGHBOURS
        },
    )
    .compared_with(BOTH_FORMATS),
    ArchitectureRow::decoder(
        "gemma3n",
        "Gemma 3n (text)",
        DecoderTraits {
            post_norms: true,
            qk_norms: true,
            value_norms: true,
            score_scale: Some(1.0),
            layers: Layers::Windowed {
                period: 5,
                local_base: Some(10_000),
                positionless: false,
            },
            ..GEMMA
        },
    )
    .folders(
        &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        FolderTraits {
            post_attention_is_ffn_norm: false,
            norm_plus_one: false,
            rules: &[Windows(5), LayerSizes],
            ..GEMMA_FOLDER
        },
    )
    .compared_with(BOTH_FORMATS),
    ArchitectureRow::decoder(
        "gemma4",
        "Gemma 4",
        DecoderTraits {
            post_norms: true,
            qk_norms: true,
            value_norms: true,
            keys_as_values: true,
            score_scale: Some(1.0),
            experts_beside: true,
            stream_scales: true,
            ahead_in_windows: true,
            layers: Layers::Windowed {
                period: 6,
                local_base: Some(10_000),
                positionless: false,
            },
            ..GEMMA
        },
    )
    .folders(
        &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        FolderTraits {
            post_attention_is_ffn_norm: false,
            norm_plus_one: false,
            rules: &[Windows(6), LayerSizes],
            ..GEMMA_FOLDER
        },
    )
    .compared_with("transformers, both formats, with pictures"),
];

/// GGUF has no keys for what follows from the number of experts, from the step between mixtures, and from which layers
/// turn.
fn llama4_as_its_size_has_it(json: &Json) -> Result<(), String> {
    let refused = |key: &str| {
        Err(format!(
            "config.json: {key} {} is not implemented",
            json[key]
        ))
    };
    let normed = json["num_local_experts"].as_u64() != Some(LARGEST_LLAMA_4);
    if json["use_qk_norm"].as_bool().is_some_and(|is| is != normed) {
        return refused("use_qk_norm");
    }
    let layers = json["num_hidden_layers"].as_u64().unwrap_or(0);
    let step = json["interleave_moe_layer_step"]
        .as_u64()
        .unwrap_or(1)
        .max(1);
    if let Some(mixtures) = json["moe_layers"].as_array() {
        let expected = (step - 1..layers).step_by(step as usize);
        if !expected.eq(mixtures
            .iter()
            .map(|layer| layer.as_u64().unwrap_or(layers)))
        {
            return refused("moe_layers");
        }
    }
    if let Some(kinds) = json["layer_types"].as_array() {
        let turns = |i: usize| match &json["no_rope_layers"] {
            Json::Array(list) if !list.is_empty() => list.get(i).and_then(Json::as_u64) == Some(1),
            _ => !(i + 1).is_multiple_of(4),
        };
        let chunked = |i: usize| match turns(i) {
            true => "chunked_attention",
            false => "full_attention",
        };
        if !kinds.iter().enumerate().all(|(i, kind)| kind == chunked(i)) {
            return refused("layer_types");
        }
    }
    Ok(())
}
