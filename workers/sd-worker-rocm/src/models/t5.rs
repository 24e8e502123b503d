//! The encoders of T5 and UMT5.

use super::config::{within, Others};
use super::layers::{linear, softmax, Linear};
use super::norm::RmsNorm;
use super::VarBuilder;
use candle_core::{Module, Result, Tensor, D};
use candle_nn::Activation;
use candle_transformers::models::t5::Config;
use serde::Deserialize;
use serde_json::Value;

/// Settings of the decoder, which is not here, and what follows from others.
const WITHOUT_EFFECT: [&str; 8] = [
    "dense_act_fn",
    "is_encoder_decoder",
    "is_gated_act",
    "n_positions",
    "num_decoder_layers",
    "output_past",
    // Of other programs.
    "scalable_attention",
    "scale_decoder_outputs",
];

/// What [`Config`] has and the encoder reads.
const READ: [&str; 11] = [
    "d_ff",
    "d_kv",
    "d_model",
    "feed_forward_proj",
    "is_decoder",
    "layer_norm_epsilon",
    "num_heads",
    "num_layers",
    "relative_attention_max_distance",
    "relative_attention_num_buckets",
    "vocab_size",
];

/// Reads and checks the `config.json` of an encoder.
///
/// # Errors
/// Names the first setting that is not known, makes no sense or is not implemented.
pub fn read_config(json: &Value) -> std::result::Result<Config, String> {
    let config = Config::deserialize(json).map_err(|e| e.to_string())?;
    let mut others = json.as_object().cloned().unwrap_or_default();
    others.retain(|name, _| !READ.contains(&name.as_str()));
    Others::from(others).refuse_of_transformers(&WITHOUT_EFFECT)?;
    check_config(&config)?;
    Ok(config)
}

/// Whether the settings make sense.
///
/// # Errors
/// Names the first that does not.
pub fn check_config(config: &Config) -> std::result::Result<(), String> {
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

/// Attention whose scores have a term for the distance of the tokens, and are not divided by anything.
#[derive(Debug, Clone)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    heads: usize,
    size: usize,
}

impl Attention {
    fn new(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (width, inner) = (config.d_model, config.num_heads * config.d_kv);
        Ok(Self {
            q: linear(vb.pp("q"), width, inner)?,
            k: linear(vb.pp("k"), width, inner)?,
            v: linear(vb.pp("v"), width, inner)?,
            out: linear(vb.pp("o"), inner, width)?,
            heads: config.num_heads,
            size: config.d_kv,
        })
    }

    fn forward(&self, x: &Tensor, distances: &Tensor) -> Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let split = |layer: &Linear| {
            let rows = layer.forward(x)?;
            let rows = rows.reshape((batch, tokens, self.heads, self.size))?;
            rows.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (split(&self.q)?, split(&self.k)?, split(&self.v)?);
        let scores = q.matmul(&k.t()?)?.broadcast_add(distances)?;
        let rows = softmax(&scores)?.matmul(&v)?.transpose(1, 2)?;
        let rows = rows.contiguous()?;
        self.out
            .forward(&rows.reshape((batch, tokens, self.heads * self.size))?)
    }
}

#[derive(Debug, Clone)]
struct Block {
    norms: [RmsNorm; 2],
    attention: Attention,
    /// Absent in models without gates.
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
    /// `(buckets, heads)`: in the first block of T5, which all blocks use, and in every block of UMT5.
    distances: Option<Tensor>,
}

impl Block {
    fn new(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (width, inner) = (config.d_model, config.d_ff);
        let norm =
            |vb: &VarBuilder| RmsNorm::new(vb.pp("layer_norm"), width, config.layer_norm_epsilon);
        let (first, second) = (vb.pp("layer.0"), vb.pp("layer.1"));
        let dense = second.pp("DenseReluDense");
        let (gate, up) = match config.feed_forward_proj.gated {
            true => (Some(linear(dense.pp("wi_0"), width, inner)?), "wi_1"),
            false => (None, "wi"),
        };
        let table = first.pp("SelfAttention.relative_attention_bias");
        let buckets = config.relative_attention_num_buckets;
        Ok(Self {
            distances: match table.contains_tensor("weight") {
                true => Some(table.get((buckets, config.num_heads), "weight")?),
                false => None,
            },
            norms: [norm(&first)?, norm(&second)?],
            attention: Attention::new(first.pp("SelfAttention"), config)?,
            gate,
            up: linear(dense.pp(up), width, inner)?,
            down: linear(dense.pp("wo"), inner, width)?,
            activation: config.feed_forward_proj.activation,
        })
    }

    fn forward(&self, x: &Tensor, distances: &Tensor) -> Result<Tensor> {
        let h = self.norms[0].forward(x)?;
        let x = (x + self.attention.forward(&h, distances)?)?;
        let h = self.norms[1].forward(&x)?;
        let up = self.up.forward(&h)?;
        let h = match &self.gate {
            Some(gate) => (self.activation.forward(&gate.forward(&h)?)? * up)?,
            None => self.activation.forward(&up)?,
        };
        x + self.down.forward(&h)?
    }
}

/// The encoder.
#[derive(Debug, Clone)]
pub struct T5Encoder {
    tokens: Tensor,
    buckets: usize,
    max_distance: usize,
    blocks: Vec<Block>,
    norm: RmsNorm,
}

impl T5Encoder {
    /// Reads `shared` or, without it, `encoder.embed_tokens`, and the rest below `encoder`.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &Config) -> Result<Self> {
        let encoder = vb.pp("encoder");
        let table = match vb.contains_tensor("shared.weight") {
            true => vb.pp("shared"),
            false => encoder.pp("embed_tokens"),
        };
        let blocks =
            (0..config.num_layers).map(|i| Block::new(encoder.pp(format!("block.{i}")), config));
        Ok(Self {
            tokens: table.get((config.vocab_size, config.d_model), "weight")?,
            buckets: config.relative_attention_num_buckets,
            max_distance: config.relative_attention_max_distance,
            blocks: blocks.collect::<Result<_>>()?,
            norm: RmsNorm::new(
                encoder.pp("final_layer_norm"),
                config.d_model,
                config.layer_norm_epsilon,
            )?,
        })
    }

    /// The rows of `ids`, `(batch, tokens)`: `(batch, tokens, d_model)`.
    ///
    /// # Errors
    /// If tokens are outside the vocabulary, or the device fails.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.forward_seeing(ids, ids.dim(1)?)
    }

    /// As [`T5Encoder::forward`]; only the first `seen` tokens are seen by the others.
    ///
    /// # Errors
    /// Those of [`T5Encoder::forward`].
    pub fn forward_seeing(&self, ids: &Tensor, seen: usize) -> Result<Tensor> {
        let (batch, tokens) = ids.dims2()?;
        let hidden = (seen < tokens).then(|| {
            let row: Vec<f32> = (0..tokens)
                .map(|at| if at < seen { 0.0 } else { f32::NEG_INFINITY })
                .collect();
            Tensor::from_vec(row, (1, 1, 1, tokens), ids.device())
        });
        let hidden = hidden.transpose()?;
        let places: Vec<u32> = (0..tokens)
            .flat_map(|from| (0..tokens).map(move |to| (from, to)))
            .map(|(from, to)| bucket(from, to, self.buckets, self.max_distance) as u32)
            .collect();
        let places = Tensor::from_vec(places, tokens * tokens, ids.device())?;
        let rows = self.tokens.index_select(&ids.flatten_all()?, 0)?;
        let mut x = rows.reshape((batch, tokens, rows.dim(D::Minus1)?))?;
        let mut distances = None;
        for block in &self.blocks {
            if let Some(table) = &block.distances {
                let each = table.index_select(&places, 0)?.t()?.contiguous()?;
                let each = each.reshape((1, (), tokens, tokens))?;
                distances = Some(match &hidden {
                    Some(hidden) => each.broadcast_add(&hidden.to_dtype(each.dtype())?)?,
                    None => each,
                });
            }
            let Some(distances) = &distances else {
                candle_core::bail!("the first block has no relative_attention_bias")
            };
            x = block.forward(&x, distances)?;
        }
        self.norm.forward(&x)
    }
}

/// The bucket of the distance between two tokens: half of them are for what lies behind, the other half for what lies
/// ahead; of each half one half is for single distances and the other for ever longer stretches up to `max`.
fn bucket(from: usize, to: usize, buckets: usize, max: usize) -> usize {
    let half = buckets / 2;
    let single = half / 2;
    let ahead = if to > from { half } else { 0 };
    let distance = from.abs_diff(to);
    if distance < single {
        return ahead + distance;
    }
    // In f32 step by step, as the original: bounds between stretches depend on it.
    let part = (distance as f32 / single as f32).ln() / (max as f32 / single as f32).ln();
    let stretch = part * (half - single) as f32;
    ahead + (single + stretch as usize).min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::bucket;

    /// Numbers of transformers' `_relative_position_bucket` for 32 buckets up to 128.
    #[test]
    fn buckets_of_distances() {
        for (to, expected) in [
            (200, 0),
            (199, 1),
            (193, 7),
            (192, 8),
            (189, 8),
            (188, 9),
            (184, 10),
            (177, 11),
            (136, 14),
            (72, 15),
            (0, 15),
            (201, 17),
            (207, 23),
            (208, 24),
            (264, 30),
            (400, 31),
        ] {
            assert_eq!(bucket(200, to, 32, 128), expected, "{to}");
        }
    }
}
