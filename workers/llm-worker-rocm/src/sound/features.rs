//! Samples as an encoder takes them: logarithms of mel energies, as the model's extractor makes them, in pieces.

use super::config::{SoundConfig, HOP, SAMPLES};
use super::kinds::Kind;
use crate::audio::mel::{whisper_rows, Framing, LogMel, MelOptions, MelScale, Spectrum};

/// Silence behind a sound that its last frames see, and what a convolution sees of what follows.
const SILENCE: usize = 5 * HOP;

/// A sound as its encoder takes it.
#[derive(Debug, Clone)]
pub struct Frames {
    /// What is encoded apart, in their order.
    pub pieces: Vec<Piece>,
}

/// Frames that are encoded together.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Logarithms of mel energies, frame by frame: `(frames, bands)`.
    pub mel: Vec<f32>,
    /// How many frames there are.
    pub frames: usize,
    /// Rows behind the convolutions that count, all of them if the convolutions see no others.
    pub kept: usize,
    /// Rows of the prompt.
    pub rows: usize,
}

impl Frames {
    /// Rows of the prompt.
    pub fn rows(&self) -> usize {
        self.pieces.iter().map(|piece| piece.rows).sum()
    }
}

/// Gemma 3n's extractor fills sounds up to a multiple of so many samples.
const GEMMA3N_UNIT: usize = 128;

/// Of so many rows behind the blocks Gemma 3n takes the first.
pub(super) const GEMMA3N_STEP: usize = 4;

/// What Gemma 4's extractor adds before it takes a logarithm.
const GEMMA4_FLOOR: f32 = 1e-3;

/// Gemma 4's frames, without what is added.
const fn gemma4(bands: usize) -> MelOptions {
    MelOptions {
        frame: 320,
        fft: 512,
        framing: Framing::Inside(1),
        spectrum: Spectrum::Magnitude,
        scale: MelScale::Htk,
        by_area: false,
        // Nothing that counts beside what is added.
        floor: 1e-12,
        decimal: false,
        ..MelOptions::whisper(bands)
    }
}

/// Rows that a convolution of every second frame gives.
fn every_second(frames: usize) -> usize {
    frames.div_ceil(2)
}

impl SoundConfig {
    /// The frames of a sound of so many samples a second as [`SAMPLES`].
    ///
    /// # Errors
    /// Why the encoder does not take it: too long, or too short.
    pub(crate) fn frames(&self, samples: &[f32]) -> Result<Frames, String> {
        if let Some(longest) = self.longest.filter(|longest| samples.len() > *longest) {
            return Err(format!(
                "a sound of {:.1} seconds; this model takes {:.1}",
                samples.len() as f64 / SAMPLES as f64,
                longest as f64 / SAMPLES as f64
            ));
        }
        let pieces = match self.traits.kind {
            Kind::Voxtral => self.whole_pieces(samples),
            Kind::Qwen2Audio => self.one_piece(samples),
            Kind::Qwen25Omni => self.windows(samples),
            Kind::Gemma3n => self.filled_up(samples),
            Kind::Gemma4 => self.whole(samples),
        };
        let frames = Frames { pieces };
        match frames.rows() {
            0 => Err("the sound is too short".to_string()),
            _ => Ok(frames),
        }
    }

    /// Frames of a sound with silence behind it up to a length.
    fn mel(&self, samples: &[f32], length: usize) -> Vec<f32> {
        let mut padded = samples.to_vec();
        padded.resize(length, 0.0);
        whisper_rows(&LogMel::new(MelOptions::whisper(self.bands)), &padded)
    }

    /// As many frames as there are positions for, silence behind the last ones: each row counts.
    fn whole_pieces(&self, samples: &[f32]) -> Vec<Piece> {
        let frames = 2 * self.places;
        let length = samples.len().next_multiple_of(frames * HOP);
        let mel = self.mel(samples, length);
        mel.chunks_exact(frames * self.bands)
            .map(|mel| Piece {
                mel: mel.to_vec(),
                frames,
                kept: self.places,
                rows: self.places / self.stack,
            })
            .collect()
    }

    /// The frames of the sound and those of silence that its last row sees.
    fn one_piece(&self, samples: &[f32]) -> Vec<Piece> {
        let most = 2 * self.places;
        let own = samples.len().div_ceil(HOP).min(most);
        let mel = self.mel(samples, self.padded(samples.len()));
        let frames = (own + 2).min(most);
        let kept = every_second(own);
        vec![Piece {
            mel: mel[..frames * self.bands].to_vec(),
            frames,
            kept,
            rows: kept / 2,
        }]
    }

    /// Frames of windows, each with zeros around it.
    fn windows(&self, samples: &[f32]) -> Vec<Piece> {
        let own = samples.len().div_ceil(HOP);
        let mel = self.mel(samples, self.padded(samples.len()));
        let window = |mel: &[f32]| {
            let frames = mel.len() / self.bands;
            let kept = every_second(frames);
            Piece {
                mel: mel.to_vec(),
                frames,
                kept,
                rows: kept / 2,
            }
        };
        mel[..own * self.bands]
            .chunks(self.window * self.bands)
            .map(window)
            .collect()
    }

    /// All frames of which each sample is the sound's own, but for the silence that half of the first one is.
    fn whole(&self, samples: &[f32]) -> Vec<Piece> {
        let options = gemma4(self.bands);
        let mut padded = vec![0.0; options.frame / 2];
        padded.extend_from_slice(samples);
        let mel = LogMel::new(options);
        let frames = mel.frames(padded.len());
        let mut mel = mel.rows(&padded, 0..frames);
        for x in &mut mel {
            *x = (x.exp() + GEMMA4_FLOOR).ln();
        }
        let kept = every_second(every_second(frames));
        vec![Piece {
            mel,
            frames,
            kept,
            rows: kept,
        }]
    }

    /// Frames of a sound with a little silence behind it; its rows are filled up, and one of the end's comes last.
    fn filled_up(&self, samples: &[f32]) -> Vec<Piece> {
        let mut padded = samples.to_vec();
        padded.resize(samples.len().next_multiple_of(GEMMA3N_UNIT), 0.0);
        let mel = LogMel::new(MelOptions::universal(self.bands));
        let frames = mel.frames(padded.len());
        let kept = every_second(every_second(frames)).div_ceil(GEMMA3N_STEP);
        if kept == 0 {
            return Vec::new();
        }
        vec![Piece {
            mel: mel.rows(&padded, 0..frames),
            frames,
            kept,
            rows: self.filled.max(kept) + 1,
        }]
    }

    /// Samples with the silence behind them, as far as there is room for it.
    fn padded(&self, samples: usize) -> usize {
        let padded = (samples + SILENCE).next_multiple_of(HOP);
        padded.min(self.longest.unwrap_or(padded))
    }
}
