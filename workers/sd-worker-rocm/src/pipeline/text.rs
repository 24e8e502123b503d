//! Prompts to what the denoiser reads.

use super::long_text::LongText;
use super::module::Module;
use crate::lora::Network;
use crate::models::change::Change;
use crate::models::clip::{ClipConfig, ClipTextEncoder};
use crate::prompt::{
    apply_weights, chunk, pad_to, Chunk, ChunkOptions, ClipTokenizer, TokenCounter, Tokenize,
};
use crate::textual_inversion::Concept;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor, D};
use image::RgbImage;
use std::hash::{DefaultHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;
use worker::{Error, Result};

/// Encoded prompts that are kept.
const CACHE: usize = 32;
/// Most chunks of all texts of a request together: each is kept encoded.
const MOST_CHUNKS: usize = 512;
/// Chunks that go through a tower at once; a request can be stopped between two such runs.
const CHUNKS_AT_ONCE: usize = 8;

/// Asks whether to stop.
type Stop<'a> = &'a mut dyn FnMut() -> ControlFlow<()>;

/// One of the model's text towers.
pub struct Tower {
    /// The network.
    pub module: Module<ClipTextEncoder>,
    tokenizer: Arc<ClipTokenizer>,
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

impl Reading {
    /// All layers and the last norm.
    pub const LAST: Self = Self {
        leave_out: 0,
        norm: true,
    };
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
            tokenizer: Arc::new(tokenizer),
            length,
            leave_out: reading.leave_out,
            norm: reading.norm,
        })
    }

    fn chunks(&self, prompt: &Prompt) -> Result<Vec<Chunk>> {
        let options = ChunkOptions {
            length: self.length,
            weights: prompt.weighted,
            ..ChunkOptions::default()
        };
        chunk(prompt.text, &*self.tokenizer, options)
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
    /// Further texts, of families that have such, f32, with a first dimension of 1.
    pub more: Vec<Tensor>,
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
            more: (self.more.iter())
                .map(|x| x.to_device(device))
                .collect::<CandleResult<_>>()?,
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
            more: self.more.iter().map(zeros).collect::<Result<_>>()?,
        })
    }
}

/// What is to be encoded.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// The text.
    pub text: &'a str,
    /// Whether brackets in it are weights; if not, they are text.
    pub weighted: bool,
    /// Whether it is the negative prompt.
    pub negative: bool,
    /// Pictures that encoders which see are shown.
    pub pictures: &'a [RgbImage],
    /// Whether they are looked at in their own size, where they would be shown in the denoiser's.
    pub keep_size: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Key {
    prompt: String,
    weighted: bool,
    negative: bool,
    /// Of the pictures, where they are looked at.
    pictures: Vec<(u32, u32, u64)>,
    keep_size: bool,
    skip: usize,
    chunks: usize,
}

/// What the encoders say of a prompt, each f32.
pub struct Texts {
    /// Of the towers, `(1, tokens, width)` each.
    pub towers: Vec<Tensor>,
    /// The towers' pooled texts, `(1, width)` each.
    pub pooled: Vec<Tensor>,
    /// Of the language models, `(1, tokens, width)` each.
    pub long: Vec<Tensor>,
}

/// Makes of what the encoders say what the denoiser wants.
pub type Compose = Arc<dyn Fn(Texts) -> CandleResult<Encoded> + Send + Sync>;

/// The towers side by side, the last tower's pooled text.
///
/// # Errors
/// If shapes do not fit together, or the device fails.
pub fn composed_towers(texts: Texts) -> CandleResult<Encoded> {
    let Some(pooled) = texts.pooled.last() else {
        candle_core::bail!("the model has no text tower")
    };
    Ok(Encoded {
        text: Tensor::cat(&texts.towers, D::Minus1)?,
        pooled: pooled.clone(),
        more: Vec::new(),
    })
}

/// The first language model's text, the last tower's pooled one.
///
/// # Errors
/// If there is no language model, or the device fails.
pub fn composed_long(texts: Texts) -> CandleResult<Encoded> {
    let Some(long) = texts.long.into_iter().next() else {
        candle_core::bail!("the model has no language model")
    };
    let pooled = match texts.pooled.last() {
        Some(pooled) => pooled.clone(),
        // Models without a tower do not look at it.
        None => Tensor::zeros((1, 1), DType::F32, long.device())?,
    };
    Ok(Encoded {
        text: long,
        pooled,
        more: Vec::new(),
    })
}

/// The model's text encoders, and prompts that went through them lately.
pub struct TextStage {
    /// The towers, in the model's order.
    pub towers: Vec<Tower>,
    long: Vec<LongText>,
    compose: Compose,
    cache: Vec<(Key, Encoded)>,
}

impl TextStage {
    /// A stage of these encoders.
    pub fn new(towers: Vec<Tower>, long: Vec<LongText>, compose: Compose) -> Self {
        Self {
            towers,
            long,
            compose,
            cache: Vec::new(),
        }
    }

    /// Counts tokens, where chunks of them are what prompts are cut into; other encoders have one long text.
    pub fn counter(&self, weights: bool) -> Option<TokenCounter> {
        let tower = self.towers.first().filter(|_| self.long.is_empty())?;
        let tokenizer = tower.tokenizer.clone();
        Some(TokenCounter::new(tokenizer, tower.length, weights))
    }

    /// Names of the networks' tensors.
    pub fn names(&self) -> Vec<(Network, Vec<String>)> {
        let towers = self.towers.iter().enumerate().map(|(i, tower)| {
            let names = tower.module.names().map(String::from).collect();
            (Network::Text(i), names)
        });
        let long = self.long.iter().enumerate();
        let long = long.map(|(i, long)| (Network::Long(i), long.names()));
        towers.chain(long).collect()
    }

    /// As [`Module::add`].
    ///
    /// # Errors
    /// Those of [`Module::add`]; if there is no such network.
    pub fn add(&mut self, network: Network, name: &str, change: &Change) -> CandleResult<()> {
        match network {
            Network::Text(i) if i < self.towers.len() => self.towers[i].module.add(name, change),
            Network::Long(i) if i < self.long.len() => self.long[i].add(name, change),
            other => candle_core::bail!("the model has no text encoder {other:?}"),
        }
    }

    /// As [`Module::restore`], of all networks.
    ///
    /// # Errors
    /// Those of [`Module::restore`].
    pub fn restore(&mut self) -> Result<()> {
        for tower in &mut self.towers {
            tower.module.restore()?;
        }
        self.long.iter_mut().try_for_each(LongText::restore)
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
        prompts: &[Prompt],
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
        if prompts.len() * longest > MOST_CHUNKS {
            return Err(Error::Usage(format!(
                "the prompt has {} texts on its way, of up to {longest} chunks each; {MOST_CHUNKS} chunks are possible in all",
                prompts.len()
            )));
        }
        let encoded = prompts
            .iter()
            .map(|prompt| self.encode_one(prompt, skip, longest, device, stop))
            .collect();
        self.long.iter_mut().for_each(LongText::rest);
        self.towers.iter_mut().for_each(|tower| tower.module.rest());
        encoded
    }

    fn encode_one(
        &mut self,
        prompt: &Prompt,
        skip: usize,
        length: usize,
        device: &Device,
        stop: Stop<'_>,
    ) -> Result<Option<Encoded>> {
        let key = Key {
            prompt: prompt.text.to_string(),
            weighted: prompt.weighted,
            negative: prompt.negative,
            keep_size: prompt.keep_size,
            pictures: match self.long.iter().any(LongText::sees) {
                true => prompt.pictures.iter().map(fingerprint).collect(),
                false => Vec::new(),
            },
            skip,
            chunks: length,
        };
        if let Some(at) = self.cache.iter().position(|(cached, _)| *cached == key) {
            let hit = self.cache.remove(at);
            self.cache.push(hit.clone());
            return Ok(Some(hit.1));
        }
        let mut towers = Vec::new();
        let mut pooled = Vec::new();
        for tower in &mut self.towers {
            let mut chunks = tower.chunks(prompt)?;
            pad_to(&mut chunks, length, &*tower.tokenizer);
            let Some((text, last)) = tower.encode(&chunks, skip, stop)? else {
                return Ok(None);
            };
            towers.push(text);
            pooled.push(last);
        }
        let mut long = Vec::new();
        for model in &mut self.long {
            if stop().is_break() {
                return Ok(None);
            }
            long.push(model.encode(prompt, device)?);
        }
        let texts = Texts {
            towers,
            pooled,
            long,
        };
        let encoded = (self.compose)(texts).map_err(Error::candle("encoding the prompt"))?;
        if self.cache.len() >= CACHE {
            self.cache.remove(0);
        }
        self.cache.push((key, encoded.clone()));
        Ok(Some(encoded))
    }
}

/// What tells pictures apart: size, and a hash of their bytes.
fn fingerprint(picture: &RgbImage) -> (u32, u32, u64) {
    let mut hasher = DefaultHasher::new();
    hasher.write(picture.as_raw());
    (picture.width(), picture.height(), hasher.finish())
}
