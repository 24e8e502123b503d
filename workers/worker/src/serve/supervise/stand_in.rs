//! The answers while no process serves.

use crate::http::connections::{serve, Ending};
use crate::http::error::{CANCELLED, LOADING, RESTARTING};
use crate::http::{ApiError, ListenOptions};
use crate::observe::layer::{observe, Watch};
use crate::time::timestamp;
use crate::{Error, Result};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::State;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use std::net::TcpListener;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Requests that came while nobody served have this long to get their answer once somebody does.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// What a client should wait beyond the next try, which takes its time to listen.
const START: Duration = Duration::from_secs(1);

/// Why nobody serves.
#[derive(Debug, Clone)]
pub(super) enum Absence {
    /// The first process is starting.
    Starting,
    /// The last process has crashed.
    Restarting {
        /// How it ended.
        reason: String,
        /// Crashes so far.
        restarts: u64,
        /// When the next process is started.
        due: Instant,
    },
    /// The program is to end.
    Stopping,
}

impl Absence {
    fn status(&self) -> &'static str {
        match self {
            Self::Starting => "loading",
            Self::Restarting { .. } => "restarting",
            Self::Stopping => "stopping",
        }
    }

    fn error(&self) -> ApiError {
        let (code, message, retry_after) = match self {
            Self::Starting => (LOADING, "the server is starting".to_string(), Some(START)),
            Self::Restarting { reason, due, .. } => (
                RESTARTING,
                format!("the server crashed and is started anew: {reason}"),
                Some(due.saturating_duration_since(Instant::now()) + START),
            ),
            Self::Stopping => (CANCELLED, "the server is stopping".to_string(), None),
        };
        ApiError {
            retry_after,
            ..ApiError::unavailable(code, message)
        }
    }
}

/// Why nobody serves, as it changes.
#[derive(Debug, Clone)]
pub(super) struct Reason(Arc<RwLock<Absence>>);

impl Reason {
    pub(super) fn new(absence: Absence) -> Self {
        Self(Arc::new(RwLock::new(absence)))
    }

    pub(super) fn set(&self, absence: Absence) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = absence;
    }

    fn get(&self) -> Absence {
        let absence = self.0.read().unwrap_or_else(PoisonError::into_inner);
        absence.clone()
    }
}

/// Takes connections and answers 503, until dropped.
pub(super) struct StandIn {
    _stop: oneshot::Sender<()>,
}

impl StandIn {
    /// Begins to answer on a port.
    ///
    /// # Errors
    /// [`Error::Runtime`] if the port cannot be shared.
    pub(super) fn open(
        listener: &TcpListener,
        listen: &ListenOptions,
        reason: &Reason,
    ) -> Result<Self> {
        let router = router(listen, reason.clone())?;
        let shared = (listener.try_clone()).and_then(tokio::net::TcpListener::from_std);
        let listener = shared.map_err(|e| Error::Runtime(format!("sharing the port: {e}")))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let limits = listen.connections();
        tokio::spawn(async move {
            let stopped = async {
                // Dropped or sent, it means the same.
                let _ = stopped.await;
                Ending {
                    since: Instant::now(),
                    linger: Duration::ZERO,
                    grace: LAST_ANSWERS,
                }
            };
            serve(listener, router, stopped, limits).await;
        });
        Ok(Self { _stop: stop })
    }
}

fn router(listen: &ListenOptions, reason: Reason) -> Result<Router> {
    // The connection is the next process's.
    let close = |mut response: Response| async {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
        response
    };
    let router = Router::new()
        .route("/health", get(health))
        .route("/ready", get(ready))
        .fallback(refuse)
        .with_state(reason)
        .layer(map_response(close));
    let router = listen.limit(router, [Method::GET, Method::POST, Method::DELETE])?;
    Ok(router.layer(from_fn_with_state(Watch::default(), observe)))
}

async fn health(State(reason): State<Reason>) -> Response {
    let absence = reason.get();
    let mut body = json!({
        "status": absence.status(),
        "message": absence.error().message,
        "timestamp": timestamp(),
    });
    if let Absence::Restarting {
        reason, restarts, ..
    } = &absence
    {
        body["restarts"] = json!({"count": restarts, "reason": reason});
    }
    unavailable(&absence, body)
}

async fn ready(State(reason): State<Reason>) -> Response {
    let absence = reason.get();
    let body = json!({
        "ready": false,
        "reason": absence.error().message,
        "timestamp": timestamp(),
    });
    unavailable(&absence, body)
}

fn unavailable(absence: &Absence, body: serde_json::Value) -> Response {
    // As errors say when to come again, so do these.
    let headers = absence.error().into_response().headers().clone();
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    if let Some(wait) = headers.get(axum::http::header::RETRY_AFTER) {
        let name = axum::http::header::RETRY_AFTER;
        response.headers_mut().insert(name, wait.clone());
    }
    response
}

/// Anything else. The body is read first: a client that still sends would not see the answer.
async fn refuse(
    State(reason): State<Reason>,
    _body: std::result::Result<Bytes, BytesRejection>,
) -> ApiError {
    reason.get().error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{to_bytes, Body};
    use axum::http::Request;
    use clap::Parser;
    use serde_json::Value;
    use tower::ServiceExt;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        listen: ListenOptions,
    }

    async fn ask(reason: &Reason, method: &str, path: &str) -> (Response, Value) {
        let arguments = ["serve", "--cors-origin", "https://pages.example"];
        let router = router(&Cli::parse_from(arguments).listen, reason.clone()).unwrap();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("X-Request-Id", "r-1")
            .header("Origin", "https://pages.example");
        let response = router.oneshot(request.body(Body::from("{}")).unwrap());
        let (parts, body) = response.await.unwrap().into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let json = serde_json::from_slice(&bytes).unwrap();
        (Response::from_parts(parts, Body::empty()), json)
    }

    #[tokio::test]
    async fn a_crash_is_told_on_every_path() {
        let reason = Reason::new(Absence::Restarting {
            reason: "signal 6".to_string(),
            restarts: 2,
            due: Instant::now() + Duration::from_secs(4),
        });
        let (response, refused) = ask(&reason, "POST", "/v1/chat/completions").await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "5");
        assert_eq!(response.headers()["connection"], "close");
        assert_eq!(response.headers()["x-request-id"], "r-1");
        let origin = &response.headers()["access-control-allow-origin"];
        assert_eq!(origin, "https://pages.example");
        assert_eq!(refused["error"]["code"], "RESTARTING");
        assert_eq!(refused["error"]["type"], "unavailable_error");

        let (response, health) = ask(&reason, "GET", "/health").await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "5");
        assert_eq!(health["status"], "restarting");
        let restarts = json!({"count": 2, "reason": "signal 6"});
        assert_eq!(health["restarts"], restarts);
        assert_eq!(ask(&reason, "GET", "/ready").await.1["ready"], false);

        reason.set(Absence::Stopping);
        let (response, health) = ask(&reason, "GET", "/health").await;
        assert_eq!(health["status"], "stopping");
        assert!(!response.headers().contains_key("retry-after"));
        reason.set(Absence::Starting);
        assert_eq!(ask(&reason, "GET", "/health").await.1["status"], "loading");
        let refused = ask(&reason, "GET", "/v1/models").await.1;
        assert_eq!(refused["error"]["code"], "LOADING");
    }
}
