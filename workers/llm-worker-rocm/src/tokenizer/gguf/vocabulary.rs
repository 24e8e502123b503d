//! Spellings and kinds of the tokens that a GGUF file lists.

use crate::tokenizer::detokenize::{byte_of_char, Pieces};
use crate::tokenizer::own::{unescape, AddedToken};
use crate::tokenizer::{ends, SpecialToken, TokenizerError, SPACE_MARK};
use std::collections::HashMap;
use worker::gguf::Gguf;

/// Kinds of token as coded in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
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

/// What tokens are spelled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each character stands for a byte.
    Bytes,
    /// A mark stands for a space.
    Marked,
    /// Characters stand for themselves.
    Plain,
    /// Python's escapes of bytes.
    Escaped,
}

/// Spellings and kinds of all tokens.
pub(super) struct Vocabulary<'a> {
    pub(super) tokens: &'a [String],
    pub(super) kinds: Vec<TokenKind>,
}

impl<'a> Vocabulary<'a> {
    pub(super) fn from_gguf(gguf: &'a Gguf) -> Result<Self, TokenizerError> {
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &str, TokenKind)> {
        self.tokens
            .iter()
            .zip(&self.kinds)
            .enumerate()
            .map(|(id, (text, &kind))| (id as u32, text.as_str(), kind))
    }

    pub(super) fn of_kind(&self, kind: TokenKind) -> impl Iterator<Item = (u32, &str)> {
        self.iter()
            .filter(move |(_, _, k)| *k == kind)
            .map(|(id, text, _)| (id, text))
    }

    pub(super) fn ids(&self) -> HashMap<&str, u32> {
        self.iter().map(|(id, text, _)| (text, id)).collect()
    }

    /// The token that a key of the metadata names.
    ///
    /// # Errors
    /// If there is no such token.
    pub(super) fn named(
        &self,
        gguf: &Gguf,
        key: &str,
    ) -> Result<Option<SpecialToken>, TokenizerError> {
        let Some(id) = gguf.get_u32(key)? else {
            return Ok(None);
        };
        let text = self.tokens.get(id as usize).ok_or_else(|| {
            TokenizerError::Invalid(format!(
                "{key} is {id}, the vocabulary has {} tokens",
                self.tokens.len()
            ))
        })?;
        Ok(Some(SpecialToken {
            id,
            text: text.clone(),
        }))
    }

    /// The control token that is customary for a family where the file names none.
    pub(super) fn customary(&self, id: Option<u32>) -> Option<SpecialToken> {
        let id = id.filter(|&id| self.kinds.get(id as usize) == Some(&TokenKind::Control))?;
        let text = self.tokens[id as usize].clone();
        Some(SpecialToken { id, text })
    }

    /// The tokens that end an answer. They become control tokens: some files give them the type of ordinary text.
    pub(super) fn mark_ends(
        &mut self,
        gguf: &Gguf,
        eos: Option<&SpecialToken>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut named = Vec::new();
        for key in ends::KEYS {
            named.extend(self.named(gguf, key)?.map(|token| token.id));
        }
        let ids = self.ids();
        let find = |text: &str| {
            let id = *ids.get(text)?;
            Some((id, self.kinds[id as usize] == TokenKind::Control))
        };
        let ends = ends::end_ids(named, eos.map(|token| token.id), find);
        for &id in &ends {
            let kind = &mut self.kinds[id as usize];
            if matches!(
                kind,
                TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused
            ) {
                *kind = TokenKind::Control;
            }
        }
        Ok(ends)
    }

    /// The tokens that stand for their spelling wherever it occurs, and whether they are special.
    pub(super) fn added(&self, strips: Strips) -> Vec<(AddedToken, bool)> {
        self.iter()
            .filter(|(_, text, _)| !text.is_empty())
            .filter_map(|(id, text, kind)| {
                let special = match kind {
                    TokenKind::Control | TokenKind::Unknown => true,
                    TokenKind::UserDefined => false,
                    _ if strips == Strips::AfterAll && text == "</s>" => true,
                    _ => return None,
                };
                let token = AddedToken {
                    id,
                    text: text.to_string(),
                    lstrip: strips == Strips::BeforeMask && matches!(text, "<mask>" | "[MASK]"),
                    rstrip: strips == Strips::AfterAll
                        && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"),
                };
                Some((token, special))
            })
            .collect()
    }

    /// The tokens of single bytes, if there is one for each.
    pub(super) fn bytes(&self) -> Option<Box<[u32; 256]>> {
        let mut bytes = Box::new([None; 256]);
        for (id, text) in self.of_kind(TokenKind::Byte) {
            if let Some(byte) = byte_token(text) {
                bytes[usize::from(byte)] = Some(id);
            }
        }
        let mut ids = Box::new([0; 256]);
        for (id, byte) in ids.iter_mut().zip(bytes.iter()) {
            *id = (*byte)?;
        }
        Some(ids)
    }

    /// The bytes that each token writes. Control tokens write nothing.
    pub(super) fn pieces(&self, spelling: Spelling) -> Pieces {
        Pieces::new(self.iter().map(|(_, text, kind)| {
            match (kind, spelling) {
                (TokenKind::Control | TokenKind::Unknown | TokenKind::Unused, _) => Vec::new(),
                (TokenKind::Byte, _) => byte_token(text).map(|b| vec![b]).unwrap_or_default(),
                (TokenKind::UserDefined, _) | (_, Spelling::Plain) => text.as_bytes().to_vec(),
                (_, Spelling::Marked) => text.replace(SPACE_MARK, " ").into_bytes(),
                (_, Spelling::Escaped) => unescape(text),
                // A character outside of the byte alphabet can only stand for itself.
                (_, Spelling::Bytes) => text
                    .chars()
                    .map(byte_of_char)
                    .collect::<Option<Vec<u8>>>()
                    .unwrap_or_else(|| text.as_bytes().to_vec()),
            }
        }))
    }
}

/// White space beside added tokens that belongs to them. GGUF has no words for it, so the reader must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strips {
    /// None.
    Nothing,
    /// After all special tokens but three, in Phi 3's family.
    AfterAll,
    /// Before the token that masks a word.
    BeforeMask,
}

impl Strips {
    /// By what llama.cpp looks at (`general.name`, the pre-tokenizer, the architecture) and by what else tells the
    /// same vocabularies: the fine-tuned models of a family have names of their own.
    pub(super) fn of(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let text = |key: &str| Ok::<_, TokenizerError>(gguf.get_str(key)?.unwrap_or_default());
        let model = text("tokenizer.ggml.model")?;
        let pre = text("tokenizer.ggml.pre")?;
        let architecture = text("general.architecture")?;
        let name = text("general.name")?.to_lowercase();
        let masks = [
            "jina-v2-de",
            "jina-v2-es",
            "jina-v2-code",
            "roberta-bpe",
            "modern-bert",
        ]
        .contains(&pre)
            || model == "t5"
            || ["nomic-bert-moe", "jina-bert-v3", "modern-bert"].contains(&architecture)
            || name.contains("modern-bert");
        let phi3 = name.contains("phi-3")
            || name.contains("phi3")
            || architecture == "phi3" && model == "llama";
        Ok(match (masks, phi3) {
            (true, _) => Self::BeforeMask,
            (_, true) => Self::AfterAll,
            _ => Self::Nothing,
        })
    }
}

/// `<0x0A>` of a scored vocabulary.
pub(crate) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 2)
}

pub(super) fn same_length(key: &str, length: usize, tokens: usize) -> Result<(), TokenizerError> {
    if length == tokens {
        return Ok(());
    }
    Err(TokenizerError::Invalid(format!(
        "{key} has {length} entries for {tokens} tokens"
    )))
}
