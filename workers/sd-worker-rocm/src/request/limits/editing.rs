//! What is asked of a picture to start from.

use super::{within, InvalidRequest, Limits};
use crate::editing::{Editing, Fill, Fit};
use crate::request::types::Init;
use std::ops::RangeInclusive;

/// Pixels around a mask that is cut out.
const MASK_PADDING: RangeInclusive<usize> = 0..=4096;

/// Whether it fits together.
pub(super) fn check(init: &Init, limits: &Limits) -> Result<(), InvalidRequest> {
    let Editing {
        fit,
        fill,
        only_masked,
        soft,
        soft_inpainting,
        outpaint,
    } = init.editing;
    let masked = init.mask.is_some() || !outpaint.is_empty();
    for (field, asked) in [
        ("mask_fill", fill != Fill::Original),
        ("only_masked", only_masked.is_some()),
        ("soft_mask", soft),
        ("soft_inpainting", soft_inpainting.is_some()),
        ("latent_mask", init.latent_mask.is_some()),
    ] {
        if asked && !masked {
            return Err(InvalidRequest::new(
                field,
                format!("{field} needs a mask, or sides to paint (outpaint)"),
            ));
        }
    }
    if let Some(settings) = soft_inpainting {
        if soft {
            let reason = "soft_inpainting and soft_mask are two ways to read a mask's grey; one of them, please";
            return Err(InvalidRequest::new("soft_inpainting", reason));
        }
        let wrong =
            |reason| InvalidRequest::new("soft_inpainting", format!("soft_inpainting: {reason}"));
        settings.check().map_err(wrong)?;
    }
    let padding = only_masked.unwrap_or(0);
    within("mask_padding", "mask_padding", padding, MASK_PADDING)?;
    let size = (init.image.width() as usize, init.image.height() as usize);
    let (width, height) = outpaint.around(size);
    for side in [outpaint.left, outpaint.right, outpaint.top, outpaint.bottom] {
        within("outpaint", "a side to paint", side, 0..=limits.max_side)?;
    }
    let decoded = limits.decode.max_pixels as usize;
    if !outpaint.is_empty() && width.saturating_mul(height) > decoded {
        return Err(InvalidRequest::new(
            "outpaint",
            format!(
                "with its sides the picture has {width} x {height} pixels; {decoded} are the most"
            ),
        ));
    }
    let encoded = width.saturating_mul(height);
    if fit == Fit::Latent && encoded > limits.max_pixels {
        return Err(InvalidRequest::new(
            "resize_mode",
            format!("the picture has {width} x {height} pixels, which is too much for resize_mode latent; {} are the most", limits.max_pixels),
        ));
    }
    Ok(())
}
