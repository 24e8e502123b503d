//! Animated WebP: chunks of RIFF around frames that are encoded one by one, without loss.

use super::{failed, shown, VideoFile, VideoFormat, VideoWriter};
use crate::exif;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder, RgbImage};
use worker::Result;

/// Pixels of a side, of which the format has 14 bits.
const LARGEST: u32 = 1 << 14;
/// Where a picture's first chunk is: behind `RIFF`, a size and `WEBP`.
const FIRST_CHUNK: usize = 12;

/// The file so far.
pub(super) struct WebP {
    width: u32,
    height: u32,
    fps: usize,
    frames: usize,
    /// All chunks behind `WEBP`.
    chunks: Vec<u8>,
    exif: Vec<u8>,
}

impl WebP {
    pub(super) fn new(file: &VideoFile) -> Result<Self> {
        if !(1..=LARGEST).contains(&file.width) || !(1..=LARGEST).contains(&file.height) {
            return Err(file.refused(format!("it takes up to {LARGEST} pixels a side")));
        }
        /// There is EXIF, and there are several frames.
        const FLAGS: u8 = 0x08 | 0x02;
        let mut features = vec![FLAGS, 0, 0, 0];
        features.extend(bytes3(file.width - 1));
        features.extend(bytes3(file.height - 1));
        let mut chunks = Vec::new();
        chunk(&mut chunks, b"VP8X", &features);
        // A background of nothing, repeated for ever.
        chunk(&mut chunks, b"ANIM", &[0; 6]);
        Ok(Self {
            width: file.width,
            height: file.height,
            fps: file.fps,
            frames: 0,
            chunks,
            exif: exif::with_user_comment(file.parameters)?,
        })
    }
}

impl VideoWriter for WebP {
    fn push(&mut self, frame: &RgbImage) -> Result<()> {
        const FORMAT: VideoFormat = VideoFormat::WebP;
        if frame.dimensions() != (self.width, self.height) {
            return Err(failed(FORMAT, "a frame of another size"));
        }
        let mut picture = Vec::new();
        WebPEncoder::new_lossless(&mut picture)
            .write_image(frame, self.width, self.height, ExtendedColorType::Rgb8)
            .map_err(|e| failed(FORMAT, e))?;
        let milliseconds = shown(self.frames, self.fps, 1000);
        // In the corner, of the whole size, for so long, in the place of the frame before.
        let mut content = vec![0; 6];
        content.extend(bytes3(self.width - 1));
        content.extend(bytes3(self.height - 1));
        content.extend(bytes3(milliseconds as u32));
        content.push(0x02);
        content.extend(picture.get(FIRST_CHUNK..).unwrap_or_default());
        chunk(&mut self.chunks, b"ANMF", &content);
        self.frames += 1;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<u8>> {
        if self.frames == 0 {
            return Err(failed(VideoFormat::WebP, "there are no frames"));
        }
        chunk(&mut self.chunks, b"EXIF", &self.exif);
        let size = u32::try_from(self.chunks.len() + 4);
        let size = size.map_err(|_| failed(VideoFormat::WebP, "more than 4 GiB; use mp4"))?;
        let mut bytes = b"RIFF".to_vec();
        bytes.extend(size.to_le_bytes());
        bytes.extend(b"WEBP");
        bytes.append(&mut self.chunks);
        Ok(bytes)
    }
}

/// The lower three bytes.
fn bytes3(value: u32) -> [u8; 3] {
    let [a, b, c, _] = value.to_le_bytes();
    [a, b, c]
}

/// A chunk, filled up to an even length.
fn chunk(to: &mut Vec<u8>, name: &[u8; 4], content: &[u8]) {
    to.extend(name);
    to.extend((content.len() as u32).to_le_bytes());
    to.extend(content);
    if content.len() % 2 == 1 {
        to.push(0);
    }
}
