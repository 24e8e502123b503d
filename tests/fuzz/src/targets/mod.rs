//! What reads each kind of input.

pub(crate) mod code_object;
pub(crate) mod configs;
pub(crate) mod grammar;
pub(crate) mod model;
pub(crate) mod picture;
pub(crate) mod requests;
pub(crate) mod template;
pub(crate) mod tokenizer;
pub(crate) mod weights;

/// Writes GGUF files.
#[path = "../../../../workers/worker/tests/common/mod.rs"]
mod files;

use crate::{mutate, Random};
use serde_json::Value as Json;

/// One of some JSON texts, damaged: its tree mostly, its text now and then.
fn damaged_json(corpus: &[String], words: &[&str], random: &mut Random) -> Vec<u8> {
    let text: &String = random.pick(corpus);
    let tree = serde_json::from_str::<Json>(text);
    let damaged = match tree {
        Ok(mut tree) if !random.one_in(5) => {
            mutate::json(&mut tree, random);
            tree.to_string()
        }
        _ => mutate::text(text, words, random.pick::<String>(corpus), random),
    };
    damaged.into_bytes()
}

/// Words of JSON.
const JSON_WORDS: [&str; 14] = [
    "{", "}", "[", "]", ":", ",", "\"", "null", "true", "1e999", "-", "\\u0000", "\\ud800", "NaN",
];
