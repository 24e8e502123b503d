//! Who answers: this program's own routes, or a server.

use super::line::Item;
use super::outcome::Reply;
use axum::http::header::RETRY_AFTER;
use serde::Deserialize;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::Semaphore;
use worker::http::error::{CANCELLED, DEVICE_LOST};
use worker::http::Caller;
use worker::serve::Inside;
use worker::{Error, Result};

/// How long a connection may take.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Longest answer of a server.
const MAX_ANSWER_BYTES: u64 = 1 << 30;

/// Why there is no answer to any request now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The device is gone.
    Lost(String),
    /// This program is about to end.
    Stopping,
    /// The server does not answer.
    Unreachable(String),
}

/// An answer in the making.
pub type Asking<'a> =
    Pin<Box<dyn Future<Output = std::result::Result<Reply, Trouble>> + Send + 'a>>;

/// Whoever answers.
pub trait Ask: Send + Sync + 'static {
    /// Answers a request. Dropping the future gives it up.
    fn ask<'a>(&'a self, item: &'a Item) -> Asking<'a>;
}

/// This program's own routes.
pub struct Own {
    inside: Inside,
    caller: Caller,
    unqueued: Semaphore,
}

impl Own {
    /// Asks for a caller. Of requests that do not go through the engine's queue, `unqueued` are asked at once: they are
    /// computed one after the other.
    pub fn new(inside: Inside, caller: Caller, unqueued: usize) -> Self {
        Self {
            inside,
            caller,
            unqueued: Semaphore::new(unqueued),
        }
    }
}

impl Ask for Own {
    fn ask<'a>(&'a self, item: &'a Item) -> Asking<'a> {
        Box::pin(async move {
            let _turn = match item.is_queued {
                true => None,
                false => self.unqueued.acquire().await.ok(),
            };
            let posted = self
                .inside
                .post(item.url, self.caller, item.body().to_vec());
            Ok(match posted.await {
                Ok(answer) => {
                    let status = answer.status.as_u16();
                    if status == 503 {
                        match trouble_of(&answer.body) {
                            Some(trouble) => return Err(trouble),
                            None => tracing::debug!("line {}: 503, to be tried again", item.number),
                        }
                    }
                    let header = |name: &str| answer.headers.get(name)?.to_str().ok();
                    Reply {
                        status,
                        request_id: header("x-request-id").map(str::to_string),
                        retry_after: header(RETRY_AFTER.as_str()).and_then(seconds),
                        body: answer.body.into(),
                    }
                }
                Err(error) => Reply {
                    status: error.status.as_u16(),
                    request_id: None,
                    retry_after: None,
                    body: error.to_json().to_string().into_bytes(),
                },
            })
        })
    }
}

/// What a 503 of our own says of requests that come after it.
fn trouble_of(body: &[u8]) -> Option<Trouble> {
    #[derive(Deserialize)]
    struct Body {
        error: Told,
    }
    #[derive(Deserialize)]
    struct Told {
        code: Option<String>,
        message: String,
    }
    let told = serde_json::from_slice::<Body>(body).ok()?.error;
    match told.code.as_deref() {
        Some(DEVICE_LOST) => Some(Trouble::Lost(told.message)),
        Some(CANCELLED) => Some(Trouble::Stopping),
        // Anthropic's form has no codes.
        None if told.message.contains("device is lost") => Some(Trouble::Lost(told.message)),
        None if told.message.contains("is stopping") => Some(Trouble::Stopping),
        _ => None,
    }
}

/// A time as `Retry-After` has it; dates are not understood.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A server that is running somewhere.
pub struct Remote {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
}

impl Remote {
    /// The server at `base`: `http://HOST:PORT`, with or without `/v1` at its end.
    ///
    /// # Errors
    /// [`Error::Usage`] for what is no such address.
    pub fn new(base: &str, key: Option<String>, connections: usize) -> Result<Self> {
        if !(base.starts_with("http://") || base.starts_with("https://")) {
            return Err(Error::Usage(format!(
                "--url {base:?} must begin with http:// or https://"
            )));
        }
        let base = base.trim_end_matches('/');
        let config = ureq::config::Config::builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_TIME))
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .build();
        Ok(Self {
            agent: ureq::Agent::new_with_config(config),
            base: base.strip_suffix("/v1").unwrap_or(base).to_string(),
            key: key.filter(|key| !key.is_empty()),
        })
    }
}

impl Ask for Remote {
    fn ask<'a>(&'a self, item: &'a Item) -> Asking<'a> {
        let (agent, url) = (self.agent.clone(), format!("{}{}", self.base, item.url));
        let (key, body) = (self.key.clone(), item.body().to_vec());
        Box::pin(async move {
            let posted = tokio::task::spawn_blocking(move || {
                let mut request = agent.post(&url).header("Content-Type", "application/json");
                if let Some(key) = key {
                    request = request.header("Authorization", format!("Bearer {key}"));
                }
                let response = request.send(&body[..]).map_err(|e| e.to_string())?;
                let header = |name: &str| response.headers().get(name)?.to_str().ok();
                let mut reply = Reply {
                    status: response.status().as_u16(),
                    request_id: header("x-request-id").map(str::to_string),
                    retry_after: header(RETRY_AFTER.as_str()).and_then(seconds),
                    body: Vec::new(),
                };
                let body = response.into_body().into_with_config();
                reply.body = body
                    .limit(MAX_ANSWER_BYTES)
                    .read_to_vec()
                    .map_err(|e| e.to_string())?;
                Ok(reply)
            });
            let posted = posted.await.unwrap_or_else(|e| Err(e.to_string()));
            posted.map_err(Trouble::Unreachable)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_concern_all_requests() {
        let of = |body: &str| trouble_of(body.as_bytes());
        let lost = r#"{"error":{"code":"DEVICE_LOST","message":"gone"}}"#;
        assert_eq!(of(lost), Some(Trouble::Lost("gone".to_string())));
        let stopping = r#"{"type":"error","error":{"type":"overloaded_error","message":"the server is stopping"}}"#;
        assert_eq!(of(stopping), Some(Trouble::Stopping));
        assert_eq!(of(r#"{"error":{"code":"VRAM_OOM","message":"x"}}"#), None);
        assert_eq!(of("x"), None);
    }

    #[test]
    fn times_to_wait() {
        assert_eq!(seconds(" 2 "), Some(Duration::from_secs(2)));
        for other in ["", "-1", "NaN", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(seconds(other), None, "{other}");
        }
    }
}
