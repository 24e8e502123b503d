//! A worker's routes for the worker itself: the same handlers, without a socket, a key, or the rules for browsers.

use super::{all_routes, Worker};
use crate::http::{ApiError, Caller};
use axum::body::{to_bytes, Body, Bytes};
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::Router;
use std::sync::Arc;
use tower_service::Service;

tokio::task_local! {
    /// Set while a request is answered that nobody waits for at a screen.
    static BACKGROUND: ();
}

/// Whether the request in hand is one that others go before. Known in the handler's own task only.
pub fn is_background() -> bool {
    BACKGROUND.try_with(|()| ()).is_ok()
}

/// A worker's routes, asked from inside.
#[derive(Clone)]
pub struct Inside(Router);

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct InsideAnswer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

impl Inside {
    /// The routes of `worker`, for bodies of at most so many bytes.
    pub fn new<W: Worker>(worker: Arc<W>, max_body_bytes: usize) -> Self {
        let routes = all_routes::<W>();
        let all = routes.protected.into_iter().chain(routes.public);
        let router = all
            .fold(Router::new(), |router, route| {
                router.route(route.path, route.handler)
            })
            .layer(DefaultBodyLimit::max(max_body_bytes))
            .with_state(worker);
        Self(router)
    }

    /// Posts JSON for a caller, whom others go before.
    ///
    /// # Errors
    /// 500 if the answer breaks off; errors that are answers are answers here, too.
    pub async fn post(
        &self,
        path: &str,
        caller: Caller,
        json: impl Into<Body>,
    ) -> Result<InsideAnswer, ApiError> {
        let mut request = Request::post(path)
            .header(CONTENT_TYPE, "application/json")
            .body(json.into())
            .map_err(|e| ApiError::internal(format!("{path}: {e}")))?;
        request.extensions_mut().insert(caller);
        let mut router = self.0.clone();
        let answer = async move {
            // A router is always ready, and does not fail.
            let response = router.call(request).await.unwrap_or_else(|e| match e {});
            let (parts, body) = response.into_parts();
            let body = to_bytes(body, usize::MAX)
                .await
                .map_err(|e| ApiError::internal(format!("the answer broke off: {e}")))?;
            Ok(InsideAnswer {
                status: parts.status,
                headers: parts.headers,
                body,
            })
        };
        BACKGROUND.scope((), answer).await
    }
}
