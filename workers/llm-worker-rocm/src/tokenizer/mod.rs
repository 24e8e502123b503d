//! Text to tokens and back.
//!
//! A GGUF file describes its tokenizer in its metadata, a Hugging Face folder brings `tokenizer.json`:
//! [`Tokenizer::open`] takes what there is.

mod detokenize;
mod gguf;
mod json;
mod pre;

pub use detokenize::Detokenizer;

use detokenize::Pieces;
pub(crate) use gguf::byte_token;
use pre::PreTokenizer;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use worker::gguf::{Gguf, GgufError};

/// SentencePiece's mark for a space.
const SPACE_MARK: char = '\u{2581}';
/// Control tokens that end an answer, besides the ones that the file names.
const END_TOKENS: [&str; 14] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_role|>",
    "<|user|>",
    "<|observation|>",
    "<end_of_turn>",
    "<|eot|>",
    "<|eom|>",
    "</s>",
    "<｜end▁of▁sentence｜>",
];

/// Why a model's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Missing or mistyped metadata.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A tokenizer family that is not implemented.
    #[error("tokenizer model {0:?} is not implemented (\"gpt2\", \"llama\" and \"bert\" are)")]
    UnknownModel(String),
    /// Splitting rules that are not implemented.
    #[error("pre-tokenizer {0:?} is not implemented; with other splitting rules the model would answer wrongly")]
    UnknownPreTokenizer(String),
    /// Metadata that contradicts itself.
    #[error("tokenizer: {0}")]
    Invalid(String),
    /// The tokenizer library refused.
    #[error("tokenizer: {0}")]
    Library(#[from] tokenizers::Error),
}

/// Text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Arc<Pieces>,
    control: HashMap<u32, String>,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    add_bos: bool,
    add_eos: bool,
    framed_by_library: bool,
    end_ids: Vec<u32>,
    vocab_size: usize,
}

#[derive(Debug, Clone)]
struct SpecialToken {
    id: u32,
    text: String,
}

/// What the formats' readers find.
struct Parts {
    inner: tokenizers::Tokenizer,
    pieces: Pieces,
    control: HashMap<u32, String>,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    add_bos: bool,
    add_eos: bool,
    /// Whether the library itself knows what to put around a text.
    framed_by_library: bool,
    /// Tokens that the model's files name as ends, besides `eos`.
    ends: Vec<u32>,
    vocab_size: usize,
}

impl Tokenizer {
    /// The tokenizer of a model: `tokenizer.json` where `path` is a folder with one, else what the metadata describes.
    ///
    /// # Errors
    /// [`TokenizerError`] for a tokenizer that is missing, contradicts itself, or is of an unknown kind.
    pub fn open(path: &Path, header: &Gguf) -> Result<Self, TokenizerError> {
        if path.is_dir() {
            Self::from_folder(path)
        } else {
            Self::from_gguf(header)
        }
    }

    fn assemble(parts: Parts) -> Self {
        let mut end_ids = parts.ends;
        end_ids.extend(parts.eos.as_ref().map(|token| token.id));
        let is_end = |(_, text): &(&u32, &String)| END_TOKENS.contains(&text.as_str());
        end_ids.extend(parts.control.iter().filter(is_end).map(|(id, _)| *id));
        end_ids.retain(|&id| (id as usize) < parts.vocab_size);
        end_ids.sort_unstable();
        end_ids.dedup();
        Self {
            inner: parts.inner,
            pieces: Arc::new(parts.pieces),
            control: parts.control,
            bos: parts.bos,
            eos: parts.eos,
            add_bos: parts.add_bos,
            add_eos: parts.add_eos,
            framed_by_library: parts.framed_by_library,
            vocab_size: parts.vocab_size,
            end_ids,
        }
    }

    /// The tokens of a text. Special tokens spelled out in it, such as `<|im_start|>`, become one token each.
    ///
    /// `add_bos` asks for the model's beginning-of-sequence token; it is added where the file says that the model
    /// was trained with one and the text does not bring it already.
    ///
    /// # Errors
    /// [`TokenizerError::Library`] for text that the vocabulary cannot express.
    pub fn encode(&self, text: &str, add_bos: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false)?;
        let mut ids = encoding.get_ids().to_vec();
        if let Some(bos) = self.bos.as_ref().filter(|_| add_bos && self.add_bos) {
            if ids.first() != Some(&bos.id) {
                ids.insert(0, bos.id);
            }
        }
        Ok(ids)
    }

    /// The tokens of a text with everything that the model's training put around it, as embedding models need it:
    /// `[CLS]` and `[SEP]`, or an end-of-sequence token. At most `max_tokens`, cut before the end token.
    ///
    /// # Errors
    /// [`TokenizerError::Library`] for text that the vocabulary cannot express.
    pub fn encode_framed(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = if self.framed_by_library {
            self.inner.encode_fast(text, true)?.get_ids().to_vec()
        } else {
            let mut ids = self.encode(text, true)?;
            ids.extend(self.eos.iter().filter(|_| self.add_eos).map(|eos| eos.id));
            ids
        };
        if ids.len() > max_tokens {
            let last = ids
                .last()
                .copied()
                .filter(|id| self.control.contains_key(id));
            ids.truncate(max_tokens);
            if let (Some(last), Some(end)) = (last, ids.last_mut()) {
                *end = last;
            }
        }
        Ok(ids)
    }

    /// A decoder for one stream of tokens.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.pieces.clone())
    }

    /// The same with some control tokens written out, such as the marks of tool calls.
    pub fn detokenizer_showing(&self, texts: &[&str]) -> Detokenizer {
        let shown = self
            .control
            .iter()
            .filter(|(_, text)| texts.contains(&text.as_str()))
            .map(|(id, text)| (*id, text.clone()))
            .collect();
        Detokenizer::new(self.pieces.clone()).showing(shown)
    }

    /// The text of a whole sequence, special tokens left out.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut detokenizer = self.detokenizer();
        let mut text: String = tokens.iter().map(|&t| detokenizer.push(t)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// The bytes that a token writes: none for a control token, and perhaps not whole characters.
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        self.pieces.get(token)
    }

    /// The spelling of a control token, `None` for any other token.
    pub fn control_text(&self, token: u32) -> Option<&str> {
        self.control.get(&token).map(String::as_str)
    }

    /// The control token that is spelled like this.
    pub fn control_id(&self, text: &str) -> Option<u32> {
        let id = self.inner.token_to_id(text)?;
        self.control.contains_key(&id).then_some(id)
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.end_ids.binary_search(&token).is_ok()
    }

    /// The tokens that end an answer, in ascending order.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// Number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Spelling of the beginning-of-sequence token, for templates.
    pub fn bos_text(&self) -> Option<&str> {
        self.bos.as_ref().map(|token| token.text.as_str())
    }

    /// Spelling of the end-of-sequence token, for templates.
    pub fn eos_text(&self) -> Option<&str> {
        self.eos.as_ref().map(|token| token.text.as_str())
    }
}

/// The name of the splitting rules that a `tokenizer.json` spells out, as `tokenizer.ggml.pre` has it.
pub(crate) fn pre_tokenizer_of(tokenizer: &serde_json::Value) -> Result<&'static str, String> {
    PreTokenizer::name_of(tokenizer)
}
