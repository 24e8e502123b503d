//! Frames cut into tiles, and squares of pixels folded into channels.

use candle_core::{Result, Tensor};

/// A stretch of rows or columns, with what is around it on both sides.
pub(super) struct Piece {
    start: usize,
    length: usize,
    before: usize,
    after: usize,
}

impl Piece {
    pub(super) fn cut(&self, x: &Tensor, dim: usize) -> Result<Tensor> {
        let length = self.before + self.length + self.after;
        x.narrow(dim, self.start - self.before, length)
    }

    pub(super) fn trim(&self, x: &Tensor, dim: usize, factor: usize) -> Result<Tensor> {
        x.narrow(dim, self.before * factor, self.length * factor)
    }
}

/// Pieces of nearly one size, of up to `tile` each; one without tiles.
pub(super) fn pieces(total: usize, tile: Option<usize>, reach: usize) -> Vec<Piece> {
    let count = tile.map_or(1, |tile| total.div_ceil(tile.max(1)).max(1));
    let spans = (0..count).map(|i| (i * total / count, (i + 1) * total / count));
    spans
        .map(|(start, end)| Piece {
            start,
            length: end - start,
            before: reach.min(start),
            after: reach.min(total - end),
        })
        .collect()
}

/// Folds squares of `patch` pixels into channels, columns outside of rows.
pub(super) fn fold(x: &Tensor, patch: usize) -> Result<Tensor> {
    if patch == 1 {
        return Ok(x.clone());
    }
    let (f, c, h, w) = x.dims4()?;
    x.reshape(vec![f, c, h / patch, patch, w / patch, patch])?
        .permute(vec![0, 1, 5, 3, 2, 4])?
        .contiguous()?
        .reshape((f, c * patch * patch, h / patch, w / patch))
}

/// Undoes [`fold`].
pub(super) fn unfold(x: &Tensor, patch: usize) -> Result<Tensor> {
    if patch == 1 {
        return Ok(x.clone());
    }
    let (f, c, h, w) = x.dims4()?;
    let c = c / (patch * patch);
    x.reshape(vec![f, c, patch, patch, h, w])?
        .permute(vec![0, 1, 4, 3, 5, 2])?
        .contiguous()?
        .reshape((f, c, h * patch, w * patch))
}
