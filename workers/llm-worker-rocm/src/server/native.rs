//! llama.cpp's own API.
//!
//! | Module         | Gives                                                  |
//! |----------------|--------------------------------------------------------|
//! | here           | properties, tokens, templates                          |
//! | [`completion`] | `/completion`                                          |
//! | [`infill`]     | `/infill`: the middle of a text                        |
//! | [`predict`]    | `/predict`: several requests in one                    |
//! | [`prompts`]    | what a prompt can be                                   |
//! | [`request`]    | fields, and what they ask of the engine                |
//! | [`reply`]      | answers, whole or as they come                         |
//! | [`settings`]   | how an answer is generated                             |

pub(super) mod completion;
pub(super) mod infill;
pub(super) mod predict;
mod prompts;
pub(super) mod reply;
mod request;
pub(super) mod settings;

pub use infill::InfillFields;
pub use predict::PredictFields;
pub(super) use reply::PROTOCOL;
pub use request::NativeFields;

use super::error::blocking;
use super::openai::chat::ChatFields;
use super::Shared;
use crate::tokenizer::Tokenizer;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{json, Value};
use worker::http::{ApiError, JsonBody};

/// Longest text of `POST /tokenize`: tokenizing takes 270 times a text's memory, where each character is a token.
const MAX_TOKENIZED_BYTES: usize = 768 << 10;

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
            "samplers": sampling.order.samplers().iter().map(|s| s.name()).collect::<Vec<_>>(),
            "timeout_ms": app.options.timeout.map(|t| t.as_millis() as u64),
        },
        "model_alias": app.options.model,
        "endpoint_slots": app.options.slots,
        "endpoint_metrics": true,
        "endpoint_props": false,
    });
    if let Some(text) = loaded.text {
        let mut params = settings::of_sampling(sampling);
        params.insert(
            "seed".to_string(),
            json!(app.options.seed.map_or(-1, |seed| seed as i64)),
        );
        let most = app.options.max_tokens.map_or(-1, |most| most as i64);
        params.insert("n_predict".to_string(), json!(most));
        props["default_generation_settings"]["params"] = Value::Object(params);
        props["default_generation_settings"]["n_ctx"] = json!(text.backend.context());
        if let Some(split) = &text.split {
            props["split"] = json!(split);
        }
        props["total_slots"] = json!(text.parallel);
        props["is_sleeping"] = json!(text.backend.status().asleep);
        props["model_path"] = json!(text.file_name);
        props["media_marker"] = json!(prompts::MEDIA_MARK);
        let takes = |vision: bool| match &text.processor {
            Ok(processor) if vision => processor.vision().is_ok(),
            Ok(processor) => processor.hearing().is_ok(),
            Err(_) => false,
        };
        props["modalities"] = json!({"vision": takes(true), "audio": takes(false)});
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

/// Refuses a text that is too long to be tokenized at once.
///
/// # Errors
/// 400 that names the field.
pub(super) fn check_tokenized(field: &str, text: &str) -> Result<(), ApiError> {
    let length = text.len();
    if length > MAX_TOKENIZED_BYTES {
        let reason = format!(
            "{field}: {length} bytes; at most {MAX_TOKENIZED_BYTES} are tokenized at once, so send parts"
        );
        return Err(ApiError::field(field, reason));
    }
    Ok(())
}

pub(super) async fn tokenize(
    State(app): Shared,
    JsonBody(fields): JsonBody<TokenizeFields>,
) -> Result<Response, ApiError> {
    let model = app.text()?;
    check_tokenized("content", &fields.content)?;
    blocking(move || {
        let tokens = model
            .tokenizer
            .encode(&fields.content, fields.add_special)
            .map_err(|e| ApiError::field("content", e.to_string()))?;
        let tokenizer = &*model.tokenizer;
        let text = match fields.with_pieces {
            false => serde_json::to_string(&Tokens { tokens: &tokens }),
            true => serde_json::to_string(&Pieces {
                tokens: Listed {
                    tokenizer,
                    tokens: &tokens,
                },
            }),
        };
        let text = text.map_err(|e| ApiError::internal(e.to_string()))?;
        Ok(([(CONTENT_TYPE, "application/json")], text).into_response())
    })
    .await
}

#[derive(Serialize)]
struct Tokens<'a> {
    tokens: &'a [u32],
}

#[derive(Serialize)]
struct Pieces<'a> {
    tokens: Listed<'a>,
}

/// Tokens with their texts, written one after the other: there may be a million.
struct Listed<'a> {
    tokenizer: &'a Tokenizer,
    tokens: &'a [u32],
}

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.tokens.iter().map(|&id| {
            let bytes = self.tokenizer.token_bytes(id);
            // A piece that is not text by itself is told as its bytes.
            let piece = match (self.tokenizer.control_text(id), std::str::from_utf8(bytes)) {
                (Some(text), _) | (None, Ok(text)) => Piece::Text(text),
                (None, Err(_)) => Piece::Bytes(bytes),
            };
            TokenPiece { id, piece }
        }))
    }
}

#[derive(Serialize)]
struct TokenPiece<'a> {
    id: u32,
    piece: Piece<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
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
        let tokenizer = &model.tokenizer;
        Ok(Json(json!({
            "content": tokenizer.decode(&fields.tokens),
            // vLLM's name, with control tokens spelled.
            "prompt": tokenizer.spell(&fields.tokens),
        })))
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
        Ok(Json(json!({"prompt": fields.render(&model, tools)?.text})))
    })
    .await
}
