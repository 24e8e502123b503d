//! `/ws`: what goes on, told as it happens.

use crate::server::App;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::Query;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{channel, Sender};
use worker::http::ApiError;
use worker::serve::Model;

/// Events that a slow reader may be behind; it misses those before.
const BEHIND: usize = 256;
/// Most sockets.
pub(in crate::server) const MOST_SOCKETS: usize = 64;
/// Longest message that is read; none is needed.
const MOST_READ: usize = 64 << 10;
/// How often a silent socket is asked whether it is there.
const PING: Duration = Duration::from_secs(30);
/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a binary message is: a preview; and its format: PNG.
const PREVIEW: [u8; 8] = [0, 0, 0, 1, 0, 0, 0, 2];

/// Events for all who listen.
pub(super) struct Events {
    sender: Sender<Arc<Event>>,
    sockets: AtomicUsize,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            sender: channel(BEHIND).0,
            sockets: AtomicUsize::new(0),
        }
    }
}

struct Event {
    /// For whom; for all where it is nobody.
    client: Option<String>,
    message: Message,
}

impl Events {
    /// Tells a client, or all.
    pub(super) fn tell(&self, client: Option<&str>, kind: &str, data: &Value) {
        let text = json!({"type": kind, "data": data}).to_string();
        self.send(client, Message::text(text));
    }

    /// Shows a client a preview, a PNG.
    pub(super) fn show(&self, client: &str, png: &[u8]) {
        let mut bytes = PREVIEW.to_vec();
        bytes.extend_from_slice(png);
        self.send(Some(client), Message::binary(bytes));
    }

    fn send(&self, client: Option<&str>, message: Message) {
        let client = client.map(String::from);
        // It is fine if nobody listens.
        let _ = self.sender.send(Arc::new(Event { client, message }));
    }
}

/// A socket's place among all.
struct Place(App);

impl Drop for Place {
    fn drop(&mut self) {
        self.0
            .comfy()
            .events
            .sockets
            .fetch_sub(1, Ordering::Relaxed);
    }
}

/// Who listens.
#[derive(Deserialize)]
pub(super) struct Listener {
    #[serde(rename = "clientId", default)]
    client: String,
}

/// `GET /ws`.
pub(super) async fn listen(
    Model(app): Model<App>,
    Query(Listener { client }): Query<Listener>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.map_err(|e| ApiError::invalid(format!("/ws is a WebSocket: {e}")))?;
    let sockets = &app.comfy().events.sockets;
    if sockets.fetch_add(1, Ordering::Relaxed) >= MOST_SOCKETS {
        sockets.fetch_sub(1, Ordering::Relaxed);
        let reason = format!("{MOST_SOCKETS} sockets are open already");
        return Err(ApiError::unavailable("TOO_MANY_SOCKETS", reason));
    }
    let place = Place(app);
    let client = match client.is_empty() {
        true => worker::ids::uuid().simple().to_string(),
        false => client,
    };
    let upgrade = upgrade
        .max_message_size(MOST_READ)
        .max_frame_size(MOST_READ);
    Ok(upgrade.on_upgrade(move |socket| attend(socket, place, client)))
}

async fn attend(mut socket: WebSocket, place: Place, client: String) {
    let comfy = place.0.comfy();
    let mut events = comfy.events.sender.subscribe();
    let mut hello = queue_status(&place.0);
    hello["sid"] = json!(client);
    let hello = json!({"type": "status", "data": hello}).to_string();
    if !sent(&mut socket, Message::text(hello)).await {
        return;
    }
    loop {
        let message = tokio::select! {
            event = events.recv() => match event {
                Ok(event) if event.client.as_ref().is_none_or(|of| *of == client) => event.message.clone(),
                Ok(_) | Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return,
            },
            read = socket.recv() => match read {
                // Clients of newer versions say what they can; nothing depends on it.
                Some(Ok(Message::Text(_) | Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            () = tokio::time::sleep(PING) => Message::Ping(Vec::new().into()),
        };
        if !sent(&mut socket, message).await {
            return;
        }
    }
}

/// Whether a message went out.
async fn sent(socket: &mut WebSocket, message: Message) -> bool {
    let sending = tokio::time::timeout(PATIENCE, socket.send(message));
    matches!(sending.await, Ok(Ok(())))
}

/// How much there is to do.
pub(super) fn queue_status(app: &App) -> Value {
    json!({"status": {"exec_info": {"queue_remaining": app.comfy().remaining()}}})
}
