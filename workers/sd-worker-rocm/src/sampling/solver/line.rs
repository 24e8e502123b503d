//! The coordinates in which a family's paths from noise to image are straight.

use super::Blend;
use crate::sampling::{NoiseLevel, NoiseSchedule};
use candle_core::{Result, Tensor};

/// Coordinates `X = x / scale` over `s`. For variance preserving models `scale` is alpha and `s` the ratio of noise to
/// image, for flow models 1 and sigma; either way `dX/ds = (X - image) / s`, which k-diffusion calls `d`.
pub struct Line<'a> {
    pub schedule: &'a NoiseSchedule,
}

impl Line<'_> {
    pub fn scale(&self, level: &NoiseLevel) -> f64 {
        match self.schedule.is_flow() {
            true => 1.0,
            false => level.alpha,
        }
    }

    pub fn s(&self, level: &NoiseLevel) -> f64 {
        match self.schedule.is_flow() {
            true => level.sigma,
            false => level.ratio(),
        }
    }

    /// The level at a coordinate.
    pub fn level(&self, s: f64) -> NoiseLevel {
        match self.schedule.is_flow() {
            true => self
                .schedule
                .level_at(s * self.schedule.train_steps() as f64),
            false => self.schedule.level_of_ratio(s),
        }
    }

    /// The level in the middle of two, by logarithm.
    pub fn middle(&self, from: &NoiseLevel, to: &NoiseLevel) -> NoiseLevel {
        self.level((self.s(from) * self.s(to)).sqrt())
    }

    /// `d` at a level.
    pub fn direction(&self, x: &Tensor, image: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        let s = self.s(level);
        Blend::of(x, 1.0 / (self.scale(level) * s))?
            .and(image, -1.0 / s)?
            .finish()
    }

    /// The latents `x` of one level at another: moved by directions with weights, in coordinates.
    pub fn moved(
        &self,
        x: &Tensor,
        from: &NoiseLevel,
        to: &NoiseLevel,
        along: &[(&Tensor, f64)],
    ) -> Result<Tensor> {
        let scale = self.scale(to);
        let mut blend = Blend::of(x, scale / self.scale(from))?;
        for (direction, weight) in along {
            blend = blend.and(direction, scale * weight)?;
        }
        blend.finish()
    }
}
