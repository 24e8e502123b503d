//! The part of a picture that a mask needs.

use image::GrayImage;

/// A rectangle of a picture, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// From the left.
    pub x: u32,
    /// From above.
    pub y: u32,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

impl Region {
    /// What a mask needs: what is not black with `padding` pixels around, widened to the shape of pictures of `width`
    /// times `height` as far as the mask goes. `None` if all is black.
    pub fn of(mask: &GrayImage, padding: usize, (width, height): (usize, usize)) -> Option<Self> {
        let white = mask.enumerate_pixels().filter(|(.., m)| m.0[0] > 0);
        let (mut left, mut top, mut right, mut bottom) = (u32::MAX, u32::MAX, 0, 0);
        for (x, y, _) in white {
            left = left.min(x);
            right = right.max(x + 1);
            top = top.min(y);
            bottom = bottom.max(y + 1);
        }
        if left >= right {
            return None;
        }
        let padding = i64::try_from(padding).unwrap_or(i64::MAX);
        let padded = |low: u32, high: u32, size: u32| {
            let low = i64::from(low).saturating_sub(padding).max(0);
            let high = i64::from(high).saturating_add(padding);
            (low, high.min(i64::from(size)))
        };
        let (mut x, mut y) = (
            padded(left, right, mask.width()),
            padded(top, bottom, mask.height()),
        );
        let (w, h) = ((x.1 - x.0) as f64, (y.1 - y.0) as f64);
        let shape = width as f64 / height as f64;
        if w / h > shape {
            y = widened(y, (w / shape - h) as i64, mask.height());
        } else {
            x = widened(x, (h * shape - w) as i64, mask.width());
        }
        Some(Self {
            x: x.0 as u32,
            y: y.0 as u32,
            width: (x.1 - x.0) as u32,
            height: (y.1 - y.0) as u32,
        })
    }
}

/// A stretch with `more` in all at its ends, moved and at last cut to lie within `size`.
fn widened((low, high): (i64, i64), more: i64, size: u32) -> (i64, i64) {
    let size = i64::from(size);
    let (mut low, mut high) = (low - more / 2, high + more - more / 2);
    if high >= size {
        low -= high - size;
        high = size;
    }
    if low < 0 {
        high -= low;
        low = 0;
    }
    (low, high.min(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Luma;

    fn region(white: [u32; 4], padding: usize, shape: (usize, usize)) -> Option<[u32; 4]> {
        let [left, top, right, bottom] = white;
        let mask = GrayImage::from_fn(100, 60, |x, y| {
            Luma([255 * u8::from((left..right).contains(&x) && (top..bottom).contains(&y))])
        });
        let Region {
            x,
            y,
            width,
            height,
        } = Region::of(&mask, padding, shape)?;
        Some([x, y, x + width, y + height])
    }

    /// Numbers of `VaeImageProcessor.get_crop_region` of diffusers 0.42.1.
    #[test]
    fn regions_are_diffusers() {
        for (white, padding, shape, expected) in CASES {
            assert_eq!(region(white, padding, shape), Some(expected), "{white:?}");
        }
        assert_eq!(region([5, 5, 5, 5], 8, (64, 64)), None);
    }

    type Case = ([u32; 4], usize, (usize, usize), [u32; 4]);
    const CASES: [Case; 6] = [
        ([40, 20, 60, 30], 8, (64, 64), [32, 7, 68, 43]),
        ([0, 0, 10, 50], 4, (64, 64), [0, 0, 54, 54]),
        ([90, 50, 100, 60], 16, (96, 32), [22, 34, 100, 60]),
        ([10, 5, 90, 55], 32, (32, 96), [0, 0, 100, 60]),
        ([50, 30, 51, 31], 0, (48, 32), [50, 30, 51, 31]),
        ([3, 40, 30, 58], 5, (64, 48), [0, 34, 35, 60]),
    ];
}
