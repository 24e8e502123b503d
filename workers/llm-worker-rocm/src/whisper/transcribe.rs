//! A whole recording, window after window: each begins where the last stretch of speech before it ended.
//!
//! <https://github.com/openai/whisper/blob/main/whisper/transcribe.py>

use super::tokens::TIME_STEP;
use super::window::{Said, WindowDecoder};
use super::words::{Aligner, Word};
use super::{languages, Whisper};
use crate::audio::mel::{whisper_range, LogMel};
use candle_core::{Result as CandleResult, Tensor};
use std::ops::ControlFlow;
use worker::{Error, Result};

/// How speech is written down.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscribeOptions {
    /// The language, by its code or English name; found out if absent.
    pub language: Option<String>,
    /// Write in English whatever the language is.
    pub translate: bool,
    /// A text that may stand before the recording: names, spellings, style.
    pub prompt: Option<String>,
    /// What answers are drawn with, one after the other until one makes sense; 0 takes the most likely tokens.
    pub temperatures: Vec<f32>,
    /// Answers that compress better than that repeat themselves.
    pub compression_ratio: Option<f32>,
    /// Answers whose tokens are less likely than that on average (by the logarithm) are guessed.
    pub logprob: Option<f32>,
    /// Windows without speech are at least so likely to be, where the answer is guessed as well.
    pub silence: Option<f32>,
    /// Whether a window's text stands before the next one.
    pub condition: bool,
    /// Whether each word has its time.
    pub words: bool,
    /// Most tokens of a window's answer; half of the model's positions if absent.
    pub max_tokens: Option<usize>,
    /// Of draws.
    pub seed: u64,
}

impl Default for TranscribeOptions {
    /// Those of OpenAI's program.
    fn default() -> Self {
        Self {
            language: None,
            translate: false,
            prompt: None,
            temperatures: rising(0.0),
            compression_ratio: Some(2.4),
            logprob: Some(-1.0),
            silence: Some(0.6),
            condition: true,
            words: false,
            max_tokens: None,
            seed: 0,
        }
    }
}

/// Temperatures from this one to 1 in fifths.
pub fn rising(first: f32) -> Vec<f32> {
    let steps = (0..=5).map(|step| first + 0.2 * step as f32);
    // The first one whatever it is.
    let rest = steps.skip(1).filter(|t| *t <= 1.001);
    std::iter::once(first).chain(rest).collect()
}

/// A stretch of speech.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Its number.
    pub id: usize,
    /// The frame at which its window begins; a hundredth of a second each.
    pub seek: usize,
    /// When it begins, in seconds.
    pub start: f64,
    /// When it ends.
    pub end: f64,
    /// What is said.
    pub text: String,
    /// The same as tokens, with those of time.
    pub tokens: Vec<u32>,
    /// What its window was drawn with.
    pub temperature: f32,
    /// The mean of the logarithms of the window's tokens' probabilities.
    pub avg_logprob: f32,
    /// How much smaller the window's text gets when compressed.
    pub compression_ratio: f32,
    /// The probability that its window has no speech.
    pub no_speech_prob: f32,
    /// Its words with their times, if they were asked for.
    pub words: Vec<Word>,
}

/// What a recording says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transcript {
    /// The code of its language.
    pub language: &'static str,
    /// Seconds of the recording.
    pub duration: f64,
    /// Its stretches of speech.
    pub segments: Vec<Segment>,
}

impl Transcript {
    /// The whole text.
    pub fn text(&self) -> String {
        let texts = self.segments.iter().map(|segment| segment.text.as_str());
        texts.collect::<String>().trim().to_string()
    }

    /// The English name of its language.
    pub fn language_name(&self) -> &'static str {
        languages::name_of(self.language).unwrap_or(self.language)
    }
}

/// What is told on the way.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A token is about to be computed.
    Token,
    /// A stretch of speech is written down.
    Segment(&'a Segment),
    /// The recording is done up to this second.
    Reached(f64),
}

/// Hears what is told, and may end it.
pub type Listener<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// A recording's frames, normalised as a whole, computed when they are needed.
struct Frames<'a> {
    mel: &'a LogMel,
    samples: &'a [f32],
    /// Frames that have sound in them.
    count: usize,
    peak: f32,
}

impl<'a> Frames<'a> {
    /// `samples` end with a window of silence.
    fn new(mel: &'a LogMel, samples: &'a [f32], count: usize, window: usize) -> Self {
        let starts = (0..count).step_by(window.max(1));
        let peak = starts
            .flat_map(|start| mel.rows(samples, start..(start + window).min(count)))
            .fold(f32::NEG_INFINITY, f32::max);
        Self {
            mel,
            samples,
            count,
            peak,
        }
    }

    fn window(&self, start: usize, length: usize) -> Vec<f32> {
        let mut rows = self.mel.rows(self.samples, start..start + length);
        whisper_range(&mut rows, self.peak);
        rows
    }
}

impl Whisper {
    /// Writes down what is said in samples of one channel, 16,000 a second; `None` if the listener ended it.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that the model cannot follow, [`Error::Candle`] if the device fails.
    pub fn transcribe(
        &self,
        samples: Vec<f32>,
        options: &TranscribeOptions,
        listener: &mut Listener,
    ) -> Result<Option<Transcript>> {
        let asked = self.asked_language(options)?;
        let prompt = options.prompt.as_deref().unwrap_or_default();
        let prompt = self.words.prompt(prompt).map_err(Error::Usage)?;
        let run = Run {
            model: self,
            options,
            decoder: WindowDecoder {
                decoder: &self.decoder,
                words: &self.words,
                options,
                most: options.max_tokens.unwrap_or(self.config.positions / 2),
                positions: self.config.positions,
            },
        };
        run.all(samples, asked, prompt, listener)
            .map_err(Error::candle("writing speech down"))
    }

    /// The token of the language that is asked for.
    fn asked_language(
        &self,
        options: &TranscribeOptions,
    ) -> Result<Option<(&'static str, Option<u32>)>> {
        let usage = |reason: String| Err(Error::Usage(reason));
        let english_only = self.words.languages.is_empty();
        if english_only && options.translate {
            return usage("this model knows English only, and translates nothing".to_string());
        }
        let Some(text) = options.language.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(english_only.then_some(("en", None)));
        };
        let Some(code) = languages::code_of(text) else {
            return usage(format!(
                "language {text:?} is unknown; codes such as en or de are known"
            ));
        };
        if english_only {
            return match code {
                "en" => Ok(Some((code, None))),
                _ => usage(format!("this model knows English only, not {text:?}")),
            };
        }
        let mut known = self.words.languages.iter();
        match known.find(|(known, _)| *known == code) {
            Some((code, token)) => Ok(Some((code, Some(*token)))),
            None => usage(format!("this model does not know language {text:?}")),
        }
    }
}

/// A recording on its way.
struct Run<'a> {
    model: &'a Whisper,
    options: &'a TranscribeOptions,
    decoder: WindowDecoder<'a>,
}

impl Run<'_> {
    fn all(
        &self,
        mut samples: Vec<f32>,
        asked: Option<(&'static str, Option<u32>)>,
        prompt: Vec<u32>,
        listener: &mut Listener,
    ) -> CandleResult<Option<Transcript>> {
        let model = self.model;
        let mel = &model.mel;
        let (hop, rate) = (mel.options().hop, f64::from(mel.options().rate));
        let window = model.config.window_frames();
        let duration = samples.len() as f64 / rate;
        let count = samples.len() / hop;
        samples.extend(std::iter::repeat_n(0.0, window * hop));
        let frames = Frames::new(mel, &samples, count, window);
        let frame = hop as f64 / rate;

        let mut language = asked;
        let mut transcript = Transcript {
            language: asked.map_or("", |(code, _)| code),
            duration,
            segments: Vec::new(),
        };
        // Tokens before the answer, and from which of them on they count.
        let (mut before, mut from) = (prompt, 0);
        let mut seek = 0;
        while seek < frames.count {
            if listener(Progress::Reached(seek as f64 * frame)).is_break() {
                return Ok(None);
            }
            let sound = model.encode(&frames.window(seek, window))?;
            if language.is_none() {
                let found = self.decoder.language(&sound)?;
                language = found.map(|(code, token)| (code, Some(token)));
                transcript.language = language.map_or("", |(code, _)| code);
            }
            let token = language.and_then(|(_, token)| token);
            let beginning = model.words.beginning(token, self.options.translate);
            let past = self.past(&before[from..]);
            let mut go_on = || listener(Progress::Token).is_continue();
            let said = self.decoder.run(&sound, &past, &beginning, &mut go_on)?;
            let Some(said) = said else {
                return Ok(None);
            };
            let length = (frames.count - seek).min(window);
            if self.decoder.is_silent(&said) {
                seek += length;
                continue;
            }
            let place = (seek, length, frame);
            let (stretches, next) = self.stretches(&said, place);
            let kept = self.segments(&sound, &beginning, &said, stretches, place)?;
            for mut segment in kept {
                if segment.start == segment.end || segment.text.trim().is_empty() {
                    continue;
                }
                before.extend(&segment.tokens);
                segment.id = transcript.segments.len();
                let told = listener(Progress::Segment(&segment));
                transcript.segments.push(segment);
                if told.is_break() {
                    return Ok(None);
                }
            }
            if !self.options.condition || said.temperature > 0.5 {
                from = before.len();
            }
            seek = next;
        }
        if listener(Progress::Reached(duration)).is_break() {
            return Ok(None);
        }
        Ok(Some(transcript))
    }

    /// What stands before an answer: the last tokens that fit, behind the one that begins them.
    fn past(&self, before: &[u32]) -> Vec<u32> {
        let most = self.model.config.positions / 2 - 1;
        let last = &before[before.len().saturating_sub(most)..];
        match last.is_empty() {
            true => Vec::new(),
            false => [&[self.model.words.previous], last].concat(),
        }
    }

    /// Stretches of speech in an answer, as ranges of its tokens with start and end in steps of time, and the frame at
    /// which the next window begins.
    fn stretches(&self, said: &Said, (seek, length, frame): Place) -> (Vec<Stretch>, usize) {
        let words = &self.model.words;
        let tokens = &said.tokens;
        let time = |i: usize| words.time(tokens[i]);
        let is_time = |i: usize| i < tokens.len() && time(i).is_some();
        // Where one time follows another: one stretch ends and the next one begins.
        let mut ends: Vec<usize> = (1..tokens.len())
            .filter(|&i| is_time(i - 1) && is_time(i))
            .collect();
        let count = tokens.len();
        let ends_with_one = count > 0 && is_time(count - 1) && !(count > 1 && is_time(count - 2));
        let frames_of = |steps: u32| (f64::from(steps) * TIME_STEP / frame).round() as usize;
        if ends.is_empty() {
            let mut steps = (length as f64 * frame / TIME_STEP) as u32;
            let last = (0..count).rev().find_map(time);
            if let Some(last) = last.filter(|&last| last != 0) {
                steps = last;
            }
            let whole = Stretch {
                tokens: 0..count,
                start: 0,
                end: steps,
            };
            return (vec![whole], seek + length);
        }
        if ends_with_one {
            ends.push(count);
        }
        let mut stretches = Vec::with_capacity(ends.len());
        let mut first = 0;
        for end in ends {
            stretches.push(Stretch {
                tokens: first..end,
                start: time(first).unwrap_or(0),
                end: time(end - 1).unwrap_or(0),
            });
            first = end;
        }
        let next = match ends_with_one {
            // Nothing is said behind it.
            true => seek + length,
            // What was begun there is heard anew, whole.
            false => seek + frames_of(time(first - 1).unwrap_or(0)),
        };
        // A window always gets somewhere.
        match next > seek {
            true => (stretches, next),
            false => (stretches, seek + length),
        }
    }

    fn segments(
        &self,
        sound: &Tensor,
        beginning: &[u32],
        said: &Said,
        stretches: Vec<Stretch>,
        (seek, length, frame): Place,
    ) -> CandleResult<Vec<Segment>> {
        let model = self.model;
        let offset = seek as f64 * frame;
        let segment = |stretch: &Stretch| {
            let tokens = said.tokens[stretch.tokens.clone()].to_vec();
            Segment {
                id: 0,
                seek,
                start: offset + f64::from(stretch.start) * TIME_STEP,
                end: offset + f64::from(stretch.end) * TIME_STEP,
                text: model.words.text(&tokens),
                tokens,
                temperature: said.temperature,
                avg_logprob: said.mean_logprob,
                compression_ratio: said.compression_ratio,
                no_speech_prob: said.silence,
                words: Vec::new(),
            }
        };
        let mut segments: Vec<Segment> = stretches.iter().map(segment).collect();
        if self.options.words {
            let aligner = Aligner {
                decoder: &model.decoder,
                words: &model.words,
                config: &model.config,
            };
            let rows = length.div_ceil(2);
            aligner.add(sound, rows, beginning, offset, &mut segments)?;
        }
        Ok(segments)
    }
}

/// The frame at which a window begins, its frames that have sound, and the seconds of one.
type Place = (usize, usize, f64);

struct Stretch {
    tokens: std::ops::Range<usize>,
    start: u32,
    end: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_rise_to_one() {
        let close = |got: Vec<f32>, want: &[f32]| {
            assert_eq!(got.len(), want.len(), "{got:?}");
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6));
        };
        close(rising(0.0), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        close(rising(0.5), &[0.5, 0.7, 0.9]);
        close(rising(1.5), &[1.5]);
    }
}
