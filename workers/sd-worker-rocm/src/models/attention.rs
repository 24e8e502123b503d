//! Attention of pictures and prompts, without ever holding all scores where that would be large.

use super::layers::softmax;
use candle_core::{DType, Result, Tensor};

/// Scores held at a time by the plain form: 64 MiB in f32.
const SCORES: usize = 1 << 24;

/// `softmax(q kᵀ / sqrt(d)) v` of `heads` heads of size `d`. `q` is `(batch, rows, heads * d)`, `k` and `v` are
/// `(batch, keys, heads * d)`; the result has the shape of `q`. With `causal`, a row sees the keys up to its own
/// position.
///
/// On AMD GPUs, and for f32 on the CPU, this is the fused operation; elsewhere, and for head sizes that it does not take,
/// rows go through in pieces.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, causal: bool) -> Result<Tensor> {
    let (batch, rows, width) = q.dims3()?;
    let keys = k.dim(1)?;
    if heads == 0 || !width.is_multiple_of(heads) {
        candle_core::bail!("attention: {heads} heads do not divide {width} channels")
    }
    let size = width / heads;
    let q = q.reshape((batch, rows, heads, size))?;
    let k = k.reshape((batch, keys, heads, size))?;
    let v = v.reshape((batch, keys, heads, size))?;
    let scale = 1.0 / (size as f64).sqrt();
    let is_fused = q.device().is_rocm() || (q.device().is_cpu() && q.dtype() == DType::F32);
    if is_fused && size.is_multiple_of(8) && size <= 512 {
        let out = candle_rocm_flash_attn::flash_attn(&q, &k, &v, scale as f32, causal)?;
        return out.reshape((batch, rows, width));
    }
    let q = (q.transpose(1, 2)?.contiguous()? * scale)?;
    let k = k.transpose(1, 2)?.contiguous()?.transpose(2, 3)?;
    let v = v.transpose(1, 2)?.contiguous()?;
    let out = if causal {
        let mask: Vec<f32> = (0..rows)
            .flat_map(|row| {
                (0..keys).map(move |key| if key > row { f32::NEG_INFINITY } else { 0.0 })
            })
            .collect();
        let mask = Tensor::from_vec(mask, (rows, keys), q.device())?.to_dtype(q.dtype())?;
        softmax(&q.matmul(&k)?.broadcast_add(&mask)?)?.matmul(&v)?
    } else {
        let piece = (SCORES / (batch * heads * keys).max(1)).clamp(1, rows);
        let pieces = (0..rows)
            .step_by(piece)
            .map(|start| {
                let q = q.narrow(2, start, piece.min(rows - start))?;
                softmax(&q.contiguous()?.matmul(&k)?)?.matmul(&v)
            })
            .collect::<Result<Vec<_>>>()?;
        match pieces.as_slice() {
            [one] => one.clone(),
            many => Tensor::cat(many, 2)?,
        }
    };
    out.transpose(1, 2)?
        .contiguous()?
        .reshape((batch, rows, width))
}

/// Linear attention (Katharopoulos et al. 2020): `q (kᵀ v) / (q Σ kᵀ)` of `heads` heads, for queries and keys that are not
/// negative, all `(batch, rows, heads * size)`. Sums are those of f32; the result has the shape of `q`.
pub fn linear_attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize) -> Result<Tensor> {
    let (batch, rows, width) = q.dims3()?;
    if heads == 0 || !width.is_multiple_of(heads) {
        candle_core::bail!("attention: {heads} heads do not divide {width} channels")
    }
    let split = |x: &Tensor| {
        let x = x.reshape((batch, x.dim(1)?, heads, width / heads))?;
        x.transpose(1, 2)?.contiguous()?.to_dtype(DType::F32)
    };
    let (wide, k, v) = (split(q)?, split(k)?, split(v)?);
    let states = k.transpose(2, 3)?.contiguous()?.matmul(&v)?;
    let sums = k.sum_keepdim(2)?.transpose(2, 3)?.contiguous()?;
    let whole = (wide.matmul(&sums)? + 1e-15)?;
    wide.matmul(&states)?
        .broadcast_div(&whole)?
        .to_dtype(q.dtype())?
        .transpose(1, 2)?
        .contiguous()?
        .reshape((batch, rows, width))
}
