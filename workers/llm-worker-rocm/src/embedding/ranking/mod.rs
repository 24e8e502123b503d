//! How well documents answer a query: cross-encoders (BERT and its kin with a classifier of one label), and decoders that
//! were trained to say "yes" or "no" (Qwen3-Reranker), from folders and GGUF files.

mod decoder;
mod head;
mod prompt;

use super::encoder::Encoder;
use super::pooling::pooling_type;
use super::{bad_model, MAX_BATCH_TOKENS};
use crate::architectures::{by_folder_name, by_gguf_name, name_in_config, EncoderKind, Engine};
use crate::folder::{read_json, weight_files};
use crate::hf::HfFolder;
use crate::tokenizer::{Pair, Tokenizer};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use decoder::YesNo;
use head::Head;
use prompt::Prompt;
use serde_json::Value as Json;
use std::path::Path;
use worker::gguf::{MappedGguf, Weights};
use worker::{Error, Result};

/// GGUF's number of the pooling that gives scores.
pub(super) const RANK: u32 = 4;

/// Names of cross-encoders in `config.json`.
const CROSS_ENCODERS: [(&str, EncoderKind); 4] = [
    ("BertForSequenceClassification", EncoderKind::Bert),
    ("RobertaForSequenceClassification", EncoderKind::XlmRoberta),
    (
        "XLMRobertaForSequenceClassification",
        EncoderKind::XlmRoberta,
    ),
    (
        "ModernBertForSequenceClassification",
        EncoderKind::ModernBert,
    ),
];

/// The only architecture of decoders whose rerankers are known.
const DECODER: &str = "qwen3";

enum Runner {
    Encoder(Box<Encoder>, Head),
    Decoder(Box<YesNo>, Prompt),
}

/// A model that scores documents.
pub struct Reranker {
    runner: Runner,
    tokenizer: Tokenizer,
    max_tokens: usize,
    device: Device,
}

/// How well a document answers a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// From 0 to 1: the sigmoid of a classifier's number, or the probability of "yes" beside "no".
    pub relevance: f32,
    /// Tokens of query and document with what the model has around them.
    pub tokens: usize,
}

impl Reranker {
    /// Whether a folder or a GGUF file holds a model that does nothing else. A folder of Qwen3-Reranker is not known
    /// from one that answers.
    pub fn recognises(path: &Path) -> bool {
        if path.is_dir() {
            let config = read_json(path, "config.json").ok().flatten();
            return config.is_some_and(|config| cross_encoder(&config).is_some());
        }
        MappedGguf::open(path).is_ok_and(|file| pooling_type(file.header()) == Some(RANK))
    }

    /// Opens and loads a model.
    ///
    /// # Errors
    /// [`Error::BadModel`] if it is damaged or gives no scores, [`Error::Candle`] if the device has no room.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let bad = |reason: String| bad_model(path, reason);
        let tokenizer_error = |e: crate::tokenizer::TokenizerError| bad(e.to_string());
        if !path.is_dir() {
            return Self::open_gguf(path, device);
        }
        let config = read_json(path, "config.json")?
            .ok_or_else(|| bad("it has no config.json".to_string()))?;
        let tokenizer = Tokenizer::from_folder(path).map_err(tokenizer_error)?;
        let Some(kind) = cross_encoder(&config) else {
            let name = name_in_config(&config);
            if by_folder_name(name).is_none_or(|row| row.gguf != Some(DECODER)) {
                let known: Vec<&str> = CROSS_ENCODERS.iter().map(|(name, _)| *name).collect();
                return Err(bad(format!(
                    "{name} gives no scores; Qwen3-Reranker (Qwen3ForCausalLM) does, and {}",
                    known.join(", ")
                )));
            }
            let folder = HfFolder::open(path)?;
            return Self::of_decoder(path, &folder, tokenizer, Prompt::default(), device);
        };
        let encoder = Encoder::load(path, &config, kind, device)?;
        let files = weight_files(path)?;
        // SAFETY: the files are mapped read-only and must not be changed while the model loads; the parser checks every
        // offset.
        let weights = unsafe { VarBuilder::from_mmaped_safetensors(&files, DType::F32, device) }
            .map_err(|e| bad(format!("damaged weights: {e}")))?;
        let head = Head::of_folder(kind, &config, &weights, encoder.width()).map_err(bad)?;
        Ok(Self {
            max_tokens: encoder.max_tokens(),
            runner: Runner::Encoder(Box::new(encoder), head),
            tokenizer,
            device: device.clone(),
        })
    }

    fn open_gguf(path: &Path, device: &Device) -> Result<Self> {
        let bad = |reason: String| bad_model(path, reason);
        let file = MappedGguf::open(path)?;
        let header = file.header();
        if pooling_type(header) != Some(RANK) {
            return Err(bad(format!(
                "its pooling_type is not {RANK}: it gives no scores"
            )));
        }
        let tokenizer = Tokenizer::open(path, header).map_err(|e| bad(e.to_string()))?;
        let name = header.require_str("general.architecture");
        let name = name.map_err(|e| bad(e.to_string()))?.to_string();
        match by_gguf_name(&name).map(|row| row.engine) {
            Some(Engine::Encoder(kind)) => {
                let head_file = MappedGguf::open(path)?;
                let encoder = Encoder::load_gguf(file, kind, device)?;
                let head = Head::of_gguf(&head_file, encoder.width(), device).map_err(bad)?;
                Ok(Self {
                    max_tokens: encoder.max_tokens(),
                    runner: Runner::Encoder(Box::new(encoder), head),
                    tokenizer,
                    device: device.clone(),
                })
            }
            Some(Engine::Decoder { .. }) if name == DECODER => {
                let prompt = Prompt::of_gguf(header).map_err(bad)?;
                Self::of_decoder(path, &file, tokenizer, prompt, device)
            }
            _ => Err(bad(format!(
                "a reranker of architecture {name} is not implemented"
            ))),
        }
    }

    fn of_decoder(
        path: &Path,
        file: &dyn Weights,
        tokenizer: Tokenizer,
        prompt: Prompt,
        device: &Device,
    ) -> Result<Self> {
        let model = YesNo::load(path, file, &tokenizer, device)?;
        Ok(Self {
            max_tokens: model.max_tokens(),
            runner: Runner::Decoder(Box::new(model), prompt),
            tokenizer,
            device: device.clone(),
        })
    }

    /// Longest query and document together in tokens; longer documents are cut.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// A score for each document, in their order.
    ///
    /// # Errors
    /// [`Error::Usage`] for a text that the vocabulary cannot express or a query that leaves no room for documents,
    /// [`Error::Candle`] if the device fails.
    pub fn score<T: AsRef<str>>(&self, query: &str, documents: &[T]) -> Result<Vec<Score>> {
        let usage = |e: &dyn std::fmt::Display| Error::Usage(e.to_string());
        let pairs = documents.iter().map(|document| {
            let document = super::beginning(document.as_ref(), self.max_tokens);
            match &self.runner {
                Runner::Encoder(..) => self
                    .tokenizer
                    .encode_pair(query, document, self.max_tokens)
                    .map_err(|e| usage(&e)),
                Runner::Decoder(_, prompt) => prompt
                    .tokens(&self.tokenizer, query, document, self.max_tokens)
                    .map_err(|e| usage(&e)),
            }
        });
        self.score_pairs(&pairs.collect::<Result<Vec<_>>>()?)
    }

    /// The same of queries and documents that are tokens already, with everything around them.
    ///
    /// # Errors
    /// [`Error::Usage`] for a pair that is empty or too long, [`Error::Candle`] if the device fails.
    pub fn score_pairs(&self, pairs: &[Pair]) -> Result<Vec<Score>> {
        for (i, pair) in pairs.iter().enumerate() {
            let (count, most) = (pair.ids.len(), self.max_tokens);
            if count == 0 || count > most {
                return Err(Error::Usage(format!(
                    "document {i} has {count} tokens with the query; 1 to {most} are possible"
                )));
            }
        }
        // Pairs of like length together waste the least on padding.
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        order.sort_by_key(|&i| pairs[i].ids.len());
        let mut scores = vec![None; pairs.len()];
        let mut rest = &order[..];
        while !rest.is_empty() {
            let count = (1..=rest.len())
                .take_while(|&n| n * pairs[rest[n - 1]].ids.len() <= MAX_BATCH_TOKENS)
                .last()
                .unwrap_or(1);
            let (batch, later) = rest.split_at(count);
            let texts: Vec<&Pair> = batch.iter().map(|&i| &pairs[i]).collect();
            let found = self
                .run(&texts)
                .map_err(Error::candle("computing scores"))?;
            for (&i, relevance) in batch.iter().zip(found) {
                scores[i] = Some(Score {
                    relevance,
                    tokens: pairs[i].ids.len(),
                });
            }
            rest = later;
        }
        Ok(scores.into_iter().flatten().collect())
    }

    fn run(&self, pairs: &[&Pair]) -> candle_core::Result<Vec<f32>> {
        let (encoder, head) = match &self.runner {
            Runner::Decoder(model, _) => {
                let texts: Vec<&[u32]> = pairs.iter().map(|pair| &pair.ids[..]).collect();
                return model.probabilities(&texts);
            }
            Runner::Encoder(encoder, head) => (encoder, head),
        };
        let longest = pairs.iter().map(|pair| pair.ids.len()).max().unwrap_or(0);
        let padded = |values: &dyn Fn(&Pair) -> Vec<u32>, fill: u32| {
            let row = |pair: &&Pair| {
                let mut row = values(pair);
                row.resize(longest, fill);
                row
            };
            let rows: Vec<u32> = pairs.iter().flat_map(row).collect();
            Tensor::from_vec(rows, (pairs.len(), longest), &self.device)
        };
        let ids = padded(&|pair| pair.ids.clone(), encoder.pad_token())?;
        let types = padded(&|pair| pair.types.clone(), 0)?;
        let mask = padded(&|pair| vec![1; pair.ids.len()], 0)?;
        let hidden = encoder.forward_types(&ids, &types, &mask)?;
        let numbers = head.forward(&hidden.to_dtype(DType::F32)?, &mask)?;
        Ok(numbers
            .into_iter()
            .map(|x| 1.0 / (1.0 + (-x).exp()))
            .collect())
    }
}

/// The cross-encoder of a configuration.
fn cross_encoder(config: &Json) -> Option<EncoderKind> {
    let name = name_in_config(config);
    CROSS_ENCODERS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, kind)| *kind)
}
