//! One run of a sampler.

use super::solver::restrain::Restrain;
use super::solver::whole::{self, fast_orders};
use super::solver::{stages, Ask, At, Blend, Churn, Line, Seen, Solver};
use super::{LevelOptions, NoiseLevel, NoiseSchedule, Sampler, Schedule};
use candle_core::Tensor;

/// What a run is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerOptions {
    /// The method.
    pub sampler: Sampler,
    /// The noise levels.
    pub schedule: Schedule,
    /// Number of steps.
    pub steps: usize,
    /// Settings of the schedule, or levels instead of it.
    pub levels: LevelOptions,
    /// Share of the run that is done, from its end; 1 starts from noise.
    pub strength: f64,
    /// Fresh noise in each step: 0 none, 1 all. `None` is the method's own: 1 for ancestral and SDE samplers, 0.3 for
    /// TCD, 0 for DDIM, DPM fast and DPM adaptive.
    pub eta: Option<f64>,
    /// Noise before steps, and the strength of all fresh noise.
    pub churn: Churn,
    /// Patches that a transformer sees; for models whose schedule depends on the image's size.
    pub image_tokens: usize,
}

impl SamplerOptions {
    /// A whole run with nothing unusual.
    pub fn new(sampler: Sampler, schedule: Schedule, steps: usize) -> Self {
        Self {
            sampler,
            schedule,
            steps,
            levels: LevelOptions::default(),
            strength: 1.0,
            eta: None,
            churn: Churn::NONE,
            image_tokens: 0,
        }
    }
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
///     x = run.step(&x, &mut |x, level| Ok(prediction.denoised(x, &unet(x, level.timestep)?, level)?.into()), &mut || noise.draw())?.x;
/// }
/// ```
///
/// Latents should be f32 whatever the network computes in. Only DPM adaptive reads a tensor's values.
pub struct SamplerRun {
    schedule: NoiseSchedule,
    levels: Vec<NoiseLevel>,
    index: usize,
    /// The level where this part of the run ends.
    end: usize,
    planned: usize,
    eta: f64,
    churn: Churn,
    restrain: Option<Restrain>,
    solver: Box<dyn Solver>,
}

impl SamplerRun {
    /// Plans a run.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for a number of steps, strength, eta or churn out of range.
    pub fn new(schedule: &NoiseSchedule, options: &SamplerOptions) -> worker::Result<Self> {
        let usage = |text: String| Err(worker::Error::Usage(text));
        if !(0.0..=1.0).contains(&options.strength) {
            return usage(format!(
                "strength {}; it goes from 0 to 1",
                options.strength
            ));
        }
        let own = schedule.own_of(options.sampler);
        let eta = options
            .eta
            .or(own.and_then(|own| own.eta))
            .unwrap_or_else(|| options.sampler.default_eta());
        if !(0.0..=1.0).contains(&eta) {
            return usage(format!("eta {eta}; it goes from 0 to 1"));
        }
        let churn = options.churn;
        if !(churn.amount >= 0.0 && churn.strength >= 0.0)
            || churn.from.is_nan()
            || churn.to.is_nan()
        {
            return usage("noise before steps is not negative".to_string());
        }
        let all = schedule.levels(
            options.sampler,
            options.schedule,
            options.steps,
            options.image_tokens,
            &options.levels,
        )?;
        let plain = super::schedule::from_strength(&all, options.strength, schedule.is_flow());
        let line = Line { schedule };
        let least = schedule.least_noise();
        let levels = match options.sampler {
            Sampler::DpmFast => {
                let stages = fast_orders(plain.len() - 1).len();
                whole::plan(&line, plain, stages, least)
            }
            Sampler::DpmAdaptive => whole::plan(&line, plain, plain.len() - 1, least),
            Sampler::Restart => stages::Restart::plan(plain, |from, to, count| {
                schedule.karras_levels(from, to, count)
            }),
            _ => plain.to_vec(),
        };
        let (planned, steps) = (all.len() - 1, plain.len() - 1);
        let solver = own.and_then(|own| own.solver(planned, planned - steps));
        Ok(Self {
            end: levels.len() - 1,
            solver: solver.unwrap_or_else(|| options.sampler.solver(schedule, planned, steps)),
            restrain: own.and_then(|own| own.restrain),
            planned,
            schedule: schedule.clone(),
            levels,
            index: 0,
            eta,
            churn,
        })
    }

    /// The steps of the run that begin between two shares of the model's training steps, 0 to 1, counted from noise:
    /// the part of one of two models that hand over to each other. As diffusers has it (`denoising_start`,
    /// `denoising_end`), a share is rounded to whole time steps, and a step belongs to the side where it begins.
    #[must_use]
    pub fn part(mut self, schedule: &NoiseSchedule, (start, end): (f64, f64)) -> Self {
        let train = schedule.train_steps() as f64;
        let before = |share: f64| match share {
            share if share <= 0.0 => 0,
            share if share >= 1.0 => self.levels.len() - 1,
            share => {
                let cut = (train - share * train).round();
                let begins = self.levels[..self.levels.len() - 1].iter();
                begins.take_while(|level| level.timestep >= cut).count()
            }
        };
        (self.index, self.end) = (before(start), before(end).max(before(start)));
        self
    }

    /// Number of steps, those before and after a part included.
    pub fn steps(&self) -> usize {
        self.levels.len() - 1
    }

    /// Steps done, those before a part included.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Whether the image is there, or the end of a part is reached.
    pub fn is_done(&self) -> bool {
        self.index >= self.end
    }

    /// All levels, one more than steps.
    pub fn levels(&self) -> &[NoiseLevel] {
        &self.levels
    }

    /// The level that the latents are at now.
    pub fn level(&self) -> NoiseLevel {
        self.levels[self.index]
    }

    /// The least and the most noise of the run that is any: over image, of flow models itself; nothing where there is no
    /// image left at the beginning, or less than two levels.
    pub fn span(&self) -> Option<(f64, f64)> {
        let is_flow = self.schedule.is_flow();
        let places = self.levels.iter().map(|level| match is_flow {
            true => level.sigma,
            false => level.ratio(),
        });
        // As k-diffusion has them.
        let places = places
            .map(|place| f64::from(place as f32))
            .filter(|place| *place > 0.0);
        let ends = places.fold((f64::INFINITY, 0.0f64), |(least, most), place| {
            (least.min(place), most.max(place))
        });
        (ends.0 < ends.1 && ends.1.is_finite()).then_some(ends)
    }

    /// The latents to start from: the noise itself, or an image's latents with noise on them.
    ///
    /// # Errors
    /// candle's.
    pub fn start(&self, image: Option<&Tensor>, noise: &Tensor) -> candle_core::Result<Tensor> {
        let level = self.level();
        match image {
            Some(image) => Blend::of(image, level.alpha)?
                .and(noise, level.sigma)?
                .finish(),
            None => Blend::of(noise, self.schedule.start_scale(&level))?.finish(),
        }
    }

    /// One step. `denoise` gives the image behind latents at a noise level and is called once or more; `noise` gives
    /// fresh standard normal numbers in the latents' shape, for methods that add noise. DPM adaptive makes steps that
    /// leave the latents where they were, and reads how far apart its two orders are.
    ///
    /// # Errors
    /// candle's, and those of the closures. After an error the run cannot go on.
    ///
    /// # Panics
    /// If the run [`is_done`](Self::is_done).
    pub fn step(
        &mut self,
        x: &Tensor,
        denoise: &mut dyn FnMut(&Tensor, &NoiseLevel) -> candle_core::Result<Seen>,
        noise: &mut dyn FnMut() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Stepped> {
        self.step_along(x, denoise, &mut |_| noise())
    }

    /// As [`Self::step`]. `noise` is told between which noise levels of [`Self::span`] the numbers lead, by methods whose
    /// noise may come of a Brownian motion; else `None`.
    ///
    /// # Errors
    /// As [`Self::step`]'s.
    ///
    /// # Panics
    /// As [`Self::step`] does.
    pub fn step_along(
        &mut self,
        x: &Tensor,
        denoise: &mut dyn FnMut(&Tensor, &NoiseLevel) -> candle_core::Result<Seen>,
        noise: &mut dyn FnMut(Option<(f64, f64)>) -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Stepped> {
        assert!(!self.is_done(), "the run has no step left");
        let at = At {
            schedule: &self.schedule,
            levels: &self.levels,
            index: self.index,
            planned: self.planned,
            eta: self.eta,
            churn: self.churn,
        };
        let mut ask = Ask {
            denoise,
            noise,
            restrain: self.restrain,
        };
        let stepped = self.solver.step(&at, x, &mut ask)?;
        self.index = self.solver.reached().unwrap_or(self.index + 1);
        Ok(stepped)
    }
}
