//! Models are found and loaded as [`ModelArgs`] says.

use super::{ModelArgs, Reasoning};
use crate::adapters::AdapterSource;
use crate::chat::ChatTemplate;
use crate::cli::nodes::Own;
use crate::cli::serve::Service;
use crate::cli::source::SourceArgs;
use crate::cli::speculation::of_draft;
use crate::embedding::{EmbeddingModel, Reranker};
use crate::engine::{Engine, EngineOptions, Reload};
use crate::kernels;
use crate::model::{LoadOptions, ModelFile};
use crate::server::{Loaded, Origin, TextModel, Transcriber};
use crate::tools::OutputFormat;
use crate::whisper::Whisper;
use candle_core::Device;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use worker::device::Selected;
use worker::picture::Sources;
use worker::serve::Progress;
use worker::{Error, Result};

/// Tokens of the prompts before the first request on a GPU: each length takes other kernels, as for quantized matrices
/// a vector, a few, a tile, and many.
const WARM_UP_PROMPTS: [usize; 4] = [1, 2, 16, 200];

impl ModelArgs {
    /// Finds the models, on the network if need be, and loads them.
    ///
    /// # Errors
    /// Why there is none.
    pub(in crate::cli) fn load(
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
    pub(in crate::cli) fn follow(
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
    pub(in crate::cli) fn follows(&self) -> Result<bool> {
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
