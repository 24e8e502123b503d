//! The shape of a llama-family model, checked.
//!
//! [`LlamaConfig::from_gguf`] checks everything that the forward pass will rely on, and refuses a file that asks for
//! more than it does: a wrong answer is worse than none.

use worker::gguf::{Gguf, GgufError};

/// Widest head in use is 256.
const MAX_HEAD_DIM: u64 = 1024;
/// Longest context that any model claims.
const MAX_CONTEXT: u32 = 1 << 24;
/// What divides the rotary frequencies, one number for each pair of elements.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The deepest llama has 126 blocks.
const MAX_BLOCKS: u32 = 1024;

/// The shape of a llama-family model.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Number of transformer blocks.
    pub block_count: u32,
    /// Width of the residual stream.
    pub embedding_length: u64,
    /// Query heads.
    pub head_count: u64,
    /// Key and value heads.
    pub head_count_kv: u64,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// Width of the feed-forward part.
    pub feed_forward_length: u64,
    /// Added to the mean square before the root in norms.
    pub norm_epsilon: f32,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Whether the file divides the rotary frequencies (`rope_freqs.weight`: Llama 3.1 and later).
    pub has_rope_factors: bool,
    /// Rows of the embedding table.
    pub vocab_size: u64,
}

/// Why a llama-family file cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key or tensor is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A value that makes no sense.
    #[error("metadata llama.{key} is {value}: {reason}")]
    BadValue {
        /// The key below `llama.`.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A feature of the file that is not implemented.
    #[error("{0} is not implemented; take another model")]
    Unsupported(String),
}

impl LlamaConfig {
    /// Reads the shape and checks that every tensor fits it.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key, tensor or feature.
    pub fn from_gguf(gguf: &Gguf) -> std::result::Result<Self, ConfigError> {
        let architecture = gguf.require_str("general.architecture")?;
        if architecture != "llama" {
            return Err(ConfigError::Unsupported(format!(
                "architecture {architecture:?}"
            )));
        }
        let positive = |key: &'static str| -> std::result::Result<u32, ConfigError> {
            match gguf.require_u32(&format!("llama.{key}"))? {
                0 => Err(bad(key, 0, "it must be above 0")),
                value => Ok(value),
            }
        };
        let block_count = positive("block_count")?;
        if block_count > MAX_BLOCKS {
            return Err(bad(
                "block_count",
                block_count,
                format!("at most {MAX_BLOCKS} are allowed"),
            ));
        }
        let embedding_length = u64::from(positive("embedding_length")?);
        let head_count = u64::from(positive("attention.head_count")?);
        let head_count_kv = u64::from(positive("attention.head_count_kv")?);
        let context_length = positive("context_length")?;
        if context_length > MAX_CONTEXT {
            return Err(bad(
                "context_length",
                context_length,
                format!("at most {MAX_CONTEXT} is allowed"),
            ));
        }
        if embedding_length % head_count != 0 {
            return Err(bad(
                "embedding_length",
                embedding_length,
                format!("{head_count} heads cannot share it evenly"),
            ));
        }
        if head_count % head_count_kv != 0 {
            return Err(bad(
                "attention.head_count",
                head_count,
                format!("{head_count_kv} key-value heads cannot be shared evenly"),
            ));
        }
        let head_dim = embedding_length / head_count;
        if head_dim > MAX_HEAD_DIM || head_dim % 2 != 0 {
            return Err(bad(
                "attention.head_count",
                head_count,
                format!(
                    "heads of {head_dim} elements, an even number up to {MAX_HEAD_DIM} is needed"
                ),
            ));
        }
        for key in [
            "rope.dimension_count",
            "attention.key_length",
            "attention.value_length",
        ] {
            let dim = match key {
                "rope.dimension_count" => Some(positive(key)?),
                _ => gguf.get_u32(&format!("llama.{key}"))?,
            };
            if dim.is_some_and(|dim| u64::from(dim) != head_dim) {
                return Err(ConfigError::Unsupported(format!(
                    "llama.{key} {} beside heads of {head_dim} elements",
                    dim.unwrap_or_default()
                )));
            }
        }
        let above_zero = |key: &'static str, value: f32| {
            if value.is_finite() && value > 0.0 {
                Ok(value)
            } else {
                Err(bad(key, value, "it must be a number above 0"))
            }
        };
        let epsilon = "attention.layer_norm_rms_epsilon";
        let config = Self {
            block_count,
            embedding_length,
            head_count,
            head_count_kv,
            context_length: context_length as usize,
            feed_forward_length: u64::from(positive("feed_forward_length")?),
            norm_epsilon: above_zero(epsilon, gguf.require_f32(&format!("llama.{epsilon}"))?)?,
            rope_base: above_zero(
                "rope.freq_base",
                gguf.get_f32("llama.rope.freq_base")?.unwrap_or(10_000.0),
            )?,
            has_rope_factors: gguf.tensor(ROPE_FACTORS).is_some(),
            vocab_size: vocab_size(gguf)?,
        };
        config.refuse_what_is_ignored(gguf)?;
        config.check_tensors(gguf, head_dim)?;
        Ok(config)
    }

    /// Elements of a head.
    pub fn head_dim(&self) -> u64 {
        self.embedding_length / self.head_count
    }

    /// Features that the forward pass does not have.
    fn refuse_what_is_ignored(&self, gguf: &Gguf) -> std::result::Result<(), ConfigError> {
        let unsupported = |what: &str| Err(ConfigError::Unsupported(what.to_string()));
        if let Some(kind) = gguf.get_str("llama.rope.scaling.type")? {
            if kind != "none" {
                return unsupported(&format!("rotary scaling of type {kind:?}"));
            }
        }
        if gguf.get_u32("llama.expert_count")?.is_some_and(|n| n > 1) {
            return unsupported("a mixture of experts");
        }
        if let Some((name, _)) = gguf.tensors().find(|(name, _)| name.ends_with(".bias")) {
            return unsupported(&format!("the bias tensor {name}"));
        }
        Ok(())
    }

    fn check_tensors(&self, gguf: &Gguf, head_dim: u64) -> std::result::Result<(), ConfigError> {
        let width = self.embedding_length;
        let kv_width = self.head_count_kv * head_dim;
        gguf.require_tensor("token_embd.weight", &[width, self.vocab_size])?;
        gguf.require_tensor("output_norm.weight", &[width])?;
        if gguf.tensor("output.weight").is_some() {
            gguf.require_tensor("output.weight", &[width, self.vocab_size])?;
        }
        if self.has_rope_factors {
            gguf.require_tensor(ROPE_FACTORS, &[head_dim / 2])?;
        }
        let hidden = self.feed_forward_length;
        for block in 0..self.block_count {
            for (name, dims) in [
                ("attn_norm", &[width][..]),
                ("attn_q", &[width, width]),
                ("attn_k", &[width, kv_width]),
                ("attn_v", &[width, kv_width]),
                ("attn_output", &[width, width]),
                ("ffn_norm", &[width]),
                ("ffn_gate", &[width, hidden]),
                ("ffn_up", &[width, hidden]),
                ("ffn_down", &[hidden, width]),
            ] {
                gguf.require_tensor(&format!("blk.{block}.{name}.weight"), dims)?;
            }
        }
        Ok(())
    }
}

fn bad(key: &'static str, value: impl ToString, reason: impl Into<String>) -> ConfigError {
    ConfigError::BadValue {
        key,
        value: value.to_string(),
        reason: reason.into(),
    }
}

/// The embedding table's rows: at least one per token, some models pad.
fn vocab_size(gguf: &Gguf) -> std::result::Result<u64, ConfigError> {
    const TABLE: &str = "token_embd.weight";
    let table = gguf.tensor(TABLE).ok_or_else(|| GgufError::MissingTensor {
        name: TABLE.to_string(),
    })?;
    let tokens = gguf.require_strings("tokenizer.ggml.tokens")?.len() as u64;
    match table.dims[..] {
        [_, rows] if rows >= tokens => Ok(rows),
        _ => Err(GgufError::BadTensor {
            name: TABLE.to_string(),
            reason: format!(
                "shape {:?} has no row for each of {tokens} tokens",
                table.dims
            ),
        }
        .into()),
    }
}
