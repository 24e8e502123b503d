//! `/v1/images/generations`, `/v1/images/edits` and `/v1/images/variations` as OpenAI's API has them, with this worker's
//! own settings as further fields.

use super::answer::{encode_all, outcome_of};
use super::openai_fields::{Answer, Fields, Form};
use super::request::Upload;
use super::{pictures, App, ImageWorker};
use crate::image_io::{self, to_base64};
use crate::jobs::Outcome;
use crate::parameters::Parameters;
use crate::request::{InitFields, InterfaceDefaults, RequestFields, ValidRequest};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::Json;
use image::DynamicImage;
use serde_json::{json, Value};
use std::sync::Arc;
use worker::http::sse::{self, Encoding, Protocol};
use worker::http::{base_url, ApiError, JsonBody};
use worker::serve::{Model, Route};
use worker::time::unix;

/// How much of a picture its variations change.
const VARIATION_STRENGTH: f64 = 0.6;

/// The routes.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![
        Route::post(
            "/v1/images/generations",
            "Makes pictures; streams server-sent events on request",
            generations,
        )
        .takes::<Fields>(),
        Route::post(
            "/v1/images/edits",
            "Changes a picture, within a mask if there is one; streams server-sent events on request",
            edits,
        )
        .takes_form::<Fields>(),
        Route::post(
            "/v1/images/variations",
            "Makes pictures like a picture",
            variations,
        )
        .takes_form::<Fields>(),
        Route::get("/v1/models", "The model, in a list", models),
    ]
}

async fn generations(
    Model(app): Model<App>,
    headers: HeaderMap,
    JsonBody(fields): JsonBody<Fields>,
) -> Result<Response, ApiError> {
    let answer = fields.answer()?;
    let request = app.valid_openai(fields.request(&app)?)?;
    respond(
        &app,
        request,
        answer,
        fields.stream.then_some("image_generation"),
        &headers,
    )
    .await
}

/// The form of a request.
async fn form(request: Request) -> Result<Form, ApiError> {
    let form = Multipart::from_request(request, &())
        .await
        .map_err(|e| ApiError::new(e.status(), "INVALID_REQUEST", e.body_text()))?;
    Form::read(form).await
}

async fn edits(Model(app): Model<App>, request: Request) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let mut form = form(request).await?;
    if !form.has_prompt {
        return Err(ApiError::field("prompt", "the form has no prompt"));
    }
    let fields = std::mem::take(&mut form.fields);
    let answer = fields.answer()?;
    let mut request = fields.request(&app)?;
    let looks = *app.queue().info().references.end() > 0;
    let images = match looks && !form.images.is_empty() {
        true => std::mem::take(&mut form.images),
        false => vec![form.only_image()?],
    };
    let mut pictures = Vec::new();
    for image in images {
        pictures.push(app.decode("image", Upload::Bytes(image)).await?);
    }
    let picture = &pictures[0];
    // What is transparent is to be painted: in the mask, or without one in the picture itself.
    let mask = match form.mask {
        Some(mask) => {
            let mask = app.decode("mask", Upload::Bytes(mask)).await?;
            let found = image_io::transparency_mask(&mask);
            Some(found.ok_or_else(|| {
                ApiError::field(
                    "mask",
                    "the mask has no transparent areas; they say what to paint",
                )
            })?)
        }
        None => image_io::transparency_mask(picture)
            .filter(|mask| mask.iter().any(|transparency| *transparency > 0)),
    };
    app.fit(&mut request, picture);
    // A model that looks at pictures makes its own after them; others start from the picture.
    if !looks || mask.is_some() {
        request.init = Some(InitFields {
            strength: fields.strength(mask.is_some()),
            mask,
            ..InitFields::new(image_io::to_rgb(picture))
        });
    }
    if looks {
        request.references = pictures.iter().map(image_io::to_rgb).collect();
    }
    let request = app.valid_openai(request)?;
    let kind = fields.stream.then_some("image_edit");
    respond(&app, request, answer, kind, &headers).await
}

/// The picture is changed a little, by what it says that it was made with, if it does.
async fn variations(Model(app): Model<App>, request: Request) -> Result<Response, ApiError> {
    let headers = request.headers().clone();
    let mut form = form(request).await?;
    let mut fields = std::mem::take(&mut form.fields);
    if form.mask.is_some() {
        let reason = "variations have no mask; edits have";
        return Err(ApiError::field("mask", reason));
    }
    if fields.stream {
        return Err(ApiError::field("stream", "variations are not streamed"));
    }
    let image = form.only_image()?;
    if !form.has_prompt {
        let known = image_io::parameters_of(&image).ok().flatten();
        fields.prompt = known.map_or_else(String::new, |text| Parameters::parse(&text).prompt);
    }
    let answer = fields.answer()?;
    let mut request = fields.request(&app)?;
    let picture = app.decode("image", Upload::Bytes(image)).await?;
    app.fit(&mut request, &picture);
    request.init = Some(InitFields {
        strength: fields.strength(false).or(Some(VARIATION_STRENGTH)),
        ..InitFields::new(image_io::to_rgb(&picture))
    });
    let request = app.valid_openai(request)?;
    respond(&app, request, answer, None, &headers).await
}

impl App {
    fn valid_openai(&self, fields: RequestFields) -> Result<ValidRequest, ApiError> {
        self.valid(fields, &InterfaceDefaults::OPENAI, &self.options().limits)
    }

    /// Gives a request the shape of its picture, where it has no size.
    fn fit(&self, request: &mut RequestFields, picture: &DynamicImage) {
        if request.width.is_none() {
            let (width, height) = self.fitting_size(picture.width(), picture.height());
            (request.width, request.height) = (Some(width), Some(height));
        }
    }

    /// The size nearest to a picture's shape with as many pixels as the model likes.
    fn fitting_size(&self, width: u32, height: u32) -> (usize, usize) {
        let info = self.queue().info();
        let multiple = info.size_multiple.max(8);
        let pixels = (info.defaults.width * info.defaults.height) as f64;
        // Beyond one to four a model sees nothing that it knows.
        let ratio = (f64::from(width) / f64::from(height)).clamp(0.25, 4.0);
        let round = |side: f64| ((side / multiple as f64).round() as usize).max(1) * multiple;
        (
            round((pixels * ratio).sqrt()),
            round((pixels / ratio).sqrt()),
        )
    }
}

async fn respond(
    app: &App,
    request: ValidRequest,
    answer: Answer,
    stream: Option<&'static str>,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    if let Some(kind) = stream {
        return streamed(app, request, answer, kind);
    }
    if answer.by_url {
        return linked(app, request, answer, headers).await;
    }
    let outcome = app.generate(request).await?;
    let data: Vec<Value> = files(&outcome, answer)
        .await?
        .into_iter()
        .map(|(file, seed)| json!({"b64_json": file, "seed": seed}))
        .collect();
    Ok(Json(body(data, &outcome, answer)).into_response())
}

fn body(data: Vec<Value>, outcome: &Outcome, answer: Answer) -> Value {
    let size = outcome
        .pictures
        .first()
        .map(|p| format!("{}x{}", p.image.width(), p.image.height()));
    json!({
        "created": unix(),
        "data": data,
        "output_format": answer.format.extension(),
        "background": "opaque",
        "size": size,
    })
}

async fn files(outcome: &Arc<Outcome>, answer: Answer) -> Result<Vec<(String, u64)>, ApiError> {
    let files = encode_all(outcome.clone(), answer.format, answer.quality).await?;
    let seeds = outcome.pictures.iter().map(|p| p.seed);
    Ok(files.iter().map(|f| to_base64(f)).zip(seeds).collect())
}

/// Addresses of the job's pictures that a browser can follow, good as long as the job is kept.
async fn linked(
    app: &App,
    request: ValidRequest,
    answer: Answer,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let waiting = app.submit_waiting(request)?;
    let job = app.queue().finished(&waiting.id).await;
    let outcome = outcome_of(job.ok_or_else(|| ApiError::internal("the job was forgotten"))?)?;
    let base = base_url(headers, app.port());
    let pictures = outcome.pictures.iter();
    let data = pictures
        .map(|picture| {
            let path = pictures::path(picture, answer.format, answer.quality);
            json!({"url": format!("{base}{path}"), "seed": picture.seed})
        })
        .collect();
    Ok(Json(body(data, &outcome, answer)).into_response())
}

/// OpenAI's named events: `….partial_image`, `….completed` for each picture.
fn streamed(
    app: &App,
    request: ValidRequest,
    answer: Answer,
    kind: &'static str,
) -> Result<Response, ApiError> {
    const PROTOCOL: Protocol = Protocol {
        encoding: Encoding::Events,
        failure: |error| {
            let mut body = error.to_json();
            body["type"] = json!("error");
            sse::named("error", &body)
        },
        done: None,
    };
    let waiting = app.submit_waiting(request)?;
    let receiver = app.queue().watch(&waiting.id);
    let mut receiver = receiver.ok_or_else(|| ApiError::internal("the job was forgotten"))?;
    Ok(sse::stream(PROTOCOL, |frames| async move {
        // Dropped with this future: when the client goes away, the job is cancelled.
        let _waiting = waiting;
        let mut last_preview: Option<Arc<Vec<u8>>> = None;
        let mut index = 0;
        let job = loop {
            let job = receiver.borrow_and_update().clone();
            if job.state.is_final() {
                break job;
            }
            if let Some(preview) = job.preview {
                let known = last_preview.as_ref();
                if !known.is_some_and(|known| Arc::ptr_eq(known, &preview)) {
                    let name = format!("{kind}.partial_image");
                    let body = json!({
                        "type": name, "b64_json": to_base64(&preview), "partial_image_index": index,
                        "created_at": unix(), "output_format": "png",
                    });
                    frames.send(sse::named(&name, &body)).await;
                    index += 1;
                    last_preview = Some(preview);
                }
            }
            if receiver.changed().await.is_err() {
                return Err(ApiError::internal("the job was forgotten"));
            }
        };
        let outcome = outcome_of(job)?;
        for (file, seed) in files(&outcome, answer).await? {
            let name = format!("{kind}.completed");
            let body = json!({
                "type": name, "b64_json": file, "seed": seed, "created_at": unix(),
                "output_format": answer.format.extension(),
            });
            frames.send(sse::named(&name, &body)).await;
        }
        Ok(())
    }))
}

async fn models(Model(app): Model<App>) -> Json<Value> {
    let name = &app.queue().info().name;
    Json(json!({
        "object": "list",
        "data": [{
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "local",
            "aliases": app.options().aliases,
        }],
    }))
}
