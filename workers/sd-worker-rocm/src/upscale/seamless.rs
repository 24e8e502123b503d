//! Pictures whose opposite edges meet, made larger: what lies at the opposite edge is laid around them first.

use super::{enlarge, Network, Tiling};
use crate::editing::resize::Filter;
use crate::models::wrap::Wrap;
use image::{imageops, RgbImage};
use std::ops::ControlFlow;
use worker::Result;

/// Pixels around a picture that filters and networks look at.
const REACH: u32 = 32;

/// How much of a side is laid beyond its ends, before and after it is brought from one length to the other: at least
/// `reach`, if the side is as long, and so much that both are whole numbers.
pub fn margin(wraps: bool, from: u32, to: u32, reach: u32) -> (u32, u32) {
    let (mut gcd, mut rest) = (from, to);
    while rest > 0 {
        (gcd, rest) = (rest, gcd % rest);
    }
    if !wraps || gcd == 0 {
        return (0, 0);
    }
    let step = from / gcd;
    let steps = reach.div_ceil(step).min(gcd);
    (steps * step, steps * (to / gcd))
}

/// As [`enlarge`], for a picture whose edges meet so.
///
/// # Errors
/// Those of [`enlarge`].
pub fn enlarge_seamless(
    picture: &RgbImage,
    network: Option<(&mut Network, &Tiling)>,
    filter: Filter,
    (width, height): (u32, u32),
    wrap: Wrap,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<Option<RgbImage>> {
    let (w, h) = picture.dimensions();
    let (x, left) = margin(wrap.x, w, width, REACH);
    let (y, top) = margin(wrap.y, h, height, REACH);
    let wider = RgbImage::from_fn(w + 2 * x, h + 2 * y, |i, j| {
        *picture.get_pixel((i + w - x) % w, (j + h - y) % h)
    });
    let size = (width + 2 * left, height + 2 * top);
    let larger = enlarge(&wider, network, filter, size, progress)?;
    Ok(larger.map(|larger| imageops::crop_imm(&larger, left, top, width, height).to_image()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> RgbImage {
        RgbImage::from_fn(48, 40, |x, y| {
            image::Rgb([(x * 5) as u8, (y * 6) as u8, ((x * y) % 251) as u8])
        })
    }

    /// The picture moved to the left and upwards, where it comes in again at the other side.
    fn rolled(picture: &RgbImage, left: u32, up: u32) -> RgbImage {
        let (w, h) = picture.dimensions();
        RgbImage::from_fn(w, h, |x, y| {
            *picture.get_pixel((x + left) % w, (y + up) % h)
        })
    }

    #[test]
    fn a_rolled_picture_is_the_same_rolled() {
        let larger = |picture: &RgbImage, size, x, y| {
            let (filter, wrap) = (Filter::Lanczos, Wrap { x, y });
            let mut go_on = |_, _| ControlFlow::Continue(());
            let larger = enlarge_seamless(picture, None, filter, size, wrap, &mut go_on);
            larger.unwrap().unwrap()
        };
        let moved = rolled(&scene(), 20, 10);
        for (size, by) in [((96, 80), (40, 20)), ((72, 60), (30, 15))] {
            let same = |x, y| {
                larger(&moved, size, x, y) == rolled(&larger(&scene(), size, x, y), by.0, by.1)
            };
            assert!(same(true, true), "{size:?}");
            assert!(!same(true, false) && !same(false, true) && !same(false, false));
        }
        assert_eq!(margin(true, 48, 72, 32), (32, 48));
        assert_eq!(margin(true, 7, 9, 32), (7, 9));
        assert_eq!(margin(false, 48, 72, 32), (0, 0));
    }
}
