//! Logits of a given text, without sampling.

use super::api::{EngineOptions, KvTypes};
use super::forward::{CacheOptions, Forward, Step, StepSequence, StepState};
use super::loaded::LoadedModel;
use candle_core::{Device, Tensor};
use worker::{Error, Result};

/// Tokens of a step.
const CHUNK: usize = 512;
/// Tokens of a block.
const BLOCK_SIZE: usize = 16;

/// A model that reads texts.
pub struct Scorer {
    forward: Box<dyn Forward>,
    /// How keys and values are stored.
    types: KvTypes,
    /// Tokens that the cache has room for.
    room: usize,
}

impl Scorer {
    /// A scorer in place of an engine.
    pub fn new(model: LoadedModel) -> Self {
        let own = model.forward.kv_dtype();
        Self {
            forward: model.forward,
            types: own.into(),
            room: 0,
        }
    }

    /// What stores keys and values as `options` say.
    pub fn storing(self, options: &EngineOptions) -> Self {
        let types = options.kv_types(self.forward.kv_dtype());
        Self { types, ..self }
    }

    /// How keys and values are stored.
    pub fn types(&self) -> KvTypes {
        self.types
    }

    /// Bytes of a token's keys and values in all layers.
    pub fn token_bytes(&self) -> usize {
        self.forward.kv_token_bytes(self.types)
    }

    /// Longest text in tokens.
    pub fn context_length(&self) -> usize {
        self.forward.context_length()
    }

    /// Where the weights are.
    pub fn device(&self) -> &Device {
        self.forward.device()
    }

    /// Runs `tokens` as one sequence and gives the logits behind them piece by piece: the number of the piece's first
    /// token, and f32 `(tokens of the piece, vocabulary)`.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that is empty or longer than the context, [`Error::Candle`] if the device fails, and
    /// those of `take`.
    pub fn logits(
        &mut self,
        tokens: &[u32],
        mut take: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<()> {
        let most = self.context_length();
        if tokens.is_empty() || tokens.len() > most {
            return Err(Error::Usage(format!(
                "a text of {} tokens; this model takes 1 to {most}",
                tokens.len()
            )));
        }
        let blocks = tokens.len().div_ceil(BLOCK_SIZE);
        if blocks * BLOCK_SIZE > self.room {
            let cache = CacheOptions {
                blocks,
                block_size: BLOCK_SIZE,
                dtype: self.types,
                context: blocks * BLOCK_SIZE,
                states: 1,
                window_blocks: 0,
            };
            self.forward
                .reserve(&cache)
                .map_err(Error::candle("reserving the cache of keys and values"))?;
            self.room = blocks * BLOCK_SIZE;
        }
        for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
            let start = i * CHUNK;
            let step = Step {
                tokens: chunk.to_vec(),
                sequences: vec![StepSequence {
                    id: 1,
                    blocks: (0..blocks as u32).collect(),
                    keys: start + chunk.len(),
                    rows: chunk.len(),
                    state: Some(StepState::of_only(start)),
                    ..StepSequence::default()
                }],
                outputs: (0..chunk.len() as u32).collect(),
            };
            let logits = self.forward.forward(&step);
            take(start, logits.map_err(Error::candle("running the model"))?)?;
        }
        Ok(())
    }

    /// The logits behind every token, f32 `(tokens, vocabulary)`.
    ///
    /// # Errors
    /// Those of [`Scorer::logits`].
    pub fn all_logits(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let mut parts = Vec::new();
        self.logits(tokens, |_, part| {
            parts.push(part);
            Ok(())
        })?;
        Tensor::cat(&parts, 0).map_err(Error::candle("joining logits"))
    }
}
