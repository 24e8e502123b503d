//! `llm-worker-rocm serve`.

use super::kv::KvArgs;
use super::kv_events::KvEventArgs;
use super::memory::MemoryArgs;
use super::nodes::{NodeArgs, Own};
use super::pictures::SeeingArgs;
use super::source::{ServedArgs, SourceArgs};
use super::speculation::{of_draft, SpeculationArgs};
use super::Cli;
use crate::adapters::AdapterSource;
use crate::chat::ChatTemplate;
use crate::embedding::{EmbeddingModel, Pooling, Reranker};
use crate::engine::{Engine, EngineOptions, Reload, SamplingOptions};
use crate::kernels;
use crate::kv_events::Publisher;
use crate::model::{LoadOptions, ModelFile};
use crate::samplers::SamplerSettings;
use crate::server::{
    App, AppOptions, FileOptions, FileStore, FollowerApp, Following, Loaded, MetricNames, Origin,
    TextModel, Transcriber,
};
use crate::split::{Placement, PlacementArgs};
use crate::tools::{CallForm, OutputFormat};
use crate::whisper::Whisper;
use candle_core::Device;
use clap::builder::PossibleValuesParser;
use clap::Args;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{mpsc, Arc};
use std::time::Duration;
use worker::cli::GraphArgs;
use worker::device::Selected;
use worker::kernels::CompileArgs;
use worker::picture::Sources;
use worker::serve::fleet::{self, FleetArgs, FleetSetup};
use worker::serve::Progress;
use worker::signal::stop_this_process;
use worker::{Error, Result};

/// Tokens of the prompts before the first request on a GPU: each length takes other kernels, as for quantized matrices
/// a vector, a few, a tile, and many.
const WARM_UP_PROMPTS: [usize; 4] = [1, 2, 16, 200];

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    served: ServedArgs,

    #[command(flatten)]
    fleet: FleetArgs,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    server: worker::serve::ServerArgs,

    /// Most requests that wait; more are refused with 429.
    #[arg(long, default_value_t = EngineOptions::default().max_waiting, value_name = "N")]
    queue: usize,

    /// A folder for what POST /slots/ID?action=save saves of the cache; without, nothing is saved.
    #[arg(long, value_name = "FOLDER")]
    slot_save_path: Option<PathBuf>,

    /// Do not tell in GET /slots what runs.
    #[arg(long)]
    no_slots: bool,

    /// No chat page.
    #[arg(long)]
    no_page: bool,

    #[command(flatten)]
    kv_events: KvEventArgs,

    /// By which names /metrics tells its figures.
    #[arg(long, value_enum, default_value_t, value_name = "NAMES")]
    metrics_names: MetricNames,

    /// A folder for the files and batches of clients, which outlive the server there; without, they end with it.
    #[arg(long, value_name = "FOLDER")]
    files: Option<PathBuf>,

    /// Longest file of a client in bytes.
    #[arg(long, default_value_t = FileOptions::default().max_file_bytes, value_name = "N")]
    max_file_bytes: u64,

    /// Most bytes of all files of clients; results of batches are written nevertheless.
    #[arg(long, default_value_t = FileOptions::default().max_bytes, value_name = "N")]
    max_files_bytes: u64,

    /// Seconds without a request after which weights and cache are given back; the next request loads the model again,
    /// and waits for that. 0 is never.
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    sleep_after: u64,

    /// Seconds that a request may take, its time in the queue included; 0 is no limit.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// How models answer: what `serve` and `batch` have in common.
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    /// Name of the model in answers; the file's or repository's own if absent.
    #[arg(long, value_name = "NAME")]
    model_ref: Option<String>,

    /// A further name that requests may use for the model; may be given several times.
    #[arg(long = "alias", value_delimiter = ',', value_name = "NAME")]
    aliases: Vec<String>,

    /// Answer requests that name another model, too, for clients whose model cannot be set.
    #[arg(long)]
    any_model: bool,

    /// Tell in OpenAI's answers what the model was given, as __verbose; requests can ask so by `verbose`.
    #[arg(long)]
    verbose_answers: bool,

    /// A model for /v1/embeddings beside the one that answers.
    #[arg(long, value_name = "PATH|REPO")]
    embedding_model: Option<String>,

    /// How an embedding model makes one vector of those of a text's tokens; as it was made for if absent. none gives
    /// them all, on /embeddings.
    #[arg(long, value_name = "none|mean|cls|last|max")]
    pooling: Option<PoolingChoice>,

    /// A model for /v1/rerank beside the one that answers.
    #[arg(long, value_name = "PATH|REPO")]
    rerank_model: Option<String>,

    /// A LoRA adapter: a GGUF file or a PEFT folder, under the name by which requests choose it; may be given several
    /// times. SCALE (1 if absent) is how much of it requests get that name no scale.
    #[arg(long = "lora", value_name = "NAME=PATH[:SCALE]")]
    adapters: Vec<AdapterSource>,

    /// Chat template: a file with Jinja, or the name of a built-in one; the model's own if absent.
    #[arg(long, value_name = "FILE|NAME")]
    chat_template: Option<String>,

    /// How the model writes calls of tools, where its chat template does not tell.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(CallForm::names()))]
    tool_format: Option<String>,

    /// Whether a model that can do both thinks in chats that do not say otherwise: on, off, or as its template has it.
    #[arg(long, default_value = "auto", value_name = "auto|on|off")]
    reasoning: Reasoning,

    /// Most tokens of a model's thinking in chats that do not say otherwise, which is then ended; -1 is no limit.
    #[arg(
        long,
        default_value_t = -1,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..)
    )]
    reasoning_budget: i64,

    /// The encoders of pictures and sounds of a GGUF model: an mmproj file; the one beside the model if absent.
    #[arg(long, value_name = "FILE")]
    mmproj: Option<PathBuf>,

    #[command(flatten)]
    seeing: SeeingArgs,

    /// A folder whose pictures, videos and sounds requests may name by path.
    #[arg(long, value_name = "FOLDER")]
    media_path: Option<PathBuf>,

    /// Hosts that requests may name pictures and sounds of, which the server then fetches; none of private addresses.
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    allowed_media_domains: Vec<String>,

    #[command(flatten)]
    placement: PlacementArgs,

    #[command(flatten)]
    compile: CompileArgs,

    /// Longest sequence in tokens, prompt and answer together; the model's own if absent.
    #[arg(long, short, value_name = "N")]
    context: Option<usize>,

    /// Let answers go on at the end of the context: the older half of the tokens behind the first ones (--keep) is
    /// dropped, and the rest is computed anew. Answers without max_tokens then end only where the model ends them.
    #[arg(long)]
    context_shift: bool,

    /// First tokens that stay when the context is shifted.
    #[arg(
        long,
        default_value_t = 4,
        value_name = "N",
        requires = "context_shift"
    )]
    keep: usize,

    /// Most requests that are computed at once; 16 if absent, and 64 in a batch on a GPU.
    #[arg(long, value_name = "N")]
    parallel: Option<usize>,

    /// Most tokens of a step: long prompts are cut into such pieces.
    #[arg(long, default_value_t = EngineOptions::default().max_step_tokens, value_name = "N")]
    step_tokens: usize,

    /// Blocks of the cache of keys and values; as many as are of use and fit if absent.
    #[arg(long, value_name = "N")]
    kv_blocks: Option<usize>,

    /// Tokens of such a block: of equal beginnings, whole blocks are computed once.
    #[arg(long, default_value_t = EngineOptions::default().block_size as u32, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=256))]
    block_size: u32,

    /// Keep all keys and values of layers with a sliding window, not only those that the window reaches.
    #[arg(long)]
    full_windows: bool,

    /// Slots of recurrent state, for models that have such: each request that is computed needs one, the others are
    /// checkpoints for equal beginnings; as many as are of use and fit if absent.
    #[arg(long, value_name = "N")]
    states: Option<usize>,

    /// Tokens between the checkpoints of recurrent state in a long prompt.
    #[arg(long, default_value_t = EngineOptions::default().state_distance, value_name = "N")]
    state_distance: usize,

    #[command(flatten)]
    kv: KvArgs,

    /// Compute equal beginnings of requests anew each time.
    #[arg(long)]
    no_prefix_cache: bool,

    /// Most tokens of an answer to requests that do not say; as many as the context takes if absent.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), value_name = "N")]
    max_tokens: Option<u32>,

    #[command(flatten)]
    graph: GraphArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    #[command(flatten)]
    speculation: SpeculationArgs,

    #[command(flatten)]
    nodes: NodeArgs,

    #[command(flatten)]
    sampling: SamplingDefaults,
}

/// How vectors become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PoolingChoice {
    None,
    Mean,
    Cls,
    Last,
    Max,
}

impl PoolingChoice {
    fn pooling(self) -> Option<Pooling> {
        match self {
            Self::None => None,
            Self::Mean => Some(Pooling::Mean),
            Self::Cls => Some(Pooling::First),
            Self::Last => Some(Pooling::Last),
            Self::Max => Some(Pooling::Max),
        }
    }
}

/// Whether models think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Reasoning {
    Auto,
    On,
    Off,
}

/// Sampling of requests that do not say otherwise.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling of requests that do not say otherwise")]
struct SamplingDefaults {
    /// Randomness: 0 always takes the most likely token.
    #[arg(long, default_value_t = 0.8, value_name = "T")]
    temperature: f32,

    /// Choose among the K most likely tokens only; 0 is off.
    #[arg(long, default_value_t = 40, value_name = "K")]
    top_k: usize,

    /// Choose among the most likely tokens that together have probability P; 1 is off.
    #[arg(long, default_value_t = 0.95, value_name = "P")]
    top_p: f32,

    /// Choose among tokens at least this fraction as likely as the most likely one; 0 is off.
    #[arg(long, default_value_t = 0.05, value_name = "P")]
    min_p: f32,

    /// Makes recent tokens less likely: 1 is off, 1.1 is mild.
    #[arg(long, default_value_t = 1.0, value_name = "X")]
    repeat_penalty: f32,

    /// The seed, for answers that are the same each time; random for each request if absent.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    #[command(flatten)]
    samplers: SamplerSettings,
}

impl SamplingDefaults {
    fn options(&self) -> Result<SamplingOptions> {
        let options = SamplingOptions {
            temperature: self.temperature,
            top_k: Some(self.top_k).filter(|&k| k > 0),
            top_p: Some(self.top_p).filter(|&p| p != 1.0),
            min_p: Some(self.min_p).filter(|&p| p != 0.0),
            repeat_penalty: self.repeat_penalty,
            ..SamplingOptions::greedy()
        };
        self.samplers.applied(options).map_err(Error::Usage)
    }
}

/// How requests come to the models of [`ModelArgs`].
#[derive(Debug, Clone)]
pub(super) struct Service {
    /// Most requests that are computed at once.
    pub parallel: usize,
    /// Most requests that wait.
    pub queue: usize,
    /// Where slots are saved, if they may be.
    pub slot_save_path: Option<PathBuf>,
    /// How long nothing is asked until weights and cache are given back.
    pub sleep_after: Option<Duration>,
    /// Who is told what the prefix cache holds.
    pub kv_events: Option<Publisher>,
    /// The devices that share a model of text.
    pub placement: Arc<Placement>,
}

/// So many seconds, unless that is 0.
pub(super) fn seconds(count: u64) -> Option<Duration> {
    Some(count)
        .filter(|&count| count > 0)
        .map(Duration::from_secs)
}

impl ServeArgs {
    pub(super) fn run(self) -> Result<()> {
        self.check()?;
        let mut args = self.server.clone();
        let device = self.model.placement.representative()?;
        let spans_hosts = self.model.nodes.is_wanted();
        if self.fleet.is_wanted(self.served.models.len()) {
            if spans_hosts {
                let reason = "--nnodes: one model runs over several hosts, not several models";
                return Err(Error::Usage(reason.to_string()));
            }
            return self.serve_several();
        }
        if spans_hosts {
            args = args.supervised_only_if_asked();
        }
        let source = self.served.one()?;
        worker::serve::supervised(&args, device, || self.serve(source))
    }

    /// Looks at what can be wrong without a model and without a device.
    pub(super) fn check(&self) -> Result<()> {
        self.model.sampling()?;
        self.model.placement.list().map(drop)
    }

    /// Serves several models, each in a process of its own.
    fn serve_several(self) -> Result<()> {
        if self.model.model_ref.is_some() || !self.model.aliases.is_empty() {
            let reason =
                "--model-ref and --alias name one model; --models-config gives names to several";
            return Err(Error::Usage(reason.to_string()));
        }
        let options = self.app_options("several models".to_string())?;
        let setup = FleetSetup {
            args: self.fleet,
            named: self.served.models,
            hub: self.served.hub.options(),
        };
        fleet::serve::<Cli, App>(&self.server, setup, |identity| App::new(identity, options))
    }

    fn app_options(&self, model: String) -> Result<AppOptions> {
        Ok(AppOptions {
            slots: !self.no_slots,
            page: !self.no_page,
            metric_names: self.metrics_names,
            ..self.model.app_options(model, seconds(self.timeout))?
        })
    }

    /// Serves in this process.
    fn serve(self, source: SourceArgs) -> Result<()> {
        let placement = Arc::new(self.model.open_devices()?);
        if self.model.nodes.follows()? {
            return self.follow(source, placement);
        }
        let selected = placement.as_one();
        let options = self.app_options(self.model.name(&source))?;
        let args = self.server.clone();
        let service = Service {
            parallel: (self.model.parallel).unwrap_or(EngineOptions::default().max_sequences),
            queue: self.queue,
            slot_save_path: self.slot_save_path,
            sleep_after: seconds(self.sleep_after),
            kv_events: self.kv_events.publisher()?,
            placement,
        };
        let files = FileStore::new(FileOptions {
            folder: self.files,
            max_file_bytes: self.max_file_bytes,
            max_bytes: self.max_files_bytes,
        })?;
        let model = self.model;
        worker::serve::start(
            &args,
            (&selected).into(),
            |identity| {
                let app = App::new(identity, options);
                app.keep_files(files);
                app
            },
            move |app: &App| model.load("serve", &source, &selected, &app.frame.progress, &service),
        )
    }

    /// Has a part of the model for the server on node 0, and tells on this host's port how that is.
    fn follow(self, source: SourceArgs, placement: Arc<Placement>) -> Result<()> {
        let name = self.model.name(&source);
        let model = self.model;
        worker::serve::start(
            &self.server,
            (&placement.as_one()).into(),
            |identity| FollowerApp::new(identity, name),
            move |app: &FollowerApp| {
                let following = Following::default();
                let (ready, loaded) = mpsc::channel();
                app.frame.progress.begin("waiting for the other nodes");
                let state = following.clone();
                let thread = std::thread::Builder::new().name("follower".to_string());
                let follower = thread.spawn(move || {
                    let tell = || {
                        // Nobody waits for it when it was loaded before.
                        let _ = ready.send(());
                    };
                    let followed = model.follow("serve", &source, &placement.selected, tell);
                    match &followed {
                        // As if told to stop: node 0 has done its work.
                        Ok(()) => stop_this_process(),
                        Err(error) => state.lose(&error.to_string()),
                    }
                    followed
                });
                let failed = |reason: String| Error::Runtime(format!("a thread: {reason}"));
                let follower = follower.map_err(|e| failed(e.to_string()))?;
                match loaded.recv() {
                    Ok(()) => Ok(following),
                    Err(_) => match follower.join() {
                        Ok(followed) => followed.map(|()| following),
                        Err(_) => Err(failed("it panicked".to_string())),
                    },
                }
            },
        )
    }
}

impl ModelArgs {
    /// How many requests are computed at once, if that was said.
    pub(super) fn parallel(&self) -> Option<usize> {
        self.parallel
    }

    /// The devices.
    ///
    /// # Errors
    /// Which of them cannot be used.
    pub(super) fn open_devices(&self) -> Result<Placement> {
        self.placement.open()
    }

    fn sampling(&self) -> Result<SamplingOptions> {
        let sampling = self.sampling.options()?;
        sampling.validate()?;
        Ok(sampling)
    }

    /// What the model is called in answers.
    pub(super) fn name(&self, source: &SourceArgs) -> String {
        self.model_ref.clone().unwrap_or_else(|| source.name())
    }

    /// How the model is presented.
    ///
    /// # Errors
    /// [`Error::Usage`] for sampling that makes no sense.
    pub(super) fn app_options(
        &self,
        model: String,
        timeout: Option<Duration>,
    ) -> Result<AppOptions> {
        Ok(AppOptions {
            model,
            aliases: self.aliases.clone(),
            any_model: self.any_model,
            verbose: self.verbose_answers,
            sampling: self.sampling()?,
            seed: self.sampling.seed,
            max_tokens: self.max_tokens.map(|n| n as usize),
            slots: true,
            page: false,
            metric_names: MetricNames::default(),
            timeout,
        })
    }

    /// Finds the models, on the network if need be, and loads them.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn load(
        &self,
        command: &'static str,
        source: &SourceArgs,
        selected: &Selected,
        progress: &Progress,
        service: &Service,
    ) -> Result<Loaded> {
        progress.begin("finding the model");
        let path = source.resolve()?;
        let device = &selected.device;
        let mut loaded = Loaded {
            origin: Some(Arc::new(Origin::of(&path))),
            ..Loaded::default()
        };
        if Whisper::recognises(&path) {
            self.compile.ahead(device, &kernels::of_encoder(), progress);
            progress.begin("loading the model");
            let model = Whisper::open(&path, device, &|bytes| progress.add(bytes))?;
            loaded.transcriber = Some(Arc::new(Transcriber::new(model)));
        } else if Reranker::recognises(&path) {
            self.compile.ahead(device, &kernels::of_encoder(), progress);
            progress.begin("loading the model");
            loaded.reranker = Some(Arc::new(Reranker::open(&path, device)?));
        } else if EmbeddingModel::recognises(&path) {
            self.compile.ahead(device, &kernels::of_encoder(), progress);
            progress.begin("loading the model");
            loaded.embedding = Some(Arc::new(self.open_embedding(&path, device)?));
        } else {
            loaded.text = Some(Arc::new(
                self.load_text(command, source, &path, progress, service)?,
            ));
        }
        if loaded.text.is_none() && service.placement.is_shared() {
            tracing::warn!(
                "--devices: this model generates no text, so {} has all of it",
                service.placement.selected[0].name
            );
        }
        if loaded.text.is_none() && self.nodes.is_wanted() {
            let reason = "--nnodes: this model generates no text, and runs on one host";
            return Err(Error::Usage(reason.to_string()));
        }
        if loaded.text.is_none() && service.kv_events.is_some() {
            let reason = "--kv-events: this model generates no text, so it has no cache of prompts";
            return Err(Error::Usage(reason.to_string()));
        }
        if let Some(model) = &self.embedding_model {
            let path = source.resolve_other(model)?;
            loaded.embedding = Some(Arc::new(self.open_embedding(&path, device)?));
        }
        if let Some(model) = &self.rerank_model {
            let path = source.resolve_other(model)?;
            loaded.reranker = Some(Arc::new(Reranker::open(&path, device)?));
        }
        Ok(loaded)
    }

    fn open_embedding(&self, path: &Path, device: &Device) -> Result<EmbeddingModel> {
        let model = EmbeddingModel::open(path, device)?;
        Ok(match self.pooling {
            Some(choice) => model.with_pooling(choice.pooling()),
            None => model,
        })
    }

    /// The adapters, each with a name of its own.
    fn adapters(&self) -> Result<Vec<AdapterSource>> {
        let mut names = HashSet::new();
        match self
            .adapters
            .iter()
            .find(|adapter| !names.insert(&adapter.name))
        {
            Some(twice) => Err(Error::Usage(format!(
                "--lora: {} is the name of two adapters",
                twice.name
            ))),
            None => Ok(self.adapters.clone()),
        }
    }

    /// Has a part of the model for `command` on node 0 until that has done its work; `ready` is called when the part is
    /// loaded.
    ///
    /// # Errors
    /// What failed here or on another node.
    pub(super) fn follow(
        &self,
        command: &'static str,
        source: &SourceArgs,
        selected: &[Selected],
        ready: impl FnMut(),
    ) -> Result<()> {
        let own = Own {
            command,
            path: &source.resolve()?,
            adapters: &self.adapters()?,
            selected,
        };
        self.nodes.follow(&own, ready)
    }

    /// Whether this process is a node that has a part of the model and no more.
    ///
    /// # Errors
    /// [`Error::Usage`] for arguments that make no sense.
    pub(super) fn follows(&self) -> Result<bool> {
        self.nodes.follows()
    }

    fn load_text(
        &self,
        command: &'static str,
        source: &SourceArgs,
        path: &Path,
        progress: &Progress,
        service: &Service,
    ) -> Result<TextModel> {
        if let Some(folder) = service
            .slot_save_path
            .as_ref()
            .filter(|path| !path.is_dir())
        {
            let reason = format!(
                "--slot-save-path {}: there is no such folder",
                folder.display()
            );
            return Err(Error::Usage(reason));
        }
        let file = ModelFile::open(path)?
            .with_vision(self.mmproj.as_deref())?
            .with_picture_options(self.seeing.options())?;
        let adapters = self.adapters()?;
        if self.nodes.is_wanted() {
            progress.begin("waiting for the other nodes");
        }
        let hosts = self.nodes.lead(&Own {
            command,
            path,
            adapters: &adapters,
            selected: &service.placement.selected,
        })?;
        let kernels = file.kernels(self.kv.types());
        for device in service.placement.of_each_arch() {
            self.compile.ahead(device, &kernels, progress);
        }
        progress.begin("loading the model");
        let tokens = self.context.unwrap_or(file.context_length()) * service.parallel;
        let weights = self.memory.options();
        let placed = match &hosts {
            // All hosts' devices are divided between by node 0.
            Some(_) => service.placement.over_hosts()?,
            None => file.place(&service.placement, tokens, self.kv.types(), &weights)?,
        };
        let device = &placed.device;
        let template = file.template().map(str::to_string);
        progress.expect(file.file_bytes());
        let options = LoadOptions {
            context: self.context,
            head: self.speculation.wants_head(),
            adapters,
            weights,
            split: placed.plan,
            hosts,
        };
        let model = file.load_with(device, &options, &|bytes| progress.add(bytes))?;
        let answers = model.forward.device().clone();
        let model = (self.speculation).with_draft(model, source, &answers, &options)?;
        let tokenizer = model.tokenizer.clone();
        let pictures = model.pictures.clone();
        let template = ChatTemplate::choose(
            self.chat_template.as_deref(),
            template.as_deref(),
            tokenizer.bos_text(),
            tokenizer.eos_text(),
        )?;
        if let Some(note) = template.note() {
            tracing::warn!("{note}");
        }
        let format = OutputFormat::choose(&template, self.tool_format.as_deref())?;
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let (path, stream) = (path.to_path_buf(), device.clone());
        let (mmproj, again) = (self.mmproj.clone(), options.clone());
        let draft = self.speculation.draft_file(source)?;
        let reload: Reload = Box::new(move || {
            let file = ModelFile::open(&path)?.with_vision(mmproj.as_deref())?;
            let model = file.load_with(&stream, &again, &|_| {})?;
            match &draft {
                Some(draft) => {
                    let file = ModelFile::open(draft)?;
                    let options = of_draft(&again);
                    model.with_draft(file.load_with(&answers, &options, &|_| {})?)
                }
                None => Ok(model),
            }
        });
        let engine = Engine::start_reloadable(
            model,
            &self.kv.options(EngineOptions {
                context: self.context,
                context_shift: self.context_shift.then_some(self.keep),
                kv_blocks: self.kv_blocks,
                block_size: self.block_size as usize,
                full_windows: self.full_windows,
                states: self.states,
                state_distance: self.state_distance,
                max_sequences: service.parallel,
                max_step_tokens: self.step_tokens,
                max_waiting: service.queue,
                prefix_cache: !self.no_prefix_cache,
                graphs: self.graph.graphs(),
                speculation: self.speculation.options(),
                sleep_after: service.sleep_after,
                ..EngineOptions::default()
            }),
            Some(reload),
        )?;
        if let Some(hosts) = &options.hosts {
            hosts.leader.fate().on_failure(engine.loser());
        }
        if let Some(events) = &service.kv_events {
            let told = engine.tell_blocks(events.listener());
            told.map_err(|failure| Error::Runtime(failure.to_string()))?;
        }
        let mut text = TextModel::new(Arc::new(engine), tokenizer, template);
        text.kv_events = service.kv_events.clone();
        text.spans_hosts = options.hosts.is_some();
        text.split = placed.report;
        text.parallel = service.parallel;
        text.adapters = options.adapters;
        text.format = format;
        text.processor = pictures;
        text.sources = Sources {
            folder: self.media_path.clone(),
            domains: self.allowed_media_domains.clone(),
            ..Sources::default()
        };
        text.thinks = match self.reasoning {
            Reasoning::Auto => None,
            Reasoning::On => Some(true),
            Reasoning::Off => Some(false),
        };
        text.reasoning_budget = Some(self.reasoning_budget).filter(|&most| most >= 0);
        text.slot_save_path = service.slot_save_path.clone();
        text.file_name = name;
        if device.is_rocm() {
            text.warm_up = WARM_UP_PROMPTS.to_vec();
        }
        Ok(text)
    }
}
