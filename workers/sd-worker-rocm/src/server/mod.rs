//! The HTTP server.
//!
//! | Module      | Routes                                                                                   |
//! |-------------|------------------------------------------------------------------------------------------|
//! | [`health`]  | `/health` `/ready` `/metrics` `/info`                                                    |
//! | [`jobs`]    | `/v1/jobs`: submit (rbee's operations), list, watch, stream, cancel, pictures            |
//! | [`controls`] | `/controlnet/…`: what the web UI's extension lists                                      |
//! | [`openai`]  | `/v1/images/generations` `/v1/images/edits` `/v1/models`                                 |
//! | [`sdapi`]   | `/sdapi/v1/…` as AUTOMATIC1111's web UI answers                                          |
//! | [`page`]    | `/`: a page for people                                                                   |
//!
//! [`request`] turns what they are asked into a [`ValidRequest`](crate::request::ValidRequest), [`answer`] waits and encodes.

pub mod answer;
mod control_folders;
pub mod controls;
pub mod health;
pub mod jobs;
pub mod loras;
pub mod openai;
mod openai_fields;
pub mod page;
pub mod request;
pub mod sdapi;

pub use crate::request::Limits;
pub use control_folders::ControlFolders;
pub use loras::LoraFolders;

use crate::jobs::JobQueue;
use axum::middleware::from_fn_with_state;
use axum::Router;
use std::sync::Arc;
use std::time::Instant;
use worker::http::auth::require_key;
use worker::http::ApiKeys;

/// What the server is told at its start.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// What is too much.
    pub limits: Limits,
    /// Where LoRAs are found.
    pub loras: LoraFolders,
    /// Where ControlNets are found.
    pub controls: ControlFolders,
    /// Who may ask.
    pub keys: ApiKeys,
    /// The device in words, for `/health`.
    pub device: String,
    /// Why `auto` settled for the CPU.
    pub device_fallback: Option<String>,
    /// Previews for clients that do not say how often: with every n-th step, 0 none.
    pub preview_every: usize,
    /// The name that an orchestrator gave this worker.
    pub worker_id: Option<String>,
    /// The port that is listened on.
    pub port: u16,
    /// Web origins whose pages may post forms, besides the server's own; `*` is any.
    pub origins: Vec<String>,
}

/// What handlers share.
#[derive(Clone)]
pub struct App(Arc<Shared>);

struct Shared {
    queue: JobQueue,
    options: ServerOptions,
    started: Instant,
}

impl App {
    /// The state of a server over a queue.
    pub fn new(queue: JobQueue, options: ServerOptions) -> Self {
        Self(Arc::new(Shared {
            queue,
            options,
            started: Instant::now(),
        }))
    }

    /// The queue.
    pub fn queue(&self) -> &JobQueue {
        &self.0.queue
    }

    /// What the server was told at its start.
    pub fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    /// When the server started.
    pub fn started(&self) -> Instant {
        self.0.started
    }

    /// All routes. `/`, `/health`, `/ready` and `/metrics` need no key.
    pub fn router(&self) -> Router {
        let keys = self.options().keys.clone();
        let closed = Router::new()
            .merge(jobs::routes())
            .merge(openai::routes())
            .merge(sdapi::routes())
            .merge(controls::routes())
            .merge(health::closed_routes())
            .layer(from_fn_with_state(keys, require_key));
        Router::new()
            .merge(health::open_routes())
            .merge(page::routes())
            .merge(closed)
            .with_state(self.clone())
    }
}
