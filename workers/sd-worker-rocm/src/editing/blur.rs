//! Masks with soft edges, and colours that flow into a mask.

use image::{GrayImage, Luma, Rgb, RgbImage};
use rayon::prelude::*;

/// Standard deviation in pixels up to which masks are softened pixel by pixel.
const EXACT: f64 = 32.0;

/// Standard deviation in pixels from which on a Gaussian is taken of a smaller plane.
const WIDE: f32 = 8.0;

/// Box filters that stand for one Gaussian.
const BOXES: usize = 3;

/// Planes of floats, row by row.
pub(crate) struct Plane {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// Row by row.
    pub values: Vec<f32>,
}

/// The weights of a Gaussian from the middle on; the sum of both sides is 1.
pub(crate) fn gaussian(sigma: f32, radius: usize) -> Vec<f32> {
    let weight = |i: usize| (-((i * i) as f32) / (2.0 * sigma * sigma)).exp();
    let half: Vec<f32> = (0..=radius).map(weight).collect();
    let sum = half[0] + 2.0 * half[1..].iter().sum::<f32>();
    half.into_iter().map(|w| w / sum).collect()
}

/// The place that is seen at `i` of `size`, which may lie outside: mirrored at the outermost pixels, which are not
/// repeated.
pub(crate) fn mirrored(i: isize, size: usize) -> usize {
    if size <= 1 {
        return 0;
    }
    let period = 2 * (size as isize - 1);
    let i = i.rem_euclid(period) as usize;
    i.min(period as usize - i)
}

impl Plane {
    /// A grey picture.
    pub fn of(picture: &GrayImage) -> Self {
        Self {
            width: picture.width() as usize,
            height: picture.height() as usize,
            values: picture.as_raw().iter().map(|v| f32::from(*v)).collect(),
        }
    }

    /// The picture of values from 0 to 255, rounded.
    pub fn picture(&self) -> GrayImage {
        GrayImage::from_fn(self.width as u32, self.height as u32, |x, y| {
            let value = self.values[y as usize * self.width + x as usize];
            Luma([value.round().clamp(0.0, 255.0) as u8])
        })
    }

    /// Mixed with its neighbours in both directions, by weights from the middle on.
    pub fn mixed(&self, weights: &[f32]) -> Self {
        let across = self.mixed_across(weights);
        across.transposed().mixed_across(weights).transposed()
    }

    fn mixed_across(&self, weights: &[f32]) -> Self {
        let width = self.width;
        let mut values = vec![0f32; self.values.len()];
        if width > 0 {
            let rows = values.par_chunks_mut(width);
            rows.zip(self.values.par_chunks(width))
                .for_each(|(out, row)| {
                    for (x, out) in out.iter_mut().enumerate() {
                        let at = |i: isize| row[mirrored(i, width)];
                        let sides = weights.iter().enumerate().skip(1);
                        let sides = sides.map(|(i, w)| {
                            let (x, i) = (x as isize, i as isize);
                            w * (at(x - i) + at(x + i))
                        });
                        *out = weights[0] * row[x] + sides.sum::<f32>();
                    }
                });
        }
        Self { values, ..*self }
    }

    /// Mixed by a Gaussian of this standard deviation in pixels; wide ones on a smaller plane.
    fn spread(&self, sigma: f32) -> Self {
        let factor = (sigma / WIDE) as usize;
        if factor <= 1 {
            return self.mixed(&gaussian(sigma, (2.5 * sigma) as usize));
        }
        let sigma = sigma / factor as f32;
        let radius = (2.5 * sigma) as usize;
        let small = self.pooled(factor).mixed(&gaussian(sigma, radius));
        let at = |x: usize, y: usize| {
            let place = |i: usize, size: usize| {
                let at = ((i as f32 + 0.5) / factor as f32 - 0.5).clamp(0.0, (size - 1) as f32);
                let low = at as usize;
                (low, (low + 1).min(size - 1), at - low as f32)
            };
            let (left, right, dx) = place(x, small.width);
            let (top, bottom, dy) = place(y, small.height);
            let row = |y: usize| {
                let values = &small.values[y * small.width..];
                values[left] * (1.0 - dx) + values[right] * dx
            };
            row(top) * (1.0 - dy) + row(bottom) * dy
        };
        let pixels = 0..self.values.len();
        Self {
            values: pixels
                .into_par_iter()
                .map(|i| at(i % self.width, i / self.width))
                .collect(),
            ..*self
        }
    }

    /// The means of squares of pixels.
    fn pooled(&self, factor: usize) -> Self {
        let (width, height) = (self.width.div_ceil(factor), self.height.div_ceil(factor));
        let mean = |i: usize| {
            let (x, y) = (i % width * factor, i / width * factor);
            let (right, bottom) = ((x + factor).min(self.width), (y + factor).min(self.height));
            let rows =
                (y..bottom).map(|y| &self.values[y * self.width + x..y * self.width + right]);
            let sum: f32 = rows.map(|row| row.iter().sum::<f32>()).sum();
            sum / ((right - x) * (bottom - y)) as f32
        };
        Self {
            width,
            height,
            values: (0..width * height).into_par_iter().map(mean).collect(),
        }
    }

    fn transposed(&self) -> Self {
        let (width, height) = (self.height, self.width);
        let at = |i: usize| self.values[(i % width) * self.width + i / width];
        Self {
            width,
            height,
            values: (0..self.values.len()).map(at).collect(),
        }
    }
}

/// A grey picture softened as Pillow's `GaussianBlur` does it, bit for bit: three box filters across and three down, whose
/// ends count in part, each in fixed point.
pub(crate) fn box_blurred(picture: &GrayImage, sigma: f32) -> GrayImage {
    let radius = box_radius(sigma);
    let turned = |picture: &GrayImage| {
        GrayImage::from_fn(picture.height(), picture.width(), |x, y| {
            *picture.get_pixel(y, x)
        })
    };
    let thrice = |mut picture: GrayImage| {
        for _ in 0..BOXES {
            picture = boxed(&picture, radius);
        }
        picture
    };
    turned(&thrice(turned(&thrice(picture.clone()))))
}

/// How far each of the boxes reaches that together are like a Gaussian (Gwosdek et al., 2011).
fn box_radius(sigma: f32) -> f32 {
    let variance = sigma * sigma / BOXES as f32;
    let length = (12.0 * variance + 1.0).sqrt();
    let whole = ((length - 1.0) / 2.0).floor();
    let part = (2.0 * whole + 1.0) * (whole * (whole + 1.0) - 3.0 * variance);
    whole + part / (6.0 * (variance - (whole + 1.0) * (whole + 1.0)))
}

/// Each pixel as the mean of its neighbours across; those just beyond a whole number count in part, and edges repeat.
fn boxed(picture: &GrayImage, radius: f32) -> GrayImage {
    let reach = radius as usize;
    let weight = ((1u32 << 24) as f32 / (radius * 2.0 + 1.0)) as u32;
    let far = ((1u32 << 24) - (2 * reach as u32 + 1) * weight) / 2;
    let width = picture.width() as usize;
    let mut out = picture.clone();
    let rows = out.par_chunks_exact_mut(width.max(1));
    rows.zip(picture.as_raw().par_chunks_exact(width.max(1)))
        .for_each(|(out, row)| {
            let at = |i: isize| u32::from(row[i.clamp(0, width as isize - 1) as usize]);
            let reach = reach as isize;
            for (x, out) in out.iter_mut().enumerate() {
                let x = x as isize;
                let near: u32 = (x - reach..=x + reach).map(at).sum();
                let ends = at(x - reach - 1) + at(x + reach + 1);
                *out = ((near * weight + ends * far + (1 << 23)) >> 24) as u8;
            }
        });
    out
}

/// A mask with soft edges, as web UIs soften it: a Gaussian of this standard deviation in pixels, cut off at two and a
/// half of it.
pub fn blurred(mask: &GrayImage, sigma: f64) -> GrayImage {
    let radius = (2.5 * sigma + 0.5) as usize;
    if sigma <= 0.0 || radius == 0 {
        return mask.clone();
    }
    let plane = Plane::of(mask);
    match sigma > EXACT {
        true => plane.spread(sigma as f32).picture(),
        false => plane.mixed(&gaussian(sigma as f32, radius)).picture(),
    }
}

/// Standard deviations in pixels by which the picture around a mask is spread into it, and how often each is laid over:
/// the widest first, so that every place gets a colour and those near the edge the nearest ones.
const SPREADS: [(f32, usize); 5] = [(256.0, 1), (64.0, 1), (16.0, 2), (4.0, 4), (2.0, 2)];

/// The picture with colours from around the mask in place of what is in it.
pub fn filled(picture: &RgbImage, mask: &GrayImage) -> RgbImage {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let keep: Vec<f32> = mask.iter().map(|m| 1.0 - f32::from(*m) / 255.0).collect();
    // Colours times how much is kept, and how much is kept.
    let channel = |c: usize| Plane {
        width,
        height,
        values: match c {
            3 => keep.clone(),
            c => {
                let values = picture.iter().skip(c).step_by(3);
                values.zip(&keep).map(|(v, k)| f32::from(*v) * k).collect()
            }
        },
    };
    let source: Vec<Plane> = (0..4).map(channel).collect();
    // What was laid down so far: colours, the last pass is the picture itself.
    let mut under = vec![[0f32; 3]; width * height];
    let mut covered = vec![0f32; width * height];
    let mut lay = |planes: &[Plane]| {
        for (i, (under, covered)) in under.iter_mut().zip(&mut covered).enumerate() {
            let share = planes[3].values[i];
            for (c, under) in under.iter_mut().enumerate() {
                *under = planes[c].values[i] + *under * (1.0 - share);
            }
            *covered = share + *covered * (1.0 - share);
        }
    };
    for (sigma, times) in SPREADS {
        let spread: Vec<Plane> = source.iter().map(|plane| plane.spread(sigma)).collect();
        (0..times).for_each(|_| lay(&spread));
    }
    lay(&source);
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let i = y as usize * width + x as usize;
        // Where next to nothing came through, what did come through is the colour.
        let share = covered[i].max(1e-6);
        Rgb(under[i].map(|c| (c / share).round().clamp(0.0, 255.0) as u8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors() {
        let row: Vec<usize> = (-3..7).map(|i| mirrored(i, 4)).collect();
        assert_eq!(row, [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        assert_eq!(mirrored(-100, 1), 0);
    }

    /// Numbers of `cv2.GaussianBlur(mask, (21, 21), 4)` of OpenCV 4, a kernel as AUTOMATIC1111's web UI asks for.
    #[test]
    fn masks_are_softened_as_web_uis_do() {
        let mask = GrayImage::from_fn(32, 4, |x, _| Luma([255 * u8::from(x >= 16)]));
        let row: Vec<u8> = blurred(&mask, 4.0).into_raw()[..32].to_vec();
        assert_eq!(row, BLURRED);
        assert_eq!(blurred(&mask, 0.0), mask);
    }

    const BLURRED: [u8; 32] = [
        0, 0, 0, 0, 0, 0, 1, 3, 7, 12, 21, 32, 48, 67, 90, 115, 140, 165, 188, 207, 223, 234, 243,
        248, 252, 254, 255, 255, 255, 255, 255, 255,
    ];

    #[test]
    fn colours_flow_in() {
        // Red on the left, blue on the right, a hole between.
        let picture = RgbImage::from_fn(48, 8, |x, _| match x {
            0..16 => Rgb([200, 0, 0]),
            32.. => Rgb([0, 0, 200]),
            _ => Rgb([0, 255, 0]),
        });
        let mask = GrayImage::from_fn(48, 8, |x, _| Luma([255 * u8::from((16..32).contains(&x))]));
        let filled = filled(&picture, &mask);
        for (x, y, pixel) in filled.enumerate_pixels() {
            let [r, g, b] = pixel.0;
            assert_eq!(g, 0, "nothing of what was there at {x}, {y}");
            match x {
                0..16 => assert_eq!([r, b], [200, 0]),
                16..22 => assert!(r > b, "{x}: {r} {b}"),
                26..32 => assert!(b > r, "{x}: {r} {b}"),
                32.. => assert_eq!([r, b], [0, 200]),
                _ => assert!(r > 40 && b > 40, "{x}: {r} {b}"),
            }
        }
        // A mask over all leaves no colour, and no panic.
        let all = GrayImage::from_pixel(48, 8, Luma([255]));
        assert_eq!(super::filled(&picture, &all).get_pixel(3, 3).0, [0, 0, 0]);
    }
}
