//! The server of several models: its own routes, and all of a worker's, which it passes on.

use super::figures;
use super::handle::Fleet;
use super::named::Named;
use super::proxy::{self, Trouble};
use super::FleetWorker;
use crate::http::json::{self, JsonBody};
use crate::http::sse::{self, Encoding, Protocol};
use crate::http::{ApiError, Caller};
use crate::serve::{Figure, Frame, Identity, Model, Route, Routes, Served, Status, Worker};
use axum::body::{to_bytes, Body, Bytes};
use axum::extract::{FromRequestParts, MatchedPath, Path, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{on, MethodFilter};
use axum::{Json, Router};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::broadcast::error::RecvError;
use tower_service::Service;

/// Longest figures of one process.
const MAX_FIGURES: usize = 16 << 20;
/// How long a process may take for its figures.
const FIGURES_PATIENCE: Duration = Duration::from_secs(5);
/// Names that stand for whatever model there is, as some clients and routers send them.
const ANY: [&str; 3] = ["", "default", "unknown"];

/// A server of several models of a worker.
pub struct FleetServer<W> {
    frame: Frame<Fleet>,
    /// What the worker answers without a model.
    alone: Router,
    /// What processes and timers run on.
    pub(super) runtime: Handle,
    worker: std::marker::PhantomData<fn() -> W>,
}

impl<W: FleetWorker> FleetServer<W> {
    /// Around a worker that has no model. Called where a runtime is.
    pub(super) fn new(identity: Identity, make: impl FnOnce(Identity) -> Arc<W>) -> Arc<Self> {
        let worker = make(identity.clone());
        let Routes { public, protected } = W::routes();
        let alone = public
            .into_iter()
            .filter(|route| !is_forwarded::<W>(route.path));
        let alone = alone.chain(
            protected
                .into_iter()
                .filter(|route| W::answers_alone(route.path)),
        );
        let router = alone.fold(Router::new(), |router, route| {
            router.route(route.path, route.handler)
        });
        Arc::new(Self {
            frame: Frame::new(identity, "models"),
            alone: router.with_state(worker),
            runtime: Handle::current(),
            worker: std::marker::PhantomData,
        })
    }
}

/// Whether a public route is about something that a model has made, which its parameter names.
fn is_forwarded<W: FleetWorker>(path: &str) -> bool {
    path.contains('{') && !W::answers_alone(path)
}

impl<W: FleetWorker> Worker for FleetServer<W> {
    type Loaded = Fleet;

    const NAME: &'static str = W::NAME;
    const VERSION: &'static str = W::VERSION;
    const OPEN_METRICS: bool = W::OPEN_METRICS;

    fn frame(&self) -> &Frame<Fleet> {
        &self.frame
    }

    fn model(&self) -> String {
        match self.frame.loaded() {
            Ok(fleet) => format!("{} models", fleet.list().len()),
            Err(_) => "several models".to_string(),
        }
    }

    fn routes() -> Routes<Self> {
        let mut own = own_routes::<W>();
        let of_worker = W::fleet_routes();
        own.retain(|route| !of_worker.iter().any(|other| is_same(route, other)));
        own.extend(of_worker);
        let metrics = own.iter().position(|route| route.path == "/metrics");
        let metrics = metrics.map(|position| own.remove(position));
        let Routes { public, protected } = W::routes();
        let mut routes = Routes::default();
        for route in public {
            if !own.iter().any(|other| is_same(&route, other)) {
                let forwards = is_forwarded::<W>(route.path);
                routes.public.push(if forwards {
                    passed::<W>(route)
                } else {
                    kept::<W>(route)
                });
            }
        }
        for route in protected {
            if !own.iter().any(|other| is_same(&route, other)) {
                let alone = W::answers_alone(route.path);
                routes.protected.push(if alone {
                    kept::<W>(route)
                } else {
                    passed::<W>(route)
                });
            }
        }
        match W::OPEN_METRICS {
            true => routes.public.extend(metrics),
            false => routes.protected.extend(metrics),
        }
        routes.protected.extend(own);
        routes
    }
}

fn is_same<A, B>(a: &Route<A>, b: &Route<B>) -> bool {
    a.path == b.path && a.method == b.method
}

/// A worker's route that is passed on to a model.
fn passed<W: FleetWorker>(route: Route<W>) -> Route<FleetServer<W>> {
    let filter = MethodFilter::try_from(route.method.clone()).unwrap_or(MethodFilter::GET);
    Route {
        path: route.path,
        method: route.method,
        summary: route.summary,
        body: route.body,
        handler: on(filter, pass::<W>),
    }
}

/// A worker's route that it answers without a model.
fn kept<W: FleetWorker>(route: Route<W>) -> Route<FleetServer<W>> {
    let filter = MethodFilter::try_from(route.method.clone()).unwrap_or(MethodFilter::GET);
    Route {
        path: route.path,
        method: route.method,
        summary: route.summary,
        body: route.body,
        handler: on(filter, keep::<W>),
    }
}

/// The routes of the server itself.
fn own_routes<W: FleetWorker>() -> Vec<Route<FleetServer<W>>> {
    let list = "The models and their states; with ?reload=1 after looking for them anew";
    vec![
        Route::get("/v1/models", list, models),
        Route::get("/models", list, models),
        Route::get("/v1/models/{*id}", "A model and its state", model),
        Route::post("/models/load", "Loads a model", load).takes::<ModelFields>(),
        Route::post(
            "/models/unload",
            "Unloads a model: its answers have the server's grace to end",
            unload,
        )
        .takes::<ModelFields>(),
        Route::get(
            "/models/sse",
            "What happens to models, as server-sent events",
            events,
        ),
        Route::get(
            "/props",
            "How the server is set; with ?model=NAME, how that model is",
            props::<W>,
        ),
        Route::get(
            "/metrics",
            "Figures for Prometheus, those of models with their names",
            metrics::<W>,
        ),
    ]
}

impl Served for Fleet {
    fn status(&self) -> Status {
        let (waiting, _) = self.tally();
        let failed = self.list().into_iter().filter_map(|view| {
            let error = view.json["status"]["error"].as_str()?.to_string();
            Some(format!("model {}: {error}", view.name))
        });
        Status {
            busy: waiting > 0,
            lost: None,
            degraded: failed.collect(),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let (waiting, tally) = self.tally();
        let in_state = |state: &str| tally.get(state).copied().unwrap_or(0) as u64;
        let counts = self.counts();
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        vec![
            Figure::level("loaded", "Models that are loaded", in_state("loaded")),
            Figure::level(
                "loading",
                "Models that are being loaded",
                in_state("loading"),
            ),
            Figure::level("sleeping", "Models that sleep", in_state("sleeping")),
            Figure::level(
                "known",
                "Models that can be asked for",
                tally.values().sum::<usize>() as u64,
            ),
            Figure::level(
                "requests_waiting",
                "Requests that wait for their models",
                waiting as u64,
            ),
            Figure::counter(
                "loads",
                "Loads of models that were begun",
                read(&counts.loads),
            ),
            Figure::counter(
                "load_failures",
                "Loads of models that failed",
                read(&counts.failures),
            ),
            Figure::counter(
                "unloads",
                "Models that were unloaded",
                read(&counts.unloads),
            ),
            Figure::counter(
                "sleeps",
                "Models that were put to sleep",
                read(&counts.sleeps),
            ),
            Figure::counter(
                "crashes",
                "Processes of models that crashed",
                read(&counts.crashes),
            ),
            Figure::counter(
                "requests_refused",
                "Requests that got no model",
                read(&counts.refused),
            ),
        ]
    }

    fn info(&self) -> Map<String, Value> {
        let models = self
            .list()
            .into_iter()
            .map(|view| json!({"id": view.name, "state": view.state}));
        Map::from_iter([("models".to_string(), models.collect())])
    }

    fn stop(&self, grace: Duration) {
        // Called by a thread that may wait.
        self.runtime().block_on(Fleet::stop(self, grace));
    }
}

/// `GET /v1/models`
async fn models(
    Model(fleet): Model<Fleet>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Value>, ApiError> {
    if query.reload.is_some_and(|reload| !reload.is_empty()) {
        let again = fleet.clone();
        crate::http::try_blocking(move || again.reread()).await?;
    }
    let data: Vec<Value> = fleet
        .details()
        .into_iter()
        .flat_map(|(view, info)| entries(view.json, info))
        .collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

#[derive(Debug, Deserialize)]
struct ListQuery {
    reload: Option<String>,
}

/// A model's entry with what its process says, and entries of its adapters.
fn entries(mut entry: Value, info: Vec<Value>) -> Vec<Value> {
    let status = entry["status"].clone();
    let mut info = info.into_iter();
    if let (Some(Value::Object(own)), Some(fields)) = (info.next(), entry.as_object_mut()) {
        for (key, value) in own {
            fields.entry(key).or_insert(value);
        }
    }
    let name = entry["id"].clone();
    let adapters = info.filter_map(|mut adapter| {
        let own = adapter.get("id")?.as_str()?.to_string();
        let base = name.as_str()?;
        adapter["id"] = json!(format!("{base}:{own}"));
        adapter["parent"] = json!(base);
        adapter["status"] = status.clone();
        Some(adapter)
    });
    let adapters: Vec<Value> = adapters.collect();
    std::iter::once(entry).chain(adapters).collect()
}

/// `GET /v1/models/ID`
async fn model(
    Model(fleet): Model<Fleet>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = fleet.name(fleet.find(&id)?);
    let found = fleet
        .details()
        .into_iter()
        .find(|(view, _)| view.name == name);
    let (view, info) =
        found.ok_or_else(|| ApiError::not_found(format!("there is no model {id:?} any more")))?;
    let mut all = entries(view.json, info);
    let adapter = all.iter().position(|entry| entry["id"] == id.as_str());
    Ok(Json(all.swap_remove(adapter.unwrap_or(0))))
}

/// Names a model.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "NamedModel")]
pub(super) struct ModelFields {
    /// The model's name, or an alias.
    model: String,
}

async fn load(
    Model(fleet): Model<Fleet>,
    JsonBody(fields): JsonBody<ModelFields>,
) -> Result<Json<Value>, ApiError> {
    fleet.load(&fields.model)?;
    Ok(Json(json!({"success": true})))
}

async fn unload(
    Model(fleet): Model<Fleet>,
    JsonBody(fields): JsonBody<ModelFields>,
) -> Result<Json<Value>, ApiError> {
    fleet.unload(&fields.model)?;
    Ok(Json(json!({"success": true})))
}

/// Streams that end without a last frame.
const EVENTS: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: |error| sse::data(&error.to_json()),
    done: None,
};

/// `GET /models/sse`
async fn events(Model(fleet): Model<Fleet>) -> Response {
    let mut events = fleet.events();
    sse::stream(EVENTS, move |frames| async move {
        while !fleet.is_stopping() {
            match events.recv().await {
                Ok(event) => frames.send(sse::data(&event)).await,
                // A slow reader misses some.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
        Ok(())
    })
}

/// `GET /props`
async fn props<W: FleetWorker>(
    State(server): State<Arc<FleetServer<W>>>,
    Model(fleet): Model<Fleet>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let query = parts.uri.query().unwrap_or_default();
    if url::form_urlencoded::parse(query.as_bytes()).any(|(key, _)| key == "model") {
        return pass(State(server), Request::from_parts(parts, Body::empty())).await;
    }
    let options = fleet.options();
    Json(json!({
        "role": "router",
        "max_instances": options.limits.models.unwrap_or(0),
        "models_autoload": options.autoload,
        "model": fleet.default_name(),
        "device": server.frame.identity.device,
        // llama.cpp's clients look for a number behind the letter.
        "build_info": format!("b0-{}-{}", W::NAME, W::VERSION),
        "default_generation_settings": {"params": {}, "n_ctx": 0},
    }))
    .into_response()
}

/// `GET /metrics`
async fn metrics<W: FleetWorker>(
    State(server): State<Arc<FleetServer<W>>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, _) = request.into_parts();
    let own = crate::serve::metrics::show(State(server.clone()), parts.headers.clone()).await?;
    let kind = own.headers().get(CONTENT_TYPE).cloned();
    let own = to_bytes(own.into_body(), usize::MAX).await;
    let own = own.map_err(|e| ApiError::internal(format!("cannot read the figures: {e}")))?;
    let children = server
        .frame
        .loaded()
        .map(|fleet| fleet.running())
        .unwrap_or_default();
    let asked = children.into_iter().map(|child| {
        let headers = parts.headers.clone();
        tokio::spawn(async move {
            let mut request = Request::new(Bytes::new());
            *request.uri_mut() = "/metrics".parse().unwrap_or_default();
            *request.headers_mut() = headers;
            // One that does not answer has no figures at this moment.
            let (status, body) = proxy::ask(&child, request, FIGURES_PATIENCE).await.ok()?;
            let text = String::from_utf8_lossy(&body).into_owned();
            (status == 200 && text.len() <= MAX_FIGURES).then(|| (child.name.clone(), text))
        })
    });
    let mut models = Vec::new();
    for task in asked.collect::<Vec<_>>() {
        models.extend(task.await.ok().flatten());
    }
    let text = figures::merge(&String::from_utf8_lossy(&own), &models);
    let mut response = text.into_response();
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// Answers as the worker without a model does.
async fn keep<W: FleetWorker>(
    State(server): State<Arc<FleetServer<W>>>,
    request: Request,
) -> Response {
    let mut alone = server.alone.clone();
    let Ok(response) = alone.call(request).await;
    response
}

/// Passes a request on to the model that it names.
async fn pass<W: FleetWorker>(
    State(server): State<Arc<FleetServer<W>>>,
    request: Request,
) -> Response {
    let matched = request
        .extensions()
        .get::<MatchedPath>()
        .map(|matched| matched.as_str().to_string());
    let path = matched.unwrap_or_default();
    match pass_to_model(&server, &path, request).await {
        Ok(response) => response,
        Err(error) => W::refusal(&path, error),
    }
}

/// A request with its whole body.
struct Whole<'a> {
    parts: &'a axum::http::request::Parts,
    body: Bytes,
    caller: u64,
    protocol: Protocol,
}

async fn pass_to_model<W: FleetWorker>(
    server: &FleetServer<W>,
    path: &str,
    request: Request,
) -> Result<Response, ApiError> {
    let fleet = server.frame.serving()?;
    let (mut parts, body) = request.into_parts();
    let Ok(Caller(caller)) = Caller::from_request_parts(&mut parts, &()).await;
    // The layers of the router are in the extensions: limits of the body's length, too.
    let mut with_limits = Request::new(body);
    *with_limits.extensions_mut() = parts.extensions.clone();
    let (body, _held) = json::read(with_limits).await?;
    let whole = Whole {
        parts: &parts,
        body: Bytes::from(body),
        caller,
        protocol: W::protocol(path),
    };
    let named = Named::read(&parts, &whole.body).await?;
    let name = named.model.as_deref().filter(|name| !ANY.contains(name));
    let id = match name {
        Some(name) => {
            let plain = |error| fleet.find(W::plain_name(name)).map_err(|_| error);
            fleet.find(name).or_else(plain)?
        }
        None if path.contains('{') => return ask_all(&fleet, &whole).await,
        None => fleet.default_model()?,
    };
    let mut again = true;
    loop {
        let lease = fleet.lease(id, named.autoload, named.keep_alive).await?;
        let child = lease.child.clone();
        match whole.pass(&child, Some(lease)).await {
            Ok(response) => return Ok(response),
            // It ended in this moment: the next one knows nothing of the request, either.
            Err(Trouble::Unreached(_)) if again => again = false,
            Err(trouble) => return Err(trouble.error(&child.name)),
        }
    }
}

impl Whole<'_> {
    async fn pass(
        &self,
        child: &super::child::Child,
        lease: Option<super::lease::Lease>,
    ) -> Result<Response, Trouble> {
        proxy::pass(
            child,
            lease,
            self.caller,
            self.parts,
            self.body.clone(),
            self.protocol,
        )
        .await
    }
}

/// Asks all models for something that one of them knows by the path: the answer of the first that knows it.
async fn ask_all(fleet: &Fleet, whole: &Whole<'_>) -> Result<Response, ApiError> {
    let mut unknown = None;
    for child in fleet.running() {
        let lease = fleet.lease_now(&child);
        match whole.pass(&child, lease).await {
            Ok(response) if response.status() == 404 => unknown = Some(response),
            Ok(response) => return Ok(response),
            // What it knew is gone.
            Err(trouble) => tracing::debug!("{}", trouble.error(&child.name).message),
        }
    }
    unknown.ok_or_else(|| {
        let path = whole.parts.uri.path();
        ApiError::not_found(format!(
            "no model that is loaded knows {path}; ?model=NAME loads one"
        ))
    })
}
