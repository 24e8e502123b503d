//! Prompts of many tokens through a language model: T5 for Stable Diffusion 3 and FLUX.1, Qwen3 for Z-Image.

use super::module::Module;
use crate::models::config::within;
use crate::models::qwen3::Qwen3Encoder;
use crate::models::t5::T5Encoder;
use crate::prompt::tokenizer::library_tokenizer;
use crate::prompt::{parse, Segment};
use crate::weights::folder::Folder;
use crate::weights::{packed, Weights};
use candle_core::{DType, Device, Tensor};
use candle_transformers::models::t5::Config as T5Config;
use candle_transformers::models::z_image::text_encoder::TextEncoderConfig;
use std::path::Path;
use tokenizers::Tokenizer;
use worker::{Error, Result};

/// Most tokens of a prompt for Z-Image, as in its training.
const QWEN_TOKENS: usize = 512;

enum Network {
    T5 {
        module: Module<T5Encoder>,
        length: usize,
        pad: u32,
        end: u32,
    },
    Qwen(Module<Qwen3Encoder>),
}

/// A language model's files.
pub enum LongModel {
    /// T5's encoder.
    T5 {
        /// Sizes.
        config: T5Config,
        /// Tensors.
        weights: Weights,
        /// Its tokenizer.
        tokenizer: Tokenizer,
        /// Tokens to which prompts are filled up.
        length: usize,
    },
    /// Qwen3 as Z-Image reads it.
    Qwen {
        /// Sizes.
        config: TextEncoderConfig,
        /// Tensors.
        weights: Weights,
        /// Its tokenizer.
        tokenizer: Tokenizer,
    },
}

impl LongModel {
    /// Its tensors.
    pub fn weights(&self) -> &Weights {
        match self {
            Self::T5 { weights, .. } | Self::Qwen { weights, .. } => weights,
        }
    }

    /// The same, of which what is in 8-bit floats is loaded as wider numbers.
    #[must_use]
    pub fn expanded(mut self) -> Self {
        let (Self::T5 { weights, .. } | Self::Qwen { weights, .. }) = &mut self;
        *weights = std::mem::take(weights).expanded();
        self
    }

    /// T5's encoder from a part of a model.
    ///
    /// # Errors
    /// If configuration, tokenizer or weights are missing or damaged.
    pub fn t5(folder: &Folder, encoder: &str, tokenizer: &str, length: usize) -> Result<Self> {
        let part = folder.part(encoder);
        let config: T5Config = part.config()?;
        check_t5(&config).map_err(|e| part.bad_config(e))?;
        Ok(Self::T5 {
            config,
            weights: part.weights()?,
            tokenizer: open_tokenizer(folder, &format!("{tokenizer}/tokenizer.json"))?,
            length,
        })
    }

    /// T5's encoder without a configuration; `tokenizer` is a file of `folder`.
    ///
    /// # Errors
    /// If its tensors make no model, or the tokenizer is missing or damaged.
    pub fn t5_alone(
        path: &Path,
        weights: Weights,
        folder: &Folder,
        tokenizer: &str,
        length: usize,
    ) -> Result<Self> {
        let config = packed::t5_config(&weights)
            .and_then(|config| check_t5(&config).map(|()| config))
            .map_err(|reason| Error::BadModel {
                path: path.to_path_buf(),
                reason: format!("T5: {reason}"),
            })?;
        Ok(Self::T5 {
            config,
            weights,
            tokenizer: open_tokenizer(folder, tokenizer)?,
            length,
        })
    }

    /// Qwen3 from a part of a model.
    ///
    /// # Errors
    /// If configuration, tokenizer or weights are missing or damaged.
    pub fn qwen(folder: &Folder) -> Result<Self> {
        let part = folder.part("text_encoder");
        let mut json: serde_json::Value = part.config()?;
        // Newer transformers write the rotations' settings together.
        if json.get("rope_theta").is_none() {
            if let Some(theta) = json.pointer("/rope_parameters/rope_theta").cloned() {
                json["rope_theta"] = theta;
            }
        }
        let config: TextEncoderConfig =
            serde_json::from_value(json).map_err(|e| part.bad_config(e.to_string()))?;
        check_qwen(&config).map_err(|e| part.bad_config(e))?;
        let tokenizer = open_tokenizer(folder, "tokenizer/tokenizer.json")?;
        Ok(Self::of_qwen(
            config,
            qwen_names(&part.weights()?),
            tokenizer,
        ))
    }

    /// Qwen3 without a configuration; `tokenizer` is a file of `folder`.
    ///
    /// # Errors
    /// If its tensors make no model, or the tokenizer is missing or damaged.
    pub fn qwen_alone(
        path: &Path,
        weights: &Weights,
        folder: &Folder,
        tokenizer: &str,
    ) -> Result<Self> {
        let weights = qwen_names(weights);
        let config = packed::qwen_config(&weights)
            .and_then(|config| check_qwen(&config).map(|()| config))
            .map_err(|reason| Error::BadModel {
                path: path.to_path_buf(),
                reason: format!("Qwen3: {reason}"),
            })?;
        let tokenizer = open_tokenizer(folder, tokenizer)?;
        Ok(Self::of_qwen(config, weights, tokenizer))
    }

    fn of_qwen(config: TextEncoderConfig, weights: Weights, tokenizer: Tokenizer) -> Self {
        Self::Qwen {
            config,
            weights,
            tokenizer,
        }
    }
}

/// The names that most files have; others leave out the first part.
fn qwen_names(weights: &Weights) -> Weights {
    let bare = weights.contains("embed_tokens.weight");
    weights.renamed(|name| match bare {
        true => Some(format!("model.{name}")),
        false => name.starts_with("model.").then(|| name.to_string()),
    })
}

/// A language model that reads prompts.
pub struct LongText {
    network: Network,
    tokenizer: Tokenizer,
}

impl LongText {
    /// Loads the network.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(model: LongModel, dtype: DType, device: &Device, offload: bool) -> Result<Self> {
        Ok(match model {
            LongModel::T5 {
                config,
                weights,
                tokenizer,
                length,
            } => {
                let (pad, end) = (config.pad_token_id as u32, config.eos_token_id as u32);
                // It exceeds f16 in its feed-forward layers.
                let dtype = match dtype {
                    DType::F16 => DType::BF16,
                    other => other,
                };
                let build = move |vb: crate::models::VarBuilder| T5Encoder::new(vb, &config);
                // Files of whole models have a decoder, too.
                let weights = weights
                    .renamed(|name| (!name.starts_with("decoder.")).then(|| name.to_string()));
                let network = Network::T5 {
                    module: Module::new("T5", weights, dtype, device, offload, build)?,
                    length,
                    pad,
                    end,
                };
                Self { network, tokenizer }
            }
            LongModel::Qwen {
                config,
                weights,
                tokenizer,
            } => {
                let build = move |vb: crate::models::VarBuilder| Qwen3Encoder::new(vb, &config);
                let module = Module::new("Qwen3", weights, dtype, device, offload, build)?;
                Self {
                    network: Network::Qwen(module),
                    tokenizer,
                }
            }
        })
    }

    /// `(1, tokens, width)`, f32. Weights in brackets do not count: these models take prompts as they are.
    ///
    /// # Errors
    /// For prompts that cannot be tokenised, and if the device fails.
    pub fn encode(&mut self, prompt: &str, device: &Device) -> Result<Tensor> {
        let text: String = parse(prompt)
            .into_iter()
            .map(|segment| match segment {
                Segment::Text(text, _) => text,
                Segment::Break => " ".to_string(),
            })
            .collect();
        let text = match &self.network {
            Network::T5 { .. } => text,
            Network::Qwen(_) => {
                format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
            }
        };
        let encoding = self
            .tokenizer
            .encode(text, true)
            .map_err(|e| Error::Usage(format!("the prompt cannot be tokenised: {e}")))?;
        let mut ids = encoding.get_ids().to_vec();
        let failed = || Error::candle("encoding the prompt");
        let tensor = |ids: Vec<u32>| {
            let count = ids.len();
            Tensor::from_vec(ids, (1, count), device).map_err(failed())
        };
        let output = match &mut self.network {
            Network::T5 {
                module,
                length,
                pad,
                end,
            } => {
                if ids.len() > *length {
                    ids.truncate(*length - 1);
                    ids.push(*end);
                }
                ids.resize(*length, *pad);
                module.network()?.forward(&tensor(ids)?)
            }
            Network::Qwen(module) => {
                ids.truncate(QWEN_TOKENS);
                module.network()?.forward(&tensor(ids)?)
            }
        };
        output
            .and_then(|x| x.to_dtype(DType::F32))
            .map_err(failed())
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        match &mut self.network {
            Network::T5 { module, .. } => module.rest(),
            Network::Qwen(module) => module.rest(),
        }
    }
}

fn check_t5(config: &T5Config) -> std::result::Result<(), String> {
    within(
        &[
            ("vocab_size", config.vocab_size),
            ("d_model", config.d_model),
            ("d_kv", config.d_kv),
            ("d_ff", config.d_ff),
            ("num_layers", config.num_layers),
            ("num_heads", config.num_heads),
        ],
        1 << 20,
    )?;
    let (buckets, distance) = (
        config.relative_attention_num_buckets,
        config.relative_attention_max_distance,
    );
    if !(4..=1 << 10).contains(&buckets) || distance <= buckets || distance > 1 << 20 {
        return Err(format!(
            "{buckets} relative_attention_num_buckets up to a distance of {distance} are not possible"
        ));
    }
    if config.is_decoder {
        return Err("is_decoder is true; an encoder is needed".to_string());
    }
    Ok(())
}

fn check_qwen(config: &TextEncoderConfig) -> std::result::Result<(), String> {
    within(
        &[
            ("vocab_size", config.vocab_size),
            ("hidden_size", config.hidden_size),
            ("intermediate_size", config.intermediate_size),
            ("num_hidden_layers", config.num_hidden_layers),
            ("num_attention_heads", config.num_attention_heads),
            ("num_key_value_heads", config.num_key_value_heads),
            ("head_dim", config.head_dim),
        ],
        1 << 20,
    )?;
    if config.num_hidden_layers < 2 {
        return Err("a text encoder of fewer than 2 layers".to_string());
    }
    if !config
        .num_attention_heads
        .is_multiple_of(config.num_key_value_heads)
        || !config.head_dim.is_multiple_of(2)
    {
        return Err(format!(
            "{} heads of {} for {} of keys are not possible",
            config.num_attention_heads, config.head_dim, config.num_key_value_heads
        ));
    }
    Ok(())
}

fn open_tokenizer(folder: &Folder, name: &str) -> Result<Tokenizer> {
    let bad = |reason: String| Error::BadModel {
        path: folder.path(name),
        reason,
    };
    let bytes = folder.bytes(name)?;
    library_tokenizer(&bytes).map_err(bad)
}
