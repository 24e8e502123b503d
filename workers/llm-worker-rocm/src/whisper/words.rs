//! When each word is said: some heads of the decoder look at the sound of the words that they write.
//!
//! <https://github.com/openai/whisper/blob/main/whisper/timing.py>

use super::config::WhisperConfig;
use super::decoder::Decoder;
use super::tokens::{Words, TIME_STEP};
use super::transcribe::Segment;
use candle_core::{DType, Result, Tensor};

/// Rows of sound whose median is taken.
const MEDIAN: usize = 7;
/// Signs that belong to the word behind them, and to the one before them.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
/// Languages without spaces between words.
const WITHOUT_SPACES: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];

/// A word and when it is said.
#[derive(Debug, Clone, PartialEq)]
pub struct Word {
    /// The word with the signs around it, and the space before it.
    pub word: String,
    /// When it begins, in seconds.
    pub start: f64,
    /// When it ends.
    pub end: f64,
}

/// What finds the times of words.
pub(super) struct Aligner<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) words: &'a Words,
    pub(super) config: &'a WhisperConfig,
}

/// A word as some of the tokens.
#[derive(Debug, Clone, PartialEq)]
struct Spelled {
    text: String,
    tokens: usize,
}

impl Aligner<'_> {
    /// Gives segments of one window their words. `rows` of the window have sound in them; the window begins at second
    /// `offset`.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn add(
        &self,
        sound: &Tensor,
        rows: usize,
        beginning: &[u32],
        offset: f64,
        segments: &mut [Segment],
    ) -> Result<()> {
        let is_text = |token: &&u32| **token < self.words.end;
        let text: Vec<u32> = (segments.iter())
            .flat_map(|segment| segment.tokens.iter().filter(is_text))
            .copied()
            .collect();
        // The marks of the beginning and the end take places, too.
        let places = beginning.len() + text.len() + 2;
        if text.is_empty() || rows == 0 || places > self.config.positions {
            return Ok(());
        }
        let times = self.times(sound, rows, beginning, &text)?;
        let spaced = !(self.words.languages.iter())
            .any(|(code, token)| beginning.contains(token) && WITHOUT_SPACES.contains(code));
        let mut done = 0;
        for segment in segments {
            let tokens: Vec<u32> = segment.tokens.iter().filter(is_text).copied().collect();
            let pieces = self.pieces(&tokens);
            let spelled = match spaced {
                true => by_spaces(pieces),
                false => pieces,
            };
            let mut at = done;
            for word in with_signs(spelled) {
                let seconds = |place: usize| offset + times[place] as f64 * TIME_STEP;
                let end = at + word.tokens;
                segment.words.push(Word {
                    word: word.text,
                    start: seconds(at),
                    end: seconds(end),
                });
                at = end;
            }
            done += tokens.len();
        }
        Ok(())
    }

    /// The row of sound at which each token begins, and that at which the last one ends.
    fn times(
        &self,
        sound: &Tensor,
        rows: usize,
        beginning: &[u32],
        text: &[u32],
    ) -> Result<Vec<usize>> {
        let tokens = [beginning, &[self.words.timeless], text, &[self.words.end]].concat();
        let listed = &self.words.alignment;
        let looks = |block: usize, head: usize| match listed.is_empty() {
            // As OpenAI's program does for models that it does not know.
            true => block >= self.config.blocks / 2,
            false => listed.contains(&(block, head)),
        };
        let count = text.len() + 1;
        let mut sum = vec![0f32; count * rows];
        let mut memory = self.decoder.begin(sound)?;
        self.decoder
            .rows_watched(&tokens, &mut memory, |block, weights| {
                for head in (0..self.config.heads).filter(|&head| looks(block, head)) {
                    let weights = weights.narrow(0, head, 1)?.squeeze(0)?;
                    let weights = weights.narrow(1, 0, rows)?.to_dtype(DType::F32)?;
                    let mut weights: Vec<Vec<f32>> = weights.to_vec2()?;
                    normalise(&mut weights);
                    // Of the marks only the one before the text counts.
                    let own = weights.iter().skip(beginning.len()).take(count);
                    for (row, sum) in own.zip(sum.chunks_exact_mut(rows)) {
                        for (x, sum) in median(row).into_iter().zip(sum) {
                            *sum += x;
                        }
                    }
                }
                Ok(())
            })?;
        Ok(first_columns(&sum, rows))
    }

    /// Tokens that together are whole characters.
    fn pieces(&self, tokens: &[u32]) -> Vec<Spelled> {
        let mut detokenizer = self.words.tokenizer.detokenizer();
        let mut pieces: Vec<Spelled> = Vec::new();
        let mut count = 0;
        for &token in tokens {
            count += 1;
            let text = detokenizer.push(token);
            if !text.is_empty() {
                pieces.push(Spelled {
                    text,
                    tokens: count,
                });
                count = 0;
            }
        }
        let rest = detokenizer.finish();
        if count > 0 || !rest.is_empty() {
            pieces.push(Spelled {
                text: rest,
                tokens: count,
            });
        }
        pieces
    }
}

/// Pieces as words: each begins with a space, or is a sign.
fn by_spaces(pieces: Vec<Spelled>) -> Vec<Spelled> {
    let mut words: Vec<Spelled> = Vec::new();
    for piece in pieces {
        let trimmed = piece.text.trim();
        let mut characters = trimmed.chars();
        let sign = characters.next().is_some_and(|c| c.is_ascii_punctuation())
            && characters.next().is_none();
        match words.last_mut() {
            Some(word) if !piece.text.starts_with(' ') && !sign => {
                word.text += &piece.text;
                word.tokens += piece.tokens;
            }
            _ => words.push(piece),
        }
    }
    words
}

/// Words with the signs that belong to them.
fn with_signs(words: Vec<Spelled>) -> Vec<Spelled> {
    let is_one_of = |text: &str, signs: &str| !text.is_empty() && signs.contains(text);
    let mut joined: Vec<Spelled> = Vec::new();
    // Opening signs that wait for their word.
    let mut opening: Option<Spelled> = None;
    for word in words {
        let opens = word.text.starts_with(' ') && is_one_of(word.text.trim(), OPENING);
        let closes = is_one_of(&word.text, CLOSING);
        let before = opening.take();
        match (before, joined.last_mut()) {
            (Some(mut before), _) => {
                before.text += &word.text;
                before.tokens += word.tokens;
                match opens {
                    true => opening = Some(before),
                    false => joined.push(before),
                }
            }
            (None, _) if opens => opening = Some(word),
            (None, Some(last)) if closes && !last.text.ends_with(' ') => {
                last.text += &word.text;
                last.tokens += word.tokens;
            }
            (None, _) => joined.push(word),
        }
    }
    joined.extend(opening);
    joined
}

/// What each row of sound gets of each token, as differences from the row's mean in its standard deviations.
fn normalise(weights: &mut [Vec<f32>]) {
    for row in weights.iter_mut() {
        // As if the rows that were cut off had never been there.
        let sum: f32 = row.iter().sum();
        row.iter_mut()
            .for_each(|x| *x /= sum.max(f32::MIN_POSITIVE));
    }
    let count = weights.len() as f32;
    let columns = weights.first().map_or(0, Vec::len);
    for column in 0..columns {
        let mean = weights.iter().map(|row| row[column]).sum::<f32>() / count;
        let square = |row: &Vec<f32>| (row[column] - mean).powi(2);
        let deviation = (weights.iter().map(square).sum::<f32>() / count).sqrt();
        for row in weights.iter_mut() {
            row[column] = match deviation > 0.0 {
                true => (row[column] - mean) / deviation,
                false => 0.0,
            };
        }
    }
}

/// The medians around each place; the row is mirrored at its ends.
fn median(row: &[f32]) -> Vec<f32> {
    let reach = (MEDIAN / 2) as i64;
    if row.len() as i64 <= reach {
        return row.to_vec();
    }
    let last = row.len() as i64 - 1;
    let at = |place: i64| {
        let place = place.abs();
        row[(if place > last {
            2 * last - place
        } else {
            place
        }) as usize]
    };
    (0..row.len() as i64)
        .map(|place| {
            let mut around: Vec<f32> = (place - reach..=place + reach).map(at).collect();
            around.sort_by(f32::total_cmp);
            around[MEDIAN / 2]
        })
        .collect()
}

/// The first column of each row on the way through a matrix, from its first place to its last, that collects most;
/// steps go down, right, or both. ("Dynamic programming algorithm optimization for spoken word recognition", Sakoe and
/// Chiba, 1978.)
fn first_columns(matrix: &[f32], columns: usize) -> Vec<usize> {
    #[derive(Clone, Copy)]
    enum Step {
        Both,
        Down,
        Right,
    }
    let rows = matrix.len() / columns;
    let mut steps = vec![Step::Right; rows * columns];
    let mut above = vec![f32::INFINITY; columns];
    for row in 0..rows {
        let mut current = vec![f32::INFINITY; columns];
        for column in 0..columns {
            let both = match (row, column) {
                (0, 0) => 0.0,
                (0, _) | (_, 0) => f32::INFINITY,
                _ => above[column - 1],
            };
            let down = if row > 0 {
                above[column]
            } else {
                f32::INFINITY
            };
            let right = match column {
                0 => f32::INFINITY,
                _ => current[column - 1],
            };
            let (cost, step) = match () {
                () if both < down && both < right => (both, Step::Both),
                () if down < both && down < right => (down, Step::Down),
                () => (right, Step::Right),
            };
            // The first place has no step that leads to it.
            let cost = if (row, column) == (0, 0) { 0.0 } else { cost };
            current[column] = cost - matrix[row * columns + column];
            steps[row * columns + column] = step;
        }
        above = current;
    }
    let mut first = vec![0; rows];
    let (mut row, mut column) = (rows.saturating_sub(1), columns.saturating_sub(1));
    if rows == 0 {
        return first;
    }
    loop {
        first[row] = column;
        if (row, column) == (0, 0) {
            return first;
        }
        let step = match (row, column) {
            (0, _) => Step::Right,
            (_, 0) => Step::Down,
            _ => steps[row * columns + column],
        };
        match step {
            Step::Both => (row, column) = (row - 1, column - 1),
            Step::Down => row -= 1,
            Step::Right => column -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(texts: &[&str]) -> Vec<Spelled> {
        let one = |text: &&str| Spelled {
            text: text.to_string(),
            tokens: 1,
        };
        texts.iter().map(one).collect()
    }

    #[test]
    fn words_have_their_signs() {
        let pieces = spelled(&[" He", "llo", ",", " \"", "wor", "ld", "\"", "!", " ok"]);
        let words = with_signs(by_spaces(pieces));
        let got: Vec<(&str, usize)> = words.iter().map(|w| (&*w.text, w.tokens)).collect();
        assert_eq!(got, [(" Hello,", 3), (" \"world\"!", 5), (" ok", 1)]);
    }

    #[test]
    fn the_way_follows_what_is_bright() {
        // Three rows of seven columns, bright at 0-1, 2-4, 5-6.
        let bright = [0..2, 2..5, 5..7];
        let row = |range: &std::ops::Range<usize>| -> Vec<f32> {
            (0..7)
                .map(|c| if range.contains(&c) { 1.0 } else { -1.0 })
                .collect()
        };
        let matrix: Vec<f32> = bright.iter().flat_map(row).collect();
        assert_eq!(first_columns(&matrix, 7), [0, 2, 5]);
        assert_eq!(first_columns(&[1.0; 4], 1), [0, 0, 0, 0]);
        assert_eq!(first_columns(&[1.0; 4], 4), [0]);
    }

    #[test]
    fn medians_drop_what_stands_alone() {
        let mut row = vec![0.0; 12];
        row[5] = 9.0;
        assert_eq!(median(&row), vec![0.0; 12]);
        assert_eq!(median(&[1.0, 2.0]), [1.0, 2.0]);
        let steps: Vec<f32> = (0..8).map(|i| i as f32).collect();
        assert_eq!(median(&steps)[3..5], [3.0, 4.0]);
    }
}
