//! The same figures by vLLM's names, which routers and dashboards look for.
//! <https://docs.vllm.ai/en/latest/usage/metrics/>
//!
//! Samples have the label `model_name`. Prompt tokens are all of a prompt, those of the prefix cache included.

use super::Metrics;
use crate::engine::api::Status;
use crate::server::backend::TextModel;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use worker::serve::{Figure, Labels};

/// Where figures by these names are registered, for a model of this name.
pub(in crate::server) fn registry(model: &str, metrics: &Metrics) -> Registry {
    let label = (Cow::from("model_name"), Cow::from(model.to_string()));
    let mut registry = Registry::with_labels(std::iter::once(label));
    for (name, help, histogram) in [
        (
            "vllm:time_to_first_token_seconds",
            "From a request's arrival to its first token",
            &metrics.first_token,
        ),
        (
            "vllm:inter_token_latency_seconds",
            "From one token of a request to the next",
            &metrics.next_token,
        ),
        (
            "vllm:time_per_output_token_seconds",
            "The same by an older name",
            &metrics.next_token,
        ),
        (
            "vllm:e2e_request_latency_seconds",
            "From a request's arrival to its end",
            &metrics.duration,
        ),
        (
            "vllm:request_queue_time_seconds",
            "In the queue",
            &metrics.queued,
        ),
        (
            "vllm:request_prefill_time_seconds",
            "From leaving the queue to the first token",
            &metrics.prefill,
        ),
        (
            "vllm:request_decode_time_seconds",
            "From the first token to the last",
            &metrics.decode,
        ),
        (
            "vllm:request_prompt_tokens",
            "Prompt tokens of a request",
            &metrics.prompt_tokens,
        ),
        (
            "vllm:request_generation_tokens",
            "Generated tokens of a request",
            &metrics.generated_tokens,
        ),
    ] {
        registry.register(name, help, histogram.clone());
    }
    registry.register(
        "vllm:request_success",
        "Requests that ended, by how",
        metrics.ended.clone(),
    );
    registry
}

/// The engine's figures.
pub(in crate::server) fn figures(text: &TextModel) -> Vec<Figure> {
    let status = &text.backend.status();
    let blocks = status.kv_blocks_total.max(1) as f64;
    let prompt_tokens = status.prompt_tokens + status.prefix_hit_tokens;
    let mut figures = vec![
        Figure::gauge(
            "vllm:num_requests_running",
            "Requests that are computed",
            status.running as f64,
        ),
        Figure::gauge(
            "vllm:num_requests_waiting",
            "Requests in the queue",
            status.waiting as f64,
        ),
        Figure::gauge(
            "vllm:kv_cache_usage_perc",
            "Part of the blocks that running requests hold, from 0 to 1",
            status.kv_blocks_used as f64 / blocks,
        ),
        Figure::fact(
            "vllm:cache_config_info",
            "The cache of keys and values",
            cache(status),
            1.0,
        ),
        Figure::counter(
            "vllm:prompt_tokens",
            "Prompt tokens, those of the prefix cache included",
            prompt_tokens,
        ),
        Figure::counter(
            "vllm:generation_tokens",
            "Tokens that were generated",
            status.generated_tokens,
        ),
        Figure::counter(
            "vllm:prefix_cache_queries",
            "Prompt tokens that the prefix cache was asked for",
            prompt_tokens,
        ),
        Figure::counter(
            "vllm:prefix_cache_hits",
            "Of these, the ones that it had",
            status.prefix_hit_tokens,
        ),
        Figure::counter(
            "vllm:num_preemptions",
            "Requests that lost their blocks to others and were computed anew",
            status.preemptions,
        ),
    ];
    if !text.adapters.is_empty() {
        figures.push(Figure::fact(
            "vllm:lora_requests_info",
            "Adapters of requests, and when this was so",
            adapters(text, status),
            worker::time::unix() as f64,
        ));
    }
    figures
}

fn cache(status: &Status) -> Labels {
    vec![
        ("block_size", status.kv_block_size.to_string()),
        ("num_gpu_blocks", status.kv_blocks_total.to_string()),
    ]
}

fn adapters(text: &TextModel, status: &Status) -> Labels {
    let names = |places: &[usize]| {
        let names = places.iter().filter_map(|&place| text.adapters.get(place));
        let names: Vec<&str> = names.map(|adapter| adapter.name.as_str()).collect();
        names.join(",")
    };
    vec![
        // All of them can be in one step.
        ("max_lora", text.adapters.len().to_string()),
        ("running_lora_adapters", names(&status.adapters_running)),
        ("waiting_lora_adapters", names(&status.adapters_waiting)),
    ]
}
