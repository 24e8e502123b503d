//! The figures of `/metrics`: of requests as they go on, and of the engine when they are asked for.

#[cfg(test)]
mod documented;
pub(super) mod vllm;

use crate::completion::{Finish, StopReason};
use crate::engine::api::{DeviceMemory, Status};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;
use worker::serve::Figure;

/// Upper bounds for what takes milliseconds on a GPU and seconds on a CPU, in seconds.
const TOKEN_BUCKETS: [f64; 12] = [
    0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0,
];
/// Upper bounds for waiting and whole requests, in seconds.
const REQUEST_BUCKETS: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
];

/// Upper bounds for numbers of tokens.
const LENGTH_BUCKETS: [f64; 16] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5,
];

/// By which names figures are told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricNames {
    /// Our own.
    Ours,
    /// Those of vLLM, as far as there are such.
    Vllm,
    /// Both.
    #[default]
    Both,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ended {
    /// How, in vLLM's words.
    finished_reason: &'static str,
}

/// Figures of requests.
pub struct Metrics {
    first_token: Histogram,
    next_token: Histogram,
    queued: Histogram,
    prefill: Histogram,
    decode: Histogram,
    duration: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    ended: Family<Ended, Counter>,
}

impl Metrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let new = |buckets: &[f64]| Histogram::new(buckets.iter().copied());
        let metrics = Self {
            first_token: new(&REQUEST_BUCKETS),
            next_token: new(&TOKEN_BUCKETS),
            queued: new(&REQUEST_BUCKETS),
            prefill: new(&REQUEST_BUCKETS),
            decode: new(&REQUEST_BUCKETS),
            duration: new(&REQUEST_BUCKETS),
            prompt_tokens: new(&LENGTH_BUCKETS),
            generated_tokens: new(&LENGTH_BUCKETS),
            ended: Family::default(),
        };
        for (name, help, histogram) in [
            (
                "time_to_first_token_seconds",
                "From a request's arrival to its first token",
                &metrics.first_token,
            ),
            (
                "inter_token_seconds",
                "From one token of a request to the next",
                &metrics.next_token,
            ),
            ("queue_seconds", "In the queue", &metrics.queued),
            (
                "request_seconds",
                "From a request's arrival to its end",
                &metrics.duration,
            ),
        ] {
            registry.register(name, help, histogram.clone());
        }
        metrics
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    pub(super) fn next_token(&self, after: Duration) {
        self.next_token.observe(after.as_secs_f64());
    }

    pub(super) fn started(&self, queued: Duration) {
        self.queued.observe(queued.as_secs_f64());
    }

    /// A request was answered.
    pub(super) fn answered(&self, finish: &Finish) {
        let timings = &finish.timings;
        self.finished(timings.total());
        self.prefill.observe(timings.prefill.as_secs_f64());
        self.decode.observe(timings.decode.as_secs_f64());
        self.prompt_tokens
            .observe(finish.usage.prompt_tokens as f64);
        let generated = finish.usage.completion_tokens as f64;
        self.generated_tokens.observe(generated);
        self.end(match finish.reason {
            StopReason::End | StopReason::StopString(_) => "stop",
            StopReason::Length | StopReason::Context => "length",
        });
    }

    /// A request failed.
    pub(super) fn failed(&self, after: Duration) {
        self.finished(after);
        self.end("error");
    }

    /// A request's client went away.
    pub(super) fn aborted(&self) {
        self.end("abort");
    }

    pub(super) fn finished(&self, after: Duration) {
        self.duration.observe(after.as_secs_f64());
    }

    fn end(&self, finished_reason: &'static str) {
        self.ended.get_or_create(&Ended { finished_reason }).inc();
    }
}

/// The engine's figures.
pub(super) fn figures(status: &Status) -> Vec<Figure> {
    let blocks = status.kv_blocks_total.max(1) as f64;
    let mut figures = vec![
        Figure::gauge(
            "requests_running",
            "Requests that are computed",
            status.running as f64,
        ),
        Figure::gauge(
            "requests_waiting",
            "Requests in the queue",
            status.waiting as f64,
        ),
        Figure::gauge(
            "kv_blocks",
            "Blocks of the cache of keys and values",
            status.kv_blocks_total as f64,
        ),
        Figure::gauge(
            "kv_block_tokens",
            "Tokens of a block",
            status.kv_block_size as f64,
        ),
        Figure::gauge(
            "kv_blocks_used",
            "Blocks that running requests hold",
            status.kv_blocks_used as f64,
        ),
        Figure::gauge(
            "kv_blocks_cached",
            "Blocks that are kept for equal prefixes and free to reuse",
            status.kv_blocks_cached as f64,
        ),
        Figure::gauge(
            "kv_usage_ratio",
            "Part of the blocks that running requests hold",
            status.kv_blocks_used as f64 / blocks,
        ),
        Figure::gauge(
            "asleep",
            "1 while weights and cache are given back until the next request",
            f64::from(u8::from(status.asleep)),
        ),
        Figure::counter(
            "prompt_tokens",
            "Prompt tokens that were computed",
            status.prompt_tokens,
        ),
        Figure::counter(
            "generated_tokens",
            "Tokens that were generated",
            status.generated_tokens,
        ),
        Figure::counter(
            "prefix_hit_tokens",
            "Prompt tokens that were there from an earlier request",
            status.prefix_hit_tokens,
        ),
        Figure::counter(
            "preemptions",
            "Requests that lost their blocks to others and were computed anew",
            status.preemptions,
        ),
        Figure::counter(
            "context_shifts",
            "Times that a request reached the context and dropped tokens to go on",
            status.context_shifts,
        ),
        Figure::counter(
            "decode_steps",
            "Steps of one new token for each sequence",
            status.decode.steps,
        ),
        Figure::counter(
            "decode_graphs",
            "Of these, the ones that were enqueued as a graph",
            status.decode.graphs,
        ),
        Figure::gauge(
            "decode_without_graphs",
            "1 if graphs were asked for and are not used; the log and /health say why",
            f64::from(u8::from(status.without_graphs.is_some())),
        ),
        Figure::counter(
            "decode_launches",
            "Launches on the device that these steps took; a graph counts as one",
            status.decode.launches,
        ),
        Figure::counter(
            "spec_decode_num_drafts",
            "Times that a request had guesses at its next tokens in a step",
            status.drafts.drafts,
        ),
        Figure::counter(
            "spec_decode_num_draft_tokens",
            "Guessed tokens that steps have checked",
            status.drafts.drafted,
        ),
        Figure::counter(
            "spec_decode_num_accepted_tokens",
            "Of these, the ones that were right",
            status.drafts.accepted,
        ),
        Figure::counter(
            "requests_finished",
            "Requests that ended with an answer",
            status.requests_finished,
        ),
        Figure::counter(
            "requests_failed",
            "Requests that ended without one",
            status.requests_failed,
        ),
        Figure::counter(
            "requests_cancelled",
            "Requests whose client went away",
            status.requests_cancelled,
        ),
        Figure::seconds(
            "decode_enqueue_seconds",
            "Time of the host until the device had the work of these steps",
            status.decode.enqueue.as_secs_f64(),
        ),
    ];
    if status.kv_window_blocks_total > 0 {
        figures.extend([
            Figure::gauge(
                "kv_window_blocks",
                "Blocks of layers with a sliding window",
                status.kv_window_blocks_total as f64,
            ),
            Figure::gauge(
                "kv_window_blocks_used",
                "Blocks of layers with a sliding window that running requests hold",
                status.kv_window_blocks_used as f64,
            ),
            Figure::gauge(
                "kv_window_blocks_cached",
                "Blocks of layers with a sliding window that are kept for equal prefixes and free to reuse",
                status.kv_window_blocks_cached as f64,
            ),
        ]);
    }
    if status.states_total > 0 {
        figures.extend([
            Figure::gauge(
                "states",
                "Slots of recurrent state",
                status.states_total as f64,
            ),
            Figure::gauge(
                "states_used",
                "Slots that running requests hold",
                status.states_used as f64,
            ),
            Figure::gauge(
                "states_cached",
                "Slots that are kept as checkpoints of prefixes and free to reuse",
                status.states_cached as f64,
            ),
        ]);
    }
    let weights = status.weights;
    let memory = [
        (
            "weights_device_bytes",
            "Weights in the memory of the device",
            weights.device,
        ),
        (
            "weights_host_bytes",
            "Weights in the memory of the host",
            weights.host,
        ),
        (
            "weights_mapped_bytes",
            "Of these, the ones that are used where the mapped file has them",
            weights.mapped,
        ),
    ];
    let gauge = |(name, help, bytes)| Figure::gauge(name, help, bytes as f64);
    figures.extend(memory.map(gauge));
    figures.extend(device_memory(status));
    figures
}

/// The memory of the device, or of each of several, which their labels name.
fn device_memory(status: &Status) -> Vec<Figure> {
    const USED: (&str, &str) = (
        "device_memory_used_bytes",
        "Device memory in use by this process",
    );
    const ALL: (&str, &str) = ("device_memory_bytes", "Device memory in all");
    if status.devices.is_empty() {
        let of_one =
            |(name, help), bytes: Option<u64>| Some(Figure::gauge(name, help, bytes? as f64));
        let used = of_one(USED, status.device_bytes_used);
        return used
            .into_iter()
            .chain(of_one(ALL, status.device_bytes_total))
            .collect();
    }
    let of_each = |(name, help), bytes: fn(&DeviceMemory) -> u64| {
        let value =
            |device: &DeviceMemory| (vec![("device", device.name.clone())], bytes(device) as f64);
        Figure::gauges(name, help, status.devices.iter().map(value).collect())
    };
    vec![
        of_each(USED, |device| device.used),
        of_each(ALL, |device| device.total),
    ]
}
