//! One window of sound to tokens: greedy, and with rising temperatures where that gives nonsense.

use super::decoder::{last, Decoder, Memory};
use super::rules::{apply, log_sum};
use super::tokens::Words;
use super::TranscribeOptions;
use crate::engine::gumbel;
use candle_core::{Result, Tensor};
use flate2::write::ZlibEncoder;
use flate2::Compression;
use std::io::Write;

/// What a window says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    /// The answer's tokens, without the one that ends it.
    pub(super) tokens: Vec<u32>,
    pub(super) temperature: f32,
    /// The mean of the tokens' logarithms of probability, that of the end included.
    pub(super) mean_logprob: f32,
    /// How much smaller the text gets when compressed: what repeats itself compresses well.
    pub(super) compression_ratio: f32,
    /// The probability that there is no speech.
    pub(super) silence: f32,
}

/// What a window is decoded with.
pub(super) struct WindowDecoder<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) words: &'a Words,
    pub(super) options: &'a TranscribeOptions,
    /// Most tokens of an answer.
    pub(super) most: usize,
    /// Most tokens in all; the last one of an answer needs no place.
    pub(super) positions: usize,
}

impl WindowDecoder<'_> {
    /// The language that a sound is most likely in, by the first token of an answer.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn language(&self, sound: &Tensor) -> Result<Option<(&'static str, u32)>> {
        let mut memory = self.decoder.begin(sound)?;
        let row = self.decoder.rows(&[self.words.start], &mut memory)?;
        let logits = self.decoder.logits(&row)?;
        let languages = self.words.languages.iter().copied();
        Ok(languages.max_by(|a, b| logits[a.1 as usize].total_cmp(&logits[b.1 as usize])))
    }

    /// The answer behind `before` and `beginning`; `None` if `go_on` says so before a token.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn run(
        &self,
        sound: &Tensor,
        before: &[u32],
        beginning: &[u32],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Said>> {
        let mut memory = self.decoder.begin(sound)?;
        let mut best = None;
        for (round, &temperature) in self.options.temperatures.iter().enumerate() {
            if round > 0 {
                self.decoder.forget(&mut memory)?;
            }
            let draw = (temperature, round as u32);
            let said = self.once(&mut memory, before, beginning, draw, go_on)?;
            let Some(said) = said else {
                return Ok(None);
            };
            let good = !self.is_nonsense(&said);
            best = Some(said);
            if good {
                break;
            }
        }
        Ok(best)
    }

    /// Whether an answer is to be tried again, more freely.
    fn is_nonsense(&self, said: &Said) -> bool {
        let o = self.options;
        if self.is_silent(said) {
            return false;
        }
        let repeats = (o.compression_ratio).is_some_and(|most| said.compression_ratio > most);
        let guessed = (o.logprob).is_some_and(|least| said.mean_logprob < least);
        repeats || guessed
    }

    /// Whether there is no speech: the model says so, and is not sure of the words that it wrote all the same.
    pub(super) fn is_silent(&self, said: &Said) -> bool {
        let o = self.options;
        let silent = (o.silence).is_some_and(|most| said.silence > most);
        silent && (o.logprob).is_none_or(|least| said.mean_logprob < least)
    }

    fn once(
        &self,
        memory: &mut Memory,
        before: &[u32],
        beginning: &[u32],
        (temperature, round): (f32, u32),
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Said>> {
        let (words, decoder) = (self.words, self.decoder);
        let all = [before, beginning].concat();
        let most = self
            .most
            .min((self.positions + 1).saturating_sub(all.len()));
        let rows = decoder.rows(&all, memory)?;
        let silence = match words.silence {
            Some(token) => {
                // What stands behind the token that begins the answer.
                let logits = decoder.logits(&rows.narrow(0, before.len(), 1)?)?;
                (logits[token as usize] - log_sum(&logits)).exp()
            }
            None => 0.0,
        };
        let mut row = last(&rows)?;
        let (mut tokens, mut sum) = (Vec::new(), 0f32);
        loop {
            if !go_on() {
                return Ok(None);
            }
            let mut logits = decoder.logits(&row)?;
            apply(words, &tokens, &mut logits);
            let place = round << 16 | tokens.len() as u32;
            let token = match chosen(&logits, temperature, self.options.seed, place) {
                Some(token) => token,
                // All logits are minus infinity or not a number.
                None => candle_core::bail!("the model gives no numbers for the next token"),
            };
            sum += logits[token as usize] - log_sum(&logits);
            if token == words.end {
                break;
            }
            tokens.push(token);
            if tokens.len() >= most {
                break;
            }
            row = decoder.rows(&[token], memory)?;
        }
        Ok(Some(Said {
            compression_ratio: compression_ratio(&words.text(&tokens)),
            mean_logprob: sum / (tokens.len() + 1) as f32,
            tokens,
            temperature,
            silence,
        }))
    }
}

/// The most likely token, or one drawn by temperature.
fn chosen(logits: &[f32], temperature: f32, seed: u64, place: u32) -> Option<u32> {
    let score = |(token, &logit): (usize, &f32)| {
        let noise = match temperature > 0.0 && logit > f32::NEG_INFINITY {
            true => gumbel(seed, place, token as u32) * temperature,
            false => 0.0,
        };
        (token as u32, logit + noise)
    };
    let possible = logits.iter().enumerate().map(score);
    let possible = possible.filter(|(_, score)| score.is_finite());
    // The first of equals.
    let best = possible.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(token, _)| token)
}

/// Bytes of a text for one of its compressed form.
fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Memory takes everything.
    let written = encoder.write_all(text.as_bytes());
    let compressed = written.and_then(|()| encoder.finish()).unwrap_or_default();
    text.len() as f32 / compressed.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_itself_compresses_well() {
        let speech =
            "The quick brown fox jumps over the lazy dog, and nobody knows why it does so.";
        assert!(compression_ratio(speech) < 1.5);
        assert!(compression_ratio(&"no, no, no, ".repeat(20)) > 2.4);
        assert_eq!(compression_ratio(""), 0.0);
    }

    #[test]
    fn draws_follow_the_logits() {
        let never = f32::NEG_INFINITY;
        let logits = [1.0, never, 2.0, 2.0, f32::NAN];
        assert_eq!(chosen(&logits, 0.0, 1, 0), Some(2));
        let mut counts = [0; 5];
        for place in 0..4_000 {
            counts[chosen(&logits, 1.0, 7, place).unwrap() as usize] += 1;
        }
        // e of 1 + 2 e, and half of the rest.
        let share = |token: usize| f64::from(counts[token]) / 4_000.0;
        assert!((share(0) - 0.155).abs() < 0.03, "{counts:?}");
        assert!((share(2) - 0.422).abs() < 0.03, "{counts:?}");
        assert_eq!((counts[1], counts[4]), (0, 0));
        assert_eq!(chosen(&[never, f32::NAN], 0.0, 1, 0), None);
    }
}
