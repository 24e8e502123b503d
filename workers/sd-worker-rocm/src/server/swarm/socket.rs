//! `GenerateText2ImageWS`: a request, then how far its pictures are, then these.

use super::{addresses, Asked, Refusal};
use crate::image_io::to_base64;
use crate::jobs::Job;
use crate::server::answer::outcome_of;
use crate::server::App;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use serde_json::{json, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use worker::http::json::{self, Object};
use worker::http::ApiError;
use worker::serve::Model;

/// Most sockets.
const MOST_SOCKETS: usize = 64;
/// How long the request may take to come, and a message to go.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sockets that are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A socket's place among all.
struct Place;

impl Place {
    fn take() -> Result<Self, ApiError> {
        if OPEN.fetch_add(1, Ordering::Relaxed) < MOST_SOCKETS {
            return Ok(Self);
        }
        OPEN.fetch_sub(1, Ordering::Relaxed);
        let reason = format!("{MOST_SOCKETS} sockets are open already");
        Err(ApiError::unavailable("TOO_MANY_SOCKETS", reason))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// `GET /API/GenerateText2ImageWS`.
pub(super) async fn generate(
    Model(app): Model<App>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = upgrade.map_err(|e| ApiError::invalid(format!("this is a WebSocket: {e}")))?;
    let place = Place::take()?;
    let most = app.options().limits.decode.max_bytes;
    let upgrade = upgrade.max_message_size(most).max_frame_size(most);
    Ok(upgrade.on_upgrade(move |socket| async move {
        let _place = place;
        attend(app, socket).await;
    }))
}

async fn attend(app: App, mut socket: WebSocket) {
    let answered = serve(&app, &mut socket).await;
    if let Err(refusal) = answered {
        tell(&mut socket, &refusal.body()).await;
    }
    // It may be gone already.
    let _ = tokio::time::timeout(PATIENCE, socket.send(Message::Close(None))).await;
}

/// Whether a message went out.
async fn tell(socket: &mut WebSocket, message: &Value) -> bool {
    let sending = socket.send(Message::text(message.to_string()));
    matches!(tokio::time::timeout(PATIENCE, sending).await, Ok(Ok(())))
}

async fn serve(app: &App, socket: &mut WebSocket) -> Result<(), Refusal> {
    let first = tokio::time::timeout(PATIENCE, socket.recv()).await;
    let Ok(Some(Ok(Message::Text(text)))) = first else {
        return Err(ApiError::invalid("the first message is the request, as JSON").into());
    };
    let body: Value = serde_json::from_str(&text).map_err(|e| ApiError::invalid(e.to_string()))?;
    let Object(body) = json::from_value(&body)?;
    let session = app.session(&body)?;
    let request = Asked(&body).request(app).await?;
    let waiting = app.submit_waiting(request)?;
    app.swarm().note(&session, &waiting.id);
    let gone = || Refusal::from(ApiError::internal("the job was forgotten"));
    let mut receiver = app.queue().watch(&waiting.id).ok_or_else(gone)?;
    if !tell(socket, &app.swarm_status()).await {
        return Ok(());
    }
    let mut told = Told::default();
    let job = loop {
        let job = receiver.borrow_and_update().clone();
        if let Some(progress) = told.progress(&job) {
            if !tell(socket, &progress).await {
                return Ok(());
            }
        }
        if job.state.is_final() {
            break job;
        }
        tokio::select! {
            changed = receiver.changed() => changed.map_err(|_| gone())?,
            // Whoever goes away wants no pictures; nothing else is said here.
            read = socket.recv() => match read {
                Some(Ok(Message::Close(_)) | Err(_)) | None => return Ok(()),
                Some(Ok(_)) => {}
            },
        }
    };
    let outcome = outcome_of(job)?;
    for (index, (address, picture)) in addresses(&outcome)
        .into_iter()
        .zip(&outcome.pictures)
        .enumerate()
    {
        let image = json!({"image": address, "batch_index": index.to_string(), "metadata": picture.parameters});
        if !tell(socket, &json!({"image": image})).await {
            return Ok(());
        }
    }
    tell(socket, &app.swarm_status()).await;
    Ok(())
}

/// What has been told already.
#[derive(Default)]
struct Told {
    step: Option<usize>,
    preview: Option<Arc<Vec<u8>>>,
}

impl Told {
    /// News of a job's course.
    fn progress(&mut self, job: &Job) -> Option<Value> {
        let is_new = job.preview.as_ref().filter(|new| {
            let old = self.preview.as_ref();
            !old.is_some_and(|old| Arc::ptr_eq(old, new))
        });
        if job.started.is_none()
            || job.total == 0
            || self.step == Some(job.step) && is_new.is_none()
        {
            return None;
        }
        self.step = Some(job.step);
        let mut progress = json!({
            "batch_index": "0",
            "overall_percent": job.progress(),
            "current_percent": job.step as f64 / job.total as f64,
        });
        if let Some(preview) = is_new {
            self.preview = Some(preview.clone());
            progress["preview"] = json!(format!("data:image/png;base64,{}", to_base64(preview)));
        }
        Some(json!({"gen_progress": progress}))
    }
}
