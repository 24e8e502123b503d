//! What prompts of parts and pictures of a batch say, and how the noise differs.

use super::{within, InvalidRequest, SHARE};
use crate::prompt::tokenizer::MAX_PROMPT_BYTES;
use crate::request::types::ImageRequest;
use std::ops::RangeInclusive;

/// Parts of a picture with prompts of their own.
const REGIONS: RangeInclusive<usize> = 0..=16;
/// Weight of a part of a picture.
const REGION_STRENGTH: RangeInclusive<f64> = 0.0..=10.0;
/// Pixels of a picture whose noise stands in another's.
const SEED_SIDE: RangeInclusive<usize> = 8..=1 << 14;
/// Factors of the noise that a picture is covered with.
const NOISE_MULTIPLIER: RangeInclusive<f64> = 0.0..=2.0;

impl ImageRequest {
    pub(super) fn check_wording(&self) -> Result<(), InvalidRequest> {
        let count = self.regions.len();
        within("regions", "the number of regions", count, REGIONS)?;
        for region in &self.regions {
            let strength = region.strength;
            within("regions", "a region's strength", strength, REGION_STRENGTH)?;
            for share in [region.left, region.top, region.width, region.height] {
                within("regions", "a region's side", share, SHARE)?;
            }
        }
        let regions = self.regions.iter().map(|region| &region.prompt);
        let each = self.each.iter();
        let each = each.flat_map(|one| [&one.prompt, &one.negative_prompt]);
        if regions
            .chain(each)
            .any(|text| text.len() > MAX_PROMPT_BYTES)
        {
            return Err(InvalidRequest::new(
                "prompt",
                format!("a prompt is longer than {MAX_PROMPT_BYTES} bytes"),
            ));
        }
        within(
            "variation",
            "the variation's strength",
            self.noise.variation,
            SHARE,
        )?;
        if let Some(multiplier) = self.noise.multiplier {
            let field = "noise_multiplier";
            within(field, field, multiplier, NOISE_MULTIPLIER)?;
            if self.init.is_none() {
                let reason = "noise_multiplier is for pictures that start from another";
                return Err(InvalidRequest::new(field, reason));
            }
        }
        let (width, height) = self.noise.from_size.unwrap_or((self.width, self.height));
        for side in [width, height] {
            within("seed_size", "a side of the seed's size", side, SEED_SIDE)?;
        }
        Ok(())
    }
}
