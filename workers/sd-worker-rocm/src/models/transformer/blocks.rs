//! What the transformers are made of.

use crate::models::attention::attention;
use crate::models::layers::Linear;
use crate::models::layers::{linear, sinusoidal, TimestepEmbedding};
use crate::models::VarBuilder;
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::LayerNorm;

/// Cosines and sines of positions, `(tokens, head size / 2)` each.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Rotations for tokens at `positions`, whose axes have a share `sizes` of the head each. Angles are computed in f64.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn new(
        positions: &[[f64; 3]],
        sizes: &[usize],
        theta: f64,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let half: usize = sizes.iter().map(|size| size / 2).sum();
        let mut angles = Vec::with_capacity(positions.len() * half);
        for position in positions {
            for (at, size) in position.iter().zip(sizes) {
                let frequency = |i: usize| theta.powf(-2.0 * i as f64 / *size as f64);
                angles.extend((0..size / 2).map(|i| at * frequency(i)));
            }
        }
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|a| of(*a) as f32).collect();
            Tensor::from_vec(values, (positions.len(), half), device)?.to_dtype(dtype)
        };
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }

    /// `x`, `(batch, tokens, heads * size)`, with neighbouring pairs rotated.
    fn apply(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let (batch, tokens, width) = x.dims3()?;
        let x = x
            .reshape((batch, tokens, heads, width / heads))?
            .transpose(1, 2)?
            .contiguous()?;
        candle_nn::rotary_emb::rope_i(&x, &self.cos, &self.sin)?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch, tokens, width))
    }
}

/// An RMS norm of each head.
#[derive(Debug, Clone)]
pub struct HeadNorm {
    weight: Tensor,
    eps: f32,
}

impl HeadNorm {
    /// Reads `weight`, if there is one.
    pub fn new(vb: VarBuilder, size: usize, eps: f64) -> Result<Option<Self>> {
        if !vb.contains_tensor("weight") {
            return Ok(None);
        }
        Ok(Some(Self {
            weight: vb.get(size, "weight")?,
            eps: eps as f32,
        }))
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, tokens, width) = x.dims3()?;
        let size = self.weight.dim(0)?;
        let heads = x.reshape((batch, tokens, width / size, size))?;
        candle_nn::ops::rms_norm(&heads, &self.weight, self.eps)?.reshape((batch, tokens, width))
    }
}

/// Queries, keys and values of one stream of tokens.
#[derive(Debug, Clone)]
pub struct Projections {
    q: Linear,
    k: Linear,
    v: Linear,
    norm_q: Option<HeadNorm>,
    norm_k: Option<HeadNorm>,
}

/// Names of a stream's layers.
pub struct Names {
    qkv: [&'static str; 3],
    norms: [&'static str; 2],
}

/// The picture's.
pub const PICTURE: Names = Names {
    qkv: ["to_q", "to_k", "to_v"],
    norms: ["norm_q", "norm_k"],
};

/// The text's, where it has layers of its own.
pub const TEXT: Names = Names {
    qkv: ["add_q_proj", "add_k_proj", "add_v_proj"],
    norms: ["norm_added_q", "norm_added_k"],
};

impl Projections {
    /// Reads the layers of `names`; `heads` of `size` each.
    pub fn new(
        vb: &VarBuilder,
        names: &Names,
        width: usize,
        size: usize,
        eps: f64,
    ) -> Result<Self> {
        let project = |name: &str| linear(vb.pp(name), width, width);
        let [q, k, v] = names.qkv;
        let [norm_q, norm_k] = names.norms;
        Ok(Self {
            q: project(q)?,
            k: project(k)?,
            v: project(v)?,
            norm_q: HeadNorm::new(vb.pp(norm_q), size, eps)?,
            norm_k: HeadNorm::new(vb.pp(norm_k), size, eps)?,
        })
    }

    /// Queries, keys and values, queries and keys normalised.
    pub fn forward(&self, x: &Tensor) -> Result<[Tensor; 3]> {
        let normed = |norm: &Option<HeadNorm>, x: Tensor| match norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        };
        Ok([
            normed(&self.norm_q, self.q.forward(x)?)?,
            normed(&self.norm_k, self.k.forward(x)?)?,
            self.v.forward(x)?,
        ])
    }
}

/// Attention of all tokens to all, rotated by their positions if given.
pub fn attend([q, k, v]: &[Tensor; 3], heads: usize, rope: Option<&Rope>) -> Result<Tensor> {
    match rope {
        None => attention(q, k, v, heads, false),
        Some(rope) => attention(
            &rope.apply(q, heads)?,
            &rope.apply(k, heads)?,
            v,
            heads,
            false,
        ),
    }
}

/// A layer norm without weights, scaled and shifted by the conditions.
#[derive(Debug, Clone)]
pub struct PlainNorm(LayerNorm);

impl PlainNorm {
    /// Of `width` channels.
    pub fn new(vb: &VarBuilder, width: usize) -> Result<Self> {
        let ones = Tensor::ones(width, vb.dtype(), vb.device())?;
        let zeros = Tensor::zeros(width, vb.dtype(), vb.device())?;
        Ok(Self(LayerNorm::new(ones, zeros, 1e-6)))
    }

    /// `norm(x) * (1 + scale) + shift`, with scale and shift `(batch, 1, width)`.
    pub fn modulated(&self, x: &Tensor, scale: &Tensor, shift: Option<&Tensor>) -> Result<Tensor> {
        let x = self.0.forward(x)?.broadcast_mul(&(scale + 1.0)?)?;
        match shift {
            Some(shift) => x.broadcast_add(shift),
            None => Ok(x),
        }
    }
}

/// Scales, shifts and gates out of the conditions.
#[derive(Debug, Clone)]
pub struct Modulation {
    layer: Linear,
    parts: usize,
}

impl Modulation {
    /// A linear layer from `inputs` conditions to `parts` times `width`.
    pub fn new(vb: VarBuilder, inputs: usize, width: usize, parts: usize) -> Result<Self> {
        Ok(Self {
            layer: linear(vb, inputs, parts * width)?,
            parts,
        })
    }

    /// The parts, `(batch, 1, width)` each, of conditions that went through SiLU where the model has that.
    pub fn forward(&self, conditions: &Tensor) -> Result<Vec<Tensor>> {
        let all = self.layer.forward(conditions)?.unsqueeze(1)?;
        all.chunk(self.parts, D::Minus1)?
            .iter()
            .map(Tensor::contiguous)
            .collect()
    }
}

/// Two linear layers with GELU by tanh between them.
#[derive(Debug, Clone)]
pub struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    /// Reads `net.0.proj` and `net.2`, four times as wide inside.
    pub fn new(vb: VarBuilder, width: usize) -> Result<Self> {
        Ok(Self {
            up: linear(vb.pp("net.0.proj"), width, 4 * width)?,
            down: linear(vb.pp("net.2"), 4 * width, width)?,
        })
    }

    /// The layers.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu()?)
    }
}

/// One stream of tokens in a block of two.
#[derive(Debug, Clone)]
struct Stream {
    modulation: Modulation,
    projections: Projections,
    /// Attention of the picture to itself alone (Stable Diffusion 3.5 medium).
    alone: Option<(Projections, Linear)>,
    /// Absent where the stream ends: its tokens are only looked at.
    rest: Option<(Linear, FeedForward)>,
    norm: PlainNorm,
}

impl Stream {
    fn after_attention(&self, x: &Tensor, attended: &Tensor, by: &[Tensor]) -> Result<Tensor> {
        match &self.rest {
            Some((out, _)) => x + out.forward(attended)?.broadcast_mul(&by[2])?,
            None => Ok(x.clone()),
        }
    }

    fn feed(&self, x: &Tensor, by: &[Tensor]) -> Result<Tensor> {
        match &self.rest {
            Some((_, feed)) => {
                let normed = self.norm.modulated(x, &by[4], Some(&by[3]))?;
                x + feed.forward(&normed)?.broadcast_mul(&by[5])?
            }
            None => Ok(x.clone()),
        }
    }
}

/// Picture and text, each with layers of its own, in one attention.
#[derive(Debug, Clone)]
pub struct JointBlock {
    picture: Stream,
    text: Stream,
    heads: usize,
}

impl JointBlock {
    /// Reads a block under diffusers' names. `ends` says that the text is not needed after it, `alone` that the picture has a second attention.
    pub fn new(
        vb: VarBuilder,
        width: usize,
        heads: usize,
        ends: bool,
        alone: bool,
    ) -> Result<Self> {
        let attn = vb.pp("attn");
        let size = width / heads;
        let picture = Stream {
            modulation: Modulation::new(
                vb.pp("norm1.linear"),
                width,
                width,
                if alone { 9 } else { 6 },
            )?,
            projections: Projections::new(&attn, &PICTURE, width, size, 1e-6)?,
            alone: match alone {
                false => None,
                true => {
                    let attn = vb.pp("attn2");
                    let projections = Projections::new(&attn, &PICTURE, width, size, 1e-6)?;
                    Some((projections, linear(attn.pp("to_out.0"), width, width)?))
                }
            },
            rest: Some((
                linear(attn.pp("to_out.0"), width, width)?,
                FeedForward::new(vb.pp("ff"), width)?,
            )),
            norm: PlainNorm::new(&vb, width)?,
        };
        let text = Stream {
            modulation: Modulation::new(
                vb.pp("norm1_context.linear"),
                width,
                width,
                if ends { 2 } else { 6 },
            )?,
            projections: Projections::new(&attn, &TEXT, width, size, 1e-6)?,
            alone: None,
            rest: match ends {
                true => None,
                false => Some((
                    linear(attn.pp("to_add_out"), width, width)?,
                    FeedForward::new(vb.pp("ff_context"), width)?,
                )),
            },
            norm: PlainNorm::new(&vb, width)?,
        };
        Ok(Self {
            picture,
            text,
            heads,
        })
    }

    /// Picture and text after the block; `conditions` went through SiLU, `rope` has text before picture.
    pub fn forward(
        &self,
        picture: &Tensor,
        text: &Tensor,
        conditions: &Tensor,
        rope: Option<&Rope>,
    ) -> Result<(Tensor, Tensor)> {
        let by_picture = self.picture.modulation.forward(conditions)?;
        let by_text = self.text.modulation.forward(conditions)?;
        let normed_picture =
            self.picture
                .norm
                .modulated(picture, &by_picture[1], Some(&by_picture[0]))?;
        let normed_text = match self.text.rest {
            Some(_) => self
                .text
                .norm
                .modulated(text, &by_text[1], Some(&by_text[0]))?,
            // The last norm has scale before shift.
            None => self
                .text
                .norm
                .modulated(text, &by_text[0], Some(&by_text[1]))?,
        };
        let of_picture = self.picture.projections.forward(&normed_picture)?;
        let of_text = self.text.projections.forward(&normed_text)?;
        let joint = |i: usize| Tensor::cat(&[&of_text[i], &of_picture[i]], 1);
        let attended = attend(&[joint(0)?, joint(1)?, joint(2)?], self.heads, rope)?;
        let (tokens, patches) = (text.dim(1)?, picture.dim(1)?);

        let after_picture = attended.narrow(1, tokens, patches)?.contiguous()?;
        let mut after = self
            .picture
            .after_attention(picture, &after_picture, &by_picture)?;
        if let Some((projections, out)) = &self.picture.alone {
            let normed =
                self.picture
                    .norm
                    .modulated(picture, &by_picture[7], Some(&by_picture[6]))?;
            let attended = attend(&projections.forward(&normed)?, self.heads, None)?;
            after = (after + out.forward(&attended)?.broadcast_mul(&by_picture[8])?)?;
        }
        let picture = self.picture.feed(&after, &by_picture)?;
        let after_text = attended.narrow(1, 0, tokens)?.contiguous()?;
        let text = self.text.after_attention(text, &after_text, &by_text)?;
        let text = self.text.feed(&text, &by_text)?;
        Ok((picture, text))
    }
}

/// The embedding of time, and of what else the conditions are summed from, `(batch, width)`.
#[derive(Debug, Clone)]
pub struct Conditions {
    time: TimestepEmbedding,
    guidance: Option<TimestepEmbedding>,
    pooled: TimestepEmbedding,
    dtype: DType,
}

/// Width of the sinusoidal embedding of time.
pub const TIME: usize = 256;

impl Conditions {
    /// Reads `timestep_embedder`, `guidance_embedder` if `guided`, and `text_embedder` from `pooled` inputs.
    pub fn new(vb: VarBuilder, width: usize, pooled: usize, guided: bool) -> Result<Self> {
        let embed = |name: &str, inputs| TimestepEmbedding::new(vb.pp(name), inputs, width, None);
        Ok(Self {
            time: embed("timestep_embedder", TIME)?,
            guidance: match guided {
                true => Some(embed("guidance_embedder", TIME)?),
                false => None,
            },
            pooled: embed("text_embedder", pooled)?,
            dtype: vb.dtype(),
        })
    }

    /// The sum after SiLU, for time `t` in 0 to 1000 and a pooled text `(batch, inputs)`.
    pub fn forward(&self, t: f64, guidance: Option<f64>, pooled: &Tensor) -> Result<Tensor> {
        let embed = |layer: &TimestepEmbedding, value: f64| {
            let row = sinusoidal(&[value], TIME, true, 0.0, pooled.device())?;
            layer.forward(&row.to_dtype(self.dtype)?, None)
        };
        let mut sum = embed(&self.time, t)?;
        if let (Some(layer), Some(guidance)) = (&self.guidance, guidance) {
            sum = (sum + embed(layer, 1000.0 * guidance)?)?;
        }
        self.pooled
            .forward(pooled, None)?
            .broadcast_add(&sum)?
            .silu()
    }
}
