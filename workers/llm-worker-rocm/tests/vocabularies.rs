//! llama.cpp's own vocabularies, each with texts and the tokens that the models' own programs make of them.
//!
//! `CANDLE_ROCM_LLAMA_CPP` names the folder that scripts/fetch-llama-cpp prints.

use llm_worker_rocm::tokenizer::Tokenizer;
use std::path::{Path, PathBuf};
use worker::gguf::{MappedGguf, Weights};

/// Between texts in an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// Texts whose tokens differ from the file's on purpose: the vocabulary, a character that they have and others have not,
/// how many they are, why.
const OTHERS: [(&str, [char; 2], usize, &str); 1] = [(
    "qwen35",
    ['\u{300}', '\u{301}'],
    3,
    "Qwen's tokenizer.json has the normalizer NFC, llama.cpp has none",
)];

fn folder() -> PathBuf {
    std::env::var_os("CANDLE_ROCM_LLAMA_CPP")
        .expect("CANDLE_ROCM_LLAMA_CPP is not set: run scripts/test, or set it to the output of scripts/fetch-llama-cpp")
        .into()
}

fn tokenizer(path: &Path) -> Tokenizer {
    let file = MappedGguf::open(path).unwrap();
    Tokenizer::from_gguf(file.header()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Texts with their tokens.
fn cases(path: &Path) -> Option<Vec<(String, Vec<u32>)>> {
    let read = |suffix: &str| std::fs::read_to_string(format!("{}{suffix}", path.display())).ok();
    let ids = |line: &str| {
        line.split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect()
    };
    let (texts, tokens) = (read(".inp")?, read(".out")?);
    let texts = texts.split(SEPARATOR).map(str::to_string);
    Some(texts.zip(tokens.lines().map(ids)).collect())
}

/// What differs from the file's tokens without a reason.
fn differences(path: &Path) -> Vec<String> {
    let name = path
        .file_stem()
        .unwrap()
        .to_str()
        .unwrap()
        .replace("ggml-vocab-", "");
    let tokenizer = tokenizer(path);
    let Some(cases) = cases(path) else {
        return Vec::new();
    };
    assert!(cases.len() >= 46, "{name}: {} texts", cases.len());
    let known = OTHERS.iter().find(|(vocabulary, ..)| *vocabulary == name);
    let mut differences = Vec::new();
    let mut others = 0;
    for (text, want) in cases {
        let got = tokenizer.encode(&text, false).unwrap();
        let other = known.is_some_and(|(_, marks, ..)| text.contains(marks));
        others += usize::from(other);
        if (got == want) == other {
            differences.push(format!("{name}, {text:?}: {got:?}, the file has {want:?}"));
        }
    }
    if let Some((_, _, count, why)) = known.filter(|(_, _, count, _)| *count != others) {
        differences.push(format!(
            "{name}: {others} texts, not {count}, differ because {why}"
        ));
    }
    differences
}

#[test]
fn all_texts_become_the_tokens_that_they_should() {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "gguf")
        })
        .collect();
    paths.sort();
    assert_eq!(paths.len(), 19);
    let (even, odd): (Vec<_>, Vec<_>) = paths
        .iter()
        .enumerate()
        .partition(|(place, _)| place % 2 == 0);
    let all = |paths: Vec<(usize, &PathBuf)>| -> Vec<String> {
        paths
            .iter()
            .flat_map(|(_, path)| differences(path))
            .collect()
    };
    let found = std::thread::scope(|scope| {
        let odd = scope.spawn(|| all(odd));
        let mut found = all(even);
        found.extend(odd.join().unwrap());
        found
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}
