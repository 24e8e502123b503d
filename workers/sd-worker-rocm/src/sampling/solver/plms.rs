//! Pseudo linear multistep: Liu et al. 2022 (PNDM), without its Runge-Kutta steps.

use super::{euler_step, Ask, At, Blend, Solver};
use crate::sampling::{NoiseLevel, Prediction, Stepped};
use candle_core::{Result, Tensor};

/// Weights of the noise seen in this step and in those before, by how many there are (Adams and Bashforth).
pub(super) const ADAMS_BASHFORTH: [&[f64]; 4] = [
    &[1.0],
    &[3.0 / 2.0, -1.0 / 2.0],
    &[23.0 / 12.0, -16.0 / 12.0, 5.0 / 12.0],
    &[55.0 / 24.0, -59.0 / 24.0, 37.0 / 24.0, -9.0 / 24.0],
];

/// What the network predicted in earlier steps, the latest first.
pub struct Plms {
    seen: Vec<Tensor>,
    /// Whether velocities are blended rather than noise, as diffusers does for networks that predict them.
    velocity: bool,
}

impl Plms {
    pub fn new(prediction: Prediction) -> Self {
        Self {
            seen: Vec::new(),
            velocity: prediction == Prediction::Velocity,
        }
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
        euler_step(x, &image, from, to)
    }
}

impl Solver for Plms {
    /// The first of several steps is made twice, the second time with the prediction averaged over both ends.
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let (from, to) = (at.from(), at.to());
        let denoised = ask.image(x, &from)?;
        let first = self.seen.is_empty();
        self.seen.insert(0, self.predicted(x, &denoised, &from)?);
        self.seen.truncate(ADAMS_BASHFORTH.len());
        let mut seen = self.seen.iter().zip(ADAMS_BASHFORTH[self.seen.len() - 1]);
        let blend = seen.try_fold(Blend::none(), |sum, (one, weight)| sum.and(one, *weight));
        let blended = blend?.finish()?;
        let next = self.along(x, &blended, &from, &to)?;
        if !first || at.steps() == 1 {
            return Ok(Stepped { x: next, denoised });
        }
        let second = self.predicted(&next, &ask.image(&next, &to)?, &to)?;
        let averaged = Blend::of(&blended, 0.5)?.and(&second, 0.5)?.finish()?;
        Ok(Stepped {
            x: self.along(x, &averaged, &from, &to)?,
            denoised,
        })
    }
}
