//! IP-Adapter (Ye et al. 2023): pictures beside the text in a UNet's attention.
//!
//! Names are those of the checkpoints; what their tensors' shapes tell is the whole configuration.

use super::attention::attention;
use super::layers::{layer_norm, linear, Linear};
use super::VarBuilder;
use crate::weights::Weights;
use candle_core::{Module, Result, Tensor};
use candle_nn::LayerNorm;

/// Size of the heads that mix a picture's rows.
const HEAD: usize = 64;
/// Tokens that the plain kind makes of a picture.
const TOKENS: usize = 4;

/// How an adapter sees a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// By the image encoder's embedding, of this width.
    Embedding(usize),
    /// By the image encoder's rows before its last layer, of this width.
    Rows(usize),
    /// By a face recogniser's embedding, of this width.
    Face(usize),
}

/// What is known of a checkpoint before it is loaded.
#[derive(Debug, Clone)]
pub struct IpConfig {
    /// What it looks at.
    pub sees: Sees,
    /// Width of its tokens: that of the text.
    pub width: usize,
    /// Channels of each attention that it adds to, in its order: down, up, between.
    pub channels: Vec<usize>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A linear layer and a norm.
    Plain,
    /// The same row by row, with a hidden layer.
    Full { hidden: usize },
    /// A resampler: queries that look at rows.
    Plus {
        queries: usize,
        hidden: usize,
        heads: usize,
        layers: usize,
        up: usize,
    },
    /// Of a face.
    Face { hidden: usize, tokens: usize },
}

impl IpConfig {
    /// What a file's tensors tell.
    ///
    /// # Errors
    /// If it is no IP-Adapter, or one of a kind that is not implemented, by name.
    pub fn of(weights: &Weights) -> std::result::Result<Self, String> {
        let dims = |name: &str| weights.shape(&format!("image_proj.{name}"));
        let at = |name: &str, axis: usize| {
            let wrong = || format!("image_proj.{name} is missing or of another shape");
            dims(name)
                .and_then(|shape| shape.get(axis).copied())
                .filter(|size| (1..=1 << 20).contains(size))
                .ok_or_else(wrong)
        };
        let mut channels = Vec::new();
        let mut width = 0;
        while let Some([rows, columns]) = weights
            .shape(&format!(
                "ip_adapter.{}.to_k_ip.weight",
                2 * channels.len() + 1
            ))
            .as_deref()
        {
            channels.push(*rows);
            width = *columns;
        }
        if channels.is_empty() {
            return Err(
                "this is not an IP-Adapter: it has no image_proj and ip_adapter.….to_k_ip".into(),
            );
        }
        if weights.names().any(|name| name.contains("_lora.")) {
            return Err(
                "an IP-Adapter with a LoRA inside (FaceID) is not implemented; give one without, and the LoRA's own file with --lora"
                    .to_string(),
            );
        }
        let (kind, sees) = if dims("perceiver_resampler.proj_in.weight").is_some() {
            return Err("IP-Adapter FaceID Plus is not implemented".to_string());
        } else if dims("proj.weight").is_some() {
            (Kind::Plain, Sees::Embedding(at("proj.weight", 1)?))
        } else if dims("proj.3.weight").is_some() {
            let hidden = at("proj.0.weight", 0)?;
            (Kind::Full { hidden }, Sees::Rows(at("proj.0.weight", 1)?))
        } else if dims("norm.weight").is_some() {
            let tokens = at("proj.2.weight", 0)? / width.max(1);
            let hidden = at("proj.0.weight", 0)?;
            (
                Kind::Face { hidden, tokens },
                Sees::Face(at("proj.0.weight", 1)?),
            )
        } else if dims("latents").is_some() {
            let layers = (0..256)
                .take_while(|i| dims(&format!("layers.{i}.0.to_q.weight")).is_some())
                .count();
            let inner = at("layers.0.0.to_q.weight", 0)?;
            if !inner.is_multiple_of(HEAD) {
                return Err(format!("heads of {HEAD} do not divide {inner}"));
            }
            (
                Kind::Plus {
                    queries: at("latents", 1)?,
                    hidden: at("latents", 2)?,
                    heads: inner / HEAD,
                    layers,
                    up: at("layers.0.1.1.weight", 0)?,
                },
                Sees::Rows(at("proj_in.weight", 1)?),
            )
        } else {
            return Err("the kind of this IP-Adapter is not known".to_string());
        };
        Ok(Self {
            sees,
            width,
            channels,
            kind,
        })
    }
}

/// An adapter's layers.
#[derive(Debug, Clone)]
pub struct IpAdapter {
    projection: Projection,
    keys: Vec<(Linear, Linear)>,
}

#[derive(Debug, Clone)]
enum Projection {
    Plain(Linear, LayerNorm),
    Rows(Linear, Linear, LayerNorm),
    Face(Linear, Linear, LayerNorm),
    Plus(Box<Resampler>),
}

impl IpAdapter {
    /// Builds the layers that `config` tells of.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    pub fn new(vb: VarBuilder, config: &IpConfig) -> Result<Self> {
        let (image, width) = (vb.pp("image_proj"), config.width);
        let inputs = match config.sees {
            Sees::Embedding(inputs) | Sees::Rows(inputs) | Sees::Face(inputs) => inputs,
        };
        let hidden = |hidden: usize, outputs: usize| {
            Ok::<_, candle_core::Error>((
                linear(image.pp("proj.0"), inputs, hidden)?,
                linear(image.pp("proj.2"), hidden, outputs)?,
            ))
        };
        let norm = |name: &str| layer_norm(image.pp(name), width, 1e-5);
        let projection = match config.kind {
            Kind::Plain => Projection::Plain(
                linear(image.pp("proj"), inputs, TOKENS * width)?,
                norm("norm")?,
            ),
            Kind::Full { hidden: size } => {
                let (up, down) = hidden(size, width)?;
                Projection::Rows(up, down, norm("proj.3")?)
            }
            Kind::Face {
                hidden: size,
                tokens,
            } => {
                let (up, down) = hidden(size, tokens * width)?;
                Projection::Face(up, down, norm("norm")?)
            }
            Kind::Plus { .. } => {
                Projection::Plus(Box::new(Resampler::new(image.clone(), config, inputs)?))
            }
        };
        let keys = config.channels.iter().enumerate().map(|(i, channels)| {
            let vb = vb.pp("ip_adapter").pp(2 * i + 1);
            Ok((
                linear(vb.pp("to_k_ip"), width, *channels)?,
                linear(vb.pp("to_v_ip"), width, *channels)?,
            ))
        });
        Ok(Self {
            projection,
            keys: keys.collect::<Result<_>>()?,
        })
    }

    /// Tokens, `(pictures, tokens, width)`, of embeddings `(pictures, width)` or rows `(pictures, rows, width)`.
    ///
    /// # Errors
    /// If they are of another width, or the device fails.
    pub fn tokens(&self, seen: &Tensor) -> Result<Tensor> {
        let apart = |x: Tensor, norm: &LayerNorm| {
            let width = norm.weight().dim(0)?;
            let (pictures, size) = x.dims2()?;
            norm.forward(&x.reshape((pictures, size / width, width))?)
        };
        match &self.projection {
            Projection::Plain(layer, norm) => apart(layer.forward(seen)?, norm),
            Projection::Face(up, down, norm) => {
                apart(down.forward(&up.forward(seen)?.gelu_erf()?)?, norm)
            }
            Projection::Rows(up, down, norm) => {
                norm.forward(&down.forward(&up.forward(seen)?.gelu_erf()?)?)
            }
            Projection::Plus(resampler) => resampler.forward(seen),
        }
    }

    /// Keys and values of tokens for one of the attentions, in the adapter's order.
    ///
    /// # Errors
    /// If there is no such attention, or the device fails.
    pub fn keys(&self, number: usize, tokens: &Tensor) -> Result<(Tensor, Tensor)> {
        let Some((k, v)) = self.keys.get(number) else {
            candle_core::bail!("the IP-Adapter has {} attentions", self.keys.len())
        };
        Ok((k.forward(tokens)?, v.forward(tokens)?))
    }
}

/// Queries that look at a picture's rows and at each other.
#[derive(Debug, Clone)]
struct Resampler {
    queries: Tensor,
    proj_in: Linear,
    layers: Vec<Look>,
    proj_out: Linear,
    norm: LayerNorm,
}

#[derive(Debug, Clone)]
struct Look {
    norm_rows: LayerNorm,
    norm_queries: LayerNorm,
    q: Linear,
    kv: Linear,
    out: Linear,
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    heads: usize,
}

impl Resampler {
    fn new(vb: VarBuilder, config: &IpConfig, inputs: usize) -> Result<Self> {
        let Kind::Plus {
            queries,
            hidden,
            heads,
            layers,
            up,
        } = config.kind
        else {
            candle_core::bail!("an IP-Adapter without a resampler")
        };
        let inner = heads * HEAD;
        let looks = (0..layers).map(|i| {
            let (look, feed) = (vb.pp("layers").pp(i).pp(0), vb.pp("layers").pp(i).pp(1));
            Ok(Look {
                norm_rows: layer_norm(look.pp("norm1"), hidden, 1e-5)?,
                norm_queries: layer_norm(look.pp("norm2"), hidden, 1e-5)?,
                q: linear(look.pp("to_q"), hidden, inner)?,
                kv: linear(look.pp("to_kv"), hidden, 2 * inner)?,
                out: linear(look.pp("to_out"), inner, hidden)?,
                norm: layer_norm(feed.pp(0), hidden, 1e-5)?,
                up: linear(feed.pp(1), hidden, up)?,
                down: linear(feed.pp(3), up, hidden)?,
                heads,
            })
        });
        Ok(Self {
            queries: vb.get((1, queries, hidden), "latents")?,
            proj_in: linear(vb.pp("proj_in"), inputs, hidden)?,
            layers: looks.collect::<Result<_>>()?,
            proj_out: linear(vb.pp("proj_out"), hidden, config.width)?,
            norm: layer_norm(vb.pp("norm_out"), config.width, 1e-5)?,
        })
    }

    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        let rows = self.proj_in.forward(rows)?;
        let mut x = self.queries.repeat((rows.dim(0)?, 1, 1))?;
        for layer in &self.layers {
            x = layer.forward(&x, &rows)?;
        }
        self.norm.forward(&self.proj_out.forward(&x)?)
    }
}

impl Look {
    fn forward(&self, x: &Tensor, rows: &Tensor) -> Result<Tensor> {
        let queries = self.norm_queries.forward(x)?;
        let both = Tensor::cat(&[&self.norm_rows.forward(rows)?, &queries], 1)?;
        let kv = self.kv.forward(&both)?.chunk(2, 2)?;
        let (k, v) = (kv[0].contiguous()?, kv[1].contiguous()?);
        let h = attention(&self.q.forward(&queries)?, &k, &v, self.heads, false)?;
        let x = (x + self.out.forward(&h)?)?;
        let h = self.up.forward(&self.norm.forward(&x)?)?.gelu_erf()?;
        x + self.down.forward(&h)?
    }
}
