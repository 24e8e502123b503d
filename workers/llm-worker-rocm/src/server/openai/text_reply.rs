//! Answers to plain completions: the text, and the probabilities of its tokens and of the prompt's.

use super::logprobs::{self, Places, TextLogprobs};
use super::reply::Shape;
use super::wire::Wire;
use crate::completion::{PromptProgress, TextToken, Took};
use crate::engine::api::PromptToken;
use crate::server::generation::{Answer, End, Parse, Writer};
use crate::tokenizer::Tokenizer;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::sse::Frame;

/// What is told of the tokens behind a text.
#[derive(Debug, Default)]
pub struct Told {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Whether the prompt is part of the text.
    pub echo: bool,
    /// How many of the most likely tokens are told with each token of the text; `None` tells no probabilities.
    pub logprobs: Option<usize>,
    /// The same of each token of the prompt, in a list of its own.
    pub prompt_logprobs: Option<usize>,
}

impl Told {
    /// How many of the most likely tokens are told with each token of a prompt that is part of the text.
    fn echoed_logprobs(&self) -> Option<usize> {
        self.logprobs.filter(|_| self.echo)
    }
}

/// Takes an answer as it is, behind its prompt if that is wanted.
#[derive(Debug, Clone)]
pub struct Continuation {
    told: Arc<Told>,
    echo: String,
}

impl Continuation {
    /// For the answers to a prompt.
    pub fn new(tokenizer: &Tokenizer, told: Told) -> Self {
        let echo = match told.echo {
            true => tokenizer.decode(&told.prompt),
            false => String::new(),
        };
        Self {
            told: Arc::new(told),
            echo,
        }
    }
}

/// A part of a text.
pub enum TextPart {
    /// What is told of its tokens; the first part.
    Told(Arc<Told>),
    /// The prompt.
    Echo(String),
    /// More of the answer.
    Text(String),
}

/// A text.
#[derive(Default)]
pub struct WholeText {
    told: Arc<Told>,
    text: String,
}

impl Extend<TextPart> for WholeText {
    fn extend<T: IntoIterator<Item = TextPart>>(&mut self, parts: T) {
        for part in parts {
            match part {
                TextPart::Told(told) => self.told = told,
                TextPart::Echo(text) | TextPart::Text(text) => self.text += &text,
            }
        }
    }
}

impl Parse for Continuation {
    type Part = TextPart;
    type Whole = WholeText;

    fn start(&mut self) -> Vec<TextPart> {
        let mut parts = vec![TextPart::Told(self.told.clone())];
        if self.told.echo {
            parts.push(TextPart::Echo(std::mem::take(&mut self.echo)));
        }
        parts
    }

    /// A part even of an empty text: it may have tokens.
    fn push(&mut self, text: String) -> Vec<TextPart> {
        vec![TextPart::Text(text)]
    }
}

impl Shape for Continuation {
    const ID_PREFIX: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";

    fn choice(wire: &Wire, index: usize, answer: &Answer<Self>) -> Value {
        let tokenizer = &wire.model.tokenizer;
        let WholeText { told, text } = &answer.whole;
        let mut list = List::new(tokenizer, told.clone());
        let mut all = list.first(tokenizer);
        list.add_prompt(tokenizer, &answer.prompt, &mut all);
        list.add_answer(tokenizer, &answer.tokens, &mut all);
        let (text, end) = (("text", json!(text)), Some(&answer.end));
        let mut choice = wire.choice(index, text, all.into_json(), &answer.tokens, end);
        if let Some(top) = told.prompt_logprobs {
            choice["prompt_logprobs"] = logprobs::of_prompt(tokenizer, &answer.prompt, top);
        }
        choice
    }

    fn writer(wire: &Wire, index: usize) -> impl Writer<Self> {
        let list = List::new(&wire.model.tokenizer, Arc::default());
        ChunkWriter {
            wire,
            index,
            list,
            took: None,
        }
    }
}

/// Probabilities of a text's tokens, as the tokens come.
struct List {
    told: Arc<Told>,
    places: Places,
    /// Whether the next token is the answer's first.
    in_prompt: bool,
}

impl List {
    fn new(tokenizer: &Tokenizer, told: Arc<Told>) -> Self {
        Self {
            told,
            places: Places::new(tokenizer),
            in_prompt: true,
        }
    }

    /// The beginning: the prompt's first token, if the prompt is told.
    fn first(&mut self, tokenizer: &Tokenizer) -> TextLogprobs {
        let mut list = TextLogprobs::default();
        if let (Some(_), Some(first)) = (self.told.echoed_logprobs(), self.told.prompt.first()) {
            list.push_first(tokenizer, &mut self.places, *first);
        }
        list
    }

    /// Adds further tokens of the prompt.
    fn add_prompt(
        &mut self,
        tokenizer: &Tokenizer,
        tokens: &[PromptToken],
        list: &mut TextLogprobs,
    ) {
        let Some(top) = self.told.echoed_logprobs() else {
            return;
        };
        for token in tokens {
            let of_top = &token.top[..token.top.len().min(top)];
            let own = (token.token, token.logprob);
            list.push(tokenizer, &mut self.places, own, of_top);
        }
    }

    /// Adds further tokens of the answer.
    fn add_answer(&mut self, tokenizer: &Tokenizer, tokens: &[TextToken], list: &mut TextLogprobs) {
        if std::mem::take(&mut self.in_prompt) {
            self.places.end_part();
        }
        if let Some(top) = self.told.logprobs {
            list.push_answer(tokenizer, &mut self.places, tokens, top);
        }
    }
}

/// Writes the chunks of an answer.
struct ChunkWriter<'a> {
    wire: &'a Wire,
    index: usize,
    list: List,
    /// What the answer took so far, if that is to be told.
    took: Option<Took>,
}

impl ChunkWriter<'_> {
    fn chunk(
        &mut self,
        text: &str,
        logprobs: TextLogprobs,
        tokens: &[TextToken],
        end: Option<&End>,
    ) -> Vec<Frame> {
        let text = ("text", json!(text));
        let choice = (self.wire).choice(self.index, text, logprobs.into_json(), tokens, end);
        vec![match end {
            Some(end) => self.wire.last(self.index, choice, end),
            None => self.wire.part(choice, self.took.as_ref()),
        }]
    }

    fn answer(&mut self, text: &str, tokens: &[TextToken], end: Option<&End>) -> Vec<Frame> {
        let mut list = TextLogprobs::default();
        let tokenizer = &self.wire.model.tokenizer;
        self.list.add_answer(tokenizer, tokens, &mut list);
        self.chunk(text, list, tokens, end)
    }
}

impl Writer<Continuation> for ChunkWriter<'_> {
    fn progress(&mut self, progress: &PromptProgress) -> Vec<Frame> {
        let text = ("text", json!(""));
        let choice = (self.wire).choice(self.index, text, Value::Null, &[], None);
        vec![self.wire.progress(choice, progress)]
    }

    fn took(&mut self, took: &Took) {
        self.took = Some(*took);
    }

    fn prompt(&mut self, tokens: Vec<PromptToken>) -> Vec<Frame> {
        let mut list = TextLogprobs::default();
        let tokenizer = &self.wire.model.tokenizer;
        self.list.add_prompt(tokenizer, &tokens, &mut list);
        self.chunk("", list, &[], None)
    }

    fn part(&mut self, part: TextPart, tokens: &[TextToken]) -> Vec<Frame> {
        match part {
            TextPart::Told(told) => {
                self.list.told = told;
                Vec::new()
            }
            TextPart::Echo(text) => {
                let first = self.list.first(&self.wire.model.tokenizer);
                self.chunk(&text, first, &[], None)
            }
            TextPart::Text(text) => self.answer(&text, tokens, None),
        }
    }

    fn end(&mut self, end: &End, tokens: &[TextToken]) -> Vec<Frame> {
        self.answer("", tokens, Some(end))
    }
}
