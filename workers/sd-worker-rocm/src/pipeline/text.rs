//! Prompts to what the denoiser reads.

use super::long_text::LongText;
use super::module::Module;
use crate::models::clip::{ClipConfig, ClipTextEncoder};
use crate::prompt::{apply_weights, chunk, pad_to, Chunk, ChunkOptions, ClipTokenizer, Tokenize};
use crate::textual_inversion::Concept;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor, D};
use std::ops::ControlFlow;
use worker::{Error, Result};

/// Encoded prompts that are kept.
const CACHE: usize = 32;
/// Chunks that go through a tower at once; a request can be stopped between two such runs.
const CHUNKS_AT_ONCE: usize = 8;

/// Asks whether to stop.
type Stop<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// One of the model's text towers.
pub struct Tower {
    /// The network.
    pub module: Module<ClipTextEncoder>,
    tokenizer: ClipTokenizer,
    length: usize,
    /// Layers that the model leaves out at the tower's end.
    leave_out: usize,
    /// Whether the chosen layer goes through the tower's last norm.
    norm: bool,
}

/// How a tower is read.
#[derive(Debug, Clone, Copy)]
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
        let build = move |vb: crate::models::VarBuilder| {
            let mut tower = ClipTextEncoder::new(vb, &config)?;
            if let Some(rows) = &rows {
                tower.append_tokens(rows)?;
            }
            Ok(tower)
        };
        Ok(Self {
            module: Module::new("the text encoder", weights, dtype, device, offload, build)?,
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

    /// `(1, tokens, width)` and `(1, pooled width)`, f32; `None` if it was stopped.
    fn encode(
        &mut self,
        chunks: &[Chunk],
        skip: usize,
        stop: Stop<'_>,
    ) -> Result<Option<(Tensor, Tensor)>> {
        let network = self.module.network()?;
        let leave_out = self.leave_out.max(skip.saturating_sub(1));
        let eos = self.tokenizer.eos();
        let encode = |chunks: &[Chunk]| {
            let ids: Vec<Vec<u32>> = chunks.iter().map(|chunk| chunk.tokens.clone()).collect();
            let end = |tokens: &Vec<u32>| {
                let at = tokens.iter().position(|id| *id == eos);
                at.unwrap_or(tokens.len() - 1)
            };
            let ends: Vec<usize> = ids.iter().map(end).collect();
            let output = network.forward(&ids, &ends, leave_out, self.norm)?;
            let pooled = output.pooled.narrow(0, 0, 1)?.to_dtype(DType::F32)?;
            Ok((output.hidden.to_dtype(DType::F32)?, pooled))
        };
        let failed = || Error::candle("encoding the prompt");
        let mut hidden = Vec::new();
        let mut pooled = None;
        for some in chunks.chunks(CHUNKS_AT_ONCE) {
            if stop().is_break() {
                return Ok(None);
            }
            let (rows, first) = encode(some).map_err(failed())?;
            hidden.push(rows);
            // The first chunk's stands for all.
            pooled.get_or_insert(first);
        }
        let Some(pooled) = pooled else {
            return Err(Error::Runtime("a prompt has no chunks".to_string()));
        };
        let joined = || {
            let hidden = apply_weights(&Tensor::cat(&hidden, 0)?, chunks)?;
            let (chunks, tokens, width) = hidden.dims3()?;
            hidden.reshape((1, chunks * tokens, width))
        };
        Ok(Some((joined().map_err(failed())?, pooled)))
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

impl Encoded {
    /// The same on another device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn to_device(&self, device: &Device) -> CandleResult<Self> {
        Ok(Self {
            text: self.text.to_device(device)?,
            pooled: self.pooled.to_device(device)?,
        })
    }

    /// Zeros of the same shapes.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn zeros_like(&self) -> Result<Self> {
        let zeros = |x: &Tensor| x.zeros_like().map_err(Error::candle("the negative prompt"));
        Ok(Self {
            text: zeros(&self.text)?,
            pooled: zeros(&self.pooled)?,
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Key {
    prompt: String,
    skip: usize,
    chunks: usize,
}

/// How a denoiser wants what the encoders say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// The towers side by side, the last tower's pooled text.
    Towers,
    /// The towers side by side, filled with zeros to the language model's width, and in front of it; all towers' pooled
    /// texts side by side.
    Both {
        /// The language model's width.
        width: usize,
        /// Zeros that stand for an absent language model.
        missing_tokens: usize,
    },
    /// The language model's text, the last tower's pooled one.
    Long,
}

/// The model's text encoders, and prompts that went through them lately.
pub struct TextStage {
    /// The towers, in the model's order.
    pub towers: Vec<Tower>,
    long: Option<LongText>,
    layout: Layout,
    cache: Vec<(Key, Encoded)>,
}

impl TextStage {
    /// A stage of these encoders.
    pub fn new(towers: Vec<Tower>, long: Option<LongText>, layout: Layout) -> Self {
        Self {
            towers,
            long,
            layout,
            cache: Vec::new(),
        }
    }

    /// Forgets encoded prompts, after a tower has changed.
    pub fn forget(&mut self) {
        self.cache.clear();
    }

    /// Encodes prompts to one length, unless `stop` says so on the way: then there is `None`. `skip` is the request's
    /// `clip_skip`.
    ///
    /// # Errors
    /// For prompts that are too long, and if the device fails.
    pub fn encode(
        &mut self,
        prompts: &[&str],
        skip: usize,
        device: &Device,
        stop: Stop<'_>,
    ) -> Result<Option<Vec<Encoded>>> {
        let mut longest = 1;
        for tower in &self.towers {
            for prompt in prompts {
                longest = longest.max(tower.chunks(prompt)?.len());
            }
        }
        let encoded = prompts
            .iter()
            .map(|prompt| self.encode_one(prompt, skip, longest, device, stop))
            .collect();
        if let Some(long) = &mut self.long {
            long.rest();
        }
        self.towers.iter_mut().for_each(|tower| tower.module.rest());
        encoded
    }

    fn encode_one(
        &mut self,
        prompt: &str,
        skip: usize,
        length: usize,
        device: &Device,
        stop: Stop<'_>,
    ) -> Result<Option<Encoded>> {
        let key = Key {
            prompt: prompt.to_string(),
            skip,
            chunks: length,
        };
        if let Some(at) = self.cache.iter().position(|(cached, _)| *cached == key) {
            let hit = self.cache.remove(at);
            self.cache.push(hit.clone());
            return Ok(Some(hit.1));
        }
        let mut texts = Vec::new();
        let mut pooled = Vec::new();
        for tower in &mut self.towers {
            let mut chunks = tower.chunks(prompt)?;
            pad_to(&mut chunks, length, &tower.tokenizer);
            let Some((text, last)) = tower.encode(&chunks, skip, stop)? else {
                return Ok(None);
            };
            texts.push(text);
            pooled.push(last);
        }
        let long = match &mut self.long {
            Some(_) if stop().is_break() => return Ok(None),
            Some(long) => Some(long.encode(prompt, device)?),
            None => None,
        };
        let encoded = self
            .composed(&texts, &pooled, long, device)
            .map_err(Error::candle("encoding the prompt"))?;
        if self.cache.len() >= CACHE {
            self.cache.remove(0);
        }
        self.cache.push((key, encoded.clone()));
        Ok(Some(encoded))
    }

    fn composed(
        &self,
        texts: &[Tensor],
        pooled: &[Tensor],
        long: Option<Tensor>,
        device: &Device,
    ) -> CandleResult<Encoded> {
        let last = match pooled.last() {
            Some(last) => last.clone(),
            // Models without a tower do not look at it.
            None => Tensor::zeros((1, 1), DType::F32, device)?,
        };
        match (self.layout, long) {
            (Layout::Towers, _) => Ok(Encoded {
                text: Tensor::cat(texts, D::Minus1)?,
                pooled: last,
            }),
            (Layout::Long, Some(long)) => Ok(Encoded {
                text: long,
                pooled: last,
            }),
            (Layout::Long, None) => candle_core::bail!("the model has no language model"),
            (
                Layout::Both {
                    width,
                    missing_tokens,
                },
                long,
            ) => {
                let towers = Tensor::cat(texts, D::Minus1)?;
                let missing = width.saturating_sub(towers.dim(D::Minus1)?);
                let towers = towers.pad_with_zeros(D::Minus1, 0, missing)?;
                let long = match long {
                    Some(long) => long,
                    None => Tensor::zeros(
                        (1, missing_tokens, towers.dim(D::Minus1)?),
                        DType::F32,
                        device,
                    )?,
                };
                Ok(Encoded {
                    text: Tensor::cat(&[&towers, &long], 1)?,
                    pooled: Tensor::cat(pooled, D::Minus1)?,
                })
            }
        }
    }
}
