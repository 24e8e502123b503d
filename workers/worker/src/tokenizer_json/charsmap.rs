//! SentencePiece's compiled normalization (`precompiled_charsmap`).
//!
//! Four bytes give the length of a table; the table is a trie over the bytes of what is replaced, in the form of
//! [Darts-clone](https://github.com/s-yata/darts-clone): each entry holds its byte and where its children are, found
//! by exclusive or. Behind the table lie the replacements, each ended by a zero byte.

/// Longest replacement in bytes; the longest in use has 33.
const MAX_REPLACEMENT: usize = 1024;
/// An entry that is no node but the place of a replacement.
const IS_VALUE: u32 = 1 << 31;

/// What is replaced by what.
#[derive(Debug)]
pub struct Charsmap {
    table: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Checks the whole map, so that looking something up cannot fail.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        let (length, rest) = bytes
            .split_first_chunk::<4>()
            .ok_or("it is shorter than its own length")?;
        let length = u32::from_le_bytes(*length) as usize;
        if !length.is_multiple_of(4) || length == 0 || length >= rest.len() {
            return Err(format!(
                "its table is said to have {length} bytes, {} follow",
                rest.len()
            ));
        }
        let (table, replacements) = rest.split_at(length);
        let table: Vec<u32> = table
            .chunks_exact(4)
            .map(|entry| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))
            .collect();
        let replacements = String::from_utf8(replacements.to_vec())
            .map_err(|_| "its replacements are not UTF-8")?;
        let map = Self {
            table,
            replacements,
        };
        for (place, &entry) in map.table.iter().enumerate() {
            if entry & IS_VALUE != 0 {
                continue;
            }
            // Readers go from a node to its children without a look at the table's end.
            let value = place ^ children(entry);
            if value | 0xFF >= map.table.len() {
                return Err(format!("the children of entry {place} lie outside"));
            }
            if !has_value(entry) {
                continue;
            }
            match map.table.get(value) {
                Some(value) if map.replacement(value & !IS_VALUE).is_some() => {}
                _ => return Err(format!("entry {place} has no replacement")),
            }
        }
        Ok(map)
    }

    /// The longest replaced beginning of `text`: its length in bytes and what stands for it.
    pub fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut longest = None;
        let mut node = children(*self.table.first()?);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            if byte == 0 {
                break;
            }
            node ^= usize::from(byte);
            let Some(&entry) = self.table.get(node) else {
                break;
            };
            if entry & (IS_VALUE | 0xFF) != u32::from(byte) {
                break;
            }
            node ^= children(entry);
            if has_value(entry) && text.is_char_boundary(at + 1) {
                let value = self
                    .table
                    .get(node)
                    .and_then(|v| self.replacement(v & !IS_VALUE));
                longest = value.map(|value| (at + 1, value)).or(longest);
            }
        }
        longest
    }

    /// Length in bytes of the longest replacement.
    pub fn longest_replacement(&self) -> usize {
        self.replacements
            .split('\0')
            .map(str::len)
            .max()
            .unwrap_or(0)
    }

    fn replacement(&self, place: u32) -> Option<&str> {
        let rest = self.replacements.get(place as usize..)?;
        let end = rest
            .bytes()
            .take(MAX_REPLACEMENT + 1)
            .position(|b| b == 0)?;
        rest.get(..end)
    }
}

/// Whether what leads to this node is replaced.
fn has_value(entry: u32) -> bool {
    entry >> 8 & 1 == 1
}

/// Where the node's children are, relative to its own place.
fn children(entry: u32) -> usize {
    ((entry >> 10) << ((entry & (1 << 9)) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map that replaces single ASCII characters.
    fn map_of(pairs: &[(u8, &str)]) -> Vec<u8> {
        // The root's children begin at 256; each child's value lies 256 further on, at an odd offset of its own.
        let mut table = vec![0u32; 1024];
        table[0] = 256 << 10;
        let mut replacements = String::new();
        for &(byte, text) in pairs {
            let place = 256 ^ usize::from(byte);
            table[place] = u32::from(byte) | 1 << 8 | 512 << 10;
            table[place ^ 512] = IS_VALUE | replacements.len() as u32;
            replacements += text;
            replacements.push('\0');
        }
        let mut bytes = (4 * table.len() as u32).to_le_bytes().to_vec();
        bytes.extend(table.iter().flat_map(|entry| entry.to_le_bytes()));
        bytes.extend(replacements.as_bytes());
        bytes
    }

    #[test]
    fn replaces_what_it_has() {
        let map = Charsmap::new(&map_of(&[(b'a', "xyz"), (b'\t', " "), (b'q', "")])).unwrap();
        assert_eq!(map.longest("ab"), Some((1, "xyz")));
        assert_eq!(map.longest("\t"), Some((1, " ")));
        assert_eq!(map.longest("q"), Some((1, "")));
        assert_eq!(map.longest("b"), None);
        assert_eq!(map.longest(""), None);
        assert_eq!(map.longest("\0"), None);
    }

    #[test]
    fn damaged_maps_are_errors() {
        let whole = map_of(&[(b'a', "xyz")]);
        assert!(Charsmap::new(&whole).is_ok());
        assert!(Charsmap::new(&[]).is_err());
        assert!(Charsmap::new(&whole[..3]).is_err());
        assert!(Charsmap::new(&whole[..100]).is_err(), "the table is cut");
        assert!(Charsmap::new(&whole[..whole.len() - 1]).is_err(), "no end");
        let mut huge = whole.clone();
        huge[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Charsmap::new(&huge).is_err());
        let mut outside = whole.clone();
        let value = 4 + 4 * ((256 ^ usize::from(b'a')) ^ 512);
        outside[value..value + 4].copy_from_slice(&(IS_VALUE | 9999).to_le_bytes());
        assert!(Charsmap::new(&outside).is_err());
        let mut no_text = whole;
        *no_text.last_mut().unwrap() = 0xFF;
        assert!(Charsmap::new(&no_text).is_err());
        let long = "x".repeat(MAX_REPLACEMENT + 1);
        assert!(Charsmap::new(&map_of(&[(b'a', &long)])).is_err());
    }
}
