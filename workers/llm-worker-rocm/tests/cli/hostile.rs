//! Files and grammars that are refused.

use super::common::{array, raw, string, u32};
use super::*;
use std::path::Path;

/// Address space that a refused file may take, in KiB: the program itself and little more.
const REFUSAL_LIMIT_KIB: u32 = 256 << 10;

/// Runs `generate` on a file with little address space; it must be refused in one line.
fn assert_refused(path: &Path, what: &str) -> String {
    let script = format!("ulimit -v {REFUSAL_LIMIT_KIB} && exec \"$0\" \"$@\"");
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_llm-worker-rocm")])
        .args(["generate", "the", "-n", "1", "--device", "cpu", "--model"])
        .arg(path)
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {error}");
    assert!(
        !error.contains("panicked") && error.starts_with("error: "),
        "{what}: {error}"
    );
    assert_eq!(error.lines().count(), 1, "{what}: {error}");
    assert!(output.stdout.is_empty(), "{what}");
    error
}

#[test]
fn hostile_files_are_refused_in_one_line_and_little_memory() {
    type Change = fn(&mut File);
    let query = "blk.0.attn_q.weight";
    let cases: [(&str, Change, &str); 19] = [
        ("magic", |f| f.magic = *b"GGML", "not a GGUF file"),
        ("version", |f| f.version = 99, "version 99"),
        (
            "tensor count",
            |f| f.tensor_count = Some(u64::MAX),
            "truncated",
        ),
        (
            "metadata count",
            |f| f.metadata_count = Some(1 << 40),
            "truncated",
        ),
        (
            "string length",
            |f| {
                f.set("x", raw(8, (1u64 << 40).to_le_bytes().to_vec()));
            },
            "truncated",
        ),
        (
            "array length",
            |f| {
                f.set("x", array(8, 1 << 50, Vec::new()));
            },
            "truncated",
        ),
        (
            "alignment",
            |f| {
                f.set("general.alignment", u32(0));
            },
            "general.alignment",
        ),
        (
            "shape overflow",
            |f| f.tensor_mut("token_embd.weight").dims = vec![1 << 40, 1 << 40],
            "overflows",
        ),
        (
            "offset",
            |f| f.tensor_mut("token_embd.weight").offset = Some(1 << 50),
            "past the end",
        ),
        (
            "architecture",
            |f| {
                f.remove("general.architecture");
            },
            "general.architecture is missing",
        ),
        (
            "other architecture",
            |f| {
                f.set("general.architecture", string("rwkv6"));
            },
            "\"rwkv6\"",
        ),
        (
            "heads",
            |f| {
                f.set("llama.attention.head_count", u32(0));
            },
            "above 0",
        ),
        (
            "uneven heads",
            |f| {
                f.set("llama.attention.head_count", u32(5));
            },
            "evenly",
        ),
        (
            "blocks",
            |f| {
                f.set("llama.block_count", u32(u32::MAX));
            },
            "at most 1024",
        ),
        (
            "more blocks than tensors",
            |f| {
                f.set("llama.block_count", u32(2));
            },
            "blk.1.attn_norm.weight is missing",
        ),
        (
            "rotary size",
            |f| {
                f.set("llama.rope.dimension_count", u32(1 << 30));
            },
            "rope.dimension_count",
        ),
        (
            "epsilon",
            |f| {
                f.remove("llama.attention.layer_norm_rms_epsilon");
            },
            "epsilon is missing",
        ),
        (
            "rotary scaling",
            |f| {
                f.set("llama.rope.scaling.type", string("made-up"));
            },
            "made-up",
        ),
        (
            "mistyped",
            |f| {
                f.set("llama.embedding_length", string("32"));
            },
            "must be u32",
        ),
    ];
    for (what, change, needle) in cases {
        let model = TinyModel::new(change);
        let error = assert_refused(&model.path, what);
        assert!(error.contains(needle), "{what}: {error}");
    }
    let model = TinyModel::new(|f| f.tensors.retain(|t| t.name != query));
    assert!(assert_refused(&model.path, "missing tensor").contains(query));
    let model = TinyModel::new(|f| f.tensor_mut(query).dims = vec![16, 64]);
    assert!(assert_refused(&model.path, "shape").contains("[16, 64]"));
}

#[test]
fn truncated_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let bytes = tiny_llama().bytes();
    for length in (0..bytes.len()).step_by(997) {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert_refused(&path, &format!("first {length} bytes"));
    }
}

#[test]
fn a_grammar_that_has_no_end_is_refused() {
    use llm_worker_rocm::grammar::trial::try_with;
    use llm_worker_rocm::grammar::Notation;
    // Each pattern doubles the work.
    let patterns = (0..50).map(|i| serde_json::json!({"pattern": format!("n{i}")}));
    let schema = serde_json::json!({"allOf": patterns.collect::<Vec<_>>()}).to_string();
    // In a grammar with a control token that only the model's vocabulary has.
    let lark = format!("start: <|tool|> schema\nschema: %json {schema}");
    let refused = try_with(worker(), Notation::Lark, &lark, 1000).unwrap_err();
    assert!(refused.contains("too complex"), "{refused}");
    for (notation, text) in [
        (Notation::JsonSchema, r#"{"type": "object"}"#),
        (Notation::Lark, "start: <|tool|> <[5]> \"a\""),
        (Notation::Gbnf, "root ::= \"a\""),
        (Notation::Regex, "[ab]+"),
        // Mistakes are the compiler's to tell.
        (Notation::Lark, "start:"),
    ] {
        try_with(worker(), notation, text, 1000).unwrap();
    }
}
