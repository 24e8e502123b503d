//! Texts to vectors: the encoders of sentence-transformers (BERT and its kin), and decoders that were trained for it,
//! from folders and GGUF files; and rerankers, which score documents for a query.

mod decoder;
mod encoder;
mod gguf;
mod pooling;
mod ranking;
mod shorten;

pub use pooling::Pooling;
pub use ranking::{Reranker, Score};

use crate::architectures::{
    by_base_name, by_folder_name, by_gguf_name, decoder_config, name_in_config, rows,
    ArchitectureRow, Engine,
};
use crate::folder::read_json;
use crate::hf::HfFolder;
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Device, Tensor};
use decoder::DecoderEmbedder;
use encoder::Encoder;
use pooling::pooling_type;
use serde_json::Value as Json;
use std::path::Path;
use worker::gguf::{Gguf, MappedGguf, Weights};
use worker::{Error, Result};

/// Tokens, padding included, that run at once: bounds the attention matrices.
const MAX_BATCH_TOKENS: usize = 16 * 512;

/// What gives the vectors of tokens.
enum Runner {
    Encoder(Encoder),
    Decoder(Box<DecoderEmbedder>),
}

/// An embedding model.
pub struct EmbeddingModel {
    runner: Runner,
    tokenizer: Tokenizer,
    /// How a text's vectors become one, if they do.
    pooling: Option<Pooling>,
    max_tokens: usize,
    dimensions: usize,
    device: Device,
}

/// A text's vector.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// Of length 1.
    pub values: Vec<f32>,
    /// Tokens that the text had, the model's own around it included.
    pub tokens: usize,
}

/// What a sentence-transformers folder says of pooling.
const POOLING_FOLDER: &str = "1_Pooling";

impl EmbeddingModel {
    /// Whether a folder or a GGUF file holds an embedding model that this module runs.
    pub fn recognises(path: &Path) -> bool {
        if path.is_dir() {
            return read_json(path, "config.json")
                .ok()
                .flatten()
                .is_some_and(|config| match folder_row(&config).map(|row| row.engine) {
                    Some(Engine::Encoder(_)) => true,
                    Some(Engine::Decoder { .. }) => path.join(POOLING_FOLDER).is_dir(),
                    _ => false,
                });
        }
        MappedGguf::open(path).is_ok_and(|file| {
            let header = file.header();
            match gguf_row(header).map(|row| row.engine) {
                _ if pooling_type(header) == Some(ranking::RANK) => false,
                Some(Engine::Encoder(_)) => true,
                Some(Engine::Decoder { .. }) => pooling_type(header).is_some_and(|kind| kind > 0),
                _ => false,
            }
        })
    }

    /// Opens a folder with `config.json`, `tokenizer.json` and safetensors files, or a GGUF file, and loads it:
    /// encoders in float32, decoders in the file's formats.
    ///
    /// # Errors
    /// [`Error::BadModel`] if it is damaged or of a kind that is not implemented, [`Error::Candle`] if the device has
    /// no room.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        if path.is_dir() {
            Self::open_folder(path, device)
        } else {
            Self::open_gguf(path, device)
        }
    }

    fn open_folder(path: &Path, device: &Device) -> Result<Self> {
        let bad = |reason: String| bad_model(path, reason);
        let config = read_json(path, "config.json")?
            .ok_or_else(|| bad("it has no config.json".to_string()))?;
        refuse_other_modules(path)?;
        let row = folder_row(&config);
        let runner = match row.map(|row| row.engine) {
            Some(Engine::Decoder { .. }) => {
                if !path.join(POOLING_FOLDER).is_dir() {
                    let class = name_in_config(&config);
                    return Err(bad(format!(
                        "{class} is not an embedding model: a decoder that was trained for it has {POOLING_FOLDER}, which says how its vectors become one"
                    )));
                }
                let bidirectional = &config["use_bidirectional_attention"];
                if !matches!(bidirectional, Json::Null | Json::Bool(false)) {
                    return Err(bad(
                        "config.json: use_bidirectional_attention is not implemented".to_string(),
                    ));
                }
                let decoder = load_decoder(&HfFolder::open_base(path)?, device)?;
                Runner::Decoder(Box::new(decoder))
            }
            Some(Engine::Encoder(kind)) => {
                Runner::Encoder(Encoder::load(path, &config, kind, device)?)
            }
            _ => {
                let encoders = rows().filter(|row| matches!(row.engine, Engine::Encoder(_)));
                let names: Vec<&str> = encoders.flat_map(|row| row.folders).copied().collect();
                return Err(bad(format!(
                    "architecture {} is not an embedding model that is implemented ({} are)",
                    name_in_config(&config),
                    names.join(", ")
                )));
            }
        };
        let tokenizer = Tokenizer::from_folder(path).map_err(|e| bad(e.to_string()))?;
        let settings = read_json(path, "sentence_bert_config.json")?.unwrap_or(Json::Null);
        let limit = settings["max_seq_length"]
            .as_u64()
            .map_or(usize::MAX, |n| n as usize);
        Self::new(
            path,
            runner,
            tokenizer,
            Pooling::of_folder(path)?,
            limit,
            device,
        )
    }

    fn open_gguf(path: &Path, device: &Device) -> Result<Self> {
        let bad = |reason: String| bad_model(path, reason);
        let file = MappedGguf::open(path)?;
        let header = file.header();
        let pooling = Pooling::of_gguf(header).map_err(bad)?;
        let tokenizer = Tokenizer::open(path, header).map_err(|e| bad(e.to_string()))?;
        let name = header.require_str("general.architecture");
        let name = name.map_err(|e| bad(e.to_string()))?.to_string();
        let runner = match by_gguf_name(&name).map(|row| row.engine) {
            Some(Engine::Encoder(kind)) => Runner::Encoder(Encoder::load_gguf(file, kind, device)?),
            Some(Engine::Decoder { .. }) => {
                if pooling_type(header).is_none() {
                    return Err(bad(format!(
                        "{name} is not an embedding model: a decoder that was trained for it has {name}.pooling_type"
                    )));
                }
                let causal = header.get_bool(&format!("{name}.attention.causal"));
                if causal.is_ok_and(|causal| causal == Some(false)) {
                    return Err(bad(format!(
                        "metadata {name}.attention.causal false is not implemented"
                    )));
                }
                Runner::Decoder(Box::new(load_decoder(&file, device)?))
            }
            _ => {
                return Err(bad(format!(
                    "architecture {name} is not an embedding model that is implemented"
                )))
            }
        };
        Self::new(path, runner, tokenizer, pooling, usize::MAX, device)
    }

    fn new(
        path: &Path,
        runner: Runner,
        tokenizer: Tokenizer,
        pooling: Pooling,
        limit: usize,
        device: &Device,
    ) -> Result<Self> {
        let (dimensions, own) = match &runner {
            Runner::Encoder(encoder) => (encoder.width(), encoder.max_tokens()),
            Runner::Decoder(decoder) => (decoder.width(), decoder.max_tokens()),
        };
        let max_tokens = limit.min(own);
        if max_tokens < 2 {
            let reason = format!("texts of at most {max_tokens} tokens");
            return Err(bad_model(path, reason));
        }
        Ok(Self {
            pooling: Some(pooling),
            dimensions,
            device: device.clone(),
            max_tokens,
            runner,
            tokenizer,
        })
    }

    /// Numbers in a vector.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Longest text in tokens; more is cut off.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Takes another way to make one vector of those of a text's tokens than the model was made for, or none.
    #[must_use]
    pub fn with_pooling(self, pooling: Option<Pooling>) -> Self {
        Self { pooling, ..self }
    }

    /// Whether a text has one vector; else it has one for each token.
    pub fn is_pooled(&self) -> bool {
        self.pooling.is_some()
    }

    /// The tokens of a text with those that the model has around it, at most `most` of them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that the vocabulary cannot express.
    pub fn tokens(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        let tokens = self.tokenizer.encode_framed(beginning(text, most), most);
        tokens.map_err(|e| Error::Usage(e.to_string()))
    }

    /// The tokens of a part of a text, more of it than the model takes left out.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that the vocabulary cannot express.
    pub fn plain_tokens(&self, text: &str) -> Result<Vec<u32>> {
        let tokens = self
            .tokenizer
            .encode(beginning(text, self.max_tokens + 1), false);
        tokens.map_err(|e| Error::Usage(e.to_string()))
    }

    /// Tokens that are too many, cut; the last one, which ends the text, stays.
    pub fn cut(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        if tokens.len() > self.max_tokens {
            let last = tokens.pop();
            tokens.truncate(self.max_tokens - 1);
            tokens.extend(last);
        }
        tokens
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The vectors of texts, each of length 1, in their order.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that the vocabulary cannot express, [`Error::Candle`] if the device fails.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Vec<Embedding>> {
        let tokens = texts
            .iter()
            .map(|text| self.tokens(text.as_ref(), self.max_tokens))
            .collect::<Result<Vec<_>>>()?;
        self.embed_tokens(&tokens)
    }

    /// The same of texts that are tokens already, with everything around them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that is empty or too long, or a token outside of the vocabulary; [`Error::Candle`]
    /// if the device fails.
    pub fn embed_tokens(&self, texts: &[Vec<u32>]) -> Result<Vec<Embedding>> {
        let Some(pooling) = self.pooling else {
            return Err(Error::Usage(
                "this model is set to give a vector for each token (--pooling none), not one for a text; ask /embeddings"
                    .to_string(),
            ));
        };
        let vectors = self.in_batches(texts, |hidden, mask| {
            let pooled = pooling.apply(hidden, mask)?;
            let norm = pooled
                .sqr()?
                .sum_keepdim(1)?
                .sqrt()?
                .clamp(1e-12, f64::MAX)?;
            pooled.broadcast_div(&norm)?.to_vec2()
        })?;
        let all = vectors.into_iter().zip(texts);
        let of_text = |(values, text): (Vec<f32>, &Vec<u32>)| Embedding {
            values,
            tokens: text.len(),
        };
        Ok(all.map(of_text).collect())
    }

    /// The vectors of texts that are tokens, as the model gives them: one for each text, or for each token where there
    /// is no [pooling](Self::with_pooling).
    ///
    /// # Errors
    /// See [`Self::embed_tokens`].
    pub fn raw_vectors(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<Vec<f32>>>> {
        let mut vectors = match self.pooling {
            Some(pooling) => self.in_batches(texts, |hidden, mask| {
                let pooled = pooling.apply(hidden, mask)?.to_vec2()?;
                Ok(pooled.into_iter().map(|vector| vec![vector]).collect())
            })?,
            None => self.in_batches(texts, |hidden, _| hidden.to_vec3())?,
        };
        for (vectors, text) in vectors.iter_mut().zip(texts) {
            // Those of padding come last.
            vectors.truncate(text.len());
        }
        Ok(vectors)
    }

    /// What `finish` makes of the vectors of tokens, for each text; texts of like length run together.
    fn in_batches<T: Clone>(
        &self,
        texts: &[Vec<u32>],
        finish: impl Fn(&Tensor, &Tensor) -> candle_core::Result<Vec<T>>,
    ) -> Result<Vec<T>> {
        for (i, tokens) in texts.iter().enumerate() {
            let (count, most) = (tokens.len(), self.max_tokens);
            if count == 0 || count > most {
                return Err(Error::Usage(format!(
                    "input {i} has {count} tokens; 1 to {most} are possible"
                )));
            }
            let vocabulary = match &self.runner {
                Runner::Encoder(encoder) => encoder.vocab_size(),
                Runner::Decoder(decoder) => decoder.vocab_size(),
            };
            if let Some(token) = tokens.iter().find(|&&t| t as usize >= vocabulary) {
                return Err(Error::Usage(format!(
                    "input {i}: there is no token {token}, the model has {vocabulary}"
                )));
            }
        }
        // Texts of like length together waste the least on padding.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|&i| texts[i].len());
        let mut embeddings = vec![None; texts.len()];
        let mut rest = &order[..];
        while !rest.is_empty() {
            let count = (1..=rest.len())
                .take_while(|&n| n * texts[rest[n - 1]].len() <= MAX_BATCH_TOKENS)
                .last()
                .unwrap_or(1);
            let (batch, later) = rest.split_at(count);
            let batch_texts: Vec<&[u32]> = batch.iter().map(|&i| &texts[i][..]).collect();
            let made = self
                .run(&batch_texts)
                .and_then(|(hidden, mask)| finish(&hidden, &mask))
                .map_err(Error::candle("computing embeddings"))?;
            for (&i, of_text) in batch.iter().zip(made) {
                embeddings[i] = Some(of_text);
            }
            rest = later;
        }
        Ok(embeddings.into_iter().flatten().collect())
    }

    /// The vectors of all tokens, and which of them are texts' own.
    fn run(&self, texts: &[&[u32]]) -> candle_core::Result<(Tensor, Tensor)> {
        let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let padded = |fill: u32, value: &dyn Fn(u32) -> u32| -> Vec<u32> {
            let row = |text: &&[u32]| -> Vec<u32> {
                let own = text.iter().map(|&t| value(t));
                own.chain(std::iter::repeat(fill)).take(longest).collect()
            };
            texts.iter().flat_map(row).collect()
        };
        let shape = (texts.len(), longest);
        let mask = Tensor::from_vec(padded(0, &|_| 1), shape, &self.device)?;
        let hidden = match &self.runner {
            Runner::Encoder(encoder) => {
                let ids = padded(encoder.pad_token(), &|t| t);
                let ids = Tensor::from_vec(ids, shape, &self.device)?;
                encoder.forward(&ids, &mask)?
            }
            Runner::Decoder(decoder) => {
                // Rows of texts lie behind each other; those of padding are any, the mask leaves them out.
                let mut next = 0..;
                let row = |text: &&[u32]| -> Vec<u32> {
                    let own = next.by_ref().take(text.len()).collect::<Vec<u32>>();
                    let padding = std::iter::repeat_n(0, longest - text.len());
                    own.into_iter().chain(padding).collect()
                };
                let rows: Vec<u32> = texts.iter().flat_map(row).collect();
                let rows = Tensor::new(rows, &self.device)?;
                let hidden = decoder.forward(texts)?.index_select(&rows, 0)?;
                hidden.reshape((texts.len(), longest, self.dimensions))?
            }
        };
        Ok((hidden.to_dtype(DType::F32)?, mask))
    }
}

/// The beginning of a text, which surely has as many tokens as count: the rest would be tokenized, in a hundred times its
/// memory, to be thrown away.
fn beginning(text: &str, max_tokens: usize) -> &str {
    const LEAST_BYTES: usize = 64 << 10;
    const BYTES_PER_TOKEN: usize = 128;
    let most = max_tokens.saturating_mul(BYTES_PER_TOKEN).max(LEAST_BYTES);
    worker::text::beginning(text, most)
}

fn bad_model(path: &Path, reason: String) -> Error {
    Error::BadModel {
        path: path.to_path_buf(),
        reason,
    }
}

/// The architecture of a configuration, of models with output matrix or without.
fn folder_row(config: &Json) -> Option<&'static ArchitectureRow> {
    let name = name_in_config(config);
    by_folder_name(name).or_else(|| by_base_name(name))
}

/// The architecture of a file.
fn gguf_row(header: &Gguf) -> Option<&'static ArchitectureRow> {
    by_gguf_name(header.get_str("general.architecture").ok()??)
}

fn load_decoder(file: &dyn Weights, device: &Device) -> Result<DecoderEmbedder> {
    let config = decoder_config(file.header());
    let config = config.map_err(|e| bad_model(file.path(), e.to_string()))?;
    DecoderEmbedder::load(config, file, device)
}

/// What sentence-transformers would do to vectors beyond pooling them and making them of length 1.
fn refuse_other_modules(path: &Path) -> Result<()> {
    let modules = read_json(path, "modules.json")?.unwrap_or(Json::Null);
    let kinds = modules.as_array().into_iter().flatten();
    let mut kinds = kinds.filter_map(|module| module["type"].as_str()?.rsplit('.').next());
    match kinds.find(|kind| !["Transformer", "Pooling", "Normalize"].contains(kind)) {
        Some(kind) => Err(bad_model(
            path,
            format!("modules.json: a module of type {kind} is not implemented"),
        )),
        None => Ok(()),
    }
}
