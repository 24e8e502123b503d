//! Where the new picture lies over the old one: where latents have changed.

use super::SoftInpainting;
use crate::editing::blur::box_blurred;
use crate::editing::resize::Filter;
use candle_core::{DType, Device, Result, Tensor};
use image::GrayImage;

/// How far the filter of differences reaches, in latents.
const REACH: usize = 2;
/// Its Gaussian's radius, at which it is 1/e.
const RADIUS: f32 = 1.5;
/// Standard deviation in pixels of the Gaussian that takes steps of latents away.
const SMOOTH: f32 = 4.0;

impl SoftInpainting {
    /// A mask of the request's size for each picture of `painted`, `(batch, channels, height, width)`: white is new, black
    /// is as in `kept`. `mask` is the latents', `(1, 1, height, width)`.
    ///
    /// # Errors
    /// The device's.
    pub fn overlays(
        &self,
        kept: &Tensor,
        painted: &Tensor,
        mask: &Tensor,
        size: (u32, u32),
    ) -> Result<Vec<GrayImage>> {
        let distances = painted.broadcast_sub(kept)?.sqr()?.sum(1)?.sqrt()?;
        let distances = distances.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
        let (batch, height, width) = distances.dims3()?;
        let mask: Vec<f32> = mask.flatten_all()?.to_vec1()?;
        let scales: Vec<f32> = mask.iter().map(|mask| self.scale(*mask)).collect();
        let shape = (width, height);
        (0..batch)
            .map(|i| {
                let distance = distances.get(i)?.flatten_all()?.to_vec1()?;
                // Specks are widened, then single values taken out.
                let distance = ranked(&distance, shape, (0.9, 1.0));
                let distance = ranked(&distance, shape, (0.25, 0.75));
                let values = distance.iter().zip(&scales);
                let values = values.map(|(distance, scale)| self.opacity(*distance, *scale));
                let small = GrayImage::from_vec(width as u32, height as u32, values.collect());
                let small = small.ok_or_else(|| candle_core::Error::msg("a mask's size"))?;
                let mask = Filter::Lanczos.resize(&small, size.0, size.1);
                Ok(box_blurred(&mask, SMOOTH))
            })
            .collect()
    }

    /// How much the mask makes of differences: below 1 a smaller one is enough.
    fn scale(&self, mask: f32) -> f32 {
        let influence = self.mask_influence as f32;
        let kept = 1.0
            - mask
                .clamp(0.0, 1.0)
                .powf(self.preservation_strength as f32 / 2.0);
        let kept = 0.5 * (1.0 - influence) + kept * influence;
        kept / (1.00001 - kept)
    }

    /// How much is seen of a new pixel whose latents are so far from the old ones.
    fn opacity(&self, distance: f32, scale: f32) -> u8 {
        let relative = distance / (self.difference_threshold as f32 * scale);
        let old = 1.0 / (1.0 + relative.powf(self.difference_contrast as f32));
        // Perlin's curve of the fifth degree.
        let old = old * old * old * (old * (6.0 * old - 15.0) + 10.0);
        // Nothing has changed where nothing may: 0 over 0, which casts to 0, is the old pixel.
        (255.0 * (1.0 - old)) as u8
    }
}

/// Weights of the neighbours within reach: a Gaussian lowered until it is 0 just beyond.
fn weights() -> [[f32; 2 * REACH + 1]; 2 * REACH + 1] {
    let gaussian = |square: f32| (-square / (RADIUS * RADIUS)).exp();
    let zero = gaussian(((REACH + 1) * (REACH + 1)) as f32);
    std::array::from_fn(|y| {
        std::array::from_fn(|x| {
            let square = x.abs_diff(REACH).pow(2) + y.abs_diff(REACH).pow(2);
            ((gaussian(square as f32) - zero) / (1.0 - zero)).max(0.0)
        })
    })
}

/// Each value as the weighted mean of those of its neighbours that lie between two shares of their weights when they are
/// sorted, over a weight of 1 at least.
fn ranked(values: &[f32], (width, height): (usize, usize), between: (f32, f32)) -> Vec<f32> {
    let weights = weights();
    let place = |i: usize| {
        let (x, y) = (i % width, i / width);
        let rows = y.saturating_sub(REACH)..(y + REACH + 1).min(height);
        let mut near: Vec<(f32, f32)> = rows
            .flat_map(|row| {
                let columns = x.saturating_sub(REACH)..(x + REACH + 1).min(width);
                let weights = &weights[row + REACH - y];
                columns
                    .map(move |column| (values[row * width + column], weights[column + REACH - x]))
            })
            .collect();
        near.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        mean_between(&near, between)
    };
    (0..values.len()).map(place).collect()
}

/// The weighted mean of sorted values between two shares of their weights.
fn mean_between(sorted: &[(f32, f32)], (from, to): (f32, f32)) -> f32 {
    let all: f32 = sorted.iter().map(|(_, weight)| weight).sum();
    let (mut from, mut to) = (all * from, all * to);
    if to - from < 1.0 {
        let middle = (from + to) / 2.0;
        (from, to) = (middle - 0.5, middle + 0.5);
        if to > all {
            (from, to) = (all - 1.0, all);
        }
        if from < 0.0 {
            (from, to) = (0.0, 1.0);
        }
    }
    let (mut below, mut sum, mut weights) = (0.0f32, 0.0f32, 0.0f32);
    for (value, weight) in sorted {
        let share = to.min(below + weight) - from.max(below);
        if share > 0.0 {
            sum += value * share;
            weights += share;
        }
        below += weight;
    }
    match weights > 0.0 {
        true => sum / weights,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speck_is_taken_out_and_an_area_stays() {
        let flat = |i: usize| if i % 9 < 4 { 1.0f32 } else { 3.0 };
        let mut values: Vec<f32> = (0..81).map(flat).collect();
        let near = |a: f32, b: f32| (a - b).abs() < 1e-5;
        assert!(near(ranked(&values, (9, 9), (0.25, 0.75))[0], 1.0));
        values[4 * 9 + 1] = 100.0;
        let calm = ranked(&values, (9, 9), (0.25, 0.75));
        assert!(near(calm[4 * 9 + 1], 1.0));
        assert!(near(calm[4 * 9 + 8], 3.0));
        // The most of the neighbours.
        let most = ranked(&values, (9, 9), (0.9, 1.0));
        assert!(most[4 * 9 + 2] > 50.0, "{}", most[4 * 9 + 2]);
        // A picture of one latent.
        assert!(near(ranked(&[7.0], (1, 1), (0.9, 1.0))[0], 7.0));
    }

    #[test]
    fn small_differences_are_the_old_picture() {
        let soft = SoftInpainting::default();
        let scale = soft.scale(0.5);
        assert_eq!(soft.opacity(0.0, scale), 0);
        assert!((126..=128).contains(&soft.opacity(0.5 * scale, scale)));
        assert_eq!(soft.opacity(100.0, scale), 255);
        // A mask that counts alone: all is new where it is white, nothing where it is black.
        let strict = SoftInpainting {
            mask_influence: 1.0,
            ..soft
        };
        assert_eq!(strict.opacity(0.1, strict.scale(1.0)), 255);
        assert_eq!(strict.opacity(1.0, strict.scale(0.0)), 0);
        let never = SoftInpainting {
            difference_threshold: 0.0,
            ..soft
        };
        assert_eq!(never.opacity(0.0, scale * 0.0), 0);
        assert_eq!(never.opacity(0.1, never.scale(0.5)), 255);
    }
}
