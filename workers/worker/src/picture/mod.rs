//! Pictures from outside: decoded within limits, turned upright.

mod address;
mod animation;
pub mod webp;

pub use address::Sources;
pub use animation::Animation;

use crate::{Error, Result};
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use std::io::Cursor;

/// What a picture from outside may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Bytes of the file.
    pub max_bytes: usize,
    /// Pixels of a side.
    pub max_side: u32,
    /// Pixels in all.
    pub max_pixels: u64,
}

impl DecodeLimits {
    /// 32 MiB, 32 million pixels.
    pub const DEFAULT: Self = Self {
        max_bytes: 32 << 20,
        max_side: 8192,
        max_pixels: 32 << 20,
    };
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Decodes a PNG, JPEG or WebP picture, turned upright.
///
/// # Errors
/// [`Error::Usage`] for anything else, damage, and pictures beyond the limits.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<DynamicImage> {
    if bytes.len() > limits.max_bytes {
        return Err(Error::Usage(format!(
            "the picture has {} bytes; {} are the most",
            bytes.len(),
            limits.max_bytes
        )));
    }
    let bad = |e: image::ImageError| Error::Usage(format!("the picture cannot be read: {e}"));
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|e| Error::Usage(format!("the picture cannot be read: {e}")))?;
    if !matches!(
        reader.format(),
        Some(ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::WebP)
    ) {
        return Err(Error::Usage(
            "the picture is neither PNG, JPEG nor WebP".to_string(),
        ));
    }
    check_chunks(reader.format(), bytes)?;
    let mut allowed = Limits::default();
    allowed.max_image_width = Some(limits.max_side);
    allowed.max_image_height = Some(limits.max_side);
    // Sixteen bytes a pixel: the widest colour type, and the decoder's own copy.
    allowed.max_alloc = Some(limits.max_pixels * 16);
    reader.limits(allowed);
    let mut decoder = reader.into_decoder().map_err(bad)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits.max_pixels {
        return Err(Error::Usage(format!(
            "the picture has {width} x {height} pixels; {} are the most",
            limits.max_pixels
        )));
    }
    let orientation = decoder.orientation().map_err(bad)?;
    let mut picture = DynamicImage::from_decoder(decoder).map_err(bad)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Refuses a WebP with a chunk that leaves the file.
///
/// # Errors
/// [`Error::Usage`] if there is one.
pub fn check_chunks(format: Option<ImageFormat>, bytes: &[u8]) -> Result<()> {
    match format == Some(ImageFormat::WebP) && !webp::chunks_fit(bytes) {
        true => Err(Error::Usage(
            "the picture cannot be read: it announces more than it has".to_string(),
        )),
        false => Ok(()),
    }
}

/// The bytes of base64 text, with or without a `data:` URL's head.
///
/// # Errors
/// [`Error::Usage`] for text that is not base64, or longer than the limits allow.
pub fn from_base64(text: &str, limits: &DecodeLimits) -> Result<Vec<u8>> {
    use base64::Engine;
    let text = match text.split_once(";base64,") {
        Some((head, rest)) if head.starts_with("data:") => rest,
        _ => text,
    };
    if text.len() / 4 * 3 > limits.max_bytes.saturating_add(3) {
        return Err(Error::Usage(format!(
            "the data is longer than {} bytes",
            limits.max_bytes
        )));
    }
    let clean: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    base64::engine::general_purpose::STANDARD
        .decode(clean)
        .map_err(|e| Error::Usage(format!("the data is not base64: {e}")))
}

/// Colours on white where the picture is transparent.
pub fn to_rgb(picture: &DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.to_rgb8();
    }
    let rgba = picture.to_rgba8();
    RgbImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        let image::Rgba([r, g, b, a]) = *rgba.get_pixel(x, y);
        let over = |c: u8| {
            let (c, a) = (u32::from(c), u32::from(a));
            ((c * a + 255 * (255 - a) + 127) / 255) as u8
        };
        image::Rgb([over(r), over(g), over(b)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_with_and_without_a_url() {
        let limits = DecodeLimits {
            max_bytes: 6,
            ..DecodeLimits::default()
        };
        assert_eq!(from_base64("aGVsbG8=", &limits).unwrap(), b"hello");
        assert_eq!(
            from_base64("data:image/png;base64,aGVs\nbG8=", &limits).unwrap(),
            b"hello"
        );
        assert!(from_base64("aGVsbG8", &limits).is_err());
        assert!(from_base64("not base64!", &limits).is_err());
        assert!(from_base64(&"A".repeat(40), &limits).is_err());
    }
}
