//! Animated pictures: their frames, decoded one after another.

use super::{check_chunks, to_rgb, DecodeLimits};
use crate::{Error, Result};
use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, DynamicImage, Frames, ImageDecoder, ImageFormat, Limits, RgbImage};
use std::io::Cursor;

/// Frames of an animation at most.
const MOST_FRAMES: usize = 4096;
/// Pixels of all frames together at most: what decoding takes, twice, is seconds.
const MOST_PIXELS: u64 = 256 << 20;
/// Milliseconds of a frame without a time of its own, as browsers have it.
const USUAL_MS: f64 = 100.0;

/// An animated GIF, WebP or PNG.
#[derive(Debug, Clone, Copy)]
pub struct Animation<'a> {
    bytes: &'a [u8],
    format: ImageFormat,
    limits: DecodeLimits,
    /// Number of frames.
    pub frames: usize,
    /// Seconds of all frames.
    pub duration: f64,
    /// Width and height in pixels.
    pub size: (usize, usize),
}

impl<'a> Animation<'a> {
    /// Opens one and counts its frames, each of which is decoded for it.
    ///
    /// # Errors
    /// [`Error::Usage`] for anything else, damage, and what is beyond the limits.
    pub fn open(bytes: &'a [u8], limits: &DecodeLimits) -> Result<Self> {
        if bytes.len() > limits.max_bytes {
            return Err(Error::Usage(format!(
                "the video has {} bytes; {} are the most",
                bytes.len(),
                limits.max_bytes
            )));
        }
        let format = image::guess_format(bytes).ok();
        let animated = [ImageFormat::Gif, ImageFormat::Png, ImageFormat::WebP];
        let format = format
            .filter(|format| animated.contains(format))
            .ok_or_else(|| Error::Usage(format!("{} {WHAT_TO_SEND}", kind_of(bytes))))?;
        check_chunks(Some(format), bytes)?;
        let mut animation = Self {
            bytes,
            format,
            limits: *limits,
            frames: 0,
            duration: 0.0,
            size: (0, 0),
        };
        let mut milliseconds = 0.0;
        for frame in animation.decoded()? {
            let frame = frame.map_err(unreadable)?;
            let (width, height) = frame.buffer().dimensions();
            let pixels = u64::from(width) * u64::from(height);
            animation.size = (width as usize, height as usize);
            animation.frames += 1;
            if animation.frames > MOST_FRAMES || pixels * animation.frames as u64 > MOST_PIXELS {
                return Err(Error::Usage(format!(
                    "the video has more than {MOST_FRAMES} frames, or more than {MOST_PIXELS} pixels in all; {WHAT_TO_SEND}"
                )));
            }
            let (numerator, denominator) = frame.delay().numer_denom_ms();
            milliseconds += match numerator {
                0 => USUAL_MS,
                _ => f64::from(numerator) / f64::from(denominator.max(1)),
            };
        }
        if animation.frames == 0 {
            return Err(Error::Usage("the video has no frames".to_string()));
        }
        animation.duration = milliseconds / 1000.0;
        Ok(animation)
    }

    /// Frames of a second, on average.
    pub fn fps(&self) -> f64 {
        self.frames as f64 / self.duration
    }

    /// Gives those frames whose numbers are wanted, in ascending order, laid on white.
    ///
    /// # Errors
    /// [`Error::Usage`] for a damaged frame, and those of `take`.
    pub fn each(
        &self,
        wanted: &[usize],
        mut take: impl FnMut(RgbImage) -> Result<()>,
    ) -> Result<()> {
        let mut wanted = wanted.iter().peekable();
        for (index, frame) in self.decoded()?.enumerate() {
            if wanted.peek().is_none() {
                break;
            }
            let frame = frame.map_err(unreadable)?;
            if wanted.next_if(|next| **next == index).is_some() {
                take(to_rgb(&DynamicImage::ImageRgba8(frame.into_buffer())))?;
            }
        }
        Ok(())
    }

    fn decoded(&self) -> Result<Frames<'a>> {
        let mut limits = Limits::default();
        limits.max_image_width = Some(self.limits.max_side);
        limits.max_image_height = Some(self.limits.max_side);
        limits.max_alloc = Some(self.limits.max_pixels * 16);
        let bytes = Cursor::new(self.bytes);
        let still = || {
            Error::Usage(format!(
                "a picture that does not move is no video; {WHAT_TO_SEND}"
            ))
        };
        match self.format {
            ImageFormat::Gif => {
                let mut decoder = GifDecoder::new(bytes).map_err(unreadable)?;
                decoder.set_limits(limits).map_err(unreadable)?;
                self.check(&decoder)?;
                Ok(decoder.into_frames())
            }
            ImageFormat::Png => {
                let decoder = PngDecoder::with_limits(bytes, limits).map_err(unreadable)?;
                self.check(&decoder)?;
                match decoder.is_apng().map_err(unreadable)? {
                    true => Ok(decoder.apng().map_err(unreadable)?.into_frames()),
                    false => Err(still()),
                }
            }
            _ => {
                let mut decoder = WebPDecoder::new(bytes).map_err(unreadable)?;
                decoder.set_limits(limits).map_err(unreadable)?;
                self.check(&decoder)?;
                match decoder.has_animation() {
                    true => Ok(decoder.into_frames()),
                    false => Err(still()),
                }
            }
        }
    }

    fn check(&self, decoder: &impl ImageDecoder) -> Result<()> {
        let (width, height) = decoder.dimensions();
        match u64::from(width) * u64::from(height) > self.limits.max_pixels {
            true => Err(Error::Usage(format!(
                "the video has {width} x {height} pixels; {} are the most",
                self.limits.max_pixels
            ))),
            false => Ok(()),
        }
    }
}

const WHAT_TO_SEND: &str = "send an animated GIF, WebP or PNG, or frames: data:video/jpeg;base64,FRAME,FRAME,... (for example of `ffmpeg -i FILE -vf fps=2 frames/%04d.jpg`)";

/// What a file is that is no animated picture.
fn kind_of(bytes: &[u8]) -> &'static str {
    let at = |start: usize, magic: &[u8]| bytes.get(start..start + magic.len()) == Some(magic);
    match () {
        _ if at(4, b"ftyp") => "videos in MP4 and QuickTime files are not decoded here;",
        _ if at(0, &[0x1a, 0x45, 0xdf, 0xa3]) => {
            "videos in WebM and Matroska files are not decoded here;"
        }
        _ if at(0, b"RIFF") && at(8, b"AVI ") => "videos in AVI files are not decoded here;",
        _ if at(0, b"OggS") => "videos in Ogg files are not decoded here;",
        _ => "this is no video that is decoded here;",
    }
}

fn unreadable(error: image::ImageError) -> Error {
    Error::Usage(format!("the video cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::codecs::gif::GifEncoder;
    use image::{Delay, Frame, Rgba, RgbaImage};

    fn gif(frames: u8, milliseconds: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = GifEncoder::new(&mut bytes);
        for i in 0..frames {
            let picture = RgbaImage::from_pixel(8, 6, Rgba([i * 40, 0, 0, 255]));
            let delay = Delay::from_numer_denom_ms(milliseconds, 1);
            encoder
                .encode_frame(Frame::from_parts(picture, 0, 0, delay))
                .unwrap();
        }
        drop(encoder);
        bytes
    }

    #[test]
    fn frames_are_counted_and_given() {
        let bytes = gif(5, 200);
        let animation = Animation::open(&bytes, &DecodeLimits::DEFAULT).unwrap();
        assert_eq!((animation.frames, animation.size), (5, (8, 6)));
        assert_eq!((animation.duration, animation.fps()), (1.0, 5.0));
        let mut reds = Vec::new();
        let take = |frame: RgbImage| {
            reds.push(frame.get_pixel(0, 0)[0]);
            Ok(())
        };
        animation.each(&[1, 4], take).unwrap();
        assert_eq!(reds, [40, 160]);
        // Without times, ten frames are a second.
        let bytes = gif(3, 0);
        let animation = Animation::open(&bytes, &DecodeLimits::DEFAULT).unwrap();
        assert!((animation.fps() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_no_animation_is_refused_by_name() {
        let refusal = |bytes: &[u8], limits: &DecodeLimits| {
            Animation::open(bytes, limits).unwrap_err().to_string()
        };
        let usual = DecodeLimits::DEFAULT;
        assert!(refusal(b"\0\0\0\x18ftypmp42", &usual).contains("MP4"));
        assert!(refusal(&[0x1a, 0x45, 0xdf, 0xa3, 0], &usual).contains("WebM"));
        assert!(refusal(b"RIFF\0\0\0\0AVI LIST", &usual).contains("AVI"));
        assert!(refusal(b"", &usual).contains("no video"));
        let mut still = Cursor::new(Vec::new());
        let picture = RgbImage::new(2, 2);
        picture.write_to(&mut still, ImageFormat::Png).unwrap();
        assert!(refusal(still.get_ref(), &usual).contains("does not move"));
        let small = DecodeLimits {
            max_pixels: 47,
            ..usual
        };
        assert!(refusal(&gif(1, 10), &small).contains("8 x 6"));
        let short = DecodeLimits {
            max_bytes: 3,
            ..usual
        };
        assert!(refusal(&gif(1, 10), &short).contains("3 are the most"));
        let bytes = gif(3, 10);
        assert!(refusal(&bytes[..bytes.len() / 2], &usual).contains("cannot be read"));
    }
}
