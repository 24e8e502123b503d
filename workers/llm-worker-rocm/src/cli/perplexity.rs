//! `llm-worker-rocm perplexity`.

use super::kv::KvArgs;
use super::memory::MemoryArgs;
use super::source::{read_text, SourceArgs};
use crate::engine::api::EngineOptions;
use crate::engine::score::Scorer;
use crate::model::{LoadOptions, ModelFile};
use crate::perplexity::{perplexity, Perplexity};
use crate::split::PlacementArgs;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use worker::progress::count_bar;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `perplexity`.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Text to predict; `-` reads standard input.
    text: PathBuf,

    /// Tokens of each chunk that the text is cut into.
    #[arg(long, short, default_value_t = 512, value_name = "N")]
    context: usize,

    /// Only the first N tokens of the text.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,

    #[command(flatten)]
    placement: PlacementArgs,

    #[command(flatten)]
    memory: MemoryArgs,

    #[command(flatten)]
    kv: KvArgs,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    found: Perplexity,
    /// How keys and values were stored.
    keys_and_values: String,
    /// Bytes of a token's keys and values in all layers.
    token_bytes: usize,
}

impl PerplexityArgs {
    pub(super) fn run(self) -> Result<()> {
        let file = ModelFile::open(&self.source.resolve()?)?;
        let text = read_text(&self.text)?;
        let mut tokens = file
            .tokenizer()
            .encode(&text, true)
            .map_err(|e| Error::Usage(e.to_string()))?;
        tokens.truncate(self.max_tokens.unwrap_or(usize::MAX));
        let context = self.context.min(file.context_length());

        let placement = self.placement.open()?;
        let selected = placement.as_one();
        let weights = self.memory.options();
        let placed = file.place(&placement, context, self.kv.types(), &weights)?;
        let options = LoadOptions {
            context: Some(context),
            weights,
            split: placed.plan,
            ..LoadOptions::default()
        };
        let model = Scorer::new(file.load(&placed.device, &options)?);
        let mut model = model.storing(&self.kv.options(EngineOptions::default()));
        let interrupt = Interrupt::install()?;
        let bar = count_bar("predicting", tokens.len() as u64, "tokens");
        let found = perplexity(&mut model, &tokens, context, |done| {
            bar.set_position(done as u64);
            if interrupt.is_raised() {
                return Err(Error::Runtime("interrupted".to_string()));
            }
            Ok(())
        })?;
        bar.finish_and_clear();
        let (types, token_bytes) = (model.types(), model.token_bytes());
        let line = if self.json {
            let report = Report {
                found,
                keys_and_values: types.to_string(),
                token_bytes,
            };
            serde_json::to_string(&report)
                .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?
        } else {
            format!(
                "perplexity {:.4} ({:.5} ± {:.5} nats per token; {} tokens in {} chunks of {context}; keys and values in {types}, {token_bytes} bytes a token; {})",
                found.perplexity,
                found.nats_per_token,
                found.standard_error,
                found.tokens,
                found.chunks,
                selected.description
            )
        };
        worker::cli::output::print_line(&line)
    }
}
