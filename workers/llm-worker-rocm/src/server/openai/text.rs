//! `POST /v1/completions`

use super::logprobs;
use super::reply::{Reply, Shape};
use super::wire::Wire;
use crate::completion::{PromptProgress, TextToken, Took};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::blocking;
use crate::server::generation::{
    check_length, check_top_logprobs, Answer, End, PlainText, Prompt, SamplingFields, Writer,
};
use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::sse::Frame;
use worker::http::{ApiError, Both, Caller, JsonBody};

/// Most texts of any list; each route takes fewer, and says how many.
const MAX_TEXTS: usize = 4096;
/// Most prompts of a request.
const MAX_PROMPTS: usize = 256;

/// A text or its tokens, one or several.
///
/// Read element by element: a list of a million tokens takes their 4 million bytes.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum Inputs {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One text's tokens.
    Tokens(Vec<u32>),
    /// Several texts' tokens.
    TokenLists(Vec<Vec<u32>>),
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = Inputs;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, a list of texts, a list of tokens, or a list of lists of tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Inputs, E> {
        Ok(Inputs::Text(text.to_string()))
    }

    fn visit_string<E>(self, text: String) -> Result<Inputs, E> {
        Ok(Inputs::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Inputs, A::Error> {
        Ok(match seq.next_element()? {
            None => Inputs::Texts(Vec::new()),
            Some(Element::Text(first)) => Inputs::Texts(rest(first, seq, MAX_TEXTS)?),
            Some(Element::Token(first)) => Inputs::Tokens(rest(first, seq, usize::MAX)?),
            Some(Element::Tokens(first)) => Inputs::TokenLists(rest(first, seq, MAX_TEXTS)?),
        })
    }
}

/// A list's elements, which are of the first one's kind; at most so many.
fn rest<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    first: T,
    mut seq: A,
    most: usize,
) -> Result<Vec<T>, A::Error> {
    let mut all = vec![first];
    while let Some(next) = seq.next_element()? {
        if all.len() >= most {
            return Err(A::Error::custom(format!(
                "a list of more than {most} texts"
            )));
        }
        all.push(next);
    }
    Ok(all)
}

/// The first element of a list, which tells what the list is.
enum Element {
    Text(String),
    Token(u32),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, a token, or a list of tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_string()))
    }

    fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Element, E> {
        let token = u32::try_from(token);
        token
            .map(Element::Token)
            .map_err(|_| E::custom("it is not a token's number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
        let tokens = Vec::deserialize(SeqAccessDeserializer::new(seq))?;
        Ok(Element::Tokens(tokens))
    }
}

/// The fields of a completion, besides those of [`SamplingFields`].
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct CompletionFields {
    /// What to go on from.
    pub prompt: Inputs,
    /// How many alternatives each token is reported with; absent reports no probabilities.
    pub logprobs: Option<usize>,
    /// Whether answers begin with their prompt.
    pub echo: Option<bool>,
    /// Not supported: text after the answer.
    pub suffix: Option<String>,
    /// Not supported other than equal to `n`: answers to choose from.
    pub best_of: Option<usize>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, CompletionFields>>,
) -> Result<Response, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let of_prompts = model.clone();
    let prepare = move || Ok((fields.prompts(&of_prompts, &sampling)?, sampling));
    let (prompts, sampling) = blocking(prepare).await?;
    let reply = Reply::submit(&app, model, sampling, prompts, caller);
    reply.await?.respond().await
}

impl CompletionFields {
    /// The prompts, and what stands before the answers to them.
    fn prompts(
        self,
        model: &TextModel,
        sampling: &SamplingFields,
    ) -> Result<Vec<(Prompt, PlainText)>, ApiError> {
        self.check(sampling)?;
        let top_logprobs = self
            .logprobs
            .map(|top| check_top_logprobs("logprobs", top))
            .transpose()?;
        let echo = self.echo.unwrap_or(false);
        let with_echo = |tokens: Vec<u32>| {
            let echo = match echo {
                true => model.tokenizer.decode(&tokens),
                false => String::new(),
            };
            let prompt = Prompt {
                top_logprobs,
                ..Prompt::plain(tokens, sampling)?
            };
            Ok((prompt, PlainText { echo }))
        };
        self.tokens(model)?.into_iter().map(with_echo).collect()
    }

    /// The prompts as tokens.
    fn tokens(self, model: &TextModel) -> Result<Vec<Vec<u32>>, ApiError> {
        let encode = |text: String| {
            check_length(model, &text)?;
            model
                .tokenizer
                .encode(&text, true)
                .map_err(|e| ApiError::field("prompt", e.to_string()))
        };
        let prompts = match self.prompt {
            Inputs::Text(text) => vec![encode(text)?],
            Inputs::Texts(texts) => texts.into_iter().map(encode).collect::<Result<_, _>>()?,
            Inputs::Tokens(tokens) => vec![tokens],
            Inputs::TokenLists(lists) => lists,
        };
        if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
            let reason = format!(
                "prompt: {} prompts; 1 to {MAX_PROMPTS} are possible",
                prompts.len()
            );
            return Err(ApiError::field("prompt", reason));
        }
        Ok(prompts)
    }

    /// Refuses what is not supported rather than answering something else.
    fn check(&self, sampling: &SamplingFields) -> Result<(), ApiError> {
        let refuse =
            |field: &str, reason: &str| Err(ApiError::field(field, format!("{field}: {reason}")));
        if self
            .suffix
            .as_ref()
            .is_some_and(|suffix| !suffix.is_empty())
        {
            return refuse("suffix", "text after the answer is not supported");
        }
        if self
            .best_of
            .is_some_and(|best_of| Some(best_of) != sampling.n.or(Some(1)))
        {
            return refuse(
                "best_of",
                "choosing among more answers than n is not supported",
            );
        }
        if self.echo == Some(true) && self.logprobs.is_some() {
            return refuse("echo", "probabilities of the prompt are not supported");
        }
        Ok(())
    }
}

impl Shape for PlainText {
    const ID_PREFIX: &'static str = "cmpl";
    const OBJECT: &'static str = "text_completion";
    const CHUNK_OBJECT: &'static str = "text_completion";

    fn choice(wire: &Wire, index: usize, answer: &Answer<Self>) -> Value {
        let text = ("text", json!(answer.whole));
        let logprobs = logprobs::of_text(&wire.model, &answer.tokens, 0);
        wire.choice(index, text, logprobs, &answer.tokens, Some(&answer.end))
    }

    fn writer(wire: &Wire, index: usize) -> impl Writer<Self> {
        ChunkWriter {
            wire,
            index,
            offset: 0,
            took: None,
        }
    }
}

/// Writes the chunks of an answer.
struct ChunkWriter<'a> {
    wire: &'a Wire,
    index: usize,
    /// Characters that were written.
    offset: usize,
    /// What the answer took so far, if that is to be told.
    took: Option<Took>,
}

impl ChunkWriter<'_> {
    fn chunk(&mut self, text: &str, tokens: &[TextToken], end: Option<&End>) -> Vec<Frame> {
        let logprobs = logprobs::of_text(&self.wire.model, tokens, self.offset);
        self.offset += text.chars().count();
        let choice = (self.wire).choice(self.index, ("text", json!(text)), logprobs, tokens, end);
        vec![match end {
            Some(end) => self.wire.last(self.index, choice, end),
            None => self.wire.part(choice, self.took.as_ref()),
        }]
    }
}

impl Writer<PlainText> for ChunkWriter<'_> {
    fn progress(&mut self, progress: &PromptProgress) -> Vec<Frame> {
        let text = ("text", json!(""));
        let choice = (self.wire).choice(self.index, text, Value::Null, &[], None);
        vec![self.wire.progress(choice, progress)]
    }

    fn took(&mut self, took: &Took) {
        self.took = Some(*took);
    }

    fn part(&mut self, part: String, tokens: &[TextToken]) -> Vec<Frame> {
        self.chunk(&part, tokens, None)
    }

    fn end(&mut self, end: &End, tokens: &[TextToken]) -> Vec<Frame> {
        self.chunk("", tokens, Some(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_prompt_may_be() {
        let read = |text: &str| worker::http::json::parse::<Inputs>(text.as_bytes());
        assert!(matches!(read("\"a\\n\"").unwrap(), Inputs::Text(text) if text == "a\n"));
        assert!(matches!(read("[]").unwrap(), Inputs::Texts(texts) if texts.is_empty()));
        assert!(
            matches!(read("[\"a\", \"b\"]").unwrap(), Inputs::Texts(texts) if texts == ["a", "b"])
        );
        assert!(matches!(read("[1, 2]").unwrap(), Inputs::Tokens(tokens) if tokens == [1, 2]));
        assert!(
            matches!(read("[[], [3]]").unwrap(), Inputs::TokenLists(lists) if lists == [vec![], vec![3]])
        );
        for bad in [
            "1",
            "null",
            "{}",
            "[1, \"a\"]",
            "[\"a\", 1]",
            "[[1], 2]",
            "[-1]",
            "[5000000000]",
            "[1.5]",
            "[[\"a\"]]",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
