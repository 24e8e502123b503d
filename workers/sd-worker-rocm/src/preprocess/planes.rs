//! What becomes of networks' numbers: depths as greys, depths as normals.

use crate::editing::resample::Resample;
use candle_core::{Result, Tensor};
use image::{Rgb, RgbImage};

/// How far depths go into the picture, as ControlNet's normals have it.
const STEEPNESS: f32 = std::f32::consts::TAU;

/// Numbers of a picture's pixels, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// Row by row.
    pub values: Vec<f32>,
}

impl Numbers {
    /// Of `(1, 1, h, w)`, stretched to a size.
    ///
    /// # Errors
    /// If the device fails.
    pub fn of(x: &Tensor, (width, height): (u32, u32)) -> Result<Self> {
        let (width, height) = (width as usize, height as usize);
        let x = Resample::Bicubic { antialias: false }.apply(x, height, width)?;
        Ok(Self {
            width,
            height,
            values: x.flatten_all()?.to_vec1()?,
        })
    }

    /// The same from 0 to 1; `turned` if what is less is to be more. All zero if there are no differences.
    #[must_use]
    pub fn spread(mut self, turned: bool) -> Self {
        let least = self.values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = self
            .values
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        let range = most - least;
        for value in &mut self.values {
            let share = match range > 0.0 {
                true => (*value - least) / range,
                false => 0.0,
            };
            *value = if turned { 1.0 - share } else { share };
        }
        self
    }

    /// A grey picture of numbers from 0 to 1; fractions are dropped.
    pub fn grey(&self) -> RgbImage {
        RgbImage::from_fn(self.width as u32, self.height as u32, |x, y| {
            let value = self.values[y as usize * self.width + x as usize];
            Rgb([(value * 255.0).clamp(0.0, 255.0) as u8; 3])
        })
    }

    /// The normals of depths as ControlNet has them: across is blue, down is green, towards the viewer is red. What is
    /// nearer the background than `background` (0 to 1) has none.
    pub fn normals(&self, background: f64) -> RgbImage {
        let shares = self.clone().spread(false);
        let (width, height) = (self.width, self.height);
        // OpenCV mirrors at the outermost pixels.
        let at = |x: usize, y: usize, dx: isize, dy: isize| {
            let place = |i: usize, d: isize, size: usize| {
                crate::editing::blur::mirrored(i as isize + d, size)
            };
            self.values[place(y, dy, height) * width + place(x, dx, width)]
        };
        RgbImage::from_fn(width as u32, height as u32, |x, y| {
            let (x, y) = (x as usize, y as usize);
            let sobel = |across: &dyn Fn(isize, isize) -> (isize, isize)| {
                [(-1, 1.0), (0, 2.0), (1, 1.0)]
                    .into_iter()
                    .map(|(along, weight)| {
                        let (ax, ay) = across(1, along);
                        let (bx, by) = across(-1, along);
                        weight * (at(x, y, ax, ay) - at(x, y, bx, by))
                    })
                    .sum::<f32>()
            };
            let (mut dx, mut dy) = (
                sobel(&|across, along| (across, along)),
                sobel(&|across, along| (along, across)),
            );
            if f64::from(shares.values[y * width + x]) < background {
                (dx, dy) = (0.0, 0.0);
            }
            let length = (dx * dx + dy * dy + STEEPNESS * STEEPNESS).sqrt();
            let byte = |v: f32| (v / length * 127.5 + 127.5).clamp(0.0, 255.0) as u8;
            Rgb([byte(STEEPNESS), byte(dy), byte(dx)])
        })
    }
}
