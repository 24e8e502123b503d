//! Attention of transformers: rotations, projections, norms of heads.

use crate::models::attention::attention;
use crate::models::layers::{linear, softmax, Linear};
use crate::models::VarBuilder;
use candle_core::{DType, Device, Module, Result, Tensor, D};

/// Cosines and sines of positions, `(tokens, size / 2)` each, of heads of this size or of all heads together.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
    /// Whether all heads have one rotation of their whole width.
    whole: bool,
}

impl Rope {
    /// Rotations for tokens at `positions`, whose axes have a share `sizes` of the head each. Angles are computed in
    /// f64.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn new<const N: usize>(
        positions: &[[f64; N]],
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
            whole: false,
        })
    }

    /// Rotations by these angles of all heads together, `half` angles a token.
    ///
    /// # Errors
    /// If the angles are not of whole tokens, or the device has no room.
    pub fn of_all_heads(
        angles: &[f32],
        half: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let table = |of: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().map(|a| of(*a)).collect();
            Tensor::from_vec(values, (angles.len() / half.max(1), half), device)?.to_dtype(dtype)
        };
        Ok(Self {
            cos: table(f32::cos)?,
            sin: table(f32::sin)?,
            whole: true,
        })
    }

    /// `x`, `(batch, tokens, heads * size)`, with neighbouring pairs rotated.
    fn apply(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        let (batch, tokens, width) = x.dims3()?;
        let heads = if self.whole { 1 } else { heads };
        let x = x.reshape((batch, tokens, heads, width / heads))?;
        candle_nn::fused::rope_i_thd(&x, &self.cos, &self.sin)?.reshape((batch, tokens, width))
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

    /// `x`, `(batch, tokens, heads * size)`, with each head normalised.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
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
        Self::grouped(vb, names, width, width, size, eps)
    }

    /// The same with `shared` channels of keys and values, of which several heads of queries have one's.
    pub fn grouped(
        vb: &VarBuilder,
        names: &Names,
        width: usize,
        shared: usize,
        size: usize,
        eps: f64,
    ) -> Result<Self> {
        let project = |name: &str, outputs| linear(vb.pp(name), width, outputs);
        let [q, k, v] = names.qkv;
        let [norm_q, norm_k] = names.norms;
        Ok(Self {
            q: project(q, width)?,
            k: project(k, shared)?,
            v: project(v, shared)?,
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

/// Attention in which the picture's tokens see the text and themselves, not one another (perturbed-attention guidance); the
/// text sees all. The result has the text before the picture.
pub fn attend_apart(text: &[Tensor; 3], picture: &[Tensor; 3], heads: usize) -> Result<Tensor> {
    let joint = |i: usize| Tensor::cat(&[&text[i], &picture[i]], 1);
    let of_text = attention(&text[0], &joint(1)?, &joint(2)?, heads, false)?;
    let (batch, patches, width) = picture[0].dims3()?;
    let size = width / heads;
    let split = |x: &Tensor| {
        let tokens = x.dim(1)?;
        let x = x.reshape((batch, tokens, heads, size))?;
        x.transpose(1, 2)?.contiguous()
    };
    let [q, k, v] = [
        split(&picture[0])?,
        split(&picture[1])?,
        split(&picture[2])?,
    ];
    let q = (q / (size as f64).sqrt())?;
    let (others, values) = (split(&text[1])?, split(&text[2])?);
    let to_text = q.matmul(&others.transpose(2, 3)?.contiguous()?)?;
    let to_itself = (&q * &k)?.sum_keepdim(D::Minus1)?;
    let shares = softmax(&Tensor::cat(&[&to_text, &to_itself], D::Minus1)?)?;
    let tokens = to_text.dim(D::Minus1)?;
    let seen = shares.narrow(D::Minus1, 0, tokens)?.contiguous()?;
    let itself = shares.narrow(D::Minus1, tokens, 1)?;
    let of_picture = (seen.matmul(&values)? + v.broadcast_mul(&itself)?)?;
    let of_picture = of_picture.transpose(1, 2)?.contiguous()?;
    Tensor::cat(&[of_text, of_picture.reshape((batch, patches, width))?], 1)
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
