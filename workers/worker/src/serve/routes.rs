//! One table of routes, and the router with keys, limits, cross-origin rules and the access log around it.

use super::{health, metrics, openapi, Worker};
use crate::http::auth::require_key;
use crate::http::{ApiError, ApiKeys, ListenOptions};
use crate::Result;
use axum::extract::{MatchedPath, Request, State};
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::Response;
use axum::routing::{on, MethodFilter, MethodRouter};
use axum::{Json, Router};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use std::sync::Arc;
use std::time::Instant;

/// The schema of a body.
pub(super) type BodySchema = fn(&mut SchemaGenerator) -> Schema;

/// A path, a method, what it does, and its handler.
pub struct Route<W> {
    pub(super) path: &'static str,
    pub(super) method: Method,
    pub(super) summary: &'static str,
    /// Media type and schemas of the body; of several each gives fields.
    pub(super) body: Option<(&'static str, Vec<BodySchema>)>,
    handler: MethodRouter<Arc<W>>,
}

impl<W: Worker> Route<W> {
    /// A route for GET.
    pub fn get<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<W>>,
        T: 'static,
    {
        Self::new(path, Method::GET, summary, on(MethodFilter::GET, handler))
    }

    /// A route for POST.
    pub fn post<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<W>>,
        T: 'static,
    {
        Self::new(path, Method::POST, summary, on(MethodFilter::POST, handler))
    }

    /// A route for DELETE.
    pub fn delete<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, Arc<W>>,
        T: 'static,
    {
        let handler = on(MethodFilter::DELETE, handler);
        Self::new(path, Method::DELETE, summary, handler)
    }

    fn new(
        path: &'static str,
        method: Method,
        summary: &'static str,
        handler: MethodRouter<Arc<W>>,
    ) -> Self {
        Self {
            path,
            method,
            summary,
            body: None,
            handler,
        }
    }

    /// Takes the fields of `T` as JSON; called again, those of another type, too.
    pub fn takes<T: JsonSchema>(self) -> Self {
        self.with_body::<T>("application/json")
    }

    /// Takes the fields of `T` as a form with files.
    pub fn takes_form<T: JsonSchema>(self) -> Self {
        self.with_body::<T>("multipart/form-data")
    }

    fn with_body<T: JsonSchema>(mut self, media_type: &'static str) -> Self {
        let (_, schemas) = self.body.get_or_insert((media_type, Vec::new()));
        schemas.push(|generator| generator.subschema_for::<T>());
        self
    }

    /// The path.
    pub fn path(&self) -> &'static str {
        self.path
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.method
    }

    /// What it does.
    pub fn summary(&self) -> &'static str {
        self.summary
    }

    /// Whether it takes a body that is described.
    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }
}

/// A worker's routes.
pub struct Routes<W> {
    /// Those that ask for no key: probes, and what a browser loads before it can send one.
    pub public: Vec<Route<W>>,
    /// Those behind the key.
    pub protected: Vec<Route<W>>,
}

impl<W> Default for Routes<W> {
    fn default() -> Self {
        Self {
            public: Vec::new(),
            protected: Vec::new(),
        }
    }
}

impl<W: Worker> Routes<W> {
    /// Those of a worker and of the frame.
    pub fn all() -> Self {
        let mut routes = W::routes();
        let (public, protected) = (&mut routes.public, &mut routes.protected);
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
        let document = || async { Json(openapi::document::<W>()) };
        public.push(Route::get("/openapi.json", "This document", document));
        protected.push(Route::get(
            "/info",
            "The worker as its orchestrator knows it",
            health::info::<W>,
        ));
        let metrics = Route::get("/metrics", "Figures for Prometheus", metrics::show::<W>);
        match W::OPEN_METRICS {
            true => public.push(metrics),
            false => protected.push(metrics),
        }
        routes
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Route<W>> {
        self.public.iter().chain(&self.protected)
    }
}

/// All routes with keys, limits and cross-origin rules; what is not there and what does not fit are answered in JSON,
/// too.
///
/// # Errors
/// [`crate::Error::Usage`] for a malformed cross-origin rule.
pub fn router<W: Worker>(worker: Arc<W>, listen: &ListenOptions) -> Result<Router> {
    let routes = Routes::<W>::all();
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
    let keys = ApiKeys::new(listen.api_keys.iter().cloned());
    let protected =
        add(Router::new(), routes.protected).route_layer(from_fn_with_state(keys, require_key));
    let router = add(protected, routes.public)
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(from_fn_with_state(worker.clone(), observe::<W>))
        .with_state(worker);
    listen.limit(router, methods)
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

/// Counts and logs every answer.
async fn observe<W: Worker>(
    State(worker): State<Arc<W>>,
    request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_string();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let status = response.status().as_u16();
    // Unknown paths share one label: clients must not be able to make new ones.
    let route = matched
        .as_ref()
        .map_or("unknown", |matched| matched.as_str());
    worker.frame().metrics.answered(route, status);
    let milliseconds = start.elapsed().as_millis();
    tracing::debug!(%method, path, status, milliseconds, "answered");
    response
}
