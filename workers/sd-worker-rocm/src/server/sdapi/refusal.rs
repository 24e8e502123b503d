//! Errors as clients of the web UI read them: `detail` beside the error that all routes of this server have.

use crate::server::{App, ImageWorker};
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::http::request::Parts;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;
use worker::http::json::FromJson;
use worker::http::{ApiError, JsonBody};
use worker::serve::Model;

/// Code of what web UIs have and this server does not.
const NOT_IMPLEMENTED: &str = "NOT_IMPLEMENTED";

/// An error, in the form of the web UI.
#[derive(Debug)]
pub(in crate::server) struct Refusal(pub ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = self.0.to_json();
        body["detail"] = json!(self.0.message);
        body["errors"] = json!(self.0.message);
        // Status, and when to try again.
        let (mut parts, _) = self.0.into_response().into_parts();
        parts.headers.remove(CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(body.to_string()))
    }
}

/// 501 for what has no place here, with what to do instead.
pub(super) fn not_implemented(message: &str) -> Refusal {
    Refusal(ApiError::new(
        StatusCode::NOT_IMPLEMENTED,
        NOT_IMPLEMENTED,
        message,
    ))
}

/// What is loaded, as [`Model`].
pub(super) struct Ui(pub App);

impl FromRequestParts<Arc<ImageWorker>> for Ui {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        worker: &Arc<ImageWorker>,
    ) -> Result<Self, Refusal> {
        let Model(app) = Model::<App>::from_request_parts(parts, worker).await?;
        Ok(Self(app))
    }
}

/// A body, as [`JsonBody`].
pub(super) struct UiBody<T>(pub T);

impl<T: FromJson + Send + 'static, S: Send + Sync> FromRequest<S> for UiBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let JsonBody(body) = JsonBody::from_request(request, state).await?;
        Ok(Self(body))
    }
}
