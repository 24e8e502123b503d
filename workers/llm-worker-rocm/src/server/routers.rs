//! What routers in front of several workers ask each of them: its load, what its model is, how it is set, and which
//! tokens a prompt would be.
//!
//! Routes and fields are SGLang's (`/v1/loads`, `/get_load`, `/server_info`, `/model_info`) and vLLM's (`/version`,
//! `…/render`), as the Shepherd model gateway, vLLM's router and llm-d read them:
//! <https://github.com/lightseekorg/smg>, <https://github.com/vllm-project/router>,
//! <https://github.com/llm-d/llm-d-kv-cache>.

use super::backend::{Loaded, Origin, TextModel};
use super::error::blocking;
use super::generation::{ChatFields, Prompt};
use super::openai::text::CompletionFields;
use super::openai::SamplingFields;
use super::Shared;
use crate::engine::api::Status;
use axum::extract::State;
use axum::Json;
use serde_json::{json, Value};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use worker::http::{ApiError, Both, JsonBody};

/// The shortest time over which a speed is measured.
const SHORTEST: Duration = Duration::from_secs(1);

/// How fast a count grows, between one question and the next.
#[derive(Default)]
pub(super) struct Pace(Mutex<Option<Mark>>);

#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    count: u64,
    per_second: f64,
}

impl Pace {
    /// What the count has grown by in a second since the last time that this was asked, at least a second ago; 0 the
    /// first time.
    fn per_second(&self, count: u64, now: Instant) -> f64 {
        let mut mark = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match *mark {
            None => Mark {
                at: now,
                count,
                per_second: 0.0,
            },
            Some(last) => {
                let passed = now.saturating_duration_since(last.at);
                if passed < SHORTEST {
                    return last.per_second;
                }
                let grown = count.saturating_sub(last.count) as f64;
                Mark {
                    at: now,
                    count,
                    per_second: grown / passed.as_secs_f64(),
                }
            }
        };
        *mark = Some(next);
        next.per_second
    }
}

/// Part of a whole, 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

/// Prompt tokens that the cache holds at a moment, and that it has room for.
fn tokens(status: &Status) -> (usize, usize) {
    let size = status.kv_block_size;
    (status.kv_blocks_used * size, status.kv_blocks_total * size)
}

/// `GET /v1/loads`, `/loads`
pub(super) async fn loads(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    // Models without a queue of the engine's have no more to tell than that they are there.
    let status = (loaded.text.as_ref()).map_or_else(Status::default, |text| text.backend.status());
    let most = loaded.text.as_ref().map_or(1, |text| text.parallel);
    let (used, total) = tokens(&status);
    let known = status.prefix_hit_tokens;
    let load = json!({
        "dp_rank": 0,
        "num_running_reqs": status.running,
        "num_waiting_reqs": status.waiting,
        "num_waiting_uncached_tokens": status.waiting_tokens,
        "num_total_reqs": status.running + status.waiting,
        "num_used_tokens": used,
        "max_total_num_tokens": total,
        "token_usage": share(used as u64, total as u64),
        "gen_throughput": app.pace.per_second(status.generated_tokens, Instant::now()),
        "cache_hit_rate": share(known, known + status.prompt_tokens),
        "utilization": share(status.running as u64, most as u64),
        "max_running_requests": most,
    });
    Ok(Json(json!({
        "timestamp": worker::time::timestamp(),
        "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": 1,
        "loads": [load],
    })))
}

/// `GET /get_load`: the same in the form before.
pub(super) async fn load(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    let status = (loaded.text.as_ref()).map_or_else(Status::default, |text| text.backend.status());
    Ok(Json(json!([{
        "dp_rank": 0,
        "num_reqs": status.running + status.waiting,
        "num_waiting_reqs": status.waiting,
        "num_tokens": tokens(&status).0 + status.waiting_tokens,
    }])))
}

/// A model's file or folder, as a text.
pub(super) fn path(origin: Option<&Origin>) -> Option<String> {
    origin.map(|origin| origin.path.display().to_string())
}

/// Whether a model takes pictures, and whether it takes sounds.
fn takes(text: Option<&Arc<TextModel>>) -> (bool, bool) {
    let processor = text.and_then(|text| text.processor.as_ref().ok());
    processor.map_or((false, false), |processor| {
        (processor.vision().is_ok(), processor.hearing().is_ok())
    })
}

/// `GET /model_info`, `/get_model_info`
pub(super) async fn model_info(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let loaded = app.loaded()?;
    let origin = loaded.origin.as_deref();
    let path = path(origin).unwrap_or_else(|| app.options.model.clone());
    let architecture = origin.and_then(|origin| origin.architecture.as_deref());
    let (pictures, sounds) = takes(loaded.text.as_ref());
    Ok(Json(json!({
        "model_path": path,
        "tokenizer_path": path,
        "served_model_name": app.options.model,
        "is_generation": loaded.text.is_some(),
        "has_image_understanding": pictures,
        "has_audio_understanding": sounds || loaded.transcriber.is_some(),
        "model_type": architecture,
        "architectures": architecture.into_iter().collect::<Vec<_>>(),
        "weight_version": "default",
    })))
}

/// `GET /server_info`, `/get_server_info`
pub(super) async fn server_info(State(app): Shared) -> Result<Json<Value>, ApiError> {
    let Loaded {
        text,
        embedding,
        origin,
        ..
    } = app.loaded()?;
    let status = text.as_ref().map(|text| text.backend.status());
    Ok(Json(json!({
        "model_path": path(origin.as_deref()).unwrap_or_else(|| app.options.model.clone()),
        "served_model_name": app.options.model,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "is_embedding": text.is_none() && embedding.is_some(),
        "context_length": text.as_ref().map(|text| text.backend.context()),
        "max_total_tokens": status.map(|status| tokens(&status).1),
        "max_running_requests": text.map(|text| text.parallel),
        "disaggregation_mode": "null",
        "device": app.frame.identity.device.name,
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

/// `GET /version`
pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// A prompt as vLLM's engine would get it.
fn rendered(model: &str, prompt: &Prompt) -> Value {
    json!({
        "request_id": worker::ids::uuid().simple().to_string(),
        "model": model,
        "token_ids": prompt.tokens,
        "features": null,
    })
}

/// `POST /v1/chat/completions/render`
pub(super) async fn render_chat(
    State(app): Shared,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, ChatFields>>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let (prompt, _) = blocking(move || fields.prompt(&model, &sampling)).await?;
    Ok(Json(rendered(&app.options.model, &prompt)))
}

/// `POST /v1/completions/render`
pub(super) async fn render_text(
    State(app): Shared,
    JsonBody(Both(sampling, fields)): JsonBody<Both<SamplingFields, CompletionFields>>,
) -> Result<Json<Value>, ApiError> {
    app.check_model(sampling.model.as_deref())?;
    let model = app.text()?;
    let prompts = blocking(move || fields.prompts(&model, &sampling)).await?;
    let name = &app.options.model;
    Ok(Json(
        prompts
            .iter()
            .map(|(prompt, _)| rendered(name, prompt))
            .collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_measured_over_a_second_at_least() {
        let pace = Pace::default();
        let start = Instant::now();
        let after = |count, millis| pace.per_second(count, start + Duration::from_millis(millis));
        assert_eq!(after(100, 0), 0.0);
        // Too early to tell.
        assert_eq!(after(150, 500), 0.0);
        assert_eq!(after(300, 2000), 100.0);
        assert_eq!(after(900, 2100), 100.0);
        assert_eq!(after(300, 4000), 0.0);
        // A count that began anew.
        assert_eq!(after(5, 6000), 0.0);
    }
}
