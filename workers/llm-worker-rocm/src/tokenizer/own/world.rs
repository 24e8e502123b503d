//! RWKV's vocabularies: the longest token that begins the rest, again and again.

use super::prefixes::Prefixes;

/// A vocabulary of byte strings with a token for each byte.
#[derive(Debug)]
pub(in super::super) struct World(Prefixes);

impl World {
    /// # Errors
    /// The first byte that has no token of its own.
    pub(in super::super) fn new(tokens: impl Iterator<Item = (Vec<u8>, u32)>) -> Result<Self, u8> {
        let prefixes = Prefixes::new(tokens);
        for byte in 0..=u8::MAX {
            let mut known = false;
            prefixes.each(&[byte], |_, _| known = true);
            if !known {
                return Err(byte);
            }
        }
        Ok(Self(prefixes))
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let mut longest = None;
            self.0.each(rest, |length, id| longest = Some((length, id)));
            // Every byte is a token.
            let Some((length, id)) = longest else { return };
            ids.push(id);
            rest = &rest[length..];
        }
    }
}

/// The bytes that a token's spelling stands for: Python's escapes without the quotes.
pub(in super::super) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        if character != '\\' {
            bytes.extend(character.to_string().as_bytes());
            continue;
        }
        let Some(escaped) = rest.chars().next() else {
            break;
        };
        rest = &rest[escaped.len_utf8()..];
        match escaped {
            't' => bytes.push(b'\t'),
            'n' => bytes.push(b'\n'),
            'r' => bytes.push(b'\r'),
            'x' => {
                let hex = rest
                    .get(..2)
                    .and_then(|hex| u8::from_str_radix(hex, 16).ok());
                if let Some(byte) = hex {
                    bytes.push(byte);
                    rest = &rest[2..];
                }
            }
            other => bytes.extend(other.to_string().as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_bytes() {
        assert_eq!(unescape(r"a\n\t\r\\\'é"), "a\n\t\r\\'é".as_bytes());
        assert_eq!(unescape(r"\xe4\xbd"), [0xE4, 0xBD]);
        assert!(unescape("\\").is_empty());
        assert_eq!(unescape(r"\x4"), b"4");
    }

    #[test]
    fn the_longest_token_is_taken() {
        let bytes = (0..=255u8).map(|byte| (vec![byte], u32::from(byte)));
        let words = [("ab", 300), ("abcd", 301), ("bcd", 302)];
        let words = words.map(|(word, id)| (word.as_bytes().to_vec(), id));
        let world = World::new(bytes.chain(words)).unwrap();
        let mut ids = Vec::new();
        world.encode("abcabcdbcd", &mut ids);
        assert_eq!(ids, [300, u32::from(b'c'), 301, 302]);
        let missing = World::new((1..=255u8).map(|byte| (vec![byte], u32::from(byte))));
        assert_eq!(missing.unwrap_err(), 0);
    }
}
