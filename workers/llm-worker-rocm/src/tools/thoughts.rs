//! A model's thinking while it goes on: where it is, and how long it may be.

use super::format::OutputFormat;
use super::parser::{OutputParser, ParserOptions};
use crate::engine::api::Constraint;
use crate::jinja::Rendered;
use crate::tokenizer::{Detokenizer, Tokenizer, TokenizerError};
use std::sync::Arc;

/// Tells of each token of an answer whether the model thinks.
#[derive(Debug, Clone)]
pub struct Thoughts {
    parser: OutputParser,
    detokenizer: Detokenizer,
}

impl Thoughts {
    /// At the beginning of an answer, which is among thoughts if the prompt ends there; `None` for a model that does
    /// not think.
    pub fn of(format: OutputFormat, in_reasoning: bool, tokenizer: &Tokenizer) -> Option<Self> {
        format.reasoning?;
        let options = ParserOptions {
            reasoning: true,
            in_reasoning,
            ..ParserOptions::default()
        };
        Some(Self {
            parser: OutputParser::new(format, options).ok()?,
            detokenizer: tokenizer.detokenizer_showing(&format.visible_tokens()),
        })
    }

    /// Whether what comes next belongs to the thoughts.
    fn go_on(&self) -> bool {
        self.parser.is_reasoning()
    }

    /// Takes the next token. Gives whether it belongs to the thoughts: the one that ends them does.
    pub fn push(&mut self, token: u32) -> bool {
        let before = self.go_on();
        let text = self.detokenizer.push(token);
        let _ = self.parser.push(&text);
        before || self.go_on()
    }
}

/// How many tokens a model may think, and what ends its thoughts then.
#[derive(Debug, Clone)]
pub struct ThoughtLimit {
    thoughts: Thoughts,
    most: usize,
    ending: Arc<[u32]>,
    vocabulary: usize,
}

impl ThoughtLimit {
    /// Thoughts of at most `most` tokens, at whose end the model says `message` and then what it ends thoughts with;
    /// `None` for a model that does not think.
    ///
    /// # Errors
    /// [`TokenizerError`] for a message that the vocabulary cannot express.
    pub fn new(
        format: OutputFormat,
        in_reasoning: bool,
        tokenizer: &Tokenizer,
        most: usize,
        message: &str,
    ) -> Result<Option<Self>, TokenizerError> {
        let thoughts = Thoughts::of(format, in_reasoning, tokenizer);
        let (Some(thoughts), Some(tags)) = (thoughts, format.reasoning) else {
            return Ok(None);
        };
        let mut ending = Rendered::default();
        ending.push_input(message);
        ending.text.push_str(tags.close);
        let ending = tokenizer.encode_rendered(&ending, false)?;
        Ok(Some(Self {
            thoughts,
            most,
            ending: ending.into(),
            vocabulary: tokenizer.vocab_size(),
        }))
    }

    /// The constraint of one answer, which another one may have besides.
    pub fn constraint(&self, other: Option<Box<dyn Constraint>>) -> Box<dyn Constraint> {
        let mut limited = Limited {
            limit: self.clone(),
            other,
            said: None,
        };
        limited.end_if_due();
        Box::new(limited)
    }
}

/// An answer whose thoughts have a limit.
struct Limited {
    /// How far the answer has come, and how many tokens of thoughts are left.
    limit: ThoughtLimit,
    other: Option<Box<dyn Constraint>>,
    /// How much was said of what ends the thoughts, while that is said.
    said: Option<usize>,
}

impl Limited {
    /// Begins to end the thoughts if they have had all of their tokens. A character is finished first.
    fn end_if_due(&mut self) {
        let limit = &self.limit;
        let thinks = limit.thoughts.go_on() && !limit.thoughts.detokenizer.is_within();
        if limit.most == 0 && thinks && !limit.ending.is_empty() {
            self.said = Some(0);
        }
    }

    /// The token that has to come.
    fn forced(&self) -> Option<u32> {
        self.limit.ending.get(self.said?).copied()
    }
}

impl Constraint for Limited {
    fn mask(&mut self) -> Result<Vec<u32>, String> {
        let words = self.limit.vocabulary.div_ceil(32);
        match (self.forced(), &mut self.other) {
            (Some(token), _) => {
                let mut mask = vec![0; words];
                if let Some(word) = mask.get_mut(token as usize / 32) {
                    *word = 1 << (token % 32);
                }
                Ok(mask)
            }
            (None, Some(other)) => other.mask(),
            (None, None) => Ok(vec![u32::MAX; words]),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if let Some(other) = &mut self.other {
            other.accept(token)?;
        }
        let begun = self.limit.thoughts.go_on();
        let _ = self.limit.thoughts.push(token);
        match &mut self.said {
            Some(said) => {
                *said += 1;
                if *said == self.limit.ending.len() {
                    self.said = None;
                }
            }
            None => {
                if begun {
                    self.limit.most = self.limit.most.saturating_sub(1);
                }
                self.end_if_due();
            }
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        self.said.is_none() && self.other.as_ref().is_none_or(|other| other.is_free())
    }

    fn allowed(&mut self, guesses: &[u32]) -> usize {
        if let Some(said) = self.said {
            let ending = &self.limit.ending[said..];
            return guesses
                .iter()
                .zip(ending)
                .take_while(|(a, b)| a == b)
                .count();
        }
        match &mut self.other {
            Some(other) => other.allowed(guesses),
            None => guesses.len(),
        }
    }
}
