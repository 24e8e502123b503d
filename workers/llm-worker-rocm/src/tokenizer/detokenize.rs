//! Tokens back to text, piece by piece.

use std::collections::HashMap;
use std::sync::Arc;

/// The bytes behind every token of a vocabulary.
#[derive(Debug)]
pub(super) struct Pieces {
    /// Bytes of all tokens, one after another.
    bytes: Vec<u8>,
    /// End of each token in `bytes`.
    ends: Vec<usize>,
}

impl Pieces {
    pub(super) fn new<T: AsRef<[u8]>>(pieces: impl Iterator<Item = T>) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for piece in pieces {
            bytes.extend_from_slice(piece.as_ref());
            ends.push(bytes.len());
        }
        Self { bytes, ends }
    }

    /// The token's bytes; none for an id outside of the vocabulary (models pad theirs).
    pub(super) fn get(&self, token: u32) -> &[u8] {
        let token = token as usize;
        match self.ends.get(token) {
            Some(&end) => {
                let start = token.checked_sub(1).map_or(0, |before| self.ends[before]);
                &self.bytes[start..end]
            }
            None => &[],
        }
    }
}

/// Turns a stream of tokens into text, never half a character.
///
/// A token may end inside a character; its bytes then wait for the rest. Bytes that cannot become a character
/// turn into U+FFFD.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    pieces: Arc<Pieces>,
    /// Control tokens that are written out.
    shown: HashMap<u32, String>,
    waiting: Vec<u8>,
}

impl Detokenizer {
    pub(super) fn new(pieces: Arc<Pieces>) -> Self {
        Self {
            pieces,
            shown: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    pub(super) fn showing(mut self, shown: HashMap<u32, String>) -> Self {
        self.shown = shown;
        self
    }

    /// Takes the next token and returns the text that is certain now; often one word, sometimes empty.
    pub fn push(&mut self, token: u32) -> String {
        let bytes = match self.shown.get(&token) {
            Some(text) => text.as_bytes(),
            None => self.pieces.get(token),
        };
        self.waiting.extend_from_slice(bytes);
        let mut text = String::new();
        let mut taken = 0;
        for chunk in self.waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            if taken + invalid.len() == self.waiting.len() && is_unfinished(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                taken += invalid.len();
            }
        }
        self.waiting.drain(..taken);
        text
    }

    /// Whether the last token has ended within a character.
    pub fn is_within(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Ends the stream: what still waits will never be a character.
    pub fn finish(&mut self) -> String {
        let unfinished = !self.waiting.is_empty();
        self.waiting.clear();
        if unfinished {
            char::REPLACEMENT_CHARACTER.to_string()
        } else {
            String::new()
        }
    }
}

/// Whether the bytes are the beginning of a character that more bytes could complete.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

/// The byte that a character of a byte-level BPE vocabulary stands for.
///
/// GPT-2's mapping: printable Latin-1 characters stand for themselves, the other 68 bytes for U+0100 upwards in order.
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match u32::from(c) {
        code @ 0..=0xFF => Some(code as u8).filter(|&b| printable(b)),
        code => (0..=u8::MAX)
            .filter(|&b| !printable(b))
            .nth((code - 0x100) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detokenizer(pieces: &[&[u8]]) -> Detokenizer {
        Detokenizer::new(Arc::new(Pieces::new(pieces.iter())))
    }

    #[test]
    fn characters_are_never_split() {
        // "é" and "🦀" over several tokens, one of which ends one character and begins the next.
        let mut d = detokenizer(&[b"caf\xC3", b"\xA9\xF0\x9F", b"\xA6", b"\x80!"]);
        let parts: Vec<_> = (0..4).map(|t| d.push(t)).collect();
        assert_eq!(parts, ["caf", "é", "", "🦀!"]);
        assert_eq!(d.finish(), "");
    }

    #[test]
    fn bytes_that_are_no_character_are_replaced() {
        let mut d = detokenizer(&[b"a\xFFb\xC3", b"c", b"\xE2\x82"]);
        assert_eq!(d.push(0), "a\u{FFFD}b");
        assert_eq!(d.push(1), "\u{FFFD}c");
        assert_eq!(d.push(2), "");
        assert_eq!(d.finish(), "\u{FFFD}");
        assert_eq!(d.finish(), "");
    }

    #[test]
    fn unknown_ids_are_silent() {
        let mut d = detokenizer(&[b"a"]);
        assert_eq!(d.push(1) + &d.push(u32::MAX) + &d.push(0), "a");
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut bytes: Vec<u8> = (0..0x144)
            .filter_map(char::from_u32)
            .filter_map(byte_of_char)
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('\u{144}'), None);
    }
}
