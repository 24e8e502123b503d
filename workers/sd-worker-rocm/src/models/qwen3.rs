//! Qwen3 as an encoder: what its last layer but one says.

use super::attention::attention;
use super::layers::{linear, Linear};
use super::norm::RmsNorm;
use super::VarBuilder;
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::Activation;
use candle_transformers::models::z_image::text_encoder::TextEncoderConfig;

/// Cosines and sines of positions, `(tokens, head size / 2)` each.
struct Turns {
    cos: Tensor,
    sin: Tensor,
}

impl Turns {
    fn new(
        config: &TextEncoderConfig,
        tokens: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let half = config.head_dim / 2;
        let angle = |at: usize| {
            let (position, i) = (at / half, at % half);
            let share = 2.0 * i as f64 / config.head_dim as f64;
            position as f64 / config.rope_theta.powf(share)
        };
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = (0..tokens * half).map(|at| of(angle(at)) as f32).collect();
            Tensor::from_vec(values, (tokens, half), device)?.to_dtype(dtype)
        };
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }
}

#[derive(Debug, Clone)]
struct Layer {
    norms: [RmsNorm; 2],
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    head_norms: [RmsNorm; 2],
    gate: Linear,
    up: Linear,
    down: Linear,
    activation: Activation,
    /// Of queries, and of keys and values.
    heads: [usize; 2],
    size: usize,
}

impl Layer {
    fn new(vb: VarBuilder, config: &TextEncoderConfig) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let (heads, shared, size) = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        );
        let norm = |name: &str, width| RmsNorm::new(vb.pp(name), width, config.rms_norm_eps);
        let project = |name: &str, inputs, outputs| {
            let layer = vb.pp(name);
            if layer.contains_tensor("bias") != (config.attention_bias && name.contains("attn")) {
                candle_core::bail!(
                    "{}: a bias where the configuration says otherwise",
                    layer.prefix()
                )
            }
            linear(layer, inputs, outputs)
        };
        Ok(Self {
            norms: [
                norm("input_layernorm", width)?,
                norm("post_attention_layernorm", width)?,
            ],
            q: project("self_attn.q_proj", width, heads * size)?,
            k: project("self_attn.k_proj", width, shared * size)?,
            v: project("self_attn.v_proj", width, shared * size)?,
            out: project("self_attn.o_proj", heads * size, width)?,
            head_norms: [
                norm("self_attn.q_norm", size)?,
                norm("self_attn.k_norm", size)?,
            ],
            gate: project("mlp.gate_proj", width, inner)?,
            up: project("mlp.up_proj", width, inner)?,
            down: project("mlp.down_proj", inner, width)?,
            activation: config.hidden_act,
            heads: [heads, shared],
            size,
        })
    }

    fn attend(&self, x: &Tensor, turns: &Turns) -> Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let [heads, shared] = self.heads;
        let turned = |x: Tensor, norm: &RmsNorm, heads| {
            let x = norm.forward(&x.reshape((batch, tokens, heads, self.size))?)?;
            let x = x.transpose(1, 2)?.contiguous()?;
            let x = candle_nn::rotary_emb::rope(&x, &turns.cos, &turns.sin)?;
            x.transpose(1, 2)?.contiguous()
        };
        // As many as there are of queries.
        let repeated = |x: Tensor| {
            let shape = (batch, tokens, shared, heads / shared, self.size);
            let x = x.reshape((batch, tokens, shared, 1, self.size))?;
            let x = x.broadcast_as(shape)?.contiguous()?;
            x.reshape((batch, tokens, heads * self.size))
        };
        let q = turned(self.q.forward(x)?, &self.head_norms[0], heads)?;
        let q = q.reshape((batch, tokens, heads * self.size))?;
        let k = repeated(turned(self.k.forward(x)?, &self.head_norms[1], shared)?)?;
        let v = repeated(self.v.forward(x)?)?;
        self.out.forward(&attention(&q, &k, &v, heads, true)?)
    }

    fn forward(&self, x: &Tensor, turns: &Turns) -> Result<Tensor> {
        let x = (x + self.attend(&self.norms[0].forward(x)?, turns)?)?;
        let h = self.norms[1].forward(&x)?;
        let gate = self.activation.forward(&self.gate.forward(&h)?)?;
        x + self.down.forward(&(gate * self.up.forward(&h)?)?)?
    }
}

/// The encoder.
#[derive(Debug, Clone)]
pub struct Qwen3Encoder {
    tokens: Tensor,
    layers: Vec<Layer>,
    config: TextEncoderConfig,
}

impl Qwen3Encoder {
    /// Reads all layers but the last below `model`.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &TextEncoderConfig) -> Result<Self> {
        let vb = vb.pp("model");
        let layers = vb.pp("layers");
        let layers = (0..config.num_hidden_layers.saturating_sub(1))
            .map(|i| Layer::new(layers.pp(i), config));
        let shape = (config.vocab_size, config.hidden_size);
        Ok(Self {
            tokens: vb.pp("embed_tokens").get(shape, "weight")?,
            layers: layers.collect::<Result<_>>()?,
            config: config.clone(),
        })
    }

    /// The rows of `ids`, `(batch, tokens)`, before the last layer: `(batch, tokens, hidden_size)`.
    ///
    /// # Errors
    /// If tokens are outside the vocabulary, or the device fails.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let (batch, tokens) = ids.dims2()?;
        let rows = self.tokens.index_select(&ids.flatten_all()?, 0)?;
        let mut x = rows.reshape((batch, tokens, rows.dim(D::Minus1)?))?;
        let turns = Turns::new(&self.config, tokens, x.dtype(), x.device())?;
        for layer in &self.layers {
            x = layer.forward(&x, &turns)?;
        }
        Ok(x)
    }
}
