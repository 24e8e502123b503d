//! A block of a vision transformer.

use super::attention::{attend_by, Segments};
use super::config::VisionConfig;
use super::kinds::{Activation, Kind};
use super::weights::{Clipped, Linear, Loader, Norm};
use candle_core::{Module, Result, Tensor, D};
use candle_nn::{ops, rotary_emb::rope_thd};
use worker::{Error, Result as WorkerResult};

pub(super) const LOADING: &str = "loading the encoder of pictures";

/// Attention and a feed-forward part behind it.
pub(super) struct Block {
    norms: [Norm; 2],
    attention: Attention,
    up: Clipped,
    gate: Option<Clipped>,
    down: Clipped,
    /// Factors of what attention and the feed-forward part give.
    scales: [Option<Tensor>; 2],
    /// Norms of what attention and the feed-forward part give.
    post_norms: [Option<Norm>; 2],
}

struct Attention {
    inputs: Projections,
    output: Clipped,
    heads: usize,
    /// Norms of each head of queries and of keys; values then have one without a weight.
    norms: Option<[Norm; 2]>,
    epsilon: f32,
    /// Factor of queries times keys.
    scale: f32,
}

/// What makes queries, keys and values.
enum Projections {
    /// Behind each other.
    Together(Linear),
    /// Each by itself.
    Apart([Clipped; 3]),
}

pub(super) fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::QuickGelu => x * ops::sigmoid(&(x * 1.702)?)?,
        Activation::Silu => x.silu(),
    }
}

impl Block {
    pub(super) fn load(loader: &Loader, c: &VisionConfig, block: usize) -> WorkerResult<Self> {
        let (width, rms) = (c.width, c.traits.rms);
        let name = |part: &str| format!("v.blk.{block}.{part}");
        let norm = |part: &str| loader.norm(&name(part), width, rms, c.epsilon);
        let gemma = c.traits.kind == Kind::Gemma4;
        let inputs = match loader.has(&name("attn_qkv.weight")) {
            true => Projections::Together(loader.linear(&name("attn_qkv"), width, 3 * width)?),
            false if gemma => {
                let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(&name);
                Projections::Apart([
                    in_quarters(loader, &q, width, c.heads)?,
                    in_quarters(loader, &k, width, c.heads)?,
                    loader.clipped(&v, width, width)?,
                ])
            }
            false => {
                let parts = ["attn_q", "attn_k", "attn_v"].map(|part| {
                    let turns = c.traits.kind == Kind::Pixtral && part != "attn_v";
                    match turns {
                        true => in_halves(loader, &name(part), width, c.heads),
                        false => loader.linear(&name(part), width, width),
                    }
                });
                let parts = parts.into_iter().collect::<WorkerResult<Vec<_>>>()?;
                let weights: Vec<&Tensor> = parts.iter().map(|p| &p.weight).collect();
                let biases: Option<Vec<&Tensor>> = parts.iter().map(|p| p.bias.as_ref()).collect();
                let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose();
                Projections::Together(Linear {
                    weight: Tensor::cat(&weights, 1).map_err(Error::candle(LOADING))?,
                    bias: bias.map_err(Error::candle(LOADING))?,
                })
            }
        };
        let size = width / c.heads;
        let norms = match gemma {
            true => Some([
                loader.norm_in_quarters(&name("attn_q_norm"), size, c.epsilon)?,
                loader.norm_in_quarters(&name("attn_k_norm"), size, c.epsilon)?,
            ]),
            false => None,
        };
        let post_norm = |part: &str| match gemma {
            true => norm(part).map(Some),
            false => Ok(None),
        };
        // Early files have the two the other way round.
        let first = loader.file.header().tensor(&name("ffn_up.weight"));
        let swapped = first
            .is_some_and(|t| c.hidden != width && t.dims[..] == [c.hidden as u64, width as u64]);
        let (up, down) = match swapped {
            true => ("ffn_down", "ffn_up"),
            false => ("ffn_up", "ffn_down"),
        };
        let scale = |part: &str| match loader.has(&name(part)) {
            true => loader.vector(&name(part), width).map(Some),
            false => Ok(None),
        };
        let gate = match loader.has(&name("ffn_gate.weight")) {
            true => Some(loader.clipped(&name("ffn_gate"), width, c.hidden)?),
            false => None,
        };
        Ok(Self {
            norms: [norm("ln1")?, norm("ln2")?],
            attention: Attention {
                inputs,
                output: loader.clipped(&name("attn_out"), width, width)?,
                heads: c.heads,
                scale: match &norms {
                    Some(_) => 1.0,
                    None => 1.0 / (size as f32).sqrt(),
                },
                norms,
                epsilon: c.epsilon,
            },
            up: loader.clipped(&name(up), width, c.hidden)?,
            gate,
            down: loader.clipped(&name(down), c.hidden, width)?,
            scales: [scale("ls1.weight")?, scale("ls2.weight")?],
            post_norms: [post_norm("attn_post_norm")?, post_norm("ffn_post_norm")?],
        })
    }

    pub(super) fn forward(
        &self,
        x: &Tensor,
        segments: &Segments,
        rotary: Option<&(Tensor, Tensor)>,
        c: &VisionConfig,
    ) -> Result<Tensor> {
        let finished = |x: Tensor, part: usize| match (&self.scales[part], &self.post_norms[part]) {
            (Some(scale), _) => x.broadcast_mul(scale),
            (None, Some(norm)) => norm.forward(&x),
            (None, None) => Ok(x),
        };
        let mixed = self
            .attention
            .forward(&self.norms[0].forward(x)?, segments, rotary)?;
        let x = (x + finished(mixed, 0)?)?;
        let input = self.norms[1].forward(&x)?;
        let up = self.up.forward(&input)?;
        let inner = match &self.gate {
            Some(gate) => (activate(&gate.forward(&input)?, c.activation)? * up)?,
            None => activate(&up, c.activation)?,
        };
        let fed = self.down.forward(&inner)?;
        x + finished(fed, 1)?
    }
}

impl Attention {
    fn forward(
        &self,
        x: &Tensor,
        segments: &Segments,
        rotary: Option<&(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let size = width / self.heads;
        let [mut q, mut k, mut v] = match &self.inputs {
            Projections::Together(all) => {
                let all = all.forward(x)?.reshape((rows, 3, self.heads, size))?;
                let part = |index: usize| all.narrow(1, index, 1)?.squeeze(1)?.contiguous();
                [part(0)?, part(1)?, part(2)?]
            }
            Projections::Apart([q, k, v]) => {
                let shape = (rows, self.heads, size);
                let part = |matrix: &Clipped| matrix.forward(x)?.reshape(shape);
                [part(q)?, part(k)?, part(v)?]
            }
        };
        if let Some([of_queries, of_keys]) = &self.norms {
            q = of_queries.forward(&q)?;
            k = of_keys.forward(&k)?;
            v = unweighted(&v, self.epsilon)?;
        }
        if let Some((cos, sin)) = rotary {
            let turned = |x: Tensor| rope_thd(&x.unsqueeze(0)?, cos, sin)?.squeeze(0);
            (q, k) = (turned(q)?, turned(k)?);
        }
        let mixed = attend_by(self.scale, &q, &k, &v, segments)?;
        self.output.forward(&mixed.reshape((rows, width))?)
    }
}

/// A matrix whose heads' rows GGUF has in the order of pairs of neighbours, in that of halves.
fn in_halves(loader: &Loader, name: &str, width: usize, heads: usize) -> WorkerResult<Linear> {
    let weight = loader.shaped(&format!("{name}.weight"), &[width, width])?;
    let turned = weight
        .reshape((heads, width / heads / 2, 2, width))
        .and_then(|weight| weight.transpose(1, 2)?.contiguous())
        .and_then(|weight| weight.reshape((width, width)));
    let turned = turned.map_err(Error::candle(LOADING))?;
    loader.turned(turned, None)
}

/// A matrix whose heads turn by columns in their first half and by rows in their second one, each in halves of its own:
/// the quarters of a head in the order in which rows and columns are turned in halves of the whole.
fn in_quarters(loader: &Loader, name: &str, width: usize, heads: usize) -> WorkerResult<Clipped> {
    let mut matrix = loader.clipped(name, width, width)?;
    let turned = quarters(&matrix.linear.weight, heads);
    matrix.linear.weight = turned.map_err(Error::candle(LOADING))?;
    Ok(matrix)
}

/// The quarters of each head along the last dimension in the order of [`in_quarters`].
pub(super) fn quarters(x: &Tensor, heads: usize) -> Result<Tensor> {
    let shape = x.shape().clone();
    let columns = x.dim(D::Minus1)?;
    let x = x.reshape(((), heads, 4, columns / heads / 4))?;
    let order = Tensor::new(&[2u32, 0, 3, 1], x.device())?;
    x.contiguous()?.index_select(&order, 2)?.reshape(shape)
}

/// Divided by the root mean square along the last dimension.
pub(super) fn unweighted(x: &Tensor, epsilon: f32) -> Result<Tensor> {
    let ones = Tensor::ones(x.dim(D::Minus1)?, x.dtype(), x.device())?;
    ops::rms_norm(&x.contiguous()?, &ones, epsilon)
}
