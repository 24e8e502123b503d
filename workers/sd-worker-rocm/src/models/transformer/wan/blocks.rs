//! What the transformer of Wan is made of.

use super::{Context, WanConfig};
use crate::models::attention::attention;
use crate::models::layers::{layer_norm, linear, Linear};
use crate::models::norm::RmsNorm;
use crate::models::transformer::attention::attend;
use crate::models::transformer::blocks::PlainNorm;
use crate::models::transformer::stretches::{in_stretches, modulations, table, Stretch};
use crate::models::VarBuilder;
use candle_core::{Module, Result, Tensor};
use candle_nn::LayerNorm;

/// Queries and keys, normalised over all heads together, and values.
#[derive(Debug, Clone)]
struct Projections {
    q: Linear,
    k: Linear,
    v: Linear,
    norm_q: RmsNorm,
    norm_k: RmsNorm,
    out: Linear,
}

impl Projections {
    fn new(vb: &VarBuilder, config: &WanConfig) -> Result<Self> {
        let width = config.width();
        let project = |name: &str| linear(vb.pp(name), width, width);
        Ok(Self {
            q: project("to_q")?,
            k: project("to_k")?,
            v: project("to_v")?,
            norm_q: RmsNorm::new(vb.pp("norm_q"), width, config.eps)?,
            norm_k: RmsNorm::new(vb.pp("norm_k"), width, config.eps)?,
            out: project("to_out.0")?,
        })
    }

    fn queries(&self, x: &Tensor) -> Result<Tensor> {
        self.norm_q.forward(&self.q.forward(x)?)
    }

    fn keys(&self, x: &Tensor) -> Result<Tensor> {
        self.norm_k.forward(&self.k.forward(x)?)
    }
}

/// Keys and values of the picture to start from.
#[derive(Debug, Clone)]
struct PictureKeys {
    k: Linear,
    v: Linear,
    norm_k: RmsNorm,
}

/// Attention to all tokens, then to the text, then the feed-forward layers.
#[derive(Debug, Clone)]
pub(super) struct Block {
    norm: PlainNorm,
    itself: Projections,
    text_norm: Option<LayerNorm>,
    text: Projections,
    picture: Option<PictureKeys>,
    up: Linear,
    down: Linear,
    /// `(6, width)`, f32.
    table: Tensor,
    heads: usize,
}

impl Block {
    pub(super) fn new(vb: VarBuilder, config: &WanConfig) -> Result<Self> {
        let width = config.width();
        let attn2 = vb.pp("attn2");
        Ok(Self {
            norm: PlainNorm { eps: config.eps },
            itself: Projections::new(&vb.pp("attn1"), config)?,
            text_norm: match config.cross_attn_norm {
                true => Some(layer_norm(vb.pp("norm2"), width, config.eps)?),
                false => None,
            },
            text: Projections::new(&attn2, config)?,
            picture: match config.added_kv_proj_dim {
                Some(inputs) => Some(PictureKeys {
                    k: linear(attn2.pp("add_k_proj"), inputs, width)?,
                    v: linear(attn2.pp("add_v_proj"), inputs, width)?,
                    norm_k: RmsNorm::new(attn2.pp("norm_added_k"), width, config.eps)?,
                }),
                None => None,
            },
            up: linear(vb.pp("ffn.net.0.proj"), width, config.ffn_dim)?,
            down: linear(vb.pp("ffn.net.2"), config.ffn_dim, width)?,
            table: table(&vb, &[1, 6, width])?,
            heads: config.num_attention_heads,
        })
    }

    pub(super) fn forward(&self, x: &Tensor, by: &[Stretch], context: &Context) -> Result<Tensor> {
        let by = modulations(&self.table, by, x.dtype())?;
        let h = in_stretches(x, &by, |x, by| self.norm.modulated(x, &by[1], Some(&by[0])))?;
        let itself = &self.itself;
        let qkv = [itself.queries(&h)?, itself.keys(&h)?, itself.v.forward(&h)?];
        let h = itself
            .out
            .forward(&attend(&qkv, self.heads, Some(&context.rope))?)?;
        let x = (x + in_stretches(&h, &by, |h, by| h.broadcast_mul(&by[2]))?)?;

        let h = match &self.text_norm {
            Some(norm) => norm.forward(&x)?,
            None => x.clone(),
        };
        let q = self.text.queries(&h)?;
        let (k, v) = (
            self.text.keys(&context.text)?,
            self.text.v.forward(&context.text)?,
        );
        let mut h = attention(&q, &k, &v, self.heads, false)?;
        if let (Some(layers), Some(picture)) = (&self.picture, &context.picture) {
            let k = layers.norm_k.forward(&layers.k.forward(picture)?)?;
            let v = layers.v.forward(picture)?;
            h = (h + attention(&q, &k, &v, self.heads, false)?)?;
        }
        let x = self.text.out.forward_added(&x, &h)?;

        let h = in_stretches(&x, &by, |x, by| {
            self.norm.modulated(x, &by[4], Some(&by[3]))
        })?;
        let h = self.up.forward_gelu(&h)?;
        let h = self.down.forward(&h)?;
        x + in_stretches(&h, &by, |h, by| h.broadcast_mul(&by[5]))?
    }
}

/// CLIP's view of the picture to start from, brought to the network's width.
#[derive(Debug, Clone)]
pub(super) struct PictureEmbedding {
    places: Option<Tensor>,
    norms: [LayerNorm; 2],
    up: Linear,
    down: Linear,
}

impl PictureEmbedding {
    pub(super) fn new(vb: VarBuilder, inputs: usize, config: &WanConfig) -> Result<Self> {
        let width = config.width();
        Ok(Self {
            places: match config.pos_embed_seq_len {
                Some(rows) => Some(vb.get((1, rows, inputs), "pos_embed")?),
                None => None,
            },
            norms: [
                layer_norm(vb.pp("norm1"), inputs, 1e-5)?,
                layer_norm(vb.pp("norm2"), width, 1e-5)?,
            ],
            up: linear(vb.pp("ff.net.0.proj"), inputs, inputs)?,
            down: linear(vb.pp("ff.net.2"), inputs, width)?,
        })
    }

    /// Of views `(pictures, rows, width)`: `(1, pictures * rows, width)`.
    pub(super) fn forward(&self, views: &Tensor) -> Result<Tensor> {
        let (pictures, rows, width) = views.dims3()?;
        let mut x = views.reshape((1, pictures * rows, width))?;
        if let Some(places) = &self.places {
            if places.dim(1)? != pictures * rows {
                candle_core::bail!(
                    "{} rows of pictures to start from; the model takes {}",
                    pictures * rows,
                    places.dim(1)?
                )
            }
            x = (x + places)?;
        }
        let x = self.up.forward(&self.norms[0].forward(&x)?)?.gelu_erf()?;
        self.norms[1].forward(&self.down.forward(&x)?)
    }
}
