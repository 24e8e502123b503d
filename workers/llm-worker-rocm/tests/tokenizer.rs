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
    for model in ["hybriddna", "no_vocab", "made-up"] {
        let mut file = tiny_llama();
        file.set("tokenizer.ggml.model", string(model));
        assert!(error(&file).contains(model));
    }
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

/// A vocabulary of SentencePiece's kind with control tokens, whose one-character tokens are those of `characters`.
fn marked(characters: &str, control: &[(&str, i32)]) -> File {
    let mut file = scored();
    let mut tokens: Vec<String> = vec!["<unk>".into(), "<s>".into(), "</s>".into()];
    let mut kinds = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    kinds.extend([6; 256]);
    tokens.extend(characters.chars().map(String::from));
    kinds.extend(characters.chars().map(|_| 1));
    tokens.extend(control.iter().map(|(text, _)| text.to_string()));
    kinds.extend(control.iter().map(|(_, kind)| *kind));
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    file.set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&kinds))
        .set("tokenizer.ggml.scores", f32s(&vec![-1.0; tokens.len()]));
    file
}

#[test]
fn white_space_after_phi_3s_special_tokens_is_theirs() {
    let special = [("<|user|>", 3), ("<|end|>", 4), ("<|endoftext|>", 3)];
    let (mark, a, newline) = (259, 260, 3 + 0x0A);
    let (user, end, text_end) = (261, 262, 263);
    let text = "<|user|>\n a<|end|> \n<|endoftext|>\na</s> a<s> a";
    let mut stripped = vec![
        user, mark, a, end, text_end, mark, newline, a, 2, mark, a, 1, mark, mark, a,
    ];
    for (key, value) in [
        ("general.name", "Phi-3 mini"),
        ("general.name", "my PHI3 tune"),
        ("general.architecture", "phi3"),
    ] {
        let mut file = marked("\u{2581}a", &special);
        file.set(key, string(value));
        assert_eq!(
            tokenizer(&file).unwrap().encode(text, false).unwrap(),
            stripped,
            "{value}"
        );
    }
    let file = marked("\u{2581}a", &special);
    stripped = vec![
        user, mark, newline, mark, a, end, mark, mark, newline, text_end, mark, newline, a, 2,
    ];
    stripped.extend([mark, mark, a, 1, mark, mark, a]);
    assert_eq!(
        tokenizer(&file).unwrap().encode(text, false).unwrap(),
        stripped
    );
}

#[test]
fn white_space_before_a_mask_is_the_masks() {
    let (mark, a, mask) = (259, 260, 261);
    for (token, key, value) in [
        ("<mask>", "general.architecture", "nomic-bert-moe"),
        ("<mask>", "tokenizer.ggml.pre", "jina-v2-de"),
        ("<mask>", "tokenizer.ggml.pre", "jina-v2-code"),
        ("[MASK]", "general.name", "My Modern-BERT"),
        ("[MASK]", "tokenizer.ggml.pre", "modern-bert"),
    ] {
        let mut file = marked("\u{2581}a", &[(token, 3)]);
        let text = format!("a {token} a");
        let plain = tokenizer(&file).unwrap().encode(&text, false).unwrap();
        assert_eq!(plain, [mark, a, mark, mask, mark, mark, a], "{token}");
        file.set(key, string(value));
        let stripped = tokenizer(&file).unwrap().encode(&text, false).unwrap();
        assert_eq!(stripped, [mark, a, mask, mark, mark, a], "{value}");
    }
}

#[test]
fn ends_are_known_by_their_spelling() {
    for kind in [1, 3, 4] {
        let file = marked(
            "\u{2581}a",
            &[("<|im_end|>", kind), ("[EOT]", kind), ("<turn|>", kind)],
        );
        let tokenizer = tokenizer(&file).unwrap();
        assert_eq!(tokenizer.end_ids(), [2, 261, 262, 263], "type {kind}");
        assert_eq!(
            tokenizer.encode("<|im_end|>", false).unwrap(),
            [261],
            "type {kind}"
        );
        assert_eq!(tokenizer.decode(&[260, 261]), "a", "type {kind}");
        assert_eq!(tokenizer.control_text(261), Some("<|im_end|>"));
    }
}

#[test]
fn ends_are_known_by_their_keys() {
    let mut file = marked("\u{2581}abcdef", &[]);
    for (key, id) in [
        ("eot", 260),
        ("eom", 261),
        ("fim_pad", 262),
        ("fim_rep", 263),
        ("fim_sep", 264),
    ] {
        file.set(&format!("tokenizer.ggml.{key}_token_id"), u32(id));
    }
    assert_eq!(
        tokenizer(&file).unwrap().end_ids(),
        [2, 260, 261, 262, 263, 264]
    );
    file.set("tokenizer.ggml.eot_token_id", u32(9999));
    assert!(error(&file).contains("eot_token_id is 9999"));
}

#[test]
fn the_end_of_a_channel_does_not_end_an_answer() {
    let special = [("<|return|>", 3), ("<|call|>", 3), ("<|end|>", 3)];
    let tokenizer = tokenizer(&marked("\u{2581}", &special)).unwrap();
    assert_eq!(tokenizer.end_ids(), [2, 260, 261]);
}

#[test]
fn bos_follows_the_pre_tokenizer() {
    let ids = |pre: &str, add_bos: Option<bool>| {
        let mut file = tiny_llama();
        file.remove("tokenizer.ggml.add_bos_token");
        file.set("tokenizer.ggml.pre", string(pre));
        if let Some(add_bos) = add_bos {
            file.set("tokenizer.ggml.add_bos_token", bool(add_bos));
        }
        tokenizer(&file).unwrap().encode("a", true).unwrap()
    };
    assert_eq!(ids("tekken", None), [1, 7]);
    assert_eq!(ids("tekken", Some(false)), [7]);
    assert_eq!(ids("chameleon", None), [1, 7]);
    assert_eq!(ids("glm4", None), [7]);
    assert_eq!(ids("glm5", Some(true)), [1, 7]);
}

#[test]
fn glm_takes_whole_words() {
    // Merges lead to h + ell + o, but the word is a token.
    let tokens = ["h", "e", "l", "o", "el", "ell", "hello"];
    let merges = ["e l", "el l"];
    let ids = |pre: &str| {
        let mut file = File::default();
        file.set("tokenizer.ggml.model", string("gpt2"))
            .set("tokenizer.ggml.pre", string(pre))
            .set("tokenizer.ggml.tokens", strings(&tokens))
            .set("tokenizer.ggml.merges", strings(&merges));
        tokenizer(&file).unwrap().encode("hello", true).unwrap()
    };
    for pre in [
        "glm4",
        "glm5",
        "tekken",
        "llama-bpe",
        "jina-v5-nano",
        "youtu",
        "minicpm5",
    ] {
        assert_eq!(ids(pre), [6], "{pre}");
    }
    for pre in ["chatglm-bpe", "qwen2", "gpt-4o", "deepseek-llm", "kimi-k2"] {
        assert_eq!(ids(pre), [0, 5, 3], "{pre}");
    }
}

#[test]
fn kimis_ids_rank_where_merges_are_missing() {
    let tokens = ["h", "e", "l", "o", "lo", "el", "hel"];
    let mut file = File::default();
    file.set("tokenizer.ggml.model", string("gpt2"))
        .set("tokenizer.ggml.pre", string("kimi-k2"))
        .set("tokenizer.ggml.tokens", strings(&tokens));
    // lo (4) comes before el (5); then h, e, l are left, of which el (5) and hel (6).
    assert_eq!(
        tokenizer(&file).unwrap().encode("hello", true).unwrap(),
        [6, 4]
    );
}

#[test]
fn gemma_4_merges_characters_of_the_whole_text() {
    let mut file = marked(
        "\u{2581}ab\n",
        &[("\n\n", 1), ("a\u{2581}", 1), ("a\u{2581}b", 1)],
    );
    file.set("tokenizer.ggml.model", string("gemma4"))
        .set(
            "tokenizer.ggml.merges",
            strings(&["\n \n", "a \u{2581}", "a\u{2581} b"]),
        )
        .set("tokenizer.ggml.add_bos_token", bool(false));
    let tokenizer = tokenizer(&file).unwrap();
    // BOS is added though the file, as early ones do, forbids it.
    assert_eq!(
        tokenizer.encode("a b\n\n\né", true).unwrap(),
        [1, 265, 263, 262, 3 + 0xC3, 3 + 0xA9]
    );
    assert_eq!(tokenizer.decode(&[265, 263]), "a b\n\n");
}

#[test]
fn words_without_white_space() {
    let tokens = ["<unk>", "a", "b", "A", "ab"];
    let mut file = File::default();
    file.set("tokenizer.ggml.model", string("whitespace"))
        .set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&[2, 1, 1, 1, 1]))
        .set("tokenizer.ggml.merges", strings(&["a b"]));
    let ids = |file: &File| {
        tokenizer(file)
            .unwrap()
            .encode(" Ab\n a  b?", false)
            .unwrap()
    };
    assert_eq!(ids(&file), [4, 1, 2, 0]);
    file.set("tokenizer.ggml.pre", string("whitespace"));
    assert_eq!(ids(&file), [3, 2, 1, 2, 0]);
}

/// T5's kind of vocabulary.
fn unigram() -> File {
    let tokens = [
        "<pad>",
        "</s>",
        "<unk>",
        "\u{2581}",
        "a",
        "b",
        "\u{2581}ab",
        "<extra>",
    ];
    let mut file = File::default();
    file.set("tokenizer.ggml.model", string("t5"))
        .set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&[3, 3, 2, 1, 1, 1, 1, 4]))
        .set(
            "tokenizer.ggml.scores",
            f32s(&[0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -4.0, 0.0]),
        )
        .set("tokenizer.ggml.add_space_prefix", bool(true))
        .set("tokenizer.ggml.remove_extra_whitespaces", bool(true));
    file
}

#[test]
fn unigram_vocabularies() {
    let mut file = unigram();
    let t5 = tokenizer(&file).unwrap();
    assert_eq!(t5.encode("ab  ba", true).unwrap(), [6, 3, 5, 4]);
    assert_eq!(t5.encode("a<extra>b", true).unwrap(), [3, 4, 7, 3, 5]);
    assert_eq!(t5.encode("aéx<unk>", true).unwrap(), [3, 4, 2, 2]);
    assert_eq!(t5.encode_framed("ab", 9).unwrap(), [6, 1], "T5 ends texts");
    assert_eq!(t5.end_ids(), [1]);
    assert_eq!(t5.decode(&[6, 3, 5, 1]), " ab b");
    file.set("tokenizer.ggml.scores", f32s(&[0.0]));
    assert!(error(&file).contains("1 entries for 8 tokens"));
}

/// A map of replacements for single ASCII characters, as SentencePiece compiles it.
fn charsmap(pairs: &[(u8, &str)]) -> Vec<u8> {
    // The root's children begin at entry 256, their replacements' places 512 away from them.
    let mut table = vec![0u32; 1024];
    table[0] = 256 << 10;
    let mut replacements = String::new();
    for &(byte, text) in pairs {
        let place = 256 ^ usize::from(byte);
        table[place] = u32::from(byte) | 1 << 8 | 512 << 10;
        table[place ^ 512] = 1 << 31 | replacements.len() as u32;
        replacements += text;
        replacements.push('\0');
    }
    let mut bytes = (4 * table.len() as u32).to_le_bytes().to_vec();
    bytes.extend(table.iter().flat_map(|entry| entry.to_le_bytes()));
    bytes.extend(replacements.as_bytes());
    bytes
}

#[test]
fn a_unigram_vocabularys_replacements_come_first() {
    let map = charsmap(&[(b'\n', " "), (b'A', "a"), (b'#', "")]);
    for element_type in [0, 1] {
        let mut file = unigram();
        let map = common::array(element_type, map.len() as u64, map.clone());
        file.set("tokenizer.ggml.precompiled_charsmap", map);
        assert_eq!(
            tokenizer(&file)
                .unwrap()
                .encode("Ab\n#Aa\n", false)
                .unwrap(),
            [6, 3, 4, 4]
        );
    }
}

#[test]
fn damaged_maps_of_a_unigram_vocabulary_are_errors() {
    for map in [
        vec![1],
        vec![255, 255, 255, 255, 0],
        vec![8, 0, 0, 0, 1, 1, 1, 1],
        vec![0; 9],
    ] {
        let mut file = unigram();
        file.set(
            "tokenizer.ggml.precompiled_charsmap",
            common::array(0, map.len() as u64, map.clone()),
        );
        assert!(error(&file).contains("precompiled_charsmap"), "{map:?}");
    }
    let mut file = unigram();
    file.set("tokenizer.ggml.precompiled_charsmap", strings(&["a"]));
    assert!(error(&file).contains("precompiled_charsmap"));
}

#[test]
fn tokens_of_any_length_are_refused_where_they_cost_time() {
    let long = "a".repeat(2000);
    for model in ["t5", "plamo2", "llama", "rwkv"] {
        let mut file = marked("ab", &[(&long, 1)]);
        file.set("tokenizer.ggml.model", string(model));
        assert!(error(&file).contains("2000 bytes long"), "{model}");
    }
}

#[test]
fn rwkvs_longest_tokens() {
    let bytes: Vec<String> = (0..=255u8)
        .map(|byte| match byte {
            b'\\' => r"\\".to_string(),
            b' '..=b'~' => char::from(byte).to_string(),
            other => format!(r"\x{other:02x}"),
        })
        .collect();
    let mut tokens = vec!["<s>"];
    tokens.extend(bytes.iter().map(String::as_str));
    tokens.extend(["ab", r"abc\n", r"\xc3\xa9"]);
    let mut kinds = vec![1; tokens.len()];
    kinds[0] = 3;
    let mut file = File::default();
    file.set("tokenizer.ggml.model", string("rwkv"))
        .set("tokenizer.ggml.tokens", strings(&tokens))
        .set("tokenizer.ggml.token_type", i32s(&kinds));
    let rwkv = tokenizer(&file).unwrap();
    let ids = rwkv.encode("<s>abcabc\né", true).unwrap();
    assert_eq!(ids, [0, 257, 1 + u32::from(b'c'), 258, 259]);
    assert_eq!(rwkv.decode(&ids), "abcabc\né");
    file.set("tokenizer.ggml.tokens", strings(&tokens[..200]))
        .set("tokenizer.ggml.token_type", i32s(&kinds[..200]));
    assert!(error(&file).contains("no token for the byte 199"));
}

#[test]
fn plamos_scores() {
    let mut file = marked("ab", &[("ab", 1)]);
    file.set("tokenizer.ggml.model", string("plamo2"));
    let plamo = tokenizer(&file).unwrap();
    let ids = plamo.encode("aab é</s>", true).unwrap();
    assert_eq!(ids, [259, 261, 3 + 0x20, 3 + 0xC3, 3 + 0xA9, 2]);
    assert_eq!(plamo.decode(&ids), "aab é");
}

/// A folder's `tokenizer.json` with one part of it replaced.
fn from_json(part: &str, value: serde_json::Value) -> Result<Tokenizer, TokenizerError> {
    let mut file = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "##b": 3, "a##b": 4}, "merges": ["a b"]},
    });
    let mut place = &mut file;
    for key in part.split('.') {
        place = &mut place[key];
    }
    *place = value;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), file.to_string()).unwrap();
    Tokenizer::from_folder(folder.path())
}

#[test]
fn hostile_files_are_errors() {
    use base64::Engine as _;
    use serde_json::json;
    assert_eq!(
        from_json("version", json!("1.0"))
            .unwrap()
            .encode("ab", false)
            .unwrap(),
        [2]
    );
    let prefixed = from_json(
        "model",
        json!({"type": "BPE", "continuing_subword_prefix": "##",
        "vocab": {"a": 0, "##b": 1, "ab": 2}, "merges": ["a ##b"]}),
    );
    assert_eq!(prefixed.unwrap().encode("ab", false).unwrap(), [2]);

    let map = |bytes: &[u8]| {
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        json!({"type": "Precompiled", "precompiled_charsmap": text})
    };
    let whole = charsmap(&[(b'a', "b")]);
    assert!(from_json("normalizer", map(&whole)).is_ok());
    // The root's children lie outside of the table.
    let mut outside = whole.clone();
    outside[4..8].copy_from_slice(&(0x3FFFFu32 << 10).to_le_bytes());
    let mut huge = whole.clone();
    huge[..4].copy_from_slice(&0x7FFF_FFFCu32.to_le_bytes());
    let hundred = "x".repeat(100);
    let dots = json!({"type": "Replace", "pattern": {"String": "."}, "content": hundred});
    let template = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
        "pair": [], "special_tokens": {}});
    for (part, value) in [
        ("model.continuing_subword_prefix", json!("##")),
        ("model.continuing_subword_prefix", json!(hundred)),
        ("model.continuing_subword_prefix", json!("\u{e9}")),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
        ("normalizer", map(&[])),
        ("normalizer", map(&whole[..50])),
        ("normalizer", map(&whole[..whole.len() - 1])),
        ("normalizer", map(&outside)),
        ("normalizer", map(&huge)),
        (
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": 5}),
        ),
        (
            "normalizer",
            json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}),
        ),
        ("normalizer", json!({"type": "Prepend", "prepend": ""})),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": vec![dots; 8]}),
        ),
        ("post_processor", template),
        (
            "model",
            json!({"type": "Unigram", "vocab": [], "unk_id": 0}),
        ),
        (
            "model",
            json!({"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 7}),
        ),
        ("model", json!(null)),
        (
            "added_tokens",
            json!([{"id": 4000000000u32, "content": "x", "special": true}]),
        ),
    ] {
        let error = from_json(part, value.clone()).expect_err(&format!("{part}: {value}"));
        assert!(error.to_string().contains("tokenizer"), "{error}");
    }
}

#[test]
fn expressions_that_match_nothing_panic_nowhere() {
    use serde_json::json;
    for regex in ["", "x*", "(?=a)", "\\b", "$", "^"] {
        let step = json!({"type": "Replace", "pattern": {"Regex": regex}, "content": "b"});
        if let Ok(tokenizer) = from_json("normalizer", step) {
            for text in ["", "a", "ab ba", "\u{1f980}\u{301}xx"] {
                // An error is right as well.
                let _ = tokenizer.encode(text, true);
            }
        }
    }
}
