//! From a request to pictures.

use super::denoiser::run::Ends;
use super::denoiser::Denoiser;
use super::highres::Second;
use super::phases::{Phases, Script};
use super::picture;
use super::start::Start;
use super::steps::Sampled;
use super::text::{Encoded, Prompt};
use super::types::{Generated, Progress, Stage, Timings};
use super::Pipeline;
use crate::editing::Edit;
use crate::faces::{Faces, RestoreFaces};
use crate::request::{ImageRequest, ValidRequest};
use crate::rng::{BatchNoise, Variation};
use candle_core::Tensor;
use image::{GrayImage, RgbImage};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use worker::{Error, Result};

/// What is ready before the first step.
pub(super) struct Prepared {
    /// The prompts.
    pub script: Script,
    /// The picture to start from.
    pub start: Option<Start>,
    /// How much of the way from there is walked again.
    pub strength: f64,
    /// The prompts for the refiner, and the share of the steps at which it takes over.
    pub refiner: Option<(Script, f64)>,
    /// The seed of each picture.
    pub seeds: Vec<u64>,
}

/// What a pass gives.
pub(super) struct Drawn {
    /// Without noise.
    pub latents: Tensor,
    /// Steps done.
    pub steps: usize,
    /// Where the pictures lie over the one to start from, where that is not the request's mask.
    pub masks: Vec<GrayImage>,
    /// The seed of each picture.
    pub seeds: Vec<u64>,
    /// The noise that comes next.
    pub noise: BatchNoise,
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
            masks,
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
            edit.finish(&mut images, &masks);
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
            Sampled::Done {
                latents,
                steps,
                masks,
                ..
            } => Some(Drawn {
                latents,
                steps,
                masks,
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
