//! A picture in another size.

use super::options::{Fit, Sides};
use super::resize::{Filter, Picture};
use image::imageops;
use image::{GenericImage, GenericImageView, Pixel};

/// How many times the wanted size a picture is scaled to at most, before it is cut.
const LONGEST: u32 = 8;

/// A picture of this size, stretched by Lanczos' filter.
pub fn stretched<P: Pixel<Subpixel = u8> + 'static>(
    picture: &Picture<P>,
    width: u32,
    height: u32,
) -> Picture<P> {
    if picture.dimensions() == (width, height) {
        return picture.clone();
    }
    Filter::Lanczos.resize(picture, width, height)
}

/// A picture of this size. [`Fit::Latent`] leaves it as it is: its latents are stretched.
pub fn fitted<P: Pixel<Subpixel = u8> + 'static>(
    picture: &Picture<P>,
    width: u32,
    height: u32,
    fit: Fit,
) -> Picture<P> {
    let (w, h) = picture.dimensions();
    // The picture is wider than what is wanted.
    let wider = u64::from(w) * u64::from(height) > u64::from(width) * u64::from(h);
    let by_height = (
        (u64::from(w) * u64::from(height) / u64::from(h.max(1))).max(1) as u32,
        height,
    );
    let by_width = (
        width,
        (u64::from(h) * u64::from(width) / u64::from(w.max(1))).max(1) as u32,
    );
    let half = |whole: u32, part: u32| i64::from(whole) / 2 - i64::from(part) / 2;
    // A picture so long that nearly all of it would be cut off is cut before it is scaled, too.
    let longest = |side: u32| side.saturating_mul(LONGEST);
    if fit == Fit::Crop && (by_height.0 > longest(width) || by_width.1 > longest(height)) {
        let kept = |side: u32, scaled: u32, wanted: u32| {
            let kept = u64::from(side) * u64::from(longest(wanted)) / u64::from(scaled.max(1));
            (kept.max(1) as u32).min(side)
        };
        let (w, h) = match wider {
            true => (kept(w, by_height.0, width), h),
            false => (w, kept(h, by_width.1, height)),
        };
        if (w, h) != picture.dimensions() {
            let (left, top) = ((picture.width() - w) / 2, (picture.height() - h) / 2);
            let middle = imageops::crop_imm(picture, left, top, w, h).to_image();
            return fitted(&middle, width, height, Fit::Crop);
        }
    }
    match fit {
        Fit::Stretch => stretched(picture, width, height),
        Fit::Latent => picture.clone(),
        Fit::Crop => {
            let (w, h) = if wider { by_height } else { by_width };
            let scaled = stretched(picture, w.max(width), h.max(height));
            let left = (-half(width, scaled.width())).max(0) as u32;
            let top = (-half(height, scaled.height())).max(0) as u32;
            imageops::crop_imm(&scaled, left, top, width, height).to_image()
        }
        Fit::Fill => {
            let (w, h) = if wider { by_width } else { by_height };
            let scaled = stretched(picture, w.min(width), h.min(height));
            let left = half(width, scaled.width()).max(0) as usize;
            let top = half(height, scaled.height()).max(0) as usize;
            let sides = Sides {
                left,
                top,
                right: width as usize - left - scaled.width() as usize,
                bottom: height as usize - top - scaled.height() as usize,
            };
            extended(&scaled, sides)
        }
    }
}

/// A picture with more pixels at its sides, which repeat those at its edge.
pub fn extended<P: Pixel<Subpixel = u8> + 'static>(
    picture: &Picture<P>,
    sides: Sides,
) -> Picture<P> {
    let (w, h) = picture.dimensions();
    let (width, height) = sides.around((w as usize, h as usize));
    if w == 0 || h == 0 {
        return Picture::new(width as u32, height as u32);
    }
    Picture::from_fn(width as u32, height as u32, |x, y| {
        let at = |i: u32, before: usize, size: u32| i.saturating_sub(before as u32).min(size - 1);
        *picture.get_pixel(at(x, sides.left, w), at(y, sides.top, h))
    })
}

/// A picture put into another at this place, where it lies within.
pub fn put<P: Pixel<Subpixel = u8> + 'static>(
    into: &mut Picture<P>,
    picture: &Picture<P>,
    x: u32,
    y: u32,
) {
    let width = picture.width().min(into.width().saturating_sub(x));
    let height = picture.height().min(into.height().saturating_sub(y));
    let part = picture.view(0, 0, width, height);
    // It fits: its size was cut to what is left.
    let _ = into.copy_from(&*part, x, y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{GrayImage, Luma};

    /// 0, 10, 20, … in rows.
    fn ramp(width: u32, height: u32) -> GrayImage {
        GrayImage::from_fn(width, height, |x, _| Luma([(x * 10 % 256) as u8]))
    }

    #[test]
    fn modes() {
        let wide = ramp(16, 4);
        let cut = fitted(&wide, 4, 4, Fit::Crop);
        assert_eq!(cut.dimensions(), (4, 4));
        assert_eq!(cut.as_raw()[..4], [60, 70, 80, 90]);
        let filled = fitted(&wide, 16, 8, Fit::Fill);
        assert_eq!(filled.dimensions(), (16, 8));
        assert_eq!(filled.as_raw()[..16], wide.as_raw()[..16]);
        assert_eq!(filled.as_raw()[7 * 16..], wide.as_raw()[..16]);
        let tall = fitted(&ramp(4, 8), 12, 8, Fit::Fill);
        assert_eq!(
            tall.as_raw()[..12],
            [0, 0, 0, 0, 0, 10, 20, 30, 30, 30, 30, 30]
        );
        assert_eq!(fitted(&wide, 8, 8, Fit::Latent).dimensions(), (16, 4));
        // Extreme shapes leave nothing empty and do not fail.
        for fit in [Fit::Stretch, Fit::Crop, Fit::Fill] {
            for (w, h) in [(1, 300), (300, 1), (3, 7), (8000, 1), (1, 8000)] {
                assert_eq!(fitted(&ramp(w, h), 8, 16, fit).dimensions(), (8, 16));
            }
        }
    }
}
