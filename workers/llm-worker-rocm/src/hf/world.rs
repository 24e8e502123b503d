//! RWKV's vocabulary file in the terms of GGUF's metadata.
//!
//! A line has a token's number, its bytes as a literal of Python, and how many there are:
//! <https://github.com/BlinkDL/ChatRWKV/tree/main/tokenizer>. GGUF has the bytes in Python's escapes, without quotes.

use worker::gguf::{Array, Value};

/// Names of the file.
pub(super) const FILES: [&str; 2] = ["rwkv_vocab_v20230424.txt", "vocab.txt"];
/// Longest file that is read; the one in use has 1.2 MB.
pub(super) const MAX_BYTES: u64 = 64 << 20;

/// Codes of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// The token that begins and ends texts; no line has it.
const ENDS: (u32, &str) = (0, "<s>");
/// What ends a turn: an empty line.
const TURN: &[u8] = b"\n\n";

/// The metadata of a vocabulary of `size` tokens; the error says which line is not understood.
pub(super) fn metadata(text: &str, size: usize) -> Result<Vec<(String, Value)>, String> {
    let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![UNUSED; size];
    let mut turn = None;
    let mut set = |id: usize, text: String, kind: i32| match tokens.get_mut(id) {
        Some(token) => {
            *token = text;
            kinds[id] = kind;
            true
        }
        None => false,
    };
    set(ENDS.0 as usize, ENDS.1.to_string(), CONTROL);
    for (number, line) in text.lines().enumerate().filter(|(_, l)| !l.is_empty()) {
        let token = read(line).filter(|(id, bytes)| {
            let id = *id as usize;
            set(id, escaped(bytes), NORMAL)
        });
        let Some((id, bytes)) = token else {
            return Err(format!(
                "line {} is no token of a vocabulary of {size}: {line:?}",
                number + 1
            ));
        };
        if bytes == TURN {
            turn = Some(id);
        }
    }
    let key = |key: &str| format!("tokenizer.ggml.{key}");
    let mut metadata = vec![
        (key("model"), Value::String("rwkv".to_string())),
        (key("tokens"), Value::Array(Array::String(tokens))),
        (key("token_type"), Value::Array(Array::I32(kinds))),
        (key("bos_token_id"), Value::U32(ENDS.0)),
        (key("eos_token_id"), Value::U32(ENDS.0)),
    ];
    metadata.extend(turn.map(|id| (key("eot_token_id"), Value::U32(id))));
    Ok(metadata)
}

/// The token of a line.
fn read(line: &str) -> Option<(u32, Vec<u8>)> {
    let (id, rest) = line.split_once(' ')?;
    let (literal, length) = rest.trim_end().rsplit_once(' ')?;
    let bytes = literal_bytes(literal)?;
    let fits = length.parse::<usize>().ok()? == bytes.len() && !bytes.is_empty();
    Some((id.parse().ok()?, bytes)).filter(|_| fits)
}

/// The bytes of a literal: of text in UTF-8, or of bytes if it begins with `b`.
fn literal_bytes(literal: &str) -> Option<Vec<u8>> {
    let (literal, of_bytes) = match literal.strip_prefix('b') {
        Some(rest) => (rest, true),
        None => (literal, false),
    };
    let quote = literal.chars().next().filter(|c| "'\"".contains(*c))?;
    let mut rest = literal.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut bytes = Vec::new();
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        let code = match character {
            '\\' => {
                let escape = rest.chars().next()?;
                rest = &rest[escape.len_utf8()..];
                let digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    'U' => 8,
                    _ => 0,
                };
                match escape {
                    'n' => u32::from(b'\n'),
                    'r' => u32::from(b'\r'),
                    't' => u32::from(b'\t'),
                    '\\' | '\'' | '"' => escape.into(),
                    _ if digits > 0 => {
                        let hex = rest.get(..digits)?;
                        rest = &rest[digits..];
                        u32::from_str_radix(hex, 16).ok()?
                    }
                    _ => return None,
                }
            }
            character => character.into(),
        };
        match of_bytes {
            true => bytes.push(u8::try_from(code).ok()?),
            false => bytes.extend(char::from_u32(code)?.to_string().as_bytes()),
        }
    }
    Some(bytes)
}

/// Bytes as Python shows them, without quotes.
fn escaped(bytes: &[u8]) -> String {
    let both = bytes.contains(&b'\'') && bytes.contains(&b'"');
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            b'\'' if both => text.push_str("\\'"),
            0x20..=0x7e => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_bytes() {
        assert_eq!(literal_bytes(r"'a\n\\'").unwrap(), b"a\n\\");
        assert_eq!(literal_bytes(r#""it's""#).unwrap(), b"it's");
        assert_eq!(literal_bytes(r"b'\xe4\xbd'").unwrap(), [0xe4, 0xbd]);
        // Of text, the character of that number.
        assert_eq!(
            literal_bytes(r"'\xa0\u200bé'").unwrap(),
            "\u{a0}\u{200b}é".as_bytes()
        );
        for wrong in ["a", "'a", r"'\q'", r"b'\u0100'", r"b'é\u0100'", "''b"] {
            assert!(literal_bytes(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_file_becomes_metadata() {
        let file = "1 '\\x00' 1\n2 ' x' 2\n5 '\\n\\n' 2\n3 b'\\xff' 1\n";
        let metadata = metadata(file, 7).unwrap();
        let find = |key: &str| {
            let mut all = metadata.iter();
            all.find(|(name, _)| name.ends_with(key))
                .map(|(_, v)| v.clone())
        };
        let tokens = ["<s>", "\\x00", " x", "\\xff", "[PAD4]", "\\n\\n", "[PAD6]"];
        let tokens = tokens.map(str::to_string).to_vec();
        assert_eq!(find(".tokens"), Some(Value::Array(Array::String(tokens))));
        let kinds = vec![3, 1, 1, 1, 5, 1, 5];
        assert_eq!(find(".token_type"), Some(Value::Array(Array::I32(kinds))));
        assert_eq!(find("eot_token_id"), Some(Value::U32(5)));
        for wrong in ["7 'a' 1", "1 'a' 2", "1 'a'", "one 'a' 1", "1 '' 0"] {
            assert!(
                super::metadata(wrong, 7).unwrap_err().contains("line 1"),
                "{wrong}"
            );
        }
    }
}
