//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`

use crate::server::app::App;
use crate::server::transcriber::{Recording, Transcriber};
use crate::whisper::format::{brief, verbose, TranscriptFormat};
use crate::whisper::{rising, TranscribeOptions, Transcript};
use axum::extract::multipart::MultipartError;
use axum::extract::{Multipart, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use worker::http::sse::{self, Frames};
use worker::http::ApiError;

/// Longest field that is no file, in bytes: a prompt has some hundred tokens that count.
const MAX_FIELD_BYTES: usize = 64 << 10;

/// The fields of a form with sound.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct TranscriptionFields {
    /// The sound: a file in WAV, FLAC, MP3, AAC (also in MP4: m4a), Ogg Vorbis, AIFF, or a container with one of these.
    #[schemars(with = "String")]
    pub file: Vec<u8>,
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// The language that is spoken, by its code or English name; found out if absent.
    pub language: Option<String>,
    /// A text that may stand before the recording: names, spellings, style.
    pub prompt: Option<String>,
    /// `json` (the default), `text`, `srt`, `verbose_json` or `vtt`.
    pub response_format: Option<String>,
    /// From 0 to 1: what answers are drawn with first; it rises where an answer makes no sense. 0 if absent.
    pub temperature: Option<f32>,
    /// Of `verbose_json`: `segment` (the default), `word`, or both; may be called `timestamp_granularities[]`.
    pub timestamp_granularities: Vec<String>,
    /// Whether to answer with server-sent events as segments are written down; for `json` and `text`.
    pub stream: bool,
}

impl TranscriptionFields {
    /// Reads a form.
    async fn read(mut form: Multipart) -> Result<Self, ApiError> {
        let failed =
            |e: MultipartError| ApiError::new(e.status(), "INVALID_REQUEST", e.body_text());
        let (mut read, mut has_file) = (Self::default(), false);
        while let Some(mut field) = form.next_field().await.map_err(failed)? {
            let name = field.name().unwrap_or_default().to_string();
            if name == "file" {
                if has_file {
                    return Err(ApiError::field("file", "the form has two files"));
                }
                read.file = field.bytes().await.map_err(failed)?.to_vec();
                has_file = true;
                continue;
            }
            let mut value = Vec::new();
            while let Some(part) = field.chunk().await.map_err(failed)? {
                value.extend_from_slice(&part);
                if value.len() > MAX_FIELD_BYTES {
                    let reason = format!("{name} has more than {MAX_FIELD_BYTES} bytes");
                    return Err(ApiError::field(name, reason));
                }
            }
            let value = String::from_utf8(value);
            let value =
                value.map_err(|_| ApiError::field(&name, format!("{name} is not UTF-8")))?;
            read.set(&name, value)?;
        }
        match has_file {
            true => Ok(read),
            false => Err(ApiError::field("file", "the form has no file")),
        }
    }

    /// Takes a field; unknown ones count as little as in JSON.
    fn set(&mut self, name: &str, value: String) -> Result<(), ApiError> {
        let refuse = |reason: String| Err(ApiError::field(name, reason));
        match name {
            "model" => self.model = Some(value),
            "language" => self.language = Some(value).filter(|text| !text.trim().is_empty()),
            "prompt" => self.prompt = Some(value),
            "response_format" => self.response_format = Some(value),
            "temperature" => match value.trim().parse::<f32>() {
                Ok(t) if (0.0..=1.0).contains(&t) => self.temperature = Some(t),
                _ => return refuse(format!("temperature {value:?} is not from 0 to 1")),
            },
            "timestamp_granularities" | "timestamp_granularities[]" => match value.as_str() {
                "segment" | "word" => self.timestamp_granularities.push(value),
                other => {
                    return refuse(format!(
                        "timestamp_granularities {other:?} is unknown; segment and word are known"
                    ))
                }
            },
            "stream" => match value.as_str() {
                "true" | "True" | "1" => self.stream = true,
                "false" | "False" | "0" | "" => self.stream = false,
                other => return refuse(format!("stream {other:?} is not true or false")),
            },
            "include" | "include[]" => {
                return refuse(format!("include {value:?} is not implemented"));
            }
            "chunking_strategy" if value != "auto" => {
                return refuse("chunking_strategy is \"auto\" only".to_string());
            }
            _ => {}
        }
        Ok(())
    }

    /// The form of the answer.
    fn format(&self) -> Result<TranscriptFormat, ApiError> {
        let name = self.response_format.as_deref().unwrap_or("json");
        let format = TranscriptFormat::from_name(name).ok_or_else(|| {
            let names = TranscriptFormat::NAMES.join(", ");
            let reason = format!("response_format {name:?} is unknown; {names} are known");
            ApiError::field("response_format", reason)
        })?;
        let verbose = format == TranscriptFormat::VerboseJson;
        if !self.timestamp_granularities.is_empty() && !verbose {
            return Err(ApiError::field(
                "timestamp_granularities",
                "timestamp_granularities are of response_format verbose_json only",
            ));
        }
        if self.stream && !matches!(format, TranscriptFormat::Json | TranscriptFormat::Text) {
            return Err(ApiError::field(
                "stream",
                format!("a stream carries text only, not {name}"),
            ));
        }
        Ok(format)
    }

    fn wants(&self, granularity: &str) -> bool {
        self.timestamp_granularities
            .iter()
            .any(|g| g == granularity)
    }

    fn options(&self, translate: bool) -> TranscribeOptions {
        TranscribeOptions {
            language: self.language.clone(),
            translate,
            prompt: self.prompt.clone(),
            temperatures: rising(self.temperature.unwrap_or(0.0)),
            words: self.wants("word"),
            ..TranscribeOptions::default()
        }
    }
}

pub async fn create(State(app): State<Arc<App>>, form: Multipart) -> Result<Response, ApiError> {
    answer(app, TranscriptionFields::read(form).await?, false).await
}

pub async fn translate(State(app): State<Arc<App>>, form: Multipart) -> Result<Response, ApiError> {
    answer(app, TranscriptionFields::read(form).await?, true).await
}

/// What a recording tells on its way.
enum Told {
    /// Its file is sound.
    Begun,
    /// A stretch of speech.
    Text(String),
}

/// A recording that somebody waits for. Dropping it gives it up.
struct Running {
    task: JoinHandle<Result<Transcript, ApiError>>,
    told: UnboundedReceiver<Told>,
    given_up: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        // In the queue it would wait for its turn to see that.
        self.task.abort();
    }
}

impl Running {
    fn new(app: &Arc<App>, model: Arc<Transcriber>, recording: Recording) -> Self {
        let given_up = recording.given_up.clone();
        let (sender, told) = unbounded_channel();
        let (app, arrived) = (app.clone(), Instant::now());
        let place = model.queue();
        let task = worker::observe::spawn(async move {
            let shared = app.clone();
            let work = move || {
                drop(place);
                shared.metrics.started(arrived.elapsed());
                let result = run(&model, &recording, &sender);
                shared.metrics.finished(arrived.elapsed());
                result
            };
            app.transcriptions.run(work).await
        });
        Self {
            task,
            told,
            given_up,
        }
    }

    async fn result(&mut self) -> Result<Transcript, ApiError> {
        match (&mut self.task).await {
            Ok(result) => result,
            Err(error) => Err(ApiError::internal(error.to_string())),
        }
    }
}

fn run(
    model: &Transcriber,
    recording: &Recording,
    sender: &UnboundedSender<Told>,
) -> Result<Transcript, ApiError> {
    // Nobody hears what is told of a recording that was given up.
    let tell = |told: Told| drop(sender.send(told));
    let segment = |segment: &crate::whisper::Segment| tell(Told::Text(segment.text.clone()));
    model.run(recording, || tell(Told::Begun), segment)
}

async fn answer(
    app: Arc<App>,
    fields: TranscriptionFields,
    translate: bool,
) -> Result<Response, ApiError> {
    app.check_model(fields.model.as_deref())?;
    let model = app.transcriber()?;
    let format = fields.format()?;
    let (only_words, stream) = (
        fields.wants("word") && !fields.wants("segment"),
        fields.stream,
    );
    let recording = Recording {
        options: fields.options(translate),
        file: fields.file,
        deadline: app.options.timeout.map(|timeout| Instant::now() + timeout),
        given_up: Arc::default(),
    };
    let mut running = Running::new(&app, model, recording);
    if stream {
        // Whatever is wrong with the file is told by the answer's status.
        return match running.told.recv().await {
            Some(_) => Ok(sse::stream(sse::OPENAI, |frames| deltas(running, frames))),
            None => match running.result().await {
                Err(error) => Err(error),
                Ok(_) => Err(ApiError::internal("the recording has no beginning")),
            },
        };
    }
    let transcript = running.result().await?;
    Ok(match format {
        TranscriptFormat::Json => Json(brief(&transcript)).into_response(),
        TranscriptFormat::VerboseJson => {
            let mut json = verbose(&transcript, translate);
            if let (true, Some(fields)) = (only_words, json.as_object_mut()) {
                fields.remove("segments");
            }
            Json(json).into_response()
        }
        _ => {
            let text = format.whole(&transcript, translate);
            ([(CONTENT_TYPE, format.media_type())], text).into_response()
        }
    })
}

/// The text as it is written down, then as a whole.
async fn deltas(mut running: Running, frames: Frames) -> Result<(), ApiError> {
    let mut is_first = true;
    while let Some(told) = running.told.recv().await {
        let Told::Text(text) = told else { continue };
        let delta = match is_first {
            true => text.trim_start(),
            false => &text,
        };
        is_first = false;
        let event = json!({"type": "transcript.text.delta", "delta": delta});
        frames.send(sse::data(&event)).await;
    }
    let transcript = running.result().await?;
    let mut event = brief(&transcript);
    event["type"] = json!("transcript.text.done");
    frames.send(sse::data(&event)).await;
    Ok(())
}
