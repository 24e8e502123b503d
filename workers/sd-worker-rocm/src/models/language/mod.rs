//! Language models as text encoders: decoders of several kinds, read before their end.
//!
//! | Module     | Gives                                                     |
//! |------------|-----------------------------------------------------------|
//! | [`config`] | what a configuration file says, and how kinds differ      |
//! | [`rope`]   | where tokens stand                                        |
//! | [`look`]   | what tokens look at                                       |
//! | [`vision`] | pictures as rows among tokens                             |
//! | [`seeing`] | a decoder together with such a tower                      |

pub mod config;
pub mod look;
pub mod rope;
pub mod seeing;
pub mod vision;

pub use config::LanguageConfig;

use super::layers::{linear, Linear};
use super::norm::RmsNorm;
use super::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::Activation;
use look::Look;
use rope::Turns;

/// An RMS norm of either kind.
#[derive(Debug, Clone)]
enum Norm {
    /// Scales by its weight.
    Plain(RmsNorm),
    /// Gemma's: scales by one and its weight, which is here in f32 with the one added, and is computed in that.
    Shifted { weight: Tensor, eps: f32 },
}

impl Norm {
    fn new(vb: VarBuilder, width: usize, config: &LanguageConfig) -> Result<Self> {
        if !config.kind.is_gemma() {
            return RmsNorm::new(vb, width, config.eps).map(Self::Plain);
        }
        let weight = vb.get(width, "weight")?.to_dtype(DType::F32)?;
        Ok(Self::Shifted {
            weight: (weight + 1.0)?,
            eps: config.eps as f32,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(norm) => norm.forward(x),
            Self::Shifted { weight, eps } => {
                let wide = x.to_dtype(DType::F32)?.contiguous()?;
                candle_nn::ops::rms_norm(&wide, weight, *eps)?.to_dtype(x.dtype())
            }
        }
    }
}

/// What all layers of a kind look at and turn by.
struct Scene {
    turns: Turns,
    look: Option<Look>,
}

#[derive(Debug, Clone)]
struct Layer {
    before: Norm,
    /// Of what attention says, before it is added.
    attended: Option<Norm>,
    before_feed: Norm,
    /// Of what the feed-forward layers say.
    fed: Option<Norm>,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    head_norms: Option<[Norm; 2]>,
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    /// Of queries, and of keys and values.
    heads: [usize; 2],
    size: usize,
    scale: f64,
    soft_cap: Option<f64>,
}

impl Layer {
    fn new(vb: VarBuilder, config: &LanguageConfig) -> Result<Self> {
        let (width, inner) = (config.width, config.inner_width);
        let (heads, shared, size) = (config.heads, config.key_heads, config.head_size);
        let norm = |name: &str| Norm::new(vb.pp(name), width, config);
        let project = |name: &str, inputs, outputs, bias: bool| {
            let layer = vb.pp(name);
            if layer.contains_tensor("bias") != bias {
                candle_core::bail!(
                    "{}: a bias where the configuration says otherwise",
                    layer.prefix()
                )
            }
            linear(layer, inputs, outputs)
        };
        let (sides, out, feed) = (
            config.projection_biases,
            config.output_bias,
            config.feed_biases,
        );
        let sandwich = config.kind.is_gemma();
        let head_norm = |name: &str| Norm::new(vb.pp(name), size, config);
        Ok(Self {
            before: norm("input_layernorm")?,
            attended: match sandwich {
                true => Some(norm("post_attention_layernorm")?),
                false => None,
            },
            before_feed: match sandwich {
                true => norm("pre_feedforward_layernorm")?,
                false => norm("post_attention_layernorm")?,
            },
            fed: match sandwich {
                true => Some(norm("post_feedforward_layernorm")?),
                false => None,
            },
            q: project("self_attn.q_proj", width, heads * size, sides)?,
            k: project("self_attn.k_proj", width, shared * size, sides)?,
            v: project("self_attn.v_proj", width, shared * size, sides)?,
            out: project("self_attn.o_proj", heads * size, width, out)?,
            head_norms: match config.kind.has_head_norms() {
                true => Some([
                    head_norm("self_attn.q_norm")?,
                    head_norm("self_attn.k_norm")?,
                ]),
                false => None,
            },
            gate: project("mlp.gate_proj", width, inner, feed)?,
            up: project("mlp.up_proj", width, inner, feed)?,
            down: project("mlp.down_proj", inner, width, feed)?,
            activation: config.activation,
            heads: [heads, shared],
            size,
            scale: config.scale,
            soft_cap: config.soft_cap,
        })
    }

    fn attend(&self, x: &Tensor, scene: &Scene) -> Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let [heads, shared] = self.heads;
        // As many as there are of queries.
        let all = |x: Tensor, count: usize| {
            let x = x.reshape((batch, tokens, count, 1, self.size))?;
            let shape = (batch, tokens, count, heads / count, self.size);
            let x = x.broadcast_as(shape)?.contiguous()?;
            x.reshape((batch, tokens, heads * self.size))
        };
        let turned = |x: Tensor, which: usize| {
            let x = x.reshape((batch, tokens, self.heads[which], self.size))?;
            let x = match &self.head_norms {
                Some(norms) => norms[which].forward(&x)?,
                None => x,
            };
            let x = scene.turns.apply(&x.transpose(1, 2)?)?;
            all(x.transpose(1, 2)?.contiguous()?, self.heads[which])
        };
        let q = turned(self.q.forward(x)?, 0)?;
        let k = turned(self.k.forward(x)?, 1)?;
        let v = all(self.v.forward(x)?, shared)?;
        let look = scene.look.as_ref();
        let rows = look::attend([&q, &k, &v], heads, self.scale, self.soft_cap, look)?;
        self.out.forward(&rows)
    }

    fn forward(&self, x: &Tensor, scene: &Scene) -> Result<Tensor> {
        let after = |norm: &Option<Norm>, x: Tensor| match norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        };
        let h = self.attend(&self.before.forward(x)?, scene)?;
        let x = (x + after(&self.attended, h)?)?;
        let h = self.before_feed.forward(&x)?;
        let gate = self.activation.forward(&self.gate.forward(&h)?)?;
        let h = self.down.forward(&(gate * self.up.forward(&h)?)?)?;
        x + after(&self.fed, h)?
    }
}

/// A decoder of which states between its layers are read.
#[derive(Debug, Clone)]
pub struct Language {
    tokens: Tensor,
    layers: Vec<Layer>,
    /// Where the last state is read.
    norm: Option<Norm>,
    states: Vec<usize>,
    config: LanguageConfig,
}

impl Language {
    /// Reads `embed_tokens` and as many `layers` as the states need, counted as transformers does: 0 is before the first
    /// layer, 1 after it, and the last, as many as there are layers, has gone through `norm`, too.
    ///
    /// # Errors
    /// If there are no such states, or tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &LanguageConfig, states: &[usize]) -> Result<Self> {
        let count = config.layers;
        let depth = match states.iter().max() {
            Some(depth) if *depth <= count => *depth,
            _ => candle_core::bail!("states {states:?} of a language model of {count} layers"),
        };
        let layers = vb.pp("layers");
        let shape = (config.vocabulary, config.width);
        Ok(Self {
            tokens: vb.pp("embed_tokens").get(shape, "weight")?,
            layers: (0..depth)
                .map(|i| Layer::new(layers.pp(i), config))
                .collect::<Result<_>>()?,
            norm: match depth == count {
                true => Some(Norm::new(vb.pp("norm"), config.width, config)?),
                false => None,
            },
            states: states.to_vec(),
            config: config.clone(),
        })
    }

    /// The states of a text, `(1, tokens, hidden_size)` each, in the order in which they were asked for. Tokens that are
    /// not `seen` are padding, which no token looks at.
    ///
    /// # Errors
    /// If tokens are outside the vocabulary, or the device fails.
    pub fn forward(&self, ids: &[u32], seen: Option<&[bool]>) -> Result<Vec<Tensor>> {
        let positions: Vec<[usize; 3]> = (0..ids.len()).map(|at| [at; 3]).collect();
        self.forward_rows(&self.rows(ids)?, &positions, seen)
    }

    /// What stands for tokens before the first layer: `(1, tokens, hidden_size)`.
    ///
    /// # Errors
    /// If tokens are outside the vocabulary, or the device fails.
    pub fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let size = self.config.vocabulary;
        if let Some(id) = ids.iter().find(|id| **id as usize >= size) {
            candle_core::bail!("token {id} is outside the vocabulary of {size}")
        }
        let ids = Tensor::new(ids, self.tokens.device())?;
        let rows = self.tokens.index_select(&ids, 0)?.unsqueeze(0)?;
        match self.config.kind.is_gemma() {
            true => {
                let scale = (self.config.width as f64).sqrt();
                rows.broadcast_mul(&Tensor::new(scale, rows.device())?.to_dtype(rows.dtype())?)
            }
            false => Ok(rows),
        }
    }

    /// As [`Language::forward`] for rows of which some may stand for parts of pictures, at these times, rows and columns.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn forward_rows(
        &self,
        rows: &Tensor,
        positions: &[[usize; 3]],
        seen: Option<&[bool]>,
    ) -> Result<Vec<Tensor>> {
        let (_, tokens, _) = rows.dims3()?;
        if positions.len() != tokens || seen.is_some_and(|seen| seen.len() != tokens) {
            candle_core::bail!("positions or padding of other tokens than {tokens}")
        }
        let config = &self.config;
        let window = config.windows.iter().flatten().next().copied();
        let scene = |rotation: &rope::Rotation, window| {
            Result::Ok(Scene {
                turns: rotation.turns(positions, config.head_size, rows.dtype(), rows.device())?,
                look: Look::new(tokens, seen, window, rows.device())?,
            })
        };
        let whole = scene(&config.rotation, None)?;
        let local = match window {
            Some(_) => Some(scene(&config.local_rotation, window)?),
            None => None,
        };
        let mut x = rows.clone();
        let mut kept: Vec<Option<Tensor>> = vec![None; self.states.len()];
        let mut keep = |state: usize, x: &Tensor| {
            let places = self.states.iter().zip(&mut kept);
            let places = places.filter(|(wanted, _)| **wanted == state);
            places.for_each(|(_, place)| *place = Some(x.clone()));
        };
        keep(0, &x);
        for (at, layer) in self.layers.iter().enumerate() {
            let scene = match (&local, config.windows[at]) {
                (Some(local), Some(_)) => local,
                _ => &whole,
            };
            x = layer.forward(&x, scene)?;
            if let (Some(norm), true) = (&self.norm, at + 1 == self.layers.len()) {
                x = norm.forward(&x)?;
            }
            keep(at + 1, &x);
        }
        let kept: Option<Vec<Tensor>> = kept.into_iter().collect();
        kept.ok_or_else(|| candle_core::Error::msg("a state was not computed").bt())
    }
}
