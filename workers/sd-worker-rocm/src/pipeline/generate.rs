//! From a request to pictures.

use super::denoiser::run::Ends;
use super::denoiser::{Denoiser, Guided, Halves, Part, Run};
use super::given::Given;
use super::highres::Second;
use super::keep::Keep;
use super::loras::active;
use super::pace::Pace;
use super::phases::{Phase, Phases, Script};
use super::picture;
use super::place::GuidancePlace;
use super::start::Start;
use super::text::{Encoded, Prompt};
use super::types::{Generated, Progress, Stage, Timings};
use super::Pipeline;
use crate::editing::Edit;
use crate::faces::{Faces, RestoreFaces};
use crate::info::Family;
use crate::info::Purpose;
use crate::request::{ImageRequest, ValidRequest};
use crate::rng::{BatchNoise, Variation};
use crate::sampling::{SamplerOptions, SamplerRun, Seen};
use candle_core::{Result as CandleResult, Tensor};
use image::RgbImage;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use worker::{Error, Result};

/// What is ready before the first step.
struct Prepared {
    script: Script,
    start: Option<Start>,
    /// How much of the way from there is walked again.
    strength: f64,
    /// The prompts for the refiner, and the share of the steps at which it takes over.
    refiner: Option<(Script, f64)>,
    /// The seed of each picture.
    seeds: Vec<u64>,
}

/// Whose turn it is, and which steps are its own.
struct Turn<'a> {
    script: &'a Script,
    /// Of one picture's latents.
    shape: &'a [usize],
    /// The shares of the run between which its steps begin.
    part: (f64, f64),
    /// What the turn before has left.
    from: Option<&'a Tensor>,
}

/// What a pass gives.
pub(super) struct Drawn {
    /// Without noise.
    pub latents: Tensor,
    /// Steps done.
    pub steps: usize,
    /// The seed of each picture.
    pub seeds: Vec<u64>,
    /// The noise that comes next.
    pub noise: BatchNoise,
}

/// What became of the steps.
enum Sampled {
    /// Latents without noise, after so many steps.
    Latents(Tensor, usize),
    /// The progress function asked to stop.
    Cancelled,
}

impl Pipeline {
    /// Makes the pictures of a request that is valid for this model. `progress` is told before the first step and after
    /// each, and while prompts are encoded, and can stop there.
    ///
    /// # Errors
    /// Those of files that the request names, [`Error::Usage`] for prompts that are too long, and the device's.
    pub fn generate(
        &mut self,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        self.generate_with(None, request, progress)
    }

    /// As [`Self::generate`]; `other` computes the negative prompt's half of guidance, if it is given.
    pub(super) fn generate_with(
        &mut self,
        mut other: Option<&mut Denoiser>,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let groups = request.of_one_prompt();
        let mut all = Generated::default();
        for (i, group) in groups.iter().enumerate() {
            let mut whole = |told: Progress| {
                let done = match told.stage {
                    // A group's pictures are not all pictures.
                    Stage::Decode if i + 1 < groups.len() => return ControlFlow::Continue(()),
                    _ => i * told.total,
                };
                progress(Progress {
                    step: done + told.step,
                    total: groups.len() * told.total,
                    ..told
                })
            };
            let made = self.generate_group(other.as_deref_mut(), group, &mut whole)?;
            let timings = all.timings.after(made.timings);
            if made.cancelled {
                return Ok(cancelled(timings));
            }
            all.images.extend(made.images);
            all.videos.extend(made.videos);
            all.seeds.extend(made.seeds);
            all.timings = timings;
        }
        Ok(all)
    }

    /// Pictures of one prompt.
    fn generate_group(
        &mut self,
        other: Option<&mut Denoiser>,
        request: &ImageRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let edit = Edit::of(request);
        let request = edit.as_ref().map_or(request, |edit| &edit.request);
        if let Some(faces) = &request.restore_faces {
            faces.look()?;
        }
        let wrap = request.tuning.seamless.wrap();
        self.vae.set_wrap(wrap);
        if let Some(taesd) = &mut self.taesd {
            taesd.set_wrap(wrap);
        }
        let mut timings = Timings::default();
        let drawn = match &request.highres {
            None => self.pass(other, request, None, &mut timings, progress)?,
            Some(highres) => self.twice(other, request, highres, &mut timings, progress)?,
        };
        let Some(Drawn {
            latents,
            steps,
            seeds,
            mut noise,
        }) = drawn
        else {
            return Ok(cancelled(timings));
        };
        if progress(tell(Stage::Decode, steps, steps)).is_break() {
            return Ok(cancelled(timings));
        }
        let begun = Instant::now();
        let latents = latents.to_device(&self.place.vae);
        let latents = latents.map_err(Error::candle("bringing latents to the VAE"))?;
        if latents.rank() == 5 {
            let mut stop = || progress(tell(Stage::Decode, steps, steps));
            let made = self.videos(&latents, request, &mut noise, &mut stop)?;
            let Some(made) = made else {
                return Ok(cancelled(timings));
            };
            timings.decode = begun.elapsed();
            return Ok(Generated {
                images: made.images,
                videos: made.files,
                seeds,
                timings,
                cancelled: false,
            });
        }
        let pictures = self.vae.decode(&latents)?;
        let mut images =
            picture::from_tensor(&pictures).map_err(Error::candle("reading the picture"))?;
        if let Some(wish) = &request.restore_faces {
            let mut stop = || progress(tell(Stage::Decode, steps, steps));
            if !self.restore_faces(wish, &mut images, &mut stop)? {
                return Ok(cancelled(timings));
            }
        }
        if let Some(edit) = &edit {
            edit.finish(&mut images);
        }
        timings.decode = begun.elapsed();
        Ok(Generated {
            images,
            videos: Vec::new(),
            seeds,
            timings,
            cancelled: false,
        })
    }

    /// Restores the faces of pictures; whether it was not broken off.
    fn restore_faces(
        &mut self,
        wish: &RestoreFaces,
        pictures: &mut [RgbImage],
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<bool> {
        let mut faces = match self.faces.take() {
            Some(faces) if faces.wish().same_networks(wish) => faces.with(wish),
            // The old ones have given their memory back.
            _ => Faces::open(wish.clone(), &self.place.vae)?,
        };
        for picture in pictures {
            match faces.restore(picture, &mut |_, _| stop())? {
                Some((restored, _)) => *picture = restored,
                None => return Ok(false),
            }
        }
        self.faces = Some(faces);
        Ok(true)
    }

    /// One pass, from noise or a picture to latents; `None` if it was broken off.
    pub(super) fn pass(
        &mut self,
        other: Option<&mut Denoiser>,
        request: &ImageRequest,
        second: Option<Second>,
        timings: &mut Timings,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Drawn>> {
        let begun = Instant::now();
        self.set_loras(request)?;
        timings.lora += begun.elapsed();

        if progress(tell(Stage::Encode, 0, request.steps)).is_break() {
            return Ok(None);
        }
        let begun = Instant::now();
        let mut stop = || progress(tell(Stage::Encode, 0, request.steps));
        let Some(prepared) = self.prepare(request, second, &mut stop)? else {
            return Ok(None);
        };
        timings.encode += begun.elapsed();

        let mut noise = self.noise(request, &prepared.seeds);
        let sampled = self.run(other, request, &prepared, &mut noise, timings, progress);
        // However it ended: an offloaded denoiser leaves the device before anything else comes onto it.
        self.denoiser.rest();
        if let Some(second) = &mut self.second {
            second.rest();
        }
        Ok(match sampled? {
            Sampled::Latents(latents, steps) => Some(Drawn {
                latents,
                steps,
                seeds: prepared.seeds,
                noise,
            }),
            Sampled::Cancelled => None,
        })
    }

    /// Encodes prompts and pictures; `None` if `stop` said so on the way.
    fn prepare(
        &mut self,
        request: &ImageRequest,
        second: Option<Second>,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Prepared>> {
        let Some(script) = self.prompts(request, stop)? else {
            return Ok(None);
        };
        let refiner = match self.refiner_start(request) {
            None => None,
            Some(share) => {
                self.swap_refiner();
                let script = self.prompts(request, stop);
                self.swap_refiner();
                match script? {
                    Some(script) => Some((script, share)),
                    None => return Ok(None),
                }
            }
        };
        let (start, strength) = match second {
            Some(second) => (Some(Start::of_latents(second.latents)), second.strength),
            None => {
                let strength = request.init.as_ref().map_or(1.0, |init| init.strength);
                (self.start(request)?, strength)
            }
        };
        let channels = self.channels(request, start.as_ref())?;
        let references = self.references(request)?;
        let script = Script {
            channels,
            references,
            ends: self.ends(request)?,
            hints: self.hints(request)?,
            ..script
        };
        let script = script.moved_to(&self.place.denoiser);
        Ok(Some(Prepared {
            refiner,
            script: script.map_err(Error::candle("bringing pictures to the denoiser"))?,
            start,
            strength,
            seeds: (0..request.batch).map(|i| request.seeds_of(i).0).collect(),
        }))
    }

    /// All prompts, encoded, on the denoiser's device; `None` if `stop` said so on the way.
    fn prompts(
        &mut self,
        request: &ImageRequest,
        stop: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Script>> {
        let phases = Phases::new(request)?;
        let prompts = phases.texts();
        let prompts = prompts.map(|(text, negative)| Prompt {
            text,
            weighted: request.prompt_weights.unwrap_or(self.info.prompt_weights),
            negative,
            pictures: &request.references,
            keep_size: request.keep_reference_size,
        });
        let prompts: Vec<Prompt> = prompts.collect();
        let skip = request.clip_skip;
        let encoded = (self.text).encode(&prompts, skip, &self.place.text, stop)?;
        let Some(mut encoded) = encoded else {
            return Ok(None);
        };
        let negatives = prompts.iter().map(|prompt| prompt.negative);
        let mut wanted: Vec<&mut Encoded> = (encoded.iter_mut().zip(negatives))
            .filter_map(|(encoded, negative)| (!negative).then_some(encoded))
            .collect();
        self.with_redux(request, &mut wanted)?;
        let script = Script {
            phases,
            encoded,
            zero_negative: self.zeros_for_empty && request.negative_prompt.trim().is_empty(),
            channels: None,
            references: Vec::new(),
            ends: Ends::default(),
            hints: Vec::new(),
        };
        let script = script.moved_to(&self.place.denoiser);
        let script = script.map_err(Error::candle("bringing prompts to the denoiser"));
        script.map(Some)
    }

    /// The noise of all steps, of the shape of the latents.
    fn noise(&self, request: &ImageRequest, seeds: &[u64]) -> BatchNoise {
        let mut shape = self
            .denoiser
            .latents(request, self.latent_channels, self.factor);
        if self.denoiser.video().is_some() {
            shape.insert(1, (request.frames() - 1) / self.time_factor + 1);
        }
        let change = &request.noise;
        let others: Option<Vec<u64>> = (0..request.batch).map(|i| request.seeds_of(i).1).collect();
        let variation = Variation {
            to: others.as_deref().map(|others| (others, change.variation)),
            from_size: change
                .from_size
                .map(|(width, height)| (height / self.factor, width / self.factor)),
            delta: change.step_seed_delta,
        };
        let noise = BatchNoise::new(request.rng, seeds, &shape, &self.place.denoiser);
        noise.varied(seeds, &variation)
    }

    /// All steps: the model's, and the refiner's after them.
    fn run(
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
        };
        let sampled = self.sample(other, request, prepared, turn, noise, timings, progress)?;
        let (Some((script, _)), Sampled::Latents(latents, _)) = (&prepared.refiner, &sampled)
        else {
            return Ok(sampled);
        };
        self.denoiser.rest();
        let turn = Turn {
            script,
            shape: &shape,
            part: (share, 1.0),
            from: Some(latents),
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
                (Some(keep), Some(latents)) => Some(keep.fill(&latents, &noise)?),
                (_, latents) => latents,
            };
            if let (Some(factor), Some(_)) = (request.noise.multiplier, &latents) {
                noise = (noise * factor)?;
            }
            steps.start(latents.as_ref(), &noise)
        };
        let mut x = first().map_err(failed())?;
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
            let stepped = steps.step(
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
                            Some(keep) => keep.lead(&denoised, part),
                        }
                    };
                    let negative = guided.negative.filter(|_| both);
                    Ok(Seen {
                        image: image(&guided.output)?,
                        negative: negative.as_ref().map(image).transpose()?,
                    })
                },
                &mut || noise.borrow_mut().draw(),
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
        // A refiner has the last word.
        if let Some(keep) = keep.as_ref().filter(|_| steps.index() == total) {
            x = keep.end(&x).map_err(failed())?;
        }
        timings.launches += launches() - launched;
        let counts = recordings.counts();
        timings.graphs += counts.replayed - counted.replayed;
        timings.recorded += counts.recorded - counted.recorded;
        device.synchronize().map_err(failed())?;
        timings.denoise += begun.elapsed();
        Ok(Sampled::Latents(x, total))
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

/// Progress without a preview.
pub(super) fn tell(stage: Stage, step: usize, total: usize) -> Progress {
    Progress {
        stage,
        step,
        total,
        preview: None,
    }
}

fn cancelled(timings: Timings) -> Generated {
    Generated {
        timings: Timings {
            decode: Duration::ZERO,
            ..timings
        },
        cancelled: true,
        ..Generated::default()
    }
}
