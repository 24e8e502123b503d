//! Attention in windows: rectangles into which a picture's pixels are cut, every second time shifted.

use crate::models::layers::softmax;
use candle_core::{Device, Result, Tensor};

/// A window's sides in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub height: usize,
    pub width: usize,
}

impl Window {
    pub fn square(side: usize) -> Self {
        Self {
            height: side,
            width: side,
        }
    }

    pub fn pixels(self) -> usize {
        self.height * self.width
    }

    /// `(batch, height, width, channels)` as `(batch * windows, pixels, channels)`.
    pub fn cut(self, x: &Tensor) -> Result<Tensor> {
        let (batch, height, width, channels) = x.dims4()?;
        let (rows, columns) = (height / self.height, width / self.width);
        x.contiguous()?
            .reshape((batch * rows, self.height, columns, self.width * channels))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch * rows * columns, self.pixels(), channels))
    }

    /// Undoes [`Self::cut`].
    pub fn join(self, x: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
        let (count, _, channels) = x.dims3()?;
        let (rows, columns) = (height / self.height, width / self.width);
        let batch = count / (rows * columns);
        x.contiguous()?
            .reshape((batch * rows, columns, self.height, self.width * channels))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((batch, height, width, channels))
    }

    /// Rows of a table of `(2 height - 1) * (2 width - 1)` offsets for each pair of pixels.
    pub fn offsets(self, device: &Device) -> Result<Tensor> {
        let (pixels, width) = (self.pixels(), self.width);
        let side = 2 * width - 1;
        let index = |i: usize| {
            let (a, b) = (i / pixels, i % pixels);
            let dy = a / width + self.height - 1 - b / width;
            let dx = a % width + width - 1 - b % width;
            (dy * side + dx) as u32
        };
        let ids = (0..pixels * pixels).map(index).collect();
        Tensor::from_vec(ids, pixels * pixels, device)
    }

    /// What is added to each pair's score, `(1, heads, pixels, pixels)`, of a table `(offsets, heads)`.
    pub fn bias(self, table: &Tensor) -> Result<Tensor> {
        let pixels = self.pixels();
        let bias = table.index_select(&self.offsets(table.device())?, 0)?;
        let bias = bias.reshape((pixels, pixels, table.dim(1)?))?;
        bias.permute((2, 0, 1))?.contiguous()?.unsqueeze(0)
    }

    /// What pixels may not see in windows shifted by half of their sides: `(windows, pixels, pixels)`, 0 or -100. The
    /// shift brings pixels from the far side into the last windows; they are no neighbours.
    pub fn borders(self, height: usize, width: usize, device: &Device) -> Result<Tensor> {
        let part = |i: usize, size: usize, window: usize| match size - i {
            left if left > window => 0,
            left if left > window / 2 => 1,
            _ => 2,
        };
        let (rows, columns, pixels) = (height / self.height, width / self.width, self.pixels());
        let mut values = Vec::with_capacity(rows * columns * pixels * pixels);
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            let place = |i: usize| {
                let y = row * self.height + i / self.width;
                let x = column * self.width + i % self.width;
                3 * part(y, height, self.height) + part(x, width, self.width)
            };
            let places: Vec<usize> = (0..pixels).map(place).collect();
            for a in &places {
                values.extend(places.iter().map(|b| if a == b { 0f32 } else { -100.0 }));
            }
        }
        Tensor::from_vec(values, (rows * columns, pixels, pixels), device)
    }
}

/// `(windows, pixels, channels)` as `(windows, heads, pixels, channels / heads)`.
pub(super) fn split(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (count, pixels, channels) = x.dims3()?;
    x.reshape((count, pixels, heads, channels / heads))?
        .transpose(1, 2)?
        .contiguous()
}

/// Attention of queries, keys and values as [`split`] gives them, with this added to the scores and these [`borders`];
/// heads joined again.
///
/// [`borders`]: Window::borders
pub(super) fn attend(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    bias: &Tensor,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (count, heads, pixels, size) = q.dims4()?;
    let mut scores = q.matmul(&k.t()?.contiguous()?)?.broadcast_add(bias)?;
    if let Some(mask) = mask {
        let (windows, _, seen) = mask.dims3()?;
        let mask = mask.to_dtype(scores.dtype())?.unsqueeze(1)?;
        let mask = mask.broadcast_as((windows, heads, pixels, seen))?;
        let mask = mask.contiguous()?.unsqueeze(0)?;
        scores = scores
            .reshape((count / windows, windows, heads, pixels, seen))?
            .broadcast_add(&mask)?
            .reshape((count, heads, pixels, seen))?;
    }
    softmax(&scores)?
        .matmul(v)?
        .transpose(1, 2)?
        .contiguous()?
        .reshape((count, pixels, heads * size))
}
