//! `/metrics`: the server's figures for Prometheus.

use super::backend::Backend;
use super::Shared;
use crate::engine::api::Status;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use worker::http::ApiError;

/// Upper bounds for what takes milliseconds on a GPU and seconds on a CPU, in seconds.
const TOKEN_BUCKETS: [f64; 12] = [
    0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0,
];
/// Upper bounds for waiting and whole requests, in seconds.
const REQUEST_BUCKETS: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    route: String,
    status: u16,
}

/// The server's figures.
pub struct Metrics {
    registry: Registry,
    answers: Family<Answer, Counter>,
    first_token: Histogram,
    next_token: Histogram,
    queued: Histogram,
    duration: Histogram,
    engine: Arc<OnceLock<Arc<dyn Backend>>>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("llm");
        let answers = Family::default();
        registry.register("http_answers", "HTTP answers", answers.clone());
        let mut histogram = |name: &str, help: &str, buckets: &[f64]| {
            let histogram = Histogram::new(buckets.iter().copied());
            registry.register(name, help, histogram.clone());
            histogram
        };
        let first_token = histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first token",
            &REQUEST_BUCKETS,
        );
        let next_token = histogram(
            "inter_token_seconds",
            "From one token of a request to the next",
            &TOKEN_BUCKETS,
        );
        let queued = histogram("queue_seconds", "In the queue", &REQUEST_BUCKETS);
        let duration = histogram(
            "request_seconds",
            "From a request's arrival to its end",
            &REQUEST_BUCKETS,
        );
        let engine = Arc::new(OnceLock::new());
        registry.register_collector(Box::new(EngineFigures(engine.clone())));
        Self {
            registry,
            answers,
            first_token,
            next_token,
            queued,
            duration,
            engine,
        }
    }

    /// Takes the engine's figures along from now on.
    pub(super) fn watch(&self, backend: Arc<dyn Backend>) {
        // A server loads one model in its life.
        let _ = self.engine.set(backend);
    }

    pub(super) fn answered(&self, route: &str, status: u16) {
        let answer = Answer {
            route: route.to_string(),
            status,
        };
        self.answers.get_or_create(&answer).inc();
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

    pub(super) fn finished(&self, after: Duration) {
        self.duration.observe(after.as_secs_f64());
    }
}

struct EngineFigures(Arc<OnceLock<Arc<dyn Backend>>>);

impl std::fmt::Debug for EngineFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EngineFigures")
    }
}

impl Collector for EngineFigures {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let Some(backend) = self.0.get() else {
            return Ok(());
        };
        let status = backend.status();
        for (name, help, value) in gauges(&status) {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        for (name, help, value) in counters(&status) {
            let counter = ConstCounter::new(value);
            let metric = encoder.encode_descriptor(name, help, None, counter.metric_type())?;
            counter.encode(metric)?;
        }
        let enqueue = ConstCounter::new(status.decode.enqueue.as_secs_f64());
        let metric = encoder.encode_descriptor(
            "decode_enqueue_seconds",
            "Time of the host until the device had the work of these steps",
            None,
            enqueue.metric_type(),
        )?;
        enqueue.encode(metric)?;
        Ok(())
    }
}

fn gauges(status: &Status) -> Vec<(&'static str, &'static str, f64)> {
    let blocks = status.kv_blocks_total.max(1) as f64;
    let mut gauges = vec![
        (
            "requests_running",
            "Requests that are computed",
            status.running as f64,
        ),
        (
            "requests_waiting",
            "Requests in the queue",
            status.waiting as f64,
        ),
        (
            "kv_blocks",
            "Blocks of the cache of keys and values",
            status.kv_blocks_total as f64,
        ),
        (
            "kv_blocks_used",
            "Blocks that running requests hold",
            status.kv_blocks_used as f64,
        ),
        (
            "kv_blocks_cached",
            "Blocks that are kept for equal beginnings and free to reuse",
            status.kv_blocks_cached as f64,
        ),
        (
            "kv_usage_ratio",
            "Part of the blocks that running requests hold",
            status.kv_blocks_used as f64 / blocks,
        ),
        (
            "device_lost",
            "1 once the device is gone",
            f64::from(u8::from(status.lost.is_some())),
        ),
    ];
    let memory = [
        (
            "device_memory_used_bytes",
            "Device memory in use by this process",
            status.device_bytes_used,
        ),
        (
            "device_memory_bytes",
            "Device memory in all",
            status.device_bytes_total,
        ),
    ];
    gauges.extend(
        memory
            .into_iter()
            .filter_map(|(name, help, bytes)| Some((name, help, bytes? as f64))),
    );
    gauges
}

fn counters(status: &Status) -> [(&'static str, &'static str, u64); 10] {
    [
        (
            "prompt_tokens",
            "Prompt tokens that were computed",
            status.prompt_tokens,
        ),
        (
            "generated_tokens",
            "Tokens that were generated",
            status.generated_tokens,
        ),
        (
            "prefix_hit_tokens",
            "Prompt tokens that were there from an earlier request",
            status.prefix_hit_tokens,
        ),
        (
            "preemptions",
            "Requests that lost their blocks to others and were computed anew",
            status.preemptions,
        ),
        (
            "decode_steps",
            "Steps of one new token for each sequence",
            status.decode.steps,
        ),
        (
            "decode_graphs",
            "Of these, the ones that were enqueued as a graph",
            status.decode.graphs,
        ),
        (
            "decode_launches",
            "Launches on the device that these steps took; a graph counts as one",
            status.decode.launches,
        ),
        (
            "requests_finished",
            "Requests that ended with an answer",
            status.requests_finished,
        ),
        (
            "requests_failed",
            "Requests that ended without one",
            status.requests_failed,
        ),
        (
            "requests_cancelled",
            "Requests whose client went away",
            status.requests_cancelled,
        ),
    ]
}

/// `GET /metrics`
pub(super) async fn show(State(app): Shared) -> Result<Response, ApiError> {
    let mut text = String::new();
    encode(&mut text, &app.metrics.registry)
        .map_err(|e| ApiError::internal(format!("cannot write the metrics: {e}")))?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(CONTENT_TYPE, content_type)], text).into_response())
}
