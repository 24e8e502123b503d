//! Logarithms of power in mel bands.
//!
//! "A Scale for the Measurement of the Psychological Magnitude Pitch", Stevens et al., 1937; the two scales that models
//! use are those of the programs HTK and Auditory Toolbox (Slaney, 1998).

use rayon::prelude::*;
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use std::f64::consts::TAU;
use std::ops::Range;
use std::sync::Arc;

/// Frames that one thread computes in a row.
const FRAMES_AT_ONCE: usize = 64;

/// From hertz to mel and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MelScale {
    /// Linear below 1000 Hz, logarithmic above.
    Slaney,
    /// `2595 log10(1 + f / 700)`.
    Htk,
}

/// What is taken of a frame's spectrum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spectrum {
    /// Absolute values.
    Magnitude,
    /// Their squares.
    Power,
}

/// Where frames lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// The middle of frame `i` is sample `i hop`; the sound is mirrored at its ends. As many frames as hops fit in.
    Centred,
    /// Frame `i` begins at sample `i hop`. It counts if it and so many further samples lie in the sound.
    Inside(usize),
}

/// Differences of neighbours in each frame, which raise high frequencies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Preemphasis {
    /// None.
    Off,
    /// `x[i] - c x[i - 1]`; of the first sample `(1 - c) x[0]`, as HTK does.
    Htk(f64),
    /// `x[i + 1] - c x[i]`.
    Plain(f64),
}

/// How a spectrogram is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MelOptions {
    /// Samples a second.
    pub rate: u32,
    /// Samples of a frame, which has Hann's window.
    pub frame: usize,
    /// Samples of a transform; zeros fill frames up.
    pub fft: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Where frames lie.
    pub framing: Framing,
    /// What is done to frames first.
    pub preemphasis: Preemphasis,
    /// What is taken of spectra.
    pub spectrum: Spectrum,
    /// Bands.
    pub bands: usize,
    /// The lowest frequency and the highest, in hertz.
    pub frequencies: (f64, f64),
    /// How bands lie between them.
    pub scale: MelScale,
    /// Whether bands are divided by half their width, so that wide ones weigh no more than narrow ones.
    pub by_area: bool,
    /// The least that logarithms are taken of.
    pub floor: f64,
    /// Logarithms to base 10, else natural ones.
    pub decimal: bool,
}

impl MelOptions {
    /// Whisper's, of so many bands.
    pub const fn whisper(bands: usize) -> Self {
        Self {
            rate: 16_000,
            frame: 400,
            fft: 400,
            hop: 160,
            framing: Framing::Centred,
            preemphasis: Preemphasis::Off,
            spectrum: Spectrum::Power,
            bands,
            frequencies: (0.0, 8_000.0),
            scale: MelScale::Slaney,
            by_area: true,
            floor: 1e-10,
            decimal: true,
        }
    }

    /// That of universal speech models: Gemma 3n's, of so many bands.
    pub const fn universal(bands: usize) -> Self {
        Self {
            rate: 16_000,
            frame: 512,
            fft: 1024,
            hop: 160,
            framing: Framing::Inside(1),
            preemphasis: Preemphasis::Htk(0.97),
            spectrum: Spectrum::Magnitude,
            bands,
            frequencies: (125.0, 7_600.0),
            scale: MelScale::Htk,
            by_area: false,
            floor: 1e-5,
            decimal: false,
        }
    }
}

/// Makes spectrograms.
pub struct LogMel {
    options: MelOptions,
    window: Vec<f64>,
    /// The first bin of each band and its weights from there on.
    filters: Vec<(usize, Vec<f64>)>,
    transform: Arc<dyn RealToComplex<f64>>,
}

impl LogMel {
    /// Sizes must be above 0, and a frame no longer than a transform.
    pub fn new(options: MelOptions) -> Self {
        let length = options.frame as f64;
        let window = (0..options.frame).map(|i| 0.5 - 0.5 * (TAU * i as f64 / length).cos());
        Self {
            window: window.collect(),
            filters: filters(&options),
            transform: RealFftPlanner::new().plan_fft_forward(options.fft),
            options,
        }
    }

    /// How it makes them.
    pub fn options(&self) -> &MelOptions {
        &self.options
    }

    /// Frames of a sound of so many samples.
    pub fn frames(&self, samples: usize) -> usize {
        let MelOptions { frame, hop, .. } = self.options;
        match self.options.framing {
            Framing::Centred => samples / hop,
            Framing::Inside(further) if samples >= frame + further => {
                (samples - frame - further) / hop + 1
            }
            Framing::Inside(_) => 0,
        }
    }

    /// The rows of some frames of a sound, one behind the other, [`MelOptions::bands`] numbers each. Frames beyond its
    /// end are those of silence.
    pub fn rows(&self, samples: &[f32], frames: Range<usize>) -> Vec<f32> {
        let bands = self.options.bands;
        let mut rows = vec![0f32; frames.len() * bands];
        rows.par_chunks_mut(FRAMES_AT_ONCE * bands)
            .enumerate()
            .for_each(|(piece, rows)| {
                let first = frames.start + piece * FRAMES_AT_ONCE;
                let mut room = Room {
                    input: self.transform.make_input_vec(),
                    output: self.transform.make_output_vec(),
                    scratch: self.transform.make_scratch_vec(),
                };
                for (i, row) in rows.chunks_exact_mut(bands).enumerate() {
                    self.row(samples, first + i, &mut room, row);
                }
            });
        rows
    }

    fn row(&self, samples: &[f32], frame: usize, room: &mut Room, row: &mut [f32]) {
        let c = &self.options;
        let start = (frame * c.hop) as i64;
        let at = |i: usize| -> f64 {
            let place = start + i as i64;
            f64::from(match c.framing {
                Framing::Centred => mirrored(samples, place - (c.frame / 2) as i64),
                Framing::Inside(_) => samples.get(place as usize).copied().unwrap_or(0.0),
            })
        };
        room.input.fill(0.0);
        for (i, (x, window)) in room.input.iter_mut().zip(&self.window).enumerate() {
            let value = match c.preemphasis {
                Preemphasis::Off => at(i),
                Preemphasis::Htk(factor) if i == 0 => at(0) * (1.0 - factor),
                Preemphasis::Htk(factor) => at(i) - factor * at(i - 1),
                Preemphasis::Plain(factor) => at(i + 1) - factor * at(i),
            };
            *x = value * window;
        }
        // Its only errors are rooms of other lengths, and these are its own.
        let done = self.transform.process_with_scratch(
            &mut room.input,
            &mut room.output,
            &mut room.scratch,
        );
        debug_assert!(done.is_ok());
        for ((first, weights), out) in self.filters.iter().zip(row) {
            let bins = room.output.iter().skip(*first).zip(weights);
            let sum: f64 = bins
                .map(|(bin, weight)| {
                    weight
                        * match c.spectrum {
                            Spectrum::Power => bin.norm_sqr(),
                            Spectrum::Magnitude => bin.norm(),
                        }
                })
                .sum();
            let sum = sum.max(c.floor);
            *out = match c.decimal {
                true => sum.log10() as f32,
                false => sum.ln() as f32,
            };
        }
    }
}

/// What a transform works in.
struct Room {
    input: Vec<f64>,
    output: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
}

/// A sample of a sound that is mirrored at both ends, the samples there once. Far behind the end there is silence.
fn mirrored(samples: &[f32], place: i64) -> f32 {
    let last = samples.len() as i64 - 1;
    let place = place.abs();
    let place = match place > last {
        true => 2 * last - place,
        false => place,
    };
    usize::try_from(place)
        .ok()
        .and_then(|place| samples.get(place))
        .copied()
        .unwrap_or(0.0)
}

fn to_mel(hertz: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 2595.0 * (1.0 + hertz / 700.0).log10(),
        MelScale::Slaney if hertz < 1000.0 => hertz * 3.0 / 200.0,
        MelScale::Slaney => 15.0 + (hertz / 1000.0).ln() * 27.0 / 6.4f64.ln(),
    }
}

fn to_hertz(mel: f64, scale: MelScale) -> f64 {
    match scale {
        MelScale::Htk => 700.0 * (10f64.powf(mel / 2595.0) - 1.0),
        MelScale::Slaney if mel < 15.0 => mel * 200.0 / 3.0,
        MelScale::Slaney => 1000.0 * ((mel - 15.0) * 6.4f64.ln() / 27.0).exp(),
    }
}

/// Triangles between neighbours of equal distance on the scale.
fn filters(c: &MelOptions) -> Vec<(usize, Vec<f64>)> {
    let (low, high) = (
        to_mel(c.frequencies.0, c.scale),
        to_mel(c.frequencies.1, c.scale),
    );
    let step = (high - low) / (c.bands + 1) as f64;
    let corner = |i: usize| to_hertz(low + step * i as f64, c.scale);
    let bins = c.fft / 2 + 1;
    let width = f64::from(c.rate) / c.fft as f64;
    (0..c.bands)
        .map(|band| {
            let (left, middle, right) = (corner(band), corner(band + 1), corner(band + 2));
            let area = match c.by_area {
                true => 2.0 / (right - left),
                false => 1.0,
            };
            let weight = |bin: usize| {
                let hertz = bin as f64 * width;
                let up = (hertz - left) / (middle - left);
                let down = (right - hertz) / (right - middle);
                up.min(down).max(0.0) * area
            };
            let first = (0..bins).find(|&bin| weight(bin) > 0.0).unwrap_or(bins);
            let weights = (first..bins).map(weight).take_while(|&w| w > 0.0);
            (first, weights.collect())
        })
        .collect()
}

/// Whisper's range: what lies 8 (80 dB) below the peak is as if it lay there, and 4 is added before a quarter is taken.
pub fn whisper_range(rows: &mut [f32], peak: f32) {
    for x in rows {
        *x = (x.max(peak - 8.0) + 4.0) / 4.0;
    }
}

/// Whisper's input for a sound of its own: `(frames, bands)`, the peak taken over all of them. For models that split it
/// or fill it up, do so with `samples` first.
pub fn whisper_rows(mel: &LogMel, samples: &[f32]) -> Vec<f32> {
    let mut rows = mel.rows(samples, 0..mel.frames(samples.len()));
    let peak = rows.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    whisper_range(&mut rows, peak);
    rows
}
