//! How many tokens a prompt has, for people who write one.

use super::chunks::{chunk, ChunkOptions};
use super::lora::take_loras;
use super::schedule::{composed, Schedule};
use super::tokenizer::{ClipTokenizer, Tokenize};
use std::sync::Arc;
use worker::{Error, Result};

/// Steps over which prompts change on the way; how many there are does not change their texts.
const STEPS: usize = 20;

/// Counts tokens as a text tower cuts prompts into chunks.
#[derive(Clone)]
pub struct TokenCounter {
    tokenizer: Arc<ClipTokenizer>,
    length: usize,
    weights: bool,
}

/// Tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    /// Tokens, of the longest text that the prompt has on the way; chunks that are left early count whole.
    pub tokens: usize,
    /// Tokens of a chunk.
    pub chunk: usize,
}

impl TokenCounter {
    /// For a tower of `length` positions; `weights` says whether brackets are weights.
    pub fn new(tokenizer: Arc<ClipTokenizer>, length: usize, weights: bool) -> Self {
        Self {
            tokenizer,
            length,
            weights,
        }
    }

    /// Counts a prompt's tokens; LoRAs in it are none.
    ///
    /// # Errors
    /// [`Error::Usage`] for a prompt that cannot be read.
    pub fn count(&self, prompt: &str) -> Result<TokenCount> {
        let (prompt, _) = take_loras(prompt, STEPS).map_err(Error::Usage)?;
        let mut most = 0;
        for (part, _) in composed(&prompt).map_err(Error::Usage)? {
            for (_, text) in Schedule::new(&part, STEPS).entries() {
                most = most.max(self.tokens(text)?);
            }
        }
        Ok(TokenCount {
            tokens: most,
            chunk: self.room(),
        })
    }

    fn room(&self) -> usize {
        self.length.saturating_sub(2)
    }

    fn tokens(&self, text: &str) -> Result<usize> {
        let options = ChunkOptions {
            length: self.length,
            weights: self.weights,
            ..ChunkOptions::default()
        };
        let tokenizer = &*self.tokenizer;
        let chunks = chunk(text, tokenizer, options)?;
        let end = |tokens: &[u32]| {
            let at = tokens.iter().position(|id| *id == tokenizer.eos());
            at.unwrap_or(tokens.len() - 1) - 1
        };
        let last = chunks.last().map_or(0, |chunk| end(&chunk.tokens));
        Ok(chunks.len().saturating_sub(1) * self.room() + last)
    }
}
