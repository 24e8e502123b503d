//! What clients of OpenAI's API send, as JSON or as a form.

use super::App;
use crate::image_io::Format;
use crate::request::seed::given_seed;
use crate::request::RequestFields;
use axum::extract::Multipart;
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::ApiError;

/// Models with fewer steps were made for these.
const FEW_STEPS: usize = 8;
/// How much of a picture is changed that is to be kept.
const FAITHFUL_STRENGTH: f64 = 0.5;
/// Most pictures of a form.
const MAX_PICTURES: usize = 16;
/// Quality of JPEG where nothing is said.
const USUAL_QUALITY: u8 = 90;
/// Most previews of a stream.
const MAX_PARTIAL_IMAGES: usize = 10;

/// Fields of all routes. `model` and `user` are taken and have no effect: there is one model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "ImageFields")]
pub(super) struct Fields {
    /// What to make; variations do without.
    pub(super) prompt: String,
    n: Option<usize>,
    size: Option<String>,
    response_format: Option<String>,
    output_format: Option<String>,
    output_compression: Option<u8>,
    /// `auto` or `opaque`: pictures have no transparency.
    background: Option<String>,
    /// `low`, `medium` or `high`, `standard` or `hd`: how many steps there are, where `steps` does not say it.
    quality: Option<String>,
    /// `natural`.
    style: Option<String>,
    /// `auto` or `low`: nothing is moderated.
    moderation: Option<String>,
    /// `low` or `high`: how much of a picture is kept, where `strength` does not say it and there is no mask.
    input_fidelity: Option<String>,
    #[serde(default)]
    pub(super) stream: bool,
    partial_images: Option<usize>,

    negative_prompt: Option<String>,
    steps: Option<usize>,
    guidance_scale: Option<f64>,
    seed: Option<i64>,
    sampler: Option<String>,
    schedule: Option<String>,
    strength: Option<f64>,
}

impl Fields {
    /// Width and height; `None` for the model's own or those of the picture to edit.
    fn size(&self) -> Result<Option<(usize, usize)>, ApiError> {
        let Some(size) = self.size.as_deref().filter(|size| *size != "auto") else {
            return Ok(None);
        };
        let read = size
            .split_once('x')
            .and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
        let wrong = || {
            let message = format!("{size:?} is not a size; an example is 512x512");
            ApiError::field("size", message)
        };
        read.map(Some).ok_or_else(wrong)
    }

    /// The fields of a request, but for pictures.
    pub(super) fn request(&self, app: &App) -> Result<RequestFields, ApiError> {
        self.check()?;
        let size = self.size()?;
        let usual = app.queue().info().defaults.steps;
        let steps = self.steps.unwrap_or_else(|| self.steps_of_quality(usual));
        Ok(RequestFields {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: size.map(|(width, _)| width),
            height: size.map(|(_, height)| height),
            steps: Some(steps),
            guidance: self.guidance_scale,
            sampler: self.sampler.clone(),
            schedule: self.schedule.clone(),
            seed: given_seed(self.seed),
            batch: self.n,
            preview_every: Some(self.preview_every(steps)?),
            ..RequestFields::default()
        })
    }

    /// Refuses by name what is not implemented.
    fn check(&self) -> Result<(), ApiError> {
        let asked = [
            ("background", &self.background, &["auto", "opaque"][..]),
            (
                "quality",
                &self.quality,
                &["auto", "low", "medium", "high", "standard", "hd"],
            ),
            ("style", &self.style, &["natural"]),
            ("moderation", &self.moderation, &["auto", "low"]),
            ("input_fidelity", &self.input_fidelity, &["low", "high"]),
        ];
        for (field, value, known) in asked {
            let Some(value) = value.as_deref().filter(|value| !value.is_empty()) else {
                continue;
            };
            if !known.contains(&value) {
                return Err(ApiError::field(
                    field,
                    format!(
                        "{field}: {value:?} is not implemented here; there is {}",
                        known.join(", ")
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Steps for a quality. Models that were made for few steps keep theirs.
    fn steps_of_quality(&self, usual: usize) -> usize {
        match self.quality.as_deref() {
            _ if usual <= FEW_STEPS => usual,
            Some("low") => usual.div_ceil(2),
            Some("high" | "hd") => usual + usual / 2,
            _ => usual,
        }
    }

    /// How much of a picture is changed, if the client said so.
    pub(super) fn strength(&self, has_mask: bool) -> Option<f64> {
        let kept = self.input_fidelity.as_deref() == Some("high") && !has_mask;
        self.strength.or(kept.then_some(FAITHFUL_STRENGTH))
    }

    /// How often a preview is due so that a stream gets as many as it asks for.
    fn preview_every(&self, steps: usize) -> Result<usize, ApiError> {
        match (self.stream, self.partial_images.unwrap_or(0)) {
            (true, 0) | (false, _) => Ok(0),
            (true, count) if count > MAX_PARTIAL_IMAGES => Err(ApiError::field(
                "partial_images",
                format!("partial_images must be from 0 to {MAX_PARTIAL_IMAGES}"),
            )),
            (true, count) => Ok(steps.div_ceil(count + 1).max(1)),
        }
    }

    /// How the client wants its pictures.
    pub(super) fn answer(&self) -> Result<Answer, ApiError> {
        let format = self.output_format.as_deref().unwrap_or("png");
        let by_url = match self.response_format.as_deref() {
            None | Some("b64_json") => false,
            Some("url") => true,
            Some(other) => {
                return Err(ApiError::field(
                    "response_format",
                    format!("{other:?} is not a response format; use b64_json or url"),
                ))
            }
        };
        if by_url && self.stream {
            return Err(ApiError::field(
                "response_format",
                "a stream carries b64_json only",
            ));
        }
        let format = Format::from_name(format)
            .map_err(|e| ApiError::field("output_format", e.to_string()))?;
        let quality = match (format, self.output_compression) {
            (_, None) => USUAL_QUALITY,
            (_, Some(101..)) => {
                let reason = "output_compression must be from 0 to 100";
                return Err(ApiError::field("output_compression", reason));
            }
            (Format::Jpeg, Some(quality)) => quality,
            (_, Some(100)) => USUAL_QUALITY,
            _ => {
                let reason = "PNG and WebP are lossless here; output_compression is for jpeg";
                return Err(ApiError::field("output_compression", reason));
            }
        };
        Ok(Answer {
            format,
            quality,
            by_url,
        })
    }
}

/// How pictures are handed over.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) format: Format,
    pub(super) quality: u8,
    pub(super) by_url: bool,
}

/// A form with pictures.
#[derive(Default)]
pub(super) struct Form {
    pub(super) fields: Fields,
    pub(super) images: Vec<Vec<u8>>,
    pub(super) mask: Option<Vec<u8>>,
    pub(super) has_prompt: bool,
}

impl Form {
    /// Reads a form.
    pub(super) async fn read(mut form: Multipart) -> Result<Self, ApiError> {
        let failed = |e: axum::extract::multipart::MultipartError| {
            ApiError::new(e.status(), "INVALID_REQUEST", e.body_text())
        };
        let mut read = Self::default();
        while let Some(field) = form.next_field().await.map_err(failed)? {
            let name = field.name().unwrap_or_default().to_string();
            match name.as_str() {
                _ if is_image(&name) && read.images.len() == MAX_PICTURES => {
                    let reason = format!("there are more than {MAX_PICTURES} pictures");
                    return Err(ApiError::field("image", reason));
                }
                _ if is_image(&name) => read
                    .images
                    .push(field.bytes().await.map_err(failed)?.to_vec()),
                "mask" => read.mask = Some(field.bytes().await.map_err(failed)?.to_vec()),
                _ => {
                    let value = field.text().await.map_err(failed)?;
                    read.has_prompt |= name == "prompt";
                    read.fields.set(&name, value)?;
                }
            }
        }
        Ok(read)
    }

    /// The one picture that a route is about.
    ///
    /// # Errors
    /// 400 for none and for several.
    pub(super) fn only_image(&mut self) -> Result<Vec<u8>, ApiError> {
        match self.images.len() {
            0 => Err(ApiError::field("image", "the form has no file image")),
            1 => Ok(self.images.remove(0)),
            _ => Err(ApiError::field(
                "image",
                "this model edits one picture at a time",
            )),
        }
    }
}

/// Whether a part of a form is a picture: `image`, `image[]`, or `image[0]`.
fn is_image(name: &str) -> bool {
    let rest = name.strip_prefix("image");
    rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('[') && rest.ends_with(']')))
}

impl Fields {
    /// Takes a field of a form; unknown ones count as little as in JSON.
    fn set(&mut self, name: &str, value: String) -> Result<(), ApiError> {
        fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<Option<T>, ApiError> {
            let bad = |_| ApiError::field(name, format!("{name}: {value:?} is not a number"));
            value.trim().parse().map(Some).map_err(bad)
        }
        match name {
            "prompt" => self.prompt = value,
            "n" => self.n = number(name, &value)?,
            "size" => self.size = Some(value),
            "response_format" => self.response_format = Some(value),
            "output_format" => self.output_format = Some(value),
            "output_compression" => self.output_compression = number(name, &value)?,
            "background" => self.background = Some(value),
            "quality" => self.quality = Some(value),
            "style" => self.style = Some(value),
            "moderation" => self.moderation = Some(value),
            "input_fidelity" => self.input_fidelity = Some(value),
            "stream" => self.stream = value.eq_ignore_ascii_case("true"),
            "partial_images" => self.partial_images = number(name, &value)?,
            "negative_prompt" => self.negative_prompt = Some(value),
            "steps" => self.steps = number(name, &value)?,
            "guidance_scale" => self.guidance_scale = number(name, &value)?,
            "seed" => self.seed = number(name, &value)?,
            "sampler" => self.sampler = Some(value),
            "schedule" => self.schedule = Some(value),
            "strength" => self.strength = number(name, &value)?,
            _ => {}
        }
        Ok(())
    }
}
