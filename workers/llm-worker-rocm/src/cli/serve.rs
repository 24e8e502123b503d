//! `llm-worker-rocm serve`.

use super::source::SourceArgs;
use crate::chat::ChatTemplate;
use crate::embedding::EmbeddingModel;
use crate::engine::api::KvDType;
use crate::engine::{Engine, EngineOptions, SamplingOptions};
use crate::model::{LoadOptions, ModelFile};
use crate::server::app::Progress;
use crate::server::{run, App, AppOptions, Loaded, TextModel};
use candle_core::Device;
use clap::builder::FalseyValueParser;
use clap::Args;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use worker::device::DeviceRequest;
use worker::http::listen::termination;
use worker::http::{heartbeat, Heartbeat, ListenOptions};
use worker::{Error, Result};

/// Threads that answer HTTP; what computes has its own.
const HTTP_THREADS: usize = 4;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Name of the model in answers; the file's or repository's own if absent.
    #[arg(long, env = "LLM_MODEL_REF", value_name = "NAME")]
    model_ref: Option<String>,

    /// A further name that requests may use for the model; may be given several times.
    #[arg(
        long = "alias",
        env = "LLM_ALIAS",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    aliases: Vec<String>,

    /// A model for /v1/embeddings beside the one that answers.
    #[arg(long, env = "LLM_EMBEDDING_MODEL", value_name = "PATH|REPO")]
    embedding_model: Option<String>,

    /// Chat template: a file with Jinja, or the name of a built-in one; the model's own if absent.
    #[arg(long, env = "LLM_CHAT_TEMPLATE", value_name = "FILE|NAME")]
    chat_template: Option<String>,

    /// Where to compute: auto, cpu, rocm or rocm:N. `auto` takes the first GPU, or says that it uses the CPU.
    #[arg(long, short, env = "LLM_DEVICE", default_value = "auto", value_parser = str::parse::<DeviceRequest>)]
    device: DeviceRequest,

    /// The same as --device rocm:N.
    #[arg(long, env = "ROCM_DEVICE", value_name = "N", conflicts_with = "device")]
    rocm_device: Option<usize>,

    #[command(flatten)]
    listen: ListenOptions,

    /// Name of this worker for its orchestrator; random if absent.
    #[arg(long, env = "WORKER_ID", value_name = "ID")]
    worker_id: Option<String>,

    /// Address of an orchestrator that gets a heartbeat every 30 seconds.
    #[arg(
        long,
        visible_alias = "hive-url",
        env = "QUEEN_URL",
        value_name = "URL"
    )]
    queen_url: Option<String>,

    /// Longest sequence in tokens, prompt and answer together; the model's own if absent.
    #[arg(long, short, env = "LLM_CONTEXT", value_name = "N")]
    context: Option<usize>,

    /// Most requests that are computed at once.
    #[arg(long, env = "LLM_PARALLEL", default_value_t = EngineOptions::default().max_sequences, value_name = "N")]
    parallel: usize,

    /// Most requests that wait; more are refused with 429.
    #[arg(long, env = "LLM_QUEUE", default_value_t = EngineOptions::default().max_waiting, value_name = "N")]
    queue: usize,

    /// Most tokens of a step: long prompts are cut into such pieces.
    #[arg(long, env = "LLM_STEP_TOKENS", default_value_t = EngineOptions::default().max_step_tokens, value_name = "N")]
    step_tokens: usize,

    /// Blocks of the cache of keys and values; as many as are of use and fit if absent.
    #[arg(long, env = "LLM_KV_BLOCKS", value_name = "N")]
    kv_blocks: Option<usize>,

    /// How keys and values are stored: f32, f16, bf16 or q8_0; what suits the device if absent.
    #[arg(long, env = "LLM_KV_DTYPE", value_name = "TYPE")]
    kv_dtype: Option<KvDType>,

    /// Compute equal beginnings of requests anew each time.
    #[arg(long)]
    no_prefix_cache: bool,

    /// Enqueue every launch of a step on its own, instead of all of a recorded step as one graph.
    #[arg(long, env = "LLM_NO_GRAPH", value_parser = FalseyValueParser::new())]
    no_graph: bool,

    /// Seconds that a request may take, its time in the queue included; 0 is no limit.
    #[arg(
        long,
        env = "LLM_TIMEOUT",
        default_value_t = 600,
        value_name = "SECONDS"
    )]
    timeout: u64,

    #[command(flatten)]
    sampling: SamplingDefaults,
}

/// Sampling of requests that do not say otherwise.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling of requests that do not say otherwise")]
struct SamplingDefaults {
    /// Randomness: 0 always takes the most likely token.
    #[arg(long, env = "LLM_TEMPERATURE", default_value_t = 0.8, value_name = "T")]
    temperature: f32,

    /// Choose among the K most likely tokens only; 0 is off.
    #[arg(long, env = "LLM_TOP_K", default_value_t = 40, value_name = "K")]
    top_k: usize,

    /// Choose among the most likely tokens that together have probability P; 1 is off.
    #[arg(long, env = "LLM_TOP_P", default_value_t = 0.95, value_name = "P")]
    top_p: f32,

    /// Choose among tokens at least this fraction as likely as the most likely one; 0 is off.
    #[arg(long, env = "LLM_MIN_P", default_value_t = 0.05, value_name = "P")]
    min_p: f32,

    /// Makes recent tokens less likely: 1 is off, 1.1 is mild.
    #[arg(
        long,
        env = "LLM_REPEAT_PENALTY",
        default_value_t = 1.0,
        value_name = "X"
    )]
    repeat_penalty: f32,
}

impl SamplingDefaults {
    fn options(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: Some(self.top_k).filter(|&k| k > 0),
            top_p: Some(self.top_p).filter(|&p| p != 1.0),
            min_p: Some(self.min_p).filter(|&p| p != 0.0),
            repeat_penalty: self.repeat_penalty,
            ..SamplingOptions::greedy()
        }
    }
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<()> {
        let sampling = self.sampling.options();
        sampling.validate()?;
        let request = self.rocm_device.map_or(self.device, DeviceRequest::Rocm);
        let selected = request.select()?;
        if let Some(reason) = &selected.fallback {
            tracing::warn!("using the CPU: {reason}");
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(HTTP_THREADS)
            .enable_all()
            .build()
            .map_err(|e| Error::Runtime(format!("cannot start threads: {e}")))?;
        let result = runtime.block_on(async {
            let listener = self.listen.bind().await?;
            let address = listener
                .local_addr()
                .map_err(|e| Error::Runtime(format!("the port that was opened: {e}")))?;
            let app = App::new(AppOptions {
                model: self.model_ref.clone().unwrap_or_else(|| self.source.name()),
                aliases: self.aliases.clone(),
                worker_id: self
                    .worker_id
                    .clone()
                    .unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
                port: address.port(),
                device: (&selected).into(),
                sampling,
                timeout: Some(self.timeout)
                    .filter(|&s| s > 0)
                    .map(Duration::from_secs),
            });
            let termination = termination()?;
            let heart = app.clone();
            let _heartbeat = self
                .queen_url
                .as_deref()
                .map(|url| Heartbeat::start(url, heartbeat::INTERVAL, move || heart.heartbeat()))
                .transpose()?;
            // For people and scripts alike: with port 0 this is where the port is told.
            println!("listening on http://{address}");
            let listen = self.listen.clone();
            let load = move |app: &App| self.load(&selected.device, &app.progress);
            run::run(app, listener, &listen, load, termination).await
        });
        // A model that is still loading is not waited for.
        runtime.shutdown_background();
        result
    }

    /// Finds the model, on the network if need be, and loads it.
    fn load(&self, device: &Device, progress: &Progress) -> Result<Loaded> {
        let path = self.source.resolve()?;
        let mut loaded = Loaded::default();
        if EmbeddingModel::recognises(&path) {
            loaded.embedding = Some(Arc::new(EmbeddingModel::open(&path, device)?));
        } else {
            loaded.text = Some(Arc::new(self.load_text(&path, device, progress)?));
        }
        if let Some(model) = &self.embedding_model {
            let path = self.source.resolve_other(model)?;
            loaded.embedding = Some(Arc::new(EmbeddingModel::open(&path, device)?));
        }
        Ok(loaded)
    }

    fn load_text(&self, path: &Path, device: &Device, progress: &Progress) -> Result<TextModel> {
        let file = ModelFile::open(path)?;
        let template = file.template().map(str::to_string);
        progress.total.store(file.file_bytes(), Ordering::Relaxed);
        let options = LoadOptions {
            context: self.context,
        };
        let model = file.load_with(device, &options, &|bytes| {
            progress.done.fetch_add(bytes, Ordering::Relaxed);
        })?;
        let tokenizer = model.tokenizer.clone();
        let template = ChatTemplate::choose(
            self.chat_template.as_deref(),
            template.as_deref(),
            tokenizer.bos_text(),
            tokenizer.eos_text(),
        )?;
        if let Some(note) = template.note() {
            tracing::warn!("{note}");
        }
        let engine = Engine::start(
            model,
            &EngineOptions {
                context: self.context,
                kv_blocks: self.kv_blocks,
                kv_dtype: self.kv_dtype,
                max_sequences: self.parallel,
                max_step_tokens: self.step_tokens,
                max_waiting: self.queue,
                prefix_cache: !self.no_prefix_cache,
                graphs: !self.no_graph,
                ..EngineOptions::default()
            },
        )?;
        Ok(TextModel::new(Arc::new(engine), tokenizer, template))
    }
}
