//! What jobs can ask of the picture that they start from.

use crate::editing::options::USUAL_PADDING;
use crate::editing::{Editing, Fill, Fit, Sides, SoftInpainting};
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::ApiError;

/// Fields of a job with a picture to start from.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct EditingBody {
    /// `stretch`, `crop`, `fill` or `latent`.
    resize_mode: Option<String>,
    /// `original`, `colors`, `noise` or `nothing`.
    mask_fill: Option<String>,
    /// Paint only the part that the mask needs, in the size of the request, and put it back.
    only_masked: bool,
    /// Pixels around the mask that `only_masked` cuts out, too.
    mask_padding: Option<usize>,
    /// Grey of the mask says when its pixels begin to be painted.
    soft_mask: bool,
    /// Grey of the mask mixes the picture and what is painted in every step, as the web UI's extension does; `{}` is as
    /// usual.
    soft_inpainting: Option<SoftInpainting>,
    /// Paint what is transparent in the picture.
    pub(super) mask_from_alpha: bool,
    /// Pixels to paint beyond the picture's sides.
    outpaint: SidesBody,
}

/// Pixels at each side.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct SidesBody {
    left: usize,
    right: usize,
    top: usize,
    bottom: usize,
}

impl EditingBody {
    /// What is asked for.
    ///
    /// # Errors
    /// 400 for names that do not exist.
    pub(super) fn read(self) -> Result<Editing, ApiError> {
        let fit = self.resize_mode.as_deref().map(Fit::from_name).transpose();
        let fill = self.mask_fill.as_deref().map(Fill::from_name).transpose();
        let wrong = |field| move |e: worker::Error| ApiError::field(field, e.to_string());
        let padding = self.mask_padding.unwrap_or(USUAL_PADDING);
        Ok(Editing {
            fit: fit.map_err(wrong("resize_mode"))?.unwrap_or_default(),
            fill: fill.map_err(wrong("mask_fill"))?.unwrap_or_default(),
            only_masked: self.only_masked.then_some(padding),
            soft: self.soft_mask,
            soft_inpainting: self.soft_inpainting,
            outpaint: Sides {
                left: self.outpaint.left,
                right: self.outpaint.right,
                top: self.outpaint.top,
                bottom: self.outpaint.bottom,
            },
        })
    }
}
