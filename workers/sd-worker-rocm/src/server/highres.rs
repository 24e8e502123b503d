//! What jobs can ask of a second pass.

use crate::request::HighresFields;
use crate::upscale::UpscalerFolders;
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::ApiError;

/// A second pass over a larger picture. What is left open is the first one's.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HighresBody {
    scale: Option<f64>,
    width: Option<usize>,
    height: Option<usize>,
    /// How the picture becomes larger: a name, or one of the server's upscalers.
    upscaler: Option<String>,
    strength: Option<f64>,
    steps: Option<usize>,
    sampler: Option<String>,
    schedule: Option<String>,
    guidance_scale: Option<f64>,
    prompt: Option<String>,
    negative_prompt: Option<String>,
    /// Of its noise; the first pass's if left out.
    seed: Option<u64>,
}

impl HighresBody {
    /// What is asked for.
    ///
    /// # Errors
    /// 400 for an upscaler that the server does not have.
    pub(super) fn read(self, upscalers: &UpscalerFolders) -> Result<HighresFields, ApiError> {
        let method = self.upscaler.as_deref().map(|name| upscalers.find(name));
        let method = method.transpose();
        Ok(HighresFields {
            scale: self.scale,
            width: self.width,
            height: self.height,
            method: method.map_err(|e| ApiError::field("highres", e.to_string()))?,
            steps: self.steps,
            strength: self.strength,
            sampler: self.sampler,
            schedule: self.schedule,
            guidance: self.guidance_scale,
            prompt: self.prompt,
            negative_prompt: self.negative_prompt,
            seed: self.seed,
        })
    }
}
