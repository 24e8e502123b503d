//! An encoder's shape, read from metadata in the terms of llama.cpp's `mmproj` files and checked.

use super::kinds::{projectors, traits_of, Kind, Traits};
use worker::gguf::{Gguf, GgufError};

/// Widest head, longest table and so on that make sense.
const MOST: u32 = 1 << 24;

/// Samples of a second.
pub(super) const SAMPLES: usize = 16_000;

/// Samples from one frame to the next.
pub(super) const HOP: usize = 160;

/// Frames of a window where the file does not say: two seconds.
const WINDOW: usize = 200;

/// An encoder's shape.
#[derive(Debug, Clone)]
pub struct SoundConfig {
    pub(crate) traits: &'static Traits,
    /// Mel bands of a frame.
    pub(crate) bands: usize,
    pub(crate) width: usize,
    pub(crate) blocks: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    pub(crate) epsilon: f32,
    /// Width of what it gives.
    pub(crate) output: usize,
    /// Rows of the table of positions, if there is one: half the frames that are encoded at once.
    pub(crate) places: usize,
    /// Rows that become one, behind each other.
    pub(crate) stack: usize,
    /// Frames that see each other, where a sound is cut into windows.
    pub(crate) window: usize,
    /// Most samples of a sound, where there is a limit.
    pub(crate) longest: Option<usize>,
    /// Rows that each sound is filled up to, where all have as many.
    pub(crate) filled: usize,
}

impl SoundConfig {
    /// Reads the shape of an encoder; `None` for a file without one.
    ///
    /// # Errors
    /// A text that names the key at fault.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>, String> {
        let text = |e: GgufError| e.to_string();
        if gguf.get_bool("clip.has_audio_encoder").map_err(text)? != Some(true) {
            return Ok(None);
        }
        let name = match gguf.get_str("clip.projector_type").map_err(text)? {
            Some(name) => Some(name),
            None => gguf.get_str("clip.audio.projector_type").map_err(text)?,
        };
        let name = name.ok_or("metadata clip.audio.projector_type is missing")?;
        let traits = traits_of(name)
            .filter(|t| t.projector == name)
            .ok_or_else(|| {
                format!(
                    "encoders of sounds of type {name:?} are not implemented ({} are)",
                    projectors()
                )
            })?;
        let optional = |key: &str| -> Result<Option<usize>, String> {
            let key = format!("clip.audio.{key}");
            match gguf.get_u32(&key).map_err(text)? {
                Some(value) if value == 0 || value > MOST => {
                    Err(format!("metadata {key} is {value}"))
                }
                value => Ok(value.map(|v| v as usize)),
            }
        };
        let count = |key: &str| -> Result<usize, String> {
            optional(key)?.ok_or_else(|| format!("metadata clip.audio.{key} is missing"))
        };
        let places = gguf.tensor("a.position_embd.weight");
        let places = places.and_then(|table| table.dims.get(1).copied());
        let places = places.filter(|places| (1..=u64::from(MOST)).contains(places));
        let stack = match traits.kind {
            Kind::Voxtral => count("projector.stack_factor")?,
            _ => 1,
        };
        let places = match (traits.kind, places) {
            // Its rows know their distances.
            (Kind::Gemma3n | Kind::Gemma4, _) => 0,
            (_, Some(places)) => places as usize,
            (_, None) => return Err("tensor a.position_embd.weight is missing or empty".into()),
        };
        let longest = optional("max_samples")?.or(traits.seconds.map(|s| s * SAMPLES));
        let longest = match traits.kind {
            // All of it is encoded at once.
            Kind::Qwen2Audio => longest.map(|longest| longest.min(2 * places * HOP)),
            Kind::Voxtral => None,
            Kind::Qwen25Omni | Kind::Gemma3n | Kind::Gemma4 => longest,
        };
        let epsilon = gguf.get_f32("clip.audio.attention.layer_norm_epsilon");
        let epsilon = epsilon.map_err(text)?;
        let config = Self {
            traits,
            bands: count("num_mel_bins")?,
            width: count("embedding_length")?,
            blocks: count("block_count")?,
            heads: count("attention.head_count")?,
            hidden: count("feed_forward_length")?,
            epsilon: match traits.kind {
                // Files have another number, which llama.cpp does not follow either.
                Kind::Gemma3n | Kind::Gemma4 => 1e-6,
                _ => epsilon.unwrap_or(1e-5),
            },
            output: count("projection_dim")?,
            places,
            stack,
            window: optional("chunk_size")?.unwrap_or(WINDOW),
            longest,
            filled: match traits.kind {
                Kind::Gemma3n => count("soft_tokens")?,
                _ => 0,
            },
        };
        config.check()?;
        Ok(Some(config))
    }

    fn check(&self) -> Result<(), String> {
        if !self.width.is_multiple_of(self.heads) || !(self.width / self.heads).is_multiple_of(8) {
            return Err(format!(
                "{} heads of {} elements: multiples of 8 are needed",
                self.heads, self.width
            ));
        }
        if !self.places.is_multiple_of(self.stack) {
            return Err(format!("{} rows in groups of {}", self.places, self.stack));
        }
        match self.traits.kind {
            // Rows of a window come in pairs.
            Kind::Qwen25Omni if !self.window.is_multiple_of(4) || self.window / 2 > self.places => {
                Err(format!(
                    "windows of {} frames for {} positions",
                    self.window, self.places
                ))
            }
            Kind::Gemma3n | Kind::Gemma4 if !self.bands.is_multiple_of(4) => Err(format!(
                "{} mel bands: a multiple of 4 is needed",
                self.bands
            )),
            _ => Ok(()),
        }
    }

    /// Width of the rows that it gives.
    pub fn output(&self) -> usize {
        self.output
    }

    /// Most seconds of a sound, where there is a limit.
    pub fn longest_seconds(&self) -> Option<f64> {
        self.longest.map(|samples| samples as f64 / SAMPLES as f64)
    }
}
