//! Restored faces put back into their picture, as facexlib does it.

use super::align::{between, inside, Similarity};
use crate::editing::blur::mirrored;
use image::{GrayImage, RgbImage};
use rayon::prelude::*;

/// A rectangle of a picture with a number a pixel.
struct Area {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    values: Vec<f32>,
}

/// How much of a face's pixels counts.
pub enum Share<'a> {
    /// All of the square, soft towards its edges.
    Square,
    /// As bright as this picture of the face's size.
    Mask(&'a GrayImage),
}

/// Puts a restored face back. `there` has brought the picture to the face; `visibility` is how much of the new face is
/// seen.
pub fn paste(
    picture: &mut RgbImage,
    face: &RgbImage,
    there: &Similarity,
    share: &Share,
    visibility: f32,
) {
    let Some(mut area) = Area::around(picture, face, there) else {
        return;
    };
    let size = face.dimensions();
    let (left, top, width) = (area.left, area.top, area.width);
    let place = |i: usize| there.apply([(left + i % width) as f64, (top + i / width) as f64]);
    // What is black beyond the face counts for nothing.
    let mut whole = None;
    match share {
        Share::Mask(mask) => area.fill(|i| {
            let [x, y] = place(i);
            let [value] = between(x, y, |x, y| match inside(x, y, size) {
                true => [f32::from(mask.get_pixel(x as u32, y as u32).0[0]) / 255.0],
                false => [0.0],
            });
            value
        }),
        Share::Square => {
            area.fill(|i| {
                let [x, y] = place(i);
                between(x, y, |x, y| [f32::from(u8::from(inside(x, y, size)))])[0]
            });
            area = area.eroded(2);
            whole = Some(area.values.clone());
            let covered: f64 = area.values.iter().map(|v| f64::from(*v)).sum();
            let edge = covered.sqrt() as usize / 20;
            // OpenCV takes an empty kernel for one of 3 x 3.
            area = area.eroded(if edge == 0 { 3 } else { 2 * edge });
            area = area.softened(edge);
        }
    }
    for (i, share) in area.values.iter().enumerate() {
        let share = share * visibility;
        if share <= 0.0 {
            continue;
        }
        let [x, y] = place(i);
        let new = between(x, y, |x, y| match inside(x, y, size) {
            true => face.get_pixel(x as u32, y as u32).0.map(f32::from),
            false => [0.0; 3],
        });
        let whole = whole.as_ref().map_or(1.0, |whole| whole[i]);
        let (x, y) = ((left + i % width) as u32, (top + i / width) as u32);
        let pixel = picture.get_pixel_mut(x, y);
        for (old, new) in pixel.0.iter_mut().zip(new) {
            let mixed = share * whole * new + (1.0 - share) * f32::from(*old);
            *old = (mixed + 0.5).clamp(0.0, 255.0) as u8;
        }
    }
}

impl Area {
    /// Where a face lies in the picture, with a margin in which nothing counts; `None` if it lies beside it.
    fn around(picture: &RgbImage, face: &RgbImage, there: &Similarity) -> Option<Self> {
        let back = there.inverse();
        let (w, h) = (f64::from(face.width()), f64::from(face.height()));
        let corners = [[0.0, 0.0], [w, 0.0], [0.0, h], [w, h]].map(|corner| back.apply(corner));
        let span = |i: usize, size: u32| {
            let sides = corners.map(|corner| corner[i]);
            let low = sides.iter().copied().fold(f64::INFINITY, f64::min);
            let high = sides.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            // The mask's kernels reach no further than this.
            let margin = (high - low) / 10.0 + 4.0;
            let low = (low - margin).max(0.0) as usize;
            let high = (high + margin).clamp(0.0, f64::from(size)).ceil() as usize;
            (high > low).then(|| (low, high - low))
        };
        let (left, width) = span(0, picture.width())?;
        let (top, height) = span(1, picture.height())?;
        Some(Self {
            left,
            top,
            width,
            height,
            values: vec![0.0; width * height],
        })
    }

    fn fill(&mut self, value: impl Fn(usize) -> f32 + Sync) {
        let values = self.values.par_iter_mut().enumerate();
        values.for_each(|(i, out)| *out = value(i));
    }

    /// Each pixel as the least of `side` x `side` around it; what is beyond the area does not count.
    fn eroded(self, side: usize) -> Self {
        let least = |row: &[f32], i: usize| {
            let low = i.saturating_sub(side / 2);
            let high = (i + side - side / 2).min(row.len());
            row[low..high].iter().copied().fold(f32::INFINITY, f32::min)
        };
        self.along(least).transposed().along(least).transposed()
    }

    /// Mixed by OpenCV's Gaussian of `2 side + 1` pixels; edges are mirrored.
    fn softened(self, side: usize) -> Self {
        let sigma = 0.3 * (side as f64 - 1.0) + 0.8;
        let weights: Vec<f64> = (-(side as i64)..=side as i64)
            .map(|i| (-((i * i) as f64) / (2.0 * sigma * sigma)).exp())
            .collect();
        self.mixed(&weights)
    }

    /// Mixed by these weights, the middle one for the pixel itself.
    fn mixed(self, weights: &[f64]) -> Self {
        let sum: f64 = weights.iter().sum();
        let weights: Vec<f32> = weights.iter().map(|weight| (weight / sum) as f32).collect();
        let side = (weights.len() / 2) as isize;
        let mix = |row: &[f32], i: usize| {
            let places = weights.iter().zip(i as isize - side..);
            let parts = places.map(|(weight, at)| weight * row[mirrored(at, row.len())]);
            parts.sum()
        };
        self.along(mix).transposed().along(mix).transposed()
    }

    fn along(mut self, value: impl Fn(&[f32], usize) -> f32 + Sync) -> Self {
        let rows = self.values.par_chunks(self.width.max(1));
        self.values = rows
            .flat_map_iter(|row| (0..row.len()).map(|i| value(row, i)))
            .collect();
        self
    }

    fn transposed(self) -> Self {
        let (width, height) = (self.height, self.width);
        let at = |i: usize| self.values[(i % width) * self.width + i / width];
        Self {
            width,
            height,
            values: (0..self.values.len()).map(at).collect(),
            ..self
        }
    }
}

/// Pixels at a face's edges that never count.
const EDGE: usize = 10;

/// Parts that are no face: background, necklace, hat, ear rings, neck and cloth.
const NO_FACE: [u8; 5] = [0, 14, 16, 17, 18];

/// How much of each pixel of a face counts, by the part that each of `size` x `size` pixels belongs to.
pub fn mask_of(parts: &[u8], size: usize) -> GrayImage {
    let value = |part: &u8| if NO_FACE.contains(part) { 0.0 } else { 255.0 };
    let mut area = Area {
        left: 0,
        top: 0,
        width: size,
        height: size,
        values: parts.iter().map(value).collect(),
    };
    let weights: Vec<f64> = (-50i64..=50)
        .map(|i| (-((i * i) as f64) / (2.0 * 11.0 * 11.0)).exp())
        .collect();
    area = area.mixed(&weights).mixed(&weights);
    let inner = EDGE..size.saturating_sub(EDGE);
    GrayImage::from_fn(size as u32, size as u32, |x, y| {
        let (x, y) = (x as usize, y as usize);
        let value = match inner.contains(&x) && inner.contains(&y) {
            true => area.values[y * size + x],
            false => 0.0,
        };
        image::Luma([(value + 0.5).clamp(0.0, 255.0) as u8])
    })
}
