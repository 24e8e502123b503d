//! From a request to pictures.

use super::denoiser::Setting;
use super::pace::Pace;
use super::picture::{self, Mask};
use super::types::{Generated, ImageRequest, Lora, Progress, Stage, Timings};
use super::Pipeline;
use crate::lora::{LoraFile, Network};
use crate::rng::BatchNoise;
use crate::sampling::{Sampler, SamplerOptions, SamplerRun, Schedule};
use candle_core::{DType, Result as CandleResult, Tensor};
use image::RgbImage;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use worker::{Error, Result};

/// Latents, height times width, of a preview decoded by the VAE itself.
const PREVIEW: usize = 32 * 32;

/// What is known of the picture to start from.
struct Start {
    /// Of the request's size.
    picture: RgbImage,
    /// `(1, channels, height, width)`, f32.
    latents: Tensor,
    mask: Option<Mask>,
}

impl Pipeline {
    /// Makes the pictures of a request. `progress` is told before the first step and after each, and can stop there.
    ///
    /// # Errors
    /// [`Error::Usage`] for a request that cannot be met, errors of files that it names, and the device's.
    pub fn generate(
        &mut self,
        request: &ImageRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        let (sampler, schedule) = self.check(request)?;
        let mut timings = Timings::default();
        let begun = Instant::now();
        self.set_loras(&request.loras)?;
        timings.lora = begun.elapsed();

        let tell = |stage, step, total| Progress {
            stage,
            step,
            total,
            preview: None,
        };
        if progress(tell(Stage::Encode, 0, request.steps)).is_break() {
            return Ok(cancelled(timings));
        }
        let begun = Instant::now();
        let prompts = [request.negative_prompt.as_str(), request.prompt.as_str()];
        let encoded = self
            .text
            .encode(&prompts, request.clip_skip, &self.device)?;
        let [negative, positive] = encoded.as_slice() else {
            return Err(Error::Runtime("a prompt is lost".to_string()));
        };
        let nothing = match self.zeros_for_empty && request.negative_prompt.trim().is_empty() {
            true => Some(negative.zeros_like()?),
            false => None,
        };
        let negative = nothing.as_ref().unwrap_or(negative);
        let start = self.start(request)?;
        let inpainting = self.inpainting(request, start.as_ref())?;
        timings.encode = begun.elapsed();

        let seeds: Vec<u64> = (0..request.batch as u64)
            .map(|i| request.seed.wrapping_add(i))
            .collect();
        let (height, width) = (
            request.height / self.factor(),
            request.width / self.factor(),
        );
        let shape = [self.latent_channels, height, width];
        let mut noise = BatchNoise::new(request.rng, &seeds, &shape, &self.device);
        let options = SamplerOptions {
            sampler,
            schedule,
            steps: request.steps,
            strength: request
                .init
                .as_ref()
                .map_or(1.0, |init| f64::from(init.strength)),
            eta: request.eta.map(f64::from),
            image_tokens: height * width / 4,
        };
        let mut steps = SamplerRun::new(&self.schedule, &options)?;
        let setting = Setting {
            request,
            positive,
            negative,
            inpainting,
        };
        let mut run = self.denoiser.run(&setting, height, width)?;
        let keep = match start.as_ref().and_then(|s| Some((s, s.mask.as_ref()?))) {
            Some((start, mask)) => Some((
                start.latents.clone(),
                mask.latents(self.factor(), &self.device)
                    .map_err(Error::candle("preparing the mask"))?,
            )),
            None => None,
        };

        let begun = Instant::now();
        let total = steps.steps();
        if progress(tell(Stage::Denoise, 0, total)).is_break() {
            return Ok(cancelled(timings));
        }
        let failed = || Error::candle("denoising");
        let mut pace = Pace::new(&self.device).map_err(failed())?;
        let latents = start.as_ref().map(|start| &start.latents);
        let mut first = || -> CandleResult<Tensor> {
            let noise = noise.draw()?;
            let latents = match latents {
                Some(latents) => Some(latents.broadcast_as(noise.shape())?.contiguous()?),
                None => None,
            };
            steps.start(latents.as_ref(), &noise)
        };
        let mut x = first().map_err(failed())?;
        let launches = self.launches();
        let prediction = self.schedule.prediction;
        while !steps.is_done() {
            let enqueue = Instant::now();
            let done = steps.index() as f64 / total as f64;
            let mut evaluations = 0;
            let stepped = steps.step(
                &x,
                &mut |x, level| {
                    evaluations += 1;
                    let output = run.output(x, level, done)?;
                    let denoised = prediction.denoised(x, &output, level)?;
                    match &keep {
                        None => Ok(denoised),
                        // What is kept is known: the sampler is led to it.
                        Some((latents, mask)) => {
                            let kept = latents.broadcast_mul(&mask.affine(-1.0, 1.0)?)?;
                            denoised.broadcast_mul(mask)?.broadcast_add(&kept)
                        }
                    }
                },
                &mut || noise.draw(),
            );
            let stepped = stepped.map_err(failed())?;
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
                return Ok(cancelled(timings));
            }
        }
        drop(run);
        timings.launches = self.launches() - launches;
        self.device.synchronize().map_err(failed())?;
        timings.denoise = begun.elapsed();
        self.denoiser.rest();

        if progress(tell(Stage::Decode, total, total)).is_break() {
            return Ok(cancelled(timings));
        }
        let begun = Instant::now();
        let pictures = self.vae.decode(&x)?;
        let mut images =
            picture::from_tensor(&pictures).map_err(Error::candle("reading the picture"))?;
        if let Some(Start {
            picture,
            mask: Some(mask),
            ..
        }) = &start
        {
            images
                .iter_mut()
                .for_each(|image| mask.composite(picture, image));
        }
        timings.decode = begun.elapsed();
        Ok(Generated {
            images,
            seeds,
            timings,
            cancelled: false,
        })
    }

    /// What the device was given to do so far; 0 on the CPU.
    fn launches(&self) -> u64 {
        #[cfg(feature = "rocm")]
        if let Ok(rocm) = self.device.as_rocm_device() {
            return rocm.device().launches();
        }
        0
    }

    /// Pixels a latent, each way.
    fn factor(&self) -> usize {
        self.factor
    }

    fn check(&self, request: &ImageRequest) -> Result<(Sampler, Schedule)> {
        let usage = |text: String| Err(Error::Usage(text));
        let multiple = self.info.size_multiple;
        for (side, pixels) in [("width", request.width), ("height", request.height)] {
            if pixels == 0 || !pixels.is_multiple_of(multiple) || pixels > 1 << 14 {
                return usage(format!(
                    "{side} {pixels}: it must be a multiple of {multiple} up to {}",
                    1 << 14
                ));
            }
        }
        if request.batch == 0 || request.batch > 64 {
            return usage(format!("a batch of {}; 1 to 64 is possible", request.batch));
        }
        if !request.guidance.is_finite() || request.guidance < 0.0 {
            return usage(format!(
                "guidance {}; it is a number from 0",
                request.guidance
            ));
        }
        if !(0.0..=1.0).contains(&request.guidance_rescale) {
            return usage(format!(
                "guidance rescale {}; it goes from 0 to 1",
                request.guidance_rescale
            ));
        }
        if let Some(init) = &request.init {
            if !(0.0..=256.0).contains(&init.mask_blur) {
                return usage(format!(
                    "mask blur {}; it goes from 0 to 256 pixels",
                    init.mask_blur
                ));
            }
        }
        let sampler = Sampler::from_name(&request.sampler)?;
        let schedule = Schedule::from_name(&request.schedule)?;
        Ok((sampler, schedule))
    }

    /// Merges the LoRAs of a request and undoes those of the one before.
    fn set_loras(&mut self, wanted: &[Lora]) -> Result<()> {
        if self.loras == wanted {
            return Ok(());
        }
        let files = wanted
            .iter()
            .map(|lora| {
                if !lora.strength.is_finite() {
                    return Err(Error::Usage(format!("strength of LoRA {:?}", lora.name)));
                }
                let path = LoraFile::find(&lora.name, &self.options.lora_dirs)?;
                Ok((LoraFile::open(&path)?, lora.strength))
            })
            .collect::<Result<Vec<_>>>()?;
        self.text.forget();
        self.restore()?;
        let merged = self.merge(&files);
        match merged {
            Ok(()) => self.loras = wanted.to_vec(),
            // Half a LoRA is none.
            Err(_) => self.restore()?,
        }
        merged
    }

    fn restore(&mut self) -> Result<()> {
        self.loras.clear();
        self.denoiser.restore()?;
        for tower in &mut self.text.towers {
            tower.part.restore()?;
        }
        Ok(())
    }

    fn merge(&mut self, files: &[(LoraFile, f32)]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut networks = vec![(Network::Denoiser, self.denoiser.names())];
        for (i, tower) in self.text.towers.iter().enumerate() {
            let names = tower.part.names().map(String::from).collect();
            networks.push((Network::Text(i), names));
        }
        for (file, strength) in files {
            for delta in file.deltas(f64::from(*strength), &networks, &self.device)? {
                let added = match delta.network {
                    Network::Denoiser => self.denoiser.add(&delta.tensor, &delta.change),
                    Network::Text(i) => self.text.towers[i].part.add(&delta.tensor, &delta.change),
                };
                added.map_err(Error::candle("merging a LoRA"))?;
            }
        }
        Ok(())
    }

    fn start(&mut self, request: &ImageRequest) -> Result<Option<Start>> {
        let Some(init) = &request.init else {
            return Ok(None);
        };
        let picture = picture::resized(&init.image, request.width, request.height);
        let pixels = picture::to_tensor(&picture, &self.device)
            .map_err(Error::candle("reading the picture"))?;
        let mask = init.mask.as_ref().map(|mask| {
            Mask::new(
                mask,
                request.width,
                request.height,
                init.mask_invert,
                init.mask_blur,
            )
        });
        Ok(Some(Start {
            latents: self.vae.encode(&pixels)?,
            picture,
            mask,
        }))
    }

    /// Mask and masked picture for networks that want them; without a picture, all is to be painted.
    fn inpainting(
        &mut self,
        request: &ImageRequest,
        start: Option<&Start>,
    ) -> Result<Option<Tensor>> {
        if !self.info.inpainting {
            return Ok(None);
        }
        let failed = || Error::candle("preparing the mask");
        let device = self.device.clone();
        let (height, width) = (request.height, request.width);
        let masked = || -> CandleResult<(Tensor, Tensor)> {
            let hard = match start.and_then(|start| start.mask.as_ref()) {
                Some(mask) => mask.hard(&device)?,
                None => Tensor::ones((1, 1, height, width), DType::F32, &device)?,
            };
            let grey = Tensor::full(0.5f32, (1, 3, height, width), &device)?;
            let pixels = match start {
                Some(start) => picture::to_tensor(&start.picture, &device)?,
                None => grey.clone(),
            };
            // Grey where something new is to come.
            let masked = (pixels - &grey)?.broadcast_mul(&hard.affine(-1.0, 1.0)?)?;
            Ok((hard, (masked + grey)?))
        };
        let (hard, masked) = masked().map_err(failed())?;
        let latents = self.vae.encode(&masked)?;
        let channels = || {
            // The nearest pixel, as the original takes it.
            let (_, _, h, w) = latents.dims4()?;
            Tensor::cat(&[&hard.upsample_nearest2d(h, w)?, &latents], 1)
        };
        channels().map(Some).map_err(failed())
    }

    /// What the first picture looks like so far.
    fn preview(&mut self, denoised: &Tensor) -> Result<RgbImage> {
        let failed = || Error::candle("making a preview");
        let first = denoised.narrow(0, 0, 1).map_err(failed())?;
        let pixels = match &mut self.taesd {
            Some(taesd) => taesd.network()?.decode(&first).map_err(failed())?,
            None => {
                let smaller = || {
                    let (_, _, height, width) = first.dims4()?;
                    let factor = (1..).find(|f| (height / f) * (width / f) <= PREVIEW);
                    match factor.map(|factor| factor.min(height).min(width)) {
                        Some(factor) if factor > 1 => first.avg_pool2d(factor),
                        _ => Ok(first.clone()),
                    }
                };
                let smaller = smaller().map_err(failed())?;
                self.vae.decode(&smaller)?
            }
        };
        let mut images = picture::from_tensor(&pixels).map_err(failed())?;
        match images.pop() {
            Some(image) => Ok(image),
            None => Err(Error::Runtime("a preview without a picture".to_string())),
        }
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
