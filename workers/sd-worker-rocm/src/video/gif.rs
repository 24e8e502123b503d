//! Animated GIF.

use super::{failed, shown, VideoFile, VideoFormat, VideoWriter};
use gif::{AnyExtension, Encoder, Frame, Repeat};
use image::RgbImage;
use worker::Result;

/// How colours are chosen, 1 (best) to 30 (fastest).
const SPEED: i32 = 10;
/// The label of a comment, and bytes of one of its blocks.
const COMMENT: (u8, usize) = (0xFE, 255);

/// The file so far.
pub(super) struct Gif {
    encoder: Encoder<Vec<u8>>,
    width: u16,
    height: u16,
    fps: usize,
    frames: usize,
}

impl Gif {
    pub(super) fn new(file: &VideoFile) -> Result<Self> {
        const FORMAT: VideoFormat = VideoFormat::Gif;
        let (Ok(width), Ok(height)) = (u16::try_from(file.width), u16::try_from(file.height))
        else {
            return Err(file.refused("it takes up to 65535 pixels a side"));
        };
        let encoder = Encoder::new(Vec::new(), width, height, &[]);
        let mut encoder = encoder.map_err(|e| failed(FORMAT, e))?;
        let repeat = encoder.set_repeat(Repeat::Infinite);
        repeat.map_err(|e| failed(FORMAT, e))?;
        let (label, block) = COMMENT;
        let text: Vec<&[u8]> = file.parameters.as_bytes().chunks(block).collect();
        if !text.is_empty() {
            let comment = encoder.write_raw_extension(AnyExtension(label), &text);
            comment.map_err(|e| failed(FORMAT, e))?;
        }
        Ok(Self {
            encoder,
            width,
            height,
            fps: file.fps,
            frames: 0,
        })
    }
}

impl VideoWriter for Gif {
    fn push(&mut self, frame: &RgbImage) -> Result<()> {
        const FORMAT: VideoFormat = VideoFormat::Gif;
        let (width, height) = (self.width, self.height);
        if frame.dimensions() != (u32::from(width), u32::from(height)) {
            return Err(failed(FORMAT, "a frame of another size"));
        }
        let mut frame = Frame::from_rgb_speed(width, height, frame.as_raw(), SPEED);
        frame.delay = shown(self.frames, self.fps, 100) as u16;
        self.frames += 1;
        let written = self.encoder.write_frame(&frame);
        written.map_err(|e| failed(FORMAT, e))
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        const FORMAT: VideoFormat = VideoFormat::Gif;
        if self.frames == 0 {
            return Err(failed(FORMAT, "there are no frames"));
        }
        self.encoder.into_inner().map_err(|e| failed(FORMAT, e))
    }
}
