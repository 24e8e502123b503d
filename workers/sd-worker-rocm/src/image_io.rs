//! Pictures in and out of files and requests.

use crate::{exif, png};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::webp::WebPEncoder;
use image::{
    DynamicImage, ExtendedColorType, GrayImage, ImageDecoder, ImageEncoder, ImageFormat,
    ImageReader, RgbImage,
};
use std::io::Cursor;
use std::path::Path;
use worker::picture;
pub use worker::picture::{decode, from_base64, to_rgb, DecodeLimits};
use worker::{Error, Result};

/// File formats that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Lossless; the parameters are a text chunk, as web UIs write it.
    #[default]
    Png,
    /// Lossy; the parameters are EXIF's user comment.
    Jpeg,
    /// Lossless here; the parameters are EXIF's user comment.
    WebP,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Png, Self::Jpeg, Self::WebP];

    /// The format of this name or extension.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        match name.to_ascii_lowercase().as_str() {
            "png" => Ok(Self::Png),
            "jpeg" | "jpg" => Ok(Self::Jpeg),
            "webp" => Ok(Self::WebP),
            _ => Err(Error::Usage(format!(
                "{name:?} is not an image format; use png, jpeg or webp"
            ))),
        }
    }

    /// The format that a file's name ends in.
    ///
    /// # Errors
    /// [`Error::Usage`] for another ending or none.
    pub fn of_path(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        Self::from_name(extension)
    }

    /// The usual file extension, which is also the name.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpeg",
            Self::WebP => "webp",
        }
    }

    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::WebP => "image/webp",
        }
    }
}

/// Base64 text of bytes.
pub fn to_base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Brightness as a mask; what is transparent is black.
pub fn to_mask(picture: &DynamicImage) -> GrayImage {
    let pixels = picture.to_luma_alpha8();
    GrayImage::from_fn(pixels.width(), pixels.height(), |x, y| {
        let image::LumaA([l, a]) = *pixels.get_pixel(x, y);
        image::Luma([(u32::from(l) * u32::from(a) / 255) as u8])
    })
}

/// Transparency as a mask: what is transparent is white. `None` for a picture without transparency.
pub fn transparency_mask(picture: &DynamicImage) -> Option<GrayImage> {
    if !picture.color().has_alpha() {
        return None;
    }
    let rgba = picture.to_rgba8();
    Some(GrayImage::from_fn(rgba.width(), rgba.height(), |x, y| {
        image::Luma([255 - rgba.get_pixel(x, y).0[3]])
    }))
}

/// A picture as a file's bytes, with the parameters it was made with. `quality`, 1 to 100, is for JPEG.
///
/// # Errors
/// [`Error::Runtime`] if the encoder refuses, which sizes beyond the format's do.
pub fn encode(
    picture: &RgbImage,
    format: Format,
    quality: u8,
    parameters: Option<&str>,
) -> Result<Vec<u8>> {
    let failed = |e: image::ImageError| {
        Error::Runtime(format!(
            "the picture cannot be written as {}: {e}",
            format.extension()
        ))
    };
    let (width, height) = picture.dimensions();
    let color = ExtendedColorType::Rgb8;
    let comment = parameters.map(exif::with_user_comment).transpose()?;
    let mut bytes = Vec::new();
    match format {
        Format::Png => return png::encode(picture, parameters),
        Format::Jpeg => {
            let mut encoder = JpegEncoder::new_with_quality(&mut bytes, quality.clamp(1, 100));
            if let Some(comment) = comment {
                encoder
                    .set_exif_metadata(comment)
                    .map_err(|e| failed(image::ImageError::Unsupported(e)))?;
            }
            encoder
                .write_image(picture, width, height, color)
                .map_err(failed)?;
        }
        Format::WebP => {
            let mut encoder = WebPEncoder::new_lossless(&mut bytes);
            if let Some(comment) = comment {
                encoder
                    .set_exif_metadata(comment)
                    .map_err(|e| failed(image::ImageError::Unsupported(e)))?;
            }
            encoder
                .write_image(picture, width, height, color)
                .map_err(failed)?;
        }
    }
    Ok(bytes)
}

/// The parameters text of a picture's file, `None` if it has none.
///
/// # Errors
/// [`Error::Usage`] for bytes that are not a picture.
pub fn parameters_of(bytes: &[u8]) -> Result<Option<String>> {
    match image::guess_format(bytes) {
        Ok(ImageFormat::Png) => png::parameters(bytes),
        Ok(format @ (ImageFormat::Jpeg | ImageFormat::WebP)) => {
            picture::check_chunks(Some(format), bytes)?;
            let mut decoder = ImageReader::new(Cursor::new(bytes))
                .with_guessed_format()
                .map_err(|e| Error::Usage(format!("the picture cannot be read: {e}")))?
                .into_decoder()
                .map_err(|e| Error::Usage(format!("the picture cannot be read: {e}")))?;
            let metadata = decoder
                .exif_metadata()
                .map_err(|e| Error::Usage(format!("the picture's EXIF cannot be read: {e}")))?;
            Ok(metadata.and_then(|exif| exif::user_comment(&exif)))
        }
        _ => Err(Error::Usage(
            "the picture is neither PNG, JPEG nor WebP".to_string(),
        )),
    }
}

/// The graph that ComfyUI put into a PNG file, as JSON; `None` if there is none.
///
/// # Errors
/// [`Error::Usage`] for a PNG file that cannot be read, or text that is too long.
pub fn comfy_graph_of(bytes: &[u8]) -> Result<Option<String>> {
    match image::guess_format(bytes) {
        Ok(ImageFormat::Png) => png::text(bytes, "prompt"),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient() -> RgbImage {
        RgbImage::from_fn(24, 16, |x, y| image::Rgb([x as u8 * 10, y as u8 * 15, 77]))
    }

    #[test]
    fn every_format_carries_its_parameters() {
        let text = "a „cat“, [red]\nNegative prompt: ü\nSteps: 3, Seed: 5";
        for format in Format::ALL {
            let bytes = encode(&gradient(), format, 90, Some(text)).unwrap();
            assert_eq!(
                parameters_of(&bytes).unwrap().as_deref(),
                Some(text),
                "{format:?}"
            );
            let back = to_rgb(&decode(&bytes, &DecodeLimits::default()).unwrap());
            let worst = back
                .iter()
                .zip(gradient().iter())
                .map(|(a, b)| a.abs_diff(*b))
                .max();
            let allowed = if format == Format::Jpeg { 40 } else { 0 };
            assert!(worst <= Some(allowed), "{format:?}: {worst:?}");
            let plain = encode(&gradient(), format, 90, None).unwrap();
            assert_eq!(parameters_of(&plain).unwrap(), None);
        }
    }

    #[test]
    fn hostile_pictures_are_refused() {
        let limits = DecodeLimits {
            max_bytes: 1 << 16,
            max_side: 64,
            max_pixels: 1024,
        };
        let refused = |bytes: &[u8]| {
            let error = decode(bytes, &limits).unwrap_err();
            assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT);
            error.to_string()
        };
        assert!(refused(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;").contains("neither"));
        assert!(refused(b"").contains("neither"));
        assert!(refused(&vec![0; 1 << 17]).contains("bytes"));
        let png = encode(&gradient(), Format::Png, 0, None).unwrap();
        refused(&png[..png.len() / 2]);
        // The header promises 2^31 - 1 pixels a side.
        let mut huge = png.clone();
        huge[16..20].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);
        refused(&huge);
        let wide = RgbImage::new(65, 2);
        refused(&encode(&wide, Format::Png, 0, None).unwrap());
        let large = RgbImage::new(64, 32);
        assert!(refused(&encode(&large, Format::Png, 0, None).unwrap()).contains("pixels"));
        decode(&png, &limits).unwrap();
    }

    #[test]
    fn a_chunk_that_leaves_the_file_is_refused() {
        let mut file = encode(&gradient(), Format::WebP, 90, Some("text")).unwrap();
        let chunk = file.windows(4).position(|name| name == b"EXIF").unwrap();
        file[chunk + 4..chunk + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        let errors = [
            decode(&file, &DecodeLimits::default()).map(drop),
            parameters_of(&file).map(drop),
        ];
        for error in errors {
            let text = error.unwrap_err().to_string();
            assert!(text.contains("announces more than it has"), "{text}");
        }
    }

    #[test]
    fn transparency() {
        let mut rgba = image::RgbaImage::from_pixel(2, 1, image::Rgba([0, 0, 0, 0]));
        rgba.put_pixel(1, 0, image::Rgba([10, 20, 30, 255]));
        let picture = DynamicImage::ImageRgba8(rgba);
        assert_eq!(to_rgb(&picture).into_raw(), [255, 255, 255, 10, 20, 30]);
        assert_eq!(transparency_mask(&picture).unwrap().into_raw(), [255, 0]);
        assert!(transparency_mask(&DynamicImage::new_rgb8(1, 1)).is_none());
    }
}
