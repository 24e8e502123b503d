//! What is too much, and the one check of a request.

mod editing;
mod video;
mod wording;

use super::guidance_tuning::Perturbation;
use super::step_cache::StepCache;
use super::types::{Hidden, ImageRequest, MicroConditions};
use crate::image_io::DecodeLimits;
use crate::info::{Family, ModelInfo, Purpose};
use crate::prompt::tokenizer::MAX_PROMPT_BYTES;
use crate::sampling::scheduler_config::MAX_TRAIN_STEPS;
use image::RgbImage;
use std::fmt::Display;
use std::ops::{Deref, RangeInclusive};

/// Layers of the text encoder that may be left out, as web UIs offer them.
const CLIP_SKIP: RangeInclusive<usize> = 0..=12;
/// Pixels by which a mask can be softened.
const MASK_BLUR: RangeInclusive<f64> = 0.0..=256.0;
/// Strength of a LoRA.
const LORA_STRENGTH: RangeInclusive<f64> = -16.0..=16.0;
/// Strength of a ControlNet.
const CONTROL_STRENGTH: RangeInclusive<f64> = 0.0..=2.0;
/// Guidance by the picture of models for instructions.
const IMAGE_GUIDANCE: RangeInclusive<f64> = 1.0..=100.0;
/// Pixels of the sizes that Stable Diffusion XL is told.
const TOLD_SIDE: RangeInclusive<usize> = 0..=1 << 20;
/// Scores of beauty.
const SCORE: RangeInclusive<f64> = 0.0..=10.0;
/// Frames a second.
const FPS: RangeInclusive<usize> = 1..=120;

/// Frames in between that a video may be given.
pub(crate) const KEY_FRAMES: usize = 16;
/// Shares.
pub(super) const SHARE: RangeInclusive<f64> = 0.0..=1.0;

/// Limits of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Pixels of the smallest side; half of the model's own size is allowed in any case.
    pub min_side: usize,
    /// Pixels of a side.
    pub max_side: usize,
    /// Pixels of a picture.
    pub max_pixels: usize,
    /// Frames of a video.
    pub max_frames: usize,
    /// Pixels of all frames of a request's videos.
    pub max_video_pixels: usize,
    /// Sampler steps.
    pub max_steps: usize,
    /// Guidance.
    pub max_guidance: f64,
    /// Pictures.
    pub max_batch: usize,
    /// LoRAs.
    pub max_loras: usize,
    /// ControlNets.
    pub max_controls: usize,
    /// Pictures to look at.
    pub max_references: usize,
    /// Pictures that a client sends.
    pub decode: DecodeLimits,
}

impl Limits {
    /// For people on their own machine: nothing is refused but what no model does.
    pub const LOCAL: Self = Self {
        min_side: 1,
        max_side: 1 << 14,
        max_pixels: 1 << 28,
        max_frames: 1 << 12,
        max_video_pixels: 1 << 32,
        max_steps: MAX_TRAIN_STEPS,
        max_guidance: 1000.0,
        max_batch: 64,
        max_loras: 1024,
        max_controls: 64,
        max_references: 64,
        decode: DecodeLimits::DEFAULT,
    };

    /// Pixels of the smallest side of a model's pictures, and what sides are multiples of.
    pub fn least_side(&self, info: &ModelInfo) -> (usize, usize) {
        let multiple = info.size_multiple.max(8);
        let least = self.min_side;
        let least = least.min(info.defaults.width / 2);
        let least = least.min(info.defaults.height / 2);
        (least.max(multiple), multiple)
    }
}

impl Default for Limits {
    /// For a server's clients.
    fn default() -> Self {
        Self {
            min_side: 256,
            max_side: 2048,
            max_pixels: 2048 * 2048,
            max_frames: 257,
            max_video_pixels: 1 << 28,
            max_steps: 150,
            max_guidance: 30.0,
            max_batch: 8,
            max_loras: 16,
            max_controls: 4,
            max_references: 4,
            decode: DecodeLimits::DEFAULT,
        }
    }
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidRequest {
    /// The field of the request.
    pub field: &'static str,
    /// What it is, and what it must be.
    pub message: String,
}

impl InvalidRequest {
    /// A field with what is wrong about it.
    pub fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
        }
    }
}

impl From<InvalidRequest> for worker::Error {
    fn from(invalid: InvalidRequest) -> Self {
        Self::Usage(invalid.message)
    }
}

/// A request that was checked against a model and limits: what a pipeline takes.
#[derive(Debug, Clone)]
pub struct ValidRequest(ImageRequest);

impl Deref for ValidRequest {
    type Target = ImageRequest;

    fn deref(&self) -> &ImageRequest {
        &self.0
    }
}

impl ValidRequest {
    /// The request for `count` of its pictures, from its `first` on.
    #[must_use]
    pub fn pictures(&self, first: usize, count: usize) -> Self {
        Self(self.0.pictures(first, count))
    }
}

impl ImageRequest {
    /// Checks the request: the only place where its values are.
    ///
    /// # Errors
    /// Names the first field that asks for too much or makes no sense, with what it must be.
    pub fn valid(self, info: &ModelInfo, limits: &Limits) -> Result<ValidRequest, InvalidRequest> {
        self.check_size(info, limits)?;
        within("steps", "steps", self.steps, 1..=limits.max_steps)?;
        within("batch", "batch", self.batch, 1..=limits.max_batch)?;
        within("clip_skip", "clip_skip", self.clip_skip, CLIP_SKIP)?;
        let guidance = 0.0..=limits.max_guidance;
        within("guidance_scale", "guidance", self.guidance, guidance)?;
        let guidance = 0.0..=limits.max_guidance;
        within(
            "true_cfg_scale",
            "true_cfg_scale",
            self.true_guidance,
            guidance,
        )?;
        if self.true_guidance != 1.0 && !info.family.has_true_guidance() {
            return Err(InvalidRequest::new(
                "true_cfg_scale",
                "true_cfg_scale is for models that have guidance as a condition, such as FLUX.1; this one has guidance_scale",
            ));
        }
        let rescale = self.guidance_rescale;
        within("guidance_rescale", "guidance rescale", rescale, SHARE)?;
        within("eta", "eta", self.eta.unwrap_or(0.0), SHARE)?;
        self.tuning.check(limits.max_guidance)?;
        self.check_tuning(info)?;
        for (field, text) in [
            ("prompt", &self.prompt),
            ("negative_prompt", &self.negative_prompt),
        ] {
            if text.len() > MAX_PROMPT_BYTES {
                return Err(InvalidRequest::new(
                    field,
                    format!("{field} is longer than {MAX_PROMPT_BYTES} bytes"),
                ));
            }
        }
        if let Some(init) = &self.init {
            within("strength", "strength", init.strength, SHARE)?;
            within("mask_blur", "mask_blur", init.mask_blur, MASK_BLUR)?;
            editing::check(init, limits)?;
        }
        self.check_video(info, limits)?;
        let count = self.loras.len();
        within("loras", "the number of LoRAs", count, 0..=limits.max_loras)?;
        for lora in &self.loras {
            lora.check().map_err(|e| InvalidRequest::new("loras", e))?;
            let blocks = lora.blocks.iter().map(|(_, factor)| *factor);
            let strengths = [lora.strength].into_iter().chain(lora.text_strength);
            for strength in strengths.chain(blocks) {
                within("loras", "a LoRA's strength", strength, LORA_STRENGTH)?;
            }
        }
        self.check_references(info, limits)?;
        self.check_wording()?;
        self.check_controls(info, limits)?;
        self.check_purpose(info)?;
        if let Some(highres) = &self.highres {
            highres.check(&self, info, limits)?;
        }
        self.check_ip_adapters(info, limits)?;
        self.check_faces()?;
        Ok(ValidRequest(self))
    }

    fn check_faces(&self) -> Result<(), InvalidRequest> {
        let Some(faces) = &self.restore_faces else {
            return Ok(());
        };
        if self.video.as_ref().is_some_and(|video| video.frames > 1) {
            let reason = "faces of videos are not restored";
            return Err(InvalidRequest::new("restore_faces", reason));
        }
        let checked = faces.check();
        checked.map_err(|e| InvalidRequest::new("restore_faces", e.to_string()))
    }

    fn check_size(&self, info: &ModelInfo, limits: &Limits) -> Result<(), InvalidRequest> {
        let (least, multiple) = limits.least_side(info);
        for (field, side) in [("width", self.width), ("height", self.height)] {
            if !(least..=limits.max_side).contains(&side) || !side.is_multiple_of(multiple) {
                return Err(InvalidRequest::new(
                    field,
                    format!(
                        "{field} is {side}; it must be a multiple of {multiple} from {least} to {}",
                        limits.max_side
                    ),
                ));
            }
        }
        if self.width * self.height > limits.max_pixels {
            return Err(InvalidRequest::new(
                "width",
                format!(
                    "{} x {} are more than {} pixels",
                    self.width, self.height, limits.max_pixels
                ),
            ));
        }
        Ok(())
    }

    fn check_references(&self, info: &ModelInfo, limits: &Limits) -> Result<(), InvalidRequest> {
        let (least, most) = info.references.clone().into_inner();
        let (count, most) = (self.references.len(), most.min(limits.max_references));
        let bad = |message| Err(InvalidRequest::new("references", message));
        if count > 0 && most == 0 {
            return bad("this model does not look at pictures; leave references out".to_string());
        }
        if !(least..=most).contains(&count) {
            return bad(format!(
                "{count} references; this model looks at {least} to {most} pictures"
            ));
        }
        let too_large = |picture: &&RgbImage| {
            let (width, height) = (picture.width() as usize, picture.height() as usize);
            width.max(height) > limits.max_side || width * height > limits.max_pixels
        };
        match self.references.iter().find(too_large) {
            Some(picture) if self.keep_reference_size => bad(format!(
                "a reference of {} x {} is too large to be looked at in its own size",
                picture.width(),
                picture.height()
            )),
            _ => Ok(()),
        }
    }

    fn check_ip_adapters(&self, info: &ModelInfo, limits: &Limits) -> Result<(), InvalidRequest> {
        const FIELD: &str = "ip_adapters";
        let (count, most) = (self.ip_adapters.len(), limits.max_controls);
        within(FIELD, "the number of IP-Adapters", count, 0..=most)?;
        if count > 0 && !info.family.takes_ip_adapters() {
            return Err(InvalidRequest::new(
                FIELD,
                "IP-Adapters are implemented for models with a UNet and FLUX.1 (Redux) only",
            ));
        }
        for adapter in &self.ip_adapters {
            let seen = adapter.images.len() + adapter.faces.len();
            within(
                FIELD,
                "the number of an IP-Adapter's pictures",
                seen,
                1..=16,
            )?;
            let numbers = adapter.faces.iter().flatten();
            if numbers.clone().count() > 1 << 16 || !numbers.clone().all(|x| x.is_finite()) {
                return Err(InvalidRequest::new(
                    FIELD,
                    "embeddings of faces are some hundred finite numbers each",
                ));
            }
            let strength = adapter.strength;
            within(
                FIELD,
                "an IP-Adapter's strength",
                strength,
                CONTROL_STRENGTH,
            )?;
            if !SHARE.contains(&adapter.start) || !(adapter.start..=1.0).contains(&adapter.end) {
                return Err(InvalidRequest::new(
                    FIELD,
                    "an IP-Adapter acts from a start to a later end, both from 0 to 1",
                ));
            }
        }
        Ok(())
    }

    /// What belongs to models for other purposes, and what these need.
    fn check_purpose(&self, info: &ModelInfo) -> Result<(), InvalidRequest> {
        let instructed = info.purpose == Purpose::Instructions;
        let bad = |field, message: &str| Err(InvalidRequest::new(field, message));
        if let Some(image_guidance) = self.image_guidance {
            within(
                "image_guidance",
                "image guidance",
                image_guidance,
                IMAGE_GUIDANCE,
            )?;
            if !instructed {
                return bad(
                    "image_guidance",
                    "image guidance is for models that follow instructions on a picture (InstructPix2Pix)",
                );
            }
        }
        if instructed && self.init.is_none() {
            return bad(
                "init_image",
                "this model changes a picture as the prompt says: give the picture to start from",
            );
        }
        if instructed && self.guidance_rescale != 0.0 {
            return bad(
                "guidance_rescale",
                "guidance rescale is not implemented for models that follow instructions on a picture",
            );
        }
        match (info.purpose == Purpose::Depth, &self.depth) {
            (true, None) => {
                return bad(
                    "depth_image",
                    "this model follows depths: give a picture of them, near is white (depth_image, --depth-image)",
                )
            }
            (false, Some(_)) => return bad("depth_image", "this model takes no depths"),
            _ => {}
        }
        let told = &self.micro;
        let sizes = [told.original_size, told.target_size, Some(told.crop)];
        for (width, height) in sizes.into_iter().flatten() {
            within(
                "original_size",
                "a side that the model is told",
                width,
                TOLD_SIDE,
            )?;
            within(
                "original_size",
                "a side that the model is told",
                height,
                TOLD_SIDE,
            )?;
        }
        for score in [told.aesthetic_score, told.negative_aesthetic_score] {
            within("aesthetic_score", "the aesthetic score", score, SCORE)?;
        }
        if *told != MicroConditions::default() && info.family != Family::Sdxl {
            return bad(
                "original_size",
                "only Stable Diffusion XL is told sizes, crops and scores",
            );
        }
        if let Some(start) = self.refiner_start {
            within("refiner_start", "refiner start", start, SHARE)?;
            if !info.refined && start < 1.0 {
                return bad(
                    "refiner_start",
                    "no refiner was loaded with the model (--refiner)",
                );
            }
        }
        Ok(())
    }

    fn check_tuning(&self, info: &ModelInfo) -> Result<(), InvalidRequest> {
        let unet = info.family.has_unet();
        let refused = |field, reason: &str| Err(InvalidRequest::new(field, reason));
        match self.tuning.guidance.away().map(|away| away.perturbation) {
            Some(Perturbation::WithoutAttention(_)) if !info.family.has_attention_guidance() => {
                return refused(
                    "pag_scale",
                    "perturbed-attention guidance is implemented for models with a UNet, Stable Diffusion 3 and Sana only",
                );
            }
            Some(Perturbation::WithoutLayers(_)) if info.family != Family::Sd3 => {
                return refused(
                    "skip_layers",
                    "skip-layer guidance is implemented for Stable Diffusion 3 only",
                );
            }
            _ => {}
        }
        if let Some(field) = self.tuning.seamless.field().filter(|_| !unet) {
            return Err(InvalidRequest::new(
                field,
                format!("{field} is implemented for models with a UNet only: a transformer knows where the edges are"),
            ));
        }
        match self.tuning.step_cache {
            Some(StepCache::Deep(_)) if !unet => refused(
                "step_cache",
                "deepcache is for models with a UNet; FLUX.1 has fbcache and teacache",
            ),
            Some(StepCache::FirstBlock(_) | StepCache::Tea(_)) if info.family != Family::Flux => {
                refused(
                    "step_cache",
                    "fbcache and teacache are implemented for FLUX.1 only; UNets have deepcache",
                )
            }
            _ => Ok(()),
        }
    }

    fn check_controls(&self, info: &ModelInfo, limits: &Limits) -> Result<(), InvalidRequest> {
        const FIELD: &str = "controls";
        let most = limits.max_controls;
        within(
            FIELD,
            "the number of ControlNets",
            self.controls.len(),
            0..=most,
        )?;
        if !self.controls.is_empty() && !info.family.is_steered() {
            return Err(InvalidRequest::new(
                FIELD,
                "ControlNets are implemented for models with a UNet, Stable Diffusion 3 and FLUX.1 only",
            ));
        }
        let paints = info.family.has_unet() || info.family == Family::Sd3;
        for control in &self.controls {
            if !matches!(control.hidden, Hidden::Nothing) && !paints {
                return Err(InvalidRequest::new(
                    FIELD,
                    "the preprocessor inpaint is implemented for models with a UNet and Stable Diffusion 3 only",
                ));
            }
            let strength = control.strength;
            within(FIELD, "a ControlNet's strength", strength, CONTROL_STRENGTH)?;
            if !SHARE.contains(&control.start) || !(control.start..=1.0).contains(&control.end) {
                return Err(InvalidRequest::new(
                    FIELD,
                    "a ControlNet acts from a start to a later end, both from 0 to 1",
                ));
            }
        }
        Ok(())
    }
}

/// Whether a value of a field, called `name` in messages, is in a range; what is not a number is in none.
pub(super) fn within<T: PartialOrd + Display>(
    field: &'static str,
    name: &str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), InvalidRequest> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(InvalidRequest::new(
        field,
        format!("{name} is {value}; it must be from {least} to {most}"),
    ))
}
