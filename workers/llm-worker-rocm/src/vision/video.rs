//! Videos as frames: which ones an encoder takes, at which size, and what they become.

use super::config::VisionConfig;
use super::kinds::{Kind, VideoTraits};
use super::preprocess::{Pixels, Tile};
use image::RgbImage;

/// Qwen's reference implementation keeps a video's pixels within nine tenths of so many rows.
const MOST_ROWS: usize = 128_000;
/// Rows of a frame of Qwen 3-VL at most.
const MOST_FRAME_ROWS: usize = 768;
/// Rows and seconds that SmolVLM leaves out at both ends of a long video.
const SKIPPED_SECONDS: f64 = 1.0;

/// How videos are taken, where that is not as the encoder's processor does.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct VideoOptions {
    /// Frames of a second.
    pub fps: Option<f64>,
    /// Most frames.
    pub frames: Option<usize>,
}

/// What is known of a video before its frames are decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recording {
    /// Frames in all.
    pub frames: usize,
    /// Frames of a second, if that is known.
    pub fps: Option<f64>,
    /// Whether somebody has chosen the frames already: all are taken, as far as there may be so many.
    pub is_chosen: bool,
    /// Width and height of a frame in pixels.
    pub size: (usize, usize),
}

/// A video as an encoder takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Video {
    /// A tile for each frame, or for two that go together.
    pub pixels: Pixels,
    /// The time of each tile in seconds: the middle of its frames'.
    pub times: Vec<f64>,
    /// Seconds from a tile to the next.
    pub interval: f64,
    /// Seconds of all.
    pub duration: f64,
}

/// Makes a [`Video`] of frames that come one after another.
pub struct VideoMaker<'a> {
    config: &'a VisionConfig,
    traits: VideoTraits,
    /// Numbers of the frames that are wanted, ascending.
    pub wanted: Vec<usize>,
    /// Frames of a second of the recording.
    fps: f64,
    size: (usize, usize),
    recording: Recording,
    tiles: Vec<Tile>,
    taken: usize,
}

impl VisionConfig {
    /// What the encoder's family does with videos.
    ///
    /// # Errors
    /// A text for the client, if it takes none.
    pub(crate) fn moving(&self) -> Result<VideoTraits, String> {
        self.traits.video.ok_or_else(|| {
            format!(
                "models with an encoder of type {:?} take pictures, not videos",
                self.traits.projector
            )
        })
    }

    /// Begins with a video.
    ///
    /// # Errors
    /// A text for the client, if the encoder's family takes no videos or none of this shape.
    pub fn video(
        &self,
        recording: &Recording,
        options: &VideoOptions,
    ) -> Result<VideoMaker<'_>, String> {
        let traits = self.moving()?;
        let (width, height) = recording.size;
        if recording.frames == 0 || width == 0 || height == 0 {
            return Err("the video has no frames, or they have no pixels".to_string());
        }
        let fps = recording.fps.or(options.fps).unwrap_or(traits.fps);
        if !(fps.is_finite() && fps > 0.0) {
            return Err(format!("a video of {fps} frames a second"));
        }
        let wanted = self.wanted(&traits, recording, fps, options);
        let count = wanted.len().next_multiple_of(traits.together);
        Ok(VideoMaker {
            size: self.frame_size(width, height, count)?,
            config: self,
            traits,
            wanted,
            fps,
            recording: *recording,
            tiles: Vec::new(),
            taken: 0,
        })
    }

    /// Numbers of the frames that are taken: as many of each second as the family's processor takes, in its way.
    fn wanted(
        &self,
        traits: &VideoTraits,
        recording: &Recording,
        fps: f64,
        options: &VideoOptions,
    ) -> Vec<usize> {
        let total = recording.frames;
        let most = options.frames.unwrap_or(traits.frames.1);
        let most = most.clamp(1, traits.frames.1).min(total);
        if recording.is_chosen && total <= most {
            return (0..total).collect();
        }
        let target = options.fps.unwrap_or(traits.fps);
        let duration = total as f64 / fps;
        let asked = duration * target;
        let spread = |first: usize, last: usize, count: usize, round: fn(f64) -> f64| {
            let step = (last - first) as f64 / (count.max(2) - 1) as f64;
            let places = (0..count).map(|i| match i > 0 && i + 1 == count {
                true => last,
                false => round(first as f64 + i as f64 * step) as usize,
            });
            places.collect::<Vec<usize>>()
        };
        match self.traits.kind {
            Kind::Qwen2Vl | Kind::Qwen25Vl => {
                let most = most / traits.together * traits.together;
                let count = asked.max(traits.frames.0 as f64).min(most as f64) as usize;
                let count = (count / traits.together * traits.together).max(1);
                (0..count).map(|i| i * total / count).collect()
            }
            Kind::Idefics3 => {
                let count = (asked.round_ties_even() as usize).clamp(1, most);
                let is_long = duration - 2.0 * SKIPPED_SECONDS > most as f64 * target;
                let skipped = (SKIPPED_SECONDS * fps) as usize;
                let (first, last) = match is_long && 2 * skipped < total {
                    true => (skipped, (total - skipped).min(total - 1)),
                    false => (0, total - 1),
                };
                let mut places = spread(first, last, count, f64::floor);
                places.dedup();
                places
            }
            Kind::InternVl => {
                let count = (asked as usize).clamp(1, most);
                (0..count)
                    .map(|i| (2 * i + 1) * total / (2 * count))
                    .collect()
            }
            _ => {
                let count = (asked as usize).max(traits.frames.0).min(most);
                spread(0, total - 1, count, f64::round_ties_even)
            }
        }
    }

    /// Width and height that each of `frames` frames is brought to.
    fn frame_size(
        &self,
        width: usize,
        height: usize,
        frames: usize,
    ) -> Result<(usize, usize), String> {
        let unit = self.patch * self.merge;
        let (fewest, most) = self.video_pixels;
        let floor = fewest + fewest / 20;
        match self.traits.kind {
            Kind::Qwen2Vl | Kind::Qwen25Vl => {
                // An even share of what all frames may have.
                let all = MOST_ROWS * unit * unit / 10 * 9;
                let most = most.min(all * 2 / frames).max(floor);
                self.smart_size(width, height, (fewest, most), 1)
            }
            Kind::Qwen3Vl => {
                let of_frame = MOST_FRAME_ROWS * unit * unit;
                let most = of_frame.min(most / frames).max(floor) * frames;
                // Frames smaller than a row are enlarged first.
                let scale = (unit as f64 / width as f64).max(unit as f64 / height as f64);
                let enlarged = |x: usize| (x as f64 * scale.max(1.0)) as usize;
                self.smart_size(enlarged(width), enlarged(height), (fewest, most), frames)
            }
            _ => Ok((self.side, self.side)),
        }
    }
}

impl VideoMaker<'_> {
    /// Rows of the prompt that the video will take.
    pub fn rows(&self) -> usize {
        let patches = (self.size.0 / self.config.patch) * (self.size.1 / self.config.patch);
        let tiles = self.wanted.len().div_ceil(self.traits.together);
        patches / (self.config.merge * self.config.merge) * tiles
    }

    /// Takes the next of the frames that are wanted.
    ///
    /// # Errors
    /// A text for the client, if it is of another size than the first one.
    pub fn take(&mut self, frame: &RgbImage) -> Result<(), String> {
        let (width, height) = (frame.width() as usize, frame.height() as usize);
        if (width, height) != self.recording.size {
            let (wide, high) = self.recording.size;
            return Err(format!(
                "frames of a video have one size, not {wide} x {height} and {width} x {high} pixels"
            ));
        }
        let config = self.config;
        let resized = match config.traits.kind {
            Kind::Idefics3 => {
                let (wide, high) = config.longest_size(width, height, config.video_longest);
                config.resized(&config.resized(frame, wide, high), self.size.0, self.size.1)
            }
            _ => config.resized(frame, self.size.0, self.size.1),
        };
        let tile = config.tile(&resized, config.group());
        match self.tiles.last_mut() {
            Some(first) if self.taken % self.traits.together == 1 => first.second = tile.patches,
            _ => self.tiles.push(tile),
        }
        self.taken += 1;
        Ok(())
    }

    /// The video of the frames that were taken.
    ///
    /// # Errors
    /// A text for the client, if some are missing.
    pub fn finish(mut self) -> Result<Video, String> {
        if self.taken != self.wanted.len() {
            return Err(format!(
                "the video has {} of {} frames",
                self.taken,
                self.wanted.len()
            ));
        }
        let together = self.traits.together;
        if together == 2 {
            // The last one stands twice, if it is alone.
            for tile in self.tiles.iter_mut().filter(|tile| tile.second.is_empty()) {
                tile.second = tile.patches.clone();
            }
        }
        let time = |frame: &usize| *frame as f64 / self.fps;
        let times = self.wanted.chunks(together).map(|frames| {
            let ends = (frames.first(), frames.last());
            (ends.0.map_or(0.0, time) + ends.1.map_or(0.0, time)) / 2.0
        });
        let total = self.recording.frames as f64;
        let sampled = self.wanted.len() as f64 / total * self.fps;
        Ok(Video {
            times: times.collect(),
            interval: together as f64 / sampled,
            duration: total / self.fps,
            pixels: Pixels {
                tiles: self.tiles,
                ..Pixels::default()
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vision::test_config;

    fn recording(frames: usize, fps: f64) -> Recording {
        Recording {
            frames,
            fps: Some(fps),
            is_chosen: false,
            size: (64, 48),
        }
    }

    fn wanted(projector: &str, recording: Recording, options: VideoOptions) -> Vec<usize> {
        let config = test_config(projector);
        let maker = config.video(&recording, &options).unwrap();
        maker.wanted
    }

    #[test]
    fn frames_are_those_that_transformers_takes() {
        let usual = VideoOptions::default();
        // `sample_frames` of the families' video processors, with what each has as its usual fps.
        let two = |frames| wanted("qwen2vl_merger", recording(frames, 8.0), usual);
        assert_eq!(two(37), [0, 4, 9, 13, 18, 23, 27, 32]);
        assert_eq!(two(5), [0, 1, 2, 3]);
        assert_eq!(two(1), [0]);
        let three = |frames| wanted("qwen3vl_merger", recording(frames, 8.0), usual);
        assert_eq!(three(37), [0, 4, 9, 14, 18, 22, 27, 32, 36]);
        assert_eq!(three(3), [0, 1, 2]);
        let smol = |frames, fps| wanted("idefics3", recording(frames, fps), usual);
        assert_eq!(smol(37, 8.0), [0, 9, 18, 27, 36]);
        assert_eq!(smol(200, 1.0).len(), 64);
        assert_eq!((smol(200, 1.0)[0], smol(200, 1.0)[63]), (1, 199));
        assert_eq!(
            wanted("internvl", recording(37, 8.0), usual),
            [4, 13, 23, 32]
        );
    }

    #[test]
    fn chosen_frames_are_all_taken_as_far_as_there_may_be_so_many() {
        let chosen = Recording {
            is_chosen: true,
            ..recording(5, 2.0)
        };
        let usual = VideoOptions::default();
        assert_eq!(wanted("qwen2vl_merger", chosen, usual), [0, 1, 2, 3, 4]);
        let few = VideoOptions {
            frames: Some(2),
            ..usual
        };
        assert_eq!(wanted("qwen2vl_merger", chosen, few).len(), 2);
        let config = test_config("gemma3");
        let refusal = config.video(&chosen, &usual);
        assert!(refusal.err().unwrap().contains("gemma3"));
    }

    #[test]
    fn frames_share_what_a_video_may_have() {
        let config = test_config("qwen2.5vl_merger");
        let usual = VideoOptions::default();
        let size = |frames| {
            let chosen = Recording {
                is_chosen: true,
                size: (1280, 720),
                ..recording(frames, 2.0)
            };
            config.video(&chosen, &usual).unwrap().size
        };
        assert_eq!(size(4), (1008, 560));
        // 128000 rows of 28 x 28 pixels less a tenth, twice as they come in pairs, for 768 frames.
        assert_eq!(size(768), (644, 336));
    }
}
