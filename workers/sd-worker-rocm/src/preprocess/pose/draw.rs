//! People drawn on black.

use super::{Person, DRAWN, JOINTS, LIMBS};
use image::{Rgb, RgbImage};

/// Colours of limbs and joints.
const COLOURS: [[u8; 3]; JOINTS] = [
    [255, 0, 0],
    [255, 85, 0],
    [255, 170, 0],
    [255, 255, 0],
    [170, 255, 0],
    [85, 255, 0],
    [0, 255, 0],
    [0, 255, 85],
    [0, 255, 170],
    [0, 255, 255],
    [0, 170, 255],
    [0, 85, 255],
    [0, 0, 255],
    [85, 0, 255],
    [170, 0, 255],
    [255, 0, 255],
    [255, 0, 170],
    [255, 0, 85],
];

/// Half of a limb's width, and a joint's radius.
const HALF: f64 = 4.0;

/// By what the colours of limbs are darker than those of joints.
const LIMB: f64 = 0.6;

/// Ellipses for limbs, over them discs for joints.
pub fn draw(people: &[Person], width: u32, height: u32) -> RgbImage {
    let mut picture = RgbImage::new(width, height);
    for ((a, b, _), colour) in LIMBS.iter().zip(COLOURS).take(DRAWN) {
        let dark = colour.map(|c| (f64::from(c) * LIMB) as u8);
        for person in people {
            if let (Some(from), Some(to)) = (person[*a], person[*b]) {
                ellipse(&mut picture, from, to, dark);
            }
        }
    }
    for person in people {
        for (joint, colour) in person.iter().zip(COLOURS) {
            if let Some((x, y)) = joint {
                let place = (x.floor(), y.floor());
                fill(&mut picture, place, HALF, colour, &|dx, dy| {
                    dx * dx + dy * dy <= HALF * HALF + 1.0
                });
            }
        }
    }
    picture
}

/// Between two joints, as long as they are apart.
fn ellipse(picture: &mut RgbImage, from: (f64, f64), to: (f64, f64), colour: [u8; 3]) {
    let (dx, dy) = (from.0 - to.0, from.1 - to.1);
    let length = (dx * dx + dy * dy).sqrt();
    let (cos, sin) = match length > 0.0 {
        true => (dx / length, dy / length),
        false => (1.0, 0.0),
    };
    // Whole pixels, and half of one more: the line around is filled, too.
    let (long, wide) = ((length / 2.0).floor() + 0.5, HALF + 0.5);
    let middle = (
        ((from.0 + to.0) / 2.0).floor(),
        ((from.1 + to.1) / 2.0).floor(),
    );
    fill(picture, middle, long.max(wide), colour, &|x, y| {
        let (along, across) = (x * cos + y * sin, y * cos - x * sin);
        (along / long).powi(2) + (across / wide).powi(2) <= 1.0
    });
}

/// The pixels around a place that are `inside`, told by how far they are from it.
fn fill(
    picture: &mut RgbImage,
    (x, y): (f64, f64),
    reach: f64,
    colour: [u8; 3],
    inside: &dyn Fn(f64, f64) -> bool,
) {
    let range = |middle: f64, side: u32| {
        let first = (middle - reach).floor().max(0.0) as u32;
        let last = (middle + reach).ceil().min(f64::from(side) - 1.0);
        first..(last + 1.0).max(0.0) as u32
    };
    for row in range(y, picture.height()) {
        for column in range(x, picture.width()) {
            if inside(f64::from(column) - x, f64::from(row) - y) {
                picture.put_pixel(column, row, Rgb(colour));
            }
        }
    }
}
