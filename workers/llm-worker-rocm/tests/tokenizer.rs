//! Tokenizers built from small vocabularies.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use common::{bool, f32s, i32s, string, strings, tiny_llama, u32, File};
use llm_worker_rocm::tokenizer::{Tokenizer, TokenizerError};
use std::io::Cursor;
use worker::gguf::Gguf;

fn tokenizer(file: &File) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&Gguf::read(Cursor::new(file.bytes())).unwrap())
}

fn error(file: &File) -> String {
    tokenizer(file)
        .expect_err("the tokenizer is broken")
        .to_string()
}

#[test]
fn merges_and_special_tokens_of_a_byte_level_vocabulary() {
    let tokenizer = tokenizer(&tiny_llama()).unwrap();
    // 3 Ġ, 5 th, 6 the, 7 a …
    let ids = tokenizer
        .encode("<|im_start|>the cat<|im_end|>", true)
        .unwrap();
    assert_eq!(ids, [1, 6, 3, 9, 7, 26, 2]);
    assert_eq!(tokenizer.decode(&ids), "the cat");
    assert!(tokenizer.is_end(2) && tokenizer.is_end(0) && !tokenizer.is_end(1));
    assert_eq!(tokenizer.bos_text(), Some("<|im_start|>"));
}

#[test]
fn bos_is_added_once_where_the_file_asks_for_it() {
    let mut file = tiny_llama();
    file.set("tokenizer.ggml.add_bos_token", bool(true));
    let tokenizer = tokenizer(&file).unwrap();
    assert_eq!(tokenizer.encode("a", true).unwrap(), [1, 7]);
    assert_eq!(tokenizer.encode("a", false).unwrap(), [7]);
    assert_eq!(tokenizer.encode("<|im_start|>a", true).unwrap(), [1, 7]);
}

#[test]
fn bos_follows_the_family_where_the_file_is_silent() {
    let mut file = tiny_llama();
    file.remove("tokenizer.ggml.add_bos_token");
    assert_eq!(tokenizer(&file).unwrap().encode("a", true).unwrap(), [7]);
    file.set("tokenizer.ggml.pre", string("llama-bpe"));
    assert_eq!(tokenizer(&file).unwrap().encode("a", true).unwrap(), [1, 7]);
}

/// A SentencePiece-style vocabulary in which scores decide.
fn scored() -> File {
    let mut tokens = vec!["<unk>".to_string(), "<s>".to_string(), "</s>".to_string()];
    let mut kinds = vec![2, 3, 3];
    let mut scores = vec![0.0; 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        kinds.push(6);
        scores.push(0.0);
    }
    for (token, score) in [
        ("\u{2581}", -9.0),
        ("a", -9.0),
        ("b", -9.0),
        ("c", -9.0),
        ("ab", -2.0),
        ("bc", -1.0),
        ("\u{2581}a", -3.0),
    ] {
        tokens.push(token.to_string());
        kinds.push(1);
        scores.push(score);
    }
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let mut file = File::default();
    file.set("tokenizer.ggml.model", string("llama"))
        .set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&kinds))
        .set("tokenizer.ggml.scores", f32s(&scores))
        .set("tokenizer.ggml.bos_token_id", u32(1))
        .set("tokenizer.ggml.eos_token_id", u32(2));
    file
}

#[test]
fn the_highest_score_merges_first() {
    let tokenizer = tokenizer(&scored()).unwrap();
    let texts = |text: &str| {
        let ids = tokenizer.encode(text, true).unwrap();
        assert_eq!(ids[0], 1, "bos is this family's habit");
        assert_eq!(tokenizer.decode(&ids), format!(" {text}"));
        ids[1..].to_vec()
    };
    let (mark, a, ab, bc, mark_a) = (259, 260, 263, 264, 265);
    // bc (-1) before ab (-2), then ▁a (-3).
    assert_eq!(texts("abc"), [mark_a, bc]);
    // ab (-2) before ▁a (-3).
    assert_eq!(texts("ab"), [mark, ab]);
    assert_eq!(texts("a a"), [mark_a, mark_a]);
    assert_eq!(texts("ca"), [mark, 262, a]);
    // "é" is not in the vocabulary: its two bytes are.
    assert_eq!(texts("é"), [mark, 3 + 0xC3, 3 + 0xA9]);
}

#[test]
fn the_space_prefix_can_be_switched_off() {
    let mut file = scored();
    file.set("tokenizer.ggml.add_space_prefix", bool(false));
    let tokenizer = tokenizer(&file).unwrap();
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [263]);
}

#[test]
fn what_is_not_known_is_named() {
    let mut file = tiny_llama();
    file.set("tokenizer.ggml.pre", string("made-up"));
    assert!(error(&file).contains("\"made-up\""));
    let mut file = tiny_llama();
    file.set("tokenizer.ggml.model", string("rwkv"));
    assert!(error(&file).contains("\"rwkv\""));
}

#[test]
fn contradictions_are_errors() {
    type Change = fn(&mut File);
    let cases: [(Change, &str); 8] = [
        (
            |f| {
                f.remove("tokenizer.ggml.tokens");
            },
            "tokenizer.ggml.tokens is missing",
        ),
        (
            |f| {
                f.remove("tokenizer.ggml.merges");
            },
            "tokenizer.ggml.merges is missing",
        ),
        (
            |f| {
                f.set("tokenizer.ggml.tokens", strings(&[]));
            },
            "empty",
        ),
        (
            |f| {
                f.set("tokenizer.ggml.token_type", i32s(&[1]));
            },
            "1 entries for 33 tokens",
        ),
        (
            |f| {
                f.set("tokenizer.ggml.token_type", i32s(&[9; 33]));
            },
            "no kind 9",
        ),
        (
            |f| {
                f.set("tokenizer.ggml.merges", strings(&["a"]));
            },
            "is not a pair",
        ),
        (
            |f| {
                f.set("tokenizer.ggml.merges", strings(&["a b"]));
            },
            "\"ab\"",
        ),
        (
            |f| {
                f.set("tokenizer.ggml.eos_token_id", u32(33));
            },
            "eos_token_id is 33",
        ),
    ];
    for (change, needle) in cases {
        let mut file = tiny_llama();
        change(&mut file);
        let error = error(&file);
        assert!(error.contains(needle), "{needle}: {error}");
    }
    let mut file = scored();
    file.set("tokenizer.ggml.scores", f32s(&[0.0]));
    assert!(error(&file).contains("1 entries for 266 tokens"));
}
