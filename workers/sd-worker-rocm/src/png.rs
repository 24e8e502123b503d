//! PNG with the `parameters` text that web UIs write and read.

use ::png::{BitDepth, ColorType, Decoder, Encoder};
use image::RgbImage;
use std::io::Cursor;
use worker::{Error, Result};

/// The keyword of the text chunk.
const KEYWORD: &str = "parameters";
/// Longest text that is read, and most memory for a file's chunks.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// A picture as PNG. Text that Latin-1 holds goes to a `tEXt` chunk, other text to `iTXt`.
///
/// # Errors
/// [`Error::Runtime`] if the encoder refuses.
pub fn encode(picture: &RgbImage, parameters: Option<&str>) -> Result<Vec<u8>> {
    let failed = |e: ::png::EncodingError| Error::Runtime(format!("writing PNG: {e}"));
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, picture.width(), picture.height());
    encoder.set_color(ColorType::Rgb);
    encoder.set_depth(BitDepth::Eight);
    if let Some(text) = parameters {
        let latin1 = text.chars().all(|c| u32::from(c) < 256);
        if latin1 {
            encoder.add_text_chunk(KEYWORD.to_string(), text.to_string())
        } else {
            encoder.add_itxt_chunk(KEYWORD.to_string(), text.to_string())
        }
        .map_err(failed)?;
    }
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(picture).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}

/// The `parameters` text of a PNG file, before or after the picture's data.
///
/// # Errors
/// [`Error::Usage`] for bytes that are no PNG, or text that is too long.
pub fn parameters(bytes: &[u8]) -> Result<Option<String>> {
    text(bytes, KEYWORD)
}

/// A text of a PNG file by its keyword, before or after the picture's data.
///
/// # Errors
/// Those of [`parameters`].
pub fn text(bytes: &[u8], keyword: &str) -> Result<Option<String>> {
    let bad = |e: ::png::DecodingError| Error::Usage(format!("the PNG file cannot be read: {e}"));
    let limits = ::png::Limits {
        bytes: 8 * MAX_TEXT_BYTES,
    };
    let mut reader = Decoder::new_with_limits(Cursor::new(bytes), limits)
        .read_info()
        .map_err(bad)?;
    let mut found = text_of(reader.info(), keyword)?;
    if found.is_none() {
        // Chunks may follow the picture. A damaged picture with text in front is none of our business here.
        if reader.finish().is_ok() {
            found = text_of(reader.info(), keyword)?;
        }
    }
    Ok(found)
}

fn text_of(info: &::png::Info, keyword: &str) -> Result<Option<String>> {
    let bad = |e: ::png::DecodingError| Error::Usage(format!("the PNG file's text: {e}"));
    if let Some(chunk) = info
        .uncompressed_latin1_text
        .iter()
        .find(|chunk| chunk.keyword == keyword)
    {
        return Ok(Some(chunk.text.clone()));
    }
    if let Some(chunk) = info.utf8_text.iter().find(|chunk| chunk.keyword == keyword) {
        let mut chunk = chunk.clone();
        chunk
            .decompress_text_with_limit(MAX_TEXT_BYTES)
            .map_err(bad)?;
        return chunk.get_text().map(Some).map_err(bad);
    }
    if let Some(chunk) = info
        .compressed_latin1_text
        .iter()
        .find(|chunk| chunk.keyword == keyword)
    {
        let mut chunk = chunk.clone();
        chunk
            .decompress_text_with_limit(MAX_TEXT_BYTES)
            .map_err(bad)?;
        return chunk.get_text().map(Some).map_err(bad);
    }
    Ok(None)
}
