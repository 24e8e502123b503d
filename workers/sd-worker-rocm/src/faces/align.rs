//! Faces brought to where the networks expect eyes, nose and mouth, and back.

use image::{Rgb, RgbImage};

/// Where eyes, nose and corners of the mouth are in a face of 512 x 512: the mean of FFHQ, as facexlib has it.
const TEMPLATE: [[f64; 2]; 5] = [
    [192.98138, 239.94708],
    [318.90277, 240.1936],
    [256.63416, 314.01935],
    [201.26117, 371.41043],
    [313.08905, 371.15118],
];

/// What lies beyond the picture.
const GREY: [f32; 3] = [132.0, 133.0, 135.0];

/// Turns, scales and shifts: `(x, y)` becomes `(a x - b y + shift.0, b x + a y + shift.1)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Similarity {
    a: f64,
    b: f64,
    shift: [f64; 2],
}

type Point = [f64; 2];

impl Similarity {
    /// The one that brings landmarks of a picture to their places in a face of this size: least median of squares, then
    /// least squares over what fits (as OpenCV's `estimateAffinePartial2D` does it, with its random numbers). `None` if
    /// the landmarks are one point or no numbers.
    pub fn to_face(landmarks: &[[f32; 2]; 5], size: usize) -> Option<Self> {
        let scale = size as f64 / 512.0;
        let from = landmarks.map(|point| point.map(f64::from));
        let to = TEMPLATE.map(|point| point.map(|side| f64::from((side * scale) as f32)));
        if !from.as_flattened().iter().all(|side| side.is_finite()) {
            return None;
        }
        let mut random = Random(u64::MAX);
        let mut best: Option<(f64, Self)> = None;
        // So many draws find a pair of good points with 99% if 45% are bad.
        for _ in 0..13 {
            let (i, j) = random.pair();
            let Some(found) = Self::least_squares(&[from[i], from[j]], &[to[i], to[j]]) else {
                continue;
            };
            let mut errors = found.errors(&from, &to);
            errors.sort_by(f64::total_cmp);
            if best.is_none_or(|(least, _)| errors[2] < least) {
                best = Some((errors[2], found));
            }
        }
        let (median, found) = best?;
        let sigma = (2.5 * 1.4826 * (1.0 + 5.0 / 3.0) * median.sqrt()).max(0.001);
        let errors = found.errors(&from, &to);
        let fits = |points: &[Point; 5]| {
            let fitting = points.iter().zip(&errors);
            let fitting = fitting.filter(|(_, error)| **error <= sigma * sigma);
            fitting.map(|(point, _)| *point).collect::<Vec<_>>()
        };
        Self::least_squares(&fits(&from), &fits(&to))
    }

    /// The one with the least sum of squared distances; `None` if all points are one.
    fn least_squares(from: &[Point], to: &[Point]) -> Option<Self> {
        let mean = |points: &[Point]| {
            let sum = points
                .iter()
                .fold([0.0; 2], |sum, p| [sum[0] + p[0], sum[1] + p[1]]);
            sum.map(|sum| sum / points.len() as f64)
        };
        let (centre, aim) = (mean(from), mean(to));
        let (mut a, mut b, mut spread) = (0.0, 0.0, 0.0);
        for (p, q) in from.iter().zip(to) {
            let (x, y) = (p[0] - centre[0], p[1] - centre[1]);
            let (u, v) = (q[0] - aim[0], q[1] - aim[1]);
            a += x * u + y * v;
            b += x * v - y * u;
            spread += x * x + y * y;
        }
        let (a, b) = (a / spread, b / spread);
        let shift = [
            aim[0] - a * centre[0] + b * centre[1],
            aim[1] - b * centre[0] - a * centre[1],
        ];
        let found = Self { a, b, shift };
        let numbers = [a, b, shift[0], shift[1], 1.0 / (a * a + b * b)];
        numbers.iter().all(|n| n.is_finite()).then_some(found)
    }

    /// Squared distances.
    fn errors(&self, from: &[Point; 5], to: &[Point; 5]) -> [f64; 5] {
        std::array::from_fn(|i| {
            let [x, y] = self.apply(from[i]);
            (x - to[i][0]).powi(2) + (y - to[i][1]).powi(2)
        })
    }

    /// A point's place.
    pub fn apply(&self, [x, y]: Point) -> Point {
        [
            self.a * x - self.b * y + self.shift[0],
            self.b * x + self.a * y + self.shift[1],
        ]
    }

    /// The way back.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let length = self.a * self.a + self.b * self.b;
        let (a, b) = (self.a / length, -self.b / length);
        let [x, y] = self.shift;
        Self {
            a,
            b,
            shift: [-(a * x - b * y), -(b * x + a * y)],
        }
    }

    /// The face of a picture, this large.
    pub fn face(&self, picture: &RgbImage, size: u32) -> RgbImage {
        let back = self.inverse();
        RgbImage::from_fn(size, size, |x, y| {
            let [x, y] = back.apply([f64::from(x), f64::from(y)]);
            let at = |x: i64, y: i64| match inside(x, y, picture.dimensions()) {
                true => picture.get_pixel(x as u32, y as u32).0.map(f32::from),
                false => GREY,
            };
            let colour = between(x, y, at);
            Rgb(colour.map(|value| (value + 0.5) as u8))
        })
    }
}

/// Whether a pixel is one of a picture of this size.
pub(super) fn inside(x: i64, y: i64, (width, height): (u32, u32)) -> bool {
    (0..i64::from(width)).contains(&x) && (0..i64::from(height)).contains(&y)
}

/// The value at a place between pixels, on straight lines between them.
pub(super) fn between<const N: usize>(
    x: f64,
    y: f64,
    at: impl Fn(i64, i64) -> [f32; N],
) -> [f32; N] {
    let (left, top) = (x.floor(), y.floor());
    let (dx, dy) = ((x - left) as f32, (y - top) as f32);
    let (left, top) = (left as i64, top as i64);
    let right = left.saturating_add(1);
    let row = |y: i64| {
        let (a, b) = (at(left, y), at(right, y));
        std::array::from_fn::<f32, N, _>(|i| a[i] + (b[i] - a[i]) * dx)
    };
    let (a, b) = (row(top), row(top.saturating_add(1)));
    std::array::from_fn(|i| a[i] + (b[i] - a[i]) * dy)
}

/// OpenCV's generator: multiply with carry.
struct Random(u64);

impl Random {
    fn below(&mut self, count: u32) -> usize {
        let low = u64::from(self.0 as u32);
        self.0 = low.wrapping_mul(4_164_903_690).wrapping_add(self.0 >> 32);
        (self.0 as u32 % count) as usize
    }

    /// Two of five.
    fn pair(&mut self) -> (usize, usize) {
        let first = self.below(5);
        loop {
            let second = self.below(5);
            if second != first {
                return (first, second);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let landmarks = [
            [60.0, 40.0],
            [95.0, 52.0],
            [70.0, 68.0],
            [50.0, 80.0],
            [80.0, 90.0],
        ];
        let there = Similarity::to_face(&landmarks, 512).unwrap();
        let back = there.inverse();
        for point in [[0.0, 0.0], [100.0, -20.0]] {
            let [x, y] = back.apply(there.apply(point));
            assert!((x - point[0]).abs() < 1e-9 && (y - point[1]).abs() < 1e-9);
        }
        // No face: nothing to go by.
        assert!(Similarity::to_face(&[[5.0, 5.0]; 5], 512).is_none());
        assert!(Similarity::to_face(&[[f32::NAN, 1.0]; 5], 512).is_none());
    }
}
