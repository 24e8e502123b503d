//! The families of vocabularies, built from a file's metadata.

use super::vocabulary::{same_length, Spelling, TokenKind, Vocabulary};
use crate::tokenizer::own::{unescape, Model, Normalizer, Piece, Plamo, Unigram, World};
use crate::tokenizer::pre::{AddBos, Alphabet, PreTokenizer};
use crate::tokenizer::{TokenizerError, SPACE_MARK};
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{BertNormalizer, Prepend, Replace, Sequence};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::NormalizerWrapper;
use worker::gguf::{Array, Gguf, GgufError, Value};

/// Longest token in bytes where tokens are looked for at each place of a text, or in which all merges are found: that
/// costs as much at each place, and the square for each token.
const MAX_TOKEN_BYTES: usize = 1024;
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";

/// What a family makes of a file.
pub(super) struct Family {
    pub(super) encoder: FamilyEncoder,
    pub(super) spelling: Spelling,
    /// Whether texts begin with the beginning-of-sequence token.
    pub(super) add_bos: bool,
    /// Whether framed texts end with the end-of-sequence token where the file does not say.
    pub(super) add_eos: bool,
    /// The ids of both where the file does not name them.
    pub(super) customary: (Option<u32>, Option<u32>),
}

/// What turns text into tokens; special tokens are still to be added.
pub(super) enum FamilyEncoder {
    Library(Box<tokenizers::Tokenizer>),
    Own(Model),
}

fn family(encoder: FamilyEncoder, spelling: Spelling) -> Family {
    Family {
        encoder,
        spelling,
        add_bos: false,
        add_eos: false,
        customary: (None, None),
    }
}

fn library(tokenizer: tokenizers::Tokenizer) -> FamilyEncoder {
    FamilyEncoder::Library(Box::new(tokenizer))
}

/// The family that `tokenizer.ggml.model` names.
pub(super) fn build(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Family, TokenizerError> {
    let pre = gguf.get_str("tokenizer.ggml.pre")?;
    match gguf.require_str("tokenizer.ggml.model")? {
        "gpt2" => merged(gguf, vocabulary, pre.unwrap_or("default")),
        // These two are their own pre-tokenizers; the second may name one that keeps capitals.
        "gemma4" => merged(gguf, vocabulary, "gemma4"),
        "whitespace" => merged(gguf, vocabulary, "whitespace"),
        "llama" => scored(gguf, vocabulary),
        "bert" => word_pieces(gguf, vocabulary),
        "t5" => probable(gguf, vocabulary),
        "rwkv" => longest(gguf, vocabulary),
        "plamo2" => plamo(gguf, vocabulary),
        other => Err(TokenizerError::UnknownModel(other.to_string())),
    }
}

fn bpe_vocabulary(vocabulary: &Vocabulary) -> Vocab {
    vocabulary
        .iter()
        .map(|(id, text, _)| (text.to_string(), id))
        .collect()
}

/// BPE whose merges the file lists: byte-level, or of marked characters as Gemma 4's.
fn merged(gguf: &Gguf, vocabulary: &Vocabulary, pre: &str) -> Result<Family, TokenizerError> {
    const MERGES: &str = "tokenizer.ggml.merges";
    let rules = PreTokenizer::from_name(pre)
        .ok_or_else(|| TokenizerError::UnknownPreTokenizer(pre.to_string()))?;
    let merges = match gguf.get(MERGES) {
        None if rules.merges_by_id => merges_by_rank(vocabulary, f64::from)?,
        _ => listed_merges(vocabulary, gguf.require_strings(MERGES)?)?,
    };
    let mut builder = BPE::builder()
        .vocab_and_merges(bpe_vocabulary(vocabulary), merges)
        .ignore_merges(rules.ignore_merges);
    if rules.alphabet != Alphabet::Bytes {
        builder = builder.byte_fallback(true).fuse_unk(true);
        if let Some(unknown) = unknown(gguf, vocabulary)? {
            builder = builder.unk_token(vocabulary.tokens[unknown as usize].clone());
        }
    }
    let mut tokenizer = tokenizers::Tokenizer::new(builder.build()?);
    // The pre-tokenizer of this name means that capitals stay.
    let lowercase = gguf
        .get_bool("tokenizer.ggml.normalizer.lowercase")?
        .unwrap_or(gguf.get_str("tokenizer.ggml.pre")? != Some("whitespace"));
    tokenizer.with_normalizer(rules.normalizer(lowercase)?)?;
    tokenizer.with_pre_tokenizer(rules.build()?);
    let spelling = match rules.alphabet {
        Alphabet::Bytes => Spelling::Bytes,
        Alphabet::Marked => Spelling::Marked,
        Alphabet::Words => Spelling::Plain,
    };
    let asked = gguf.get_bool(ADD_BOS)?;
    Ok(Family {
        add_bos: match rules.bos {
            AddBos::IfAsked => asked == Some(true),
            AddBos::UnlessForbidden => asked != Some(false),
            AddBos::Always => true,
        },
        add_eos: rules.framed,
        ..family(library(tokenizer), spelling)
    })
}

/// The merges of a file, each "left right". Only vocabularies that are not byte-level have tokens with spaces.
fn listed_merges(vocabulary: &Vocabulary, merges: &[String]) -> Result<Merges, TokenizerError> {
    let ids = vocabulary.ids();
    let pair = |merge: &String| {
        // A part may itself begin with a space.
        let begin = merge.chars().next().map_or(0, char::len_utf8);
        let (left, right) = merge
            .get(begin..)
            .and_then(|rest| rest.find(' '))
            .map(|at| (&merge[..begin + at], &merge[begin + at + 1..]))
            .ok_or_else(|| TokenizerError::Invalid(format!("merge {merge:?} is not a pair")))?;
        for part in [left, right, &format!("{left}{right}")] {
            if !ids.contains_key(part) {
                return Err(TokenizerError::Invalid(format!(
                    "merge {merge:?} needs the token {part:?}, which the vocabulary lacks"
                )));
            }
        }
        Ok((left.to_string(), right.to_string()))
    };
    merges.iter().map(pair).collect()
}

/// Every way to cut a token into two others is a merge, in the order of the rank of the whole.
fn merges_by_rank(
    vocabulary: &Vocabulary,
    rank: impl Fn(u32) -> f64,
) -> Result<Merges, TokenizerError> {
    check_lengths(vocabulary)?;
    let ids = vocabulary.ids();
    let mut merges: Vec<(f64, u32, &str, &str)> = Vec::new();
    for (id, text) in vocabulary.of_kind(TokenKind::Normal) {
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((rank(id), id, left, right));
            }
        }
    }
    merges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    Ok(merges
        .into_iter()
        .map(|(_, _, left, right)| (left.to_string(), right.to_string()))
        .collect())
}

fn check_lengths(vocabulary: &Vocabulary) -> Result<(), TokenizerError> {
    let ordinary = |(_, text, kind): &(u32, &str, TokenKind)| {
        !matches!(kind, TokenKind::Control | TokenKind::Byte) && text.len() > MAX_TOKEN_BYTES
    };
    match vocabulary.iter().find(ordinary) {
        None => Ok(()),
        Some((id, text, _)) => Err(TokenizerError::Invalid(format!(
            "token {id} is {} bytes long, at most {MAX_TOKEN_BYTES} are allowed",
            text.len()
        ))),
    }
}

fn scores<'a>(gguf: &'a Gguf, vocabulary: &Vocabulary) -> Result<&'a [f32], TokenizerError> {
    const SCORES: &str = "tokenizer.ggml.scores";
    let scores = gguf.get_f32s(SCORES)?.ok_or(GgufError::MissingKey {
        key: SCORES.to_string(),
    })?;
    same_length(SCORES, scores.len(), vocabulary.tokens.len())?;
    Ok(scores)
}

/// The token for what no other expresses.
fn unknown(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Option<u32>, TokenizerError> {
    let named = vocabulary.named(gguf, "tokenizer.ggml.unknown_token_id")?;
    let first = || vocabulary.of_kind(TokenKind::Unknown).next();
    Ok(named
        .map(|token| token.id)
        .or_else(|| first().map(|(id, _)| id)))
}

/// SentencePiece-style BPE: of all neighbours, the pair whose union scores highest merges first.
fn scored(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Family, TokenizerError> {
    let scores = scores(gguf, vocabulary)?;
    let merges = merges_by_rank(vocabulary, |id| -f64::from(scores[id as usize]))?;
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
    Ok(Family {
        add_bos: gguf.get_bool(ADD_BOS)?.unwrap_or(true),
        customary: (Some(1), Some(2)),
        ..family(library(tokenizer), Spelling::Marked)
    })
}

/// WordPiece as BERT has it: lower case without accents unless the file says otherwise, words, the longest pieces
/// first. In GGUF's vocabulary a piece that begins a word has the mark that SentencePiece gives to spaces, one that
/// goes on has none; the library wants `##` on the latter.
fn word_pieces(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Family, TokenizerError> {
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
    let flag = |key: &str| gguf.get_bool(&format!("tokenizer.ggml.normalizer.{key}"));
    let lowercase = flag("lowercase")?.unwrap_or(true);
    let accents = flag("strip_accents")?;
    tokenizer.with_normalizer(Some(BertNormalizer::new(true, true, accents, lowercase)))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    Ok(Family {
        add_bos: gguf.get_bool(ADD_BOS)?.unwrap_or(true),
        add_eos: true,
        customary: (Some(101), Some(102)),
        ..family(library(tokenizer), Spelling::Marked)
    })
}

/// SentencePiece's unigram model, as T5, XLM-R and their like have it.
fn probable(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Family, TokenizerError> {
    const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
    check_lengths(vocabulary)?;
    let scores = scores(gguf, vocabulary)?;
    let unknown = match unknown(gguf, vocabulary)? {
        Some(id) => id,
        // T5's own.
        None if vocabulary.tokens.len() > 2 => 2,
        None => {
            return Err(TokenizerError::Invalid(
                "a unigram vocabulary needs an unknown token".to_string(),
            ))
        }
    };
    let charsmap = match gguf.get(CHARSMAP) {
        None => None,
        Some(Value::Array(Array::U8(bytes))) => Some(bytes.clone()),
        Some(Value::Array(Array::I8(bytes))) => {
            Some(bytes.iter().map(|byte| *byte as u8).collect())
        }
        Some(_) => {
            return Err(TokenizerError::Invalid(format!(
                "{CHARSMAP} is no array of bytes"
            )))
        }
    };
    let flag = |key: &str| gguf.get_bool(&format!("tokenizer.ggml.{key}"));
    let normalizer = Normalizer {
        // Files have an empty one where the model was trained without.
        charsmap: charsmap.filter(|bytes| !bytes.is_empty()),
        space_prefix: flag("add_space_prefix")?.unwrap_or(false),
        merge_spaces: flag("remove_extra_whitespaces")?.unwrap_or(false),
    };
    let pieces = vocabulary.iter().filter_map(|(id, text, kind)| {
        let counts = matches!(
            kind,
            TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
        );
        counts.then(|| Piece {
            id,
            text,
            score: scores[id as usize],
            user_defined: kind == TokenKind::UserDefined,
            usual: kind == TokenKind::Normal,
        })
    });
    let model = Unigram::new(pieces, unknown, vocabulary.bytes(), &normalizer)
        .map_err(TokenizerError::Invalid)?;
    Ok(Family {
        add_bos: gguf.get_bool(ADD_BOS)?.unwrap_or(false),
        add_eos: true,
        customary: (None, Some(1)),
        ..family(FamilyEncoder::Own(Model::Unigram(model)), Spelling::Marked)
    })
}

/// RWKV's vocabulary, of which the longest token counts: that which ends a turn is ordinary text, too.
fn longest(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Family, TokenizerError> {
    check_lengths(vocabulary)?;
    let own = Vocabulary::from_gguf(gguf)?;
    let tokens = own
        .of_kind(TokenKind::Normal)
        .map(|(id, text)| (unescape(text), id));
    let model = World::new(tokens).map_err(|byte| {
        TokenizerError::Invalid(format!("the vocabulary has no token for the byte {byte}"))
    })?;
    Ok(family(
        FamilyEncoder::Own(Model::World(model)),
        Spelling::Escaped,
    ))
}

/// PLaMo 2's vocabulary of scores.
fn plamo(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Family, TokenizerError> {
    check_lengths(vocabulary)?;
    let scores = scores(gguf, vocabulary)?;
    let bytes = vocabulary.bytes().ok_or_else(|| {
        TokenizerError::Invalid("the vocabulary lacks tokens of single bytes".to_string())
    })?;
    let pieces = vocabulary
        .iter()
        .filter(|(_, _, kind)| !matches!(kind, TokenKind::Byte | TokenKind::Control))
        .map(|(id, text, _)| (id, text, scores[id as usize]));
    let model = Plamo::new(pieces, bytes);
    Ok(Family {
        add_bos: gguf.get_bool(ADD_BOS)?.unwrap_or(false),
        customary: (Some(1), Some(2)),
        ..family(FamilyEncoder::Own(Model::Plamo(model)), Spelling::Plain)
    })
}
