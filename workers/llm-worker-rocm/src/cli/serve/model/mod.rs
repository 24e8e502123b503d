//! Arguments of a model that answers requests.

mod load;
mod sampling;

use crate::adapters::AdapterSource;
use crate::cli::kv::KvArgs;
use crate::cli::memory::MemoryArgs;
use crate::cli::nodes::NodeArgs;
use crate::cli::pictures::SeeingArgs;
use crate::cli::source::SourceArgs;
use crate::cli::speculation::SpeculationArgs;
use crate::embedding::Pooling;
use crate::engine::{EngineOptions, SamplingOptions};
use crate::server::{AppOptions, MetricNames};
use crate::split::{Placement, PlacementArgs};
use crate::tools::CallForm;
use clap::builder::PossibleValuesParser;
use clap::Args;
use sampling::SamplingDefaults;
use std::path::PathBuf;
use std::time::Duration;
use worker::cli::GraphArgs;
use worker::kernels::CompileArgs;
use worker::Result;

/// How models answer: what `serve` and `batch` have in common.
#[derive(Debug, Args)]
pub(in crate::cli) struct ModelArgs {
    /// Name of the model in answers; the file's or repository's own if absent.
    #[arg(long, value_name = "NAME")]
    pub(super) model_ref: Option<String>,

    /// A further name that requests may use for the model; may be given several times.
    #[arg(long = "alias", value_delimiter = ',', value_name = "NAME")]
    pub(super) aliases: Vec<String>,

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
    pub(super) placement: PlacementArgs,

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
    pub(super) nodes: NodeArgs,

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

impl ModelArgs {
    /// How many requests are computed at once, if that was said.
    pub(in crate::cli) fn parallel(&self) -> Option<usize> {
        self.parallel
    }

    /// The devices.
    ///
    /// # Errors
    /// Which of them cannot be used.
    pub(in crate::cli) fn open_devices(&self) -> Result<Placement> {
        self.placement.open()
    }

    pub(super) fn sampling(&self) -> Result<SamplingOptions> {
        let sampling = self.sampling.options()?;
        sampling.validate()?;
        Ok(sampling)
    }

    /// What the model is called in answers.
    pub(in crate::cli) fn name(&self, source: &SourceArgs) -> String {
        self.model_ref.clone().unwrap_or_else(|| source.name())
    }

    /// How the model is presented.
    ///
    /// # Errors
    /// [`Error::Usage`] for sampling that makes no sense.
    pub(in crate::cli) fn app_options(
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
}
