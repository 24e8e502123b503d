//! Grammars that answers must follow: JSON schemas, Lark, regular expressions, GBNF.
//!
//! llguidance turns a grammar into a set of allowed tokens before every choice; here its tokenizer is built from our
//! vocabulary and its matcher becomes the engine's [`Constraint`].

mod gbnf;

use crate::engine::api::Constraint;
use crate::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value as Json};
use std::sync::Arc;
use worker::{Error, Result};

/// Longest grammar that is compiled.
const MAX_GRAMMAR_BYTES: usize = 1 << 20;

/// Compiles grammars for one vocabulary. Made once per model; cheap to clone.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
}

impl Grammars {
    /// Prepares the vocabulary: a second or less for the largest in use.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the vocabulary has no token that ends an answer.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let ends = tokenizer.end_ids();
        let first = *ends.first().ok_or_else(|| {
            Error::Runtime(
                "the tokenizer has no token that ends an answer, so grammars cannot be used"
                    .to_string(),
            )
        })?;
        let count = u32::try_from(tokenizer.vocab_size())
            .map_err(|_| Error::Runtime("the vocabulary is too large".to_string()))?;
        // A control token is not text: it can be allowed by name only.
        let words: Vec<Vec<u8>> = (0..count)
            .map(|token| match tokenizer.control_text(token) {
                Some(text) => [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat(),
                None => tokenizer.token_bytes(token).to_vec(),
            })
            .collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|e| Error::Runtime(format!("the vocabulary does not suit grammars: {e}")))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Self {
            factory: Arc::new(factory),
        })
    }

    /// Any JSON that a schema describes.
    ///
    /// # Errors
    /// [`Error::Usage`] if the schema is malformed or asks for what is not supported.
    pub fn json_schema(&self, schema: &Json) -> Result<Box<dyn Constraint>> {
        self.compile(
            "JSON schema",
            TopLevelGrammar::from_json_schema(schema.clone()),
        )
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn json_object(&self) -> Result<Box<dyn Constraint>> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// A grammar in llguidance's variant of Lark; the rule `start` is the whole answer.
    ///
    /// # Errors
    /// [`Error::Usage`] for a syntax error or an undefined rule.
    pub fn lark(&self, grammar: &str) -> Result<Box<dyn Constraint>> {
        short_enough(grammar)?;
        self.compile("grammar", TopLevelGrammar::from_lark(grammar.to_string()))
    }

    /// The same, to be copied for several answers.
    pub(crate) fn lark_grammar(&self, grammar: &str) -> Result<Grammar> {
        short_enough(grammar)?;
        self.compile_grammar("grammar", TopLevelGrammar::from_lark(grammar.to_string()))
    }

    /// Text that a regular expression matches as a whole.
    ///
    /// # Errors
    /// [`Error::Usage`] for a syntax error.
    pub fn regex(&self, pattern: &str) -> Result<Box<dyn Constraint>> {
        short_enough(pattern)?;
        self.compile("regular expression", TopLevelGrammar::from_regex(pattern))
    }

    /// A grammar in llama.cpp's GBNF; the rule `root` is the whole answer.
    ///
    /// # Errors
    /// [`Error::Usage`] for a syntax error or an undefined rule.
    pub fn gbnf(&self, grammar: &str) -> Result<Box<dyn Constraint>> {
        short_enough(grammar)?;
        let lark = gbnf::to_lark(grammar).map_err(|e| Error::Usage(format!("grammar: {e}")))?;
        self.compile("grammar", TopLevelGrammar::from_lark(lark))
    }

    fn compile(&self, what: &str, grammar: TopLevelGrammar) -> Result<Box<dyn Constraint>> {
        Ok(Box::new(self.compile_grammar(what, grammar)?))
    }

    fn compile_grammar(&self, what: &str, grammar: TopLevelGrammar) -> Result<Grammar> {
        let unusable = |e: String| Error::Usage(format!("the {what} cannot be used: {e}"));
        let parser = self
            .factory
            .create_parser(grammar)
            .map_err(|e| unusable(e.to_string()))?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(unusable(error)),
            None => Ok(Grammar { matcher }),
        }
    }
}

fn short_enough(grammar: &str) -> Result<()> {
    if grammar.len() > MAX_GRAMMAR_BYTES {
        return Err(Error::Usage(format!(
            "the grammar is longer than {MAX_GRAMMAR_BYTES} bytes"
        )));
    }
    Ok(())
}

/// A grammar and how far an answer has come in it.
pub(crate) struct Grammar {
    matcher: Matcher,
}

impl Grammar {
    /// A copy that goes its own way.
    pub(crate) fn fresh(&self) -> Self {
        Self {
            matcher: self.matcher.deep_clone(),
        }
    }
}

impl Constraint for Grammar {
    fn mask(&mut self) -> std::result::Result<Vec<u32>, String> {
        self.matcher
            .compute_mask_or_eos()
            .map(|mask| mask.as_slice().to_vec())
            .map_err(|e| format!("the grammar allows nothing more: {e}"))
    }

    fn accept(&mut self, token: u32) -> std::result::Result<(), String> {
        if self.matcher.is_stopped() {
            // The answer is complete; only its end can come.
            return Ok(());
        }
        self.matcher
            .consume_token(token)
            .map_err(|e| format!("the grammar does not allow token {token}: {e}"))
    }
}
