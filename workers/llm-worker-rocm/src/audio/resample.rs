//! Samples at another rate: a sinc filter with Kaiser's window, one row of weights for each phase of the two rates.
//!
//! "Nonrecursive digital filter design using the I0-sinh window function", Kaiser, 1974.

/// Zero crossings of the sinc on each side: with [`BETA`] the band between what passes and what does not has an eighth
/// of the lower rate's width.
const CROSSINGS: usize = 48;
/// Kaiser's parameter: what should not pass is 90 dB down.
const BETA: f64 = 9.0;
/// Where the filter is at half, as a part of the lower rate's half.
const CUTOFF: f64 = 0.94;

/// A stream of samples on its way to another rate.
pub struct Resampler {
    from: u32,
    /// Both rates without their common divisor.
    up: usize,
    down: usize,
    /// Samples on each side of a place that count for it.
    reach: usize,
    /// `up` rows of `2 reach` weights; none if both rates are the same.
    weights: Vec<f32>,
    /// The last samples that are still needed; the first stands for place `first`.
    held: Vec<f32>,
    first: i64,
    /// Samples that came.
    came: u64,
    /// Samples that were given.
    given: u64,
}

impl Resampler {
    /// From so many samples a second to so many, both above 0.
    pub fn new(from: u32, to: u32) -> Self {
        let divisor = common_divisor(from, to).max(1);
        let (up, down) = ((to / divisor) as usize, (from / divisor) as usize);
        // In samples of the input: below 1 where the rate falls.
        let scale = (f64::from(to) / f64::from(from)).min(1.0);
        let reach = (CROSSINGS as f64 / scale).ceil() as usize;
        let mut weights = Vec::new();
        if from != to {
            weights.reserve(up * 2 * reach);
            for phase in 0..up {
                let fraction = phase as f64 / up as f64;
                let row: Vec<f64> = (0..2 * reach)
                    .map(|i| {
                        // From the sample at the row's place `reach - 1` on the left to `reach` on the right.
                        let distance = i as f64 - (reach - 1) as f64 - fraction;
                        sinc(distance * scale * CUTOFF) * kaiser(distance / reach as f64)
                    })
                    .collect();
                // Each phase passes a constant as it is.
                let sum: f64 = row.iter().sum();
                weights.extend(row.iter().map(|w| (w / sum) as f32));
            }
        }
        Self {
            from,
            up,
            down,
            reach,
            weights,
            held: vec![0.0; reach],
            first: -(reach as i64),
            came: 0,
            given: 0,
        }
    }

    /// The rate that it takes.
    pub fn from(&self) -> u32 {
        self.from
    }

    /// Takes samples, and adds those that are certain now.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.came += samples.len() as u64;
        if self.weights.is_empty() {
            out.extend_from_slice(samples);
            self.given += samples.len() as u64;
            return;
        }
        self.held.extend_from_slice(samples);
        self.drain(u64::MAX, out);
    }

    /// Adds the rest: silence follows the last sample.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        if self.weights.is_empty() {
            return;
        }
        let whole = (self.came as u128 * self.up as u128).div_ceil(self.down as u128) as u64;
        self.held.extend(std::iter::repeat_n(0.0, self.reach + 1));
        self.drain(whole, out);
    }

    /// Samples up to number `most`, as far as what they need is held.
    fn drain(&mut self, most: u64, out: &mut Vec<f32>) {
        while self.given < most {
            let at = self.given as u128 * self.down as u128;
            let (place, phase) = (at / self.up as u128, (at % self.up as u128) as usize);
            let start = (place as i64 - (self.reach as i64 - 1) - self.first) as usize;
            let Some(near) = self.held.get(start..start + 2 * self.reach) else {
                break;
            };
            let row = &self.weights[phase * 2 * self.reach..][..2 * self.reach];
            out.push(near.iter().zip(row).map(|(x, w)| x * w).sum());
            self.given += 1;
        }
        let next = (self.given as u128 * self.down as u128 / self.up as u128) as i64;
        let needed = next - (self.reach as i64 - 1);
        let gone = usize::try_from(needed - self.first).unwrap_or(0);
        // Not for each packet: what is left would be moved each time.
        if gone > self.held.len() / 2 {
            let gone = gone.min(self.held.len());
            self.held.drain(..gone);
            self.first += gone as i64;
        }
    }
}

/// Samples at another rate; as many as last as long.
pub fn resample(samples: &[f32], from: u32, to: u32) -> Vec<f32> {
    let mut out = Vec::new();
    let mut resampler = Resampler::new(from, to);
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    out
}

fn common_divisor(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => common_divisor(b, a % b),
    }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    match x.abs() < 1e-9 {
        true => 1.0,
        false => x.sin() / x,
    }
}

/// Kaiser's window from -1 to 1.
fn kaiser(x: f64) -> f64 {
    bessel(BETA * (1.0 - x * x).max(0.0).sqrt()) / bessel(BETA)
}

/// The modified Bessel function of order zero, by its series.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let terms = (1..64).scan(1.0, |term, k| {
        *term *= quarter / f64::from(k * k);
        Some(*term)
    });
    1.0 + terms.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine(rate: u32, frequency: f64, seconds: f64) -> Vec<f32> {
        let count = (f64::from(rate) * seconds) as usize;
        let angle = |i: usize| std::f64::consts::TAU * frequency * i as f64 / f64::from(rate);
        (0..count).map(|i| angle(i).sin() as f32).collect()
    }

    /// The largest difference, a bit away from both ends.
    fn difference(a: &[f32], b: &[f32]) -> f32 {
        let edge = 400;
        assert!(a.len().abs_diff(b.len()) <= 1, "{} {}", a.len(), b.len());
        let both = a.iter().zip(b).skip(edge).take(a.len() - 2 * edge);
        both.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn tones_stay_what_they_are() {
        for (from, to) in [
            (44_100, 16_000),
            (48_000, 16_000),
            (8_000, 16_000),
            (22_050, 16_000),
        ] {
            for frequency in [100.0, 1_000.0, 3_400.0] {
                let got = resample(&sine(from, frequency, 0.5), from, to);
                let off = difference(&got, &sine(to, frequency, 0.5));
                assert!(off < 2e-4, "{from} to {to}, {frequency} Hz: {off}");
            }
        }
    }

    #[test]
    fn what_the_rate_cannot_carry_is_gone() {
        let got = resample(&sine(48_000, 9_000.0, 0.5), 48_000, 16_000);
        let loudest = got[400..got.len() - 400]
            .iter()
            .fold(0f32, |m, x| m.max(x.abs()));
        assert!(loudest < 1e-3, "{loudest}");
    }

    #[test]
    fn pieces_give_what_the_whole_gives() {
        let sound = sine(44_100, 700.0, 0.3);
        let whole = resample(&sound, 44_100, 16_000);
        assert_eq!(whole.len(), 4_800);
        let mut pieces = Vec::new();
        let mut resampler = Resampler::new(44_100, 16_000);
        for piece in sound.chunks(97) {
            resampler.push(piece, &mut pieces);
        }
        resampler.finish(&mut pieces);
        assert_eq!(whole, pieces);
        assert_eq!(resample(&sound, 16_000, 16_000), sound);
        assert!(resample(&[], 44_100, 16_000).is_empty());
        assert_eq!(resample(&[0.5], 8_000, 16_000).len(), 2);
    }
}
