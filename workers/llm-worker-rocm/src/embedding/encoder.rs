//! The encoders of candle-transformers behind one type.

use super::gguf;
use crate::architectures::EncoderKind;
use crate::folder::weight_files;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, modernbert, nomic_bert, xlm_roberta};
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::path::Path;
use worker::gguf::{MappedGguf, Weights};
use worker::{file, Error, Result};

/// Widest and deepest that a configuration may claim.
const MAX_DIMENSION: usize = 1 << 24;

/// An encoder with what its inputs need.
pub(super) struct Encoder {
    model: Model,
    width: usize,
    vocab_size: usize,
    max_tokens: usize,
    pad_token: u32,
}

enum Model {
    Bert(Box<bert::BertModel>),
    XlmRoberta(Box<xlm_roberta::XLMRobertaModel>),
    ModernBert(Box<modernbert::ModernBert>),
    NomicBert(Box<nomic_bert::NomicBertModel>),
}

impl Encoder {
    /// The encoder of a folder with this `config.json`.
    pub(super) fn load(
        folder: &Path,
        config: &Json,
        kind: EncoderKind,
        device: &Device,
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: folder.to_path_buf(),
            reason,
        };
        check_numbers(config).map_err(bad)?;
        let files = weight_files(folder)?;
        file::check_all(&files)?;
        // SAFETY: the files are mapped read-only and must not be changed while the model loads; the parser checks every
        // offset.
        let weights = unsafe { VarBuilder::from_mmaped_safetensors(&files, DType::F32, device) }
            .map_err(|e| bad(format!("damaged weights: {e}")))?;
        let loading = Error::candle("loading the embedding model");
        let pad = config["pad_token_id"].as_u64().unwrap_or(0) as u32;
        let encoder = match kind {
            EncoderKind::Bert => {
                let config: bert::Config = parse(config).map_err(bad)?;
                divides(config.hidden_size, config.num_attention_heads).map_err(bad)?;
                Self {
                    model: Model::Bert(Box::new(
                        bert::BertModel::load(weights, &config).map_err(loading)?,
                    )),
                    width: config.hidden_size,
                    vocab_size: config.vocab_size,
                    max_tokens: config.max_position_embeddings,
                    pad_token: pad,
                }
            }
            EncoderKind::XlmRoberta => {
                let config: xlm_roberta::Config = parse(config).map_err(bad)?;
                divides(config.hidden_size, config.num_attention_heads).map_err(bad)?;
                let weights =
                    match weights.contains_tensor("roberta.embeddings.word_embeddings.weight") {
                        true => weights.pp("roberta"),
                        false => weights,
                    };
                Self {
                    width: config.hidden_size,
                    vocab_size: config.vocab_size,
                    // Positions count from behind the padding's.
                    max_tokens: config
                        .max_position_embeddings
                        .saturating_sub(pad as usize + 1),
                    pad_token: pad,
                    model: Model::XlmRoberta(Box::new(
                        xlm_roberta::XLMRobertaModel::new(&config, weights).map_err(loading)?,
                    )),
                }
            }
            EncoderKind::ModernBert => {
                let config: modernbert::Config = parse(config).map_err(bad)?;
                divides(config.hidden_size, config.num_attention_heads).map_err(bad)?;
                if config.global_attn_every_n_layers == 0 {
                    return Err(bad("global_attn_every_n_layers is 0".to_string()));
                }
                // Files of the bare encoder lack the prefix that the model code asks for.
                let weights =
                    match weights.contains_tensor("model.embeddings.tok_embeddings.weight") {
                        true => weights,
                        false => weights.rename_f(|name: &str| {
                            name.strip_prefix("model.").unwrap_or(name).to_string()
                        }),
                    };
                Self {
                    width: config.hidden_size,
                    vocab_size: config.vocab_size,
                    max_tokens: config.max_position_embeddings,
                    pad_token: pad,
                    model: Model::ModernBert(Box::new(
                        modernbert::ModernBert::load(weights, &config).map_err(loading)?,
                    )),
                }
            }
            EncoderKind::NomicBert => {
                let config: nomic_bert::Config = parse(config).map_err(bad)?;
                divides(config.n_embd, config.n_head).map_err(bad)?;
                if config.prenorm || config.activation_function != "swiglu" {
                    return Err(bad(format!(
                        "a NomicBert with prenorm {} and activation {} is not implemented",
                        config.prenorm, config.activation_function
                    )));
                }
                Self {
                    width: config.n_embd,
                    vocab_size: config.vocab_size,
                    max_tokens: config.n_positions,
                    pad_token: pad,
                    model: Model::NomicBert(Box::new(
                        nomic_bert::NomicBertModel::load(weights, &config).map_err(loading)?,
                    )),
                }
            }
        };
        Ok(encoder)
    }

    /// The encoder of a GGUF file.
    pub(super) fn load_gguf(file: MappedGguf, kind: EncoderKind, device: &Device) -> Result<Self> {
        let path = file.path().to_path_buf();
        let bad = |reason: String| Error::BadModel {
            path: path.clone(),
            reason,
        };
        // Whatever is missing or of another shape is named by the loader.
        let loading = |e: candle_core::Error| bad(e.to_string());
        match kind {
            EncoderKind::Bert => {
                let config = gguf::bert_config(file.header()).map_err(bad)?;
                divides(config.hidden_size, config.num_attention_heads).map_err(bad)?;
                let weights = gguf::weights(file, gguf::BERT, device);
                let model = bert::BertModel::load(weights, &config).map_err(loading)?;
                Ok(Self {
                    model: Model::Bert(Box::new(model)),
                    width: config.hidden_size,
                    vocab_size: config.vocab_size,
                    max_tokens: config.max_position_embeddings,
                    pad_token: 0,
                })
            }
            EncoderKind::NomicBert => {
                let config = gguf::nomic_bert_config(file.header()).map_err(bad)?;
                divides(config.n_embd, config.n_head).map_err(bad)?;
                let weights = gguf::weights(file, gguf::NOMIC_BERT, device);
                let model = nomic_bert::NomicBertModel::load(weights, &config).map_err(loading)?;
                Ok(Self {
                    model: Model::NomicBert(Box::new(model)),
                    width: config.n_embd,
                    vocab_size: config.vocab_size,
                    max_tokens: config.n_positions,
                    pad_token: 0,
                })
            }
            kind => Err(bad(format!(
                "GGUF files of {kind:?} are not implemented; take a folder"
            ))),
        }
    }

    /// Vectors of all tokens, `(texts, tokens, width)`; `ids` and `mask` are `(texts, tokens)`.
    pub(super) fn forward(&self, ids: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
        self.forward_types(ids, &ids.zeros_like()?, mask)
    }

    /// The same of texts in two parts, for BERT: `types` is 1 in the second.
    pub(super) fn forward_types(
        &self,
        ids: &Tensor,
        types: &Tensor,
        mask: &Tensor,
    ) -> candle_core::Result<Tensor> {
        match &self.model {
            Model::Bert(model) => model.forward(ids, types, Some(mask)),
            Model::XlmRoberta(model) => {
                model.forward(ids, mask, &ids.zeros_like()?, None, None, None)
            }
            Model::ModernBert(model) => model.forward(ids, mask),
            Model::NomicBert(model) => model.forward(ids, None, Some(mask)),
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    pub(super) fn pad_token(&self) -> u32 {
        self.pad_token
    }
}

/// Sizes multiply in the model code; none may be absurd.
fn check_numbers(config: &Json) -> std::result::Result<(), String> {
    for (key, value) in config.as_object().into_iter().flatten() {
        if value.as_u64().is_some_and(|n| n > MAX_DIMENSION as u64) {
            return Err(format!("config.json: {key} is {value}, which no model has"));
        }
    }
    Ok(())
}

fn divides(width: usize, heads: usize) -> std::result::Result<(), String> {
    if heads == 0 || width == 0 || !width.is_multiple_of(heads) {
        return Err(format!(
            "config.json: {heads} heads cannot share a width of {width}"
        ));
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(config: &Json) -> std::result::Result<T, String> {
    serde_json::from_value(config.clone()).map_err(|e| format!("config.json: {e}"))
}
