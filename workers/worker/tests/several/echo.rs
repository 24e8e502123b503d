//! A worker whose models say again what they are told.

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::Json;
use clap::{Args, Parser, Subcommand};
use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::cli::LogArgs;
use worker::device::{DeviceArgs, DeviceRequest};
use worker::http::sse::{self, OPENAI};
use worker::http::{ApiError, Caller, JsonBody};
use worker::hub::HubOptions;
use worker::serve::fleet::{self, FleetArgs, FleetSetup, FleetWorker, ModelFiles};
use worker::serve::{
    self, Figure, Frame, Identity, Model, Route, Routes, Served, ServerArgs, Status, Worker,
};
use worker::{Error, Result};

#[derive(Debug, Parser)]
#[command(name = "echo")]
pub struct Program {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<ServeArgs>),
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[arg(long = "model", short)]
    models: Vec<String>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[arg(long)]
    model_ref: Option<String>,
    #[arg(long = "alias")]
    aliases: Vec<String>,
    #[arg(long, default_value_t = 0)]
    sleep_after: u64,
}

impl worker::cli::Program for Program {
    const PREFIX: &'static str = "ECHO";

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_service(&self) -> bool {
        true
    }

    fn run(self) -> Result<()> {
        let Command::Serve(args) = self.command;
        let name = args.model_ref.clone().unwrap_or_default();
        let make = |identity: Identity| {
            Arc::new(EchoWorker {
                frame: Frame::new(identity, "echo"),
                name,
            })
        };
        if args.fleet.is_wanted(args.models.len()) {
            let setup = FleetSetup {
                args: args.fleet,
                named: args.models,
                hub: HubOptions::from_env(),
            };
            return fleet::serve::<Self, EchoWorker>(&args.server, setup, make);
        }
        serve::supervised(&args.server, DeviceRequest::Cpu, || {
            let device = (&DeviceRequest::Cpu.open()?).into();
            let path = args.models.first().cloned().unwrap_or_default();
            serve::start(&args.server, device, make, move |worker| {
                load(worker, &path)
            })
        })
    }
}

/// Does what the lines of a model's file say.
fn load(worker: &EchoWorker, path: &str) -> Result<Echo> {
    let text = std::fs::read_to_string(path).map_err(Error::io(std::path::Path::new(path)))?;
    for line in text.lines() {
        match line.split_once('=') {
            Some(("load-ms", time)) => {
                worker.frame.progress.expect(10);
                for _ in 0..10 {
                    worker.frame.progress.add(1);
                    std::thread::sleep(Duration::from_millis(time.parse::<u64>().unwrap() / 10));
                }
            }
            Some(("fail", reason)) => return Err(Error::Usage(format!("{path}: {reason}"))),
            Some(("cramped", file)) if std::path::Path::new(file).exists() => {
                return Err(Error::Candle {
                    context: "making room",
                    source: candle_core::Error::Rocm(candle_core::rocm_backend::RocmError::Device(
                        Box::new(candle_rocm::Error::OutOfMemory {
                            ordinal: 0,
                            requested: 5,
                            free: 4,
                            total: 9,
                            cached: 0,
                            live: 1,
                        }),
                    )),
                })
            }
            _ => {}
        }
    }
    Ok(Echo::default())
}

#[derive(Clone, Default)]
pub struct Echo(Arc<Inner>);

#[derive(Default)]
struct Inner {
    asleep: AtomicBool,
    stopping: AtomicBool,
    running: AtomicUsize,
}

impl Served for Echo {
    fn status(&self) -> Status {
        Status::default()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::level(
            "running",
            "Answers that run",
            self.0.running.load(Ordering::SeqCst) as u64,
        )]
    }

    fn stop(&self, grace: Duration) {
        let end = Instant::now() + grace;
        while self.0.running.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.0.stopping.store(true, Ordering::SeqCst);
        while self.0.running.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub struct EchoWorker {
    frame: Frame<Echo>,
    name: String,
}

impl Worker for EchoWorker {
    type Loaded = Echo;

    const NAME: &'static str = "echo";
    const VERSION: &'static str = "1.0.0";

    fn frame(&self) -> &Frame<Echo> {
        &self.frame
    }

    fn model(&self) -> String {
        self.name.clone()
    }

    fn routes() -> Routes<Self> {
        Routes {
            public: vec![Route::get("/", "The page", || async { "page" })],
            protected: vec![
                Route::post("/v1/completions", "Says it again", complete).takes::<Said>(),
                Route::get("/v1/models", "The model", models),
                Route::post("/mirror/{part}", "What has come", mirror).takes::<Said>(),
                Route::post("/sleep", "Sleeps", sleep).takes::<Said>(),
                Route::post("/wake_up", "Wakes up", wake_up).takes::<Said>(),
            ],
        }
    }
}

impl FleetWorker for EchoWorker {
    const MODEL_FILES: ModelFiles = ModelFiles {
        endings: &["echo"],
        folder_marks: &["echo.json"],
    };
}

#[derive(Debug, Default, serde::Deserialize, schemars::JsonSchema)]
#[serde(default)]
struct Said {
    prompt: String,
    stream: bool,
}

/// Counts an answer while it is there.
struct Running(Echo);

impl Running {
    fn new(echo: Echo) -> Self {
        echo.0.running.fetch_add(1, Ordering::SeqCst);
        Self(echo)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0 .0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A whole answer, or a stream without an end.
async fn complete(
    State(worker): State<Arc<EchoWorker>>,
    JsonBody(said): JsonBody<Said>,
) -> std::result::Result<Response, ApiError> {
    let echo = worker.frame.serving()?;
    if echo.0.asleep.load(Ordering::SeqCst) {
        return Err(ApiError::internal("it sleeps"));
    }
    let running = Running::new(echo);
    if !said.stream {
        let answer = json!({"model": worker.name, "choices": [{"text": said.prompt}]});
        return Ok(Json(answer).into_response());
    }
    Ok(sse::stream(OPENAI, move |frames| async move {
        while !running.0 .0.stopping.load(Ordering::SeqCst) {
            frames.send(sse::data(&json!({"text": said.prompt}))).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Err(ApiError::unavailable("CANCELLED", "the server is stopping"))
    }))
}

async fn models(State(worker): State<Arc<EchoWorker>>, _: Model<Echo>) -> Json<Value> {
    Json(json!({"data": [{"id": worker.name, "voices": 3}, {"id": "loud", "root": "x"}]}))
}

/// What the process has got, with a header of its own.
async fn mirror(
    State(worker): State<Arc<EchoWorker>>,
    caller: Caller,
    Path(part): Path<String>,
    headers: HeaderMap,
    body: String,
) -> Response {
    if part != worker.name && part != "any" {
        return ApiError::not_found("it is somebody else's").into_response();
    }
    let all: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| {
            (
                name.to_string(),
                value.to_str().unwrap_or_default().to_string(),
            )
        })
        .collect();
    let mut response =
        Json(json!({"model": worker.name, "headers": all, "body": body, "caller": caller.0}))
            .into_response();
    response
        .headers_mut()
        .insert("x-mirror", "polished".parse().unwrap());
    response
}

async fn sleep(Model(echo): Model<Echo>) -> Json<Value> {
    echo.0.asleep.store(true, Ordering::SeqCst);
    Json(json!({"is_sleeping": true}))
}

async fn wake_up(Model(echo): Model<Echo>) -> Json<Value> {
    echo.0.asleep.store(false, Ordering::SeqCst);
    Json(json!({"is_sleeping": false}))
}
