//! Prompts to what the denoiser reads.

use super::part::Part;
use crate::models::clip::{ClipConfig, ClipTextEncoder};
use crate::prompt::{apply_weights, chunk, pad_to, Chunk, ChunkOptions, ClipTokenizer, Tokenize};
use crate::textual_inversion::Concept;
use crate::weights::Weights;
use candle_core::{DType, Device, Tensor, D};
use worker::{Error, Result};

/// Encoded prompts that are kept.
const CACHE: usize = 32;

/// One of the model's text towers.
pub struct Tower {
    /// The network.
    pub part: Part<ClipTextEncoder>,
    tokenizer: ClipTokenizer,
    length: usize,
    /// Layers that the model leaves out at the tower's end.
    leave_out: usize,
    /// Whether the chosen layer goes through the tower's last norm.
    norm: bool,
}

/// How a tower is read.
pub struct Reading {
    /// Layers that the model leaves out at the tower's end.
    pub leave_out: usize,
    /// Whether the chosen layer goes through the tower's last norm.
    pub norm: bool,
}

impl Tower {
    /// Loads a tower; `concepts` of its width become words of the tokenizer.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or a concept's word is taken.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        config: ClipConfig,
        weights: Weights,
        mut tokenizer: ClipTokenizer,
        concepts: &[Concept],
        reading: Reading,
        dtype: DType,
        device: &Device,
        offload: bool,
    ) -> Result<Self> {
        let mut rows = Vec::new();
        for concept in concepts {
            if let Some(vectors) = concept.for_width(config.hidden_size) {
                tokenizer.add_concept(&concept.word, vectors.dims()[0])?;
                rows.push(vectors.clone());
            }
        }
        let rows = match rows.is_empty() {
            true => None,
            false => Some(Tensor::cat(&rows, 0).map_err(Error::candle("textual inversion"))?),
        };
        let length = config.max_position_embeddings;
        let build = move |vb: candle_nn::VarBuilder| {
            let mut tower = ClipTextEncoder::new(vb, &config)?;
            if let Some(rows) = &rows {
                tower.append_tokens(rows)?;
            }
            Ok(tower)
        };
        Ok(Self {
            part: Part::new("the text encoder", weights, dtype, device, offload, build)?,
            tokenizer,
            length,
            leave_out: reading.leave_out,
            norm: reading.norm,
        })
    }

    fn chunks(&self, prompt: &str) -> Result<Vec<Chunk>> {
        let options = ChunkOptions {
            length: self.length,
            ..ChunkOptions::default()
        };
        chunk(prompt, &self.tokenizer, options)
    }

    /// `(1, tokens, width)` and `(1, pooled width)`, f32.
    fn encode(&mut self, chunks: &[Chunk], skip: usize) -> Result<(Tensor, Tensor)> {
        let network = self.part.network()?;
        let ids: Vec<Vec<u32>> = chunks.iter().map(|chunk| chunk.tokens.clone()).collect();
        let end = |tokens: &Vec<u32>| {
            let eos = self.tokenizer.eos();
            let at = tokens.iter().position(|id| *id == eos);
            at.unwrap_or(tokens.len() - 1)
        };
        let ends: Vec<usize> = ids.iter().map(end).collect();
        let leave_out = self.leave_out.max(skip.saturating_sub(1));
        let encode = || {
            let output = network.forward(&ids, &ends, leave_out, self.norm)?;
            let hidden = apply_weights(&output.hidden.to_dtype(DType::F32)?, chunks)?;
            let (chunks, tokens, width) = hidden.dims3()?;
            let hidden = hidden.reshape((1, chunks * tokens, width))?;
            Ok((hidden, output.pooled.narrow(0, 0, 1)?.to_dtype(DType::F32)?))
        };
        encode().map_err(Error::candle("encoding the prompt"))
    }
}

/// An encoded prompt.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// `(1, tokens, width)`, f32.
    pub text: Tensor,
    /// `(1, width)`, f32: of the last tower.
    pub pooled: Tensor,
}

#[derive(Debug, Clone, PartialEq)]
struct Key {
    prompt: String,
    skip: usize,
    chunks: usize,
}

/// The model's text towers, and prompts that went through them lately.
pub struct TextStage {
    /// The towers, in the model's order.
    pub towers: Vec<Tower>,
    cache: Vec<(Key, Encoded)>,
}

impl TextStage {
    /// A stage of these towers.
    pub fn new(towers: Vec<Tower>) -> Self {
        Self {
            towers,
            cache: Vec::new(),
        }
    }

    /// Forgets encoded prompts, after a tower has changed.
    pub fn forget(&mut self) {
        self.cache.clear();
    }

    /// Encodes prompts to one length. `skip` is the request's `clip_skip`.
    ///
    /// # Errors
    /// For prompts that are too long, and if the device fails.
    pub fn encode(&mut self, prompts: &[&str], skip: usize) -> Result<Vec<Encoded>> {
        let mut longest = 1;
        for tower in &self.towers {
            for prompt in prompts {
                longest = longest.max(tower.chunks(prompt)?.len());
            }
        }
        let encoded = prompts
            .iter()
            .map(|prompt| self.encode_one(prompt, skip, longest))
            .collect();
        self.towers.iter_mut().for_each(|tower| tower.part.rest());
        encoded
    }

    fn encode_one(&mut self, prompt: &str, skip: usize, length: usize) -> Result<Encoded> {
        let key = Key {
            prompt: prompt.to_string(),
            skip,
            chunks: length,
        };
        if let Some(at) = self.cache.iter().position(|(cached, _)| *cached == key) {
            let hit = self.cache.remove(at);
            self.cache.push(hit.clone());
            return Ok(hit.1);
        }
        let mut texts = Vec::new();
        let mut pooled = None;
        for tower in &mut self.towers {
            let mut chunks = tower.chunks(prompt)?;
            pad_to(&mut chunks, length, &tower.tokenizer);
            let (text, last) = tower.encode(&chunks, skip)?;
            texts.push(text);
            pooled = Some(last);
        }
        let text = Tensor::cat(&texts, D::Minus1).map_err(Error::candle("encoding the prompt"))?;
        let Some(pooled) = pooled else {
            return Err(Error::Runtime("the model has no text encoder".to_string()));
        };
        let encoded = Encoded { text, pooled };
        if self.cache.len() >= CACHE {
            self.cache.remove(0);
        }
        self.cache.push((key, encoded.clone()));
        Ok(encoded)
    }
}
