//! Noise of SDE samplers from a Brownian motion over the noise level: a seed stands for one path, whichever steps go along
//! it. Numbers are those of torchsde's `BrownianTree`, which k-diffusion takes: each half of an interval has a seed of its
//! own by its place in the tree, so that a path is the same whatever was asked of it before.

use super::seed_sequence::state;
use super::{Generator, RngKind};
use std::collections::HashMap;

/// Words that seeds are mixed in, torchsde's.
const POOL: usize = 24;
/// Decimal digits of places, torchsde's tolerance.
const DIGITS: usize = 6;
/// Halves that are remembered: a step's neighbours share most of the way from the top.
const REMEMBERED: usize = 64;

/// The path of one picture.
pub(super) struct BrownianTree {
    kind: RngKind,
    seed: u64,
    /// The places between which it goes.
    ends: (f64, f64),
    /// How far it goes in all.
    whole: Vec<f32>,
    /// How far it goes in left halves, by their parents.
    halves: HashMap<(u64, u64), Vec<f32>>,
}

/// An interval of the tree.
#[derive(Clone, Copy)]
struct Part {
    start: f64,
    end: f64,
    /// Which it is of its depth, from the left, and its depth.
    place: (u64, u64),
}

/// A place in whole millionths, as Python rounds it.
fn rounded(place: f64) -> f64 {
    format!("{place:.DIGITS$}").parse().unwrap_or(place)
}

impl BrownianTree {
    /// A path of so many numbers at a time between two places, the smaller first.
    pub(super) fn new(kind: RngKind, seed: u64, count: usize, ends: (f64, f64)) -> Self {
        let [first, ..] = state::<POOL, 3>(seed, &[]);
        let mut whole = vec![0f32; count];
        Generator::new(kind, u64::from(first)).fill_normal(&mut whole);
        let scale = (ends.1 - ends.0).sqrt() as f32;
        for value in &mut whole {
            *value *= scale;
        }
        Self {
            kind,
            seed,
            ends: (rounded(ends.0), rounded(ends.1)),
            whole,
            halves: HashMap::new(),
        }
    }

    /// How far the path goes from one place to a larger one, both within its ends.
    pub(super) fn between(&mut self, from: f64, to: f64) -> Vec<f32> {
        let within = |place: f64| rounded(place).clamp(self.ends.0, self.ends.1);
        let span = (within(from), within(to));
        let mut sum = vec![0f32; self.whole.len()];
        if span.0 < span.1 {
            let all = Part {
                start: self.ends.0,
                end: self.ends.1,
                place: (0, 0),
            };
            let whole = self.whole.clone();
            self.add(all, whole, span, &mut sum);
        }
        sum
    }

    /// Adds how far the path goes within a span of a part, in which it goes by `way` in all.
    fn add(&mut self, part: Part, way: Vec<f32>, span: (f64, f64), sum: &mut [f32]) {
        let Part { start, end, place } = part;
        let middle = rounded(0.5 * (start + end));
        let is_whole = span == (start, end);
        // Places that are nearer than their digits, or than floats, have nothing between them.
        if is_whole || middle <= start || middle >= end {
            for (sum, way) in sum.iter_mut().zip(way) {
                *sum += way;
            }
            return;
        }
        let left = self.left(part, middle, &way);
        let (index, depth) = place;
        let half = |start, end, index| Part {
            start,
            end,
            place: (index, depth + 1),
        };
        if span.1 > middle {
            let right = way.iter().zip(&left).map(|(way, left)| way - left);
            let right = right.collect();
            if span.0 < middle {
                self.add(half(start, middle, 2 * index), left, (span.0, middle), sum);
            }
            let span = (span.0.max(middle), span.1);
            self.add(half(middle, end, 2 * index + 1), right, span, sum);
        } else {
            self.add(half(start, middle, 2 * index), left, span, sum);
        }
    }

    /// How far the path goes in a part's left half: a bridge's mean and spread.
    fn left(&mut self, part: Part, middle: f64, way: &[f32]) -> Vec<f32> {
        if let Some(known) = self.halves.get(&part.place) {
            return known.clone();
        }
        let (before, after) = (middle - part.start, part.end - middle);
        let share = 1.0 / (part.end - part.start);
        let [seed, ..] = state::<POOL, 4>(self.seed, &[part.place.0, part.place.1]);
        let mut noise = vec![0f32; way.len()];
        Generator::new(self.kind, u64::from(seed)).fill_normal(&mut noise);
        let spread = (before * after * share).sqrt() as f32;
        let (before, share) = (before as f32, share as f32);
        let noise = noise.iter().zip(way);
        let left: Vec<f32> = noise
            .map(|(noise, way)| before * way * share + spread * noise)
            .collect();
        if self.halves.len() >= REMEMBERED {
            self.halves.clear();
        }
        self.halves.insert(part.place, left.clone());
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(seed: u64) -> BrownianTree {
        BrownianTree::new(RngKind::Philox, seed, 4096, (0.03, 14.6))
    }

    #[test]
    fn a_path_is_the_same_however_it_is_walked() {
        let mut one = tree(7);
        let whole = one.between(0.03, 14.6);
        let mut other = tree(7);
        let parts = [(6.5, 14.6), (1.25, 6.5), (0.03, 1.25)];
        let parts = parts.map(|(from, to)| other.between(from, to));
        for (i, whole) in whole.iter().enumerate() {
            let sum: f32 = parts.iter().map(|part| part[i]).sum();
            assert!((sum - whole).abs() < 1e-4, "{sum} {whole}");
        }
        assert_eq!(one.between(1.25, 6.5), parts[1]);
        assert_ne!(tree(8).between(1.25, 6.5), parts[1]);
    }

    #[test]
    fn steps_have_the_variance_of_their_length() {
        let mut tree = tree(11);
        for (from, to) in [(0.03, 0.05), (0.05, 1.0), (1.0, 14.0)] {
            let part = tree.between(from, to);
            let mean = part.iter().map(|x| f64::from(x * x)).sum::<f64>() / part.len() as f64;
            let relative = mean / (to - from);
            assert!((0.9..1.1).contains(&relative), "{from} to {to}: {relative}");
        }
        // Places that cannot be told apart, and such outside.
        assert!(tree.between(1.0, 1.0 + 1e-8).iter().all(|x| *x == 0.0));
        assert!(tree.between(20.0, 30.0).iter().all(|x| *x == 0.0));
    }

    #[test]
    fn wild_ends_come_to_an_end() {
        for ends in [(0.0, 1e300), (1e-300, 1e-299), (0.0, f64::MAX)] {
            let mut tree = BrownianTree::new(RngKind::TorchCpu, 1, 4, ends);
            tree.between(ends.0 + ends.1 / 3.0, ends.1 / 2.0);
        }
    }
}
