//! The steps of a pass: from noise, or from a picture with noise over it, to latents without.

use super::denoiser::{Denoiser, Guided, Halves, Part, Run};
use super::generate::{tell, Prepared};
use super::given::Given;
use super::keep::Keep;
use super::loras::active;
use super::pace::Pace;
use super::phases::{Phase, Script};
use super::place::GuidancePlace;
use super::types::{Progress, Stage, Timings};
use super::Pipeline;
use crate::info::{Family, Purpose};
use crate::request::ImageRequest;
use crate::rng::BatchNoise;
use crate::sampling::{Prediction, SamplerOptions, SamplerRun, Seen};
use candle_core::{Result as CandleResult, Tensor};
use image::GrayImage;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Instant;
use worker::{Error, Result};

/// Whose turn it is, and which steps are its own.
struct Turn<'a> {
    script: &'a Script,
    /// Of one picture's latents.
    shape: &'a [usize],
    /// The shares of the run between which its steps begin.
    part: (f64, f64),
    /// What the turn before has left.
    from: Option<&'a Tensor>,
    /// What that one mixed with, where a mask mixes.
    filled: Option<&'a Tensor>,
}

/// What became of the steps.
pub(super) enum Sampled {
    /// What there is after the last step.
    Done {
        /// Latents without noise.
        latents: Tensor,
        /// Steps done.
        steps: usize,
        /// The latents of the picture to start from, with the filling of its mask, where there is one.
        filled: Option<Tensor>,
        /// Where the pictures lie over the old one, each its own, where that is not the request's mask.
        masks: Vec<GrayImage>,
    },
    /// The progress function asked to stop.
    Cancelled,
}

impl Pipeline {
    /// All steps: the model's, and the refiner's after them.
    pub(super) fn run(
        &mut self,
        other: Option<&mut Denoiser>,
        request: &ImageRequest,
        prepared: &Prepared,
        noise: &mut BatchNoise,
        timings: &mut Timings,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Sampled> {
        let shape = noise.shape().to_vec();
        let share = prepared.refiner.as_ref().map_or(1.0, |(_, share)| *share);
        let turn = Turn {
            script: &prepared.script,
            shape: &shape,
            part: (0.0, share),
            from: None,
            filled: None,
        };
        let sampled = self.sample(other, request, prepared, turn, noise, timings, progress)?;
        let (
            Some((script, _)),
            Sampled::Done {
                latents, filled, ..
            },
        ) = (&prepared.refiner, &sampled)
        else {
            return Ok(sampled);
        };
        self.denoiser.rest();
        let turn = Turn {
            script,
            shape: &shape,
            part: (share, 1.0),
            from: Some(latents),
            filled: filled.as_ref(),
        };
        self.swap_refiner();
        let refined = self.sample(None, request, prepared, turn, noise, timings, progress);
        self.denoiser.rest();
        self.swap_refiner();
        refined
    }

    /// How the sampler goes about a request that begins at this strength, for so many tokens of a picture.
    pub(super) fn sampler_options(
        &self,
        request: &ImageRequest,
        strength: f64,
        image_tokens: usize,
    ) -> SamplerOptions {
        SamplerOptions {
            sampler: request.sampler,
            schedule: request.schedule(),
            steps: request.steps,
            strength,
            eta: request.eta,
            churn: request.tuning.churn(),
            levels: request.tuning.levels(self.info.family == Family::Sdxl),
            image_tokens,
        }
    }

    /// The steps of one turn.
    #[allow(clippy::too_many_arguments)]
    fn sample(
        &mut self,
        other: Option<&mut Denoiser>,
        request: &ImageRequest,
        prepared: &Prepared,
        turn: Turn,
        noise: &mut BatchNoise,
        timings: &mut Timings,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Sampled> {
        let device = self.place.denoiser.clone();
        let tokens = self.denoiser.image_tokens(turn.shape);
        let options = self.sampler_options(request, prepared.strength, tokens);
        let mut steps = SamplerRun::new(&self.schedule, &options)?.part(&self.schedule, turn.part);
        // The second denoiser is the model's, not the refiner's.
        let is_own = turn.from.is_none();
        let mut other = other.filter(|_| is_own);
        let device_of = |other: &Denoiser| other.device().clone();
        let own = self.second.as_ref().filter(|_| is_own);
        let other_device = other.as_deref().or(own).map(device_of);
        let goes_along = request.tuning.goes_along(request.rng);
        if let Some(ends) = steps.span().filter(|_| goes_along) {
            noise.go_along(ends);
        }
        let mut given = Given::of(&turn.script.ends);
        let start = prepared.start.as_ref();
        let keep = Keep::new(request, start, self.info.inpainting, self.factor, &device);
        let keep = keep.map_err(Error::candle("preparing the mask"))?;

        let begun = Instant::now();
        let total = steps.steps();
        if progress(tell(Stage::Denoise, steps.index(), total)).is_break() {
            return Ok(Sampled::Cancelled);
        }
        let failed = || Error::candle("denoising");
        let mut pace = Pace::new(&device).map_err(failed())?;
        // A picture that is a condition is not where all steps begin.
        let begun_with =
            start.filter(|_| self.info.purpose != Purpose::Instructions || options.strength < 1.0);
        let latents = begun_with.map(|start| &start.latents);
        let mut filled = turn.filled.cloned();
        let mut first = || -> CandleResult<Tensor> {
            if let Some(latents) = turn.from {
                return Ok(latents.clone());
            }
            let mut noise = noise.draw()?;
            let latents = match latents {
                Some(latents) => Some(latents.broadcast_as(noise.shape())?.contiguous()?),
                None => None,
            };
            let latents = match (&keep, latents) {
                (Some(keep), Some(latents)) => {
                    filled = Some(keep.fill(&latents, &noise)?);
                    filled.clone()
                }
                (_, latents) => latents,
            };
            if let (Some(factor), Some(_)) = (request.noise.multiplier, &latents) {
                noise = (noise * factor)?;
            }
            steps.start(latents.as_ref(), &noise)
        };
        let mut x = first().map_err(failed())?;
        let keep = keep.map(|keep| keep.mixing_with(filled.as_ref()));
        let launches = || {
            let there = other_device.as_ref().map_or(0, worker::device::launches);
            worker::device::launches(&device) + there
        };
        let launched = launches();
        let recordings = self.denoiser.recordings().clone();
        let counted = recordings.counts();
        let prediction = self.schedule.prediction;
        let mut present: Option<(Phase, Run)> = None;
        let both = request.sampler.needs_negative();
        while !steps.is_done() {
            let timestep = steps.level().timestep;
            let enqueue = Instant::now();
            let part = Part {
                step: steps.index(),
                steps: total,
            };
            // LoRAs are the model's, not the refiner's.
            let changed =
                turn.from.is_none() && self.set_denoiser_loras(&active(&request.loras, part))?;
            let phase = turn.script.phase(part.step);
            let changed = changed || self.denoiser.is_past(timestep);
            let run = match present.take() {
                Some((before, run)) if before == phase && !changed => run,
                before => {
                    // Its memory is given back before the next one's is taken.
                    drop(before);
                    self.begin(other.as_deref_mut(), request, &turn, &phase, timestep)?
                }
            };
            let mut evaluations = 0;
            // Both the frames that are given and the sampler draw noise.
            let noise = RefCell::new(&mut *noise);
            let stepped = steps.step_along(
                &x,
                &mut |x, level| {
                    evaluations += 1;
                    let guided = match &mut given {
                        Some(given) => {
                            let seen = given.input(x, level, &mut noise.borrow_mut())?;
                            let guided = run.output(&seen, level, part)?;
                            Guided {
                                output: given.output(guided.output)?,
                                negative: guided.negative.map(|x| given.output(x)).transpose()?,
                            }
                        }
                        None => run.output(x, level, part)?,
                    };
                    let image = |output: &Tensor| {
                        let denoised = prediction.denoised(x, output, level)?;
                        match &keep {
                            None => Ok(denoised),
                            Some(keep) => {
                                let sigma = match prediction {
                                    Prediction::Flow => level.sigma,
                                    _ => level.ratio(),
                                };
                                keep.lead(&denoised, part, sigma)
                            }
                        }
                    };
                    let negative = guided.negative.filter(|_| both);
                    Ok(Seen {
                        image: image(&guided.output)?,
                        negative: negative.as_ref().map(image).transpose()?,
                    })
                },
                &mut |levels| match levels {
                    Some((from, to)) => noise.borrow_mut().between(from, to),
                    None => noise.borrow_mut().draw(),
                },
            );
            let stepped = stepped.map_err(failed())?;
            present = Some((phase, run));
            x = stepped.x;
            timings.enqueue += enqueue.elapsed();
            timings.evaluations += evaluations;
            pace.step().map_err(failed())?;
            let step = steps.index();
            let due = request.preview_every > 0
                && step.is_multiple_of(request.preview_every)
                && step < total;
            let preview = match due {
                true => Some(self.preview(&stepped.denoised)?),
                false => None,
            };
            let report = Progress {
                preview,
                ..tell(Stage::Denoise, step, total)
            };
            if progress(report).is_break() {
                return Ok(Sampled::Cancelled);
            }
        }
        drop(present);
        if let Some(given) = &given {
            x = given.end(x).map_err(failed())?;
        }
        let mut masks = Vec::new();
        // A refiner has the last word.
        if let Some(keep) = keep.as_ref().filter(|_| steps.index() == total) {
            x = keep.end(&x).map_err(failed())?;
            let size = (request.width as u32, request.height as u32);
            masks = keep.overlays(&x, size).map_err(failed())?;
        }
        timings.launches += launches() - launched;
        let counts = recordings.counts();
        timings.graphs += counts.replayed - counted.replayed;
        timings.recorded += counts.recorded - counted.recorded;
        device.synchronize().map_err(failed())?;
        timings.denoise += begun.elapsed();
        Ok(Sampled::Done {
            latents: x,
            steps: total,
            filled,
            masks,
        })
    }

    /// The denoiser, ready for the prompts of a phase from a timestep on; `other`, or the model's own second one, computes
    /// the negative prompt's half.
    fn begin(
        &mut self,
        other: Option<&mut Denoiser>,
        request: &ImageRequest,
        turn: &Turn,
        phase: &Phase,
        timestep: f64,
    ) -> Result<Run> {
        self.denoiser.turn_to(timestep);
        let guided = self.denoiser.guidance(request).is_some();
        let conditions = turn.script.conditions(phase, request, guided, turn.shape)?;
        // The second denoiser is the model's, not the refiner's.
        let own = self.second.as_mut().filter(|_| turn.from.is_none());
        let mut other = other.or(own);
        if let Some(other) = &mut other {
            other.turn_to(timestep);
        }
        let theirs = match &other {
            Some(other) => {
                let conditions = conditions.to_device(other.device());
                Some(conditions.map_err(Error::candle("bringing prompts to the second denoiser"))?)
            }
            None => None,
        };
        let theirs = theirs.as_ref().map(|theirs| theirs.setting(request));
        let halves = match (other, &theirs, &self.place.guidance) {
            (Some(other), Some(theirs), _) => Halves::With(other, theirs),
            (_, _, GuidancePlace::InTurn) => Halves::InTurn,
            _ => Halves::Together,
        };
        self.denoiser
            .run(&conditions.setting(request), halves, turn.shape)
    }
}
