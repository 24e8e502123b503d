//! What is too much of a video.

use super::{within, InvalidRequest, Limits, FPS, KEY_FRAMES};
use crate::info::{ModelInfo, Takes, VideoInfo};
use crate::request::types::{ImageRequest, VideoRequest};

impl ImageRequest {
    pub(super) fn check_video(
        &self,
        info: &ModelInfo,
        limits: &Limits,
    ) -> Result<(), InvalidRequest> {
        let invalid = |field, message: &str| Err(InvalidRequest::new(field, message));
        let of = match (&info.defaults.video, &self.video) {
            (None, None) => return Ok(()),
            (None, Some(_)) => return invalid("frames", "the model makes pictures, not videos"),
            (Some(of), video) => {
                self.check_ends(of, video.as_ref())?;
                of
            }
        };
        if self.init.is_some() {
            return invalid(
                "init_image",
                "a model of videos starts from a first frame (first_frame), not from init_image",
            );
        }
        let Some(video) = &self.video else {
            return Ok(());
        };
        within("frames", "frames", video.frames, 1..=limits.max_frames)?;
        within("fps", "fps", video.fps, FPS)?;
        if !(video.frames - 1).is_multiple_of(of.time_factor) {
            let below = (video.frames - 1) / of.time_factor * of.time_factor + 1;
            return Err(InvalidRequest::new(
                "frames",
                format!(
                    "frames is {}; it must be one more than a multiple of {}, such as {below} or {}",
                    video.frames,
                    of.time_factor,
                    below + of.time_factor
                ),
            ));
        }
        let pixels = [self.width, self.height, video.frames, self.batch];
        let pixels = pixels.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        if pixels.is_none_or(|pixels| pixels > limits.max_video_pixels) {
            return Err(InvalidRequest::new(
                "frames",
                format!(
                    "{} times {} frames of {} x {} are more than {} pixels",
                    self.batch, video.frames, self.width, self.height, limits.max_video_pixels
                ),
            ));
        }
        for (name, value, has, of) in [
            (
                "frame_noise",
                video.frame_noise,
                of.frame_noise,
                "models whose given frames have noise",
            ),
            (
                "decode_timestep",
                video.decode_timestep,
                of.denoising_decoder,
                "models whose decoder takes out the last noise",
            ),
            (
                "decode_noise",
                video.decode_noise,
                of.denoising_decoder,
                "models whose decoder takes out the last noise",
            ),
        ] {
            if let Some(value) = value {
                within(name, name, value, 0.0..=1.0)?;
                if !has {
                    return invalid(name, &format!("{name} is for {of}"));
                }
            }
        }
        self.check_key_frames(of, video)?;
        if let Some(guidance) = video.late_guidance {
            let range = 0.0..=limits.max_guidance;
            within("late_guidance", "late guidance", guidance, range)?;
            if !of.late {
                return invalid(
                    "late_guidance",
                    "late_guidance is for models with a second network for late steps",
                );
            }
        }
        Ok(())
    }

    fn check_key_frames(&self, of: &VideoInfo, video: &VideoRequest) -> Result<(), InvalidRequest> {
        let invalid = |message: String| Err(InvalidRequest::new("key_frames", message));
        let frames = &video.key_frames;
        if frames.is_empty() {
            return Ok(());
        }
        if !of.key_frames {
            return invalid("key_frames: the model has no place for them".to_string());
        }
        let count = frames.len();
        within(
            "key_frames",
            "the number of key_frames",
            count,
            1..=KEY_FRAMES,
        )?;
        let mut taken = vec![0];
        taken.extend(video.last.is_some().then_some(video.frames - 1));
        for (at, _) in frames {
            if taken.contains(at) || *at >= video.frames {
                return invalid(format!(
                    "key_frames: {at} is the first frame, taken twice or behind the last one, {}",
                    video.frames - 1
                ));
            }
            taken.push(*at);
        }
        Ok(())
    }

    /// Whether the frames that are given are those that the model takes.
    fn check_ends(
        &self,
        of: &VideoInfo,
        video: Option<&VideoRequest>,
    ) -> Result<(), InvalidRequest> {
        let given = |of: fn(&VideoRequest) -> bool| video.is_some_and(of);
        let (first, last) = (given(|v| v.first.is_some()), given(|v| v.last.is_some()));
        for (field, takes, given) in [
            ("first_frame", of.first, first),
            ("last_frame", of.last, last),
        ] {
            let wrong = match (takes, given) {
                (Takes::Never, true) => "the model has no place for it",
                (Takes::Must, false) => "the model makes videos of a picture, which is missing",
                _ => continue,
            };
            return Err(InvalidRequest::new(field, format!("{field}: {wrong}")));
        }
        if last && !first && !of.key_frames {
            let message = "last_frame goes with a first_frame only";
            return Err(InvalidRequest::new("last_frame", message));
        }
        if last && given(|video| video.frames < 2) {
            let message = "one frame cannot be first and last";
            return Err(InvalidRequest::new("frames", message));
        }
        Ok(())
    }
}
