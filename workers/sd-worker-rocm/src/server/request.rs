//! From what a client asks to an [`ImageRequest`].

use super::App;
use crate::image_io;
use crate::pipeline::{ImageRequest, Init};
use crate::prompt::lora::take_loras;
use crate::rng::RngKind;
use crate::sampling::Sampler;
use axum::http::StatusCode;
use image::{DynamicImage, GrayImage};
use worker::http::ApiError;

impl App {
    /// A request with the model's own settings and a random seed.
    pub(super) fn blank_request(&self, prompt: String) -> ImageRequest {
        let defaults = &self.queue().info().defaults;
        ImageRequest {
            prompt,
            negative_prompt: String::new(),
            width: defaults.width,
            height: defaults.height,
            steps: defaults.steps,
            guidance: defaults.guidance,
            guidance_rescale: 0.0,
            sampler: defaults.sampler.clone(),
            schedule: defaults.schedule.clone(),
            seed: random_seed(),
            rng: RngKind::default(),
            batch: 1,
            clip_skip: 0,
            eta: None,
            init: None,
            loras: Vec::new(),
            controls: Vec::new(),
            preview_every: self.options().preview_every,
        }
    }

    /// Takes `<lora:…>` out of the prompt, finds all LoRAs and checks the limits.
    pub(super) fn complete(&self, mut request: ImageRequest) -> Result<ImageRequest, ApiError> {
        let (prompt, marked) = take_loras(&request.prompt);
        request.prompt = prompt;
        request.loras.extend(marked);
        let folders = &self.options().loras;
        request.loras = request
            .loras
            .iter()
            .map(|lora| folders.find(lora))
            .collect::<Result<_, _>>()?;
        self.options().limits.check(&request, self.queue().info())?;
        Ok(request)
    }

    /// Decodes a picture of a request off the threads that serve.
    pub(super) async fn decode(
        &self,
        field: &'static str,
        source: Upload,
    ) -> Result<DynamicImage, ApiError> {
        let limits = self.options().limits.decode;
        blocking(move || {
            let bytes = match source {
                Upload::Base64(text) => image_io::from_base64(&text, &limits)?,
                Upload::Bytes(bytes) => bytes,
            };
            image_io::decode(&bytes, &limits)
        })
        .await?
        .map_err(|e: worker::Error| ApiError::field(field, format!("{field}: {e}")))
    }

    /// The start of an image-to-image or inpainting request.
    pub(super) async fn init(
        &self,
        image: (&'static str, Upload),
        mask: Option<(&'static str, Upload)>,
        strength: f32,
    ) -> Result<Init, ApiError> {
        let picture = self.decode(image.0, image.1).await?;
        let mask: Option<GrayImage> = match mask {
            Some((field, upload)) => {
                let mask = self.decode(field, upload).await?;
                Some(image_io::to_mask(&mask))
            }
            None => None,
        };
        Ok(Init {
            image: image_io::to_rgb(&picture),
            strength,
            mask,
            mask_blur: 0.0,
            mask_invert: false,
        })
    }
}

/// A picture as it comes in.
pub(super) enum Upload {
    /// In JSON.
    Base64(String),
    /// In a form.
    Bytes(Vec<u8>),
}

/// Sets sampler and schedule by what clients call them; a schedule of its own wins over one in the sampler's name, "Automatic" is the
/// sampler's.
pub(super) fn set_sampler(
    request: &mut ImageRequest,
    sampler: Option<&str>,
    schedule: Option<&str>,
) -> Result<(), ApiError> {
    if let Some(name) = sampler.filter(|name| !name.is_empty()) {
        let (sampler, named) =
            Sampler::with_schedule(name).map_err(|e| ApiError::field("sampler", e.to_string()))?;
        request.sampler = sampler.label().to_string();
        if let Some(schedule) = named {
            request.schedule = schedule.label().to_string();
        }
    }
    if let Some(name) = schedule.filter(|name| !name.is_empty()) {
        if name.eq_ignore_ascii_case("automatic") {
            let sampler = Sampler::from_name(&request.sampler)
                .map_err(|e| ApiError::field("sampler", e.to_string()))?;
            request.schedule = sampler.default_schedule().label().to_string();
        } else {
            request.schedule = name.to_string();
        }
    }
    Ok(())
}

/// A client's seed; none or a negative one is random.
pub(super) fn seed(given: Option<i128>) -> Result<u64, ApiError> {
    match given {
        None => Ok(random_seed()),
        Some(seed) if seed < 0 => Ok(random_seed()),
        Some(seed) => seed
            .try_into()
            .map_err(|_| ApiError::field("seed", "seed has more than 64 bits")),
    }
}

/// 32 bits, so that it survives JavaScript and spreadsheets.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds every hasher from the operating system's random numbers.
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
        & 0xFFFF_FFFF
}

/// Runs work that takes long off the threads that serve.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|e| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "INTERNAL_ERROR",
            e.to_string(),
        )
    })
}
