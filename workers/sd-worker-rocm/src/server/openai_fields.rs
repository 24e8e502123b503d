//! What clients of OpenAI's API send, as JSON or as a form.

use super::App;
use crate::image_io::Format;
use crate::request::seed::given_seed;
use crate::request::RequestFields;
use axum::extract::Multipart;
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::ApiError;

/// Most previews of a stream.
const MAX_PARTIAL_IMAGES: usize = 10;

/// Fields of both routes. `model`, `user`, `background` and `moderation` are taken and have no effect: there is one
/// model, and its pictures are opaque.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "ImageFields")]
pub(super) struct Fields {
    prompt: String,
    n: Option<usize>,
    pub(super) size: Option<String>,
    response_format: Option<String>,
    output_format: Option<String>,
    output_compression: Option<u8>,
    #[serde(default)]
    pub(super) stream: bool,
    partial_images: Option<usize>,

    negative_prompt: Option<String>,
    steps: Option<usize>,
    guidance_scale: Option<f64>,
    seed: Option<i64>,
    sampler: Option<String>,
    schedule: Option<String>,
    pub(super) strength: Option<f64>,
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
        let size = self.size()?;
        let steps = self.steps.unwrap_or(app.queue().info().defaults.steps);
        Ok(RequestFields {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: size.map(|(width, _)| width),
            height: size.map(|(_, height)| height),
            steps: self.steps,
            guidance: self.guidance_scale,
            sampler: self.sampler.clone(),
            schedule: self.schedule.clone(),
            seed: given_seed(self.seed),
            batch: self.n,
            preview_every: Some(self.preview_every(steps)?),
            ..RequestFields::default()
        })
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
        Ok(Answer {
            format: Format::from_name(format)
                .map_err(|e| ApiError::field("output_format", e.to_string()))?,
            quality: self.output_compression.unwrap_or(90),
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

/// A form of `/v1/images/edits`.
#[derive(Default)]
pub(super) struct Form {
    pub(super) fields: Fields,
    pub(super) image: Option<Vec<u8>>,
    pub(super) mask: Option<Vec<u8>>,
}

impl Form {
    /// Reads a form.
    pub(super) async fn read(mut form: Multipart) -> Result<Self, ApiError> {
        let failed = |e: axum::extract::multipart::MultipartError| {
            ApiError::new(e.status(), "INVALID_REQUEST", e.body_text())
        };
        let mut read = Self::default();
        let mut has_prompt = false;
        while let Some(field) = form.next_field().await.map_err(failed)? {
            let name = field.name().unwrap_or_default().to_string();
            match name.as_str() {
                "image" | "image[]" if read.image.is_some() => {
                    return Err(ApiError::field(
                        "image",
                        "this model edits one picture at a time",
                    ))
                }
                "image" | "image[]" => {
                    read.image = Some(field.bytes().await.map_err(failed)?.to_vec())
                }
                "mask" => read.mask = Some(field.bytes().await.map_err(failed)?.to_vec()),
                _ => {
                    let value = field.text().await.map_err(failed)?;
                    has_prompt |= name == "prompt";
                    read.fields.set(&name, value)?;
                }
            }
        }
        if !has_prompt {
            return Err(ApiError::field("prompt", "the form has no prompt"));
        }
        Ok(read)
    }
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
            "stream" => self.stream = value == "true",
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
