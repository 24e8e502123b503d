//! `POST /v1/chat/completions`

use super::constraint::Form;
use super::sampling::{check_top_logprobs, SamplingFields};
use super::wire::{self, Chunks, Head};
use crate::chat::RenderOptions;
use crate::completion::{Finish, Output, TextOptions, TextToken, Usage};
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::error::{blocking, from_failure, from_worker};
use crate::server::generation::{Generation, Prepared};
use crate::server::Shared;
use crate::tools::{Delta, OutputParser, ParserOptions, ToolChoice};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::Json;
use futures_util::future::try_join_all;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use worker::http::json::from_value;
use worker::http::sse::{self, Frames};
use worker::http::{ApiError, JsonBody};

/// The fields of a chat, besides those of [`SamplingFields`].
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ChatFields {
    /// The chat so far.
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or the function to call.
    pub tool_choice: Option<Value>,
    /// Whether one answer may have several calls.
    pub parallel_tool_calls: Option<bool>,
    /// Whether tokens are reported with their probabilities.
    pub logprobs: Option<bool>,
    /// How many alternatives each token is reported with.
    pub top_logprobs: Option<usize>,
    /// Whether a model that can do both thinks before it answers.
    pub enable_thinking: Option<bool>,
    /// `none` leaves the model's thinking in the content; anything else tells it apart as `reasoning_content`.
    pub reasoning_format: Option<String>,
    /// Further variables for the chat template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the assistant is to speak after the last message.
    pub add_generation_prompt: Option<bool>,
}

impl ChatFields {
    /// The prompt as text; `tools` are those that the model is told.
    ///
    /// # Errors
    /// 400 if the template refuses the messages.
    pub fn render(&self, model: &TextModel, tools: &[Value]) -> Result<String, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "messages: there are none"));
        }
        let mut extra = self.chat_template_kwargs.clone().unwrap_or_default();
        let told = extra.remove("enable_thinking").and_then(|v| v.as_bool());
        let options = RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            enable_thinking: self.enable_thinking.or(told),
            extra,
        };
        model
            .template
            .render(&self.messages, Some(tools), &options)
            .map_err(|e| ApiError {
                param: Some("messages".to_string()),
                ..from_worker(&e)
            })
    }
}

/// A chat's answers in the making.
struct Chat {
    model: Arc<TextModel>,
    head: Head,
    seed: u64,
    include_usage: bool,
    return_tokens: bool,
    choices: Vec<Choice>,
}

/// One answer in the making.
struct Choice {
    index: usize,
    generation: Generation,
    parser: OutputParser,
    /// Calls that the answer may have.
    most_calls: usize,
}

/// An answer.
#[derive(Default)]
struct Answer {
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    tokens: Vec<TextToken>,
    finish: Option<Finish>,
}

struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// What came out of a choice: pieces of the answer with the tokens behind them, or its end.
enum Step {
    Deltas(Vec<Delta>, Vec<TextToken>),
    End(Vec<Delta>, Finish),
}

pub async fn create(
    State(app): Shared,
    JsonBody(body): JsonBody<Value>,
) -> Result<Response, ApiError> {
    let sampling: SamplingFields = from_value(&body)?;
    let fields: ChatFields = from_value(&body)?;
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let stream = sampling.stream();
    // Long chats take a while to render and to tokenize, grammars to compile.
    let chat = blocking(move || Chat::start(&app, model, &fields, &sampling)).await?;
    if stream {
        Ok(sse::stream(sse::OPENAI, |frames| chat.stream(frames)))
    } else {
        Ok(Json(chat.collect().await?).into_response())
    }
}

impl Chat {
    fn start(
        app: &Arc<App>,
        model: Arc<TextModel>,
        fields: &ChatFields,
        sampling: &SamplingFields,
    ) -> Result<Self, ApiError> {
        let choice = ToolChoice::from_json(fields.tool_choice.as_ref()).map_err(|e| ApiError {
            param: Some("tool_choice".to_string()),
            ..from_worker(&e)
        })?;
        let tools = match choice {
            // A model that is not told of the tools does not call them.
            ToolChoice::None => &[],
            _ => fields.tools.as_deref().unwrap_or_default(),
        };
        let text = fields.render(&model, tools)?;
        let form = Form::of(sampling)?;
        let parallel = fields.parallel_tool_calls.unwrap_or(true);
        let opened = model.format.opens_reasoning(&text);
        let forced = model
            .format
            .call_grammar(tools, &choice, parallel, opened, &model.tokenizer)
            .map_err(|e| from_worker(&e))?;
        let form =
            match (form, forced) {
                (Some(_), Some(_)) => return Err(ApiError::field(
                    "tool_choice",
                    "a forced call and response_format, json_schema or grammar exclude each other",
                )),
                (form, forced) => form.or(forced.map(Form::Lark)),
            };
        // A form given by the request leaves no room for thoughts, even where the prompt begins with them.
        let in_reasoning = opened && !matches!(&form, Some(form) if sampling_form(sampling, form));
        let options = ParserOptions {
            tools: tools.to_vec(),
            reasoning: fields.reasoning_format.as_deref() != Some("none"),
            in_reasoning,
        };
        let prompt = model
            .tokenizer
            .encode(&text, true)
            .map_err(|e| ApiError::field("messages", e.to_string()))?;
        let top_logprobs = fields.top_logprobs()?;
        let first = sampling.sampling(&app.options.sampling)?;
        let seed = first.seed;
        let choices = (0..sampling.choices()?).map(|index| {
            let mut own = first.clone();
            own.seed = seed.wrapping_add(index as u64);
            let prepared = Prepared {
                prompt: prompt.clone(),
                sampling: own,
                max_tokens: sampling.max_tokens()?,
                top_logprobs,
                ignore_end: sampling.ignore_eos.unwrap_or(false),
                constraint: form.as_ref().map(|form| form.compile(&model)).transpose()?,
                timeout: sampling.timeout(&app.options),
                text: TextOptions {
                    stop: sampling.stops()?,
                    visible_tokens: model.format.visible_tokens(),
                },
            };
            Ok(Choice {
                index,
                parser: OutputParser::new(model.format, options.clone())
                    .map_err(|e| from_worker(&e))?,
                generation: Generation::submit(app, &model, prepared)?,
                most_calls: if parallel { usize::MAX } else { 1 },
            })
        });
        let choices = choices.collect::<Result<Vec<_>, ApiError>>()?;
        let object = if sampling.stream() {
            "chat.completion.chunk"
        } else {
            "chat.completion"
        };
        Ok(Self {
            head: Head::new(app, "chatcmpl", object),
            seed,
            include_usage: sampling.include_usage(),
            return_tokens: sampling.return_tokens.unwrap_or(false),
            choices,
            model,
        })
    }

    /// The whole answer at once.
    async fn collect(self) -> Result<Value, ApiError> {
        let Self {
            model,
            head,
            seed,
            return_tokens,
            choices,
            ..
        } = self;
        let answers = try_join_all(choices.into_iter().map(Choice::collect)).await?;
        let finishes: Vec<&Finish> = answers.iter().filter_map(|a| a.finish.as_ref()).collect();
        let usage = wire::sum(finishes.iter().map(|finish| &finish.usage));
        let choices: Value = answers
            .iter()
            .enumerate()
            .map(|(index, answer)| answer.to_json(index, &model, return_tokens))
            .collect();
        let first = finishes.first().copied();
        Ok(wire::whole(&head, choices, &usage, first, seed))
    }

    /// The answer as it comes.
    async fn stream(self, frames: Frames) -> Result<(), ApiError> {
        let chunks = Chunks {
            model: self.model,
            head: self.head,
            seed: self.seed,
            include_usage: self.include_usage,
            return_tokens: self.return_tokens,
            frames,
        };
        let streams = self
            .choices
            .into_iter()
            .map(|choice| choice.stream(&chunks));
        let usages = try_join_all(streams).await?;
        chunks.send_usage(&wire::sum(&usages)).await;
        Ok(())
    }
}

/// Whether the form is the request's own, not that of a forced call.
fn sampling_form(sampling: &SamplingFields, form: &Form) -> bool {
    matches!(Form::of(sampling), Ok(Some(own)) if own == *form)
}

impl ChatFields {
    fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => Err(ApiError::field(
                "top_logprobs",
                "top_logprobs are told with logprobs: true only",
            )),
            (true, top) => check_top_logprobs("top_logprobs", top.unwrap_or(0)).map(Some),
        }
    }
}

impl Choice {
    async fn next(&mut self) -> Result<Step, ApiError> {
        loop {
            match self.generation.next().await {
                Some(Output::Started) => {}
                Some(Output::Delta(piece)) => {
                    let deltas = self.parser.push(&piece.text);
                    return Ok(Step::Deltas(self.allowed(deltas), piece.tokens));
                }
                Some(Output::Finished(finish)) => {
                    let deltas = self.parser.finish();
                    return Ok(Step::End(self.allowed(deltas), finish));
                }
                Some(Output::Failed(failure)) => return Err(from_failure(&failure)),
                None => return Err(ApiError::internal("the answer went on after its end")),
            }
        }
    }

    fn allowed(&self, mut deltas: Vec<Delta>) -> Vec<Delta> {
        deltas.retain(
            |delta| !matches!(delta, Delta::ToolCall { index, .. } if *index >= self.most_calls),
        );
        deltas
    }

    fn finish_reason(&self, finish: &Finish) -> &'static str {
        match wire::finish_reason(&finish.reason) {
            "stop" if self.parser.calls() > 0 => "tool_calls",
            reason => reason,
        }
    }

    async fn collect(mut self) -> Result<Answer, ApiError> {
        let mut answer = Answer::default();
        loop {
            match self.next().await? {
                Step::Deltas(deltas, tokens) => {
                    answer.add(deltas);
                    answer.tokens.extend(tokens);
                }
                Step::End(deltas, finish) => {
                    answer.add(deltas);
                    answer.finish = Some(finish);
                    return Ok(answer);
                }
            }
        }
    }

    async fn stream(mut self, chunks: &Chunks) -> Result<Usage, ApiError> {
        let index = self.index;
        let role = json!({"role": "assistant", "content": ""});
        send(chunks, index, role, &[], None).await;
        // Tokens whose text is understood later, as of a call's name.
        let mut tokens = Vec::new();
        loop {
            let (deltas, finish) = match self.next().await? {
                Step::Deltas(deltas, more) => {
                    tokens.extend(more);
                    (deltas, None)
                }
                Step::End(deltas, finish) => (deltas, Some(finish)),
            };
            for delta in deltas {
                let tokens = std::mem::take(&mut tokens);
                send(chunks, index, delta_json(delta), &tokens, None).await;
            }
            if let Some(finish) = finish {
                let reason = self.finish_reason(&finish);
                let last = Some((reason, &finish));
                send(chunks, index, json!({}), &tokens, last).await;
                return Ok(finish.usage);
            }
        }
    }
}

/// Sends what a choice goes on with.
async fn send(
    chunks: &Chunks,
    index: usize,
    delta: Value,
    tokens: &[TextToken],
    finish: Option<(&str, &Finish)>,
) {
    let mut choice = json!({
        "index": index,
        "delta": delta,
        "logprobs": logprobs(&chunks.model, tokens),
        "finish_reason": finish.map(|(reason, _)| reason),
    });
    if chunks.return_tokens {
        choice["tokens"] = tokens.iter().map(|token| token.id).collect();
    }
    let finish = finish.map(|(_, finish)| finish);
    chunks.send(choice, finish).await;
}

fn delta_json(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"content": text}),
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::ToolCall {
            index,
            id,
            name: Some(name),
            arguments,
        } => json!({"tool_calls": [{
            "index": index,
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }]}),
        Delta::ToolCall {
            index, arguments, ..
        } => json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}),
    }
}

/// Null where no probabilities were asked for.
fn logprobs(model: &TextModel, tokens: &[TextToken]) -> Value {
    if tokens.iter().all(|token| token.logprob.is_none()) {
        return Value::Null;
    }
    json!({"content": wire::chat_logprobs(&model.tokenizer, tokens), "refusal": null})
}

impl Answer {
    fn add(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => self.content += &text,
                Delta::Reasoning(text) => self.reasoning += &text,
                Delta::ToolCall {
                    index,
                    id,
                    name,
                    arguments,
                } => match self.calls.get_mut(index) {
                    Some(call) => call.arguments += &arguments,
                    None => self.calls.push(Call {
                        id,
                        name: name.unwrap_or_default(),
                        arguments,
                    }),
                },
            }
        }
    }

    fn to_json(&self, index: usize, model: &TextModel, return_tokens: bool) -> Value {
        let mut message = Map::new();
        message.insert("role".to_string(), json!("assistant"));
        let content = match self.calls.is_empty() || !self.content.is_empty() {
            true => json!(self.content),
            false => Value::Null,
        };
        message.insert("content".to_string(), content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_string(), json!(self.reasoning));
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(|call| {
                json!({
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            });
            message.insert("tool_calls".to_string(), calls.collect());
        }
        let reason = self
            .finish
            .as_ref()
            .map(|finish| wire::finish_reason(&finish.reason));
        let reason = match reason {
            Some("stop") if !self.calls.is_empty() => Some("tool_calls"),
            reason => reason,
        };
        let mut choice = json!({
            "index": index,
            "message": message,
            "logprobs": logprobs(model, &self.tokens),
            "finish_reason": reason,
        });
        if return_tokens {
            choice["tokens"] = self.tokens.iter().map(|token| token.id).collect();
        }
        choice
    }
}
