//! Canny's edges, bit for bit as OpenCV finds them in colours: the steepest colour of each pixel, gradients by Sobel's
//! filter and their sum of absolute values, ridges by sectors in fixed point, and all weak ridges that touch strong ones.

use image::{Rgb, RgbImage};

/// The tangent of 22.5 degrees, times 2^15.
const TANGENT: i64 = 13573;

/// Gradients of a picture, with a frame of zeros around their sizes.
struct Gradients {
    /// Across and down.
    ways: Vec<(i32, i32)>,
    /// `(width + 2) * (height + 2)`.
    sizes: Vec<i32>,
    width: usize,
    height: usize,
}

impl Gradients {
    fn of(picture: &RgbImage) -> Self {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let pixels = picture.as_raw();
        let mut ways = vec![(0, 0); width * height];
        let mut sizes = vec![0; (width + 2) * (height + 2)];
        for y in 0..height {
            let rows = [y.saturating_sub(1), y, (y + 1).min(height - 1)];
            for x in 0..width {
                let columns = [x.saturating_sub(1), x, (x + 1).min(width - 1)];
                let mut best = (0, 0, -1);
                for c in 0..3 {
                    let at = |i: usize, j: usize| {
                        i32::from(pixels[(rows[i] * width + columns[j]) * 3 + c])
                    };
                    let dx = at(0, 2) - at(0, 0) + 2 * (at(1, 2) - at(1, 0)) + at(2, 2) - at(2, 0);
                    let dy = at(2, 0) - at(0, 0) + 2 * (at(2, 1) - at(0, 1)) + at(2, 2) - at(0, 2);
                    let size = dx.abs() + dy.abs();
                    if size > best.2 {
                        best = (dx, dy, size);
                    }
                }
                ways[y * width + x] = (best.0, best.1);
                sizes[(y + 1) * (width + 2) + x + 1] = best.2;
            }
        }
        Self {
            ways,
            sizes,
            width,
            height,
        }
    }

    /// Whether a pixel is steeper than its neighbours along its gradient.
    fn is_ridge(&self, x: usize, y: usize) -> bool {
        let stride = self.width + 2;
        let at = (y + 1) * stride + x + 1;
        let size = self.sizes[at];
        let (dx, dy) = self.ways[y * self.width + x];
        let (across, down) = (i64::from(dx.abs()), i64::from(dy.abs()) << 15);
        let flat = across * TANGENT;
        if down < flat {
            return size > self.sizes[at - 1] && size >= self.sizes[at + 1];
        }
        if down > flat + (across << 16) {
            return size > self.sizes[at - stride] && size >= self.sizes[at + stride];
        }
        // Down to the right or down to the left.
        let (above, below) = match (dx ^ dy) < 0 {
            true => (at - stride + 1, at + stride - 1),
            false => (at - stride - 1, at + stride + 1),
        };
        size > self.sizes[above] && size > self.sizes[below]
    }
}

/// White edges on black: ridges above the high threshold, and those above the low one that touch them.
pub fn canny(picture: &RgbImage, low: f64, high: f64) -> RgbImage {
    let (low, high) = (low.min(high).floor() as i32, low.max(high).floor() as i32);
    let gradients = Gradients::of(picture);
    let (width, height) = (gradients.width, gradients.height);
    let mut weak = vec![false; width * height];
    let mut edges = vec![false; width * height];
    let mut open = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let size = gradients.sizes[(y + 1) * (width + 2) + x + 1];
            if size > low && gradients.is_ridge(x, y) {
                weak[y * width + x] = true;
                if size > high {
                    edges[y * width + x] = true;
                    open.push((x, y));
                }
            }
        }
    }
    while let Some((x, y)) = open.pop() {
        for ny in y.saturating_sub(1)..=(y + 1).min(height - 1) {
            for nx in x.saturating_sub(1)..=(x + 1).min(width - 1) {
                let at = ny * width + nx;
                if weak[at] && !edges[at] {
                    edges[at] = true;
                    open.push((nx, ny));
                }
            }
        }
    }
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        Rgb([255 * u8::from(edges[y as usize * width + x as usize]); 3])
    })
}
