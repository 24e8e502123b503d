//! Sizes that encoders take, for those of pictures.

use super::config::VisionConfig;

/// Pictures whose sides differ more than this many times are refused, as by Qwen's processors.
const MOST_ASPECT: f64 = 200.0;

impl VisionConfig {
    /// The nearest size in whole groups of patches whose `frames` have neither too few pixels together nor too many.
    pub(super) fn smart_size(
        &self,
        width: usize,
        height: usize,
        pixels: (usize, usize),
        frames: usize,
    ) -> Result<(usize, usize), String> {
        let (w, h) = (width as f64, height as f64);
        let aspect = w.max(h) / w.min(h);
        if aspect > MOST_ASPECT {
            return Err(format!(
                "a picture of {width} x {height} pixels is too narrow: one side may be {MOST_ASPECT} times the other"
            ));
        }
        let unit = (self.patch * self.merge) as f64;
        // Python rounds halves to even numbers.
        let nearest = |x: f64| (x / unit).round_ties_even() * unit;
        let (mut wide, mut high) = (nearest(w), nearest(h));
        let (fewest, most) = (pixels.0 as f64, pixels.1 as f64);
        let frames = frames as f64;
        // Those that go together are counted whole.
        let together = self.traits.video.map_or(1.0, |video| video.together as f64);
        let counted = match frames > 1.0 {
            true => (frames / together).round_ties_even() * together,
            false => 1.0,
        };
        if counted * wide * high > most {
            let scale = (frames * w * h / most).sqrt();
            let smaller = |x: f64| ((x / scale / unit).floor() * unit).max(unit);
            (wide, high) = (smaller(w), smaller(h));
        } else if counted * wide * high < fewest {
            let scale = (fewest / (frames * w * h)).sqrt();
            let larger = |x: f64| (x * scale / unit).ceil() * unit;
            (wide, high) = (larger(w), larger(h));
        }
        Ok((wide as usize, high as usize))
    }

    /// A size within a square, in whole groups of patches.
    pub(super) fn bounded_size(&self, width: usize, height: usize) -> (usize, usize) {
        let ratio = width.max(height) as f64 / self.side as f64;
        let unit = self.patch * self.merge;
        let fit = |x: usize| match ratio > 1.0 {
            true => ((x as f64 / ratio).floor() as usize).max(1),
            false => x,
        };
        let whole = |x: usize| fit(x).div_ceil(unit) * unit;
        (whole(width), whole(height))
    }

    /// The largest size of about the same shape in whole groups of patches that has no more rows than there may be.
    pub(super) fn largest_size(
        &self,
        width: usize,
        height: usize,
    ) -> Result<(usize, usize), String> {
        let unit = self.patch * self.merge;
        let most = self.pixels.1 / (unit * unit);
        let (w, h) = (width as f64, height as f64);
        let factor = ((most * unit * unit) as f64 / (w * h)).sqrt();
        let whole = |x: f64| (factor * x / unit as f64).floor() as usize;
        // A side of no group has one, and the other as many as that leaves.
        let beside = |long: usize, short: usize| (long / short).min(most);
        let (across, down) = match (whole(w), whole(h)) {
            (0, 0) => {
                return Err(format!(
                    "a picture of {width} x {height} pixels is too small"
                ))
            }
            (across, 0) if across > 0 => (beside(width, height), 1),
            (0, _) => (1, beside(height, width)),
            both => both,
        };
        Ok((across * unit, down * unit))
    }

    /// A size whose longer side is given, and the other one even.
    pub(super) fn longest_size(
        &self,
        width: usize,
        height: usize,
        longest: usize,
    ) -> (usize, usize) {
        let aspect = width as f64 / height as f64;
        let even = |x: f64| {
            let x = x as usize;
            (x + x % 2).max(1)
        };
        match aspect >= 1.0 {
            true => (longest, even(longest as f64 / aspect)),
            false => (even(longest as f64 * aspect), longest),
        }
    }
}
