//! A second pass over a larger picture: highres fix.

use super::limits::{within, InvalidRequest, Limits, SHARE};
use super::types::ImageRequest;
use crate::editing::resample::Resample;
use crate::info::ModelInfo;
use crate::lora::Lora;
use crate::prompt::lora::take_loras;
use crate::sampling::{Sampler, Schedule};
use crate::upscale::Method;

/// How many times as large the second picture is.
const SCALE: f64 = 2.0;
/// How much of it is painted anew.
const STRENGTH: f64 = 0.7;
/// Pixels of which the sides are multiples.
const SIZE_STEP: usize = 16;

/// A second pass, over the first one's picture made larger.
#[derive(Debug, Clone, PartialEq)]
pub struct Highres {
    /// Pixels of the second picture.
    pub width: usize,
    /// Pixels of the second picture.
    pub height: usize,
    /// How it becomes so large; what then stands out of another shape is cut off.
    pub method: Method,
    /// Denoising steps, of which the strength's share is done.
    pub steps: usize,
    /// How much of the way is walked again.
    pub strength: f64,
    /// How a step goes from one noise level to the next.
    pub sampler: Sampler,
    /// Which noise levels are visited; `None` is the sampler's own choice.
    pub schedule: Option<Schedule>,
    /// Guidance.
    pub guidance: f64,
    /// What to paint.
    pub prompt: String,
    /// What to keep away from.
    pub negative_prompt: String,
    /// LoRAs.
    pub loras: Vec<Lora>,
    /// Seed of its noise for the first picture; `None` is the first pass's.
    pub seed: Option<u64>,
}

/// What a client said of a second pass. What is left open is the first one's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HighresFields {
    /// How many times as large the picture becomes; a width or height counts more.
    pub scale: Option<f64>,
    /// Pixels; without a height the shape stays.
    pub width: Option<usize>,
    /// Pixels; without a width the shape stays.
    pub height: Option<usize>,
    /// How it becomes so large; without one its latents do.
    pub method: Option<Method>,
    /// Denoising steps; 0 is the first pass's.
    pub steps: Option<usize>,
    /// How much is painted anew.
    pub strength: Option<f64>,
    /// A sampler's name, which may have a schedule's behind it.
    pub sampler: Option<String>,
    /// A schedule's name.
    pub schedule: Option<String>,
    /// Guidance.
    pub guidance: Option<f64>,
    /// What to paint, LoRAs included; empty is the first pass's.
    pub prompt: Option<String>,
    /// What to keep away from; empty is the first pass's.
    pub negative_prompt: Option<String>,
    /// Seed of its noise for the first picture.
    pub seed: Option<u64>,
}

impl HighresFields {
    /// The second pass of a request.
    ///
    /// # Errors
    /// For names of samplers and schedules that do not exist, and a scale that is none.
    pub fn build(self, first: &ImageRequest) -> Result<Highres, InvalidRequest> {
        let unknown = |field| move |e: worker::Error| InvalidRequest::new(field, e.to_string());
        let scale = self.scale.unwrap_or(SCALE);
        if !(0.1..=16.0).contains(&scale) {
            return Err(InvalidRequest::new(
                "hr_scale",
                format!("the scale of the second pass is {scale}; it must be from 0.1 to 16"),
            ));
        }
        // The nearest size that models can paint.
        let whole = |side: f64| (side / SIZE_STEP as f64).round().max(1.0) as usize * SIZE_STEP;
        let (w, h) = (first.width as f64, first.height as f64);
        let given = |side: Option<usize>| side.filter(|side| *side > 0);
        let (width, height) = match (given(self.width), given(self.height)) {
            (None, None) => (whole(w * scale), whole(h * scale)),
            (Some(width), None) => (width, whole(h * width as f64 / w)),
            (None, Some(height)) => (whole(w * height as f64 / h), height),
            (Some(width), Some(height)) => (width, height),
        };
        let named = |name: &Option<String>| {
            let same = ["", "use same sampler", "use same scheduler"];
            let name = name.clone();
            name.filter(|name| !same.contains(&name.to_lowercase().as_str()))
        };
        let (mut sampler, mut schedule) = (first.sampler, first.schedule);
        if let Some(name) = named(&self.sampler) {
            (sampler, schedule) =
                Sampler::with_schedule(&name).map_err(unknown("hr_sampler_name"))?;
        }
        if let Some(name) = named(&self.schedule) {
            schedule = match name.eq_ignore_ascii_case("automatic") {
                true => None,
                false => Some(Schedule::from_name(&name).map_err(unknown("hr_scheduler"))?),
            };
        }
        let steps = self.steps.filter(|steps| *steps > 0).unwrap_or(first.steps);
        let text = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
        let (prompt, loras) = match text(self.prompt) {
            None => (first.prompt.clone(), first.loras.clone()),
            Some(prompt) => {
                take_loras(&prompt, steps).map_err(|e| InvalidRequest::new("hr_prompt", e))?
            }
        };
        let latents = Method::Latent(Resample::Bilinear { antialias: false });
        Ok(Highres {
            width,
            height,
            method: self.method.unwrap_or(latents),
            steps,
            strength: self.strength.unwrap_or(STRENGTH),
            sampler,
            schedule,
            guidance: self.guidance.unwrap_or(first.guidance),
            prompt,
            negative_prompt: text(self.negative_prompt)
                .unwrap_or_else(|| first.negative_prompt.clone()),
            loras,
            seed: self.seed,
        })
    }
}

impl Highres {
    /// The request of the second pass.
    pub fn request(&self, first: &ImageRequest) -> ImageRequest {
        ImageRequest {
            width: self.width,
            height: self.height,
            steps: self.steps,
            sampler: self.sampler,
            schedule: self.schedule,
            guidance: self.guidance,
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            loras: self.loras.clone(),
            seed: self.seed.unwrap_or(first.seed),
            highres: None,
            ..first.clone()
        }
    }

    /// Checks the second pass of a request as the first one is.
    ///
    /// # Errors
    /// Names the first field that asks for too much or makes no sense.
    pub(super) fn check(
        &self,
        first: &ImageRequest,
        info: &ModelInfo,
        limits: &Limits,
    ) -> Result<(), InvalidRequest> {
        if first.init.is_some() {
            return Err(InvalidRequest::new(
                "enable_hr",
                "a second pass is for pictures from text; make the picture larger first, and start from that",
            ));
        }
        within(
            "hr_strength",
            "the second pass's strength",
            self.strength,
            SHARE,
        )?;
        let valid = self.request(first).valid(info, limits);
        valid.map(drop).map_err(|e| InvalidRequest {
            message: format!("the second pass: {}", e.message),
            ..e
        })
    }

    /// What it adds to a picture's text, in the words of AUTOMATIC1111's web UI.
    pub(crate) fn settings(&self, first: &ImageRequest) -> Vec<(&'static str, String)> {
        let scale = self.width as f64 / first.width as f64;
        let mut settings = vec![("Denoising strength", self.strength.to_string())];
        let same_shape = self.width * first.height == self.height * first.width;
        settings.push(match same_shape {
            true => ("Hires upscale", scale.to_string()),
            false => ("Hires resize", format!("{}x{}", self.width, self.height)),
        });
        if self.steps != first.steps {
            settings.push(("Hires steps", self.steps.to_string()));
        }
        settings.push(("Hires upscaler", self.method.label()));
        if let Some(seed) = self.seed.filter(|seed| *seed != first.seed) {
            settings.push(("Hires seed", seed.to_string()));
        }
        if self.sampler != first.sampler {
            settings.push(("Hires sampler", self.sampler.label().to_string()));
        }
        if self.schedule != first.schedule {
            let schedule = self
                .schedule
                .unwrap_or_else(|| self.sampler.default_schedule());
            settings.push(("Hires schedule type", schedule.label().to_string()));
        }
        if self.guidance != first.guidance {
            settings.push(("Hires CFG Scale", self.guidance.to_string()));
        }
        if self.prompt != first.prompt {
            settings.push(("Hires prompt", self.prompt.clone()));
        }
        if self.negative_prompt != first.negative_prompt {
            settings.push(("Hires negative prompt", self.negative_prompt.clone()));
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(fields: HighresFields) -> Highres {
        let first = ImageRequest {
            width: 512,
            height: 768,
            prompt: "a cat".to_string(),
            ..ImageRequest::default()
        };
        fields.build(&first).unwrap()
    }

    #[test]
    fn sizes_as_web_uis_have_them() {
        for (scale, width, height, expected) in [
            (None, None, None, (1024, 1536)),
            (Some(1.5), Some(0), Some(0), (768, 1152)),
            (Some(1.5), Some(1024), None, (1024, 1536)),
            (None, None, Some(1152), (768, 1152)),
            (None, Some(800), Some(800), (800, 800)),
            (Some(1.02), None, None, (528, 784)),
        ] {
            let highres = built(HighresFields {
                scale,
                width,
                height,
                ..HighresFields::default()
            });
            assert_eq!((highres.width, highres.height), expected);
        }
    }

    #[test]
    fn what_is_left_open_is_the_first_passes() {
        let usual = built(HighresFields::default());
        assert_eq!((usual.steps, usual.sampler), (20, Sampler::Euler));
        assert_eq!(usual.prompt, "a cat");
        let other = built(HighresFields {
            steps: Some(0),
            sampler: Some("Use same sampler".to_string()),
            prompt: Some("a dog <lora:ink:0.5>".to_string()),
            ..HighresFields::default()
        });
        assert_eq!((other.steps, other.sampler), (20, Sampler::Euler));
        assert_eq!((other.prompt.as_str(), other.loras.len()), ("a dog ", 1));
        let wrong = HighresFields {
            scale: Some(f64::NAN),
            ..HighresFields::default()
        };
        let error = wrong.build(&ImageRequest::default()).unwrap_err();
        assert_eq!(error.field, "hr_scale");
    }
}
