//! What a job says of its prompts and noise.

use super::request::Upload;
use super::App;
use crate::image_io;
use crate::request::seed::given_seed;
use crate::request::{Drawn, NoiseChange, RegionPrompt, Wording};
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::ApiError;

/// Fields of a job.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct WordingBody {
    /// Names of styles.
    styles: Option<Vec<String>>,
    /// Whether {a|b} and __name__ in prompts are drawn: no, random (for each picture, by its seed) or all (a picture for
    /// each combination).
    draw: Option<String>,
    /// Whether [a:b:10], [a|b] and AND change prompts; true if left out.
    scheduled_prompts: Option<bool>,
    /// Parts of the picture with prompts of their own.
    regions: Option<Vec<RegionBody>>,
    /// Seed of a noise to which variation goes; random if left out or negative.
    variation_seed: Option<i64>,
    /// How far the noise goes there, 0 to 1.
    variation: Option<f64>,
    /// Width and height of a picture whose noise stands in the middle of this one's.
    seed_size: Option<[usize; 2]>,
    /// Added to seeds for noise that samplers draw on the way.
    step_seed_delta: Option<u64>,
    /// Factor of the noise that a picture to start from is covered with, 0 to 2.
    noise_multiplier: Option<f64>,
}

/// A region: a rectangle in shares of the picture, or a mask.
#[derive(Debug, Deserialize, JsonSchema)]
struct RegionBody {
    prompt: String,
    #[serde(default)]
    left: f64,
    #[serde(default)]
    top: f64,
    #[serde(default = "one")]
    width: f64,
    #[serde(default = "one")]
    height: f64,
    /// A picture in base64, white where the region is, in the place of the rectangle.
    mask: Option<String>,
    /// Weight beside the job's prompt, which has 1.
    #[serde(default = "one")]
    strength: f64,
}

fn one() -> f64 {
    1.0
}

impl WordingBody {
    /// What is said of noise.
    pub(super) fn noise(&self) -> NoiseChange {
        NoiseChange {
            variation_seed: given_seed(self.variation_seed),
            variation: self.variation.unwrap_or(0.0),
            from_size: self.seed_size.map(|[width, height]| (width, height)),
            step_seed_delta: self.step_seed_delta.unwrap_or(0),
            multiplier: self.noise_multiplier,
        }
    }
}

impl App {
    /// What a job says of its prompts.
    pub(super) async fn wording(&self, body: WordingBody) -> Result<Wording, ApiError> {
        let drawn = body.draw.as_deref().map(Drawn::from_name).transpose();
        let mut regions = Vec::new();
        for region in body.regions.into_iter().flatten() {
            let mask = match region.mask {
                Some(mask) => Some(self.decode("regions", Upload::Base64(mask)).await?),
                None => None,
            };
            regions.push(RegionPrompt {
                prompt: region.prompt,
                left: region.left,
                top: region.top,
                width: region.width,
                height: region.height,
                mask: mask.as_ref().map(image_io::to_mask),
                strength: region.strength,
            });
        }
        Ok(Wording {
            styles: body.styles.unwrap_or_default(),
            drawn: drawn
                .map_err(|e| ApiError::field("draw", e.to_string()))?
                .unwrap_or_default(),
            scheduled: body.scheduled_prompts,
            regions,
            without_loras: false,
        })
    }
}
