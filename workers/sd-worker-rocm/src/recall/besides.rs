//! What a picture's text says besides of prompts, sizes that a model is told, and videos.

use super::web_ui::{number, sides, taken};
use super::Recalled;
use crate::info::{Family, ModelInfo};
use crate::request::{MicroConditions, RegionPrompt, RequestFields, VideoFields};

/// Takes a setting over; whether it could be read, and `None` for a name that is none of these.
pub(super) fn besides(fields: &mut RequestFields, name: &str, value: &str) -> Option<bool> {
    let micro = &mut fields.micro;
    Some(match name {
        "Prompt weights" => taken(&mut fields.prompt_weights, value),
        "Scheduled prompts" => {
            fields.wording.scheduled = match value.trim() {
                "no" => Some(false),
                "yes" => Some(true),
                _ => None,
            };
            fields.wording.scheduled.is_some()
        }
        // Of a mask there is only its place in the order: it cannot be had again.
        "Region" => value.parse::<RegionPrompt>().is_ok_and(|region| {
            fields.wording.regions.push(region);
            true
        }),
        "Noise multiplier" => taken(&mut fields.noise.multiplier, value),
        "Original size" => {
            micro.original_size = sides(value);
            micro.original_size.is_some()
        }
        "Target size" => {
            micro.target_size = sides(value);
            micro.target_size.is_some()
        }
        "Crop" => sides(value).is_some_and(|crop| {
            micro.crop = crop;
            true
        }),
        "Aesthetic score" => number(&mut micro.aesthetic_score, value),
        "Negative aesthetic score" => number(&mut micro.negative_aesthetic_score, value),
        "Refiner switch at" => taken(&mut fields.refiner_start, value),
        "Frames" => taken(&mut fields.video.frames, value),
        "FPS" => taken(&mut fields.video.fps, value),
        "Late CFG scale" => taken(&mut fields.video.late_guidance, value),
        "Frame noise" => taken(&mut fields.video.frame_noise, value),
        "Decode timestep" => taken(&mut fields.video.decode_timestep, value),
        "Decode noise" => taken(&mut fields.video.decode_noise, value),
        _ => return None,
    })
}

impl Recalled {
    /// The same for this model: what it has no place for is left out.
    #[must_use]
    pub fn fitting(mut self, info: &ModelInfo) -> Self {
        let fields = &mut self.fields;
        let mut left = Vec::new();
        if info.family != Family::Sdxl && fields.micro != MicroConditions::default() {
            fields.micro = MicroConditions::default();
            left.push("sizes and scores that only Stable Diffusion XL is told");
        }
        if !info.refined && fields.refiner_start.take().is_some() {
            left.push("Refiner switch at (no refiner is loaded)");
        }
        if info.defaults.video.is_none() && fields.video.is_asked() {
            fields.video = VideoFields::default();
            left.push("Frames (the model makes pictures)");
        }
        for name in left {
            self.leave_out(name);
        }
        self
    }
}
