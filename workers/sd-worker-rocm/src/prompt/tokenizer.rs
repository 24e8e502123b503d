//! CLIP's byte-pair tokenizer.

use std::collections::HashMap;
use std::path::Path;
use tokenizers::{AddedToken, Tokenizer};
use worker::{file, tokenizer_json, Error, Result};

/// Longest prompt in bytes; weights and chunks are for pages, not for books.
pub const MAX_PROMPT_BYTES: usize = 1 << 16;

/// Longest file of a tokenizer that is read.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Text to tokens, without begin and end.
pub trait Tokenize {
    /// The tokens of a piece of text.
    ///
    /// # Errors
    /// [`Error::Usage`] for text that cannot be tokenised.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;
    /// The token that begins a prompt.
    fn bos(&self) -> u32;
    /// The token that ends a prompt.
    fn eos(&self) -> u32;
    /// The token that fills a chunk.
    fn pad(&self) -> u32;
    /// The token of a comma followed by a space, where a chunk is best cut.
    fn comma(&self) -> Option<u32>;
}

/// The tokenizer of CLIP's text encoders.
pub struct ClipTokenizer {
    tokenizer: Tokenizer,
    bos: u32,
    eos: u32,
    pad: u32,
    comma: Option<u32>,
    /// Words that stand for learnt vectors: their one token, to the tokens of all their vectors.
    concepts: HashMap<u32, std::ops::Range<u32>>,
    vocabulary: u32,
}

/// The tokenizer of a `tokenizer.json`, tried on a few texts, without cutting and filling.
pub(crate) fn library_tokenizer(json: &[u8]) -> std::result::Result<Tokenizer, String> {
    let json: serde_json::Value = serde_json::from_slice(json).map_err(|e| e.to_string())?;
    tokenizer_json::check(&json)?;
    tokenizer_json::guarded(|| {
        let mut tokenizer: Tokenizer = serde_json::from_value(json).map_err(|e| e.to_string())?;
        tokenizer
            .with_truncation(None)
            .map_err(|e| e.to_string())?
            .with_padding(None);
        for text in tokenizer_json::TRIALS {
            // An error is that text's own; a panic is not.
            let _ = tokenizer.encode_fast(text, true);
        }
        Ok(tokenizer)
    })
}

impl ClipTokenizer {
    /// The tokenizer of a folder of a diffusers model: `tokenizer.json`, or `vocab.json` with `merges.txt`.
    ///
    /// # Errors
    /// [`Error::BadModel`] if neither is there or one is damaged.
    pub fn open(folder: &Path) -> Result<Self> {
        // What is there and cannot be read is not passed over for another file.
        let read = |name: &str| -> Result<Option<String>> {
            let path = folder.join(name);
            match file::read_text(&path, MAX_FILE_BYTES) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                text => text.map(Some).map_err(Error::io(&path)),
            }
        };
        let bad = |reason: String| Error::BadModel {
            path: folder.to_path_buf(),
            reason,
        };
        let settings = match read("tokenizer_config.json")? {
            Some(settings) => Some(settings),
            None => read("special_tokens_map.json")?,
        };
        let pad = settings.and_then(|json| pad_token(&json));
        let pad = pad.as_deref();
        if let Some(json) = read("tokenizer.json")? {
            return Self::from_json(json.as_bytes(), pad).map_err(|e| bad(e.to_string()));
        }
        match (read("vocab.json")?, read("merges.txt")?) {
            (Some(vocab), Some(merges)) => {
                Self::from_vocab(&vocab, &merges, pad).map_err(|e| bad(e.to_string()))
            }
            _ => Err(bad(
                "there is neither tokenizer.json nor vocab.json with merges.txt".to_string(),
            )),
        }
    }

    /// The tokenizer of a `tokenizer.json`. `pad` is the text of the filling token, `<|endoftext|>` if absent.
    ///
    /// # Errors
    /// [`Error::Usage`] for text that is not JSON, or a vocabulary without CLIP's special tokens.
    pub fn from_json(json: &[u8], pad: Option<&str>) -> Result<Self> {
        let tokenizer =
            library_tokenizer(json).map_err(|e| Error::Usage(format!("tokenizer.json: {e}")))?;
        Self::new(tokenizer, pad)
    }

    /// The tokenizer of a `vocab.json` and its `merges.txt`.
    ///
    /// # Errors
    /// As [`Self::from_json`].
    pub fn from_vocab(vocab: &str, merges: &str, pad: Option<&str>) -> Result<Self> {
        let pairs: Vec<[&str; 2]> = merges
            .lines()
            .filter(|line| !line.starts_with("#version"))
            .filter_map(|line| line.split_once(' '))
            .map(|(a, b)| [a, b])
            .collect();
        let vocab: serde_json::Value =
            serde_json::from_str(vocab).map_err(|e| Error::Usage(format!("vocab.json: {e}")))?;
        // The same description that tokenizer.json carries.
        let json = serde_json::json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": [],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFC"},
                {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                {"type": "Lowercase"},
            ]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"},
                 "behavior": "Removed", "invert": true},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            ]},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": EOS, "continuing_subword_prefix": "",
                "end_of_word_suffix": "</w>", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": pairs},
        });
        let mut tokenizer = library_tokenizer(json.to_string().as_bytes())
            .map_err(|e| Error::Usage(format!("vocab.json with merges.txt: {e}")))?;
        tokenizer
            .add_special_tokens([BOS, EOS].map(|token| AddedToken::from(token, true)))
            .map_err(|e| Error::Usage(format!("vocab.json: {e}")))?;
        Self::new(tokenizer, pad)
    }

    fn new(tokenizer: Tokenizer, pad: Option<&str>) -> Result<Self> {
        let id = |token: &str| {
            tokenizer.token_to_id(token).ok_or_else(|| {
                Error::Usage(format!(
                    "the tokenizer has no token {token:?}; is it CLIP's?"
                ))
            })
        };
        Ok(Self {
            bos: id(BOS)?,
            eos: id(EOS)?,
            pad: id(pad.unwrap_or(EOS))?,
            comma: tokenizer.token_to_id(",</w>"),
            concepts: HashMap::new(),
            vocabulary: tokenizer.get_vocab_size(true) as u32,
            tokenizer,
        })
    }

    /// Makes `word` stand for `vectors` learnt vectors (textual inversion) and gives their tokens, which follow the
    /// vocabulary. The vectors are to be appended to the text encoder's embedding in this order.
    ///
    /// # Errors
    /// [`Error::Usage`] for a word that is a token already, or no vectors.
    pub fn add_concept(&mut self, word: &str, vectors: usize) -> Result<std::ops::Range<u32>> {
        if word.trim().is_empty() || vectors == 0 || vectors > 75 {
            return Err(Error::Usage(format!(
                "the textual inversion {word:?} with {vectors} vectors; there must be a name and 1 to 75 vectors"
            )));
        }
        let token = AddedToken::from(word, false)
            .normalized(false)
            .single_word(true);
        let added = self
            .tokenizer
            .add_tokens([token])
            .map_err(|e| Error::Usage(format!("the textual inversion {word:?}: {e}")))?;
        let id = self.tokenizer.token_to_id(word);
        let (1, Some(id)) = (added, id) else {
            return Err(Error::Usage(format!(
                "the textual inversion {word:?} has the name of a token; rename its file"
            )));
        };
        let taken: u32 = self.concepts.values().map(|r| r.len() as u32).sum();
        let first = self.vocabulary + taken;
        let range = first..first + vectors as u32;
        self.concepts.insert(id, range.clone());
        Ok(range)
    }
}

/// CLIP's special tokens.
const BOS: &str = "<|startoftext|>";
const EOS: &str = "<|endoftext|>";

/// `pad_token` of a tokenizer's configuration, which is text or an object with the text in `content`.
fn pad_token(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    let pad = value.get("pad_token")?;
    let text = pad.as_str().or_else(|| pad.get("content")?.as_str())?;
    Some(text.to_string())
}

impl Tokenize for ClipTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        if text.len() > MAX_PROMPT_BYTES {
            return Err(Error::Usage(format!(
                "the prompt is longer than {MAX_PROMPT_BYTES} bytes"
            )));
        }
        let encoding = self
            .tokenizer
            .encode(text, false)
            .map_err(|e| Error::Usage(format!("the prompt cannot be tokenised: {e}")))?;
        let mut tokens = Vec::with_capacity(encoding.len());
        for id in encoding.get_ids() {
            match self.concepts.get(id) {
                Some(vectors) => tokens.extend(vectors.clone()),
                None => tokens.push(*id),
            }
        }
        Ok(tokens)
    }

    fn bos(&self) -> u32 {
        self.bos
    }

    fn eos(&self) -> u32 {
        self.eos
    }

    fn pad(&self) -> u32 {
        self.pad
    }

    fn comma(&self) -> Option<u32> {
        self.comma
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value as Json};

    /// A `tokenizer.json` with one part of it replaced.
    fn file(part: &str, value: Json) -> Vec<u8> {
        let mut file = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": null, "model": {"type": "BPE", "vocab": {BOS: 0, EOS: 1, "a": 2, "b": 3, "ab": 4}, "merges": ["a b"]},
        });
        match part.split_once('.') {
            Some((part, key)) => file[part][key] = value,
            None => file[part] = value,
        }
        file.to_string().into_bytes()
    }

    #[test]
    fn hostile_files_are_errors() {
        assert!(ClipTokenizer::from_json(&file("version", json!("1.0")), None).is_ok());
        let dots =
            json!({"type": "Replace", "pattern": {"String": "."}, "content": "x".repeat(100)});
        for (part, value) in [
            ("model.continuing_subword_prefix", json!("##")),
            ("model.continuing_subword_prefix", json!("x".repeat(100))),
            ("pre_tokenizer", json!({"type": "FixedLength", "length": 0})),
            (
                "normalizer",
                json!({"type": "Precompiled", "precompiled_charsmap": ""}),
            ),
            (
                "normalizer",
                json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
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
            (
                "post_processor",
                json!({"type": "TemplateProcessing", "pair": [], "special_tokens": {},
                "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}]}),
            ),
            (
                "model",
                json!({"type": "Unigram", "vocab": [], "unk_id": 3}),
            ),
        ] {
            let file = file(part, value.clone());
            assert!(
                ClipTokenizer::from_json(&file, None).is_err(),
                "{part}: {value}"
            );
        }
    }
}
