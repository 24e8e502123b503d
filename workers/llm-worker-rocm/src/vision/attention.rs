//! Attention of encoders: each row sees all rows of its stretch.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops;
use candle_rocm_flash_attn::flash_attn_varlen;

/// What attention of some rows needs.
pub(crate) struct Segments {
    /// Running sums of rows.
    sums: Vec<u32>,
    /// The same on the device.
    starts: Tensor,
    longest: usize,
}

impl Segments {
    /// Of stretches of these lengths.
    pub(crate) fn new(lengths: impl Iterator<Item = usize>, device: &Device) -> Result<Self> {
        let (mut sums, mut longest) = (vec![0u32], 0);
        for length in lengths {
            longest = longest.max(length);
            sums.push(sums[sums.len() - 1] + length as u32);
        }
        Ok(Self {
            starts: Tensor::new(sums.as_slice(), device)?,
            sums,
            longest,
        })
    }
}

/// Attention of rows `(rows, heads, size)` within their stretches; scores are divided by the root of the size.
pub(crate) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, segments: &Segments) -> Result<Tensor> {
    attend_by(1.0 / (q.dim(2)? as f32).sqrt(), q, k, v, segments)
}

/// The same of scores with another factor.
pub(super) fn attend_by(
    scale: f32,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    segments: &Segments,
) -> Result<Tensor> {
    match q.device() {
        Device::Cpu => by_products(q, k, v, segments, scale),
        _ => {
            let (starts, longest) = (&segments.starts, segments.longest);
            flash_attn_varlen(q, k, v, starts, starts, longest, longest, scale, false)
        }
    }
}

/// Attention on the CPU, where products of matrices are fastest: the scores of one head at a time.
fn by_products(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    segments: &Segments,
    scale: f32,
) -> Result<Tensor> {
    let heads = q.dim(1)?;
    let mut parts = Vec::with_capacity(segments.sums.len());
    for two in segments.sums.windows(2) {
        let (start, rows) = (two[0] as usize, (two[1] - two[0]) as usize);
        let head = |x: &Tensor, head: usize| -> Result<Tensor> {
            x.narrow(0, start, rows)?
                .narrow(1, head, 1)?
                .squeeze(1)?
                .contiguous()
        };
        let mixed = (0..heads).map(|h| {
            let scores = (head(q, h)?.matmul(&head(k, h)?.t()?)? * f64::from(scale))?;
            ops::softmax_last_dim(&scores)?.matmul(&head(v, h)?)
        });
        parts.push(Tensor::stack(&mixed.collect::<Result<Vec<_>>>()?, 1)?);
    }
    Tensor::cat(&parts, 0)
}
