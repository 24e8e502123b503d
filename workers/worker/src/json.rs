//! JSON as Python writes it.

use serde::de::DeserializeOwned;

/// Numbers that Python's `json` writes and JSON does not have.
const CONSTANTS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Reads JSON in which `NaN`, `Infinity` and `-Infinity` may stand for numbers, as configuration files written by
/// Python have them (`"lambda_min_clipped": -Infinity`). They are read as `null`: no value.
///
/// # Errors
/// serde_json's, with the place in the text as it is.
pub fn of_python<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    match serde_json::from_slice(text) {
        Err(error) => match without_constants(text) {
            Some(text) => serde_json::from_slice(&text),
            None => Err(error),
        },
        read => read,
    }
}

/// The text with `null` in place of the constants, padded to their length; nothing if there are none outside of
/// strings.
fn without_constants(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() + 16);
    let (mut at, mut in_string, mut found) = (0, false, false);
    while at < text.len() {
        let rest = &text[at..];
        let constant = CONSTANTS
            .iter()
            .find(|constant| !in_string && rest.starts_with(constant.as_bytes()));
        let taken = match (constant, rest[0]) {
            (Some(constant), _) => {
                found = true;
                out.extend(b"null");
                out.resize(out.len() + constant.len().saturating_sub(4), b' ');
                constant.len()
            }
            // What is escaped ends no string.
            (None, b'\\') if in_string && rest.len() > 1 => {
                out.extend(&rest[..2]);
                2
            }
            (None, byte) => {
                in_string ^= byte == b'"';
                out.push(byte);
                1
            }
        };
        at += taken;
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};

    #[test]
    fn pythons_constants_are_no_value() {
        let read = |text: &str| of_python::<Value>(text.as_bytes()).ok();
        assert_eq!(
            read(r#"{"a": -Infinity, "b": [NaN, Infinity, 1], "c": "NaN \" -Infinity"}"#),
            Some(json!({"a": null, "b": [null, null, 1], "c": "NaN \" -Infinity"}))
        );
        assert_eq!(read("NaN"), Some(Value::Null));
        for wrong in [
            "",
            "{\"a\": Inf}",
            "-NaN",
            "Infinity1",
            "\"NaN",
            "{\"a\\",
            "nan",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
