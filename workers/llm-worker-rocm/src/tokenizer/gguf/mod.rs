//! The tokenizer that a GGUF file carries.
//!
//! | `tokenizer.ggml.model` | kind of vocabulary                                                        |
//! |------------------------|---------------------------------------------------------------------------|
//! | `gpt2`                 | BPE with merges; `tokenizer.ggml.pre` names how text is split before them |
//! | `gemma4`               | the same over the characters of the whole text                            |
//! | `whitespace`           | the same over the characters of each word                                 |
//! | `llama`                | SentencePiece's BPE with scores                                           |
//! | `t5`                   | SentencePiece's unigram model                                             |
//! | `bert`                 | WordPiece                                                                 |
//! | `rwkv`                 | the longest token first                                                   |
//! | `plamo2`               | the best sum of scores                                                    |
//!
//! All are built from the file's metadata alone.

mod families;
mod vocabulary;

pub(crate) use vocabulary::byte_token;

use super::own::{AddedTokens, Own};
use super::{Encoder, Parts, Tokenizer, TokenizerError};
use families::{Family, FamilyEncoder};
use std::collections::HashMap;
use tokenizers::AddedToken;
use vocabulary::{Strips, TokenKind, Vocabulary};
use worker::gguf::Gguf;

impl Tokenizer {
    /// Builds the tokenizer that the file describes.
    ///
    /// # Errors
    /// [`TokenizerError`] for metadata that is missing, contradicts itself, or names an unknown family or rule.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let mut vocabulary = Vocabulary::from_gguf(gguf)?;
        // Reading the kinds of the ends' tokens right comes first: vocabularies are built by kind.
        let last_key = last_key(gguf)?;
        let named_last =
            named_first_of(&vocabulary, gguf, [last_key, "tokenizer.ggml.eos_token_id"])?;
        let mut ends = vocabulary.mark_ends(gguf, named_last.as_ref())?;
        let Family {
            encoder,
            spelling,
            add_bos,
            add_eos,
            customary: (usual_bos, usual_eos),
        } = families::build(gguf, &vocabulary)?;
        let bos = named_first_of(
            &vocabulary,
            gguf,
            [first_key(gguf)?, "tokenizer.ggml.bos_token_id"],
        )?
        .or_else(|| vocabulary.customary(usual_bos));
        let eos = named_last.or_else(|| vocabulary.customary(usual_eos));
        ends.extend(eos.as_ref().map(|token| token.id));

        let added = vocabulary.added(Strips::of(gguf)?);
        let encoder = match encoder {
            FamilyEncoder::Library(mut inner) => {
                let as_library = |wanted: bool| -> Vec<AddedToken> {
                    added
                        .iter()
                        .filter(|(_, special)| *special == wanted)
                        .map(|(token, special)| {
                            AddedToken::from(token.text.as_str(), *special)
                                .normalized(false)
                                .lstrip(token.lstrip)
                                .rstrip(token.rstrip)
                        })
                        .collect()
                };
                inner.add_special_tokens(as_library(true))?;
                inner.add_tokens(as_library(false))?;
                // Of the normalizers here none makes a text more than three times longer.
                Encoder::Library { inner, growth: 3 }
            }
            FamilyEncoder::Own(model) => {
                let tokens = added.into_iter().map(|(token, _)| token).collect();
                let added = AddedTokens::new(tokens)
                    .map_err(|e| TokenizerError::Invalid(format!("its special tokens: {e}")))?;
                let ids = vocabulary
                    .iter()
                    .map(|(id, text, _)| (text.to_string(), id));
                Encoder::Own(Box::new(Own {
                    added,
                    model,
                    ids: ids.collect(),
                }))
            }
        };
        let control: HashMap<u32, String> = vocabulary
            .of_kind(TokenKind::Control)
            .map(|(id, text)| (id, text.to_string()))
            .collect();
        Ok(Self::assemble(Parts {
            pieces: vocabulary.pieces(spelling),
            add_bos,
            add_eos: gguf
                .get_bool("tokenizer.ggml.add_eos_token")?
                .unwrap_or(add_eos),
            vocab_size: vocabulary.tokens.len(),
            ends,
            fill_in: super::fill_in::named(gguf)?,
            framed_by_library: false,
            encoder,
            control,
            bos,
            eos,
        }))
    }
}

/// The key of the token that begins a text; BERT's two frame tokens go by other names.
fn first_key(gguf: &Gguf) -> Result<&'static str, TokenizerError> {
    Ok(match gguf.require_str("tokenizer.ggml.model")? {
        "bert" => "tokenizer.ggml.cls_token_id",
        _ => "tokenizer.ggml.bos_token_id",
    })
}

/// The key of the token that ends a text.
fn last_key(gguf: &Gguf) -> Result<&'static str, TokenizerError> {
    Ok(match gguf.require_str("tokenizer.ggml.model")? {
        "bert" => "tokenizer.ggml.seperator_token_id",
        _ => "tokenizer.ggml.eos_token_id",
    })
}

fn named_first_of(
    vocabulary: &Vocabulary,
    gguf: &Gguf,
    keys: [&str; 2],
) -> Result<Option<super::SpecialToken>, TokenizerError> {
    Ok(match vocabulary.named(gguf, keys[0])? {
        Some(token) => Some(token),
        None => vocabulary.named(gguf, keys[1])?,
    })
}
