//! The engine as the server sees it, and a text model around it.

use super::metrics::vllm;
use super::transcriber::Transcriber;
use crate::adapters::AdapterSource;
use crate::chat::ChatTemplate;
use crate::embedding::{EmbeddingModel, Reranker};
use crate::engine::api::{
    Event, Failure, Request, SamplingOptions, SlotAction, SlotDone, SlotStatus, Status, Ticket,
};
use crate::engine::Engine;
use crate::grammar::Grammars;
use crate::kv_events::Publisher;
use crate::media::Processor;
use crate::model::open_weights;
use crate::split::SplitReport;
use crate::tokenizer::Tokenizer;
use crate::tools::OutputFormat;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use worker::http::ApiError;
use worker::picture::Sources;
use worker::serve::{self, Figure, Served};
use worker::Error;

/// Tokens of the answers before the first request: the first step of a shape is launched, the second one recorded as a
/// graph, which the third one replays.
const WARM_UP_ANSWER: usize = 4;
/// Whose the prompts before the first request are: no key has this number.
const WARM_UP_NAMESPACE: u64 = u64::MAX;
/// A text for embedding models before the first request.
const WARM_UP_TEXT: &str = "warming up";

/// What generates tokens.
pub trait Backend: Send + Sync {
    /// Puts a request into the queue.
    ///
    /// # Errors
    /// What is wrong with the request, or why nothing is taken now.
    fn submit(&self, request: Request) -> Result<Ticket, Failure>;

    /// The moment's figures.
    fn status(&self) -> Status;

    /// Longest sequence in tokens, prompt and answer together.
    fn context(&self) -> usize;

    /// What the slots have.
    ///
    /// # Errors
    /// Why nothing is known.
    fn slots(&self) -> Result<Vec<SlotStatus>, Failure> {
        Ok(Vec::new())
    }

    /// Does something with a slot.
    ///
    /// # Errors
    /// Why that was not done.
    fn slot(&self, id: usize, namespace: u64, action: SlotAction) -> Result<SlotDone, Failure> {
        let _ = (namespace, action);
        Err(Failure::Invalid(format!("there is no slot {id}")))
    }

    /// Gives weights and cache back until the next request.
    ///
    /// # Errors
    /// Why it stays awake.
    fn sleep(&self) -> Result<(), Failure> {
        Err(Failure::Invalid("this model does not sleep".to_string()))
    }

    /// Loads the model again, if it sleeps.
    ///
    /// # Errors
    /// Why it goes on sleeping.
    fn wake_up(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Takes nothing new, gives running requests `grace` to finish, and returns when all have ended.
    fn stop(&self, grace: Duration);
}

impl Backend for Engine {
    fn submit(&self, request: Request) -> Result<Ticket, Failure> {
        Self::submit(self, request)
    }

    fn status(&self) -> Status {
        Self::status(self)
    }

    fn context(&self) -> usize {
        Self::context(self)
    }

    fn slots(&self) -> Result<Vec<SlotStatus>, Failure> {
        Self::slots(self)
    }

    fn slot(&self, id: usize, namespace: u64, action: SlotAction) -> Result<SlotDone, Failure> {
        Self::slot(self, id, namespace, action)
    }

    fn sleep(&self) -> Result<(), Failure> {
        Self::sleep(self)
    }

    fn wake_up(&self) -> Result<(), Failure> {
        Self::wake_up(self)
    }

    fn stop(&self, grace: Duration) {
        Self::stop(self, grace);
    }
}

/// A model that answers in text.
pub struct TextModel {
    /// Its engine.
    pub backend: Arc<dyn Backend>,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Its notation of calls and reasoning.
    pub format: OutputFormat,
    /// Most requests that are computed at once.
    pub parallel: usize,
    /// Bytes of the longest token.
    pub longest_token: usize,
    /// Its adapters, in the engine's order.
    pub adapters: Vec<AdapterSource>,
    /// How long the prompts are that are computed before the first request.
    pub warm_up: Vec<usize>,
    /// What makes pictures and prompts with them, or why the model takes none.
    pub processor: Result<Arc<Processor>, String>,
    /// Where pictures may come from.
    pub sources: Sources,
    /// The name of its file or folder.
    pub file_name: String,
    /// Whether a model that can do both thinks in chats that do not say otherwise; `None` leaves it to the template.
    pub thinks: Option<bool>,
    /// Most tokens of thoughts of requests that do not say otherwise, if there is a limit.
    pub reasoning_budget: Option<i64>,
    /// Where slots are saved, if they may be.
    pub slot_save_path: Option<PathBuf>,
    /// What publishes what the cache knows, if something does.
    pub kv_events: Option<Publisher>,
    /// Whether other hosts have a part of it.
    pub spans_hosts: bool,
    /// How several devices share it.
    pub split: Option<SplitReport>,
    grammars: Result<Grammars, String>,
}

impl TextModel {
    /// Puts a model together; set [`Self::parallel`] if the engine has a limit, and [`Self::warm_up`] if prompts of
    /// different lengths are computed in different ways.
    pub fn new(
        backend: Arc<dyn Backend>,
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
    ) -> Self {
        Self {
            backend,
            format: OutputFormat::of(&template),
            parallel: usize::MAX,
            longest_token: longest_token(&tokenizer),
            warm_up: vec![1],
            file_name: String::new(),
            thinks: None,
            reasoning_budget: None,
            slot_save_path: None,
            kv_events: None,
            spans_hosts: false,
            split: None,
            adapters: Vec::new(),
            processor: Err("it has no encoder of pictures or sounds".to_string()),
            sources: Sources::default(),
            grammars: Grammars::new(&tokenizer).map_err(|e| e.to_string()),
            tokenizer,
            template,
        }
    }

    /// Has the engine compute a prompt of so many tokens and some tokens of an answer, whatever they are.
    fn try_out(&self, prompt: usize) -> worker::Result<()> {
        let failed =
            |reason: String| Error::Runtime(format!("the first forward pass failed: {reason}"));
        // Different beginnings: what is known of a prompt is not computed again.
        let vocabulary = self.tokenizer.vocab_size().max(1);
        let token = |i: usize| ((prompt + i) % vocabulary) as u32;
        let mut request = Request::new((0..prompt).map(token).collect(), warm_up_sampling());
        request.max_tokens = Some(WARM_UP_ANSWER);
        request.ignore_end = true;
        // No request's beginning is known by it.
        request.namespace = WARM_UP_NAMESPACE;
        let submitted = self.backend.submit(request);
        let mut ticket = submitted.map_err(|e| failed(e.to_string()))?;
        loop {
            match ticket.events.blocking_recv() {
                Some(Event::Finished(_)) => return Ok(()),
                Some(Event::Failed(failure)) => return Err(failed(failure.to_string())),
                Some(_) => {}
                None => return Err(failed("the engine ended".to_string())),
            }
        }
    }

    /// What makes pictures, sounds and prompts with them.
    ///
    /// # Errors
    /// 400 for a model that takes none.
    pub fn pictures(&self) -> Result<&Processor, ApiError> {
        match &self.processor {
            Ok(processor) => Ok(processor),
            Err(reason) => Err(ApiError::field(
                "messages",
                format!(
                    "this model takes no pictures and no sounds (image input is not supported): {reason}"
                ),
            )),
        }
    }

    /// What compiles grammars.
    ///
    /// # Errors
    /// 400 for a model whose vocabulary does not suit them.
    pub fn grammars(&self) -> Result<&Grammars, ApiError> {
        self.grammars
            .as_ref()
            .map_err(|e| ApiError::invalid(format!("this model takes no grammars: {e}")))
    }
}

/// Bytes of a vocabulary's longest token, spelled control tokens included.
fn longest_token(tokenizer: &Tokenizer) -> usize {
    let count = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let length = |token| {
        let control = tokenizer.control_text(token).unwrap_or_default();
        tokenizer.token_bytes(token).len().max(control.len())
    };
    (0..count).map(length).max().unwrap_or(1)
}

/// Sampling as most requests ask for it.
fn warm_up_sampling() -> SamplingOptions {
    SamplingOptions {
        temperature: 0.8,
        top_k: Some(40),
        top_p: Some(0.95),
        ..SamplingOptions::greedy()
    }
}

/// What a server serves.
#[derive(Clone, Default)]
pub struct Loaded {
    /// For completions.
    pub text: Option<Arc<TextModel>>,
    /// For embeddings.
    pub embedding: Option<Arc<EmbeddingModel>>,
    /// For scores of documents.
    pub reranker: Option<Arc<Reranker>>,
    /// For speech to text.
    pub transcriber: Option<Arc<Transcriber>>,
    /// Where the model came from.
    pub origin: Option<Arc<Origin>>,
}

/// Where a model came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its file or folder.
    pub path: PathBuf,
    /// What it is built like, in the words of its format, where that is known.
    pub architecture: Option<String>,
}

impl Origin {
    /// What a file or folder tells of itself.
    pub fn of(path: &Path) -> Self {
        let architecture = open_weights(path).ok().and_then(|file| {
            let name = file.header().get_str("general.architecture").ok()?;
            name.map(str::to_string)
        });
        Self {
            path: path.to_path_buf(),
            architecture,
        }
    }
}

impl Served for Loaded {
    /// Forward passes of each kind that first requests may need.
    fn warm_up(&self) -> worker::Result<()> {
        if let Some(text) = &self.text {
            let most = text.backend.context().saturating_sub(WARM_UP_ANSWER);
            // A context that takes none of them takes a prompt of one token.
            let lengths = text.warm_up.iter().filter(|&&n| n <= most.max(1));
            lengths.copied().try_for_each(|n| text.try_out(n))?;
        }
        if let Some(embedding) = &self.embedding {
            let text = embedding.tokens(WARM_UP_TEXT, embedding.max_tokens())?;
            embedding.raw_vectors(&[text])?;
        }
        if let Some(reranker) = &self.reranker {
            reranker.score(WARM_UP_TEXT, &[WARM_UP_TEXT])?;
        }
        if let Some(transcriber) = &self.transcriber {
            transcriber.model().warm_up()?;
        }
        Ok(())
    }

    fn status(&self) -> serve::Status {
        let Some(text) = &self.text else {
            return serve::Status {
                busy: self.transcriber.as_ref().is_some_and(|t| t.is_busy()),
                ..serve::Status::default()
            };
        };
        let status = text.backend.status();
        serve::Status {
            busy: status.waiting > 0 || status.running >= text.parallel,
            lost: status.lost,
            degraded: (status.without_graphs)
                .map(|reason| format!("no graphs: {reason}"))
                .into_iter()
                .chain((status.asleep).then(|| {
                    "the model sleeps: the next request waits until it is loaded again".to_string()
                }))
                .collect(),
        }
    }

    fn ends_at_once(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.spans_hosts)
    }

    fn figures(&self) -> Vec<Figure> {
        let text = self.text.as_ref();
        let mut figures = text.map_or_else(Vec::new, |text| {
            super::metrics::figures(&text.backend.status())
        });
        figures.extend(self.transcriber.iter().flat_map(|t| t.figures()));
        let events = text.and_then(|text| text.kv_events.as_ref());
        figures.extend(events.iter().flat_map(|events| events.figures()));
        figures
    }

    fn other_figures(&self) -> Vec<Figure> {
        self.text.as_deref().map_or_else(Vec::new, vllm::figures)
    }

    fn stop(&self, grace: Duration) {
        if let Some(transcriber) = &self.transcriber {
            transcriber.stop();
        }
        if let Some(text) = &self.text {
            text.backend.stop(grace);
        }
    }
}
