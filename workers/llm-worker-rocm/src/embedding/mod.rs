//! Texts to vectors, with the encoders of sentence-transformers: BERT and its kin from safetensors folders.

mod encoder;
mod pooling;

pub use pooling::Pooling;

use crate::hf::read_json;
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Device, Tensor};
use encoder::Encoder;
use serde_json::Value as Json;
use std::path::Path;
use worker::{Error, Result};

/// Tokens, padding included, that run at once: bounds the attention matrices.
const MAX_BATCH_TOKENS: usize = 16 * 512;

/// An embedding model.
pub struct EmbeddingModel {
    encoder: Encoder,
    tokenizer: Tokenizer,
    pooling: Pooling,
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

impl EmbeddingModel {
    /// Whether a model folder holds an embedding model that this module runs.
    pub fn recognises(path: &Path) -> bool {
        read_json(path, "config.json")
            .ok()
            .flatten()
            .is_some_and(|config| Encoder::recognises(&config))
    }

    /// Opens a folder with `config.json`, `tokenizer.json` and safetensors files, and loads it in float32.
    ///
    /// # Errors
    /// [`Error::BadModel`] if it is damaged or of a kind that is not implemented, [`Error::Candle`] if the device has no room.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let config = read_json(path, "config.json")?
            .ok_or_else(|| bad("it has no config.json".to_string()))?;
        let encoder = Encoder::load(path, &config, device)?;
        let tokenizer = Tokenizer::from_folder(path).map_err(|e| bad(e.to_string()))?;
        let settings = read_json(path, "sentence_bert_config.json")?.unwrap_or(Json::Null);
        let limit = settings["max_seq_length"]
            .as_u64()
            .map_or(usize::MAX, |n| n as usize);
        let max_tokens = limit.min(encoder.max_tokens());
        if max_tokens < 2 {
            return Err(bad(format!("texts of at most {max_tokens} tokens")));
        }
        Ok(Self {
            pooling: Pooling::of_folder(path)?,
            dimensions: encoder.width(),
            device: device.clone(),
            max_tokens,
            encoder,
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
            .map(|text| self.tokenizer.encode_framed(text.as_ref(), self.max_tokens))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|e| Error::Usage(e.to_string()))?;
        self.embed_tokens(&tokens)
    }

    /// The same of texts that are tokens already, with everything around them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that is empty or too long, or a token outside of the vocabulary; [`Error::Candle`] if the device fails.
    pub fn embed_tokens(&self, texts: &[Vec<u32>]) -> Result<Vec<Embedding>> {
        for (i, tokens) in texts.iter().enumerate() {
            let (count, most) = (tokens.len(), self.max_tokens);
            if count == 0 || count > most {
                return Err(Error::Usage(format!(
                    "input {i} has {count} tokens; 1 to {most} are possible"
                )));
            }
            let vocabulary = self.encoder.vocab_size();
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
            let vectors = self
                .run(&batch_texts)
                .map_err(Error::candle("computing embeddings"))?;
            for (&i, values) in batch.iter().zip(vectors) {
                embeddings[i] = Some(Embedding {
                    values,
                    tokens: texts[i].len(),
                });
            }
            rest = later;
        }
        Ok(embeddings.into_iter().flatten().collect())
    }

    fn run(&self, texts: &[&[u32]]) -> candle_core::Result<Vec<Vec<f32>>> {
        let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let padded = |fill: u32, value: &dyn Fn(u32) -> u32| -> Vec<u32> {
            let row = |text: &&[u32]| -> Vec<u32> {
                let own = text.iter().map(|&t| value(t));
                own.chain(std::iter::repeat(fill)).take(longest).collect()
            };
            texts.iter().flat_map(row).collect()
        };
        let shape = (texts.len(), longest);
        let ids = Tensor::from_vec(
            padded(self.encoder.pad_token(), &|t| t),
            shape,
            &self.device,
        )?;
        let mask = Tensor::from_vec(padded(0, &|_| 1), shape, &self.device)?;
        let hidden = self.encoder.forward(&ids, &mask)?.to_dtype(DType::F32)?;
        let pooled = self.pooling.apply(&hidden, &mask)?;
        let norm = pooled
            .sqr()?
            .sum_keepdim(1)?
            .sqrt()?
            .clamp(1e-12, f64::MAX)?;
        pooled.broadcast_div(&norm)?.to_vec2()
    }
}
