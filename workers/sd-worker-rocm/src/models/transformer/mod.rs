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
