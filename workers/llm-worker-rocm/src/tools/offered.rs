//! Calls that a model makes of itself, held to their schemas.
//!
//! Text is free. Where it comes to what begins a call, the grammar of calls takes over up to the answer's end.

use super::grammar::OfferedGrammars;
use super::parser::{OutputParser, Phase};
use crate::engine::api::Constraint;
use crate::grammar::{Compiled, Grammar, Grammars, Notation};
use crate::tokenizer::{Detokenizer, Tokenizer};
use std::sync::Arc;
use worker::Result;

/// Tokens that may belong to a mark; a mark takes far fewer.
const MAX_WAITING: usize = 256;

/// The constraint of an answer that may call tools.
pub struct OfferedCalls {
    parser: OutputParser,
    detokenizer: Detokenizer,
    tokenizer: Arc<Tokenizer>,
    /// For each mark that begins calls, as in [`OfferedGrammars`].
    marked: Vec<(&'static str, Compiled)>,
    begun: Option<Compiled>,
    /// Tokens whose text may be a mark.
    waiting: Vec<u32>,
    state: State,
}

enum State {
    /// Anything may come.
    Free,
    /// A mark may be coming, and this grammar says what may come if it does; anything that ends it may, too.
    Mark(Box<Grammar>),
    /// Calls, as the grammar says.
    Calls(Box<Grammar>),
    /// Anything may come up to the end: calls have begun in a way that is not understood.
    Lost,
}

impl OfferedCalls {
    /// The constraint of an answer that `parser` takes apart.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for a schema that cannot be followed.
    pub fn new(
        grammars: &Grammars,
        offered: &OfferedGrammars,
        parser: OutputParser,
        tokenizer: Arc<Tokenizer>,
        visible: &[&str],
    ) -> Result<Self> {
        let compile = |grammar: &String| grammars.compile(Notation::Lark, grammar);
        let marked = offered.marked.iter();
        Ok(Self {
            marked: marked
                .map(|(mark, text)| Ok((*mark, compile(text)?)))
                .collect::<Result<_>>()?,
            begun: offered.begun.as_ref().map(compile).transpose()?,
            parser: parser.strict(),
            detokenizer: tokenizer.detokenizer_showing(visible),
            tokenizer,
            waiting: Vec::new(),
            state: State::Free,
        })
    }

    /// The grammar as it stands after the tokens that wait.
    fn after_waiting(&self) -> Option<Box<Grammar>> {
        let begun = self.begun.as_ref().filter(|_| self.parser.is_silent());
        let mark = self.parser.opening();
        let marked = match mark {
            Some(mark) => self.marked.iter().find(|(known, _)| *known == mark),
            None => self.marked.first(),
        };
        let mut grammar = begun.or(marked.map(|(_, grammar)| grammar))?.grammar();
        let taken = self
            .waiting
            .iter()
            .try_for_each(|token| grammar.accept(*token));
        taken.is_ok().then(|| Box::new(grammar))
    }
}

impl Clone for OfferedCalls {
    fn clone(&self) -> Self {
        Self {
            parser: self.parser.clone(),
            detokenizer: self.detokenizer.clone(),
            tokenizer: self.tokenizer.clone(),
            marked: self.marked.clone(),
            begun: self.begun.clone(),
            waiting: self.waiting.clone(),
            state: match &self.state {
                State::Free => State::Free,
                State::Mark(grammar) => State::Mark(Box::new(grammar.fresh())),
                State::Calls(grammar) => State::Calls(Box::new(grammar.fresh())),
                State::Lost => State::Lost,
            },
        }
    }
}

impl std::fmt::Debug for OfferedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OfferedCalls")
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Constraint for OfferedCalls {
    fn mask(&mut self) -> std::result::Result<Vec<u32>, String> {
        let count = self.tokenizer.vocab_size();
        match &mut self.state {
            State::Free | State::Lost => Ok(vec![u32::MAX; count.div_ceil(32)]),
            State::Calls(grammar) => grammar.mask(),
            State::Mark(grammar) => {
                let mut mask = grammar.mask()?;
                // The grammar knows of no control tokens but its own, and of no end before a call.
                for token in 0..count as u32 {
                    let word = &mut mask[token as usize / 32];
                    if self.tokenizer.control_text(token).is_some() || self.tokenizer.is_end(token)
                    {
                        *word |= 1 << (token % 32);
                    }
                }
                Ok(mask)
            }
        }
    }

    fn accept(&mut self, token: u32) -> std::result::Result<(), String> {
        match &mut self.state {
            State::Calls(grammar) => return grammar.accept(token),
            State::Lost => return Ok(()),
            State::Free | State::Mark(_) => {}
        }
        self.waiting.push(token);
        let text = self.detokenizer.push(token);
        let _ = self.parser.push(&text);
        self.state = match self.parser.phase() {
            Phase::Text => {
                self.waiting.clear();
                State::Free
            }
            // Of a long text that may still become a call only its beginning would tell.
            Phase::Mark if self.waiting.len() > MAX_WAITING => State::Free,
            Phase::Mark => match self
                .parser
                .holds_mark()
                .then(|| self.after_waiting())
                .flatten()
            {
                Some(grammar) => State::Mark(grammar),
                None => State::Free,
            },
            Phase::Calls => match self.after_waiting() {
                Some(grammar) => State::Calls(grammar),
                None => State::Lost,
            },
        };
        Ok(())
    }

    fn is_free(&self) -> bool {
        matches!(self.state, State::Free | State::Lost)
    }

    fn allowed(&mut self, guesses: &[u32]) -> usize {
        match &mut self.state {
            State::Calls(grammar) => grammar.allowed(guesses),
            // What a mark becomes is seen when it is there.
            State::Free | State::Mark(_) | State::Lost => guesses.len(),
        }
    }
}
