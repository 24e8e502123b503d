//! Names every request, and tells its end.

use super::headers::{X_JOB_ID, X_REQUEST_ID};
use super::{RequestScope, Traces};
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use opentelemetry::trace::{SpanBuilder, SpanKind, Status, TraceContextExt};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

/// The status that is told of a request whose client went away before there was one.
const CLIENT_GONE: u16 = 499;
/// What orchestrators ask every few seconds; nobody wants traces of it.
const PROBES: [&str; 3] = ["/health", "/ready", "/metrics"];
/// Longest path that is told, in characters.
const MAX_PATH: usize = 256;
/// What unknown paths are told as: clients must not be able to make new labels.
const UNKNOWN: &str = "unknown";

/// Is told route and status of an answer.
type Count = dyn Fn(&str, u16) + Send + Sync;

/// Who looks at requests.
#[derive(Clone)]
pub(crate) struct Watch {
    /// Where traces go.
    pub traces: Traces,
    /// Is told of every answer.
    pub count: Arc<Count>,
}

impl Default for Watch {
    /// Nobody counts, no traces.
    fn default() -> Self {
        Self {
            traces: Traces::default(),
            count: Arc::new(|_, _| {}),
        }
    }
}

/// For [`axum::middleware::from_fn_with_state`], around everything else: gives the request its name and its place in a
/// trace, the answer the same name, and tells the end of it to figures, log and trace.
pub(crate) async fn observe(State(watch): State<Watch>, request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map_or(UNKNOWN, MatchedPath::as_str);
    let span = |traces: &Traces, parent: &Context| start_span(traces, parent, &request);
    let mut account = Account {
        start: Instant::now(),
        method: request.method().clone(),
        path: shown_path(&request),
        status: None,
        is_complete: false,
        scope: RequestScope::begin(&watch.traces, route, request.headers(), span),
    };
    let scope = account.scope.clone();
    let mut response = scope.run(next.run(request)).await;
    let status = response.status();
    (watch.count)(scope.route(), status.as_u16());
    account.status = Some(status);
    let headers = response.headers_mut();
    headers.insert(X_REQUEST_ID, scope.id().clone());
    let job = scope.known().job;
    if let Some(Ok(job)) = job.map(HeaderValue::try_from) {
        headers.insert(X_JOB_ID, job);
    }
    response.map(|body| Body::new(Observed { body, account }))
}

/// The path, cut where it is too long for a log.
fn shown_path(request: &Request) -> String {
    request.uri().path().chars().take(MAX_PATH).collect()
}

/// The span of a request that is to be traced.
fn start_span(traces: &Traces, parent: &Context, request: &Request) -> Option<Context> {
    let tracer = traces.tracer()?;
    let matched = request.extensions().get::<MatchedPath>();
    let route = matched.map(|matched| matched.as_str().to_string());
    if !parent.has_active_span() && PROBES.contains(&request.uri().path()) {
        return None;
    }
    let known = [
        Method::GET,
        Method::POST,
        Method::DELETE,
        Method::HEAD,
        Method::OPTIONS,
    ];
    let method = match known.contains(request.method()) {
        true => request.method().as_str().to_string(),
        false => "_OTHER".to_string(),
    };
    let name = match &route {
        Some(route) => format!("{method} {route}"),
        None => method.clone(),
    };
    let mut attributes = vec![
        KeyValue::new("http.request.method", method),
        KeyValue::new("url.scheme", "http"),
        KeyValue::new("url.path", shown_path(request)),
    ];
    attributes.extend(route.map(|route| KeyValue::new("http.route", route)));
    let span = SpanBuilder::from_name(name)
        .with_kind(SpanKind::Server)
        .with_attributes(attributes)
        .start_with_context(tracer, parent);
    Some(parent.with_span(span))
}

/// A request until its answer has gone, or cannot any more; its end is told when this is dropped.
struct Account {
    start: Instant,
    method: Method,
    path: String,
    /// None before there is an answer.
    status: Option<StatusCode>,
    /// All of the answer has been given to the connection.
    is_complete: bool,
    scope: RequestScope,
}

impl Drop for Account {
    fn drop(&mut self) {
        self.scope.enter(|| self.log());
        self.end_span();
    }
}

impl Account {
    fn log(&self) {
        let known = self.scope.known();
        let status = self.status.map_or(CLIENT_GONE, |status| status.as_u16());
        let what = match self.is_complete {
            true => "answered",
            false => "the client went away",
        };
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    method = %self.method,
                    path = self.path,
                    route = self.scope.route(),
                    status,
                    seconds = self.start.elapsed().as_secs_f64(),
                    model = known.model,
                    prompt_tokens = known.prompt_tokens,
                    cached_tokens = known.cached_tokens,
                    answer_tokens = known.answer_tokens,
                    queue_seconds = known.queued.map(|time| time.as_secs_f64()),
                    first_token_seconds = known.first_token.map(|time| time.as_secs_f64()),
                    job = known.job,
                    error = known.error,
                    "{what}"
                )
            };
        }
        // What orchestrators and pages ask all the time would hide the rest.
        match self.method {
            Method::GET | Method::HEAD | Method::OPTIONS => line!(debug),
            _ => line!(info),
        }
    }

    fn end_span(&self) {
        if !self.scope.is_traced() {
            return;
        }
        let span = self.scope.context().span();
        let id = self.scope.id().to_str().unwrap_or_default().to_string();
        let ids = Array::String(vec![StringValue::from(id)]);
        let header = "http.request.header.x-request-id";
        span.set_attribute(KeyValue::new(header, Value::Array(ids)));
        if let Some(status) = self.status {
            let code = i64::from(status.as_u16());
            span.set_attribute(KeyValue::new("http.response.status_code", code));
        }
        let known = self.scope.known();
        let is_failed = !self.is_complete || self.status.is_some_and(|s| s.is_server_error());
        let kind = match known.error {
            Some(code) => Some(code),
            None if !self.is_complete => Some("client_gone"),
            None => None,
        };
        if let Some(kind) = kind {
            span.set_attribute(KeyValue::new("error.type", kind));
        }
        if is_failed {
            span.set_status(Status::error(kind.unwrap_or("server_error")));
        }
        span.end();
    }
}

/// An answer's body, made in the request's scope.
struct Observed {
    body: Body,
    account: Account,
}

impl HttpBody for Observed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = self.get_mut();
        let body = &mut this.body;
        let polled = (this.account.scope.clone()).enter(|| Pin::new(body).poll_frame(context));
        // The server looks no further where a body says that it is at its end.
        this.account.is_complete = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => this.body.is_end_stream(),
            _ => false,
        };
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        // A body without anything in it is not asked for it.
        self.account.is_complete |= self.body.is_end_stream();
    }
}
