//! The tokenizer that a GGUF file carries.
//!
//! Two families exist: byte-level BPE with merges (`gpt2`) and SentencePiece-style BPE with scores (`llama`). Both
//! are built from the file's metadata alone.

mod detokenize;
mod pre;

pub use detokenize::Detokenizer;

use detokenize::{byte_of_char, Pieces};
use pre::PreTokenizer;
use std::collections::HashMap;
use std::sync::Arc;
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::normalizers::{Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper};
use worker::gguf::{Gguf, GgufError};

/// SentencePiece's mark for a space.
const SPACE_MARK: char = '\u{2581}';
/// Longest token of a scored vocabulary in bytes; the merges of one token cost the square of its length.
const MAX_SCORED_TOKEN_BYTES: usize = 1024;
/// Control tokens that end an answer, besides the ones that the file names.
const END_TOKENS: [&str; 8] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "</s>",
];

/// Why a file's tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Missing or mistyped metadata.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A tokenizer family that is not implemented.
    #[error("tokenizer model {0:?} is not implemented (\"gpt2\" and \"llama\" are)")]
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

/// Kinds of token as coded in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenKind {
    fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Text to tokens and back.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Arc<Pieces>,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
    add_bos: bool,
    end_ids: Vec<u32>,
    vocab_size: usize,
}

#[derive(Debug, Clone)]
struct SpecialToken {
    id: u32,
    text: String,
}

impl Tokenizer {
    /// Builds the tokenizer that the file describes.
    ///
    /// # Errors
    /// [`TokenizerError`] for metadata that is missing, contradicts itself, or names an unknown family or rule.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let vocabulary = Vocabulary::from_gguf(gguf)?;
        let model = gguf.require_str("tokenizer.ggml.model")?;
        let (mut inner, add_bos) = match model {
            "gpt2" => byte_level_bpe(gguf, &vocabulary)?,
            "llama" => scored_bpe(gguf, &vocabulary)?,
            other => return Err(TokenizerError::UnknownModel(other.to_string())),
        };
        let added = |kind: TokenKind, special: bool| -> Vec<AddedToken> {
            vocabulary
                .of_kind(kind)
                .filter(|(_, text)| !text.is_empty())
                .map(|(_, text)| AddedToken::from(text, special).normalized(false))
                .collect()
        };
        inner.add_special_tokens(added(TokenKind::Control, true))?;
        inner.add_tokens(added(TokenKind::UserDefined, false))?;

        let special = |key: &str| -> Result<Option<SpecialToken>, TokenizerError> {
            let Some(id) = gguf.get_u32(key)? else {
                return Ok(None);
            };
            let text = vocabulary.tokens.get(id as usize).ok_or_else(|| {
                TokenizerError::Invalid(format!(
                    "{key} is {id}, the vocabulary has {} tokens",
                    vocabulary.tokens.len()
                ))
            })?;
            Ok(Some(SpecialToken {
                id,
                text: text.clone(),
            }))
        };
        let bos = special("tokenizer.ggml.bos_token_id")?;
        let eos = special("tokenizer.ggml.eos_token_id")?;
        let mut end_ids: Vec<u32> = vocabulary
            .of_kind(TokenKind::Control)
            .filter(|(_, text)| END_TOKENS.contains(text))
            .map(|(id, _)| id)
            .collect();
        end_ids.extend(eos.iter().map(|token| token.id));
        for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            end_ids.extend(special(key)?.map(|token| token.id));
        }
        Ok(Self {
            pieces: Arc::new(vocabulary.pieces(model == "llama")),
            add_bos: gguf
                .get_bool("tokenizer.ggml.add_bos_token")?
                .unwrap_or(add_bos),
            vocab_size: vocabulary.tokens.len(),
            inner,
            bos,
            eos,
            end_ids,
        })
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

    /// A decoder for one stream of tokens.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(self.pieces.clone())
    }

    /// The text of a whole sequence, special tokens left out.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut detokenizer = self.detokenizer();
        let mut text: String = tokens.iter().map(|&t| detokenizer.push(t)).collect();
        text.push_str(&detokenizer.finish());
        text
    }

    /// Whether the token ends an answer.
    pub fn is_end(&self, token: u32) -> bool {
        self.end_ids.contains(&token)
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

/// Spellings and kinds of all tokens.
struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    fn from_gguf(gguf: &'a Gguf) -> Result<Self, TokenizerError> {
        const TYPES: &str = "tokenizer.ggml.token_type";
        let tokens = gguf.require_strings("tokenizer.ggml.tokens")?;
        if tokens.is_empty() {
            return Err(TokenizerError::Invalid(
                "the vocabulary is empty".to_string(),
            ));
        }
        let kinds = match gguf.get_i32s(TYPES)? {
            None => vec![TokenKind::Normal; tokens.len()],
            Some(codes) => {
                same_length(TYPES, codes.len(), tokens.len())?;
                let kind = |&code| {
                    TokenKind::from_code(code).ok_or_else(|| {
                        TokenizerError::Invalid(format!("{TYPES} has no kind {code}"))
                    })
                };
                codes.iter().map(kind).collect::<Result<_, _>>()?
            }
        };
        Ok(Self { tokens, kinds })
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        self.tokens
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .map(|(id, (text, &kind))| (id as u32, text.as_str(), kind))
    }

    fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = (u32, &str)> {
        self.iter()
            .filter(move |(_, _, k)| *k == kind)
            .map(|(id, text, _)| (id, text))
    }

    fn ids(&self) -> HashMap<&str, u32> {
        self.iter().map(|(id, text, _)| (text, id)).collect()
    }

    /// The bytes that each token writes. Control tokens write nothing.
    fn pieces(&self, scored: bool) -> Pieces {
        Pieces::new(self.iter().map(|(_, text, kind)| {
            match kind {
                TokenKind::Control | TokenKind::Unused => Vec::new(),
                TokenKind::Byte => byte_token(text).map(|b| vec![b]).unwrap_or_default(),
                TokenKind::UserDefined => text.as_bytes().to_vec(),
                TokenKind::Normal | TokenKind::Unknown if scored => {
                    text.replace(SPACE_MARK, " ").into_bytes()
                }
                // A character outside of the byte alphabet can only stand for itself.
                TokenKind::Normal | TokenKind::Unknown => text
                    .chars()
                    .map(byte_of_char)
                    .collect::<Option<Vec<u8>>>()
                    .unwrap_or_else(|| text.as_bytes().to_vec()),
            }
        }))
    }
}

/// `<0x0A>` of a scored vocabulary.
fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 2)
}

fn same_length(key: &str, length: usize, tokens: usize) -> Result<(), TokenizerError> {
    if length == tokens {
        return Ok(());
    }
    Err(TokenizerError::Invalid(format!(
        "{key} has {length} entries for {tokens} tokens"
    )))
}

fn bpe_vocabulary(vocabulary: &Vocabulary) -> Vocab {
    vocabulary
        .iter()
        .map(|(id, text, _)| (text.to_string(), id))
        .collect()
}

/// Byte-level BPE: the file lists the merges. Returns the tokenizer and the family's habit about BOS.
fn byte_level_bpe(
    gguf: &Gguf,
    vocabulary: &Vocabulary,
) -> Result<(tokenizers::Tokenizer, bool), TokenizerError> {
    let name = gguf.get_str("tokenizer.ggml.pre")?.unwrap_or("default");
    let rules = PreTokenizer::from_name(name)
        .ok_or_else(|| TokenizerError::UnknownPreTokenizer(name.to_string()))?;
    let ids = vocabulary.ids();
    let merges: Merges = gguf
        .require_strings("tokenizer.ggml.merges")?
        .iter()
        .map(|merge| {
            // A part may itself begin with a space only in vocabularies that are not byte-level.
            let (left, right) = merge
                .split_once(' ')
                .ok_or_else(|| TokenizerError::Invalid(format!("merge {merge:?} is no pair")))?;
            for part in [left, right, &format!("{left}{right}")] {
                if !ids.contains_key(part) {
                    return Err(TokenizerError::Invalid(format!(
                        "merge {merge:?} needs the token {part:?}, which the vocabulary lacks"
                    )));
                }
            }
            Ok((left.to_string(), right.to_string()))
        })
        .collect::<Result<_, _>>()?;
    let bpe = BPE::builder()
        .vocab_and_merges(bpe_vocabulary(vocabulary), merges)
        .ignore_merges(rules.ignore_merges)
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(bpe);
    tokenizer.with_normalizer(rules.normalizer())?;
    tokenizer.with_pre_tokenizer(Some(rules.build()?));
    Ok((tokenizer, rules.add_bos))
}

/// SentencePiece-style BPE: of all neighbours, the pair whose union scores highest merges first.
fn scored_bpe(
    gguf: &Gguf,
    vocabulary: &Vocabulary,
) -> Result<(tokenizers::Tokenizer, bool), TokenizerError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = gguf.get_f32s(SCORES)?.ok_or(GgufError::MissingKey {
        key: SCORES.to_string(),
    })?;
    same_length(SCORES, scores.len(), vocabulary.tokens.len())?;
    let ids = vocabulary.ids();

    // Every way to cut a token into two others is a merge, ranked by the score of the whole.
    let mut merges: Vec<(f32, u32, &str, &str)> = Vec::new();
    for ((id, text, kind), &score) in vocabulary.iter().zip(scores) {
        if kind != TokenKind::Normal {
            continue;
        }
        if text.len() > MAX_SCORED_TOKEN_BYTES {
            return Err(TokenizerError::Invalid(format!(
                "token {id} is {} bytes long, at most {MAX_SCORED_TOKEN_BYTES} are allowed",
                text.len()
            )));
        }
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((score, id, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let merges: Merges = merges
        .into_iter()
        .map(|(_, _, left, right)| (left.to_string(), right.to_string()))
        .collect();

    let mut builder = BPE::builder()
        .vocab_and_merges(bpe_vocabulary(vocabulary), merges)
        .byte_fallback(true)
        .fuse_unk(true);
    if let Some((_, unknown)) = vocabulary.of_kind(TokenKind::Unknown).next() {
        builder = builder.unk_token(unknown.to_string());
    }
    let mut tokenizer = tokenizers::Tokenizer::new(builder.build()?);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if gguf
        .get_bool("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true)
    {
        steps.push(Prepend::new(SPACE_MARK.to_string()).into());
    }
    steps.push(Replace::new(" ", SPACE_MARK.to_string())?.into());
    tokenizer.with_normalizer(Some(Sequence::new(steps)))?;
    Ok((tokenizer, true))
}
