//! The fields of a request, as those of a chat or a text.

use crate::server::backend::TextModel;
use crate::server::generation::{self, ChatParser, Infill, Prompt, SamplingFields};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::{json, ApiError};

/// The fields of a chat.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ChatFields {
    /// The model's name.
    #[serde(default)]
    pub model: String,
    /// The chat so far; without any, the model is only said to be there.
    #[serde(default, deserialize_with = "json::values")]
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub tools: Option<Vec<Value>>,
    /// Whether the answer comes as lines; absent is so.
    pub stream: Option<bool>,
    /// `json`, or a schema: the answer's form.
    #[serde(default, deserialize_with = "json::value")]
    pub format: Option<Value>,
    /// Sampling and limits: `num_predict`, `temperature`, `top_k`, `top_p`, `min_p`, `seed`, `stop` and others.
    #[serde(default, deserialize_with = "json::optional_map")]
    pub options: Option<Map<String, Value>>,
    /// Whether a model that can do both thinks before it answers: true, false, or how much.
    #[serde(default, deserialize_with = "json::value")]
    pub think: Option<Value>,
}

/// The fields of a text to be answered, or gone on with.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct GenerateFields {
    /// The model's name.
    #[serde(default)]
    pub model: String,
    /// The text; without one, the model is only said to be there.
    #[serde(default)]
    pub prompt: String,
    /// What the model is told before.
    pub system: Option<String>,
    /// Pictures in base64.
    pub images: Option<Vec<String>>,
    /// Whether the text is gone on with as it is, not answered as a message.
    pub raw: Option<bool>,
    /// Text behind the answer, which fills in what is between; for models that were trained for it.
    pub suffix: Option<String>,
    /// Not possible here: the model's own is used, or that which the server was started with.
    pub template: Option<String>,
    /// Whether the answer comes as lines; absent is so.
    pub stream: Option<bool>,
    /// `json`, or a schema: the answer's form.
    #[serde(default, deserialize_with = "json::value")]
    pub format: Option<Value>,
    /// Sampling and limits, as for chats.
    #[serde(default, deserialize_with = "json::optional_map")]
    pub options: Option<Map<String, Value>>,
    /// Whether a model that can do both thinks before it answers.
    #[serde(default, deserialize_with = "json::value")]
    pub think: Option<Value>,
}

/// Ollama's options: most have the names that they have everywhere.
fn sampling(
    options: Option<Map<String, Value>>,
    format: Option<Value>,
) -> Result<SamplingFields, ApiError> {
    let mut options = options.unwrap_or_default();
    // A null is what is left out; -2, up to the end of the context, is what -1 is here.
    options.retain(|_, value| !value.is_null());
    if let Some(most) = options.remove("num_predict") {
        let most = if most == -2 { json!(-1) } else { most };
        options.insert("max_tokens".to_string(), most);
    }
    let mut fields: SamplingFields = json::from_value(&Value::Object(options))?;
    fields.n = None;
    match format {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) if text.is_empty() => {}
        Some(Value::String(text)) if text == "json" => {
            fields.response_format = Some(json!({"type": "json_object"}));
        }
        Some(schema @ Value::Object(_)) => fields.json_schema = Some(schema),
        Some(_) => {
            return Err(ApiError::field("format", "format is \"json\" or a schema"));
        }
    }
    Ok(fields)
}

fn thinks(think: Option<&Value>) -> Option<bool> {
    match think? {
        Value::Bool(think) => Some(*think),
        // How much cannot be said to most models.
        Value::String(_) => Some(true),
        _ => None,
    }
}

fn picture(data: &Value) -> Value {
    let address = format!("data:image/*;base64,{}", data.as_str().unwrap_or_default());
    json!({"type": "image_url", "image_url": {"url": address}})
}

/// A message as OpenAI's: pictures are parts before the text.
fn message(message: Value) -> Value {
    let mut message = message;
    let Some(map) = message.as_object_mut() else {
        return message;
    };
    if let Some(Value::Array(images)) = map.remove("images") {
        if !images.is_empty() {
            let mut parts: Vec<Value> = images.iter().map(picture).collect();
            let text = map.remove("content").unwrap_or_default();
            parts.push(json!({"type": "text", "text": text.as_str().unwrap_or_default()}));
            map.insert("content".to_string(), json!(parts));
        }
    }
    if let Some(name) = map.remove("tool_name") {
        map.entry("name").or_insert(name);
    }
    message
}

impl ChatFields {
    /// The chat, and how to choose tokens.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub(super) fn into_chat(self) -> Result<(generation::ChatFields, SamplingFields), ApiError> {
        let chat = generation::ChatFields {
            messages: self.messages.into_iter().map(message).collect(),
            tools: self.tools,
            enable_thinking: thinks(self.think.as_ref()),
            ..Default::default()
        };
        Ok((chat, sampling(self.options, self.format)?))
    }
}

impl GenerateFields {
    /// The prompt, what takes its answers apart, and how to choose tokens.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub(super) fn into_prompt(
        self,
        model: &TextModel,
    ) -> Result<((Prompt, ChatParser), SamplingFields), ApiError> {
        if self.template.is_some_and(|text| !text.is_empty()) {
            let reason = "template: templates of requests are not taken; start the server with --chat-template";
            return Err(ApiError::field("template", reason));
        }
        let fields = sampling(self.options, self.format)?;
        if let Some(suffix) = self.suffix.filter(|text| !text.is_empty()) {
            let marks = Infill::tokens_of(model, "suffix")?;
            let infill = Infill {
                prefix: Infill::text(model, "prompt", &self.prompt)?,
                suffix: Infill::text(model, "suffix", &suffix)?,
                ..Infill::default()
            };
            let prompt = Prompt::plain(infill.prompt(model, &marks), &fields)?;
            return Ok(((prompt, ChatParser::of_text(model)?), fields));
        }
        if self.raw == Some(true) {
            generation::check_length(model, &self.prompt)?;
            let tokens = model.tokenizer.encode(&self.prompt, true);
            let tokens = tokens.map_err(|e| ApiError::field("prompt", e.to_string()))?;
            let prompt = Prompt::plain(tokens, &fields)?;
            return Ok(((prompt, ChatParser::of_text(model)?), fields));
        }
        let mut messages = Vec::new();
        if let Some(system) = self.system.filter(|text| !text.is_empty()) {
            messages.push(json!({"role": "system", "content": system}));
        }
        let asked = json!({"role": "user", "content": self.prompt, "images": self.images.unwrap_or_default()});
        messages.push(message(asked));
        let chat = generation::ChatFields {
            messages,
            enable_thinking: thinks(self.think.as_ref()),
            ..Default::default()
        };
        let prompt = chat.prompt(model, &fields)?;
        Ok((prompt, fields))
    }
}
