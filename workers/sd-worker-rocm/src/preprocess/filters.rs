//! Lines, scribbles and greys without a network, as AUTOMATIC1111's extension makes them.

use crate::editing::blur::{gaussian, Plane};
use crate::editing::resize::Filter;
use image::{imageops, Rgb, RgbImage};

/// The three colours of a picture.
fn planes(picture: &RgbImage) -> [Plane; 3] {
    [0, 1, 2].map(|c| Plane {
        width: picture.width() as usize,
        height: picture.height() as usize,
        values: (picture.iter().skip(c).step_by(3))
            .map(|v| f32::from(*v))
            .collect(),
    })
}

/// A grey picture of a number for each pixel.
fn grey(picture: &RgbImage, value: impl Fn(usize) -> f32) -> RgbImage {
    let width = picture.width() as usize;
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        // Fractions are dropped, as the extension's casts do.
        let value = value(y as usize * width + x as usize).clamp(0.0, 255.0);
        Rgb([value as u8; 3])
    })
}

/// OpenCV's Gaussian of floats, whose kernel reaches four standard deviations.
fn spread(plane: &Plane, sigma: f32) -> Plane {
    let side = (sigma * 8.0 + 1.0).round() as usize | 1;
    plane.mixed(&gaussian(sigma, side / 2))
}

/// The negative.
pub fn invert(mut picture: RgbImage) -> RgbImage {
    imageops::invert(&mut picture);
    picture
}

/// White where every colour is brighter than `threshold`.
pub fn threshold(picture: &RgbImage, threshold: f64) -> RgbImage {
    let least = |i: usize| picture.as_raw()[3 * i..3 * i + 3].iter().min().copied();
    grey(picture, |i| match least(i) {
        Some(least) if f64::from(least) > threshold => 255.0,
        _ => 0.0,
    })
}

/// White where a pixel is darker than a wide blur of its surroundings by more than `threshold` halves.
pub fn scribble(picture: &RgbImage, threshold: f64) -> RgbImage {
    let differences = planes(picture).map(|plane| {
        let (near, far) = (spread(&plane, 0.5), spread(&plane, 5.0));
        let pairs = far.values.into_iter().zip(near.values);
        pairs.map(|(far, near)| far - near).collect::<Vec<f32>>()
    });
    let least = |i: usize| {
        differences
            .iter()
            .map(|d| d[i])
            .fold(f32::INFINITY, f32::min)
    };
    grey(picture, |i| {
        let left = (255.0 - least(i)).clamp(0.0, 255.0) as u8;
        match 2.0 * f64::from(255 - left) > threshold {
            true => 255.0,
            false => 0.0,
        }
    })
}

/// How much darker than a wide blur of its surroundings a pixel is, measured by half of the usual line.
pub fn lineart(picture: &RgbImage) -> RgbImage {
    let differences = planes(picture).map(|plane| {
        let far = spread(&plane, 6.0);
        let pairs = far.values.into_iter().zip(plane.values);
        pairs.map(|(far, own)| far - own).collect::<Vec<f32>>()
    });
    let lines: Vec<f32> = (0..differences[0].len())
        .map(|i| {
            let least = differences
                .iter()
                .map(|d| d[i])
                .fold(f32::INFINITY, f32::min);
            least.clamp(0.0, 255.0)
        })
        .collect();
    let mut strong: Vec<f32> = lines.iter().copied().filter(|line| *line > 8.0).collect();
    strong.sort_by(f32::total_cmp);
    let median = match strong.len() {
        0 => 0.0,
        count if count % 2 == 0 => (strong[count / 2 - 1] + strong[count / 2]) / 2.0,
        count => strong[count / 2],
    };
    grey(picture, |i| lines[i] / median.max(16.0) * 127.0)
}

/// So many times coarser, in the picture's size.
pub fn tile(picture: &RgbImage, rate: f64) -> RgbImage {
    let (width, height) = picture.dimensions();
    let side = |side: u32| ((f64::from(side) / rate) as u32).max(1);
    let coarse = Filter::Box.resize(picture, side(width), side(height));
    Filter::Bicubic.resize(&coarse, width, height)
}

/// Softer by a Gaussian of this standard deviation in pixels, whose kernel reaches three of it.
pub fn blur(picture: &RgbImage, sigma: f64) -> RgbImage {
    let side = (sigma * 6.0 + 1.0).round() as usize | 1;
    let weights = gaussian(sigma as f32, side / 2);
    let [r, g, b] = planes(picture).map(|plane| plane.mixed(&weights).picture());
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        Rgb([&r, &g, &b].map(|plane| plane.get_pixel(x, y).0[0]))
    })
}

/// The brightest colour of each pixel, from 0 to 1 to the power of `gamma`.
pub fn intensity(picture: &RgbImage, gamma: f64) -> RgbImage {
    let most = |i: usize| picture.as_raw()[3 * i..3 * i + 3].iter().max().copied();
    powers(picture, gamma, &|i| most(i).unwrap_or(0))
}

/// How bright each pixel looks (CIE L*), from 0 to 1 to the power of `gamma`.
pub fn luminance(picture: &RgbImage, gamma: f64) -> RgbImage {
    let linear = |byte: u8| {
        let share = f64::from(byte) / 255.0;
        match share <= 0.04045 {
            true => share / 12.92,
            false => ((share + 0.055) / 1.055).powf(2.4),
        }
    };
    let table: Vec<f64> = (0..=u8::MAX).map(linear).collect();
    powers(picture, gamma, &|i| {
        let [r, g, b] = [0, 1, 2].map(|c| table[usize::from(picture.as_raw()[3 * i + c])]);
        let light = 0.212671 * r + 0.715160 * g + 0.072169 * b;
        let lightness = match light > 0.008856 {
            true => 116.0 * light.cbrt() - 16.0,
            false => 903.3 * light,
        };
        (lightness * 255.0 / 100.0).round().clamp(0.0, 255.0) as u8
    })
}

/// Bytes from 0 to 1 to the power of `gamma`.
fn powers(picture: &RgbImage, gamma: f64, byte: &dyn Fn(usize) -> u8) -> RgbImage {
    let power = |byte: usize| ((byte as f64 / 255.0).powf(gamma) * 255.0).round() as u8;
    let table: Vec<u8> = (0..256).map(power).collect();
    grey(picture, |i| f32::from(table[usize::from(byte(i))]))
}

/// Soft edges as scribbles: the ridges of what is smoothed, softened and then drawn white.
pub fn thinned(edges: &RgbImage) -> RgbImage {
    /// Least height of a ridge.
    const LEAST: f32 = 127.0;
    /// Standard deviation in pixels, before and after.
    const SIGMA: f32 = 3.0;
    let [plane, ..] = planes(edges);
    let smooth = spread(&plane, SIGMA);
    let (width, height) = (smooth.width as i64, smooth.height as i64);
    let at = |x: i64, y: i64| {
        let inside = (0..width).contains(&x) && (0..height).contains(&y);
        match inside {
            true => smooth.values[(y * width + x) as usize],
            false => f32::NEG_INFINITY,
        }
    };
    let ridge = grey(edges, |i| {
        let (x, y) = (i as i64 % width, i as i64 / width);
        let here = at(x, y);
        let along = [(1, 0), (0, 1), (1, 1), (1, -1)];
        let mut ways = along.into_iter();
        let highest = ways.any(|(dx, dy)| here >= at(x + dx, y + dy) && here >= at(x - dx, y - dy));
        match highest && here > LEAST {
            true => 255.0,
            false => 0.0,
        }
    });
    let soft = blur(&ridge, f64::from(SIGMA));
    grey(edges, |i| match soft.as_raw()[3 * i] > 4 {
        true => 255.0,
        false => 0.0,
    })
}
