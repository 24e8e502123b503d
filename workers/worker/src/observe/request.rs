//! The request that is worked on.

use super::headers::{caller_span, request_id, TRACEPARENT, TRACESTATE, X_REQUEST_ID};
use super::part::Part;
use super::Traces;
use axum::http::{HeaderMap, HeaderValue};
use opentelemetry::trace::TraceContextExt;
use opentelemetry::Context;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::field::Empty;
use tracing::{Instrument, Span};

/// Target of the spans of requests, which stand whatever else is filtered out.
pub(crate) const TARGET: &str = "request";

tokio::task_local! {
    static CURRENT: RequestScope;
}

/// A request as logs and traces know it. Clones are handles to the same.
#[derive(Clone)]
pub struct RequestScope(Arc<Inner>);

struct Inner {
    id: HeaderValue,
    route: String,
    /// Gives its log lines its name.
    log: Span,
    /// Its own span, or the caller's where it is not traced.
    context: Context,
    traces: Traces,
    figures: Mutex<Figures>,
}

/// What is known of a request at its end, for the log. Never what it says: no prompt, no answer, no key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// The model that answered.
    pub model: Option<String>,
    /// Tokens of its prompts.
    pub prompt_tokens: Option<u64>,
    /// Of these, the ones that were known from earlier requests.
    pub cached_tokens: Option<u64>,
    /// Tokens of its answers.
    pub answer_tokens: Option<u64>,
    /// The longest time that one of its answers waited for its turn.
    pub queued: Option<Duration>,
    /// From its arrival to the first token of the first answer.
    pub first_token: Option<Duration>,
    /// The job that it made.
    pub job: Option<String>,
    /// Code of the error that it was answered with.
    pub error: Option<&'static str>,
}

impl Figures {
    /// Adds to the tokens of prompts, and to those of them that were known.
    pub fn add_prompt(&mut self, tokens: usize, cached: usize) {
        *self.prompt_tokens.get_or_insert(0) += tokens as u64;
        *self.cached_tokens.get_or_insert(0) += cached as u64;
    }

    /// Adds to the tokens of answers.
    pub fn add_answer(&mut self, tokens: usize) {
        *self.answer_tokens.get_or_insert(0) += tokens as u64;
    }
}

impl RequestScope {
    /// A request of a route, with these headers. Where it is traced, `span` gives its span, whose parent is given to it.
    pub(super) fn begin(
        traces: &Traces,
        route: &str,
        headers: &HeaderMap,
        span: impl FnOnce(&Traces, &Context) -> Option<Context>,
    ) -> Self {
        let id = request_id(headers);
        let caller = caller_span(headers);
        let context = match caller {
            Some(caller) => Context::new().with_remote_span_context(caller),
            None => Context::new(),
        };
        let context = span(traces, &context).unwrap_or(context);
        let log = tracing::error_span!(target: TARGET, "request",
            request_id = id.to_str().unwrap_or_default(), trace_id = Empty);
        if context.has_active_span() {
            let trace = context.span().span_context().trace_id();
            log.record("trace_id", trace.to_string());
        }
        Self(Arc::new(Inner {
            id,
            route: route.to_string(),
            log,
            context,
            traces: traces.clone(),
            figures: Mutex::default(),
        }))
    }

    /// The request that this task or thread works on.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Notes what is known of the current request, if there is one.
    pub fn note(change: impl FnOnce(&mut Figures)) {
        // Without a request there is nothing to note.
        let _ = CURRENT.try_with(|scope| change(&mut scope.figures()));
    }

    fn figures(&self) -> std::sync::MutexGuard<'_, Figures> {
        // Plain figures are whole at any moment.
        (self.0.figures.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of it.
    pub(super) fn known(&self) -> Figures {
        self.figures().clone()
    }

    /// Its name.
    pub fn id(&self) -> &HeaderValue {
        &self.0.id
    }

    /// Its route, as the table of routes has it.
    pub fn route(&self) -> &str {
        &self.0.route
    }

    /// Does work of this request on this thread.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), || self.0.log.in_scope(work))
    }

    /// Does work of this request wherever it is polled.
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = F::Output> + use<F> {
        CURRENT.scope(self.clone(), work.instrument(self.0.log.clone()))
    }

    /// Whether a trace of it is wanted: parts need not be made otherwise.
    pub fn is_traced(&self) -> bool {
        // Not whether its span still goes on: jobs outlive the request that made them.
        self.0.traces.is_on() && self.0.context.span().span_context().is_sampled()
    }

    /// Its own span, or the caller's.
    pub(super) fn context(&self) -> &Context {
        &self.0.context
    }

    /// Gives a request that is made for this one the same name, and the place below it in the trace.
    pub fn pass_on(&self, headers: &mut HeaderMap) {
        headers.insert(X_REQUEST_ID, self.0.id.clone());
        let span = self.0.context.span();
        let place = span.span_context();
        if !place.is_valid() {
            return;
        }
        let flags = place.trace_flags().to_u8();
        let parent = format!("00-{}-{}-{flags:02x}", place.trace_id(), place.span_id());
        for (name, value) in [
            (TRACEPARENT, parent),
            (TRACESTATE, place.trace_state().header()),
        ] {
            match HeaderValue::try_from(value) {
                Ok(value) if !value.is_empty() => headers.insert(name, value),
                _ => headers.remove(name),
            };
        }
    }

    /// Adds a part of its time to its trace. The part may have ended after the request's answer has.
    pub fn trace(&self, part: Part) {
        self.0.traces.record(part, &self.0.context);
    }
}

/// Starts a task that is a part of the current request, if there is one.
pub fn spawn<F>(task: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match RequestScope::current() {
        Some(scope) => tokio::spawn(scope.run(task)),
        None => tokio::spawn(task),
    }
}

impl std::fmt::Debug for RequestScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RequestScope").field(&self.0.id).finish()
    }
}
