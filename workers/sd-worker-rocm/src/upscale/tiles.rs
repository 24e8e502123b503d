//! Tiles, and how they are joined without seams.
//!
//! Neighbouring tiles share pixels. The outer quarter of what they share is dropped, as a network sees no further there;
//! between, the one goes over into the other.

use image::{imageops, RgbImage};
use std::ops::ControlFlow;

/// How a picture is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Pixels of a tile, each way; 0 is the whole picture.
    pub size: usize,
    /// Pixels that neighbours share at least.
    pub overlap: usize,
}

impl Default for Tiling {
    /// Of the memory that a network takes at four times the size, about a gigabyte.
    fn default() -> Self {
        Self {
            size: 256,
            overlap: 32,
        }
    }
}

impl Tiling {
    /// First pixels and length of tiles along a side. They have one length, so that a device does the same again.
    fn spans(self, total: usize) -> (Vec<usize>, usize) {
        // Less than half, so that each tile has pixels of its own.
        let overlap = self.overlap.min(self.size / 3);
        if self.size == 0 || total <= self.size {
            return (vec![0], total);
        }
        let count = (total - overlap).div_ceil(self.size - overlap);
        let last = total - self.size;
        let at = |i: usize| i * last / (count - 1).max(1);
        ((0..count).map(at).collect(), self.size)
    }

    /// Tiles of a picture of this size.
    pub fn count(self, (width, height): (u32, u32)) -> usize {
        self.spans(width as usize).0.len() * self.spans(height as usize).0.len()
    }

    /// Puts every tile through `work`, which makes it `scale` times as large, and joins them. `told` is told how many
    /// are done and may break off.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn each<E>(
        self,
        picture: &RgbImage,
        scale: usize,
        work: &mut dyn FnMut(&RgbImage) -> Result<Vec<f32>, E>,
        told: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<RgbImage>, E> {
        let (columns, width) = self.spans(picture.width() as usize);
        let (rows, height) = self.spans(picture.height() as usize);
        let stride = 3 * scale * picture.width() as usize;
        let mut joined = Vec::with_capacity(stride * scale * picture.height() as usize);
        // The rows that the last row of tiles left for the next to go over into.
        let mut before: Vec<f32> = Vec::new();
        let mut done = 0;
        for (i, top) in rows.iter().enumerate() {
            let mut strip = vec![0f32; stride * scale * height];
            let mut end = 0;
            for left in &columns {
                if told(done).is_break() {
                    return Ok(None);
                }
                let (x, y) = (*left as u32, *top as u32);
                let tile = imageops::crop_imm(picture, x, y, width as u32, height as u32);
                let tile = work(&tile.to_image())?;
                done += 1;
                let shared = scale * (end - end.min(*left));
                let start = 3 * scale * left;
                let rows = strip.chunks_exact_mut(stride);
                for (out, new) in rows.zip(tile.chunks_exact(3 * scale * width)) {
                    let pixels = out[start..].chunks_exact_mut(3).zip(new.chunks_exact(3));
                    for (x, (out, new)) in pixels.enumerate() {
                        let share = share(x, shared);
                        for (out, new) in out.iter_mut().zip(new) {
                            *out += share * (new - *out);
                        }
                    }
                }
                end = left + width;
            }
            let shared = before.len() / stride;
            for (y, (new, old)) in strip
                .chunks_exact_mut(stride)
                .zip(before.chunks_exact(stride))
                .enumerate()
            {
                let share = share(y, shared);
                for (new, old) in new.iter_mut().zip(old) {
                    *new = old + share * (*new - old);
                }
            }
            // What the next row has a say in is kept back.
            let next = rows.get(i + 1).copied().unwrap_or(top + height);
            let (finished, rest) = strip.split_at(stride * scale * (next - top));
            joined.extend(
                finished
                    .iter()
                    .map(|v| (v * 255.0 + 0.5).clamp(0.0, 255.0) as u8),
            );
            before = rest.to_vec();
        }
        if told(done).is_break() {
            return Ok(None);
        }
        let size = |side: u32| side * scale as u32;
        Ok(RgbImage::from_raw(
            size(picture.width()),
            size(picture.height()),
            joined,
        ))
    }
}

/// How much of the later of two tiles counts at `i` of the `shared` pixels.
fn share(i: usize, shared: usize) -> f32 {
    if i >= shared {
        return 1.0;
    }
    let way = (i as f32 + 0.5) / shared as f32;
    (2.0 * way - 0.5).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    /// Every pixel the mean of its neighbours, twice as large: what is at a tile's edge is wrong.
    fn smooth(tile: &RgbImage) -> Result<Vec<f32>, ()> {
        let (width, height) = tile.dimensions();
        let at = |x: i64, y: i64, c: usize| {
            let inside = (0..i64::from(width)).contains(&x) && (0..i64::from(height)).contains(&y);
            match inside {
                true => f32::from(tile.get_pixel(x as u32, y as u32).0[c]) / 255.0,
                false => 0.0,
            }
        };
        let mut out = Vec::new();
        for y in 0..2 * i64::from(height) {
            for x in 0..2 * i64::from(width) {
                let (x, y) = (x / 2, y / 2);
                out.extend((0..3).map(|c| {
                    (at(x - 1, y, c) + at(x + 1, y, c) + at(x, y - 1, c) + at(x, y + 1, c)) / 4.0
                }));
            }
        }
        Ok(out)
    }

    #[test]
    fn tiles_are_joined_without_seams() {
        let picture = RgbImage::from_fn(61, 47, |x, y| {
            Rgb([
                (x * 37 % 256) as u8,
                (y * 91 % 256) as u8,
                ((x * y) % 251) as u8,
            ])
        });
        let draw = |size, overlap| {
            let mut count = 0;
            let mut told = |done| {
                count = done;
                ControlFlow::Continue(())
            };
            let tiling = Tiling { size, overlap };
            let drawn = tiling.each(&picture, 2, &mut smooth, &mut told).unwrap();
            assert_eq!(count, tiling.count((61, 47)));
            drawn.unwrap()
        };
        let whole = draw(0, 0);
        assert_eq!(whole.dimensions(), (122, 94));
        for size in [16, 24, 40, 61] {
            // A network that sees one pixel around needs a quarter of the overlap to be one.
            assert_eq!(draw(size, 4), whole, "{size}");
        }
        assert_ne!(draw(16, 0), whole);
        let tiling = Tiling::default();
        let stopped = tiling.each(&picture, 2, &mut smooth, &mut |_| ControlFlow::Break(()));
        assert_eq!(stopped.unwrap(), None);
    }
}
