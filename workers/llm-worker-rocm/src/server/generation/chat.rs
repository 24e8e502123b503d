//! Chats: from messages to a prompt, answers with reasoning and calls.

use super::answers::Parse;
use super::calls::OfferedForm;
use super::form::Form;
use super::length::check_length;
use super::prepare::{Prompt, Wishes};
use super::sampling::{check_top_logprobs, prompt_logprobs, SamplingFields};
use crate::chat::{picture_addresses, sound_addresses, video_parts, RenderOptions, Rendered};
use crate::engine::api::Failure;
use crate::engine::media::MediaItem;
use crate::server::backend::TextModel;
use crate::server::error::{from_failure, from_worker};
use crate::tools::{CallRules, Delta, OutputParser, ParserOptions, ThoughtLimit, ToolChoice};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use worker::http::{json, ApiError};

/// Most pictures, videos and sounds of a chat.
const MOST_ITEMS: usize = 64;

/// The fields of a chat, besides those of [`SamplingFields`]. Messages and tools are in OpenAI's form, which chat
/// templates take.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ChatFields {
    /// The chat so far.
    #[serde(deserialize_with = "json::values")]
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or the function to call.
    #[serde(default, deserialize_with = "json::value")]
    pub tool_choice: Option<Value>,
    /// Whether one answer may have several calls.
    pub parallel_tool_calls: Option<bool>,
    /// Whether tokens are reported with their probabilities.
    pub logprobs: Option<bool>,
    /// How many alternatives each token is reported with.
    pub top_logprobs: Option<usize>,
    /// How many alternatives each token of the prompt is reported with; absent reports nothing of the prompt. Not for
    /// streams.
    pub prompt_logprobs: Option<i64>,
    /// Whether a model that can do both thinks before it answers.
    pub enable_thinking: Option<bool>,
    /// How much a model thinks: `none` is not at all, other words are a variable of the chat template.
    pub reasoning_effort: Option<String>,
    /// Most tokens of the model's thinking, which is then ended; absent or -1 is no limit.
    #[serde(alias = "thinking_budget_tokens", alias = "thinking_token_budget")]
    pub reasoning_budget_tokens: Option<i64>,
    /// What the model says at the end of thoughts that are ended so.
    pub reasoning_budget_message: Option<String>,
    /// `none` leaves the model's thinking in the content; `auto` and `deepseek` tell it apart as `reasoning_content`.
    pub reasoning_format: Option<String>,
    /// Whether calls of tools are told apart from content; absent is so.
    pub parse_tool_calls: Option<bool>,
    /// Further variables for the chat template.
    #[serde(default, deserialize_with = "json::optional_map")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the assistant is to speak after the last message.
    pub add_generation_prompt: Option<bool>,
    /// Whether to go on with the last message, which is the assistant's: `true`, or the part of it to go on with,
    /// `content` or `reasoning_content`; absent is so unless `add_generation_prompt` is given.
    #[serde(default, deserialize_with = "json::value")]
    pub continue_final_message: Option<Value>,
}

/// Longest message at the end of thoughts, in bytes.
const MAX_BUDGET_MESSAGE: usize = 4096;

/// Where a chat's prompt ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Where the answer begins, with thoughts or without.
    Plain,
    /// Among the model's thoughts.
    Thinking,
    /// Behind thoughts, of which there are none.
    Thought,
}

/// An answer that is to be gone on with.
struct Begun<'a> {
    /// The messages before it.
    before: &'a [Value],
    /// Its thoughts so far.
    reasoning: String,
    /// Its text so far; none if it still thinks.
    content: Option<String>,
}

impl ChatFields {
    /// The prompt's text; `tools` are those that the model is told.
    ///
    /// # Errors
    /// 400 if the template refuses the messages.
    pub fn render(&self, model: &TextModel, tools: &[Value]) -> Result<Rendered, ApiError> {
        Ok(self.render_begun(model, tools)?.0)
    }

    /// The same, and where it ends.
    fn render_begun(
        &self,
        model: &TextModel,
        tools: &[Value],
    ) -> Result<(Rendered, Ending), ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "messages must not be empty"));
        }
        let mut extra = self.chat_template_kwargs.clone().unwrap_or_default();
        let told = extra.remove("enable_thinking").and_then(|v| v.as_bool());
        let effort = self.reasoning_effort.as_deref();
        if let Some(effort) = effort.filter(|&effort| effort != "none") {
            extra.insert("reasoning_effort".to_string(), Value::from(effort));
        }
        let by_effort = (effort == Some("none")).then_some(false);
        let mut options = RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            enable_thinking: (self.enable_thinking)
                .or(told)
                .or(by_effort)
                .or(model.thinks),
            extra,
        };
        let render = |messages: &[Value], options: &RenderOptions| {
            let rendered = model.template.render(messages, Some(tools), options);
            rendered.map_err(|e| ApiError {
                param: Some("messages".to_string()),
                ..from_worker(&e)
            })
        };
        let Some(begun) = self.begun()? else {
            let mut prompt = render(&self.messages, &options)?;
            let opens = model.format.opens_reasoning(&prompt.text);
            let ending = match (
                model.format.reasoning.filter(|_| opens),
                options.enable_thinking,
            ) {
                // The template knows of no other way than to begin with thoughts.
                (Some(tags), Some(false)) => {
                    prompt.text.push_str(tags.close);
                    Ending::Thought
                }
                (Some(_), _) => Ending::Thinking,
                (None, _) => Ending::Plain,
            };
            return Ok((prompt, ending));
        };
        options.add_generation_prompt = true;
        let mut prompt = render(begun.before, &options)?;
        let opened = model.format.opens_reasoning(&prompt.text);
        let thinks = opened || begun.content.is_none() || !begun.reasoning.is_empty();
        let tags = model.format.reasoning.filter(|_| thinks);
        match tags {
            Some(tags) if !opened => prompt.text.push_str(tags.open),
            None if begun.content.is_none() => {
                return Err(ApiError::field(
                    "continue_final_message",
                    "this model's thoughts cannot be gone on with: it has no marks of them",
                ))
            }
            _ => {}
        }
        if tags.is_some() {
            prompt.push_input(&begun.reasoning);
        }
        let Some(content) = begun.content else {
            return Ok((prompt, Ending::Thinking));
        };
        if let Some(tags) = tags {
            // As templates write what was thought before.
            let line = if begun.reasoning.is_empty() || begun.reasoning.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            let close = format!("{line}{}{}", tags.close, tags.after);
            prompt.text.push_str(&close);
            if tags.after.is_empty() {
                prompt.text.push_str("\n\n");
            }
        }
        prompt.push_input(&content);
        Ok((prompt, Ending::Plain))
    }

    /// The answer that is to be gone on with; `None` if the answer is a new message.
    ///
    /// # Errors
    /// 400 if there is no such answer although the request says so.
    fn begun(&self) -> Result<Option<Begun<'_>>, ApiError> {
        let refuse = |reason: &str| Err(ApiError::field("continue_final_message", reason));
        let asked =
            match &self.continue_final_message {
                None | Some(Value::Null) => None,
                Some(Value::Bool(asked)) => Some(*asked),
                Some(Value::String(part)) if part == "content" || part == "reasoning_content" => {
                    Some(true)
                }
                Some(_) => return refuse(
                    "continue_final_message is true, false, \"content\" or \"reasoning_content\"",
                ),
            };
        if asked == Some(true) && self.add_generation_prompt == Some(true) {
            return refuse("continue_final_message and add_generation_prompt exclude each other");
        }
        if !asked.unwrap_or(self.add_generation_prompt.is_none()) {
            return Ok(None);
        }
        let Some((last, before)) = self.messages.split_last() else {
            return Ok(None);
        };
        let is_told = |message: &Value| message["role"] == "assistant";
        if is_told(last) && before.last().is_some_and(is_told) {
            return Err(ApiError::field(
                "messages",
                "messages: two of the assistant's at the end; only one message can be gone on with",
            ));
        }
        let reasoning = reasoning_text(last).unwrap_or_default();
        let text = assistant_text(last);
        let part = self.continue_final_message.as_ref().and_then(Value::as_str);
        let of_thoughts = match part {
            Some(part) => part == "reasoning_content",
            None => text.as_deref().is_none_or(str::is_empty) && !reasoning.is_empty(),
        };
        let calls = last["tool_calls"].as_array();
        let calls = calls.is_some_and(|calls| !calls.is_empty());
        let is_answer = is_told(last) && !calls && (of_thoughts || text.is_some());
        // Templates expect a message; only who asks for it has an answer to nothing.
        match (
            is_answer && (asked == Some(true) || !before.is_empty()),
            asked,
        ) {
            (true, _) => Ok(Some(Begun {
                before,
                reasoning,
                content: text.filter(|_| !of_thoughts),
            })),
            (false, Some(true)) => refuse("the last message is not text of the assistant"),
            (false, _) => Ok(None),
        }
    }

    /// How long the model may think.
    fn thought_limit(
        &self,
        model: &TextModel,
        opened: bool,
    ) -> Result<Option<ThoughtLimit>, ApiError> {
        let field = "reasoning_budget_tokens";
        let most = match self.reasoning_budget_tokens.or(model.reasoning_budget) {
            None | Some(-1) => return Ok(None),
            Some(most) => usize::try_from(most).map_err(|_| {
                ApiError::field(
                    field,
                    format!("{field} {most} is neither -1 nor a number of tokens"),
                )
            })?,
        };
        let message = self.reasoning_budget_message.as_deref().unwrap_or_default();
        if message.len() > MAX_BUDGET_MESSAGE {
            let field = "reasoning_budget_message";
            let reason = format!("{field} is longer than {MAX_BUDGET_MESSAGE} bytes");
            return Err(ApiError::field(field, reason));
        }
        let limit = ThoughtLimit::new(model.format, opened, &model.tokenizer, most, message);
        limit.map_err(|e| ApiError::field("reasoning_budget_message", e.to_string()))
    }

    /// Whether thoughts are told apart from content.
    fn tells_reasoning(&self) -> Result<bool, ApiError> {
        match self.reasoning_format.as_deref() {
            Some("none") => Ok(false),
            None | Some("auto" | "deepseek") => Ok(true),
            Some(other) => Err(ApiError::field(
                "reasoning_format",
                format!("reasoning_format is \"none\", \"auto\" or \"deepseek\", not {other:?}"),
            )),
        }
    }

    /// The prompt, and what takes its answers apart. Long chats take a while to render and to tokenize.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn prompt(
        &self,
        model: &TextModel,
        sampling: &SamplingFields,
    ) -> Result<(Prompt, ChatParser), ApiError> {
        let choice = ToolChoice::from_json(self.tool_choice.as_ref()).map_err(|e| ApiError {
            param: Some("tool_choice".to_string()),
            ..from_worker(&e)
        })?;
        let tools = match choice {
            // A model that is not told of the tools does not call them.
            ToolChoice::None => &[],
            _ => self.tools.as_deref().unwrap_or_default(),
        };
        let (text, ending) = self.render_begun(model, tools)?;
        let opened = ending == Ending::Thinking;
        let parallel = self.parallel_tool_calls.unwrap_or(true);
        let rules = CallRules {
            tools,
            choice: &choice,
            parallel,
            in_reasoning: opened,
            in_call: !tools.is_empty() && model.format.opens_call(&text.text),
        };
        let forced = model
            .format
            .forced_grammar(&rules, &model.tokenizer)
            .map_err(|e| from_worker(&e))?;
        let mut form =
            match (Form::requested(sampling)?, forced.map(Form::forced)) {
                (Some(_), Some(_)) => return Err(ApiError::field(
                    "tool_choice",
                    "a forced call and response_format, json_schema or grammar exclude each other",
                )),
                (requested, forced) => requested.or(forced),
            };
        // A requested form leaves no room for thoughts, even where the prompt begins with them.
        let requested = form.as_ref().is_some_and(Form::is_whole);
        if let Some(lazy) = form.as_mut().and_then(|form| form.lazy.as_mut()) {
            lazy.in_reasoning = Some(opened);
        }
        let parsed = self.parse_tool_calls.unwrap_or(true);
        let options = ParserOptions {
            tools: if parsed { tools.to_vec() } else { Vec::new() },
            reasoning: self.tells_reasoning()?,
            in_reasoning: ending != Ending::Plain && !requested,
            in_call: rules.in_call && !requested,
        };
        let mut parser = OutputParser::new(model.format, options).map_err(|e| from_worker(&e))?;
        if let (Ending::Thought, false, Some(tags)) = (ending, requested, model.format.reasoning) {
            // What separates thoughts and answer is no part of the answer.
            let _ = parser.push(tags.close);
        }
        let calls = match form {
            None if parsed => OfferedForm::of(model, &rules, &parser)?,
            _ => None,
        };
        check_length(model, &text.text)?;
        let (tokens, media) = match self.items(model)? {
            items if items.is_empty() => {
                let tokens = model.tokenizer.encode_rendered(&text, true);
                let tokens = tokens.map_err(|e| ApiError::field("messages", e.to_string()))?;
                (tokens, None)
            }
            items => {
                let (tokens, media) = model
                    .pictures()?
                    .prompt(&text, &items, &model.tokenizer, true)
                    .map_err(of_messages)?;
                (tokens, Some(Arc::new(media)))
            }
        };
        let prompt = Prompt {
            tokens,
            media,
            form,
            calls,
            top_logprobs: self.top_logprobs()?,
            prompt_logprobs: prompt_logprobs(self.prompt_logprobs, sampling)?,
            may_only_read: self.prompt_logprobs.is_some(),
            visible_tokens: model.format.visible_tokens(),
            wishes: Wishes::default(),
            thoughts: match requested {
                true => None,
                false => self.thought_limit(model, opened)?,
            },
        };
        let parser = ChatParser {
            parser,
            max_calls: match (parallel, &choice) {
                // A function that is named is called once.
                (false, _) | (true, ToolChoice::Named(_)) => 1,
                (true, _) => usize::MAX,
            },
        };
        Ok((prompt, parser))
    }

    /// The pictures, videos and sounds of the messages, fetched and decoded.
    fn items(&self, model: &TextModel) -> Result<Vec<Arc<MediaItem>>, ApiError> {
        let pictures = picture_addresses(&self.messages).map_err(of_messages)?;
        let videos = video_parts(&self.messages).map_err(of_messages)?;
        let sounds = sound_addresses(&self.messages).map_err(of_messages)?;
        let count = pictures.len() + videos.len() + sounds.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let processor = model.pictures()?;
        if count > MOST_ITEMS {
            return Err(ApiError::field(
                "messages",
                format!("{count} pictures, videos and sounds; {MOST_ITEMS} are the most"),
            ));
        }
        let sources = &model.sources;
        let pictures = pictures
            .into_iter()
            .map(|address| processor.picture(&sources.load(address)?, &sources.limits));
        let context = model.backend.context();
        let videos = videos
            .iter()
            .map(|video| processor.video(video, sources, context));
        let sounds = sounds
            .iter()
            .map(|address| processor.sound(&sources.load(address)?));
        let mut rows = 0;
        let mut items = Vec::new();
        for item in pictures.chain(videos).chain(sounds) {
            let item = item.map_err(of_messages)?;
            rows += processor.rows_of(&item);
            if rows >= context {
                let prompt = rows;
                return Err(from_failure(&Failure::TooLong { prompt, context }));
            }
            items.push(item);
        }
        Ok(items)
    }

    fn top_logprobs(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (false, None | Some(0)) => Ok(None),
            (false, Some(_)) => Err(ApiError::field(
                "top_logprobs",
                "top_logprobs needs logprobs: true",
            )),
            (true, top) => check_top_logprobs("top_logprobs", top.unwrap_or(0)).map(Some),
        }
    }
}

fn of_messages(error: worker::Error) -> ApiError {
    ApiError {
        param: Some("messages".to_string()),
        ..from_worker(&error)
    }
}

/// The text of an assistant's message that is nothing but text.
fn assistant_text(message: &Value) -> Option<String> {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    if message["role"] != "assistant" || calls.is_some_and(|calls| !calls.is_empty()) {
        return None;
    }
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part["type"].as_str() {
                Some("text") => part["text"].as_str(),
                _ => None,
            });
            texts.collect()
        }
        _ => None,
    }
}

/// The thoughts of an assistant's message.
fn reasoning_text(message: &Value) -> Option<String> {
    let names = ["reasoning_content", "reasoning"];
    names
        .iter()
        .find_map(|name| Some(message[name].as_str()?.to_string()))
}

/// Takes the answers to a chat apart.
#[derive(Clone)]
pub struct ChatParser {
    parser: OutputParser,
    /// Calls that an answer may have; more of them are left out.
    max_calls: usize,
}

impl ChatParser {
    /// For a text that is gone on with: all of the answer is content.
    ///
    /// # Errors
    /// If the model's way of writing answers cannot be taken apart.
    pub fn of_text(model: &TextModel) -> Result<Self, ApiError> {
        let options = ParserOptions {
            reasoning: false,
            ..ParserOptions::default()
        };
        let parser = OutputParser::new(model.format, options).map_err(|e| from_worker(&e))?;
        Ok(Self {
            parser,
            max_calls: 0,
        })
    }

    fn allowed(&self, mut deltas: Vec<Delta>) -> Vec<Delta> {
        deltas.retain(
            |delta| !matches!(delta, Delta::ToolCall { index, .. } if *index >= self.max_calls),
        );
        deltas
    }
}

impl Parse for ChatParser {
    type Part = Delta;
    type Whole = Message;

    fn push(&mut self, text: String) -> Vec<Delta> {
        let deltas = self.parser.push(&text);
        self.allowed(deltas)
    }

    fn finish(&mut self, complete: bool) -> Vec<Delta> {
        let deltas = self.parser.finish(complete);
        self.allowed(deltas)
    }

    fn has_calls(&self) -> bool {
        self.parser.calls() > 0
    }
}

/// A whole answer to a chat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// Text for the user.
    pub content: String,
    /// The model's thinking.
    pub reasoning: String,
    /// Its calls.
    pub calls: Vec<Call>,
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Names the call in the answer to it.
    pub id: String,
    /// The function.
    pub name: String,
    /// The arguments as JSON.
    pub arguments: String,
}

impl Extend<Delta> for Message {
    fn extend<T: IntoIterator<Item = Delta>>(&mut self, deltas: T) {
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
}
