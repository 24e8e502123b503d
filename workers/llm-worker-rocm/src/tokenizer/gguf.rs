//! The tokenizer that a GGUF file carries.
//!
//! Three families exist: byte-level BPE with merges (`gpt2`), SentencePiece-style BPE with scores (`llama`) and
//! WordPiece (`bert`). All are built from the file's metadata alone.

use super::detokenize::{byte_of_char, Pieces};
use super::pre::PreTokenizer;
use super::{Parts, SpecialToken, Tokenizer, TokenizerError, SPACE_MARK};
use std::collections::HashMap;
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{AddedToken, NormalizerWrapper};
use worker::gguf::{Gguf, GgufError};

/// Longest token of a scored vocabulary in bytes; the merges of one token cost the square of its length.
const MAX_SCORED_TOKEN_BYTES: usize = 1024;

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
            "bert" => word_pieces(&vocabulary)?,
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
        // BERT's two frame tokens go by other names.
        let (first, last) = match model {
            "bert" => (
                "tokenizer.ggml.cls_token_id",
                "tokenizer.ggml.seperator_token_id",
            ),
            _ => ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"),
        };
        let bos = match special(first)? {
            Some(token) => Some(token),
            None => special("tokenizer.ggml.bos_token_id")?,
        };
        let eos = match special(last)? {
            Some(token) => Some(token),
            None => special("tokenizer.ggml.eos_token_id")?,
        };
        let control: HashMap<u32, String> = vocabulary
            .of_kind(TokenKind::Control)
            .map(|(id, text)| (id, text.to_string()))
            .collect();
        let mut named = Vec::new();
        for key in ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            named.extend(special(key)?.map(|token| token.id));
        }
        let flag = |key: &str| gguf.get_bool(key);
        Ok(Self::assemble(Parts {
            pieces: vocabulary.pieces(model),
            add_bos: flag("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos),
            add_eos: flag("tokenizer.ggml.add_eos_token")?.unwrap_or(model == "bert"),
            vocab_size: vocabulary.tokens.len(),
            ends: named,
            framed_by_library: false,
            inner,
            control,
            bos,
            eos,
        }))
    }
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
    fn pieces(&self, model: &str) -> Pieces {
        let marked = model != "gpt2";
        Pieces::new(self.iter().map(|(_, text, kind)| {
            match kind {
                TokenKind::Control | TokenKind::Unused => Vec::new(),
                TokenKind::Byte => byte_token(text).map(|b| vec![b]).unwrap_or_default(),
                TokenKind::UserDefined => text.as_bytes().to_vec(),
                TokenKind::Normal | TokenKind::Unknown if marked => {
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
pub(crate) fn byte_token(text: &str) -> Option<u8> {
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
                .ok_or_else(|| TokenizerError::Invalid(format!("merge {merge:?} is not a pair")))?;
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

/// WordPiece as BERT has it: lower case without accents, words, the longest pieces first. In GGUF's vocabulary a piece
/// that begins a word has the mark that SentencePiece gives to spaces, one that goes on has none; the library wants
/// `##` on the latter.
fn word_pieces(vocabulary: &Vocabulary) -> Result<(tokenizers::Tokenizer, bool), TokenizerError> {
    let mut unknown = None;
    let vocab: Vocab = vocabulary
        .iter()
        .map(|(id, text, kind)| {
            let spelled = match (kind, text.strip_prefix(SPACE_MARK)) {
                (TokenKind::Normal, Some(begins)) => begins.to_string(),
                (TokenKind::Normal, None) => format!("##{text}"),
                _ => text.to_string(),
            };
            if kind == TokenKind::Unknown || text == "[UNK]" {
                unknown = Some(spelled.clone());
            }
            (spelled, id)
        })
        .collect();
    let unknown = unknown.ok_or_else(|| {
        TokenizerError::Invalid("a WordPiece vocabulary needs an unknown token".to_string())
    })?;
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(unknown)
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(Some(BertNormalizer::new(true, true, None, true)))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    Ok((tokenizer, true))
}
