//! Decoding in tiles without seams.
//!
//! Cutting a picture into tiles and decoding each on its own shows: norms see other means, and edges lack their
//! neighbours. Here all tiles go through a layer before any goes on to the next. The norms' moments are those of the
//! whole picture, and each tile carries as many neighbouring pixels as the layers ahead can reach, which are cut away
//! as the reach shrinks. What comes out is the picture that decoding in one piece gives, up to rounding; a layer's
//! intermediate results are only ever there for one tile.

use crate::models::norm::GroupNorm;
use crate::models::unet::blocks::ResnetBlock;
use crate::models::wrap::{around, Wrap};
use candle_core::{Module, Result, Tensor};

/// A piece of the picture and the margins around it, in latents: above, below, left, right.
#[derive(Debug, Clone)]
pub struct Tile {
    x: Tensor,
    margins: [usize; 4],
}

/// A picture in tiles.
#[derive(Debug)]
pub struct Tiles {
    /// Row by row.
    rows: Vec<Vec<Tile>>,
    /// Pixels a latent so far.
    scale: usize,
}

impl Tiles {
    /// Cuts `x`, `(1, channels, height, width)`, into pieces of up to `size` latents each way with margins of `reach`;
    /// where edges meet, those of the outer pieces are what lies at the opposite edge.
    ///
    /// # Errors
    /// If the device fails.
    pub fn cut(x: &Tensor, size: usize, reach: usize, wrap: Wrap) -> Result<Self> {
        let (_, _, height, width) = x.dims4()?;
        let beyond = |wraps: bool| if wraps { reach } else { 0 };
        let (rows, columns) = (beyond(wrap.y), beyond(wrap.x));
        let x = around(&around(x, 2, rows, rows)?, 3, columns, columns)?;
        // Pieces of nearly one size: a sliver at the end would cost as much as its margins.
        let spans = |total: usize| {
            let count = total.div_ceil(size).max(1);
            (0..count).map(move |i| (i * total / count, (i + 1) * total / count))
        };
        let rows = spans(height).map(|(top, bottom)| {
            let (above, below) = (reach.min(top + rows), reach.min(height - bottom + rows));
            let strip = x.narrow(2, top + rows - above, above + bottom - top + below)?;
            let tiles = spans(width).map(|(left, right)| {
                let (before, after) = (
                    reach.min(left + columns),
                    reach.min(width - right + columns),
                );
                let tile =
                    strip.narrow(3, left + columns - before, before + right - left + after)?;
                Ok(Tile {
                    x: tile.contiguous()?,
                    margins: [above, below, before, after],
                })
            });
            tiles.collect::<Result<Vec<_>>>()
        });
        Ok(Self {
            rows: rows.collect::<Result<_>>()?,
            scale: 1,
        })
    }

    fn each(&mut self, layer: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        for tile in self.rows.iter_mut().flatten() {
            tile.x = layer(&tile.x)?;
        }
        Ok(())
    }

    /// Cuts margins down to `reach` latents.
    ///
    /// # Errors
    /// If the device fails.
    pub fn shrink(&mut self, reach: usize) -> Result<()> {
        let scale = self.scale;
        for tile in self.rows.iter_mut().flatten() {
            tile.x = crop(&tile.x, tile.margins, reach, scale)?.contiguous()?;
            tile.margins = tile.margins.map(|margin| margin.min(reach));
        }
        Ok(())
    }

    /// A layer that doubles height and width.
    ///
    /// # Errors
    /// If the device fails.
    pub fn upsample(&mut self, layer: &dyn Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        self.each(layer)?;
        self.scale *= 2;
        Ok(())
    }

    /// The norm of the whole picture, SiLU, and a layer.
    ///
    /// # Errors
    /// If the device fails.
    pub fn norm_silu(
        &mut self,
        norm: &GroupNorm,
        layer: &dyn Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<()> {
        let pieces = self.pieces()?;
        let moments = norm.moments(&pieces)?;
        drop(pieces);
        self.each(&|x| layer(&norm.apply(x, &moments)?.silu()?))
    }

    /// A residual layer.
    ///
    /// # Errors
    /// If the device fails.
    pub fn resnet(&mut self, block: &ResnetBlock) -> Result<()> {
        let before: Vec<Tensor> = self.rows.iter().flatten().map(|t| t.x.clone()).collect();
        self.norm_silu(&block.norm1, &|x| block.conv1.forward(x))?;
        self.norm_silu(&block.norm2, &|x| block.conv2.forward(x))?;
        for (tile, before) in self.rows.iter_mut().flatten().zip(before) {
            tile.x = (&tile.x + block.skip(&before)?)?;
        }
        Ok(())
    }

    fn pieces(&self) -> Result<Vec<Tensor>> {
        let tiles = self.rows.iter().flatten();
        tiles
            .map(|tile| crop(&tile.x, tile.margins, 0, self.scale))
            .collect()
    }

    /// The picture.
    ///
    /// # Errors
    /// If the device fails.
    pub fn join(mut self) -> Result<Tensor> {
        self.shrink(0)?;
        let rows = self.rows.iter().map(|row| {
            let tiles: Vec<&Tensor> = row.iter().map(|tile| &tile.x).collect();
            Tensor::cat(&tiles, 3)
        });
        Tensor::cat(&rows.collect::<Result<Vec<_>>>()?, 2)
    }
}

/// `x` with margins of at most `reach` latents of `scale` pixels.
fn crop(x: &Tensor, margins: [usize; 4], reach: usize, scale: usize) -> Result<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let [above, below, before, after] = margins.map(|m| m.saturating_sub(reach) * scale);
    x.narrow(2, above, height - above - below)?
        .narrow(3, before, width - before - after)
}
