//! Where pictures stand in a prompt.
//!
//! A template writes a family's placeholder for each picture; here it becomes the picture's tokens with what stands
//! around them, and each of these tokens a row of the picture.

use super::config::VisionConfig;
use super::kinds::Kind;
use super::preprocess::Pixels;
use crate::engine::media::{Media, Picture, Span, Turn};
use crate::jinja::Rendered;
use crate::tokenizer::Tokenizer;
use image::RgbImage;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use worker::picture::{decode, to_rgb, DecodeLimits};
use worker::{Error, Result};

/// Stands for a picture in messages to templates that know nothing of pictures: no character of any text.
pub const MARK: &str = "\u{fdd0}picture\u{fdd1}";

/// Held while a picture is decoded.
static DECODING: Mutex<()> = Mutex::new(());

/// What makes pictures and prompts of an encoder's family.
#[derive(Debug, Clone)]
pub struct Processor {
    config: VisionConfig,
}

/// A picture's part of a prompt.
struct Expansion {
    text: String,
    /// Rows of each of the tokens in it that stand for rows.
    runs: Vec<usize>,
}

impl Processor {
    /// That of an encoder.
    pub fn new(config: &VisionConfig) -> Self {
        Self {
            config: config.clone(),
        }
    }

    /// A picture of a file's bytes.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no picture, too large, or of a shape that the encoder does not take.
    pub fn picture(&self, bytes: &[u8], limits: &DecodeLimits) -> Result<Arc<Picture>> {
        // One at a time: a small file may be a picture of many pixels.
        let _turn = DECODING.lock().unwrap_or_else(PoisonError::into_inner);
        self.picture_of(&to_rgb(&decode(bytes, limits)?))
    }

    /// A picture of pixels.
    ///
    /// # Errors
    /// [`Error::Usage`] for a shape that the encoder does not take.
    pub fn picture_of(&self, picture: &RgbImage) -> Result<Arc<Picture>> {
        let pixels = self.config.pixels(picture).map_err(Error::Usage)?;
        Ok(Arc::new(Picture::new(pixels)))
    }

    /// An encoder's shape, which says what it takes.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// The tokens of a chat with pictures, and where these are; for `add_bos` see [`Tokenizer::encode`].
    ///
    /// # Errors
    /// [`Error::Usage`] if the template has not left a place for each picture, or the vocabulary cannot express the
    /// text.
    pub fn prompt(
        &self,
        rendered: &Rendered,
        pictures: &[Arc<Picture>],
        tokenizer: &Tokenizer,
        add_bos: bool,
    ) -> Result<(Vec<u32>, Media)> {
        let traits = self.config.traits;
        let (token, id) = self.token(tokenizer, &rendered.text)?;
        let marks = find(&rendered.text, MARK, &[]);
        let (places, is_alone) = match marks.is_empty() {
            true => (
                find(&rendered.text, traits.placeholder, &rendered.input),
                false,
            ),
            false => (marks, true),
        };
        if places.len() != pictures.len() {
            return Err(Error::Usage(format!(
                "the chat template has left {} places for {} pictures",
                places.len(),
                pictures.len()
            )));
        }
        let expansions: Vec<Expansion> = pictures
            .iter()
            .map(|picture| self.expansion(&picture.pixels, &token, is_alone))
            .collect();
        let text = replaced(rendered, &places, &expansions);
        let tokens = tokenizer
            .encode_rendered(&text, add_bos)
            .map_err(|e| Error::Usage(e.to_string()))?;
        let mut runs = expansions.iter().zip(pictures).flat_map(|(e, picture)| {
            let mut first = 0;
            e.runs.iter().map(move |run| {
                first += run;
                (first - run, *run, picture)
            })
        });
        let mut all = Vec::with_capacity(tokens.len());
        let mut spans = Vec::new();
        let astray = || {
            Error::Usage(format!(
                "a message spells {token}, which stands for pictures"
            ))
        };
        for token in tokens {
            if token != id {
                all.push(token);
                continue;
            }
            let (first, len, picture) = runs.next().ok_or_else(astray)?;
            spans.push(Span {
                start: all.len(),
                len,
                picture: picture.clone(),
                first,
            });
            all.resize(all.len() + len, id);
        }
        if runs.next().is_some() {
            return Err(astray());
        }
        let turns = traits.sections.then(|| self.turns(all.len(), &spans));
        let media = Media {
            spans,
            turns,
            whole: traits.kind == Kind::Gemma3,
        };
        Ok((all, media))
    }

    /// The token that stands for rows: the family's, or where the vocabulary lacks it, as llama.cpp's files of LLaVA do,
    /// a control token that the text does not have.
    fn token(&self, tokenizer: &Tokenizer, text: &str) -> Result<(String, u32)> {
        let own = self.config.traits.token;
        if let Some(id) = tokenizer.control_id(own) {
            return Ok((own.to_string(), id));
        }
        let ids = 0..tokenizer.vocab_size() as u32;
        let mut unused = ids.filter_map(|id| {
            let spelled = tokenizer.control_text(id)?;
            let round = tokenizer.control_id(spelled) == Some(id);
            (round && !tokenizer.is_end(id) && !text.contains(spelled))
                .then(|| (spelled.to_string(), id))
        });
        unused.next().ok_or_else(|| {
            Error::Usage(format!(
                "the vocabulary has no control token {own}: pictures have no place in prompts"
            ))
        })
    }

    fn expansion(&self, pixels: &Pixels, token: &str, is_alone: bool) -> Expansion {
        let traits = self.config.traits;
        let (before, behind) = if is_alone {
            traits.alone
        } else {
            traits.around
        };
        let runs: Vec<usize> = pixels
            .tiles
            .iter()
            .map(|tile| self.config.rows_of_tile(tile))
            .collect();
        match traits.kind {
            Kind::Idefics3 => {
                const EDGE: &str = "<fake_token_around_image>";
                let (rows, columns) = pixels.grid;
                let mut text = String::new();
                for row in 1..=rows {
                    for column in 1..=columns {
                        text += &format!("{EDGE}<row_{row}_col_{column}>{token}");
                    }
                    text += "\n";
                }
                if rows > 0 {
                    text += "\n";
                }
                text += &format!("{EDGE}<global-img>{token}{EDGE}");
                Expansion { text, runs }
            }
            Kind::Pixtral => {
                let tile = &pixels.tiles[0];
                let rows = tile.rows / self.config.merge;
                Expansion {
                    text: vec![token; rows].join("[IMG_BREAK]") + "[IMG_END]",
                    runs: vec![tile.columns / self.config.merge; rows],
                }
            }
            // Tiles behind each other.
            _ => Expansion {
                text: format!("{before}{token}{behind}"),
                runs: vec![runs.iter().sum()],
            },
        }
    }

    /// What the tokens of a prompt are turned by: text by its place, rows of a picture from there on by their row and
    /// column, and what follows by the next place that none of these has.
    fn turns(&self, tokens: usize, spans: &[Span]) -> Vec<Turn> {
        let mut turns = Vec::with_capacity(tokens);
        let mut next = 0u32;
        let plain = |turns: &mut Vec<Turn>, next: &mut u32, end: usize| {
            while turns.len() < end {
                turns.push([*next; 3]);
                *next += 1;
            }
        };
        for span in spans {
            plain(&mut turns, &mut next, span.start);
            let tile = &span.picture.pixels.tiles[0];
            let (rows, columns) = (
                tile.rows / self.config.merge,
                tile.columns / self.config.merge,
            );
            for row in 0..rows as u32 {
                turns.extend((0..columns as u32).map(|column| [next, next + row, next + column]));
            }
            next += rows.max(columns) as u32;
        }
        plain(&mut turns, &mut next, tokens);
        turns
    }
}

/// Where a word stands outside of some ranges.
fn find(text: &str, word: &str, without: &[Range<usize>]) -> Vec<Range<usize>> {
    let overlaps = |place: &Range<usize>| {
        let mut ranges = without.iter();
        ranges.any(|range| range.start < place.end && place.start < range.end)
    };
    let places = text.match_indices(word);
    places
        .map(|(at, word)| at..at + word.len())
        .filter(|place| !overlaps(place))
        .collect()
}

/// A text with other words at some places. Their neighbours stay what they were, the words are the template's.
fn replaced(rendered: &Rendered, places: &[Range<usize>], words: &[Expansion]) -> Rendered {
    let mut text = String::new();
    let mut input = Vec::new();
    let mut done = 0;
    // Input between `done` and an end, moved to where it is now.
    let mut keep = |text: &mut String, from: usize, to: usize| {
        let start = text.len();
        for range in &rendered.input {
            let (first, end) = (range.start.max(from), range.end.min(to));
            if first < end {
                input.push(start + first - from..start + end - from);
            }
        }
        text.push_str(&rendered.text[from..to]);
    };
    for (place, word) in places.iter().zip(words) {
        keep(&mut text, done, place.start);
        text.push_str(&word.text);
        done = place.end;
    }
    keep(&mut text, done, rendered.text.len());
    Rendered { text, input }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_replaced_and_input_stays_input() {
        let rendered = Rendered {
            text: format!("ab{MARK}cd<i>e"),
            // All but the first and the last character: a mark in input, too.
            input: vec![
                1..2 + MARK.len() + 2,
                2 + MARK.len() + 2..2 + MARK.len() + 5,
            ],
        };
        // A placeholder that somebody spelled is none.
        assert!(find(&rendered.text, "<i>", &rendered.input).is_empty());
        let places = find(&rendered.text, MARK, &[]);
        let words = [Expansion {
            text: "[picture]".to_string(),
            runs: vec![1],
        }];
        let new = replaced(&rendered, &places, &words);
        assert_eq!(new.text, "ab[picture]cd<i>e");
        assert_eq!(new.input, [1..2, 11..13, 13..16]);
    }
}
