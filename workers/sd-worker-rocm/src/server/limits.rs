//! What is too much for one request.

use crate::image_io::DecodeLimits;
use crate::pipeline::{Family, ImageRequest, ModelInfo};
use crate::sampling::{Sampler, Schedule};
use worker::http::ApiError;

/// Smallest side, unless the model was trained on smaller pictures.
const MIN_SIDE: usize = 256;
/// Longest prompt in bytes.
const MAX_PROMPT_BYTES: usize = crate::prompt::tokenizer::MAX_PROMPT_BYTES;

/// Limits of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Pixels of a side.
    pub max_side: usize,
    /// Pixels of a picture.
    pub max_pixels: usize,
    /// Sampler steps.
    pub max_steps: usize,
    /// Guidance.
    pub max_guidance: f32,
    /// Pictures.
    pub max_batch: usize,
    /// LoRAs.
    pub max_loras: usize,
    /// ControlNets.
    pub max_controls: usize,
    /// Pictures that are sent here.
    pub decode: DecodeLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_side: 2048,
            max_pixels: 2048 * 2048,
            max_steps: 150,
            max_guidance: 30.0,
            max_batch: 8,
            max_loras: 16,
            max_controls: 4,
            decode: DecodeLimits::default(),
        }
    }
}

impl Limits {
    /// Refuses a request that asks for too much or makes no sense.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn check(&self, request: &ImageRequest, info: &ModelInfo) -> Result<(), ApiError> {
        let smallest = MIN_SIDE
            .min(info.defaults.width / 2)
            .min(info.defaults.height / 2);
        let multiple = info.size_multiple.max(8);
        for (field, side) in [("width", request.width), ("height", request.height)] {
            if !(smallest..=self.max_side).contains(&side) || side % multiple != 0 {
                return Err(ApiError::field(
                    field,
                    format!(
                        "{field} is {side}; it must be a multiple of {multiple} from {smallest} to {}",
                        self.max_side
                    ),
                ));
            }
        }
        if request.width * request.height > self.max_pixels {
            return Err(ApiError::field(
                "width",
                format!("more than {} pixels", self.max_pixels),
            ));
        }
        within("steps", request.steps, 1, self.max_steps)?;
        within("batch", request.batch, 1, self.max_batch)?;
        within("loras", request.loras.len(), 0, self.max_loras)?;
        within("controls", request.controls.len(), 0, self.max_controls)?;
        let unet = matches!(info.family, Family::Sd1 | Family::Sd2 | Family::Sdxl);
        if !request.controls.is_empty() && !unet {
            return Err(ApiError::field(
                "controls",
                "ControlNets are implemented for models with a UNet only",
            ));
        }
        for control in &request.controls {
            if !(0.0..=2.0).contains(&control.strength) {
                return Err(ApiError::field(
                    "controls",
                    "a ControlNet's strength must be from 0 to 2",
                ));
            }
            if !(0.0..=1.0).contains(&control.start)
                || !(control.start..=1.0).contains(&control.end)
            {
                return Err(ApiError::field(
                    "controls",
                    "a ControlNet acts from a start to a later end, both from 0 to 1",
                ));
            }
        }
        if !(0.0..=self.max_guidance).contains(&request.guidance) {
            return Err(ApiError::field(
                "guidance_scale",
                format!(
                    "guidance is {}; it must be from 0 to {}",
                    request.guidance, self.max_guidance
                ),
            ));
        }
        for (field, share) in [
            ("eta", request.eta.unwrap_or(0.0)),
            ("guidance_rescale", request.guidance_rescale),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(ApiError::field(
                    field,
                    format!("{field} must be from 0 to 1"),
                ));
            }
        }
        for (field, text) in [
            ("prompt", &request.prompt),
            ("negative_prompt", &request.negative_prompt),
        ] {
            if text.len() > MAX_PROMPT_BYTES {
                return Err(ApiError::field(
                    field,
                    format!("{field} is longer than {MAX_PROMPT_BYTES} bytes"),
                ));
            }
        }
        within("clip_skip", request.clip_skip, 0, 12)?;
        let named = |field: &str, result: worker::Result<()>| {
            result.map_err(|e| ApiError::field(field, e.to_string()))
        };
        named("sampler", Sampler::from_name(&request.sampler).map(drop))?;
        named("schedule", Schedule::from_name(&request.schedule).map(drop))?;
        if let Some(init) = &request.init {
            if !(0.0..=1.0).contains(&init.strength) {
                return Err(ApiError::field("strength", "strength must be from 0 to 1"));
            }
            if !(0.0..=256.0).contains(&init.mask_blur) {
                return Err(ApiError::field(
                    "mask_blur",
                    "mask_blur must be from 0 to 256",
                ));
            }
        }
        if request
            .loras
            .iter()
            .any(|lora| !(-16.0..=16.0).contains(&lora.strength))
        {
            return Err(ApiError::field(
                "loras",
                "a LoRA's strength must be from -16 to 16",
            ));
        }
        Ok(())
    }
}

fn within(field: &str, value: usize, least: usize, most: usize) -> Result<(), ApiError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ApiError::field(
        field,
        format!("{field} is {value}; it must be from {least} to {most}"),
    ))
}
