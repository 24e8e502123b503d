//! SentencePiece's unigram model: of all ways to cut a text into tokens, the most probable.
//!
//! [Kudo, Subword Regularization, 2018](https://arxiv.org/abs/1804.10959); the search is that of Viterbi, forwards over
//! the text's bytes.

use super::prefixes::Prefixes;
use crate::tokenizer::SPACE_MARK;
use worker::tokenizer_json::Charsmap;

/// How much less probable an unknown character is than the least probable token, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// How text is brought into the vocabulary's form.
#[derive(Debug)]
pub(in super::super) struct Normalizer {
    /// Replacements that come with the vocabulary.
    pub(in super::super) charsmap: Option<Vec<u8>>,
    /// Whether a text begins with a space of its own.
    pub(in super::super) space_prefix: bool,
    /// Whether runs of spaces are one, and those around a text none.
    pub(in super::super) merge_spaces: bool,
}

/// One token's share in a vocabulary of probabilities.
pub(in super::super) struct Piece<'a> {
    pub(in super::super) id: u32,
    pub(in super::super) text: &'a str,
    /// Logarithm of the probability.
    pub(in super::super) score: f32,
    /// Added by the model's makers: preferred to all others.
    pub(in super::super) user_defined: bool,
    /// Counts where the least probable token is looked for.
    pub(in super::super) usual: bool,
}

/// A vocabulary of tokens with probabilities.
#[derive(Debug)]
pub(in super::super) struct Unigram {
    pieces: Prefixes,
    /// By id.
    scores: Vec<f32>,
    unknown: u32,
    unknown_score: f64,
    /// Tokens of single bytes, for characters that no token has.
    bytes: Option<Box<[u32; 256]>>,
    charsmap: Option<Charsmap>,
    space_prefix: bool,
    merge_spaces: bool,
}

/// The best way to reach a place in the text.
#[derive(Clone, Copy)]
struct Step {
    score: f64,
    from: usize,
    token: u32,
}

impl Unigram {
    /// # Errors
    /// What is wrong with the normalizer's replacements.
    pub(in super::super) fn new<'a>(
        pieces: impl Iterator<Item = Piece<'a>>,
        unknown: u32,
        bytes: Option<Box<[u32; 256]>>,
        normalizer: &Normalizer,
    ) -> Result<Self, String> {
        let mut scores: Vec<f32> = Vec::new();
        let mut least = f64::INFINITY;
        let pieces: Vec<(Vec<u8>, u32)> = pieces
            .map(|piece| {
                let place = piece.id as usize;
                scores.resize(scores.len().max(place + 1), 0.0);
                if !piece.user_defined {
                    scores[place] = piece.score;
                }
                if piece.usual {
                    least = least.min(f64::from(piece.score));
                }
                (piece.text.as_bytes().to_vec(), piece.id)
            })
            .collect();
        Ok(Self {
            pieces: Prefixes::new(pieces.into_iter()),
            scores,
            unknown,
            unknown_score: if least.is_finite() { least } else { 0.0 } - UNKNOWN_PENALTY,
            bytes,
            charsmap: normalizer
                .charsmap
                .as_deref()
                .map(Charsmap::new)
                .transpose()
                .map_err(|e| format!("precompiled_charsmap: {e}"))?,
            space_prefix: normalizer.space_prefix,
            merge_spaces: normalizer.merge_spaces,
        })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalize(text);
        let unreached = Step {
            score: f64::NEG_INFINITY,
            from: 0,
            token: self.unknown,
        };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        for (from, character) in text.char_indices() {
            let base = best[from].score;
            let mut reach = |length: usize, token: u32, score: f64| {
                let step = &mut best[from + length];
                if base + score > step.score {
                    *step = Step {
                        score: base + score,
                        from,
                        token,
                    };
                }
            };
            let mut known = false;
            self.pieces.each(&text.as_bytes()[from..], |length, id| {
                known |= length == character.len_utf8();
                // A damaged file may have pieces that end within a character.
                if text.is_char_boundary(from + length) {
                    reach(length, id, f64::from(self.scores[id as usize]));
                }
            });
            if !known {
                reach(character.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        let mut steps = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let step = best[end];
            steps.push((step.token, step.from..end));
            end = step.from;
        }
        let mut after_unknown = false;
        for (token, range) in steps.into_iter().rev() {
            let unknown = token == self.unknown;
            match &self.bytes {
                Some(bytes) if unknown => {
                    ids.extend(text[range].bytes().map(|byte| bytes[usize::from(byte)]));
                }
                // Unknown characters in a row are one token.
                _ if unknown && after_unknown => {}
                _ => ids.push(token),
            }
            after_unknown = unknown;
        }
    }

    /// Replacements, then spaces as marks.
    fn normalize(&self, text: &str) -> String {
        let mut normal = String::with_capacity(text.len() + text.len() / 4);
        let (mut prefixed, mut in_word) = (false, false);
        let mut take = |piece: &str| {
            for character in piece.chars() {
                if character == ' ' {
                    in_word = false;
                    if !self.merge_spaces {
                        normal.push(SPACE_MARK);
                    }
                    continue;
                }
                if !in_word {
                    in_word = true;
                    if self.merge_spaces || self.space_prefix && !prefixed {
                        normal.push(SPACE_MARK);
                        prefixed = true;
                    }
                }
                normal.push(character);
            }
        };
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            let (length, piece) = self
                .charsmap
                .as_ref()
                .and_then(|map| map.longest(rest))
                .unwrap_or((character.len_utf8(), &rest[..character.len_utf8()]));
            take(piece);
            rest = &rest[length..];
        }
        normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(normalizer: &Normalizer, bytes: bool) -> Unigram {
        let pieces = [
            ("▁", -3.0),
            ("a", -4.0),
            ("b", -4.0),
            ("ab", -9.0),
            ("▁a", -5.0),
            ("bb", -6.0),
            ("▁abb", -13.5),
        ];
        let pieces = pieces.iter().zip(1..).map(|(&(text, score), id)| Piece {
            id,
            text,
            score,
            user_defined: false,
            usual: true,
        });
        let bytes = bytes.then(|| Box::new(std::array::from_fn(|byte| 100 + byte as u32)));
        Unigram::new(pieces, 0, bytes, normalizer).unwrap()
    }

    fn plain() -> Normalizer {
        Normalizer {
            charsmap: None,
            space_prefix: true,
            merge_spaces: true,
        }
    }

    fn ids(model: &Unigram, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        model.encode(text, &mut ids);
        ids
    }

    #[test]
    fn the_most_probable_cut_wins() {
        let model = model(&plain(), false);
        // ▁a + bb = -11, ▁abb = -13.5, ▁ + ab + b = -16.
        assert_eq!(ids(&model, "abb"), [5, 6]);
        assert_eq!(ids(&model, "ba"), [1, 3, 2]);
        assert_eq!(ids(&model, "  a   a "), [5, 5]);
        assert!(ids(&model, "").is_empty());
    }

    #[test]
    fn unknown_characters_are_one_token_or_bytes() {
        assert_eq!(ids(&model(&plain(), false), "xéa"), [1, 0, 2]);
        assert_eq!(
            ids(&model(&plain(), true), "éa"),
            [1, 100 + 0xC3, 100 + 0xA9, 2]
        );
    }

    #[test]
    fn spaces_are_kept_or_merged_as_the_file_says() {
        let kept = Normalizer {
            merge_spaces: false,
            ..plain()
        };
        assert_eq!(ids(&model(&kept, false), "a  b"), [5, 1, 1, 3]);
        let bare = Normalizer {
            space_prefix: false,
            ..kept
        };
        assert_eq!(ids(&model(&bare, false), "a b"), [2, 1, 3]);
    }
}
