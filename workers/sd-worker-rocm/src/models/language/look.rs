//! What tokens look at: those before them, within a window, that are not padding.

use crate::models::attention::attention;
use crate::models::layers::softmax;
use candle_core::{DType, Device, Result, Tensor};

/// Scores held at a time: 64 MiB in f32.
const SCORES: usize = 1 << 24;

/// Which tokens see which, where that is not simply all before them.
#[derive(Debug, Clone)]
pub struct Look {
    /// 0 where a token (row) sees another, minus infinity elsewhere: `(tokens, tokens)`, f32.
    mask: Tensor,
    /// 0 for rows that see nothing, 1 for others: `(tokens, 1)`, f32.
    sees: Tensor,
}

impl Look {
    /// For `tokens` tokens, of which `seen` are no padding, that look back `window`; `None` where all before a token
    /// are seen.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn new(
        tokens: usize,
        seen: Option<&[bool]>,
        window: Option<usize>,
        device: &Device,
    ) -> Result<Option<Self>> {
        let seen = seen.filter(|seen| seen.iter().any(|seen| !seen));
        let window = window.filter(|window| *window < tokens);
        if seen.is_none() && window.is_none() {
            return Ok(None);
        }
        let sees = |row: usize, key: usize| {
            key <= row
                && window.is_none_or(|window| row - key < window)
                && seen.is_none_or(|seen| seen[key])
        };
        let mut mask = Vec::with_capacity(tokens * tokens);
        let mut any = Vec::with_capacity(tokens);
        for row in 0..tokens {
            let blind = !(0..tokens).any(|key| sees(row, key));
            any.push(f32::from(u8::from(!blind)));
            // What a row that sees nothing takes is undone later; here its softmax must have something to divide by.
            mask.extend((0..tokens).map(|key| match blind || sees(row, key) {
                true => 0.0,
                false => f32::NEG_INFINITY,
            }));
        }
        Ok(Some(Self {
            mask: Tensor::from_vec(mask, (tokens, tokens), device)?,
            sees: Tensor::from_vec(any, (tokens, 1), device)?,
        }))
    }
}

/// Attention of a decoder. Queries, keys and values are `(batch, tokens, heads * size)`, as many heads each; the result
/// has that shape, too. Scores are multiplied by `scale` and go softly up to `cap`. Rows that see nothing are zeros.
///
/// # Errors
/// If shapes do not fit together, or the device fails.
pub fn attend(
    [q, k, v]: [&Tensor; 3],
    heads: usize,
    scale: f64,
    cap: Option<f64>,
    look: Option<&Look>,
) -> Result<Tensor> {
    let (batch, tokens, width) = q.dims3()?;
    let size = width / heads;
    if cap.is_none() && look.is_none() {
        // That one divides by the root of the size.
        let factor = scale * (size as f64).sqrt();
        let q = match (factor - 1.0).abs() < 1e-9 {
            true => q.clone(),
            false => (q * factor)?,
        };
        return attention(&q, k, v, heads, true);
    }
    let by_head = |x: &Tensor| {
        let x = x.reshape((batch, tokens, heads, size))?;
        x.transpose(1, 2)?.contiguous()
    };
    let (q, k, v) = ((by_head(q)? * scale)?, by_head(k)?.t()?, by_head(v)?);
    let plain = match look {
        Some(look) => look.clone(),
        // Nothing but the cap: every token sees those before it.
        None => Look {
            mask: triangle(tokens, q.device())?,
            sees: Tensor::ones((tokens, 1), DType::F32, q.device())?,
        },
    };
    let piece = (SCORES / (batch * heads * tokens).max(1)).clamp(1, tokens);
    let pieces = (0..tokens).step_by(piece).map(|start| {
        let rows = piece.min(tokens - start);
        let scores = q.narrow(2, start, rows)?.contiguous()?.matmul(&k)?;
        let scores = scores.to_dtype(DType::F32)?;
        let scores = match cap {
            Some(cap) => ((scores / cap)?.tanh()? * cap)?,
            None => scores,
        };
        let mask = plain.mask.narrow(0, start, rows)?;
        let shares = softmax(&scores.broadcast_add(&mask)?)?;
        let shares = shares.broadcast_mul(&plain.sees.narrow(0, start, rows)?)?;
        shares.to_dtype(v.dtype())?.matmul(&v)
    });
    let pieces = pieces.collect::<Result<Vec<_>>>()?;
    Tensor::cat(&pieces, 2)?
        .transpose(1, 2)?
        .contiguous()?
        .reshape((batch, tokens, width))
}

/// Every token sees itself and those before it.
fn triangle(tokens: usize, device: &Device) -> Result<Tensor> {
    let mask = (0..tokens * tokens).map(|at| match at % tokens > at / tokens {
        true => f32::NEG_INFINITY,
        false => 0.0,
    });
    Tensor::from_vec(mask.collect::<Vec<f32>>(), (tokens, tokens), device)
}
