//! Pictures in another size, bit for bit as Pillow resizes them, which diffusers and web UIs use: a filter across, then
//! down, in fixed point, rounded after each.

use image::{ImageBuffer, Pixel};
use rayon::prelude::*;

/// A buffer of 8-bit pixels.
pub type Picture<P> = ImageBuffer<P, Vec<u8>>;

/// How values between pixels are found. Where pixels are lost, filters are as much wider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// The mean of the pixels.
    Box,
    /// Straight lines.
    Bilinear,
    /// Keys' cubic curve.
    Bicubic,
    /// A windowed sinc of three lobes.
    #[default]
    Lanczos,
}

/// Bits behind the point of weights.
const BITS: u32 = 22;

impl Filter {
    /// How many pixels it reaches.
    fn reach(self) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Box => 0.5,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| match x == 0.0 {
            true => 1.0,
            false => (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI),
        };
        let a = x.abs();
        match self {
            Self::Nearest => 0.0,
            Self::Box => f64::from(x > -0.5 && x <= 0.5),
            Self::Bilinear => (1.0 - a).max(0.0),
            Self::Bicubic if a < 1.0 => (1.5 * a - 2.5) * a * a + 1.0,
            Self::Bicubic if a < 2.0 => (((a - 5.0) * a + 8.0) * a - 4.0) * -0.5,
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }

    /// For each of `outputs` the first of `inputs` that has a say, and the weights.
    fn weights(self, inputs: usize, outputs: usize) -> Vec<(usize, Vec<i64>)> {
        let step = inputs as f64 / outputs as f64;
        if self == Self::Nearest {
            // Summed up step by step: what lies on an edge goes where Pillow's sum of doubles goes.
            let places = std::iter::successors(Some(step * 0.5), |at| Some(at + step));
            let places = places.take(outputs);
            return places
                .map(|at| ((at as usize).min(inputs - 1), vec![1 << BITS]))
                .collect();
        }
        let scale = step.max(1.0);
        let reach = self.reach() * scale;
        let of = |i: usize| {
            let middle = (i as f64 + 0.5) * step;
            let first = (middle - reach + 0.5).max(0.0) as usize;
            let last = ((middle + reach + 0.5) as usize).min(inputs);
            let weight = |x: usize| self.weight((x as f64 - middle + 0.5) * (1.0 / scale));
            let weights: Vec<f64> = (first..last).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let whole = |w: f64| (w / sum * f64::from(1u32 << BITS)).round() as i64;
            (first, weights.into_iter().map(whole).collect())
        };
        (0..outputs).map(of).collect()
    }

    /// A picture of this size.
    pub fn resize<P: Pixel<Subpixel = u8>>(
        self,
        picture: &Picture<P>,
        width: u32,
        height: u32,
    ) -> Picture<P> {
        let channels = usize::from(P::CHANNEL_COUNT);
        let (w, h) = (picture.width() as usize, picture.height() as usize);
        let (width, height) = (width as usize, height as usize);
        if w == 0 || h == 0 || width == 0 || height == 0 {
            return Picture::new(width as u32, height as u32);
        }
        let sum = |values: &mut dyn Iterator<Item = (&u8, &i64)>| {
            let sum: i64 = values
                .map(|(value, weight)| i64::from(*value) * weight)
                .sum();
            ((sum + (1 << (BITS - 1))) >> BITS).clamp(0, 255) as u8
        };
        let across = match w == width {
            true => picture.as_raw().clone(),
            false => {
                let weights = self.weights(w, width);
                let mut out = vec![0; width * h * channels];
                let rows = out.par_chunks_exact_mut(width * channels);
                let pairs = rows.zip(picture.as_raw().par_chunks_exact(w * channels));
                pairs.for_each(|(out, row)| {
                    let places = out.chunks_exact_mut(channels).zip(&weights);
                    for (out, (first, weights)) in places {
                        for (c, out) in out.iter_mut().enumerate() {
                            let values = row[first * channels + c..].iter().step_by(channels);
                            *out = sum(&mut values.zip(weights));
                        }
                    }
                });
                out
            }
        };
        let down = match h == height {
            true => across,
            false => {
                let weights = self.weights(h, height);
                let stride = width * channels;
                let mut out = vec![0; stride * height];
                let rows = out.par_chunks_exact_mut(stride).zip(&weights);
                rows.for_each(|(out, (first, weights))| {
                    for (x, out) in out.iter_mut().enumerate() {
                        let values = across[first * stride + x..].iter().step_by(stride);
                        *out = sum(&mut values.zip(weights));
                    }
                });
                out
            }
        };
        // The buffer has the size by its making.
        Picture::from_raw(width as u32, height as u32, down).unwrap_or_default()
    }
}
