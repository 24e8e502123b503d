//! Vocabularies that the `tokenizers` crate has no model for, or reads otherwise than the programs that they were
//! trained with.

mod added;
mod plamo;
mod prefixes;
mod unigram;
mod world;

pub(super) use added::{AddedToken, AddedTokens};
pub(super) use plamo::Plamo;
pub(super) use unigram::{Normalizer, Piece, Unigram};
pub(super) use world::{unescape, World};

use added::Fragment;
use std::collections::HashMap;
use std::ops::Range;

/// A vocabulary with its special tokens.
#[derive(Debug)]
pub(super) struct Own {
    /// Tokens that are found in a text before anything else.
    pub(super) added: AddedTokens,
    /// What is done with the text between them.
    pub(super) model: Model,
    /// Ids by spelling.
    pub(super) ids: HashMap<String, u32>,
}

/// How text becomes tokens.
#[derive(Debug)]
pub(super) enum Model {
    /// SentencePiece's probabilities, as T5 and XLM-R have.
    Unigram(Unigram),
    /// The longest token first, as RWKV has.
    World(World),
    /// The best sum of scores, as PLaMo 2 has.
    Plamo(Plamo),
}

impl Own {
    /// The tokens of a text; what stands at `spelled`, ranges in ascending order, is text even if it is an added token's
    /// spelling.
    pub(super) fn encode(&self, text: &str, spelled: &[Range<usize>]) -> Vec<u32> {
        let mut ids = Vec::new();
        for fragment in self.added.split(text, spelled) {
            match fragment {
                Fragment::Token(id) => ids.push(id),
                Fragment::Text(text) => match &self.model {
                    Model::Unigram(model) => model.encode(text, &mut ids),
                    Model::World(model) => model.encode(text, &mut ids),
                    Model::Plamo(model) => model.encode(text, &mut ids),
                },
            }
        }
        ids
    }
}
