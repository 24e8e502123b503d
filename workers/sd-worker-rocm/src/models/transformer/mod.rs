//! Diffusion transformers, a file for each family.

pub mod attention;
pub mod block_residuals;
pub mod blocks;
pub mod chroma;
pub mod experts;
pub mod flux;
pub mod flux2;
pub mod flux_control;
pub mod hidream;
pub mod ltx;
pub mod lumina2;
pub mod qwen_image;
pub mod sana;
pub mod sandwich;
pub mod sd3;
pub mod sd3_control;
pub mod step_cache;
mod stretches;
pub mod wan;
pub mod z_image;

use candle_core::{Result, Tensor};

/// `(batch, channels, height, width)` as patches of 2x2: `(batch, patches, channels * 4)`, channels outermost.
pub fn pack(x: &Tensor) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4()?;
    x.reshape(vec![b, c, h / 2, 2, w / 2, 2])?
        .permute(vec![0, 2, 4, 1, 3, 5])?
        .contiguous()?
        .reshape((b, h / 2 * (w / 2), c * 4))
}

/// Undoes [`pack`].
pub fn unpack(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let (b, _, c) = x.dims3()?;
    x.reshape(vec![b, height / 2, width / 2, c / 4, 2, 2])?
        .permute(vec![0, 3, 1, 4, 2, 5])?
        .contiguous()?
        .reshape((b, c / 4, height, width))
}

/// `(batch, channels, height, width)` as patches of 2x2 with channels innermost: `(batch, patches, 4 * channels)`.
pub fn pack_inner(x: &Tensor) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4()?;
    x.reshape(vec![b, c, h / 2, 2, w / 2, 2])?
        .permute(vec![0, 2, 4, 3, 5, 1])?
        .contiguous()?
        .reshape((b, h / 2 * (w / 2), 4 * c))
}

/// Undoes [`pack_inner`].
pub fn unpack_inner(x: &Tensor, height: usize, width: usize) -> Result<Tensor> {
    let (b, _, c) = x.dims3()?;
    x.reshape(vec![b, height / 2, width / 2, 2, 2, c / 4])?
        .permute(vec![0, 5, 1, 3, 2, 4])?
        .contiguous()?
        .reshape((b, c / 4, height, width))
}

/// Numbers of blocks named `transformer_blocks.3`, `blocks.3` or `3`, of `count` that there are; without names the usual
/// one.
///
/// # Errors
/// Names the first that is not there.
pub(crate) fn numbers(names: &[String], count: usize, usual: usize) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Ok(vec![usual]);
    }
    let number = |name: &String| {
        let number = name.strip_prefix("transformer_").unwrap_or(name);
        let number = number.strip_prefix("blocks.").unwrap_or(number);
        let number = number.parse().ok().filter(|i| *i < count);
        number.ok_or_else(|| {
            candle_core::Error::msg(format!(
                "there is no block {name:?}; there are blocks.0 to blocks.{}",
                count.saturating_sub(1)
            ))
        })
    };
    names.iter().map(number).collect()
}
