//! Grammars that begin in the midst of an answer.

use super::triggers::{Place, Trigger, Triggers};
use super::{Compiled, Grammar};
use crate::engine::api::Constraint;
use crate::tokenizer::Tokenizer;
use crate::tools::Thoughts;
use std::sync::Arc;
use worker::Result;

/// A grammar that an answer follows from where it comes to a trigger on; before that it is free. Clones begin anew.
#[derive(Clone)]
pub struct LazyGrammar {
    compiled: Compiled,
    triggers: Arc<Triggers>,
    tokenizer: Arc<Tokenizer>,
    /// Tells where the model thinks, where triggers are none.
    thoughts: Option<Thoughts>,
}

impl LazyGrammar {
    /// A grammar and what begins it. In what `thoughts` tells to be the model's thinking, nothing does.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for triggers that cannot be used.
    pub fn new(
        compiled: Compiled,
        triggers: &[Trigger],
        tokenizer: Arc<Tokenizer>,
        thoughts: Option<Thoughts>,
    ) -> Result<Self> {
        Ok(Self {
            compiled,
            triggers: Arc::new(Triggers::new(triggers)?),
            tokenizer,
            thoughts,
        })
    }

    /// The constraint of one answer, at its beginning.
    pub fn constraint(&self) -> Box<dyn Constraint> {
        Box::new(Following {
            common: self.clone(),
            thoughts: self.thoughts.clone(),
            state: State::Free(Watched::new(&self.triggers)),
        })
    }
}

/// An answer, and how far it has come.
struct Following {
    common: LazyGrammar,
    thoughts: Option<Thoughts>,
    state: State,
}

enum State {
    /// No trigger was met yet.
    Free(Watched),
    /// The grammar says what comes.
    Bound(Box<Grammar>),
}

/// The answer up to the trigger.
struct Watched {
    place: Place,
    text: Vec<u8>,
    /// Its tokens, each with the byte where its text ends.
    tokens: Vec<(u32, usize)>,
}

impl Watched {
    fn new(triggers: &Triggers) -> Self {
        Self {
            place: triggers.start(),
            text: Vec::new(),
            tokens: Vec::new(),
        }
    }
}

impl Following {
    /// The grammar behind what of the answer belongs to it: what lies from `start` on.
    fn begin(&self, watched: &Watched, start: usize) -> std::result::Result<Grammar, String> {
        let mut grammar = self.common.compiled.grammar();
        let mut before = 0;
        for (token, end) in &watched.tokens {
            let (from, to) = (before.max(start), *end);
            let whole = before >= start;
            before = *end;
            if to <= from {
                continue;
            }
            let text = &watched.text[from..to];
            let taken = match whole && grammar.allowed(&[*token]) == 1 {
                true => grammar.accept(*token),
                // A part of a token, or a control token that the grammar has as text.
                false => grammar.accept_text(text),
            };
            taken.map_err(|reason| {
                let text = String::from_utf8_lossy(&watched.text[start..]);
                format!("the answer has come to a trigger of the grammar, which does not begin with {text:?}: {reason}")
            })?;
        }
        Ok(grammar)
    }
}

impl Constraint for Following {
    fn mask(&mut self) -> std::result::Result<Vec<u32>, String> {
        match &mut self.state {
            State::Free(_) => {
                let words = self.common.tokenizer.vocab_size().div_ceil(32);
                Ok(vec![u32::MAX; words])
            }
            State::Bound(grammar) => grammar.mask(),
        }
    }

    fn accept(&mut self, token: u32) -> std::result::Result<(), String> {
        let triggers = self.common.triggers.clone();
        let tokenizer = self.common.tokenizer.clone();
        let watched = match &mut self.state {
            State::Bound(grammar) => return grammar.accept(token),
            // What ends the answer is none of its text.
            State::Free(_) if tokenizer.is_end(token) && !triggers.is_token(token) => return Ok(()),
            State::Free(watched) => watched,
        };
        if self.thoughts.as_mut().is_some_and(|t| t.push(token)) {
            *watched = Watched::new(&triggers);
            return Ok(());
        }
        let text = match tokenizer.control_text(token) {
            Some(text) => text.as_bytes(),
            None => tokenizer.token_bytes(token),
        };
        let before = watched.text.len();
        watched.text.extend_from_slice(text);
        watched.tokens.push((token, watched.text.len()));
        let start = match triggers.is_token(token) {
            true => Some(before),
            false => triggers
                .advance(&mut watched.place, text)
                .then(|| triggers.find(&watched.text))
                .flatten(),
        };
        if let Some(start) = start {
            let watched = std::mem::replace(watched, Watched::new(&triggers));
            self.state = State::Bound(Box::new(self.begin(&watched, start)?));
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        matches!(self.state, State::Free(_))
    }

    fn allowed(&mut self, guesses: &[u32]) -> usize {
        match &mut self.state {
            State::Free(_) => guesses.len(),
            State::Bound(grammar) => grammar.allowed(guesses),
        }
    }
}
