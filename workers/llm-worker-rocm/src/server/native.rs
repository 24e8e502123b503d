//! Properties, tokens and templates, in the manner of llama.cpp's server.

use super::error::blocking;
use super::openai::chat::ChatFields;
use super::Shared;
use axum::extract::State;
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use worker::http::{ApiError, JsonBody};

/// `GET /props`: what the worker is and how it is set.
pub(super) async fn props(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let loaded = app.frame.ready()?;
    let sampling = &app.options.sampling;
    let mut props = json!({
        "model": app.options.model,
        "device": app.frame.identity.device,
        "build_info": concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")),
        "default_generation_settings": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": sampling.typical_p,
            "repeat_penalty": sampling.repeat_penalty,
            "repeat_last_n": sampling.repeat_last_n,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "timeout_ms": app.options.timeout.map(|t| t.as_millis() as u64),
        },
    });
    if let Some(text) = loaded.text {
        props["n_ctx"] = json!(text.backend.context());
        props["n_vocab"] = json!(text.tokenizer.vocab_size());
        props["bos_token"] = json!(text.tokenizer.bos_text());
        props["eos_token"] = json!(text.tokenizer.eos_text());
        props["chat_template"] = json!(text.template.source());
        props["reasoning"] = json!(text.format.reasoning.is_some());
    }
    Ok(Json(props))
}

/// The body of `POST /tokenize`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct TokenizeFields {
    /// The text.
    pub content: String,
    /// Whether the model's beginning-of-sequence token is added, where it has one.
    #[serde(default)]
    pub add_special: bool,
    /// Whether each token comes with its text.
    #[serde(default)]
    pub with_pieces: bool,
}

pub(super) async fn tokenize(
    State(app): Shared,
    JsonBody(fields): JsonBody<TokenizeFields>,
) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    blocking(move || {
        let tokens = model
            .tokenizer
            .encode(&fields.content, fields.add_special)
            .map_err(|e| ApiError::field("content", e.to_string()))?;
        let tokens: Value = match fields.with_pieces {
            false => json!(tokens),
            true => tokens
                .iter()
                .map(|&id| {
                    let bytes = model.tokenizer.token_bytes(id);
                    let name = model.tokenizer.control_text(id);
                    // A piece that is not text by itself is told as its bytes.
                    let piece = match (name, std::str::from_utf8(bytes)) {
                        (Some(name), _) => json!(name),
                        (None, Ok(text)) => json!(text),
                        (None, Err(_)) => json!(bytes),
                    };
                    json!({"id": id, "piece": piece})
                })
                .collect(),
        };
        Ok(Json(json!({"tokens": tokens})))
    })
    .await
}

/// The body of `POST /detokenize`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct DetokenizeFields {
    /// The tokens.
    pub tokens: Vec<u32>,
}

pub(super) async fn detokenize(
    State(app): Shared,
    JsonBody(fields): JsonBody<DetokenizeFields>,
) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    let size = model.tokenizer.vocab_size();
    if let Some(token) = fields.tokens.iter().find(|&&token| token as usize >= size) {
        let reason = format!("there is no token {token}; the model has {size}");
        return Err(ApiError::field("tokens", reason));
    }
    blocking(move || {
        Ok(Json(
            json!({"content": model.tokenizer.decode(&fields.tokens)}),
        ))
    })
    .await
}

/// `POST /apply-template`: the prompt that a chat would be.
pub(super) async fn apply_template(
    State(app): Shared,
    JsonBody(fields): JsonBody<ChatFields>,
) -> Result<Json<Value>, ApiError> {
    let model = app.text()?;
    blocking(move || {
        let tools = fields.tools.as_deref().unwrap_or_default();
        Ok(Json(json!({"prompt": fields.render(&model, tools)?})))
    })
    .await
}
