//! What a `tokenizer.json` may ask of the library that reads it.
//!
//! The `tokenizers` crate trusts its files: a prefix that a merge does not have, a map of replacements that is cut
//! short or a pattern that matches nothing make it panic, a map that claims gigabytes or replacements of replacements
//! take all memory. Such files are errors here, found by [`check`] where it takes memory or a panic cannot be caught,
//! and by [`guarded`] otherwise.

mod charsmap;

pub use charsmap::Charsmap;

use base64::Engine as _;
use serde_json::Value as Json;
use std::cell::Cell;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Once;

/// How many times longer its normalizers may make a text, Unicode's own forms left aside. SentencePiece's files need
/// about a hundred.
const MAX_GROWTH: u64 = 4096;

/// Longest word that WordPiece looks for pieces of, which takes the cube of its length. BERT's is 100.
const MAX_WORD: u64 = 1000;

/// Texts that a new tokenizer is tried on: what it does with them, it does with most.
pub const TRIALS: [&str; 4] = [
    "",
    "a",
    " Hello, w\u{f6}rld!\n 123 ",
    "\u{6f22}\u{5b57} \u{1f980}\u{301}",
];

/// Checks a file's description before anything is built from it, and returns how many times longer its normalizers
/// may make a text.
///
/// # Errors
/// The first thing that the library would not bear.
pub fn check(tokenizer: &Json) -> Result<u64, String> {
    let growth = growth(&tokenizer["normalizer"])?;
    if growth > MAX_GROWTH {
        return Err(format!(
            "its normalizers make a text up to {growth} times longer, at most {MAX_GROWTH} times is allowed"
        ));
    }
    for step in steps(&tokenizer["pre_tokenizer"], "pretokenizers") {
        if step["type"] == "FixedLength" && step["length"].as_u64() == Some(0) {
            return Err("its pre-tokenizer cuts text into pieces of length 0".to_string());
        }
    }
    for step in steps(&tokenizer["post_processor"], "processors") {
        template(step)?;
    }
    prefix(&tokenizer["model"])?;
    let word = tokenizer["model"]["max_input_chars_per_word"].as_u64();
    if let Some(characters) = word.filter(|characters| *characters > MAX_WORD) {
        return Err(format!(
            "its model takes words of {characters} characters apart, at most {MAX_WORD} are allowed"
        ));
    }
    Ok(growth)
}

/// Runs what may panic and makes an error of it, with nothing on standard error.
///
/// # Errors
/// That of `run`, or the panic's message.
pub fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                hook(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(before);
    result.unwrap_or_else(|panic| {
        let reason = crate::http::blocking::panic_text(&*panic);
        Err(format!("the library cannot use it ({reason})"))
    })
}

thread_local! {
    /// Whether a panic of this thread is expected.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// A part of the file, or the steps that it consists of.
fn steps<'a>(part: &'a Json, name: &'static str) -> Vec<&'a Json> {
    match part[name].as_array() {
        Some(all) => all.iter().flat_map(|step| steps(step, name)).collect(),
        None => vec![part],
    }
}

/// How many times longer a text may become.
fn growth(normalizer: &Json) -> Result<u64, String> {
    let mut growth = 1u64;
    for step in steps(normalizer, "normalizers") {
        let content = |key: &str| step[key].as_str().map_or(0, str::len) as u64;
        let factor = match step["type"].as_str() {
            Some("Replace") => {
                let content = content("content");
                match step["pattern"]["String"].as_str() {
                    Some("") => return Err("a normalizer replaces the empty text".to_string()),
                    Some(text) => content.div_ceil(text.len() as u64),
                    // An expression may match nothing at every place.
                    None => content + 1,
                }
            }
            Some("Prepend") if content("prepend") == 0 => {
                return Err("a normalizer prepends the empty text".to_string());
            }
            Some("Prepend") => content("prepend"),
            // Each byte becomes a character of two at most.
            Some("ByteLevel") => 2,
            Some("Precompiled") => {
                let map = step["precompiled_charsmap"]
                    .as_str()
                    .ok_or("a normalizer's precompiled_charsmap is no text")?;
                let map = base64::engine::general_purpose::STANDARD
                    .decode(map)
                    .map_err(|e| {
                        format!("a normalizer's precompiled_charsmap is not base64: {e}")
                    })?;
                let map = Charsmap::new(&map).map_err(|e| format!("precompiled_charsmap: {e}"))?;
                map.longest_replacement() as u64
            }
            _ => 1,
        };
        growth = growth.saturating_mul(factor.max(1));
    }
    Ok(growth)
}

/// A template names tokens that the file must have.
fn template(processor: &Json) -> Result<(), String> {
    if processor["type"] != "TemplateProcessing" {
        return Ok(());
    }
    let pieces = ["single", "pair"]
        .iter()
        .filter_map(|key| processor[*key].as_array());
    for piece in pieces.flatten() {
        let Some(id) = piece["SpecialToken"]["id"].as_str() else {
            continue;
        };
        let token = &processor["special_tokens"][id];
        let count = |key: &str| token[key].as_array().map_or(0, Vec::len);
        if count("ids") == 0 || count("ids") != count("tokens") {
            return Err(format!(
                "its post-processor names the token {id:?} without saying which it is"
            ));
        }
    }
    Ok(())
}

/// The second part of a merge begins with the prefix of what goes on a word.
fn prefix(model: &Json) -> Result<(), String> {
    let prefix = model["continuing_subword_prefix"]
        .as_str()
        .unwrap_or_default();
    for merge in model["merges"].as_array().into_iter().flatten() {
        let second = match merge {
            Json::String(pair) => pair.split_once(' ').map(|(_, second)| second),
            pair => pair[1].as_str(),
        };
        if second.is_some_and(|second| !second.starts_with(prefix)) {
            return Err(format!(
                "the second part of merge {merge} does not begin with {prefix:?}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn normalizer(steps: Json) -> Json {
        json!({"normalizer": {"type": "Sequence", "normalizers": steps}})
    }

    #[test]
    fn usual_files_pass() {
        let file = json!({
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "\u{2581}"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                {"type": "NFC"},
            ]},
            "pre_tokenizer": {"type": "FixedLength", "length": 3},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}},
            "model": {"type": "BPE", "continuing_subword_prefix": "##", "merges": ["a ##b", ["a", "##c"]]},
        });
        assert_eq!(check(&file), Ok(3 * 3 * 2));
        assert_eq!(check(&json!({})), Ok(1));
    }

    #[test]
    fn what_the_library_would_not_bear_is_refused() {
        let replace = |pattern: Json, content: &str| {
            normalizer(json!([{"type": "Replace", "pattern": pattern, "content": content}]))
        };
        let map = |bytes: &[u8]| {
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            normalizer(json!([{"type": "Precompiled", "precompiled_charsmap": text}]))
        };
        let hundred = "x".repeat(100);
        let nested = json!({"type": "Replace", "pattern": {"String": "."}, "content": hundred});
        let template = |special: Json| {
            json!({"post_processor": {"type": "Sequence", "processors": [{"type": "TemplateProcessing",
                "single": [], "pair": [{"SpecialToken": {"id": "[X]", "type_id": 0}}], "special_tokens": special}]}})
        };
        let merges = |prefix: &str, merges: Json| json!({"model": {"continuing_subword_prefix": prefix, "merges": merges}});
        for file in [
            replace(json!({"String": ""}), "a"),
            replace(json!({"String": "a"}), &"x".repeat(5000)),
            replace(json!({"Regex": ""}), &"x".repeat(5000)),
            normalizer(json!([{"type": "Prepend", "prepend": ""}])),
            normalizer(json!(vec![nested.clone(); 8])),
            normalizer(json!([{"type": "Sequence", "normalizers": [nested.clone(), nested]}])),
            normalizer(json!([{"type": "Precompiled", "precompiled_charsmap": 7}])),
            normalizer(json!([{"type": "Precompiled", "precompiled_charsmap": "?"}])),
            map(&[]),
            map(&[1, 0]),
            map(&u32::MAX.to_le_bytes()),
            map(&[8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            json!({"pre_tokenizer": {"type": "FixedLength", "length": 0}}),
            json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "FixedLength", "length": 0}]}}),
            template(json!({})),
            template(json!({"[X]": {"id": "[X]", "ids": [], "tokens": []}})),
            template(json!({"[X]": {"id": "[X]", "ids": [1, 2], "tokens": ["[X]"]}})),
            merges("##", json!(["a b"])),
            merges("##", json!([["a", "bcd"]])),
            merges(&"x".repeat(100), json!(["a b"])),
            merges("\u{e9}", json!(["a b"])),
            json!({"model": {"type": "WordPiece", "max_input_chars_per_word": 100_000}}),
        ] {
            assert!(check(&file).is_err(), "{file}");
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let failed: Result<(), String> = guarded(|| panic!("broken {}", 1));
        assert_eq!(
            failed,
            Err("the library cannot use it (broken 1)".to_string())
        );
        assert_eq!(guarded(|| Ok(1)), Ok(1));
        assert_eq!(
            guarded(|| Err::<(), _>("no".to_string())),
            Err("no".to_string())
        );
        assert!(!QUIET.get());
    }
}
