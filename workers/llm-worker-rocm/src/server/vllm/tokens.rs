//! `POST /tokenize` with `prompt` or `messages`, and `GET /tokenizer_info`.

use crate::server::backend::TextModel;
use crate::server::error::blocking;
use crate::server::generation::{ChatFields, SamplingFields};
use crate::server::{native, Shared};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};
use worker::http::json::{self, Either, Meant};
use worker::http::{ApiError, JsonBody};

/// The body of `POST /tokenize` in vLLM's form: a text, or a chat.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct TokenizeFields {
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// The text.
    pub prompt: Option<String>,
    /// The chat.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub messages: Option<Vec<Value>>,
    /// Whether the model's beginning-of-sequence token is put before the text, where it has one; absent is so. A chat
    /// has what its template gives it.
    pub add_special_tokens: Option<bool>,
    /// Whether each token comes with its text, too.
    pub return_token_strs: Option<bool>,
    /// Functions that the chat's model may call.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub tools: Option<Vec<Value>>,
    /// Whether the assistant is to speak after the chat's last message.
    pub add_generation_prompt: Option<bool>,
    /// Whether to go on with the chat's last message.
    pub continue_final_message: Option<bool>,
    /// Further variables for the chat template.
    #[serde(default, deserialize_with = "json::optional_map")]
    pub chat_template_kwargs: Option<Map<String, Value>>,
}

impl Meant for TokenizeFields {
    fn is_meant(&self) -> bool {
        self.prompt.is_some() || self.messages.is_some()
    }
}

/// Tokens in vLLM's form.
#[derive(Serialize)]
struct Tokens {
    count: usize,
    max_model_len: usize,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

pub(in crate::server) async fn tokenize(
    State(app): Shared,
    JsonBody(fields): JsonBody<Either<TokenizeFields, native::TokenizeFields>>,
) -> Result<Response, ApiError> {
    let fields = match fields {
        Either::First(fields) => fields,
        Either::Second(fields) => return native::tokenize(State(app), JsonBody(fields)).await,
    };
    app.check_model(fields.model.as_deref())?;
    let model = app.text()?;
    let strings = fields.return_token_strs.unwrap_or(false);
    blocking(move || {
        let tokens = fields.tokens(&model)?;
        let text = |token: &u32| model.tokenizer.spell(&[*token]);
        let tokens = Tokens {
            count: tokens.len(),
            max_model_len: model.backend.context(),
            token_strs: strings.then(|| tokens.iter().map(text).collect()),
            tokens,
        };
        Ok(Json(tokens).into_response())
    })
    .await
}

impl TokenizeFields {
    fn tokens(self, model: &TextModel) -> Result<Vec<u32>, ApiError> {
        match (self.prompt, self.messages) {
            (Some(text), None) => {
                native::check_tokenized("prompt", &text)?;
                let add_bos = self.add_special_tokens.unwrap_or(true);
                let tokens = model.tokenizer.encode(&text, add_bos);
                tokens.map_err(|e| ApiError::field("prompt", e.to_string()))
            }
            (None, Some(messages)) => {
                let chat = ChatFields {
                    messages,
                    tools: self.tools,
                    add_generation_prompt: self.add_generation_prompt,
                    continue_final_message: self.continue_final_message.map(Value::Bool),
                    chat_template_kwargs: self.chat_template_kwargs,
                    ..ChatFields::default()
                };
                let (prompt, _) = chat.prompt(model, &SamplingFields::default())?;
                Ok(prompt.tokens)
            }
            _ => Err(ApiError::field(
                "prompt",
                "prompt and messages exclude each other",
            )),
        }
    }
}

/// `GET /tokenizer_info`: what a client has to know to count a text's tokens by [`tokenize`].
pub(in crate::server) async fn tokenizer_info(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    let tokenizer = &model.tokenizer;
    Ok(Json(json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_text(),
        "eos_token": tokenizer.eos_text(),
        "add_bos_token": !tokenizer.beginning().is_empty(),
        "chat_template": model.template.source(),
        "model_max_length": model.backend.context(),
    })))
}
