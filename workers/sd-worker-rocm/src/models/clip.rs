//! The text towers of CLIP and OpenCLIP.

use super::attention::attention;
use super::config::{check_heads, tower_of, within, Others};
use super::layers::{layer_norm, linear};
use crate::models::layers::Linear;
use crate::models::VarBuilder;
use candle_core::{DType, Module, Result, Tensor};
use candle_nn::LayerNorm;
use serde::Deserialize;
use serde_json::Value;

/// The activation of the feed-forward layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x * sigmoid(1.702 x)`: OpenAI's CLIP.
    QuickGelu,
    /// By erf: OpenCLIP.
    Gelu,
    /// By tanh: SigLIP.
    #[serde(rename = "gelu_pytorch_tanh")]
    GeluTanh,
}

/// `config.json` of a text encoder.
#[derive(Debug, Clone, Deserialize)]
pub struct ClipConfig {
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Width.
    pub hidden_size: usize,
    /// Width of the feed-forward layers.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Longest text.
    #[serde(default = "positions")]
    pub max_position_embeddings: usize,
    /// Activation.
    #[serde(default = "quick_gelu")]
    pub hidden_act: Activation,
    /// Of the layer norms.
    #[serde(default = "eps")]
    pub layer_norm_eps: f64,
    /// Width of the pooled text where the tower ends in a projection.
    #[serde(default)]
    pub projection_dim: Option<usize>,
    /// The token that ends a text, at which the pooled one is read.
    #[serde(default)]
    pub eos_token_id: Option<u32>,
    /// What no field has.
    #[serde(flatten)]
    pub(crate) others: Others,
}

fn positions() -> usize {
    77
}

fn quick_gelu() -> Activation {
    Activation::QuickGelu
}

fn eps() -> f64 {
    1e-5
}

impl ClipConfig {
    /// Reads and checks a `config.json`, of which `text_config` counts where there is one.
    ///
    /// # Errors
    /// Names the first setting that makes no sense or is not known.
    pub fn from_json(json: Value) -> std::result::Result<Self, String> {
        let config: Self =
            serde_json::from_value(tower_of(json, "text_config")).map_err(|e| e.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Whether the sizes make sense.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse_of_transformers(&[])?;
        within(
            &[
                ("vocab_size", self.vocab_size),
                ("hidden_size", self.hidden_size),
                ("intermediate_size", self.intermediate_size),
                ("num_hidden_layers", self.num_hidden_layers),
                ("num_attention_heads", self.num_attention_heads),
                ("max_position_embeddings", self.max_position_embeddings),
            ],
            1 << 20,
        )?;
        check_heads(self.hidden_size, self.num_attention_heads)
    }

    /// Whether texts that the tokenizer ends with the token `end` end where the tower looks for it.
    ///
    /// # Errors
    /// If the file names another one.
    pub fn check_end(&self, end: u32) -> std::result::Result<(), String> {
        match self.eos_token_id {
            // The first published files have a 2 that was wrong: transformers takes the last token of the table then.
            None | Some(2) => Ok(()),
            Some(said) if said == end => Ok(()),
            Some(said) => Err(format!(
                "eos_token_id is {said}, but the tokenizer ends texts with token {end}"
            )),
        }
    }
}

/// A layer of a tower.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    norm1: LayerNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
    activation: Activation,
    heads: usize,
}

impl Layer {
    pub(super) fn new(vb: VarBuilder, config: &ClipConfig) -> Result<Self> {
        let size = config.hidden_size;
        let attn = vb.pp("self_attn");
        let mlp = vb.pp("mlp");
        Ok(Self {
            norm1: layer_norm(vb.pp("layer_norm1"), size, config.layer_norm_eps)?,
            q: linear(attn.pp("q_proj"), size, size)?,
            k: linear(attn.pp("k_proj"), size, size)?,
            v: linear(attn.pp("v_proj"), size, size)?,
            out: linear(attn.pp("out_proj"), size, size)?,
            norm2: layer_norm(vb.pp("layer_norm2"), size, config.layer_norm_eps)?,
            up: linear(mlp.pp("fc1"), size, config.intermediate_size)?,
            down: linear(mlp.pp("fc2"), config.intermediate_size, size)?,
            activation: config.hidden_act,
            heads: config.num_attention_heads,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, causal: bool) -> Result<Tensor> {
        let h = self.norm1.forward(x)?;
        let (q, k, v) = (
            self.q.forward(&h)?,
            self.k.forward(&h)?,
            self.v.forward(&h)?,
        );
        let x = (x + self
            .out
            .forward(&attention(&q, &k, &v, self.heads, causal)?)?)?;
        let h = self.up.forward(&self.norm2.forward(&x)?)?;
        let h = match self.activation {
            Activation::QuickGelu => (&h * candle_nn::ops::sigmoid(&(&h * 1.702)?)?)?,
            Activation::Gelu => h.gelu_erf()?,
            Activation::GeluTanh => h.gelu()?,
        };
        x + self.down.forward(&h)?
    }
}

/// What a tower says about a text.
#[derive(Debug, Clone)]
pub struct ClipOutput {
    /// `(batch, tokens, hidden_size)`: the layer asked for.
    pub hidden: Tensor,
    /// `(batch, projection_dim)`, or of width `hidden_size` without a projection: the last layer at the end of the
    /// text.
    pub pooled: Tensor,
}

/// A text tower.
#[derive(Debug, Clone)]
pub struct ClipTextEncoder {
    tokens: Tensor,
    positions: Tensor,
    layers: Vec<Layer>,
    norm: LayerNorm,
    projection: Option<Linear>,
}

impl ClipTextEncoder {
    /// Reads `text_model.*` and, where there is one, `text_projection`.
    pub fn new(vb: VarBuilder, config: &ClipConfig) -> Result<Self> {
        let model = vb.pp("text_model");
        let size = config.hidden_size;
        let embeddings = model.pp("embeddings");
        let layers = model.pp("encoder.layers");
        let projection = match vb.contains_tensor("text_projection.weight") {
            true => {
                let outputs = config.projection_dim.unwrap_or(size);
                Some(linear(vb.pp("text_projection"), size, outputs)?)
            }
            false => None,
        };
        Ok(Self {
            tokens: embeddings.get((config.vocab_size, size), "token_embedding.weight")?,
            positions: embeddings.get(
                (config.max_position_embeddings, size),
                "position_embedding.weight",
            )?,
            layers: (0..config.num_hidden_layers)
                .map(|i| Layer::new(layers.pp(i), config))
                .collect::<Result<_>>()?,
            norm: layer_norm(model.pp("final_layer_norm"), size, config.layer_norm_eps)?,
            projection,
        })
    }

    /// Appends rows to the token table, `(rows, hidden_size)`: the first has the number `vocab_size`.
    pub fn append_tokens(&mut self, rows: &Tensor) -> Result<()> {
        let rows = rows
            .to_device(self.tokens.device())?
            .to_dtype(self.tokens.dtype())?;
        self.tokens = Tensor::cat(&[&self.tokens, &rows], 0)?;
        Ok(())
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Encodes texts of one length. `hidden` is the output after all but the last `leave_out` layers, through the final
    /// norm if `norm`; `ends` has the position of each text's end, whose last-layer vector is `pooled`.
    ///
    /// # Errors
    /// If texts are longer than the table of positions, or tokens are outside the vocabulary.
    pub fn forward(
        &self,
        ids: &[Vec<u32>],
        ends: &[usize],
        leave_out: usize,
        norm: bool,
    ) -> Result<ClipOutput> {
        let device = self.tokens.device();
        let length = ids.first().map_or(0, Vec::len);
        let (vocabulary, size) = self.tokens.dims2()?;
        if length == 0 || length > self.positions.dim(0)? || ids.iter().any(|t| t.len() != length) {
            candle_core::bail!(
                "a text of {length} tokens for an encoder of {}",
                self.positions.dim(0)?
            )
        }
        let flat = ids.concat();
        if let Some(id) = flat.iter().find(|id| **id as usize >= vocabulary) {
            candle_core::bail!("token {id} is outside of the vocabulary of {vocabulary}")
        }
        let flat = Tensor::from_vec(flat, ids.len() * length, device)?;
        let tokens = self
            .tokens
            .index_select(&flat, 0)?
            .reshape((ids.len(), length, size))?;
        let mut x = tokens.broadcast_add(&self.positions.narrow(0, 0, length)?)?;
        let mut hidden = x.clone();
        let kept = self.layers.len().saturating_sub(leave_out).max(1);
        for (i, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, true)?;
            if i + 1 == kept {
                hidden = x.clone();
            }
        }
        let last = self.norm.forward(&x)?;
        let hidden = match (norm, kept == self.layers.len()) {
            (true, true) => last.clone(),
            (true, false) => self.norm.forward(&hidden)?,
            (false, _) => hidden,
        };
        let pooled = ends
            .iter()
            .enumerate()
            .map(|(text, end)| last.narrow(0, text, 1)?.narrow(1, *end, 1)?.squeeze(1))
            .collect::<Result<Vec<_>>>()?;
        let mut pooled = Tensor::cat(&pooled, 0)?;
        if let Some(projection) = &self.projection {
            pooled = projection.forward(&pooled)?;
        }
        Ok(ClipOutput { hidden, pooled })
    }

    /// Arithmetic of the tower.
    pub fn dtype(&self) -> DType {
        self.tokens.dtype()
    }
}
