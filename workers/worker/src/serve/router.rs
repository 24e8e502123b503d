//! The routes of a worker and of the frame, and the router with keys, limits, cross-origin rules and what logs and
//! traces tell around them.

use super::{health, metrics, openapi, Route, Routes, Worker};
use crate::http::auth::require_key;
use crate::http::{ApiError, ListenOptions};
use crate::observe::layer::{observe, Watch};
use crate::Result;
use axum::extract::{Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::Response;
use axum::{Json, Router};
use std::sync::Arc;

/// The routes of a worker and of the frame.
pub fn all_routes<W: Worker>() -> Routes<W> {
    let mut all = W::routes();
    let (public, protected) = (&mut all.public, &mut all.protected);
    public.push(Route::get(
        "/health",
        "Whether the worker can do its work; 503 with progress while the model loads",
        health::health::<W>,
    ));
    public.push(Route::get(
        "/ready",
        "Whether requests are taken",
        health::ready::<W>,
    ));
    let document = || async { Json(openapi::document(&all_routes::<W>())) };
    public.push(Route::get("/openapi.json", "This document", document));
    protected.push(Route::get(
        "/info",
        "The worker as its orchestrator knows it",
        health::info::<W>,
    ));
    let has_metrics = public
        .iter()
        .chain(&*protected)
        .any(|route| route.path == "/metrics");
    let metrics = Route::get("/metrics", "Figures for Prometheus", metrics::show::<W>);
    match W::OPEN_METRICS {
        _ if has_metrics => {}
        true => public.push(metrics),
        false => protected.push(metrics),
    }
    all
}

/// All routes with keys, limits and cross-origin rules; what is not there and what does not fit are answered in JSON,
/// too.
///
/// # Errors
/// [`crate::Error::Usage`] for a malformed cross-origin rule, or a file of keys that cannot be read.
pub fn router<W: Worker>(worker: Arc<W>, listen: &ListenOptions) -> Result<Router> {
    let routes = all_routes::<W>();
    let mut methods: Vec<Method> = Vec::new();
    for route in routes.iter() {
        if !methods.contains(&route.method) {
            methods.push(route.method.clone());
        }
    }
    let add = |router: Router<Arc<W>>, routes: Vec<Route<W>>| {
        routes.into_iter().fold(router, |router, route| {
            router.route(route.path, route.handler)
        })
    };
    let keys = listen.keys()?;
    let protected =
        add(Router::new(), routes.protected).route_layer(from_fn_with_state(keys, require_key));
    let router = add(protected, routes.public)
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(from_fn_with_state(worker.clone(), take_leave::<W>))
        .with_state(worker.clone());
    let watch = Watch {
        traces: worker.frame().identity.traces.clone(),
        count: Arc::new(move |route, status| worker.frame().metrics.answered(route, status)),
    };
    let router = listen.limit(router, methods)?;
    Ok(router.layer(from_fn_with_state(watch, observe)))
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::not_found(format!(
        "there is no {}; /openapi.json tells what there is",
        request.uri().path()
    ))
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        format!(
            "{} does not take {}",
            request.uri().path(),
            request.method()
        ),
    )
}

/// Ends the connections of a server that stops: the next request is another server's.
async fn take_leave<W: Worker>(
    State(worker): State<Arc<W>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    if worker.frame().is_stopping() {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    response
}
