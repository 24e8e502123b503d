//! The shape of a model, read from metadata in GGUF's terms and checked.
//!
//! [`DecoderConfig::from_gguf`] checks everything that the forward pass will rely on, and refuses a file that asks for
//! more than it does: a wrong answer is worse than none.

mod cuts;
mod delta;
mod division;
mod experts;
mod keys;
mod latent;
mod layers;
mod parts;
mod rope;
mod sizes;
mod state_space;

pub(super) use delta::DeltaSizes;
pub(super) use experts::{Groups, MixtureConfig};
pub use keys::ConfigError;
pub(super) use latent::{IndexerConfig, LatentConfig};
pub(super) use layers::{Base, MixerKind};
pub(super) use rope::Rope;
pub(super) use sizes::StreamConfig;
pub(super) use state_space::StateSpace;

use super::rotary::Scaling;
use super::traits::{
    Activation, BlockParts, DecoderTraits, EmbeddingScale, LogitScale, NormKind, Temperature,
};
use super::xielu::Xielu;
use keys::{Keys, Result};
use worker::gguf::{Gguf, GgufError};

/// Widest head in use is 256.
const MAX_HEAD_DIM: u32 = 1024;
/// Longest context that any model claims.
const MAX_CONTEXT: u32 = 1 << 24;
/// The deepest model has 126 blocks.
const MAX_BLOCKS: u32 = 1024;

/// The shape of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// GGUF's name of the architecture.
    pub(super) architecture: String,
    pub(super) traits: DecoderTraits,
    /// Longest sequence in tokens.
    pub context_length: usize,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// Rows of the output matrix, fewer than the vocabulary's where several GPUs share it.
    pub(super) output_rows: usize,
    pub(super) blocks: usize,
    /// Blocks behind these that predict tokens further ahead; they are left alone.
    pub(super) predicting: usize,
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
    /// Whether the file has a window at all, were it longer than the context.
    windowed: bool,
    /// Which blocks have the window, and which turn queries and keys, where the file lists them.
    window_blocks: Option<Vec<bool>>,
    rotary_blocks: Option<Vec<bool>>,
    /// Positions of a chunk, where there are chunks.
    chunk: Option<usize>,
    pub(super) temperature: Option<Temperature>,
    /// Largest size of elements of queries, keys and values.
    pub(super) clamp: Option<f32>,
    pub(super) score_scale: f32,
    pub(super) score_cap: Option<f32>,
    pub(super) logit_cap: Option<f32>,
    /// Factors of the embedding, of what blocks add to the residual stream, and of the logits.
    pub(super) embedding_scale: Option<f64>,
    pub(super) residual_scale: Option<f64>,
    pub(super) logit_scale: Option<f64>,
    pub(super) parallel: bool,
    pub(super) experts: Option<MixtureConfig>,
    /// Which blocks have experts, where their routers tell it.
    routed_blocks: Option<Vec<bool>>,
    /// What mixes tokens in each block.
    mixers: Vec<MixerKind>,
    /// No block has a rotary embedding.
    positionless: bool,
    /// The recurrence of blocks that have one.
    pub(super) state_space: Option<StateSpace>,
    sizes: sizes::Sizes,
    pub(super) latent: Option<LatentConfig>,
    /// Of blocks with a gated delta rule.
    pub(super) delta: Option<DeltaSizes>,
    /// Rows that a short convolution sees; 0 where there is none.
    pub(super) short_convolution: usize,
    /// The numbers of each block's activation, where it has some.
    pub(super) xielu: Vec<Xielu>,
}

impl DecoderConfig {
    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Reads the shape of a file whose architecture has these traits.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key, tensor or feature.
    pub fn from_gguf(gguf: &Gguf, traits: &DecoderTraits) -> Result<Self> {
        let name = gguf.require_str("general.architecture")?;
        let keys = Keys { gguf, name };
        let width = keys.require_count("embedding_length", u32::MAX)?;
        let all_blocks = keys.require_count("block_count", MAX_BLOCKS)?;
        let predicting = keys.u32("nextn_predict_layers")?.unwrap_or(0) as usize;
        let Some(blocks) = all_blocks.checked_sub(predicting).filter(|b| *b > 0) else {
            return Err(keys.bad(
                "nextn_predict_layers",
                predicting,
                format!("the file has {all_blocks} blocks in all"),
            ));
        };
        let attends = traits.parts != BlockParts::Recurrent;
        let heads = match attends {
            true => keys.require_count("attention.head_count", u32::MAX)?,
            false => 1,
        };
        let sizes = sizes::sizes(&keys, traits, all_blocks)?;
        let of_any = |key| layers::of_any_block(&keys, key, traits, all_blocks);
        let kv_heads = match &sizes.kv_heads {
            Some(list) => list[0],
            None => of_any("attention.head_count_kv")?.unwrap_or(heads),
        };
        let of_blocks = sizes.kv_heads.iter().flatten();
        if of_blocks.chain([&kv_heads]).any(|of| heads % of != 0) {
            return Err(keys.bad(
                "attention.head_count",
                heads,
                format!("{kv_heads} key-value heads cannot be shared evenly"),
            ));
        }
        let head_dim = match keys.count("attention.key_length", MAX_HEAD_DIM)? {
            Some(dim) => dim,
            // There are no heads.
            None if !attends => 2,
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
        let latent = latent::latent(&keys, traits)?;
        // All heads look at one latent vector of each token.
        let (kv_heads, head_dim, v_head_dim) = match &latent {
            Some(latent) => (1, latent.stored(), latent.rank),
            None => (kv_heads, head_dim, v_head_dim),
        };
        let context_length = keys.require_count("context_length", MAX_CONTEXT)?;
        let epsilon = match traits.norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let epsilon = match keys.positive(epsilon, false)? {
            Some(epsilon) => epsilon,
            // Converters take one for the other where a family's configuration does.
            None => match keys.positive("attention.layer_norm_epsilon", false)? {
                Some(epsilon) => epsilon,
                None => gguf.require_f32(&keys.full(epsilon))?,
            },
        };
        let mut rope = rope::rope(&keys, traits, head_dim, context_length)?;
        let logit_scale =
            keys.positive("logit_scale", true)?
                .map(|scale| match traits.logit_scale {
                    LogitScale::Divides => 1.0 / f64::from(scale),
                    LogitScale::Multiplies => f64::from(scale),
                });
        let embedding_scale = match keys.positive("embedding_scale", true)? {
            Some(scale) => Some(f64::from(scale)),
            None if traits.embedding == EmbeddingScale::Root => Some((width as f64).sqrt()),
            None => None,
        };
        let experts = experts::experts(&keys, traits)?;
        let hidden = match &sizes.hidden {
            Some(list) => Some(list[0]),
            None => of_any("feed_forward_length")?,
        };
        let hidden = match (&experts, hidden) {
            (_, Some(hidden)) => hidden,
            (Some(experts), None) => experts.hidden,
            (None, None) if matches!(traits.parts, BlockParts::Recurrent | BlockParts::One) => 0,
            (None, None) => keys.require_count("feed_forward_length", u32::MAX)?,
        };
        let own_scale = keys.positive("attention.scale", true)?;
        let latent_scale = match &latent {
            Some(latent) => Some(latent.score_scale(&keys, &mut rope)?),
            None => None,
        };
        let score_scale = match own_scale.or(traits.score_scale).or(latent_scale) {
            Some(scale) => scale,
            None => {
                let by_width = traits.scores_by_width_at == Some(blocks);
                let size = if by_width { width / heads } else { head_dim };
                1.0 / (size as f32).sqrt()
            }
        };
        let xielu = match traits.activation {
            Activation::Xielu => xielu(gguf, blocks)?,
            _ => Vec::new(),
        };
        let vocab_size = vocab_size(gguf)?;
        let config = Self {
            xielu,
            architecture: name.to_string(),
            traits: *traits,
            context_length,
            vocab_size,
            output_rows: vocab_size,
            blocks,
            predicting,
            width,
            heads,
            kv_heads,
            head_dim,
            v_head_dim,
            hidden,
            epsilon,
            window: keys
                .u32("attention.sliding_window")?
                .filter(|window| *window > 0)
                .map(|window| window as usize)
                .filter(|window| *window < context_length),
            window_period: keys.u32("attention.sliding_window_pattern").ok().flatten(),
            windowed: keys
                .u32("attention.sliding_window")?
                .is_some_and(|window| window > 0),
            window_blocks: keys.switches("attention.sliding_window_pattern", all_blocks)?,
            rotary_blocks: keys.switches("attention.rotary_pattern", all_blocks)?,
            chunk: match traits.chunk {
                Some(own) => keys
                    .count("attention.chunk_size", u32::MAX)?
                    .or(Some(own as usize))
                    .filter(|chunk| *chunk < context_length),
                None => None,
            },
            temperature: temperature(&keys, traits, rope.original_context)?,
            clamp: keys.positive("attention.clamp_kqv", true)?,
            score_scale,
            score_cap: keys.positive("attn_logit_softcapping", true)?,
            logit_cap: keys.positive("final_logit_softcapping", true)?,
            embedding_scale,
            residual_scale: keys.positive("residual_scale", true)?.map(f64::from),
            logit_scale,
            parallel: match traits.parallel_without_norm {
                true => gguf.tensor("blk.0.ffn_norm.weight").is_none(),
                false => keys
                    .bool("use_parallel_residual")?
                    .unwrap_or(traits.parallel),
            },
            experts,
            routed_blocks: traits.experts_where_routed.then(|| {
                let router = |block| format!("blk.{block}.ffn_gate_inp.weight");
                let blocks = 0..all_blocks;
                let there = blocks.map(|block| gguf.tensor(&router(block)).is_some());
                there.collect()
            }),
            mixers: layers::mixers(&keys, traits, all_blocks)?,
            // llama.cpp's switch of Granite's rotary embedding.
            positionless: keys.bool("rope.scaling.finetuned")? == Some(false)
                && traits.parts == BlockParts::RecurrentWithoutHeads,
            state_space: state_space::state_space(&keys, traits)?,
            sizes,
            latent,
            rope,
            delta: delta::delta(&keys, traits)?,
            short_convolution: delta::short_convolution(&keys, traits)?,
        };
        config.refuse_what_is_ignored(&keys)?;
        Ok(config)
    }

    /// Features that the forward pass does not have.
    fn refuse_what_is_ignored(&self, keys: &Keys) -> Result<()> {
        let tempered = self.traits.temperature.is_some() || self.traits.tempered;
        let ignored = [
            ("attention.temperature_scale", !tempered),
            ("attention.max_alibi_bias", true),
            ("attention.clamp_kqv", self.latent.is_some()),
        ];
        for (key, _) in ignored.into_iter().filter(|(_, ignored)| *ignored) {
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
        let chunked = self.traits.chunk.is_some();
        let multiplier = "rope.scaling.yarn_log_multiplier";
        let followed = self.latent.is_some() || self.traits.tempered;
        if !followed && keys.positive(multiplier, true)?.is_some() {
            return Err(ConfigError::Unsupported(format!(
                "metadata {}",
                keys.full(multiplier)
            )));
        }
        // Within a chunk attention is whole.
        let chunk = keys.count("attention.chunk_size", u32::MAX)?;
        if !chunked && chunk.is_some_and(|chunk| chunk < self.context_length) {
            return Err(ConfigError::Unsupported(format!(
                "metadata {}",
                keys.full("attention.chunk_size")
            )));
        }
        // llama.cpp's sign for a model of the family that turns everywhere and has no chunks.
        if chunked && keys.u32("attention.sliding_window")? == Some(0) {
            return Err(ConfigError::Unsupported(format!(
                "metadata {} of 0",
                keys.full("attention.sliding_window")
            )));
        }
        Ok(())
    }

    /// The feed-forward part's activation.
    pub(super) fn activation(&self) -> candle_nn::Activation {
        match self.traits.activation {
            Activation::Silu => candle_nn::Activation::Silu,
            Activation::Gelu => candle_nn::Activation::GeluPytorchTanh,
            Activation::ExactGelu => candle_nn::Activation::Gelu,
            Activation::SquaredRelu => candle_nn::Activation::Relu2,
            // Blocks with xIELU have no gates and no experts; they ask for their numbers.
            Activation::Xielu => candle_nn::Activation::Relu,
        }
    }
}

/// What queries are multiplied by, if the architecture does that.
fn temperature(
    keys: &Keys,
    traits: &DecoderTraits,
    original_context: usize,
) -> Result<Option<Temperature>> {
    if traits.tempered {
        let scale = keys.positive("attention.temperature_scale", true)?;
        return Ok(scale.map(|scale| Temperature {
            scale,
            length: original_context as u32,
            offset: 0,
        }));
    }
    let Some(own) = traits.temperature else {
        return Ok(None);
    };
    Ok(Some(Temperature {
        scale: keys
            .positive("attention.temperature_scale", false)?
            .unwrap_or(own.scale),
        length: match keys.count("attention.temperature_length", u32::MAX)? {
            Some(length) => length as u32,
            None => own.length,
        },
        offset: own.offset,
    }))
}

/// The numbers of the activation of each block.
fn xielu(gguf: &Gguf, blocks: usize) -> Result<Vec<Xielu>> {
    let list = |name: &str| -> Result<Vec<f64>> {
        let key = format!("xielu.{name}");
        let values = gguf.get_f32s(&key)?.unwrap_or_default();
        match values.len() == blocks && values.iter().all(|v| v.is_finite()) {
            true => Ok(values.iter().map(|v| f64::from(*v)).collect()),
            false => Err(ConfigError::BadValue {
                key,
                value: format!("a list of {}", values.len()),
                reason: format!("{blocks} numbers are needed"),
            }),
        }
    };
    let (alpha_p, alpha_n) = (list("alpha_p")?, list("alpha_n")?);
    let (beta, eps) = (list("beta")?, list("eps")?);
    let of_block = |block: usize| Xielu {
        alpha_p: alpha_p[block],
        alpha_n: alpha_n[block],
        beta: beta[block],
        eps: eps[block],
    };
    Ok((0..blocks).map(of_block).collect())
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
