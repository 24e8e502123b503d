//! Attention by tensor operations, which has gradients with respect to everything.

use candle::{DType, Device, Result, Tensor, D};

/// What [`crate::ops::sdpa`] computes where its own kernels do not: on the CPU, and with gradients wherever no kernel
/// has them. `None` if the kernels do.
pub(crate) fn sdpa(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Option<Tensor>> {
    let tracked = [Some(q), Some(k), Some(v), mask];
    let tracked = tracked.into_iter().flatten().any(|t| t.track_op());
    #[cfg(feature = "rocm")]
    if tracked {
        let cap = (softcapping != 1.0).then_some(softcapping);
        if let Some(result) = super::rocm::sdpa(q, k, v, mask, causal, scale, cap)? {
            return Ok(Some(result));
        }
    }
    if !(tracked || q.device().is_cpu()) {
        return Ok(None);
    }
    plain(q, k, v, mask, causal, scale, softcapping).map(Some)
}

/// `softmax(cap tanh(q kᵀ scale / cap) + mask) v` with the matrix of scores, in f32, for f64 in f64. The last row sees
/// the last key under a causal mask; a row that sees none gives zeros.
fn plain(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    causal: bool,
    scale: f32,
    softcapping: f32,
) -> Result<Tensor> {
    let (batch, heads, rows, _) = q.dims4()?;
    let (_, kv_heads, keys, _) = k.dims4()?;
    let dtype = q.dtype();
    if [k, v].iter().any(|t| t.dtype() != dtype) {
        candle::bail!(
            "sdpa: q, k and v must be of one dtype, not {dtype:?}, {:?} and {:?}",
            k.dtype(),
            v.dtype()
        )
    }
    if kv_heads == 0 || heads % kv_heads != 0 {
        candle::bail!("sdpa: {kv_heads} heads of keys do not divide {heads} heads of queries")
    }
    let inner = match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::F32 | DType::F64 => dtype,
        _ => candle::bail!("sdpa is for floats, not {dtype:?}"),
    };
    // Heads that share one of the keys are rows of one matrix.
    let group = heads / kv_heads;
    let grouped = (batch, kv_heads, group * rows, q.dim(3)?);
    let wide = |x: &Tensor| x.to_dtype(inner)?.contiguous();
    let (wide_k, wide_v) = (wide(k)?, wide(v)?);
    let scores = wide(q)?.reshape(grouped)?.matmul(&wide_k.t()?)?;
    let mut scores = (scores * f64::from(scale))?.reshape((batch, heads, rows, keys))?;
    if softcapping != 1.0 {
        let cap = f64::from(softcapping);
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(mask) = mask {
        scores = scores.broadcast_add(&mask.to_dtype(inner)?)?;
    }
    if causal {
        scores = scores.broadcast_add(&behind(rows, keys, inner, q.device())?)?;
    }
    // Nothing hidden has a weight, also where all of a row is hidden; the maximum only scales.
    let top = scores.detach().max_keepdim(D::Minus1)?;
    let top = top.maximum(f64::from(f32::MIN))?;
    let weights = scores.broadcast_sub(&top)?.exp()?;
    let sum = weights.sum_keepdim(D::Minus1)?;
    let nothing = sum.detach().eq(0.)?.to_dtype(inner)?;
    let weights = weights.broadcast_div(&(sum + nothing)?)?;
    let out = weights
        .reshape((batch, kv_heads, group * rows, keys))?
        .matmul(&wide_v)?;
    out.reshape((batch, heads, rows, v.dim(3)?))?
        .to_dtype(dtype)
}

/// Minus infinity for each key behind a row's position.
fn behind(rows: usize, keys: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let hidden = |row: usize, key: usize| key + rows > row + keys;
    let values: Vec<f32> = (0..rows * keys)
        .map(|i| match hidden(i / keys, i % keys) {
            true => f32::NEG_INFINITY,
            false => 0.0,
        })
        .collect();
    Tensor::from_vec(values, (rows, keys), device)?.to_dtype(dtype)
}
