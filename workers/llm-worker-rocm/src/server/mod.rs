//! The HTTP server.
//!
//! | Module         | Gives                                                                  |
//! |----------------|------------------------------------------------------------------------|
//! | [`app`]        | what all handlers share: the model and its phase, options, jobs        |
//! | [`backend`]    | the engine as the server sees it, and a text model around it           |
//! | [`generation`] | from a request's fields to answers, for every API that generates text  |
//! | [`jobs`]       | jobs whose stream nobody has taken yet                                 |
//! | [`turns`]      | work that runs alone on its device                                     |
//! | [`openai`]     | `/v1/chat/completions` and its sisters                                 |
//! | [`native`]     | health, properties, tokens, templates                                  |
//! | [`rbee`]       | the contract of rbee's workers                                         |
//! | [`metrics`]    | `/metrics`                                                             |
//! | [`page`]       | the chat page                                                          |
//! | [`openapi`]    | `/openapi.json`                                                        |
//! | [`run`]        | from an open port to a graceful end                                    |

pub mod app;
pub mod backend;
mod error;
mod generation;
mod jobs;
pub mod metrics;
mod native;
mod openai;
mod openapi;
mod page;
mod rbee;
pub mod run;
mod turns;

pub use app::{App, AppOptions, Device};
pub use backend::{Backend, Loaded, TextModel};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::Response;
use axum::routing::{get, post, MethodRouter};
use axum::Router;
use std::sync::Arc;
use std::time::Instant;
use worker::http::auth::require_key;
use worker::http::{ApiError, ListenOptions};
use worker::Result;

/// The state of handlers.
type Shared = State<Arc<App>>;

/// A path, its methods in words for the documents, and its handlers.
struct Route {
    path: &'static str,
    methods: &'static [&'static str],
    handler: fn() -> MethodRouter<Arc<App>>,
}

const fn route(
    path: &'static str,
    methods: &'static [&'static str],
    handler: fn() -> MethodRouter<Arc<App>>,
) -> Route {
    Route {
        path,
        methods,
        handler,
    }
}

/// Paths that ask for no key: probes, and what a browser loads before it can send one.
const PUBLIC: &[Route] = &[
    route("/", &["get"], || get(page::index)),
    route("/chat.css", &["get"], || get(page::style)),
    route("/chat.js", &["get"], || get(page::script)),
    route("/markdown.js", &["get"], || get(page::markdown)),
    route("/marked.js", &["get"], || get(page::marked)),
    route("/health", &["get"], || get(native::health)),
    route("/ready", &["get"], || get(native::ready)),
    route("/openapi.json", &["get"], || get(openapi::document)),
];

/// Paths behind the key.
const PROTECTED: &[Route] = &[
    route("/v1/chat/completions", &["post"], || {
        post(openai::chat::create)
    }),
    route("/v1/completions", &["post"], || post(openai::text::create)),
    route("/v1/embeddings", &["post"], || {
        post(openai::embeddings::create)
    }),
    route("/v1/models", &["get"], || get(openai::models::list)),
    route("/v1/models/{*id}", &["get"], || get(openai::models::show)),
    route("/tokenize", &["post"], || post(native::tokenize)),
    route("/detokenize", &["post"], || post(native::detokenize)),
    route("/apply-template", &["post"], || {
        post(native::apply_template)
    }),
    route("/props", &["get"], || get(native::props)),
    route("/metrics", &["get"], || get(metrics::show)),
    route("/info", &["get"], || get(rbee::info)),
    route("/v1/jobs", &["post"], || post(rbee::create)),
    route("/v1/jobs/{id}/stream", &["get"], || get(rbee::stream)),
    route("/v1/inference", &["post"], || post(rbee::create_inference)),
    route("/v1/inference/{id}/stream", &["get"], || get(rbee::stream)),
];

/// All routes with keys, limits and cross-origin rules.
///
/// # Errors
/// [`worker::Error::Usage`] for a malformed cross-origin rule.
pub fn router(app: Arc<App>, listen: &ListenOptions) -> Result<Router> {
    let add = |router: Router<Arc<App>>, routes: &[Route]| {
        routes.iter().fold(router, |router, route| {
            router.route(route.path, (route.handler)())
        })
    };
    let keys = worker::http::ApiKeys::new(listen.api_keys.iter().cloned());
    let protected =
        add(Router::new(), PROTECTED).route_layer(from_fn_with_state(keys, require_key));
    let router = add(protected, PUBLIC)
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(from_fn_with_state(app.clone(), observe))
        .with_state(app);
    listen.limit(router)
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::not_found(format!(
        "there is no {}; /openapi.json tells what there is",
        request.uri().path()
    ))
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::new(
        axum::http::StatusCode::METHOD_NOT_ALLOWED,
        "METHOD_NOT_ALLOWED",
        format!(
            "{} does not take {}",
            request.uri().path(),
            request.method()
        ),
    )
}

/// Counts and logs every answer.
async fn observe(State(app): Shared, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_string();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let status = response.status();
    // Unknown paths share one label: clients must not be able to make new ones.
    let route = matched
        .as_ref()
        .map_or("unknown", |matched| matched.as_str());
    app.metrics.answered(route, status.as_u16());
    let milliseconds = start.elapsed().as_millis();
    tracing::debug!(%method, path, status = status.as_u16(), milliseconds, "answered");
    response
}
