//! One run of a sampler.

use super::plms::Plms;
use super::solver::{ancestral, Blend};
use super::unipc::UniPc;
use super::{NoiseLevel, NoiseSchedule, Sampler, Schedule};
use candle_core::Tensor;

/// What a run is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerOptions {
    /// The method.
    pub sampler: Sampler,
    /// The noise levels.
    pub schedule: Schedule,
    /// Number of steps.
    pub steps: usize,
    /// Share of the run that is done, from its end; 1 starts from noise.
    pub strength: f64,
    /// Fresh noise in each step: 0 none, 1 all. `None` is the method's own: 1 for Euler a and the SDE solvers, 0.3 for
    /// TCD, 0 for DDIM.
    pub eta: Option<f64>,
    /// Patches that a transformer sees; for models whose schedule depends on the image's size.
    pub image_tokens: usize,
}

/// The state after a step.
#[derive(Debug, Clone)]
pub struct Stepped {
    /// The latents at the next noise level.
    pub x: Tensor,
    /// The image as the network saw it in this step; good for previews.
    pub denoised: Tensor,
}

/// A sampler on its way from noise to an image.
///
/// The caller owns the loop, so it can stop, report and show previews between two steps:
///
/// ```ignore
/// let mut run = SamplerRun::new(&schedule, &options)?;
/// let mut x = run.start(None, &noise.draw()?)?;
/// while !run.is_done() {
///     x = run.step(&x, &mut |x, level| prediction.denoised(x, &unet(x, level.timestep)?, level), &mut || noise.draw())?.x;
/// }
/// ```
///
/// Latents should be f32 whatever the network computes in. Nothing here reads a tensor's values.
pub struct SamplerRun {
    sampler: Sampler,
    eta: f64,
    levels: Vec<NoiseLevel>,
    /// For each step the level between its ends that some methods visit.
    between: Vec<NoiseLevel>,
    index: usize,
    /// The image seen in the step before.
    previous: Option<Tensor>,
    unipc: UniPc,
    plms: Plms,
}

impl SamplerRun {
    /// Plans a run.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for a number of steps, strength or eta out of range.
    pub fn new(schedule: &NoiseSchedule, options: &SamplerOptions) -> worker::Result<Self> {
        let usage = |text: String| Err(worker::Error::Usage(text));
        if !(0.0..=1.0).contains(&options.strength) {
            return usage(format!(
                "strength {}; it goes from 0 to 1",
                options.strength
            ));
        }
        let eta = options.eta.unwrap_or(match options.sampler {
            Sampler::Tcd => 0.3,
            Sampler::Ddim => 0.0,
            _ => 1.0,
        });
        if !(0.0..=1.0).contains(&eta) {
            return usage(format!("eta {eta}; it goes from 0 to 1"));
        }
        let all = schedule.levels(
            options.sampler,
            options.schedule,
            options.steps,
            options.image_tokens,
        )?;
        let levels =
            super::schedule::from_strength(&all, options.strength, schedule.is_flow()).to_vec();
        let between = levels
            .windows(2)
            .map(|pair| match options.sampler {
                Sampler::DpmPlusPlusSde => {
                    schedule.level_of_ratio((pair[0].ratio() * pair[1].ratio()).sqrt())
                }
                // TCD's steps to a lower level than the next, which noise then leads back to.
                Sampler::Tcd => schedule.level_at(((1.0 - eta) * pair[1].timestep).floor()),
                _ => pair[1],
            })
            .collect();
        Ok(Self {
            sampler: options.sampler,
            eta,
            levels,
            between,
            index: 0,
            previous: None,
            unipc: UniPc::default(),
            plms: Plms::new(schedule.prediction),
        })
    }

    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.levels.len() - 1
    }

    /// Steps done.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether the image is there.
    pub fn is_done(&self) -> bool {
        self.index == self.steps()
    }

    /// All levels, one more than steps.
    pub fn levels(&self) -> &[NoiseLevel] {
        &self.levels
    }

    /// The level that the latents are at now.
    pub fn level(&self) -> NoiseLevel {
        self.levels[self.index]
    }

    /// The latents to start from: the noise itself, or an image's latents with noise on them.
    ///
    /// # Errors
    /// candle's.
    pub fn start(&self, image: Option<&Tensor>, noise: &Tensor) -> candle_core::Result<Tensor> {
        let level = self.levels[0];
        match image {
            Some(image) => Blend::of(image, level.alpha)?
                .and(noise, level.sigma)?
                .finish(),
            None => Ok(noise.clone()),
        }
    }

    /// One step. `denoise` gives the image behind latents at a noise level and is called once or twice; `noise` gives
    /// fresh standard normal numbers in the latents' shape, for methods that add noise.
    ///
    /// # Errors
    /// candle's, and those of the closures. After an error the run cannot go on.
    ///
    /// # Panics
    /// If the run [`is_done`](Self::is_done).
    pub fn step(
        &mut self,
        x: &Tensor,
        denoise: &mut dyn FnMut(&Tensor, &NoiseLevel) -> candle_core::Result<Tensor>,
        noise: &mut dyn FnMut() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Stepped> {
        assert!(!self.is_done(), "the run has no step left");
        let (from, to) = (self.levels[self.index], self.levels[self.index + 1]);
        let between = self.between[self.index];
        let denoised = denoise(x, &from)?;
        let next = match self.sampler {
            Sampler::Euler => ancestral(x, &denoised, &from, &to, 0.0, noise)?,
            Sampler::EulerAncestral | Sampler::Ddim => {
                ancestral(x, &denoised, &from, &to, self.eta, noise)?
            }
            Sampler::Heun => super::solver::heun(x, &denoised, &from, &to, denoise)?,
            Sampler::Plms => {
                let several = self.steps() > 1;
                self.plms
                    .step(x, &denoised, (&from, &to), several, denoise)?
            }
            Sampler::DpmPlusPlus2M => self.multistep(x, &denoised, 0.0, noise)?,
            Sampler::DpmPlusPlus2MSde => self.multistep(x, &denoised, self.eta, noise)?,
            Sampler::DpmPlusPlusSde => {
                let ends = (&from, &between, &to);
                super::solver::dpmpp_sde(x, &denoised, ends, self.eta, denoise, noise)?
            }
            Sampler::UniPc => self.unipc.step(x, &denoised, &self.levels, self.index)?,
            Sampler::Lcm => super::solver::lcm(x, &denoised, &from, &to, noise)?,
            Sampler::Tcd => {
                let last = self.index + 1 == self.steps();
                let eta = if last { 0.0 } else { self.eta };
                super::solver::tcd(x, &denoised, (&from, &between, &to), eta, noise)?
            }
        };
        self.previous = Some(denoised.clone());
        self.index += 1;
        Ok(Stepped { x: next, denoised })
    }

    fn multistep(
        &self,
        x: &Tensor,
        denoised: &Tensor,
        eta: f64,
        noise: &mut dyn FnMut() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Tensor> {
        let before = self.index.checked_sub(1).map(|i| self.levels[i]);
        let (from, to) = (self.levels[self.index], self.levels[self.index + 1]);
        super::solver::dpmpp_2m(
            x,
            denoised,
            self.previous.as_ref().zip(before),
            (&from, &to),
            eta,
            noise,
        )
    }
}
