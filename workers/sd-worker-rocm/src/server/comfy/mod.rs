//! ComfyUI's API: graphs of its standard nodes, as its clients send them.
//!
//! A graph is read by the reader of graphs in pictures ([`crate::recall`]) and becomes one request of the queue. Nodes
//! that are not known, and what known ones ask for that is not implemented, are refused at the node, in ComfyUI's form of
//! errors.
//!
//! | Module    | Gives                                                                                   |
//! |-----------|-----------------------------------------------------------------------------------------|
//! | `nodes`   | the table of nodes: `/object_info`                                                      |
//! | `check`   | what is wrong with a graph, in ComfyUI's words                                          |
//! | `request` | the request that a graph is                                                             |
//! | `prompt`  | `POST /prompt`, and what is told while its pictures are made                            |
//! | `state`   | the graphs that wait and those that are done                                            |
//! | `queue`   | `/queue`, `/history`, `/interrupt`                                                      |
//! | `files`   | `/upload/image` and `/view`                                                             |
//! | `socket`  | `/ws`                                                                                   |
//! | `system`  | `/system_stats`, `/models`, `/embeddings` and what else clients look at                 |

mod check;
mod files;
mod nodes;
mod prompt;
mod queue;
mod request;
mod socket;
pub(super) mod state;
mod system;

use super::ImageWorker;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::handler::Handler;
use check::Invalid;
use serde_json::{Map, Value};
use std::sync::Arc;
use worker::http::json::{self, Object};
use worker::http::ApiError;
use worker::serve::Route;

/// A body that is JSON whatever its type: ComfyUI's own example sends it as a form. Pages of other origins are refused
/// before, by their `Origin`.
struct Sent(Map<String, Value>);

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = Invalid;

    async fn from_request(request: Request, state: &S) -> Result<Self, Invalid> {
        let bytes = Bytes::from_request(request, state).await;
        let bytes =
            bytes.map_err(|e| ApiError::new(e.status(), "INVALID_REQUEST", e.body_text()))?;
        let Object(map) = json::parse(&bytes)?;
        Ok(Self(map))
    }
}

/// The routes, each also under `/api`, where newer clients look for it.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    let mut routes = Vec::new();
    let info = "The nodes that graphs may have";
    let history = "The graphs that are done, with their pictures";
    let models = "The names of a kind of files, or the kinds";
    get(
        &mut routes,
        ["/prompt", "/api/prompt"],
        "How many graphs wait",
        queue::count,
    );
    for path in ["/prompt", "/api/prompt"] {
        let route = Route::post(
            path,
            "Puts a graph of ComfyUI's nodes in line",
            prompt::submit,
        );
        routes.push(route.takes::<prompt::Body>());
    }
    get(
        &mut routes,
        ["/queue", "/api/queue"],
        "The graphs that wait or are worked on",
        queue::list,
    );
    post(
        &mut routes,
        ["/queue", "/api/queue"],
        "Takes graphs out of the line",
        queue::change,
    );
    get(
        &mut routes,
        ["/history", "/api/history"],
        history,
        queue::history,
    );
    post(
        &mut routes,
        ["/history", "/api/history"],
        "Forgets graphs that are done",
        queue::forget,
    );
    get(
        &mut routes,
        ["/history/{id}", "/api/history/{id}"],
        history,
        queue::one,
    );
    post(
        &mut routes,
        ["/interrupt", "/api/interrupt"],
        "Cancels the graph that is worked on",
        queue::interrupt,
    );
    post(
        &mut routes,
        ["/free", "/api/free"],
        "Nothing: the model stays",
        queue::free,
    );
    get(
        &mut routes,
        ["/view", "/api/view"],
        "A picture's file",
        files::view,
    );
    post(
        &mut routes,
        ["/upload/image", "/api/upload/image"],
        "Takes a picture for LoadImage: a form",
        files::upload,
    );
    get(
        &mut routes,
        ["/ws", "/api/ws"],
        "Progress, previews and results, as a WebSocket",
        socket::listen,
    );
    get(
        &mut routes,
        ["/object_info", "/api/object_info"],
        info,
        system::all_nodes,
    );
    get(
        &mut routes,
        ["/object_info/{class}", "/api/object_info/{class}"],
        info,
        system::node,
    );
    get(
        &mut routes,
        ["/system_stats", "/api/system_stats"],
        "The program and its devices",
        system::stats,
    );
    get(
        &mut routes,
        ["/models", "/api/models"],
        models,
        system::folders,
    );
    get(
        &mut routes,
        ["/models/{folder}", "/api/models/{folder}"],
        models,
        system::folder,
    );
    get(
        &mut routes,
        ["/embeddings", "/api/embeddings"],
        "The textual inversions",
        system::embeddings,
    );
    get(
        &mut routes,
        ["/extensions", "/api/extensions"],
        "An empty list",
        system::nothing,
    );
    get(
        &mut routes,
        ["/features", "/api/features"],
        "What is new that clients may use",
        system::features,
    );
    routes
}

fn get<H, T>(
    routes: &mut Vec<Route<ImageWorker>>,
    paths: [&'static str; 2],
    summary: &'static str,
    handler: H,
) where
    H: Handler<T, Arc<ImageWorker>>,
    T: 'static,
{
    routes.extend(paths.map(|path| Route::get(path, summary, handler.clone())));
}

fn post<H, T>(
    routes: &mut Vec<Route<ImageWorker>>,
    paths: [&'static str; 2],
    summary: &'static str,
    handler: H,
) where
    H: Handler<T, Arc<ImageWorker>>,
    T: 'static,
{
    routes.extend(paths.map(|path| Route::post(path, summary, handler.clone())));
}
