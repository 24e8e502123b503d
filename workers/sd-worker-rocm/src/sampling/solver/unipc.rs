//! UniPC (Zhao et al. 2023): second order, predicting the image, with `B(h) = e^h - 1`.

use super::{Ask, At, Blend, Solver};
use crate::sampling::{NoiseLevel, Stepped};
use candle_core::{Result, Tensor};

/// What the method remembers between steps.
#[derive(Default)]
pub struct UniPc {
    /// The latents at the start of the step before, after correction.
    start: Option<Tensor>,
    /// Images seen: in the step before, and in the one before that.
    images: Vec<Tensor>,
    /// Order of the step before.
    order: usize,
}

/// A step between two levels: `h` in log ratio, and the weights of the method.
struct Interval {
    h: f64,
    /// `-(e^-h - 1)`.
    gain: f64,
    x_weight: f64,
    alpha: f64,
}

impl Interval {
    fn new(from: &NoiseLevel, to: &NoiseLevel) -> Self {
        let h = log_step(from, to);
        Self {
            h,
            gain: -(-h).exp_m1(),
            x_weight: to.sigma / from.sigma,
            alpha: to.alpha,
        }
    }

    /// Right sides of the order conditions, `b_1` and `b_2`.
    fn conditions(&self) -> (f64, f64) {
        let hh = -self.h;
        let first = hh.exp_m1() / hh - 1.0;
        let second = first / hh - 0.5;
        let scale = hh.exp_m1();
        (first / scale, 2.0 * second / scale)
    }
}

fn log_step(from: &NoiseLevel, to: &NoiseLevel) -> f64 {
    (from.ratio() / to.ratio()).ln()
}

impl Solver for UniPc {
    fn step(&mut self, at: &At, x: &Tensor, ask: &mut Ask) -> Result<Stepped> {
        let image = ask.image(x, &at.from())?;
        let x = match self.start.take() {
            Some(start) => self.correct(&start, &image, at.levels, at.index)?,
            None => x.clone(),
        };
        self.order = (at.index + 1).min(2).min(at.steps() - at.index);
        self.images.insert(0, image.clone());
        self.images.truncate(2);
        let next = self.predict(&x, at.levels, at.index)?;
        self.start = Some(x);
        Ok(Stepped {
            x: next,
            denoised: image,
        })
    }
}

impl UniPc {
    fn predict(&self, x: &Tensor, levels: &[NoiseLevel], index: usize) -> Result<Tensor> {
        let (from, to) = (&levels[index], &levels[index + 1]);
        let image = &self.images[0];
        if to.sigma == 0.0 {
            return Ok(image.clone());
        }
        let step = Interval::new(from, to);
        let gain = step.alpha * step.gain;
        if self.order == 1 {
            return Blend::of(x, step.x_weight)?.and(image, gain)?.finish();
        }
        // The image's slope between the last two levels, with the published weight 1/2.
        let r = -log_step(&levels[index - 1], from) / step.h;
        let slope = 0.5 / r;
        Blend::of(x, step.x_weight)?
            .and(image, gain * (1.0 - slope))?
            .and(&self.images[1], gain * slope)?
            .finish()
    }

    /// Redoes the step before, now that the image at its end is known.
    fn correct(
        &self,
        start: &Tensor,
        image: &Tensor,
        levels: &[NoiseLevel],
        index: usize,
    ) -> Result<Tensor> {
        let (from, to) = (&levels[index - 1], &levels[index]);
        let step = Interval::new(from, to);
        let gain = step.alpha * step.gain;
        let before = &self.images[0];
        if self.order == 1 {
            return Blend::of(start, step.x_weight)?
                .and(before, gain * 0.5)?
                .and(image, gain * 0.5)?
                .finish();
        }
        // Solves [1 1; r 1] rho = b.
        let r = -log_step(&levels[index - 2], from) / step.h;
        let (b1, b2) = step.conditions();
        let old = (b1 - b2) / (1.0 - r);
        let new = b1 - old;
        Blend::of(start, step.x_weight)?
            .and(before, gain * (1.0 - old / r - new))?
            .and(&self.images[1], gain * old / r)?
            .and(image, gain * new)?
            .finish()
    }
}
