//! `POST /prompt`: a graph is put in line, and followed until its pictures are there.

use super::check::Invalid;
use super::request::{failure, outputs_of, Saved, Work};
use super::socket::queue_status;
use super::state::{Done, File, Record};
use super::Sent;
use crate::editing::resize::Filter;
use crate::jobs::{Job, State};
use crate::server::answer::outcome_of;
use crate::server::sdapi::extras::TURN;
use crate::server::App;
use crate::upscale::{enlarge, Network, Tiling};
use axum::Json;
use candle_core::Device;
use image::RgbImage;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Value};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use worker::http::{blocking, ApiError};
use worker::serve::Model;
use worker::time::unix_seconds;

/// Longest name that a client gives itself or a graph.
const MOST_NAME: usize = 256;

/// A graph, and who sends it.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ComfyFields")]
pub(super) struct Body {
    /// Nodes by their numbers: `{"3": {"class_type": "KSampler", "inputs": {…}}, …}`.
    prompt: Option<Value>,
    /// Who is told on `/ws`.
    client_id: Option<String>,
    /// The graph's name; a new one if left out.
    prompt_id: Option<String>,
    #[serde(default)]
    extra_data: Value,
    /// Of the nodes that save or show, these alone.
    partial_execution_targets: Option<Vec<String>>,
    #[serde(default)]
    front: bool,
    number: Option<f64>,
}

/// Puts a graph in line.
pub(super) async fn submit(
    Model(app): Model<App>,
    Sent(given): Sent,
) -> Result<Json<Value>, Invalid> {
    let body: Body = worker::http::json::from_value(&Value::Object(given))?;
    let no_prompt = || Invalid::whole("no_prompt", "No prompt provided", "No prompt provided");
    let graph = body.prompt.ok_or_else(no_prompt)?;
    if body.front || body.number.is_some() {
        let what = "front and number are not implemented here: graphs are made in their order";
        return Err(Invalid::whole("not_implemented", what, ""));
    }
    let client = body.client_id.filter(|client| client.len() <= MOST_NAME);
    let id = body
        .prompt_id
        .filter(|id| (1..=MOST_NAME).contains(&id.len()));
    let id = id.unwrap_or_else(|| worker::ids::uuid().to_string());
    let work = app
        .comfy_work(&graph, body.partial_execution_targets.as_deref())
        .await?;
    let number = app.comfy().next();
    let outputs = outputs_of(&work);
    let job = app.submit(work.request.clone())?;
    let bytes = graph.to_string().len() + body.extra_data.to_string().len();
    let record = Record {
        id: id.clone(),
        number,
        graph: Arc::new(graph),
        bytes,
        extra: body.extra_data,
        outputs,
        job: job.clone(),
        files: Vec::new(),
        done: None,
    };
    if !app.comfy().add(record, app.queue()) {
        app.queue().cancel(&job);
        let details = format!("there is a graph {id:?} already");
        return Err(Invalid::whole(
            "invalid_prompt",
            "prompt_id is taken",
            &details,
        ));
    }
    app.comfy().events.tell(None, "status", &queue_status(&app));
    let follower = Follower {
        app,
        id: id.clone(),
        client,
        job,
        work,
        messages: Vec::new(),
    };
    tokio::spawn(follower.run());
    Ok(Json(
        json!({"prompt_id": id, "number": number, "node_errors": {}}),
    ))
}

/// Follows a graph's job and tells of it.
struct Follower {
    app: App,
    id: String,
    client: Option<String>,
    job: String,
    work: Work,
    /// For history.
    messages: Vec<Value>,
}

impl Follower {
    async fn run(mut self) {
        let last = self.follow().await;
        let succeeded = match last {
            Some(job) if job.state == State::Completed => self.finish(job).await,
            Some(job) if job.state == State::Cancelled => {
                self.keep("execution_interrupted", json!({
                    "prompt_id": self.id, "node_id": self.work.sampler, "node_type": "KSampler", "executed": [],
                }));
                false
            }
            Some(job) => {
                let failure = job.failure;
                let (kind, message) =
                    failure.map_or(("ERROR", String::new()), |f| (f.code, f.message));
                self.fail(kind, &message);
                false
            }
            None => {
                self.fail("ERROR", "the job was forgotten");
                false
            }
        };
        if succeeded {
            self.keep(
                "execution_success",
                json!({"prompt_id": self.id, "timestamp": now()}),
            );
        }
        let messages = std::mem::take(&mut self.messages);
        self.app.comfy().change(&self.id, |record| {
            record.done = Some(Done {
                succeeded,
                messages,
            });
        });
        self.tell("executing", &json!({"node": null, "prompt_id": self.id}));
        self.app
            .comfy()
            .events
            .tell(None, "status", &queue_status(&self.app));
    }

    /// Tells the client.
    fn tell(&self, kind: &str, data: &Value) {
        // ComfyUI tells these to all where nobody has said who listens.
        self.app
            .comfy()
            .events
            .tell(self.client.as_deref(), kind, data);
    }

    /// Tells the client, and history later.
    fn keep(&mut self, kind: &str, data: Value) {
        self.tell(kind, &data);
        self.messages.push(json!([kind, data]));
    }

    fn fail(&mut self, kind: &str, message: &str) {
        let data = failure(&self.id, &self.work.sampler, "KSampler", kind, message);
        self.keep("execution_error", data);
    }

    /// Until the job has ended: its last state.
    async fn follow(&mut self) -> Option<Job> {
        let mut receiver = self.app.queue().watch(&self.job)?;
        let (mut begun, mut step) = (false, None);
        let mut preview: Option<Arc<Vec<u8>>> = None;
        loop {
            let job = receiver.borrow_and_update().clone();
            if job.started.is_some() && !begun {
                begun = true;
                self.keep(
                    "execution_start",
                    json!({"prompt_id": self.id, "timestamp": now()}),
                );
                self.keep(
                    "execution_cached",
                    json!({"nodes": [], "prompt_id": self.id, "timestamp": now()}),
                );
                let node = &self.work.sampler;
                self.tell(
                    "executing",
                    &json!({"node": node, "display_node": node, "prompt_id": self.id}),
                );
            }
            if begun && job.total > 0 && step != Some(job.step) {
                step = Some(job.step);
                let data = json!({
                    "value": job.step, "max": job.total, "prompt_id": self.id, "node": self.work.sampler,
                });
                self.tell("progress", &data);
            }
            if let (Some(new), Some(client)) = (&job.preview, &self.client) {
                if !preview.as_ref().is_some_and(|old| Arc::ptr_eq(old, new)) {
                    self.app.comfy().events.show(client, new);
                    preview = Some(new.clone());
                }
            }
            if job.state.is_final() {
                return Some(job);
            }
            receiver.changed().await.ok()?;
        }
    }

    /// What comes behind the sampler; whether all went well.
    async fn finish(&mut self, job: Job) -> bool {
        let Ok(outcome) = outcome_of(job) else {
            self.fail("ERROR", "the pictures are gone");
            return false;
        };
        for saved in std::mem::take(&mut self.work.outputs) {
            let node = saved.node.clone();
            self.tell(
                "executing",
                &json!({"node": node, "display_node": node, "prompt_id": self.id}),
            );
            let mut files = Vec::new();
            for picture in 0..outcome.pictures.len() {
                let larger = match saved.upscalers.is_empty() {
                    true => None,
                    false => {
                        let image = outcome.pictures[picture].image.clone();
                        match self.upscaled(image, saved.upscalers.clone()).await {
                            Ok(larger) => Some(Arc::new(larger)),
                            Err(error) => {
                                self.fail(error.code, &error.message);
                                return false;
                            }
                        }
                    }
                };
                files.push(self.file(&saved, picture, larger));
            }
            let images: Vec<Value> = files.iter().map(File::told).collect();
            self.app.comfy().change(&self.id, |record| {
                let larger = files.iter().filter_map(|file| file.larger.as_ref());
                record.bytes += larger.map(|image| image.len()).sum::<usize>();
                record.files.extend(files);
            });
            let data = json!({
                "node": node, "display_node": node, "output": {"images": images}, "prompt_id": self.id,
            });
            self.tell("executed", &data);
        }
        true
    }

    fn file(&self, saved: &Saved, picture: usize, larger: Option<Arc<RgbImage>>) -> File {
        let number = self.app.comfy().next_file();
        File {
            node: saved.node.clone(),
            name: format!("{}_{number:05}_.png", saved.prefix),
            folder: saved.folder.clone(),
            kind: saved.kind,
            picture,
            larger,
        }
    }

    /// A picture made larger by networks, one after the other, by as much as they do.
    async fn upscaled(
        &self,
        image: RgbImage,
        networks: Vec<PathBuf>,
    ) -> Result<RgbImage, ApiError> {
        let devices = self.app.devices();
        let device = devices
            .first()
            .map_or(Device::Cpu, |device| device.device.clone());
        let limit = self.app.options().limits.decode.max_pixels;
        let turn = TURN.acquire().await;
        let _turn = turn.map_err(|_| ApiError::internal("no picture is made larger any more"))?;
        let made = blocking(move || {
            let device = worker::device::beside(&device)?;
            let mut image = image;
            for path in networks {
                let mut network = Network::open(&path, &device)?;
                let scale = network.scale() as u32;
                let size = (
                    image.width().saturating_mul(scale),
                    image.height().saturating_mul(scale),
                );
                if u64::from(size.0) * u64::from(size.1) > limit {
                    let reason = format!("{} x {} are more than {limit} pixels", size.0, size.1);
                    return Err(worker::Error::Usage(reason));
                }
                let tiling = Tiling::default();
                let mut go_on = |_, _| ControlFlow::Continue(());
                let larger = enlarge(
                    &image,
                    Some((&mut network, &tiling)),
                    Filter::Lanczos,
                    size,
                    &mut go_on,
                )?;
                image = larger.unwrap_or(image);
            }
            Ok(image)
        });
        made.await?
            .map_err(|e: worker::Error| ApiError::internal(e.to_string()))
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    (unix_seconds(SystemTime::now()) * 1000.0) as u64
}
