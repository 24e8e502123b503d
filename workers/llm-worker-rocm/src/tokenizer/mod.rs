//! Text to tokens and back.
//!
//! A GGUF file describes its tokenizer in its metadata, a Hugging Face folder brings `tokenizer.json`:
//! [`Tokenizer::open`] takes what there is.

mod detokenize;
mod ends;
mod fill_in;
mod gguf;
mod json;
mod own;
mod pair;
mod pre;
mod rendered;
mod rules;

pub use detokenize::Detokenizer;
pub use fill_in::FillIn;
pub use pair::Pair;

use detokenize::Pieces;
pub(crate) use gguf::byte_token;
use own::Own;
use pre::PreTokenizer;
use rendered::Words;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use worker::gguf::{Gguf, GgufError};
use worker::tokenizer_json;

/// Longest text, as normalizers may make it.
const MAX_NORMALIZED_BYTES: u64 = 1 << 31;
/// SentencePiece's mark for a space.
const SPACE_MARK: char = '\u{2581}';
/// Why a model's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Missing or mistyped metadata.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A tokenizer family that is not implemented.
    #[error("tokenizer model {0:?} is not implemented (gpt2, llama, t5, bert, gemma4, whitespace, rwkv and plamo2 are)")]
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
    encoder: Encoder,
    pieces: Arc<Pieces>,
    control: HashMap<u32, String>,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    add_bos: bool,
    add_eos: bool,
    framed_by_library: bool,
    end_ids: Vec<u32>,
    fill_in: Option<FillIn>,
    vocab_size: usize,
    /// Finds spellings of control tokens; made when it is needed.
    control_finder: OnceLock<Words>,
}

/// What turns text into tokens.
#[derive(Debug)]
enum Encoder {
    /// The `tokenizers` crate.
    Library {
        inner: Box<tokenizers::Tokenizer>,
        /// How many times longer its normalizers may make a text.
        growth: u64,
    },
    /// Vocabularies of kinds that it does not have.
    Own(Box<Own>),
}

impl Encoder {
    /// The tokens of a text; `framed` asks the library for what it knows to put around one.
    fn encode(&self, text: &str, framed: bool) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Self::Library { inner, growth } => with_library(text, *growth, || {
                let encoding = inner.encode_fast(text, framed)?;
                Ok(encoding.get_ids().to_vec())
            }),
            Self::Own(own) => Ok(own.encode(text, &[])),
        }
    }

    /// The tokens of a text in which the control tokens at some places are text.
    fn encode_as_text(
        &self,
        text: &str,
        spelled: &[Range<usize>],
    ) -> Result<Vec<u32>, TokenizerError> {
        match self {
            Self::Library { inner, growth } => with_library(text, *growth, || {
                rendered::with_spelled(inner, text, spelled)
            }),
            Self::Own(own) => Ok(own.encode(text, spelled)),
        }
    }

    /// The spelling of a token.
    fn spelling(&self, id: u32) -> Option<String> {
        match self {
            Self::Library { inner, .. } => inner.id_to_token(id),
            Self::Own(own) => own
                .ids
                .iter()
                .find_map(|(text, known)| (*known == id).then(|| text.clone())),
        }
    }

    /// The token of a spelling.
    fn id(&self, text: &str) -> Option<u32> {
        match self {
            Self::Library { inner, .. } => inner.token_to_id(text),
            Self::Own(own) => own.ids.get(text).copied(),
        }
    }
}

/// What the library makes of a text, unless that is too long for its normalizers. A file's rules may make it panic at
/// one text only.
fn with_library(
    text: &str,
    growth: u64,
    encode: impl FnOnce() -> tokenizers::Result<Vec<u32>>,
) -> Result<Vec<u32>, TokenizerError> {
    if text.len() as u64 * growth > MAX_NORMALIZED_BYTES {
        return Err(TokenizerError::Invalid(format!(
            "a text of {} bytes is too long for it",
            text.len()
        )));
    }
    tokenizer_json::guarded(|| encode().map_err(|e| e.to_string())).map_err(TokenizerError::Invalid)
}

#[derive(Debug, Clone)]
struct SpecialToken {
    id: u32,
    text: String,
}

/// What the formats' readers find.
struct Parts {
    encoder: Encoder,
    pieces: Pieces,
    control: HashMap<u32, String>,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    add_bos: bool,
    add_eos: bool,
    /// Whether the library itself knows what to put around a text.
    framed_by_library: bool,
    /// Tokens that end an answer.
    ends: Vec<u32>,
    /// Tokens that fill in, as far as they are named.
    fill_in: fill_in::Named,
    vocab_size: usize,
}

impl Tokenizer {
    /// The tokenizer of a model: `tokenizer.json` where `path` is a folder with one, else what the metadata describes.
    ///
    /// # Errors
    /// [`TokenizerError`] for a tokenizer that is missing, contradicts itself, or is of an unknown kind.
    pub fn open(path: &Path, header: &Gguf) -> Result<Self, TokenizerError> {
        if path.join("tokenizer.json").exists() {
            Self::from_folder(path)
        } else {
            Self::from_gguf(header)
        }
    }

    fn assemble(parts: Parts) -> Self {
        let mut end_ids = parts.ends;
        end_ids.retain(|&id| (id as usize) < parts.vocab_size);
        end_ids.sort_unstable();
        end_ids.dedup();
        Self {
            fill_in: FillIn::find(parts.fill_in, &parts.encoder, parts.vocab_size),
            encoder: parts.encoder,
            pieces: Arc::new(parts.pieces),
            control: parts.control,
            bos: parts.bos,
            eos: parts.eos,
            add_bos: parts.add_bos,
            add_eos: parts.add_eos,
            framed_by_library: parts.framed_by_library,
            vocab_size: parts.vocab_size,
            end_ids,
            control_finder: OnceLock::new(),
        }
    }

    /// The tokens of a text. Special tokens spelled out in it, such as `<|im_start|>`, become one token each.
    ///
    /// `add_bos` asks for the model's beginning-of-sequence token; it is added where the file says that the model
    /// was trained with one and the text does not bring it already.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`] for text that the vocabulary cannot express, or that is too long for it.
    pub fn encode(&self, text: &str, add_bos: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encoder.encode(text, false)?;
        self.begin(&mut ids, add_bos);
        Ok(ids)
    }

    /// What every text begins with: the beginning-of-sequence token, where the model was trained with one.
    pub fn beginning(&self) -> Vec<u32> {
        let mut ids = Vec::new();
        self.begin(&mut ids, true);
        ids
    }

    /// Adds the beginning-of-sequence token where it belongs and is missing.
    fn begin(&self, ids: &mut Vec<u32>, add_bos: bool) {
        if let Some(bos) = self.bos.as_ref().filter(|_| add_bos && self.add_bos) {
            if ids.first() != Some(&bos.id) {
                ids.insert(0, bos.id);
            }
        }
    }

    /// The tokens of a text with everything that the model's training put around it, as embedding models need it:
    /// `[CLS]` and `[SEP]`, or an end-of-sequence token. At most `max_tokens`, cut before the end token.
    ///
    /// # Errors
    /// [`TokenizerError::Invalid`] for text that the vocabulary cannot express, or that is too long for it.
    pub fn encode_framed(&self, text: &str, max_tokens: usize) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = if self.framed_by_library {
            self.encoder.encode(text, true)?
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

    /// The text of a whole sequence, special tokens as they are spelled.
    pub fn spell(&self, tokens: &[u32]) -> String {
        let shown = tokens.iter().filter_map(|token| {
            let text = self.control.get(token)?;
            Some((*token, text.clone()))
        });
        let mut detokenizer = self.detokenizer().showing(shown.collect());
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
        let id = self.encoder.id(text)?;
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

    /// The tokens for a text whose middle is to be filled in, if the model was trained on that.
    pub fn fill_in(&self) -> Option<FillIn> {
        self.fill_in
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
