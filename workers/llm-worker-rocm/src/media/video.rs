//! Frames of a video, and what stands for them in a prompt.

use super::{Expansion, Processor, DECODING};
use crate::engine::media::{Content, MediaItem};
use crate::jinja::Rendered;
use crate::vision::{Kind, Recording, Video, VideoOptions, VisionConfig};
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use worker::picture::{decode, from_base64, to_rgb, Animation, DecodeLimits, Sources};
use worker::{Error, Result};

/// What a `data:` URL of frames begins with, behind each other with commas between them.
const FRAMES: &str = "data:video/jpeg;base64,";
/// Frames that a list may have.
const MOST_FRAMES: usize = 2048;

/// A video in a message.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoPart<'a> {
    /// Addresses of its frames, or of one file that has them all.
    pub addresses: Vec<&'a str>,
    /// Frames of a second: those that a list has, or those that are taken of an animation.
    pub fps: Option<f64>,
    /// Most frames that are taken.
    pub frames: Option<usize>,
}

impl Processor {
    /// A video that takes no more than `most` rows of a prompt.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no video, is too large, or has a shape that the encoder does not take.
    pub fn video(
        &self,
        part: &VideoPart,
        sources: &Sources,
        most: usize,
    ) -> Result<Arc<MediaItem>> {
        let options = VideoOptions {
            fps: part.fps.or(self.videos.fps),
            frames: part.frames.or(self.videos.frames),
        };
        let limits = &sources.limits;
        let video = match part.addresses[..] {
            [address] => match address.strip_prefix(FRAMES) {
                Some(frames) => {
                    let frames: Vec<&str> = frames.split(',').collect();
                    let frame = |index: usize| from_base64(frames[index], limits);
                    self.listed(frames.len(), &frame, part.fps, &options, limits, most)?
                }
                None => self.animated(&sources.load(address)?, &options, limits, most)?,
            },
            _ => {
                let frame = |index: usize| sources.load(part.addresses[index]);
                let count = part.addresses.len();
                self.listed(count, &frame, part.fps, &options, limits, most)?
            }
        };
        Ok(Arc::new(MediaItem::new(Content::Video(video))))
    }

    /// A video of so many frames, each a file.
    fn listed(
        &self,
        count: usize,
        frame: &dyn Fn(usize) -> Result<Vec<u8>>,
        fps: Option<f64>,
        options: &VideoOptions,
        limits: &DecodeLimits,
        most: usize,
    ) -> Result<Video> {
        if count == 0 || count > MOST_FRAMES {
            return Err(Error::Usage(format!(
                "a video of {count} frames; 1 to {MOST_FRAMES} are taken"
            )));
        }
        let picture = |index: usize| -> Result<_> {
            let bytes = frame(index)?;
            // One at a time, as pictures are.
            let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
            Ok(to_rgb(&decode(&bytes, limits)?))
        };
        let first = picture(0)?;
        let recording = Recording {
            frames: count,
            fps,
            is_chosen: true,
            size: (first.width() as usize, first.height() as usize),
        };
        let mut maker = self
            .vision()?
            .video(&recording, options)
            .map_err(Error::Usage)?;
        refuse_long(maker.rows(), most)?;
        for index in maker.wanted.clone() {
            let frame = match index {
                0 => first.clone(),
                _ => picture(index)?,
            };
            maker.take(&frame).map_err(Error::Usage)?;
        }
        maker.finish().map_err(Error::Usage)
    }

    /// A video of an animated picture's frames.
    fn animated(
        &self,
        bytes: &[u8],
        options: &VideoOptions,
        limits: &DecodeLimits,
        most: usize,
    ) -> Result<Video> {
        let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        let animation = Animation::open(bytes, limits)?;
        let recording = Recording {
            frames: animation.frames,
            fps: Some(animation.fps()),
            is_chosen: false,
            size: animation.size,
        };
        let mut maker = self
            .vision()?
            .video(&recording, options)
            .map_err(Error::Usage)?;
        refuse_long(maker.rows(), most)?;
        let wanted = maker.wanted.clone();
        animation.each(&wanted, |frame| maker.take(&frame).map_err(Error::Usage))?;
        maker.finish().map_err(Error::Usage)
    }
}

impl VisionConfig {
    /// A video's place with what the template has written around it, where frames have that around each of them.
    pub(super) fn with_marks(&self, range: Range<usize>, rendered: &Rendered) -> Range<usize> {
        let (before, behind) = self.traits.alone;
        let stands = rendered.text[..range.start].ends_with(before)
            && rendered.text[range.end..].starts_with(behind);
        match self.traits.kind == Kind::Qwen3Vl && stands {
            true => range.start - before.len()..range.end + behind.len(),
            false => range,
        }
    }

    /// A video's part of a prompt; `is_alone` where the template has left no place for it.
    pub(super) fn video_expansion(&self, video: &Video, token: &str, is_alone: bool) -> Expansion {
        let traits = self.traits;
        let tiles = &video.pixels.tiles;
        let runs: Vec<usize> = tiles.iter().map(|t| self.rows_of_tile(t)).collect();
        let text = match traits.kind {
            Kind::Qwen3Vl => {
                let (before, behind) = traits.alone;
                let frame = |time: &f64| format!("<{time:.1} seconds>{before}{token}{behind}");
                video.times.iter().map(frame).collect()
            }
            Kind::Idefics3 => {
                const EDGE: &str = "<fake_token_around_image>";
                let frame = |time: &f64| {
                    let (minutes, seconds) = (time / 60.0, time % 60.0);
                    format!(
                        "\nFrame from {:02}:{:02}:{EDGE}<global-img>{token}{EDGE}",
                        minutes as u64, seconds as u64
                    )
                };
                let seconds = video.duration as u64;
                format!(
                    "You are provided the following series of {} frames from a {}:{:02}:{:02} [H:MM:SS] video.\n{}\n\n",
                    in_words(tiles.len()),
                    seconds / 3600,
                    seconds / 60 % 60,
                    seconds % 60,
                    video.times.iter().map(frame).collect::<String>(),
                )
            }
            Kind::InternVl => {
                let (before, behind) = traits.around;
                let frame = |frame: usize| format!("Frame{frame}: {before}{token}{behind}");
                (1..=tiles.len()).map(frame).collect::<Vec<_>>().join("\n")
            }
            _ => {
                return Expansion {
                    text: surrounded(token, traits.video.map(|video| video.alone), is_alone),
                    runs: vec![runs.iter().sum()],
                }
            }
        };
        Expansion {
            text: surrounded(&text, traits.video.map(|video| video.alone), is_alone),
            runs,
        }
    }
}

/// A text with what stands around it where no template has written that.
fn surrounded(text: &str, around: Option<(&str, &str)>, is_alone: bool) -> String {
    match around.filter(|_| is_alone) {
        Some((before, behind)) => format!("{before}{text}{behind}"),
        None => text.to_string(),
    }
}

fn refuse_long(rows: usize, most: usize) -> Result<()> {
    match rows > most {
        true => Err(Error::Usage(format!(
            "the video takes {rows} tokens, there is room for {most}: send fewer or smaller frames, or say \"frames\""
        ))),
        false => Ok(()),
    }
}

/// A number below 1000 in English words, beyond in figures.
fn in_words(number: usize) -> String {
    const SMALL: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 10] = [
        "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    ];
    match number {
        0..20 => SMALL[number].to_string(),
        20..100 => match number % 10 {
            0 => TENS[number / 10].to_string(),
            rest => format!("{}-{}", TENS[number / 10], SMALL[rest]),
        },
        100..1000 => match number % 100 {
            0 => format!("{} hundred", SMALL[number / 100]),
            rest => format!("{} hundred and {}", SMALL[number / 100], in_words(rest)),
        },
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_words() {
        let words = [7, 20, 64, 100, 768, 1000].map(in_words);
        let expected = [
            "seven",
            "twenty",
            "sixty-four",
            "one hundred",
            "seven hundred and sixty-eight",
            "1000",
        ];
        assert_eq!(words, expected);
    }
}
