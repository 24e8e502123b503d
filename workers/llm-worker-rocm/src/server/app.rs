//! What all handlers share.

use super::backend::{Loaded, TextModel};
use super::batches::Batches;
use super::files::Store as Files;
use super::jobs::Jobs;
use super::metrics::{vllm, MetricNames, Metrics};
use super::responses::Store;
use super::routers::Pace;
use super::transcriber::Transcriber;
use super::turns::Turns;
use crate::embedding::{EmbeddingModel, Reranker};
use crate::engine::api::{AdapterUse, SamplingOptions};
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use worker::http::ApiError;
use worker::observe::RequestScope;
use worker::serve::{Frame, Identity, Routes, Unready, Worker};

/// Embedding requests that run or wait at once.
const MAX_EMBEDDING_REQUESTS: usize = 64;
/// The same of requests with sound, each of which holds its file while it waits.
const MAX_TRANSCRIPTIONS: usize = 32;

/// What clients and routers write where they know no model's name.
const PLACEHOLDERS: [&str; 2] = ["default", "unknown"];

/// Grammars that are compiled at once, and those that wait for it besides. More of them would take the cores from the
/// model, on the CPU, and all waiting requests' time.
const COMPILATIONS: (usize, usize) = (2, 64);

/// How a server presents its model and what it allows.
#[derive(Debug, Clone)]
pub struct AppOptions {
    /// Name of the model in answers.
    pub model: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// Whether a request may name any model, and is answered by this one.
    pub any_model: bool,
    /// Sampling of requests that do not say otherwise, but for the seed.
    pub sampling: SamplingOptions,
    /// The seed of requests that do not say otherwise; random for each if absent.
    pub seed: Option<u64>,
    /// Most tokens of an answer to requests that do not say; as many as the context takes if absent.
    pub max_tokens: Option<usize>,
    /// Whether `GET /slots` tells what runs.
    pub slots: bool,
    /// Whether answers in OpenAI's form tell what the model was given where requests do not say otherwise.
    pub verbose: bool,
    /// Whether there is a chat page.
    pub page: bool,
    /// Longest time that a request may take, the queue included.
    pub timeout: Option<Duration>,
    /// By which names figures are told.
    pub metric_names: MetricNames,
}

/// What all handlers share.
pub struct App {
    /// What every worker has: who it is, its phase, its model.
    pub frame: Frame<Loaded>,
    /// How it presents its model.
    pub options: AppOptions,
    /// Figures of requests.
    pub metrics: Metrics,
    /// When it started, in seconds since 1970.
    pub(super) created: i64,
    pub(super) jobs: Jobs,
    /// How fast tokens are generated.
    pub(super) pace: Pace,
    /// Responses that later ones go on from.
    pub(super) responses: Store,
    /// Files that clients keep here.
    files: OnceLock<Files>,
    /// Batches of requests.
    pub(super) batches: Batches,
    /// The model's adapters for requests that choose none, once they were set.
    pub(super) adapter_scales: Mutex<Option<Vec<AdapterUse>>>,
    /// One batch of texts at a time on the device.
    pub(super) embeddings: Turns,
    /// One recording at a time on the device.
    pub(super) transcriptions: Turns,
    /// Grammars that are compiled.
    pub(super) compilations: Turns,
}

impl Worker for App {
    type Loaded = Loaded;

    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    fn frame(&self) -> &Frame<Loaded> {
        &self.frame
    }

    fn model(&self) -> String {
        self.options.model.clone()
    }

    fn routes() -> Routes<Self> {
        super::routes()
    }

    fn stopping(&self) {
        self.jobs.clear();
        if let Some(files) = self.files.get() {
            files.end();
        }
    }
}

impl App {
    /// A server whose model is still to be loaded.
    pub fn new(identity: Identity, options: AppOptions) -> Arc<Self> {
        let mut registry = Registry::with_prefix("llm");
        let metrics = Metrics::new(&mut registry);
        let others = vllm::registry(&options.model, &metrics);
        let frame = Frame::with_metrics(identity, registry);
        let frame = match options.metric_names {
            MetricNames::Ours => frame,
            MetricNames::Vllm => frame.with_other_names(others, false),
            MetricNames::Both => frame.with_other_names(others, true),
        };
        Arc::new(Self {
            frame,
            options,
            metrics,
            created: worker::time::unix(),
            jobs: Jobs::default(),
            pace: Pace::default(),
            responses: Store::default(),
            files: OnceLock::new(),
            batches: Batches::default(),
            adapter_scales: Mutex::default(),
            embeddings: Turns::new("embed", 1, MAX_EMBEDDING_REQUESTS),
            transcriptions: Turns::new("transcribe", 1, MAX_TRANSCRIPTIONS),
            compilations: Turns::new("grammar", COMPILATIONS.0, COMPILATIONS.0 + COMPILATIONS.1),
        })
    }

    /// Keeps files there from now on, and goes on with the batches in it. Needs the server's runtime; has no effect once
    /// a client has used another place.
    pub fn keep_files(self: &Arc<Self>, files: Files) {
        if self.files.set(files).is_ok() {
            self.batches.resume(self);
        }
    }

    /// Files that clients keep here.
    pub(super) fn files(&self) -> &Files {
        self.files.get_or_init(Files::default)
    }

    /// The models.
    ///
    /// # Errors
    /// Why there are none now.
    pub fn loaded(&self) -> Result<Loaded, Unready> {
        self.frame.serving()
    }

    /// Tells the log of the current request which model answers it, and how many tokens that has read.
    pub(super) fn note_prompt(&self, tokens: usize) {
        RequestScope::note(|figures| {
            figures.model = Some(self.options.model.clone());
            figures.add_prompt(tokens, 0);
        });
    }

    /// The text model.
    ///
    /// # Errors
    /// 503 while there is none, 400 if there will be none.
    pub(super) fn text(&self) -> Result<Arc<TextModel>, ApiError> {
        let loaded = self.loaded()?;
        let other = match loaded.transcriber {
            Some(_) => "writes speech down only; send sound to /v1/audio/transcriptions",
            None => "gives embeddings only; send texts to /v1/embeddings",
        };
        loaded
            .text
            .ok_or_else(|| ApiError::invalid(format!("{} {other}", self.options.model)))
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

    /// The model that scores documents.
    ///
    /// # Errors
    /// 503 while there is none, 400 if there will be none.
    pub(super) fn reranker(&self) -> Result<Arc<Reranker>, ApiError> {
        self.loaded()?.reranker.ok_or_else(|| {
            ApiError::invalid(format!(
                "{} scores no documents; start a worker with a reranker, or this one with --rerank-model",
                self.options.model
            ))
        })
    }

    /// The model that writes speech down.
    ///
    /// # Errors
    /// 503 while there is none, 400 if there will be none.
    pub(super) fn transcriber(&self) -> Result<Arc<Transcriber>, ApiError> {
        self.loaded()?.transcriber.ok_or_else(|| {
            ApiError::invalid(format!(
                "{} writes no speech down; start a worker with a Whisper model",
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
                || PLACEHOLDERS.contains(&name)
                || name == own
                || self.options.aliases.iter().any(|alias| alias == name)
        };
        match name {
            Some(name) if self.adapter_named(name).is_some() => Ok(()),
            Some(name) if !self.options.any_model && !known(name) => Err(ApiError {
                code: "model_not_found",
                param: Some("model".to_string()),
                ..ApiError::not_found(format!("there is no model {name:?} here, this is {own:?}"))
            }),
            _ => Ok(()),
        }
    }
}
