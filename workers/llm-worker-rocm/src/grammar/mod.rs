//! Grammars that answers must follow: JSON schemas, Lark, regular expressions, GBNF.
//!
//! llguidance turns a grammar into a set of allowed tokens before every choice; here its tokenizer is built from our
//! vocabulary and its matcher becomes the engine's [`Constraint`].
//!
//! Clients bring grammars, and llguidance calls itself once for each rule, reference and group that lies within
//! another. So grammars are measured first ([`size`]), tried out in a process of their own ([`trial`]), and compiled on
//! a thread whose stack holds the largest that passes. A grammar is compiled once, however many answers follow it, and
//! those of late are kept.

mod gbnf;
mod kept;
mod lazy;
mod size;
pub mod trial;
mod triggers;

pub use lazy::LazyGrammar;
pub use triggers::Trigger;

use crate::engine::api::Constraint;
use crate::tokenizer::Tokenizer;
use kept::Kept;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value as Json};
use std::sync::{Arc, Mutex, PoisonError};
use worker::{Error, Result};

/// Stack of the thread that compiles, address space that is taken as far as it is used. Measured: the largest grammars
/// that [`size`] lets through take a third of it.
const STACK: usize = 256 << 20;

/// How a grammar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notation {
    /// A JSON schema.
    JsonSchema,
    /// llguidance's variant of Lark; the rule `start` is the whole answer.
    Lark,
    /// A regular expression that matches the whole answer.
    Regex,
    /// llama.cpp's GBNF; the rule `root` is the whole answer.
    Gbnf,
}

impl Notation {
    /// What a grammar in it is called.
    fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "JSON schema",
            Self::Lark | Self::Gbnf => "grammar",
            Self::Regex => "regular expression",
        }
    }
}

/// A grammar in GBNF as one in Lark, for a model whose control tokens have the numbers that `id` gives. Literals may be
/// made of the tokens `preserved`, too, which are given with theirs.
///
/// # Errors
/// [`Error::Usage`] for a syntax error, an undefined rule, or a token that is none.
pub fn gbnf_to_lark(
    text: &str,
    preserved: &[(&str, u32)],
    id: &dyn Fn(&str) -> Option<u32>,
) -> Result<String> {
    let refuse = |reason: String| Error::Usage(format!("the grammar cannot be used: {reason}"));
    size::check(Notation::Gbnf, text).map_err(refuse)?;
    gbnf::to_lark(text, gbnf::Tokens { preserved, id }).map_err(refuse)
}

/// A compiled grammar; any number of answers can follow it. Clones are the same.
#[derive(Clone)]
pub struct Compiled(Arc<Mutex<Matcher>>);

impl Compiled {
    /// The grammar at its beginning, for one answer.
    pub fn constraint(&self) -> Box<dyn Constraint> {
        Box::new(self.grammar())
    }

    /// The same, for a constraint that follows it in parts of an answer.
    pub(crate) fn grammar(&self) -> Grammar {
        let matcher = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // With caches of its own: those of one answer would count against the limits of the next.
        let matcher = matcher.deep_clone();
        Grammar { matcher }
    }
}

/// Compiles grammars for one vocabulary. Made once per model; cheap to clone.
#[derive(Clone)]
pub struct Grammars {
    factory: Arc<ParserFactory>,
    kept: Arc<Kept>,
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
        let factory = ParserFactory::new_simple(&environment)
            .map_err(|e| Error::Runtime(format!("the vocabulary does not suit grammars: {e}")))?;
        Ok(Self::over(factory))
    }

    /// Grammars over a vocabulary that is prepared.
    fn over(mut factory: ParserFactory) -> Self {
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Self {
            factory: Arc::new(factory),
            kept: Arc::default(),
        }
    }

    /// Any JSON that a schema describes.
    ///
    /// # Errors
    /// [`Error::Usage`] if the schema is malformed, too large, or asks for what is not supported.
    pub fn json_schema(&self, schema: &Json) -> Result<Box<dyn Constraint>> {
        let compiled = self.compile(Notation::JsonSchema, &schema.to_string())?;
        Ok(compiled.constraint())
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
    /// [`Error::Usage`] for a syntax error, an undefined rule, or one that is too large.
    pub fn lark(&self, grammar: &str) -> Result<Box<dyn Constraint>> {
        Ok(self.compile(Notation::Lark, grammar)?.constraint())
    }

    /// Text that a regular expression matches as a whole.
    ///
    /// # Errors
    /// [`Error::Usage`] for a syntax error, or one that is too large.
    pub fn regex(&self, pattern: &str) -> Result<Box<dyn Constraint>> {
        Ok(self.compile(Notation::Regex, pattern)?.constraint())
    }

    /// A grammar in llama.cpp's GBNF; the rule `root` is the whole answer.
    ///
    /// # Errors
    /// [`Error::Usage`] for a syntax error, an undefined rule, or one that is too large.
    pub fn gbnf(&self, grammar: &str) -> Result<Box<dyn Constraint>> {
        Ok(self.compile(Notation::Gbnf, grammar)?.constraint())
    }

    /// A grammar that was compiled lately.
    pub fn kept(&self, notation: Notation, text: &str) -> Option<Compiled> {
        self.kept.find(notation, text)
    }

    /// Compiles a grammar, or finds it among those of late. May take a second.
    ///
    /// # Errors
    /// [`Error::Usage`] for a syntax error, an undefined rule, one that is too large or asks for what is not supported;
    /// [`Error::Runtime`] if the system has no thread for it.
    pub fn compile(&self, notation: Notation, text: &str) -> Result<Compiled> {
        if let Some(compiled) = self.kept(notation, text) {
            return Ok(compiled);
        }
        let name = notation.name();
        let refuse = |reason: String| Error::Usage(format!("the {name} cannot be used: {reason}"));
        size::check(notation, text).map_err(refuse)?;
        let vocabulary = self.factory.tok_env().tok_trie().vocab_size();
        trial::try_out(notation, text, vocabulary).map_err(refuse)?;
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("grammar".to_string())
                .stack_size(STACK)
                .spawn_scoped(scope, || self.matcher(notation, text));
            let thread = thread
                .map_err(|e| Error::Runtime(format!("no thread to compile a {name} on: {e}")))?;
            let joined = thread.join();
            joined
                .unwrap_or_else(|_| Err("it makes the compiler fail".to_string()))
                .map_err(refuse)
        })?;
        let compiled = Compiled(Arc::new(Mutex::new(compiled)));
        self.kept.keep(notation, text, &compiled);
        Ok(compiled)
    }

    /// Compiles on this thread.
    fn matcher(&self, notation: Notation, text: &str) -> std::result::Result<Matcher, String> {
        let grammar = match notation {
            Notation::JsonSchema => TopLevelGrammar::from_json_schema(
                serde_json::from_str(text).map_err(|e| e.to_string())?,
            ),
            Notation::Lark => TopLevelGrammar::from_lark(text.to_string()),
            Notation::Regex => TopLevelGrammar::from_regex(text),
            Notation::Gbnf => {
                let tokens = gbnf::Tokens {
                    preserved: &[],
                    id: &|_| None,
                };
                let lark = gbnf::to_lark(text, tokens)?;
                size::check(Notation::Lark, &lark)?;
                TopLevelGrammar::from_lark(lark)
            }
        };
        let parser = self
            .factory
            .create_parser(grammar)
            .map_err(|e| e.to_string())?;
        let matcher = Matcher::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(error),
            None => Ok(matcher),
        }
    }
}

/// A grammar and how far an answer has come in it.
pub(crate) struct Grammar {
    matcher: Matcher,
}

impl Grammar {
    /// Goes on with text that is no token by itself.
    pub(crate) fn accept_text(&mut self, text: &[u8]) -> std::result::Result<(), String> {
        let environment = self.matcher.tok_env().map_err(|e| e.to_string())?;
        let tokens = environment.tok_trie().greedy_tokenize(text);
        tokens.into_iter().try_for_each(|token| self.accept(token))
    }

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

    fn allowed(&mut self, guesses: &[u32]) -> usize {
        // One that knows the grammar wrongly costs time only.
        self.matcher.validate_tokens(guesses).unwrap_or(0)
    }
}
