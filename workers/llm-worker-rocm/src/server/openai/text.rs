//! `POST /v1/completions`

use super::reply::Reply;
use super::text_reply::{Continuation, Told};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::blocking;
use crate::server::generation::{
    check_length, check_top_logprobs, prompt_logprobs, Infill, Prompt, SamplingFields, MAX_CHOICES,
};
use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::sync::Arc;
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
    /// Whether answers begin with their prompt, whose tokens then are among those of `logprobs`.
    pub echo: Option<bool>,
    /// How many alternatives each token of the prompt is reported with, in `prompt_logprobs`; absent reports nothing of
    /// the prompt. Not for streams.
    pub prompt_logprobs: Option<i64>,
    /// Text behind the answer, which fills in what is between; for models that were trained for it.
    pub suffix: Option<String>,
    /// Answers to choose the `n` most likely ones from, by the mean logarithm of their tokens' probabilities.
    pub best_of: Option<usize>,
    /// Whether the model's beginning-of-sequence token is put before a text, where it has one; absent is so.
    pub add_special_tokens: Option<bool>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, CompletionFields>>,
) -> Result<Response, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let best = fields.best_of(&sampling)?;
    let sampling = SamplingFields {
        n: best.map_or(sampling.n, |(best_of, _)| Some(best_of)),
        ..sampling
    };
    let of_prompts = model.clone();
    let prepare = move || Ok((fields.prompts(&of_prompts, &sampling)?, sampling));
    let (prompts, sampling) = blocking(prepare).await?;
    let reply = Reply::submit(&app, model, sampling, prompts, caller);
    let reply = reply.await?.choosing(best.map(|(_, n)| n));
    reply.respond().await
}

impl CompletionFields {
    /// The prompts, and what stands before the answers to them.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn prompts(
        self,
        model: &TextModel,
        sampling: &SamplingFields,
    ) -> Result<Vec<(Prompt, Continuation)>, ApiError> {
        let check = |top| check_top_logprobs("logprobs", top);
        let logprobs = self.logprobs.map(check).transpose()?;
        let echo = self.echo.unwrap_or(false);
        let prompt_logprobs = prompt_logprobs(self.prompt_logprobs, sampling)?;
        // What the engine reports is for both forms.
        let of_prompt = prompt_logprobs.max(logprobs.filter(|_| echo));
        let top_logprobs = match self.best_of {
            Some(_) => logprobs.or(Some(0)),
            None => logprobs,
        };
        let prepare = |tokens: Vec<u32>| {
            let prompt = Prompt {
                top_logprobs,
                prompt_logprobs: of_prompt,
                may_only_read: echo || prompt_logprobs.is_some(),
                ..Prompt::plain(tokens, sampling)?
            };
            let told = Told {
                prompt: prompt.tokens.clone(),
                echo,
                logprobs,
                prompt_logprobs,
            };
            Ok((prompt, Continuation::new(&model.tokenizer, told)))
        };
        self.tokens(model)?.into_iter().map(prepare).collect()
    }

    /// The prompts as tokens.
    fn tokens(self, model: &TextModel) -> Result<Vec<Vec<u32>>, ApiError> {
        if let Some(suffix) = self.suffix.as_ref().filter(|text| !text.is_empty()) {
            return self.filled_in(model, suffix);
        }
        let add_bos = self.add_special_tokens.unwrap_or(true);
        let encode = |text: String| {
            check_length(model, &text)?;
            model
                .tokenizer
                .encode(&text, add_bos)
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

    /// The prompt by which what is between a prompt and a suffix is filled in.
    fn filled_in(&self, model: &TextModel, suffix: &str) -> Result<Vec<Vec<u32>>, ApiError> {
        if self.echo == Some(true) {
            let reason = "suffix and echo exclude each other";
            return Err(ApiError::field("suffix", reason));
        }
        let marks = Infill::tokens_of(model, "suffix")?;
        let prefix = match &self.prompt {
            Inputs::Text(text) => Infill::text(model, "prompt", text)?,
            Inputs::Tokens(tokens) => tokens.clone(),
            Inputs::Texts(texts) if texts.len() == 1 => Infill::text(model, "prompt", &texts[0])?,
            Inputs::TokenLists(lists) if lists.len() == 1 => lists[0].clone(),
            Inputs::Texts(_) | Inputs::TokenLists(_) => {
                let reason = "suffix: it is put behind one prompt only";
                return Err(ApiError::field("suffix", reason));
            }
        };
        let infill = Infill {
            prefix,
            suffix: Infill::text(model, "suffix", suffix)?,
            ..Infill::default()
        };
        Ok(vec![infill.prompt(model, &marks)])
    }

    /// How many answers are generated, and how many of them are given, if these are not all.
    fn best_of(&self, sampling: &SamplingFields) -> Result<Option<(usize, usize)>, ApiError> {
        let Some(best_of) = self.best_of else {
            return Ok(None);
        };
        let refuse = |reason: String| Err(ApiError::field("best_of", reason));
        let n = sampling.choices()?;
        if best_of < n || best_of > MAX_CHOICES {
            return refuse(format!(
                "best_of {best_of} is not from n, which is {n}, to {MAX_CHOICES}"
            ));
        }
        if best_of > n && sampling.stream() {
            return refuse("best_of: a stream cannot tell which answers will be the best".into());
        }
        Ok((best_of > n).then_some((best_of, n)))
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
