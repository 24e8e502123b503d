//! From what a client asks to a [`ValidRequest`].

use super::App;
use crate::image_io;
use crate::request::{
    InitFields, InterfaceDefaults, InvalidRequest, Limits, RequestFields, ValidRequest,
};
use image::{DynamicImage, GrayImage, RgbImage};
use worker::http::{blocking, ApiError};

impl From<InvalidRequest> for ApiError {
    fn from(invalid: InvalidRequest) -> Self {
        Self::field(invalid.field, invalid.message)
    }
}

impl App {
    /// The request that a client's fields make, its LoRAs found in the server's folders.
    pub(super) fn valid(
        &self,
        mut fields: RequestFields,
        interface: &InterfaceDefaults,
        limits: &Limits,
    ) -> Result<ValidRequest, ApiError> {
        let info = self.queue().info();
        let preview_every = fields.preview_every.unwrap_or(self.options().preview_every);
        fields.preview_every = Some(preview_every);
        let mut request = fields.build_with(&info.defaults, interface, &self.options().library)?;
        let each = request.each.iter_mut().flat_map(|one| &mut one.loras);
        let second = request.highres.iter_mut().flat_map(|pass| &mut pass.loras);
        for lora in request.loras.iter_mut().chain(each).chain(second) {
            *lora = self.options().loras.find(lora)?;
        }
        Ok(request.valid(info, limits)?)
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

    /// Pictures to look at, in base64, no more of them decoded than a model may be given.
    pub(super) async fn references(
        &self,
        pictures: Vec<String>,
    ) -> Result<Vec<RgbImage>, ApiError> {
        let most = self.options().limits.max_references;
        if pictures.len() > most {
            return Err(ApiError::field(
                "references",
                format!("{} references; at most {most} are taken", pictures.len()),
            ));
        }
        let mut decoded = Vec::with_capacity(pictures.len());
        for picture in pictures {
            let picture = self.decode("references", Upload::Base64(picture)).await?;
            decoded.push(image_io::to_rgb(&picture));
        }
        Ok(decoded)
    }

    /// A picture in base64 that a video starts or ends with, if there is one.
    pub(super) async fn frame(
        &self,
        field: &'static str,
        picture: Option<String>,
    ) -> Result<Option<RgbImage>, ApiError> {
        match picture {
            Some(text) => {
                let picture = self.decode(field, Upload::Base64(text)).await?;
                Ok(Some(image_io::to_rgb(&picture)))
            }
            None => Ok(None),
        }
    }

    /// A mask in base64, of this field.
    pub(super) async fn mask(
        &self,
        field: &'static str,
        mask: String,
    ) -> Result<GrayImage, ApiError> {
        let mask = self.decode(field, Upload::Base64(mask)).await?;
        Ok(image_io::to_mask(&mask))
    }

    /// The start of an image-to-image or inpainting request: pictures in base64, each with the name of its field.
    pub(super) async fn init(
        &self,
        (field, image): (&'static str, String),
        mask: Option<(&'static str, String)>,
    ) -> Result<InitFields, ApiError> {
        let image = self.decode(field, Upload::Base64(image)).await?;
        let mask = match mask {
            Some((field, mask)) => Some(self.mask(field, mask).await?),
            None => None,
        };
        Ok(InitFields {
            transparency: image_io::transparency_mask(&image),
            mask,
            ..InitFields::new(image_io::to_rgb(&image))
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
