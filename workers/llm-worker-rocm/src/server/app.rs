//! What all handlers share.

use super::backend::{Loaded, TextModel};
use super::jobs::Jobs;
use super::metrics::Metrics;
use super::turns::Turns;
use crate::embedding::EmbeddingModel;
use crate::engine::api::SamplingOptions;
use chrono::{SecondsFormat, Utc};
use serde::Serialize;
use serde_json::{json, Value};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use worker::device::Selected;
use worker::http::ApiError;

/// Embedding requests that run or wait at once.
const MAX_EMBEDDING_REQUESTS: usize = 64;

/// How a server presents itself and what it allows.
#[derive(Debug, Clone)]
pub struct AppOptions {
    /// Name of the model in answers.
    pub model: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Name of this worker for its orchestrator.
    pub worker_id: String,
    /// Port that it serves on.
    pub port: u16,
    /// What it computes on.
    pub device: Device,
    /// Sampling of requests that do not say otherwise; the seed is random for each.
    pub sampling: SamplingOptions,
    /// Longest time that a request may take, the queue included.
    pub timeout: Option<Duration>,
}

/// What a worker computes on, in words.
#[derive(Debug, Clone, Serialize)]
pub struct Device {
    /// `cpu` or `rocm:N`.
    pub name: String,
    /// The hardware.
    pub description: String,
    /// Why it is not a GPU, where one was wished for.
    pub fallback: Option<String>,
}

impl From<&Selected> for Device {
    fn from(selected: &Selected) -> Self {
        Self {
            name: selected.name.clone(),
            description: selected.description.clone(),
            fallback: selected.fallback.clone(),
        }
    }
}

/// How far loading is.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes that are loaded.
    pub done: AtomicU64,
    /// Bytes in all; 0 while unknown.
    pub total: AtomicU64,
}

impl Progress {
    /// From 0 to 1.
    pub fn fraction(&self) -> f64 {
        let total = self.total.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        if total == 0 {
            0.0
        } else {
            (done as f64 / total as f64).min(1.0)
        }
    }
}

enum Phase {
    Loading,
    Ready(Loaded),
    Stopping,
}

/// Why a server does not serve.
#[derive(Debug, Clone, PartialEq)]
pub enum Unready {
    /// It loads its model; so much is done.
    Loading(f64),
    /// It is about to end.
    Stopping,
    /// Its device is gone.
    Lost(String),
}

/// What all handlers share.
pub struct App {
    /// How it presents itself.
    pub options: AppOptions,
    /// Its figures.
    pub metrics: Metrics,
    /// How far loading is.
    pub progress: Progress,
    /// When it started, in seconds since 1970.
    pub(super) created: i64,
    pub(super) jobs: Jobs,
    /// One batch of texts at a time on the device.
    pub(super) embeddings: Turns,
    phase: RwLock<Phase>,
}

impl App {
    /// A server whose model is still to be loaded.
    pub fn new(options: AppOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            metrics: Metrics::new(),
            progress: Progress::default(),
            created: Utc::now().timestamp(),
            jobs: Jobs::default(),
            embeddings: Turns::new(MAX_EMBEDDING_REQUESTS),
            phase: RwLock::new(Phase::Loading),
        })
    }

    fn set_phase(&self, phase: Phase) {
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// The model is there.
    pub fn serve(&self, loaded: Loaded) {
        if let Some(text) = &loaded.text {
            self.metrics.watch(text.backend.clone());
        }
        self.set_phase(Phase::Ready(loaded));
    }

    /// Refuses new requests; gives the model for its last ones.
    pub(super) fn stop(&self) -> Loaded {
        let loaded = self.loaded().unwrap_or_default();
        self.set_phase(Phase::Stopping);
        self.jobs.clear();
        loaded
    }

    /// The models.
    ///
    /// # Errors
    /// Why there are none now.
    pub fn loaded(&self) -> Result<Loaded, Unready> {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Loading => Err(Unready::Loading(self.progress.fraction())),
            Phase::Stopping => Err(Unready::Stopping),
            Phase::Ready(loaded) => Ok(loaded.clone()),
        }
    }

    /// Whether all is well: the model is there and so is its device.
    ///
    /// # Errors
    /// What is not.
    pub fn ready(&self) -> Result<Loaded, Unready> {
        let loaded = self.loaded()?;
        match loaded
            .text
            .as_ref()
            .and_then(|text| text.backend.status().lost)
        {
            Some(reason) => Err(Unready::Lost(reason)),
            None => Ok(loaded),
        }
    }

    /// The text model.
    ///
    /// # Errors
    /// 503 while there is none, 400 if there will be none.
    pub(super) fn text(&self) -> Result<Arc<TextModel>, ApiError> {
        self.loaded()?.text.ok_or_else(|| {
            ApiError::invalid(format!(
                "{} gives embeddings only; send texts to /v1/embeddings",
                self.options.model
            ))
        })
    }

    /// The embedding model.
    ///
    /// # Errors
    /// 503 while there is none, 400 if there will be none.
    pub(super) fn embedding(&self) -> Result<Arc<EmbeddingModel>, ApiError> {
        self.loaded()?.embedding.ok_or_else(|| {
            ApiError::invalid(format!(
                "{} gives no embeddings; start a worker with an embedding model, or this one with --embedding-model",
                self.options.model
            ))
        })
    }

    /// Refuses the name of another model.
    ///
    /// # Errors
    /// 404 that tells the name of this one.
    pub(super) fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        let own = &self.options.model;
        let known = |name: &str| {
            name.is_empty()
                || name == "default"
                || name == own
                || self.options.aliases.iter().any(|alias| alias == name)
        };
        match name {
            Some(name) if !known(name) => Err(ApiError {
                code: "model_not_found",
                param: Some("model".to_string()),
                ..ApiError::not_found(format!("there is no model {name:?} here, this is {own:?}"))
            }),
            _ => Ok(()),
        }
    }

    /// What an orchestrator knows a worker by.
    pub fn worker_info(&self) -> Value {
        let status = match self.ready() {
            Err(Unready::Loading(_)) => "starting",
            Err(_) => "stopped",
            Ok(Loaded {
                text: Some(text), ..
            }) if text.backend.status().waiting > 0 => "busy",
            Ok(_) => "ready",
        };
        json!({
            "id": self.options.worker_id,
            "model_id": self.options.model,
            "device": self.options.device.name,
            "port": self.options.port,
            "status": status,
            "implementation": env!("CARGO_PKG_NAME"),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }

    /// A sign of life.
    pub fn heartbeat(&self) -> Value {
        json!({"worker": self.worker_info(), "timestamp": timestamp()})
    }
}

/// Now, as RFC 3339.
pub(super) fn timestamp() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

impl std::fmt::Display for Unready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loading(done) => write!(f, "the model is loading, {:.0} % done", done * 100.0),
            Self::Stopping => write!(f, "the server is stopping"),
            Self::Lost(reason) => write!(f, "the device is lost: {reason}"),
        }
    }
}

impl From<Unready> for ApiError {
    fn from(unready: Unready) -> Self {
        let code = match &unready {
            Unready::Loading(_) => "LOADING",
            Unready::Stopping => super::error::CANCELLED,
            Unready::Lost(_) => super::error::DEVICE_LOST,
        };
        let mut error = Self::unavailable(code, unready.to_string());
        if matches!(unready, Unready::Loading(_)) {
            error.retry_after = Some(Duration::from_secs(1));
        }
        error
    }
}
