//! The shape of a model, read from metadata in GGUF's terms and checked.
//!
//! [`DecoderConfig::from_gguf`] checks everything that the forward pass will rely on, and refuses a file that asks for more than it does: a wrong answer
//! is worse than none.

use super::architecture::{
    self, Act, Architecture, EmbeddingScale, Layers, LogitScale, NormKind, Routing,
};
use super::rotary::{Scaling, Yarn};
use worker::gguf::{Gguf, GgufError};

/// Widest head in use is 256.
const MAX_HEAD_DIM: u32 = 1024;
/// Longest context that any model claims.
const MAX_CONTEXT: u32 = 1 << 24;
/// The deepest model has 126 blocks.
const MAX_BLOCKS: u32 = 1024;
/// Most experts in use are 512.
const MAX_EXPERTS: u32 = 4096;

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    pub(super) architecture: Architecture,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    pub(super) blocks: usize,
    /// Width of the residual stream.
    pub(super) width: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Elements of a query and a key, and of a value.
    pub(super) head_dim: usize,
    pub(super) v_head_dim: usize,
    /// Width of the feed-forward part.
    pub(super) hidden: usize,
    pub(super) epsilon: f32,
    pub(super) rope: Rope,
    /// Tokens that a row sees, itself included, where there is a window.
    pub(super) window: Option<usize>,
    /// Every how many blocks one has no window, in place of the architecture's.
    window_period: Option<u32>,
    pub(super) score_scale: f32,
    pub(super) score_cap: Option<f32>,
    pub(super) logit_cap: Option<f32>,
    /// Factors of the embedding, of what blocks add to the residual stream, and of the logits.
    pub(super) embedding_scale: Option<f64>,
    pub(super) residual_scale: Option<f64>,
    pub(super) logit_scale: Option<f64>,
    pub(super) parallel: bool,
    pub(super) experts: Option<Experts>,
}

/// The rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rope {
    /// Elements of a head that turn.
    pub dims: usize,
    pub base: f32,
    pub scaling: Scaling,
    /// Factor of cosines and sines.
    pub magnitude: f32,
    /// Positions up to which the short factors hold, if there are short and long ones.
    pub original_context: usize,
}

/// A mixture of experts in place of the feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Experts {
    pub count: usize,
    /// Experts of a token.
    pub used: usize,
    /// Width of an expert.
    pub hidden: usize,
    pub scale: f64,
    /// Every how many blocks there is a mixture.
    pub period: usize,
}

/// Why a model cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key or tensor is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A value that makes no sense.
    #[error("metadata {key} is {value}: {reason}")]
    BadValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A feature of the file that is not implemented.
    #[error("{0} is not implemented; take another model")]
    Unsupported(String),
}

type Result<T> = std::result::Result<T, ConfigError>;

/// Metadata of the file's architecture, by keys without its name.
pub(super) struct Keys<'a> {
    pub gguf: &'a Gguf,
    pub name: &'a str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn bad(&self, key: &str, value: impl ToString, reason: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            key: self.full(key),
            value: value.to_string(),
            reason: reason.into(),
        }
    }

    fn u32(&self, key: &str) -> Result<Option<u32>> {
        Ok(self.gguf.get_u32(&self.full(key))?)
    }

    /// A number above 0 and up to `most`.
    fn count(&self, key: &str, most: u32) -> Result<Option<usize>> {
        match self.u32(key)? {
            Some(0) => Err(self.bad(key, 0, "it must be above 0")),
            Some(value) if value > most => {
                Err(self.bad(key, value, format!("at most {most} is allowed")))
            }
            value => Ok(value.map(|value| value as usize)),
        }
    }

    fn require_count(&self, key: &str, most: u32) -> Result<usize> {
        match self.count(key, most)? {
            Some(value) => Ok(value),
            None => {
                self.gguf.require_u32(&self.full(key))?;
                unreachable!("the key is missing")
            }
        }
    }

    /// A number above 0; 0 counts as none where `zero_is_none`.
    fn positive(&self, key: &str, zero_is_none: bool) -> Result<Option<f32>> {
        match self.gguf.get_f32(&self.full(key))? {
            Some(0.0) if zero_is_none => Ok(None),
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.bad(key, value, "it must be a number above 0"))
            }
            value => Ok(value),
        }
    }

    fn bool(&self, key: &str) -> Result<Option<bool>> {
        Ok(self.gguf.get_bool(&self.full(key))?)
    }
}

impl DecoderConfig {
    /// Whether the decoder knows an architecture by this name.
    pub fn knows(architecture: &str) -> bool {
        architecture::by_name(architecture).is_some()
    }

    /// Reads the shape.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key, tensor or feature.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let name = gguf.require_str("general.architecture")?;
        let architecture = architecture::by_name(name)
            .ok_or_else(|| ConfigError::Unsupported(format!("architecture {name:?}")))?;
        let keys = Keys { gguf, name };
        let width = keys.require_count("embedding_length", u32::MAX)?;
        let heads = keys.require_count("attention.head_count", u32::MAX)?;
        let kv_heads = keys
            .count("attention.head_count_kv", u32::MAX)?
            .unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(keys.bad(
                "attention.head_count",
                heads,
                format!("{kv_heads} key-value heads cannot be shared evenly"),
            ));
        }
        let head_dim = match keys.count("attention.key_length", MAX_HEAD_DIM)? {
            Some(dim) => dim,
            None if width % heads == 0 => width / heads,
            None => {
                return Err(keys.bad(
                    "embedding_length",
                    width,
                    format!("{heads} heads cannot share it evenly"),
                ))
            }
        };
        if head_dim > MAX_HEAD_DIM as usize || head_dim % 2 != 0 {
            return Err(keys.bad(
                "attention.head_count",
                heads,
                format!(
                    "heads of {head_dim} elements, an even number up to {MAX_HEAD_DIM} is needed"
                ),
            ));
        }
        let v_head_dim = keys
            .count("attention.value_length", MAX_HEAD_DIM)?
            .unwrap_or(head_dim);
        let longest = architecture.longest.unwrap_or(MAX_CONTEXT) as usize;
        let context_length = keys
            .require_count("context_length", MAX_CONTEXT)?
            .min(longest);
        let blocks = keys.require_count("block_count", MAX_BLOCKS)?;
        let epsilon = match architecture.norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let epsilon = match keys.positive(epsilon, false)? {
            Some(epsilon) => epsilon,
            None => gguf.require_f32(&keys.full(epsilon))?,
        };
        let rope = rope(&keys, head_dim, context_length)?;
        let logit_scale =
            keys.positive("logit_scale", true)?
                .map(|scale| match architecture.logit_scale {
                    LogitScale::Divides => 1.0 / f64::from(scale),
                    LogitScale::Multiplies => f64::from(scale),
                });
        let embedding_scale = match keys.positive("embedding_scale", true)? {
            Some(scale) => Some(f64::from(scale)),
            None if architecture.embedding == EmbeddingScale::Root => Some((width as f64).sqrt()),
            None => None,
        };
        let experts = experts(&keys, &architecture)?;
        let hidden = match &experts {
            Some(experts) => keys
                .count("feed_forward_length", u32::MAX)?
                .unwrap_or(experts.hidden),
            None => keys.require_count("feed_forward_length", u32::MAX)?,
        };
        let config = Self {
            architecture,
            context_length,
            vocab_size: vocab_size(gguf)?,
            blocks,
            width,
            heads,
            kv_heads,
            head_dim,
            v_head_dim,
            hidden,
            epsilon,
            rope,
            window: keys
                .u32("attention.sliding_window")?
                .filter(|window| *window > 0)
                .map(|window| window as usize)
                .filter(|window| *window < context_length),
            window_period: keys.u32("attention.sliding_window_pattern").ok().flatten(),
            score_scale: score_scale(&keys, head_dim, width, heads, blocks)?,
            score_cap: keys.positive("attn_logit_softcapping", true)?,
            logit_cap: keys.positive("final_logit_softcapping", true)?,
            embedding_scale,
            residual_scale: keys.positive("residual_scale", true)?.map(f64::from),
            logit_scale,
            parallel: keys
                .bool("use_parallel_residual")?
                .unwrap_or(architecture.parallel),
            experts,
        };
        config.refuse_what_is_ignored(&keys)?;
        Ok(config)
    }

    /// Features that the forward pass does not have.
    fn refuse_what_is_ignored(&self, keys: &Keys) -> Result<()> {
        for key in [
            "attention.temperature_scale",
            "attention.max_alibi_bias",
            "attention.clamp_kqv",
            "expert_group_count",
            "leading_dense_block_count",
        ] {
            let value = keys.gguf.get(&keys.full(key));
            let zero = keys.u32(key).is_ok_and(|v| v == Some(0))
                || keys
                    .gguf
                    .get_f32(&keys.full(key))
                    .is_ok_and(|v| v == Some(0.0));
            if value.is_some() && !zero {
                return Err(ConfigError::Unsupported(format!(
                    "metadata {}",
                    keys.full(key)
                )));
            }
        }
        // Within a chunk attention is whole.
        let chunk = keys.count("attention.chunk_size", u32::MAX)?;
        if chunk.is_some_and(|chunk| chunk < self.context_length) {
            return Err(ConfigError::Unsupported(format!(
                "metadata {}",
                keys.full("attention.chunk_size")
            )));
        }
        Ok(())
    }

    /// The mixture of a block that has one.
    pub(super) fn experts(&self, block: usize) -> Option<&Experts> {
        let experts = self.experts.as_ref();
        experts.filter(|experts| (block + 1).is_multiple_of(experts.period))
    }

    /// Whether a block has norms of queries and keys that have no weights.
    pub(super) fn plain_qk_norms(&self, block: usize) -> bool {
        // Llama 4's largest, which only its number of experts tells, has none.
        let largest = self.experts.is_some_and(|experts| experts.count == 128);
        self.architecture.plain_qk_norms && !largest && self.layer(block).rotary.is_some()
    }

    /// What a block differs in from others.
    pub(super) fn layer(&self, block: usize) -> LayerKind {
        let every = |period: u32| (block + 1).is_multiple_of(period.max(1) as usize);
        match self.architecture.layers {
            Layers::Same => LayerKind {
                window: self.window,
                rotary: Some(Base::Global),
            },
            Layers::Positionless { period } => LayerKind {
                window: self.window,
                rotary: (!every(period)).then_some(Base::Global),
            },
            Layers::Windowed {
                period,
                local_base,
                positionless,
            } => {
                let global = every(self.window_period.unwrap_or(period));
                LayerKind {
                    window: if global { None } else { self.window },
                    rotary: match (global, local_base) {
                        (true, _) if positionless => None,
                        (false, Some(_)) => Some(Base::Local),
                        _ => Some(Base::Global),
                    },
                }
            }
        }
    }

    /// The rotary base of blocks that do not use the file's.
    pub(super) fn local_base(&self) -> f32 {
        match self.architecture.layers {
            Layers::Windowed {
                local_base: Some(base),
                ..
            } => base as f32,
            _ => self.rope.base,
        }
    }

    /// The feed-forward part's activation.
    pub(super) fn activation(&self) -> candle_nn::Activation {
        match self.architecture.activation {
            Act::Silu => candle_nn::Activation::Silu,
            Act::Gelu => candle_nn::Activation::GeluPytorchTanh,
        }
    }
}

/// What blocks differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LayerKind {
    pub window: Option<usize>,
    pub rotary: Option<Base>,
}

/// Which rotary tables a block uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    /// The file's.
    Global,
    /// The architecture's for blocks with a window, not scaled.
    Local,
}

fn rope(keys: &Keys, head_dim: usize, context_length: usize) -> Result<Rope> {
    let dims = keys
        .count("rope.dimension_count", MAX_HEAD_DIM)?
        .unwrap_or(head_dim);
    if dims > head_dim || dims % 2 != 0 {
        return Err(keys.bad(
            "rope.dimension_count",
            dims,
            format!("an even number up to {head_dim} is needed"),
        ));
    }
    let factor = keys.positive("rope.scaling.factor", true)?.unwrap_or(1.0);
    let original_context = keys
        .count("rope.scaling.original_context_length", MAX_CONTEXT)?
        .unwrap_or(context_length);
    let mut magnitude = keys
        .positive("rope.scaling.attn_factor", true)?
        .unwrap_or(1.0);
    let kind = keys.gguf.get_str(&keys.full("rope.scaling.type"))?;
    let scaling = match kind {
        None | Some("none" | "longrope") => Scaling::None,
        Some("linear") => Scaling::Linear(factor),
        Some("yarn") => {
            magnitude *= 1.0 + 0.1 * factor.ln();
            Scaling::Yarn(Yarn {
                factor,
                original_context,
                beta_fast: keys
                    .positive("rope.scaling.yarn_beta_fast", true)?
                    .unwrap_or(32.0),
                beta_slow: keys
                    .positive("rope.scaling.yarn_beta_slow", true)?
                    .unwrap_or(1.0),
            })
        }
        Some(kind) => {
            return Err(ConfigError::Unsupported(format!(
                "rotary scaling of type {kind:?}"
            )))
        }
    };
    Ok(Rope {
        dims,
        base: keys.positive("rope.freq_base", false)?.unwrap_or(10_000.0),
        scaling,
        magnitude,
        original_context,
    })
}

fn experts(keys: &Keys, architecture: &Architecture) -> Result<Option<Experts>> {
    let Some(count) = keys
        .u32("expert_count")?
        .filter(|count| *count > 1)
        .map(|_| keys.require_count("expert_count", MAX_EXPERTS))
        .transpose()?
    else {
        return Ok(None);
    };
    let used = keys.require_count("expert_used_count", count as u32)?;
    // llama.cpp's numbers: 1 is softmax, 2 the sigmoid.
    let own = match architecture.routing {
        Routing::Input => 2,
        _ => 1,
    };
    if keys
        .u32("expert_gating_func")?
        .is_some_and(|kind| kind != 0 && kind != own)
    {
        return Err(ConfigError::Unsupported(format!(
            "metadata {}",
            keys.full("expert_gating_func")
        )));
    }
    let hidden = match keys.count("expert_feed_forward_length", u32::MAX)? {
        Some(hidden) => hidden,
        None => keys.require_count("feed_forward_length", u32::MAX)?,
    };
    Ok(Some(Experts {
        count,
        used,
        hidden,
        scale: keys
            .positive("expert_weights_scale", true)?
            .map_or(1.0, f64::from),
        period: keys
            .count("interleave_moe_layer_step", MAX_BLOCKS)?
            .unwrap_or(1),
    }))
}

/// The factor of scores: the file's, or one over a root.
fn score_scale(
    keys: &Keys,
    head_dim: usize,
    width: usize,
    heads: usize,
    blocks: usize,
) -> Result<f32> {
    if let Some(scale) = keys.positive("attention.scale", true)? {
        return Ok(scale);
    }
    // The 27-billion models of Gemma 2 and 3, which only their depth tells, have a scale of their own.
    let per_head = matches!((keys.name, blocks), ("gemma2", 46) | ("gemma3", 62));
    let of = if per_head { width / heads } else { head_dim };
    Ok(1.0 / (of as f32).sqrt())
}

/// The embedding table's rows: at least one per token, some models pad.
fn vocab_size(gguf: &Gguf) -> Result<usize> {
    const TABLE: &str = "token_embd.weight";
    let table = gguf.tensor(TABLE).ok_or_else(|| GgufError::MissingTensor {
        name: TABLE.to_string(),
    })?;
    let tokens = gguf.require_strings("tokenizer.ggml.tokens")?.len() as u64;
    match table.dims[..] {
        [_, rows] if rows >= tokens && rows <= u64::from(u32::MAX) => Ok(rows as usize),
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
