//! How values are encoded in formats that leave a choice: alternating least squares.
//!
//! For a given scale each value (or group of them) takes its nearest level; for given levels the best scale is a
//! quotient of two sums. Starting from several scales, the pair is improved in turn. Errors are squared and weighted by
//! importance.

use half::f16;

/// Sums over pairs of value and level, weighted: all that the best common scale, and the error at any scale, depend on.
#[derive(Clone, Copy, Default)]
pub(super) struct Fit {
    value_level: f32,
    level_level: f32,
}

impl Fit {
    pub fn add(&mut self, weight: f32, value: f32, level: f32) {
        self.value_level += weight * value * level;
        self.level_level += weight * level * level;
    }

    /// The sums if every level were `factor` times as large.
    pub fn scaled(self, factor: f32) -> Self {
        Self {
            value_level: self.value_level * factor,
            level_level: self.level_level * factor * factor,
        }
    }

    /// Error at the given scale, less a constant.
    pub fn loss(self, scale: f32) -> f32 {
        scale * (scale * self.level_level - 2. * self.value_level)
    }

    /// The scale of least error; none if all levels are zero.
    pub fn best_scale(self) -> Option<f32> {
        (self.level_level > 0.).then(|| self.value_level / self.level_level)
    }
}

impl std::ops::Add for Fit {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            value_level: self.value_level + other.value_level,
            level_level: self.level_level + other.level_level,
        }
    }
}

/// The best scale that is found from `start`; `fit` chooses levels for a scale. The most promising start is improved.
pub(super) fn best_scale(start: impl Iterator<Item = f32>, mut fit: impl FnMut(f32) -> Fit) -> f32 {
    let mut best = (0f32, 0f32);
    let mut improve = |scale: f32| {
        let fit = fit(scale);
        if let Some(scale) = fit.best_scale() {
            let loss = fit.loss(scale);
            if loss < best.1 {
                best = (scale, loss);
            }
        }
        best.0
    };
    let mut scale = start.fold(0., |_, scale| improve(scale));
    for _ in 0..2 {
        scale = improve(scale);
    }
    scale
}

/// Sub-blocks whose scales are a multiple of the block's.
pub(super) trait SubBlocks {
    /// Number of them.
    fn count(&self) -> usize;

    /// A good scale for one of them alone.
    fn scale(&mut self, sub: usize) -> f32;

    /// Chooses levels for one of them at a scale.
    fn fit(&mut self, sub: usize, scale: f32) -> Fit;
}

/// Chooses the scale of a block and an index into `multipliers` (ascending) for each sub-block. In the end each
/// sub-block has its levels chosen for its final scale.
pub(super) fn choose_scales(subs: &mut impl SubBlocks, multipliers: &[f32]) -> (f16, Vec<usize>) {
    let own: Vec<f32> = (0..subs.count()).map(|sub| subs.scale(sub)).collect();
    let farthest = |values: &[f32]| {
        let larger = |a: f32, b: &f32| if b.abs() > a.abs() { *b } else { a };
        values.iter().fold(0f32, larger)
    };
    let mut scale = f16::from_f32(farthest(&own) / farthest(multipliers));
    let mut chosen = vec![0; own.len()];
    for round in 0..2 {
        let mut all = Fit::default();
        for (sub, chosen) in chosen.iter_mut().enumerate() {
            let wanted = own[sub] / scale.to_f32();
            let above = multipliers.partition_point(|&m| m < wanted);
            let near = above.saturating_sub(1)..(above + 1).min(multipliers.len());
            let mut best = (*chosen, f32::INFINITY);
            for index in near {
                let product = scale.to_f32() * multipliers[index];
                let loss = subs.fit(sub, product).loss(product);
                if loss < best.1 {
                    best = (index, loss);
                }
            }
            *chosen = best.0;
            let multiplier = multipliers[*chosen];
            let fit = subs.fit(sub, scale.to_f32() * multiplier);
            all = all + fit.scaled(multiplier);
        }
        if round == 1 {
            break;
        }
        match all.best_scale() {
            Some(better) => scale = f16::from_f32(better),
            None => break,
        }
    }
    (scale, chosen)
}

/// The importance of each element, 1 where none is given (or all of it is zero).
pub(super) fn weights(importance: Option<&[f32]>, count: usize) -> Vec<f32> {
    match importance {
        Some(given) if given.iter().any(|&w| w > 0.) => given.to_vec(),
        _ => vec![1.; count],
    }
}

/// The inverse, with that of zero, and of numbers whose inverse is infinite, zero.
pub(super) fn inverse(scale: f32) -> f32 {
    if scale.abs() < f32::MIN_POSITIVE {
        0.
    } else {
        1. / scale
    }
}

pub(super) fn largest_magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |max, v| max.max(v.abs()))
}
