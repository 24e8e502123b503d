//! A sound of a file's bytes, and what stands for it in a prompt.

use super::{Expansion, Processor, DECODING};
use crate::audio::{decode, SoundLimits};
use crate::engine::media::{Content, MediaItem};
use crate::sound::{Frames, SoundConfig};
use std::sync::{Arc, PoisonError};
use worker::{Error, Result};

/// Samples a second of what encoders take.
const RATE: u32 = 16_000;

/// Longest sound, where an encoder takes any: half an hour.
const MOST_SECONDS: f64 = 1800.0;

impl Processor {
    /// A sound of a file's bytes.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no sound, or too long or short for the encoder.
    pub fn sound(&self, bytes: &[u8]) -> Result<Arc<MediaItem>> {
        let hearing = self.hearing()?;
        let limits = SoundLimits {
            max_seconds: hearing.longest_seconds().unwrap_or(MOST_SECONDS),
            ..SoundLimits::default()
        };
        // One at a time: a small file may be an hour of silence.
        let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        self.sound_of(&decode(bytes, RATE, &limits)?)
    }

    /// A sound of 16,000 samples a second.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that the encoder does not take.
    pub fn sound_of(&self, samples: &[f32]) -> Result<Arc<MediaItem>> {
        let frames = self.hearing()?.frames(samples).map_err(Error::Usage)?;
        Ok(Arc::new(MediaItem::new(Content::Sound(frames))))
    }
}

impl SoundConfig {
    /// A sound's part of a prompt; `is_alone` where the template has left no place for it.
    pub(super) fn expansion(&self, frames: &Frames, token: &str, is_alone: bool) -> Expansion {
        let (before, behind) = if is_alone {
            self.traits.alone
        } else {
            self.traits.around
        };
        Expansion {
            text: format!("{before}{token}{behind}"),
            runs: vec![frames.rows()],
        }
    }
}
