//! Prompts that change from step to step, and several of them in one step: what they are in each.

use super::denoiser::run::{Ends, Hint};
use super::denoiser::{Composition, Conditions};
use super::text::Encoded;
use crate::editing::resample::Resample;
use crate::prompt::schedule::{composed, Schedule};
use crate::request::{ImageRequest, RegionPrompt};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use worker::{Error, Result};

/// Most texts that a request's prompts become.
const MOST_TEXTS: usize = 256;

/// The prompts of a request, step by step.
pub(super) struct Phases {
    /// Every text that is to be encoded, once.
    texts: Vec<Text>,
    negative: Schedule,
    parts: Vec<Prompt>,
}

/// A request's prompts, encoded, with what does not change from step to step; all on the denoiser's device.
pub(super) struct Script {
    pub(super) phases: Phases,
    /// Of every text.
    pub(super) encoded: Vec<Encoded>,
    /// Zeros stand for the negative prompt.
    pub(super) zero_negative: bool,
    /// As in [`Conditions`].
    pub(super) channels: Option<Tensor>,
    /// As in [`Conditions`].
    pub(super) references: Vec<Tensor>,
    /// As in [`Conditions`].
    pub(super) ends: Ends,
    /// As in [`Conditions`].
    pub(super) hints: Vec<Hint>,
}

/// What is to be encoded; whether as a negative prompt, which some models read in another way.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Text {
    text: String,
    is_negative: bool,
}

/// One of the prompts that are composed.
struct Prompt {
    schedule: Schedule,
    weight: f64,
    /// The region that it is for; nothing is the whole picture.
    region: Option<usize>,
}

/// The numbers of the texts that count in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Phase {
    negative: usize,
    parts: Vec<usize>,
}

impl Phases {
    /// Reads a request's prompts.
    ///
    /// # Errors
    /// [`Error::Usage`] for prompts of too many parts.
    pub(super) fn new(request: &ImageRequest) -> Result<Self> {
        let schedule = |prompt: &str| match request.scheduled_prompts {
            true => Schedule::new(prompt, request.steps),
            false => Schedule::fixed(prompt, request.steps),
        };
        let mut parts = Vec::new();
        let regions = request.regions.iter().enumerate();
        let all = std::iter::once((None, &request.prompt))
            .chain(regions.map(|(i, region)| (Some(i), &region.prompt)));
        for (region, prompt) in all {
            let prompts = match request.scheduled_prompts {
                true => composed(prompt).map_err(Error::Usage)?,
                false => vec![(prompt.clone(), 1.0)],
            };
            for (prompt, weight) in prompts {
                parts.push(Prompt {
                    schedule: schedule(&prompt),
                    weight,
                    region,
                });
            }
        }
        let negative = schedule(&request.negative_prompt);
        let mut texts: Vec<Text> = Vec::new();
        let negatives = (negative.entries().iter()).map(|(_, text)| (text, true));
        let positives = parts.iter().flat_map(|part| part.schedule.entries());
        let positives = positives.map(|(_, text)| (text, false));
        for (text, is_negative) in negatives.chain(positives) {
            let text = Text {
                text: text.clone(),
                is_negative,
            };
            if !texts.contains(&text) {
                texts.push(text);
            }
            if texts.len() > MOST_TEXTS {
                return Err(Error::Usage(format!(
                    "the prompt changes to more than {MOST_TEXTS} texts on its way"
                )));
            }
        }
        Ok(Self {
            texts,
            negative,
            parts,
        })
    }

    /// What is to be encoded, and whether as a negative prompt.
    pub(super) fn texts(&self) -> impl Iterator<Item = (&str, bool)> {
        self.texts
            .iter()
            .map(|of| (of.text.as_str(), of.is_negative))
    }

    /// What counts in a step, counted from 0.
    fn at(&self, step: usize) -> Phase {
        let number = |schedule: &Schedule, is_negative: bool| {
            let text = schedule.at(step);
            let found = |of: &Text| of.text == text && of.is_negative == is_negative;
            self.texts.iter().position(found).unwrap_or(0)
        };
        let parts = self.parts.iter();
        Phase {
            negative: number(&self.negative, true),
            parts: parts.map(|part| number(&part.schedule, false)).collect(),
        }
    }

    /// A region's prompts, joined by `AND`, are `negative + sum of weight (prompt - negative)`; regions are a mean, each
    /// weighted by its strength where it is, as ComfyUI combines conditions with masks. Without guidance a region's
    /// prompts are a weighted mean, too.
    fn composition(
        &self,
        texts: Vec<Encoded>,
        regions: &[RegionPrompt],
        guided: bool,
        latents: &[usize],
        device: &Device,
    ) -> Result<Composition> {
        let failed = || Error::candle("preparing the regions");
        let maps = (std::iter::once(Tensor::ones((1, 1, 1, 1), DType::F32, device)))
            .chain(regions.iter().map(|region| map(region, latents, device)))
            .collect::<CandleResult<Vec<_>>>()
            .map_err(failed())?;
        let place = |region: Option<usize>| region.map_or(0, |region| region + 1);
        let mut sums = vec![0.0; maps.len()];
        for part in &self.parts {
            sums[place(part.region)] += part.weight;
        }
        if !guided && sums.iter().any(|sum| *sum <= 0.0) {
            return Err(Error::Usage(
                "the weights of prompts joined by AND come to nothing; without guidance their sum must be above 0"
                    .to_string(),
            ));
        }
        let compose = || {
            let mut total = maps[0].clone();
            for map in &maps[1..] {
                total = total.broadcast_add(map)?;
            }
            let mut parts = Vec::new();
            for (text, part) in texts.into_iter().zip(&self.parts) {
                let place = place(part.region);
                let weight = if guided {
                    part.weight
                } else {
                    part.weight / sums[place]
                };
                parts.push((text, (maps[place].broadcast_div(&total)? * weight)?));
            }
            // What the negative prompt's prediction makes up of each region's.
            let rest = sums.iter().map(|sum| 1.0 - sum);
            let negative = match guided && sums.iter().any(|sum| *sum != 1.0) {
                false => None,
                true => {
                    let mut all = total.zeros_like()?;
                    for (map, rest) in maps.iter().zip(rest) {
                        all = all.broadcast_add(&(map.broadcast_div(&total)? * rest)?)?;
                    }
                    Some(all)
                }
            };
            Ok(Composition { parts, negative })
        };
        compose().map_err(failed())
    }
}

impl Script {
    /// The same on another device.
    ///
    /// # Errors
    /// If the device has no room.
    pub(super) fn moved_to(self, device: &Device) -> CandleResult<Self> {
        let encoded = self.encoded.iter().map(|text| text.to_device(device));
        Ok(Self {
            encoded: encoded.collect::<CandleResult<_>>()?,
            channels: self.channels.map(|x| x.to_device(device)).transpose()?,
            references: (self.references.iter())
                .map(|x| x.to_device(device))
                .collect::<CandleResult<_>>()?,
            ends: self.ends.each(|x| x.to_device(device))?,
            hints: (self.hints.iter())
                .map(|hint| hint.to_device(device))
                .collect::<CandleResult<_>>()?,
            ..self
        })
    }

    /// What counts in a step, counted from 0.
    pub(super) fn phase(&self, step: usize) -> Phase {
        self.phases.at(step)
    }

    /// What a phase is for the networks. `guided` says whether the negative prompt's prediction is at hand, `latents`
    /// are dimensions without the batch.
    ///
    /// # Errors
    /// [`Error::Usage`] if weights come to nothing; if the device fails.
    pub(super) fn conditions(
        &self,
        phase: &Phase,
        request: &ImageRequest,
        guided: bool,
        latents: &[usize],
    ) -> Result<Conditions> {
        let of = |number: usize| self.encoded.get(number).cloned();
        let lost = || Error::Runtime("a prompt is lost".to_string());
        let negative = of(phase.negative).ok_or_else(lost)?;
        let negative = match self.zero_negative {
            true => negative.zeros_like()?,
            false => negative,
        };
        let positive = phase.parts.first().copied().and_then(of).ok_or_else(lost)?;
        let composition = match self.phases.parts.as_slice() {
            [one] if one.weight == 1.0 => None,
            _ => {
                let texts = phase.parts.iter().map(|n| of(*n).ok_or_else(lost));
                let texts = texts.collect::<Result<Vec<_>>>()?;
                let device = negative.text.device();
                let phases = &self.phases;
                Some(phases.composition(texts, &request.regions, guided, latents, device)?)
            }
        };
        Ok(Conditions {
            positive,
            negative,
            composition,
            channels: self.channels.clone(),
            references: self.references.clone(),
            ends: self.ends.clone(),
            hints: self.hints.clone(),
        })
    }
}

/// A region's weight in each latent, `(1, 1, height, width)`.
fn map(region: &RegionPrompt, latents: &[usize], device: &Device) -> CandleResult<Tensor> {
    let [.., height, width] = *latents else {
        candle_core::bail!("latents of shape {latents:?} have no height and width")
    };
    let map = match &region.mask {
        Some(mask) => {
            let size = (1, 1, mask.height() as usize, mask.width() as usize);
            let values = mask.as_raw().iter().map(|v| f32::from(*v) / 255.0);
            let mask = Tensor::from_vec(values.collect::<Vec<_>>(), size, device)?;
            // As ComfyUI brings masks to latents.
            let linear = Resample::Bilinear { antialias: false };
            linear.apply(&mask, height, width)?
        }
        None => {
            // A latent belongs to a rectangle if its middle does.
            let lies = |at: usize, size: usize, from: f64, share: f64| {
                let middle = (at as f64 + 0.5) / size as f64;
                middle >= from && middle < from + share
            };
            let inside = (0..height * width).map(|at| {
                let (y, x) = (at / width, at % width);
                let inside = lies(x, width, region.left, region.width)
                    && lies(y, height, region.top, region.height);
                f32::from(u8::from(inside))
            });
            Tensor::from_vec(inside.collect::<Vec<_>>(), (1, 1, height, width), device)?
        }
    };
    map.affine(region.strength, 0.0)
}
