//! A picture's pixels in another order, for ControlNets that follow its colours and not its shapes: each place is seen
//! from where smooth noise says.

use crate::editing::resample::Resample;
use crate::rng::Mt19937;
use candle_core::{Device, Result, Tensor};
use image::{Rgb, RgbImage};

/// Pixels from one number of the noise to the next, each way.
const STEP: usize = 256;

/// NumPy's uniform numbers.
fn uniform(rng: &mut Mt19937) -> f64 {
    let (high, low) = (rng.next_u32() >> 5, rng.next_u32() >> 6);
    (f64::from(high) * 67_108_864.0 + f64::from(low)) / 9_007_199_254_740_992.0
}

/// Smooth noise from 0 to 1 for each pixel, row by row.
fn noise(rng: &mut Mt19937, width: usize, height: usize) -> Result<Vec<f32>> {
    let (rows, columns) = (height / STEP + 2, width / STEP + 2);
    let numbers: Vec<f32> = (0..rows * columns).map(|_| uniform(rng) as f32).collect();
    let coarse = Tensor::from_vec(numbers, (1, 1, rows, columns), &Device::Cpu)?;
    let smooth = Resample::Bicubic { antialias: false };
    let smooth = smooth.apply(&coarse, height + 2 * STEP, width + 2 * STEP)?;
    let smooth = smooth.narrow(2, STEP, height)?.narrow(3, STEP, width)?;
    let values: Vec<f32> = smooth.flatten_all()?.to_vec1()?;
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = (most - least).max(f32::MIN_POSITIVE);
    Ok(values.into_iter().map(|v| (v - least) / range).collect())
}

/// The picture shuffled; another seed gives another order.
///
/// # Errors
/// If there is no memory.
pub fn shuffle(picture: &RgbImage, seed: u32) -> Result<RgbImage> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let mut rng = Mt19937::new(u64::from(seed));
    let across = noise(&mut rng, width, height)?;
    let down = noise(&mut rng, width, height)?;
    let place = |share: f32, side: usize| {
        let place = share * (side as f32 - 1.0);
        (place.floor() as i64, place - place.floor())
    };
    Ok(RgbImage::from_fn(width as u32, height as u32, |x, y| {
        let i = y as usize * width + x as usize;
        let ((left, dx), (top, dy)) = (place(across[i], width), place(down[i], height));
        // Beyond the edges it is black.
        let at = |x: i64, y: i64, c: usize| {
            let inside = (0..width as i64).contains(&x) && (0..height as i64).contains(&y);
            match inside {
                true => f32::from(picture.get_pixel(x as u32, y as u32).0[c]),
                false => 0.0,
            }
        };
        Rgb([0, 1, 2].map(|c| {
            let above = (1.0 - dx) * at(left, top, c) + dx * at(left + 1, top, c);
            let below = (1.0 - dx) * at(left, top + 1, c) + dx * at(left + 1, top + 1, c);
            ((1.0 - dy) * above + dy * below).round() as u8
        }))
    }))
}
