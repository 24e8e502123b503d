//! Pseudo linear multistep: Liu et al. 2022 (PNDM), without its Runge-Kutta steps.

use super::solver::{ancestral, Blend};
use super::{NoiseLevel, Prediction};
use candle_core::{Result, Tensor};

/// Weights of the noise seen in this step and in those before, by how many there are (Adams and Bashforth).
const WEIGHTS: [&[f64]; 4] = [
    &[1.0],
    &[3.0 / 2.0, -1.0 / 2.0],
    &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
    &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
];

/// What the network predicted in earlier steps, the latest first.
pub(super) struct Plms {
    seen: Vec<Tensor>,
    /// Whether velocities are blended rather than noise, as diffusers does for networks that predict them.
    velocity: bool,
}

impl Plms {
    pub(super) fn new(prediction: Prediction) -> Self {
        Self {
            seen: Vec::new(),
            velocity: prediction == Prediction::Velocity,
        }
    }

    /// One step. The first of several is made twice, the second time with the prediction averaged over both ends.
    pub(super) fn step(
        &mut self,
        x: &Tensor,
        denoised: &Tensor,
        (from, to): (&NoiseLevel, &NoiseLevel),
        several: bool,
        denoise: &mut dyn FnMut(&Tensor, &NoiseLevel) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let first = self.seen.is_empty();
        self.seen.insert(0, self.predicted(x, denoised, from)?);
        self.seen.truncate(WEIGHTS.len());
        let mut seen = self.seen.iter().zip(WEIGHTS[self.seen.len() - 1]);
        let blend = seen.try_fold(Blend::none(), |sum, (one, weight)| sum.and(one, *weight));
        let blended = blend?.finish()?;
        let next = self.along(x, &blended, from, to)?;
        if !(first && several) {
            return Ok(next);
        }
        let second = self.predicted(&next, &denoise(&next, to)?, to)?;
        let averaged = Blend::of(&blended, 0.5)?.and(&second, 0.5)?.finish()?;
        self.along(x, &averaged, from, to)
    }

    /// The noise in `x = alpha · denoised + sigma · noise`, or the velocity `alpha · noise - sigma · denoised`.
    fn predicted(&self, x: &Tensor, denoised: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        let (of_x, of_image) = match self.velocity {
            true => (level.alpha, -1.0),
            false => (1.0, -level.alpha),
        };
        Blend::of(x, of_x / level.sigma)?
            .and(denoised, of_image / level.sigma)?
            .finish()
    }

    /// From one level to another along a prediction.
    fn along(
        &self,
        x: &Tensor,
        predicted: &Tensor,
        from: &NoiseLevel,
        to: &NoiseLevel,
    ) -> Result<Tensor> {
        let (of_x, of_prediction) = match self.velocity {
            true => (from.alpha, -from.sigma),
            false => (1.0 / from.alpha, -from.sigma / from.alpha),
        };
        let image = Blend::of(x, of_x)?
            .and(predicted, of_prediction)?
            .finish()?;
        ancestral(x, &image, from, to, 0.0, &mut || Ok(x.clone()))
    }
}
