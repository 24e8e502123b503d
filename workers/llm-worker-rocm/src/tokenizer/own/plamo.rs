//! PLaMo 2's vocabularies: the cut of the highest score, searched from the end of the text.

use super::prefixes::Prefixes;

/// Scores are compared as integers of this many parts.
const PARTS: f32 = 1e4;
/// Pieces of this score and below are never taken.
const INVALID: i64 = -20_000_000;
/// The score of a character without a piece.
const UNKNOWN: i64 = -10_000_000;

/// A vocabulary of pieces with scores and a token for each byte.
#[derive(Debug)]
pub(in super::super) struct Plamo {
    pieces: Prefixes,
    /// By id.
    scores: Vec<i64>,
    bytes: Box<[u32; 256]>,
}

impl Plamo {
    pub(in super::super) fn new<'a>(
        pieces: impl Iterator<Item = (u32, &'a str, f32)>,
        bytes: Box<[u32; 256]>,
    ) -> Self {
        let mut scores = Vec::new();
        let pieces: Vec<(Vec<u8>, u32)> = pieces
            .map(|(id, text, score)| {
                scores.resize(scores.len().max(id as usize + 1), INVALID);
                if score.is_finite() {
                    scores[id as usize] = (score * PARTS).round() as i64;
                }
                (text.as_bytes().to_vec(), id)
            })
            .collect();
        Self {
            pieces: Prefixes::new(pieces.into_iter()),
            scores,
            bytes,
        }
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        // A mark of the byte order is no text.
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
        // Score, length and token of the best cut from each place on.
        let mut best: Vec<(i64, usize, Option<u32>)> = vec![(0, 0, None); text.len() + 1];
        let mut found = Vec::new();
        for (at, character) in text.char_indices().rev() {
            found.clear();
            self.pieces.each(&text.as_bytes()[at..], |length, id| {
                found.push((length, id))
            });
            let mut place = (i64::MIN, 0, None);
            // Of equal cuts the one with the longest first piece.
            for &(length, id) in found.iter().rev() {
                let score = self.scores[id as usize];
                if score <= INVALID || !text.is_char_boundary(at + length) {
                    continue;
                }
                let total = best[at + length].0.saturating_add(score);
                if total > place.0 {
                    place = (total, length, Some(id));
                }
            }
            let length = character.len_utf8();
            let total = best[at + length].0.saturating_add(UNKNOWN);
            if total > place.0 {
                place = (total, length, None);
            }
            best[at] = place;
        }
        let mut at = 0;
        while at < text.len() {
            let (_, length, token) = best[at];
            match token {
                Some(id) => ids.push(id),
                None => ids.extend(
                    text[at..at + length]
                        .bytes()
                        .map(|byte| self.bytes[usize::from(byte)]),
                ),
            }
            at += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_sum_from_the_end_wins() {
        let pieces = [
            ("a", -1.0),
            ("b", -1.0),
            ("ab", -2.0),
            ("abb", -3.5),
            ("c", f32::NAN),
        ];
        let pieces = pieces
            .iter()
            .zip(300..)
            .map(|(&(text, score), id)| (id, text, score));
        let plamo = Plamo::new(pieces, Box::new(std::array::from_fn(|byte| byte as u32)));
        let ids = |text: &str| {
            let mut ids = Vec::new();
            plamo.encode(text, &mut ids);
            ids
        };
        // ab + b = a + b + b = -3 beats abb; of the two the longer piece first.
        assert_eq!(ids("abb"), [302, 301]);
        assert_eq!(ids("\u{FEFF}a"), [300]);
        assert_eq!(ids("cé"), [u32::from(b'c'), 0xC3, 0xA9]);
        assert!(ids("").is_empty());
    }
}
