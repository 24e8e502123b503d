//! Who a worker is, its phase, and the model once it is there.

use super::metrics::Metrics;
use super::phase::Phase;
use super::{Progress, Served, Supervisor, Worker};
use crate::device::Selected;
use crate::http::error::{CANCELLED, DEVICE_LOST, LOADING};
use crate::http::ApiError;
use crate::observe::Traces;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// When a client of a worker that loads may try again.
const LOADING_RETRY: Duration = Duration::from_secs(1);

/// Who a worker is.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// Its name for an orchestrator.
    pub worker_id: String,
    /// The port that it serves on.
    pub port: u16,
    /// What it computes on.
    pub device: DeviceInfo,
    /// The process that starts it anew after a crash, if there is one.
    pub supervisor: Option<Supervisor>,
    /// Where traces of its requests go.
    pub traces: Traces,
}

impl Identity {
    /// How often the server has crashed and was started anew.
    pub fn restarts(&self) -> u64 {
        let supervisor = self.supervisor.as_ref();
        supervisor.map_or(0, |supervisor| supervisor.restarts)
    }
}

/// What a worker computes on, in words.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DeviceInfo {
    /// `cpu` or `rocm:N`; several with commas between them.
    pub name: String,
    /// The hardware.
    pub description: String,
    /// Why it is not a GPU, where one was wished for.
    pub fallback: Option<String>,
}

impl From<&Selected> for DeviceInfo {
    fn from(selected: &Selected) -> Self {
        Self {
            name: selected.name.clone(),
            description: selected.description.clone(),
            fallback: selected.fallback.clone(),
        }
    }
}

impl From<&[Selected]> for DeviceInfo {
    /// All in one line; equal ones are counted.
    fn from(devices: &[Selected]) -> Self {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let mut kinds: Vec<(&str, usize)> = Vec::new();
        for device in devices {
            match kinds.last_mut() {
                Some((kind, count)) if *kind == device.description => *count += 1,
                _ => kinds.push((&device.description, 1)),
            }
        }
        let kinds = kinds.iter().map(|(kind, count)| match count {
            1 => kind.to_string(),
            _ => format!("{count} times {kind}"),
        });
        Self {
            name: names.join(","),
            description: kinds.collect::<Vec<_>>().join(", "),
            fallback: devices.iter().find_map(|device| device.fallback.clone()),
        }
    }
}

/// Why a server does not serve.
#[derive(Debug, Clone, PartialEq)]
pub enum Unready {
    /// It loads its model.
    Loading {
        /// How much of it is done, from 0 to 1.
        progress: f64,
        /// What is done now; may be empty.
        stage: String,
    },
    /// It is about to end.
    Stopping,
    /// Its device is gone.
    Lost(String),
}

impl std::fmt::Display for Unready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loading { progress, .. } => {
                write!(f, "the model is loading, {:.0} % done", progress * 100.0)
            }
            Self::Stopping => write!(f, "the server is stopping"),
            Self::Lost(reason) => write!(f, "the device is lost: {reason}"),
        }
    }
}

impl From<Unready> for ApiError {
    fn from(unready: Unready) -> Self {
        let code = match &unready {
            Unready::Loading { .. } => LOADING,
            Unready::Stopping => CANCELLED,
            Unready::Lost(_) => DEVICE_LOST,
        };
        let loading = matches!(unready, Unready::Loading { .. });
        Self {
            retry_after: loading.then_some(LOADING_RETRY),
            ..Self::unavailable(code, unready.to_string())
        }
    }
}

/// What every worker has, whatever it serves.
pub struct Frame<L> {
    /// Who it is.
    pub identity: Identity,
    /// How far loading is.
    pub progress: Progress,
    pub(super) metrics: Metrics,
    phase: Arc<RwLock<Phase<L>>>,
}

impl<L: Served> Frame<L> {
    /// The frame of a worker whose model is still to be loaded; the names of its figures begin with `prefix`.
    pub fn new(identity: Identity, prefix: &str) -> Self {
        Self::with_metrics(identity, Registry::with_prefix(prefix))
    }

    /// As [`Self::new`], with metrics of the worker's own.
    pub fn with_metrics(identity: Identity, registry: Registry) -> Self {
        let phase = Arc::new(RwLock::new(Phase::Loading));
        let metrics = Metrics::new(registry, phase.clone(), identity.restarts());
        Self {
            identity,
            progress: Progress::default(),
            metrics,
            phase,
        }
    }

    /// Adds figures by the names of others to `/metrics`: those of `registry`, and [`Served::other_figures`].
    /// `with_own` is whether the worker's own stay beside them.
    pub fn with_other_names(mut self, registry: Registry, with_own: bool) -> Self {
        let phase = self.phase.clone();
        self.metrics.add_others(registry, phase, with_own);
        self
    }

    /// Whether it is about to end, and refuses new requests.
    pub(super) fn is_stopping(&self) -> bool {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        matches!(&*phase, Phase::Stopping(_))
    }

    fn set_phase(&self, phase: Phase<L>) {
        *self.phase.write().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    /// The model is there: requests are taken from now on.
    pub fn serve(&self, loaded: L) {
        self.set_phase(Phase::Ready(loaded));
    }

    /// Refuses new requests from now on; gives what is loaded for the last ones.
    pub fn stop(&self) -> Option<L> {
        let loaded = self.loaded().ok();
        self.set_phase(Phase::Stopping(loaded.clone()));
        loaded
    }

    /// What is loaded, also while the server stops: for answers that began before.
    ///
    /// # Errors
    /// [`Unready::Loading`], or [`Unready::Stopping`] if it never was loaded.
    pub fn loaded(&self) -> Result<L, Unready> {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Loading => Err(self.loading()),
            Phase::Ready(loaded) | Phase::Stopping(Some(loaded)) => Ok(loaded.clone()),
            Phase::Stopping(None) => Err(Unready::Stopping),
        }
    }

    /// What is loaded, while new requests are taken.
    ///
    /// # Errors
    /// [`Unready::Loading`] or [`Unready::Stopping`].
    pub fn serving(&self) -> Result<L, Unready> {
        let phase = self.phase.read().unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Loading => Err(self.loading()),
            Phase::Ready(loaded) => Ok(loaded.clone()),
            Phase::Stopping(_) => Err(Unready::Stopping),
        }
    }

    /// Whether all is well: the model is there and so is its device.
    ///
    /// # Errors
    /// What is not.
    pub fn ready(&self) -> Result<L, Unready> {
        let loaded = self.serving()?;
        match loaded.status().lost {
            Some(reason) => Err(Unready::Lost(reason)),
            None => Ok(loaded),
        }
    }

    fn loading(&self) -> Unready {
        Unready::Loading {
            progress: self.progress.fraction(),
            stage: self.progress.stage(),
        }
    }
}

/// What is loaded, for handlers: 503 while it is not there.
#[derive(Debug, Clone)]
pub struct Model<L>(pub L);

impl<W: Worker> FromRequestParts<Arc<W>> for Model<W::Loaded> {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, worker: &Arc<W>) -> Result<Self, ApiError> {
        Ok(Self(worker.frame().loaded()?))
    }
}
