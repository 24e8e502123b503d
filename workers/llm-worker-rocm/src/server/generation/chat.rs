//! Chats: from messages to a prompt, answers with reasoning and calls.

use super::answers::Parse;
use super::calls::OfferedForm;
use super::form::{Form, Source};
use super::length::check_length;
use super::prepare::{Prompt, Wishes};
use super::sampling::{check_top_logprobs, SamplingFields};
use crate::chat::{picture_addresses, sound_addresses, video_parts, RenderOptions, Rendered};
use crate::engine::api::Failure;
use crate::engine::media::MediaItem;
use crate::server::backend::TextModel;
use crate::server::error::{from_failure, from_worker};
use crate::tools::{CallRules, Delta, OutputParser, ParserOptions, ToolChoice};
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
    /// Whether a model that can do both thinks before it answers.
    pub enable_thinking: Option<bool>,
    /// `none` leaves the model's thinking in the content; anything else tells it apart as `reasoning_content`.
    pub reasoning_format: Option<String>,
    /// Further variables for the chat template.
    #[serde(default, deserialize_with = "json::optional_map")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the assistant is to speak after the last message.
    pub add_generation_prompt: Option<bool>,
    /// Whether to go on with the last message, which is the assistant's; absent is so unless `add_generation_prompt` is
    /// given or the model would think first.
    pub continue_final_message: Option<bool>,
}

impl ChatFields {
    /// The prompt's text; `tools` are those that the model is told.
    ///
    /// # Errors
    /// 400 if the template refuses the messages.
    pub fn render(&self, model: &TextModel, tools: &[Value]) -> Result<Rendered, ApiError> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "messages must not be empty"));
        }
        let mut extra = self.chat_template_kwargs.clone().unwrap_or_default();
        let told = extra.remove("enable_thinking").and_then(|v| v.as_bool());
        let mut options = RenderOptions {
            add_generation_prompt: self.add_generation_prompt.unwrap_or(true),
            enable_thinking: self.enable_thinking.or(told),
            extra,
        };
        let render = |messages: &[Value], options: &RenderOptions| {
            let rendered = model.template.render(messages, Some(tools), options);
            rendered.map_err(|e| ApiError {
                param: Some("messages".to_string()),
                ..from_worker(&e)
            })
        };
        if let Some((before, begun)) = self.begun()? {
            options.add_generation_prompt = true;
            let mut prompt = render(before, &options)?;
            if !model.format.opens_reasoning(&prompt.text) {
                prompt.push_input(&begun);
                return Ok(prompt);
            }
            if self.continue_final_message == Some(true) {
                return Err(ApiError::field(
                    "continue_final_message",
                    "the model thinks before it answers, so its answer cannot be begun: send enable_thinking: false",
                ));
            }
            options.add_generation_prompt = self.add_generation_prompt.unwrap_or(true);
        }
        render(&self.messages, &options)
    }

    /// The messages before an answer that is to be gone on with, and its text; `None` if the answer is a new message.
    ///
    /// # Errors
    /// 400 if there is no such answer although the request says so.
    fn begun(&self) -> Result<Option<(&[Value], String)>, ApiError> {
        let refuse = |reason: &str| Err(ApiError::field("continue_final_message", reason));
        let asked = self.continue_final_message;
        if asked == Some(true) && self.add_generation_prompt == Some(true) {
            return refuse("continue_final_message and add_generation_prompt exclude each other");
        }
        if !asked.unwrap_or(self.add_generation_prompt.is_none()) {
            return Ok(None);
        }
        let split = self.messages.split_last();
        let text = split.and_then(|(last, before)| Some((before, assistant_text(last)?)));
        // Templates expect a message; only who asks for it has an answer to nothing.
        let text = text.filter(|(before, _)| asked == Some(true) || !before.is_empty());
        match (text, asked) {
            (None, Some(true)) => refuse("the last message is not text of the assistant"),
            (text, _) => Ok(text),
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
        let text = self.render(model, tools)?;
        let parallel = self.parallel_tool_calls.unwrap_or(true);
        let opened = model.format.opens_reasoning(&text.text);
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
        let form =
            match (Form::requested(sampling)?, forced.map(Form::forced)) {
                (Some(_), Some(_)) => return Err(ApiError::field(
                    "tool_choice",
                    "a forced call and response_format, json_schema or grammar exclude each other",
                )),
                (requested, forced) => requested.or(forced),
            };
        // A requested form leaves no room for thoughts, even where the prompt begins with them.
        let requested = matches!(&form, Some(form) if form.source == Source::Requested);
        let options = ParserOptions {
            tools: tools.to_vec(),
            reasoning: self.reasoning_format.as_deref() != Some("none"),
            in_reasoning: opened && !requested,
            in_call: rules.in_call && !requested,
        };
        let parser = OutputParser::new(model.format, options).map_err(|e| from_worker(&e))?;
        let calls = match form {
            Some(_) => None,
            None => OfferedForm::of(model, &rules, &parser)?,
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
            visible_tokens: model.format.visible_tokens(),
            wishes: Wishes::default(),
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
