//! A model that runs, for commands that generate.

use super::kv::KvArgs;
use super::memory::MemoryArgs;
use super::nodes::{NodeArgs, Own};
use super::source::SourceArgs;
use super::speculation::SpeculationArgs;
use crate::adapters::AdapterSource;
use crate::chat::ChatTemplate;
use crate::completion::{Completion, Output, TextOptions};
use crate::engine::api::{AdapterUse, EngineOptions, Failure, Request};
use crate::engine::{is_not_a_number, Engine};
use crate::media::Processor;
use crate::model::{LoadOptions, ModelFile};
use crate::split::{PlacementArgs, SplitReport};
use crate::tokenizer::Tokenizer;
use clap::Args;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use worker::cli::GraphArgs;
use worker::device::Selected;
use worker::kernels::CompileArgs;
use worker::serve::Progress;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// How often a wait for the next token looks whether the user has had enough.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// The arguments that make a model run.
#[derive(Debug, Args)]
pub struct SessionArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    #[command(flatten)]
    placement: PlacementArgs,

    /// Longest sequence in tokens, prompt and answer together; the model's own if absent, as far as memory goes.
    #[arg(long, short, value_name = "N")]
    pub context: Option<usize>,

    #[command(flatten)]
    kv: KvArgs,

    /// A LoRA adapter beside the weights, a GGUF file or a PEFT folder, and how much of it (1 if absent); may be given
    /// several times.
    #[arg(long = "lora", value_name = "PATH[=SCALE]", value_parser = AdapterSource::of_path)]
    adapters: Vec<AdapterSource>,

    #[command(flatten)]
    compile: CompileArgs,

    #[command(flatten)]
    pub graph: GraphArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    #[command(flatten)]
    pub speculation: SpeculationArgs,

    #[command(flatten)]
    nodes: NodeArgs,
}

/// A running model.
pub(super) struct Session {
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    /// What makes pictures and prompts with them, or why the model takes none.
    pub pictures: std::result::Result<Arc<Processor>, String>,
    pub selected: Selected,
    /// How several devices share it.
    pub split: Option<SplitReport>,
    /// Of all requests.
    adapters: Arc<[AdapterUse]>,
    pub load: Duration,
    runtime: Runtime,
}

/// What a wait brought.
pub(super) enum Step {
    /// Something happened.
    Output(Output),
    /// The user has had enough.
    Interrupted,
}

impl SessionArgs {
    /// Opens the model file.
    pub(super) fn open(&self) -> Result<ModelFile> {
        ModelFile::open(&self.source.resolve()?)
    }

    /// Has a part of the model for `command` on node 0, if this process is a node that does no more.
    pub(super) fn follow(&self, command: &'static str) -> Result<bool> {
        if !self.nodes.follows()? {
            return Ok(false);
        }
        let own = Own {
            command,
            path: &self.source.resolve()?,
            adapters: &self.adapters,
            selected: &self.placement.open()?.selected,
        };
        self.nodes.follow(&own, || {})?;
        Ok(true)
    }

    /// Loads an opened model for `command`, and says so if the CPU takes the place of a GPU.
    pub(super) fn start(
        &self,
        command: &'static str,
        file: ModelFile,
        options: EngineOptions,
    ) -> Result<Session> {
        let placement = self.placement.open()?;
        let selected = placement.as_one();
        let hosts = self.nodes.lead(&Own {
            command,
            path: file.path(),
            adapters: &self.adapters,
            selected: &placement.selected,
        })?;
        let start = Instant::now();
        let kernels = file.kernels(self.kv.types());
        for device in placement.of_each_arch() {
            (self.compile).ahead(device, &kernels, &Progress::default());
        }
        let options = EngineOptions {
            context: self.context.or(options.context),
            graphs: self.graph.graphs(),
            speculation: self.speculation.options(),
            ..self.kv.options(options)
        };
        let tokens = options.context.unwrap_or(file.context_length()) * options.max_sequences;
        let weights = self.memory.options();
        let placed = match &hosts {
            // All hosts' devices are divided between by node 0.
            Some(_) => placement.over_hosts()?,
            None => file.place(&placement, tokens, self.kv.types(), &weights)?,
        };
        let load = LoadOptions {
            context: options.context,
            head: self.speculation.wants_head(),
            weights,
            adapters: self.adapters.clone(),
            split: placed.plan,
            hosts,
        };
        let model = file.load(&placed.device, &load)?;
        let answers = model.forward.device().clone();
        let model = (self.speculation).with_draft(model, &self.source, &answers, &load)?;
        let tokenizer = model.tokenizer.clone();
        let pictures = model.pictures.clone();
        let engine = Engine::start(model, &options)?;
        if let Some(hosts) = &load.hosts {
            hosts.leader.fate().on_failure(engine.loser());
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|e| Error::Runtime(format!("cannot start a clock: {e}")))?;
        let adapters = self.adapters.iter().enumerate();
        let adapters = adapters.map(|(adapter, source)| AdapterUse {
            adapter,
            scale: source.scale,
        });
        Ok(Session {
            adapters: adapters.filter(|wish| wish.scale != 0.0).collect(),
            load: start.elapsed(),
            engine,
            tokenizer,
            pictures,
            selected,
            split: placed.report,
            runtime,
        })
    }
}

impl Session {
    /// Hands a request to the engine.
    pub(super) fn submit(&self, request: Request, text: TextOptions) -> Result<Completion> {
        let prompt = request.prompt.len();
        let request = Request {
            adapters: self.adapters.clone(),
            ..request
        };
        let ticket = self.engine.submit(request)?;
        Ok(Completion::new(
            ticket,
            self.tokenizer.clone(),
            prompt,
            text,
        ))
    }

    /// Waits for the next thing that happens to a request, or the user.
    ///
    /// # Errors
    /// What the engine failed with.
    pub(super) fn wait(&self, completion: &mut Completion, interrupt: &Interrupt) -> Result<Step> {
        loop {
            if interrupt.is_raised() {
                return Ok(Step::Interrupted);
            }
            let next = self
                .runtime
                .block_on(async { tokio::time::timeout(INTERRUPT_POLL, completion.next()).await });
            match next {
                Err(_) => {}
                Ok(Some(Output::Failed(failure)))
                    if self.selected.device.is_cpu() && is_not_a_number(&failure) =>
                {
                    return Err(Error::Usage(failure.to_string()))
                }
                Ok(Some(Output::Failed(failure))) => return Err(failure.into()),
                Ok(Some(output)) => return Ok(Step::Output(output)),
                Ok(None) => {
                    return Err(Failure::Internal("the answer has no end".to_string()).into())
                }
            }
        }
    }
}

/// The template for a model: `--chat-template`, the model's own, or ChatML with a note.
pub(super) fn template(argument: Option<&str>, file: &ModelFile) -> Result<ChatTemplate> {
    let tokenizer = file.tokenizer();
    let template = ChatTemplate::choose(
        argument,
        file.template(),
        tokenizer.bos_text(),
        tokenizer.eos_text(),
    )?;
    if let Some(note) = template.note() {
        tracing::warn!("{note}");
    }
    Ok(template)
}
