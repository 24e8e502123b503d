//! Resizing as Pillow does it, to the bit: transformers' processors of pictures (those without torchvision) call it.
//!
//! [Pillow's](https://pillow.readthedocs.io/en/stable/handbook/concepts.html#filters) filters widen where the picture
//! shrinks. Weights are rounded to 22 bits, rows are made first and rounded to 8 bits, then columns.
//! For some sizes that shrink in height, Pillow 13 begins with columns: numbers of ours may be 1 of 255 apart there.

use image::RgbImage;

/// A filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    Bilinear,
    Bicubic,
    Lanczos,
}

/// Bits of a weight behind the point.
const PRECISION: u32 = 22;

impl Filter {
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic => {
                const A: f64 = -0.5;
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Self::Lanczos => {
                let sinc = |x: f64| match x {
                    0.0 => 1.0,
                    x => (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI),
                };
                match x < 3.0 {
                    true => sinc(x) * sinc(x / 3.0),
                    false => 0.0,
                }
            }
        }
    }
}

/// What a pixel is made of: the first one of the source, and weights of this and those that follow.
struct Taps {
    first: usize,
    weights: Vec<i64>,
}

fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let widened = scale.max(1.0);
    let support = filter.support() * widened;
    (0..to)
        .map(|place| {
            let center = (place as f64 + 0.5) * scale;
            let first = ((center - support + 0.5) as i64).max(0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let weights: Vec<f64> = (first..end)
                .map(|x| filter.at((x as f64 - center + 0.5) / widened))
                .collect();
            let sum: f64 = weights.iter().sum();
            let rounded = |weight: &f64| {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                // Away from zero at halves.
                (weight * f64::from(1u32 << PRECISION)).round() as i64
            };
            Taps {
                first,
                weights: weights.iter().map(rounded).collect(),
            }
        })
        .collect()
}

fn clip(sum: i64) -> u8 {
    ((sum + (1 << (PRECISION - 1))) >> PRECISION).clamp(0, 255) as u8
}

/// The picture at another size.
pub(super) fn resize(image: &RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    let mut now = image.clone();
    if width != now.width() {
        let taps = taps(now.width() as usize, width as usize, filter);
        let stride = now.width() as usize * 3;
        let mut out = Vec::with_capacity(width as usize * now.height() as usize * 3);
        for row in now.as_raw().chunks_exact(stride) {
            for Taps { first, weights } in &taps {
                let mut sums = [0i64; 3];
                for (pixel, weight) in row[first * 3..].chunks_exact(3).zip(weights) {
                    for (sum, value) in sums.iter_mut().zip(pixel) {
                        *sum += i64::from(*value) * weight;
                    }
                }
                out.extend(sums.map(clip));
            }
        }
        now = RgbImage::from_raw(width, now.height(), out).expect("a row for each");
    }
    if height != now.height() {
        let taps = taps(now.height() as usize, height as usize, filter);
        let stride = width as usize * 3;
        let mut out = Vec::with_capacity(stride * height as usize);
        let mut sums = vec![0i64; stride];
        for Taps { first, weights } in &taps {
            sums.fill(0);
            for (row, weight) in now.as_raw()[first * stride..]
                .chunks_exact(stride)
                .zip(weights)
            {
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum += i64::from(*value) * weight;
                }
            }
            out.extend(sums.iter().map(|sum| clip(*sum)));
        }
        now = RgbImage::from_raw(width, height, out).expect("a row for each");
    }
    now
}
