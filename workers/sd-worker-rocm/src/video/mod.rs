//! Videos as files, written frame by frame.
//!
//! | Format | How                                                     | Text of the request                     |
//! |--------|---------------------------------------------------------|-----------------------------------------|
//! | MP4    | AV1 by rav1e, which no patent fee is asked for          | the comment, `©cmt`                     |
//! | WebP   | animated, every frame without loss                      | EXIF's user comment, as for pictures    |
//! | GIF    | animated, 256 colours a frame                           | a comment                               |

mod boxes;
mod gif;
mod mp4;
mod webp;

use image::RgbImage;
use std::path::Path;
use worker::{Error, Result};

/// How a video is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VideoFormat {
    /// AV1 in MP4.
    #[default]
    Mp4,
    /// Animated WebP, without loss.
    WebP,
    /// Animated GIF, of 256 colours a frame.
    Gif,
}

impl VideoFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mp4, Self::WebP, Self::Gif];

    /// The format of this name or extension.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        let found = Self::ALL.into_iter().find(|f| f.extension() == lower);
        found.ok_or_else(|| {
            Error::Usage(format!(
                "{name:?} is not a format of videos; use mp4, webp or gif"
            ))
        })
    }

    /// The format that a file's name ends in.
    ///
    /// # Errors
    /// [`Error::Usage`] for another ending or none.
    pub fn of_path(path: &Path) -> Result<Self> {
        Self::from_name(path.extension().and_then(|e| e.to_str()).unwrap_or(""))
    }

    /// The usual file extension, which is also the name.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Mp4 => "mp4",
            Self::WebP => "webp",
            Self::Gif => "gif",
        }
    }

    /// The media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Mp4 => "video/mp4",
            Self::WebP => "image/webp",
            Self::Gif => "image/gif",
        }
    }
}

/// What a file is to be.
#[derive(Debug, Clone, Copy)]
pub struct VideoFile<'a> {
    /// The format.
    pub format: VideoFormat,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Frames a second.
    pub fps: usize,
    /// What it was made with.
    pub parameters: &'a str,
}

/// A file in the making.
pub trait VideoWriter {
    /// Adds a frame of the file's size.
    ///
    /// # Errors
    /// If the format or its encoder refuses it.
    fn push(&mut self, frame: &RgbImage) -> Result<()>;

    /// The file.
    ///
    /// # Errors
    /// If there are no frames, or the file is larger than the format can say.
    fn finish(self: Box<Self>) -> Result<Vec<u8>>;
}

impl VideoFile<'_> {
    /// Begins a file.
    ///
    /// # Errors
    /// If the format has no such size.
    pub fn begin(&self) -> Result<Box<dyn VideoWriter>> {
        Ok(match self.format {
            VideoFormat::Mp4 => Box::new(mp4::Mp4::new(self)?),
            VideoFormat::WebP => Box::new(webp::WebP::new(self)?),
            VideoFormat::Gif => Box::new(gif::Gif::new(self)?),
        })
    }

    fn refused(&self, why: impl std::fmt::Display) -> Error {
        Error::Usage(format!(
            "a video of {}x{} pixels cannot be written as {}: {why}",
            self.width,
            self.height,
            self.format.extension()
        ))
    }
}

/// How long a frame is shown, in units of which a second has `units`; rounded so that no error adds up.
fn shown(frame: usize, fps: usize, units: usize) -> usize {
    let until = |frame: usize| (2 * frame * units + fps) / (2 * fps.max(1));
    until(frame + 1) - until(frame)
}

/// An error of an encoder.
fn failed(format: VideoFormat, why: impl std::fmt::Display) -> Error {
    Error::Runtime(format!("writing {}: {why}", format.extension()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::image::codecs::webp::WebPDecoder;
    use ::image::{AnimationDecoder, Rgb};
    use std::io::Cursor;

    /// A square that moves over a slope of colours.
    fn frame(i: u32) -> RgbImage {
        RgbImage::from_fn(48, 32, |x, y| match (4 * i..4 * i + 8).contains(&x) {
            true => Rgb([250, 240, 230]),
            false => Rgb([5 * x as u8, 7 * y as u8, 90]),
        })
    }

    fn written(format: VideoFormat, frames: u32) -> Vec<u8> {
        let file = VideoFile {
            format,
            width: 48,
            height: 32,
            fps: 16,
            parameters: "a red door\nSteps: 3",
        };
        let mut writer = file.begin().unwrap();
        for i in 0..frames {
            writer.push(&frame(i)).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn webp_keeps_every_pixel_and_the_text() {
        let bytes = written(VideoFormat::WebP, 5);
        let decoder = WebPDecoder::new(Cursor::new(&bytes)).unwrap();
        let frames = decoder.into_frames().collect_frames().unwrap();
        assert_eq!(frames.len(), 5);
        for (i, decoded) in frames.iter().enumerate() {
            let rgba = ::image::DynamicImage::from(decoded.buffer().clone());
            assert_eq!(rgba.to_rgb8(), frame(i as u32), "{i}");
        }
        let shown: u32 = (frames.iter())
            .map(|frame| frame.delay().numer_denom_ms().0)
            .sum();
        assert_eq!(shown, 5 * 1000 / 16 + 1);
        let text = crate::image_io::parameters_of(&bytes).unwrap();
        assert_eq!(text.as_deref(), Some("a red door\nSteps: 3"));
    }

    #[test]
    fn gif_has_its_frames_and_comment() {
        let bytes = written(VideoFormat::Gif, 3);
        let mut options = ::gif::DecodeOptions::new();
        options.set_color_output(::gif::ColorOutput::RGBA);
        let mut decoder = options.read_info(Cursor::new(&bytes)).unwrap();
        for i in 0..3 {
            let decoded = decoder.read_next_frame().unwrap().unwrap();
            let wanted = frame(i);
            let colours = decoded.buffer.chunks(4).zip(wanted.pixels());
            let off = colours.flat_map(|(decoded, wanted)| {
                (0..3).map(|c| u64::from(decoded[c].abs_diff(wanted.0[c])))
            });
            let mean = off.sum::<u64>() / (3 * 48 * 32);
            assert!(mean < 10, "{i}: {mean}");
        }
        assert!(decoder.read_next_frame().unwrap().is_none());
        let text = b"a red door";
        assert!(bytes.windows(text.len()).any(|window| window == text));
    }

    #[test]
    fn frames_of_another_size_and_files_without_frames_are_refused() {
        for format in VideoFormat::ALL {
            let file = VideoFile {
                format,
                width: 48,
                height: 32,
                fps: 16,
                parameters: "",
            };
            let mut writer = file.begin().unwrap();
            assert!(writer.push(&RgbImage::new(32, 48)).is_err(), "{format:?}");
            assert!(file.begin().unwrap().finish().is_err(), "{format:?}");
            let huge = VideoFile {
                width: 1 << 20,
                ..file
            };
            assert!(huge.begin().is_err(), "{format:?}");
        }
    }

    #[test]
    fn no_time_is_lost() {
        for fps in [1, 7, 16, 24, 30, 120] {
            let all: usize = (0..10 * fps).map(|i| shown(i, fps, 100)).sum();
            assert_eq!(all, 1000);
        }
    }
}
