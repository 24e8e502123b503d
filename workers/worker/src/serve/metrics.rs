//! `/metrics`: figures for Prometheus, in its own text format or in OpenMetrics.

mod exposition;

use super::phase::Phase;
use super::{Served, Worker};
use crate::http::ApiError;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, VARY};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use exposition::Exposition;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

/// Labels of a figure: names and values.
pub type Labels = Vec<(&'static str, String)>;

/// A figure at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    name: &'static str,
    help: &'static str,
    value: Reading,
}

#[derive(Debug, Clone, PartialEq)]
enum Reading {
    Gauge(f64),
    Level(u64),
    Counter(u64),
    Seconds(f64),
    /// A fact: its labels say what is so.
    Fact(Labels, f64),
    /// One of each of several things, told apart by labels.
    Gauges(Vec<(Labels, f64)>),
    Counters(Vec<(Labels, f64)>),
}

impl Figure {
    /// Its name, as it was given.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What goes up and down.
    pub fn gauge(name: &'static str, help: &'static str, value: f64) -> Self {
        let value = Reading::Gauge(value);
        Self { name, help, value }
    }

    /// A number of things, going up and down.
    pub fn level(name: &'static str, help: &'static str, value: u64) -> Self {
        let value = Reading::Level(value);
        Self { name, help, value }
    }

    /// What only goes up; `_total` is added to the name.
    pub fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        let value = Reading::Counter(value);
        Self { name, help, value }
    }

    /// A time that only goes up, in seconds; `_total` is added to the name.
    pub fn seconds(name: &'static str, help: &'static str, value: f64) -> Self {
        let value = Reading::Seconds(value);
        Self { name, help, value }
    }

    /// A gauge whose labels are what it tells; `value` is 1, or when it became so.
    pub fn fact(name: &'static str, help: &'static str, labels: Labels, value: f64) -> Self {
        let value = Reading::Fact(labels, value);
        Self { name, help, value }
    }

    /// What goes up and down for each of several things, which their labels tell apart.
    pub fn gauges(name: &'static str, help: &'static str, values: Vec<(Labels, f64)>) -> Self {
        let value = Reading::Gauges(values);
        Self { name, help, value }
    }

    /// What only goes up for each of several things; `_total` is added to the name.
    pub fn counters(name: &'static str, help: &'static str, values: Vec<(Labels, f64)>) -> Self {
        let value = Reading::Counters(values);
        Self { name, help, value }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), std::fmt::Error> {
        match &self.value {
            Reading::Gauge(value) => self.write(encoder, &ConstGauge::new(*value)),
            Reading::Level(value) => self.write(encoder, &ConstGauge::new(*value)),
            Reading::Counter(value) => self.write(encoder, &ConstCounter::new(*value)),
            Reading::Seconds(value) => self.write(encoder, &ConstCounter::new(*value)),
            Reading::Fact(labels, value) => {
                let kind = MetricType::Gauge;
                let mut metric = encoder.encode_descriptor(self.name, self.help, None, kind)?;
                metric.encode_family(labels)?.encode_gauge(value)
            }
            Reading::Gauges(values) => {
                let kind = MetricType::Gauge;
                let mut metric = encoder.encode_descriptor(self.name, self.help, None, kind)?;
                (values.iter()).try_for_each(|(labels, value)| {
                    metric.encode_family(labels)?.encode_gauge(value)
                })
            }
            Reading::Counters(values) => {
                let kind = MetricType::Counter;
                let mut metric = encoder.encode_descriptor(self.name, self.help, None, kind)?;
                values.iter().try_for_each(|(labels, value)| {
                    let mut one = metric.encode_family(labels)?;
                    one.encode_counter::<Labels, f64, f64>(value, None)
                })
            }
        }
    }

    fn write(
        &self,
        encoder: &mut DescriptorEncoder,
        metric: &impl EncodeMetric,
    ) -> Result<(), std::fmt::Error> {
        let kind = metric.metric_type();
        metric.encode(encoder.encode_descriptor(self.name, self.help, None, kind)?)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    route: String,
    status: u16,
}

/// The frame's figures beside the worker's own.
pub(super) struct Metrics {
    registry: Registry,
    /// Whether these are told.
    is_told: bool,
    /// The same by the names of others.
    others: Option<Registry>,
    answers: Family<Answer, Counter>,
}

impl Metrics {
    pub(super) fn new<L: Served>(
        mut registry: Registry,
        phase: Arc<RwLock<Phase<L>>>,
        restarts: u64,
    ) -> Self {
        let answers = Family::default();
        registry.register("http_answers", "HTTP answers", answers.clone());
        registry.register_collector(Box::new(Loaded {
            phase,
            started: Instant::now(),
            restarts,
        }));
        Self {
            registry,
            is_told: true,
            others: None,
            answers,
        }
    }

    /// Adds figures by the names of others; `with_own` is whether the own ones are told beside them.
    pub(super) fn add_others<L: Served>(
        &mut self,
        mut others: Registry,
        phase: Arc<RwLock<Phase<L>>>,
        with_own: bool,
    ) {
        others.register_collector(Box::new(ByOtherNames(phase)));
        self.others = Some(others);
        self.is_told = with_own;
    }

    /// All figures as OpenMetrics' text.
    fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let own = self.is_told.then_some(&self.registry);
        for registry in own.into_iter().chain(&self.others) {
            encode_registry(&mut text, registry)?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }

    pub(super) fn answered(&self, route: &str, status: u16) {
        let answer = Answer {
            route: route.to_string(),
            status,
        };
        self.answers.get_or_create(&answer).inc();
    }
}

/// Reads the figures of what is loaded when they are asked for.
struct Loaded<L> {
    phase: Arc<RwLock<Phase<L>>>,
    started: Instant,
    /// How often the server had crashed before.
    restarts: u64,
}

impl<L> std::fmt::Debug for Loaded<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Loaded")
    }
}

impl<L: Served> Collector for Loaded<L> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let uptime = self.started.elapsed().as_secs_f64();
        Figure::gauge("uptime_seconds", "Time since the start", uptime).encode(&mut encoder)?;
        let help = "Crashes after which the server was started anew";
        Figure::counter("restarts", help, self.restarts).encode(&mut encoder)?;
        let compiled = candle_rocm::precompile::cache_stats().compiled;
        let help = "Code objects of kernels compiled in this process";
        Figure::counter("kernels_compiled", help, compiled).encode(&mut encoder)?;
        let off = candle_rocm::verify::switched_off().len() as u64;
        let help = "Kernels, instructions and library functions that verification took out of use";
        Figure::level("switched_off", help, off).encode(&mut encoder)?;
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        let (Phase::Ready(loaded) | Phase::Stopping(Some(loaded))) = &*phase else {
            return Ok(());
        };
        let loaded = loaded.clone();
        drop(phase);
        let lost = f64::from(u8::from(loaded.status().lost.is_some()));
        Figure::gauge("device_lost", "1 once the device is gone", lost).encode(&mut encoder)?;
        let figures = loaded.figures();
        figures
            .iter()
            .try_for_each(|figure| figure.encode(&mut encoder))
    }
}

/// Reads what [`Served::other_figures`] gives when it is asked for.
struct ByOtherNames<L>(Arc<RwLock<Phase<L>>>);

impl<L> std::fmt::Debug for ByOtherNames<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByOtherNames")
    }
}

impl<L: Served> Collector for ByOtherNames<L> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let phase = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (Phase::Ready(loaded) | Phase::Stopping(Some(loaded))) = &*phase else {
            return Ok(());
        };
        let loaded = loaded.clone();
        drop(phase);
        let figures = loaded.other_figures();
        figures
            .iter()
            .try_for_each(|figure| figure.encode(&mut encoder))
    }
}

/// `GET /metrics`: Prometheus' text format 0.0.4, or OpenMetrics where `Accept` likes that better.
pub(super) async fn show<W: Worker>(
    State(worker): State<Arc<W>>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let text = worker.frame().metrics.text();
    let text = text.map_err(|e| ApiError::internal(format!("cannot write the metrics: {e}")))?;
    let exposition = Exposition::wanted(&headers);
    let head = [(CONTENT_TYPE, exposition.media_type()), (VARY, "accept")];
    Ok((head, exposition.of_openmetrics(text)).into_response())
}
