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

/// The brightest colour of each pixel.
pub fn intensity(picture: &RgbImage) -> RgbImage {
    let most = |i: usize| picture.as_raw()[3 * i..3 * i + 3].iter().max().copied();
    grey(picture, |i| most(i).map_or(0.0, f32::from))
}
