//! Names, log lines and traces of requests, around a worker that only echoes.

use axum::body::{to_bytes, Body};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use axum::response::Response;
use clap::Parser;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};
use tower::ServiceExt;
use tracing_subscriber::fmt::MakeWriter;
use worker::http::{blocking, sse, ApiError};
use worker::observe::{spawn, Part, RequestScope, TraceArgs, Traces};
use worker::serve::{
    router, Figure, Frame, Identity, Route, Routes, Served, ServerArgs, Status, Worker,
};

#[derive(Clone)]
struct Echo;

impl Served for Echo {
    fn status(&self) -> Status {
        Status::default()
    }

    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }

    fn stop(&self, _grace: Duration) {}
}

struct EchoWorker(Frame<Echo>);

impl Worker for EchoWorker {
    type Loaded = Echo;

    const NAME: &'static str = "echo-worker";
    const VERSION: &'static str = "1.2.3";

    fn frame(&self) -> &Frame<Echo> {
        &self.0
    }

    fn model(&self) -> String {
        "canyon".to_string()
    }

    fn routes() -> Routes<Self> {
        Routes {
            public: Vec::new(),
            protected: vec![
                Route::post("/echo/{id}", "Says it again", echo),
                Route::post("/stream", "Says it in parts", stream),
                Route::post("/fail", "Fails", fail),
                Route::post("/pass", "The headers of a request of its own", pass),
                Route::post("/later", "Goes on behind its answer", later),
                Route::post("/hang", "Says nothing", std::future::pending::<()>),
            ],
        }
    }
}

/// Works on another thread, and tells log and trace.
async fn echo(said: String) -> Result<String, ApiError> {
    blocking(move || {
        RequestScope::note(|figures| {
            figures.model = Some("canyon".to_string());
            figures.add_prompt(7, 3);
            figures.add_answer(2);
            figures.first_token = Some(Duration::from_millis(1500));
        });
        tracing::warn!("an echo of {} bytes", said.len());
        let scope = RequestScope::current().unwrap();
        let (start, end) = (Instant::now() - Duration::from_millis(20), Instant::now());
        let inner = Part::new("inner", start, end).event("heard", end);
        scope.trace(
            Part::new("outer", start, end)
                .with("size", said.len() as i64)
                .part(inner),
        );
        said
    })
    .await
}

async fn stream(said: String) -> Response {
    sse::stream(sse::OPENAI, |frames| async move {
        frames.send(sse::data(&said)).await;
        tracing::warn!("in the stream");
        Err(ApiError::internal("the canyon is closed"))
    })
}

async fn pass() -> HeaderMap {
    let mut passed = HeaderMap::new();
    // What was there before is replaced.
    passed.insert("x-request-id", HeaderValue::from_static("other"));
    RequestScope::current().unwrap().pass_on(&mut passed);
    passed
}

async fn later() {
    let start = Instant::now();
    drop(spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let scope = RequestScope::current().unwrap();
        scope.trace(Part::new("late", start, Instant::now()).failed("cancelled", "nobody waits"));
    }));
}

async fn fail() -> ApiError {
    ApiError::internal("a rock fell")
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    serve: ServerArgs,
}

#[derive(Parser)]
struct TraceCli {
    #[command(flatten)]
    traces: TraceArgs,
}

fn worker(traces: &Traces) -> Arc<EchoWorker> {
    let identity = Identity {
        traces: traces.clone(),
        ..Identity::default()
    };
    let worker = Arc::new(EchoWorker(Frame::new(identity, "echo")));
    worker.0.serve(Echo);
    worker
}

async fn send(worker: &Arc<EchoWorker>, arguments: &[&str], request: Request<Body>) -> Response {
    let program = std::iter::once(&"serve");
    let listen = Cli::parse_from(program.chain(arguments)).serve.listen;
    let router = router(worker.clone(), &listen).unwrap();
    router.oneshot(request).await.unwrap()
}

fn post(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from("hello")).unwrap()
}

async fn text(response: Response) -> String {
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn every_answer_has_its_requests_name() {
    let worker = worker(&Traces::default());
    let named = ("x-request-id", "r-1");
    let key = ["--api-key", "k"];
    let foreign = ("origin", "http://evil.example");
    for (arguments, path, headers, status) in [
        (&[][..], "/echo/1", vec![named], 200),
        (&[], "/fail", vec![named], 500),
        (&[], "/health", vec![named], 405),
        (&[], "/nowhere", vec![named], 404),
        (&[], "/echo/1", vec![named, foreign], 403),
        (&key, "/echo/1", vec![named], 401),
    ] {
        let response = send(&worker, arguments, post(path, &headers)).await;
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(response.headers()["x-request-id"], "r-1", "{path}");
    }
    let made = send(&worker, &[], post("/echo/1", &[("x-request-id", "a b")])).await;
    assert_eq!(made.headers()["x-request-id"].len(), 32);
    // Pages of others that may call may read it.
    let page = [named, ("origin", "http://a.example")];
    let cors = ["--cors-origin", "http://a.example"];
    let response = send(&worker, &cors, post("/echo/1", &page)).await;
    assert_eq!(
        response.headers()["access-control-expose-headers"],
        "x-request-id"
    );
}

#[tokio::test]
async fn what_is_asked_for_a_request_has_its_name_and_its_trace() {
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("x-request-id", "r-1"),
        ("traceparent", parent),
        ("tracestate", "a=1"),
    ];
    let passed = send(&worker(&Traces::default()), &[], post("/pass", &headers)).await;
    for (name, value) in headers {
        assert_eq!(passed.headers()[name], value);
    }
    // Where spans are made, theirs is the parent.
    let collector = Collector::start();
    let traces = collector.traces();
    let passed = send(&worker(&traces), &[], post("/pass", &headers)).await;
    let below = passed.headers()["traceparent"]
        .to_str()
        .unwrap()
        .to_string();
    text(passed).await;
    traces.stop();
    let (_, spans) = collector.received();
    let id: String = spans[0]
        .span_id
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        below,
        format!("00-0af7651916cd43dd8448eb211c80319c-{id}-01")
    );
    let alone = send(&worker(&Traces::default()), &[], post("/pass", &[])).await;
    assert!(!alone.headers().contains_key("traceparent"));
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Log {
    /// The lines so far.
    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_string).collect()
    }
}

#[tokio::test]
async fn every_line_has_its_requests_name() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(log.clone())
        .with_ansi(false)
        .without_time()
        .finish();
    // Threads for blocking work have no subscriber of their own.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let worker = worker(&Traces::default());
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let of = |id: &str| -> Vec<String> {
        let name = format!("request_id=\"{id}\"");
        let lines = log.lines().into_iter();
        lines.filter(|line| line.contains(&name)).collect()
    };

    let headers = [("x-request-id", "r-echo"), ("traceparent", parent)];
    assert_eq!(
        text(send(&worker, &[], post("/echo/9?k=secret", &headers)).await).await,
        "hello"
    );
    let lines = of("r-echo");
    assert!(
        lines.len() == 2 && lines[0].contains("an echo of 5 bytes"),
        "{lines:?}"
    );
    for field in [
        "trace_id=\"0af7651916cd43dd8448eb211c80319c\"",
        "answered",
        "method=POST",
        "path=\"/echo/9\"",
        "route=\"/echo/{id}\"",
        "status=200",
        "seconds=0.",
        "model=\"canyon\"",
        "prompt_tokens=7",
        "cached_tokens=3",
        "answer_tokens=2",
        "first_token_seconds=1.5",
    ] {
        assert!(lines[1].contains(field), "{field} in {}", lines[1]);
    }
    assert!(!log.lines().concat().contains("secret"));

    let stream = send(
        &worker,
        &[],
        post("/stream", &[("x-request-id", "r-stream")]),
    )
    .await;
    assert!(of("r-stream").is_empty(), "it goes on");
    assert!(text(stream).await.contains("the canyon is closed"));
    let lines = of("r-stream").join("\n");
    for part in [
        "in the stream",
        "the request failed: the canyon is closed",
        "error=\"INTERNAL_ERROR\"",
        "status=200",
    ] {
        assert!(lines.contains(part), "{part} in {lines}");
    }

    let stream = send(&worker, &[], post("/stream", &[("x-request-id", "r-left")])).await;
    drop(stream);
    assert!(of("r-left").concat().contains("the client went away"));

    let hanging = send(&worker, &[], post("/hang", &[("x-request-id", "r-gone")]));
    tokio::time::timeout(Duration::from_millis(50), hanging)
        .await
        .unwrap_err();
    let lines = of("r-gone").concat();
    assert!(
        lines.contains("the client went away") && lines.contains("status=499"),
        "{lines}"
    );

    text(send(&worker, &[], post("/fail", &[("x-request-id", "r-fail")])).await).await;
    let lines = of("r-fail").join("\n");
    assert!(lines.contains("the request failed: a rock fell"), "{lines}");
    assert!(
        lines.contains("error=\"INTERNAL_ERROR\"") && lines.contains("status=500"),
        "{lines}"
    );
}

/// A collector of traces.
struct Collector {
    url: String,
    batches: mpsc::Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, batches) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                while let Some((head, body)) = read_request(&mut stream) {
                    assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
                    assert!(head.contains("application/x-protobuf"), "{head}");
                    let batch = ExportTraceServiceRequest::decode(&body[..]).unwrap();
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    // Before the answer: who has it may ask for the batch.
                    if sender.send(batch).is_err() {
                        return;
                    }
                    stream.get_mut().write_all(answer).unwrap();
                }
            }
        });
        Self { url, batches }
    }

    fn traces(&self) -> Traces {
        traces(&self.url)
    }

    /// The name of the service, and all spans so far.
    fn received(&self) -> (Option<String>, Vec<Span>) {
        let (mut service, mut spans) = (None, Vec::new());
        for resource in self
            .batches
            .try_iter()
            .flat_map(|batch| batch.resource_spans)
        {
            let attributes = resource.resource.unwrap().attributes;
            service = attributes
                .iter()
                .find(|a| a.key == "service.name")
                .map(value_text);
            spans.extend(
                resource
                    .scope_spans
                    .into_iter()
                    .flat_map(|scope| scope.spans),
            );
        }
        (service, spans)
    }
}

fn traces(url: &str) -> Traces {
    let arguments = ["serve", "--otlp-endpoint", url];
    TraceCli::parse_from(arguments)
        .traces
        .start("echo-worker", "1.2.3", "i1")
        .unwrap()
}

/// Head and body of a request; `None` at the end of the connection.
fn read_request(stream: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))?;
    let mut body = vec![0; length.trim().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    Some((head, body))
}

fn value_text(attribute: &opentelemetry_proto::tonic::common::v1::KeyValue) -> String {
    match attribute
        .value
        .as_ref()
        .and_then(|value| value.value.as_ref())
    {
        Some(AnyValue::StringValue(text)) => text.clone(),
        Some(AnyValue::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span
        .attributes
        .iter()
        .find(|attribute| attribute.key == name);
    found.map(value_text).unwrap_or_default()
}

#[tokio::test]
async fn spans_of_requests() {
    let collector = Collector::start();
    let traces = collector.traces();
    let worker = worker(&traces);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("traceparent", parent),
        ("tracestate", "shop=7"),
        ("x-request-id", "r-1"),
    ];
    text(send(&worker, &[], post("/echo/9?k=secret", &headers)).await).await;
    text(send(&worker, &[], post("/fail", &[])).await).await;
    let unsampled = parent.replace("-01", "-00");
    text(
        send(
            &worker,
            &[],
            post("/echo/0", &[("traceparent", &unsampled)]),
        )
        .await,
    )
    .await;
    let probe = Request::get("/health").body(Body::empty()).unwrap();
    assert_eq!(send(&worker, &[], probe).await.status(), StatusCode::OK);
    text(send(&worker, &[], post("/later", &[])).await).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    traces.stop();

    let (service, spans) = collector.received();
    assert_eq!(service.as_deref(), Some("echo-worker"));
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let expected = [
        "inner",
        "outer",
        "POST /echo/{id}",
        "POST /fail",
        "POST /later",
        "late",
    ];
    assert_eq!(names, expected);
    let [inner, outer, echo, fail, later, late] = &spans[..] else {
        unreachable!()
    };
    assert_eq!(late.parent_span_id, later.span_id);
    assert_eq!(attribute(late, "error.type"), "cancelled");
    let trace = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c_u128.to_be_bytes();
    for span in [inner, outer, echo] {
        assert_eq!(span.trace_id, trace);
        assert_eq!(span.trace_state, "shop=7");
    }
    assert_eq!(echo.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
    assert_eq!(outer.parent_span_id, echo.span_id);
    assert_eq!(inner.parent_span_id, outer.span_id);
    assert_eq!(echo.kind, SpanKind::Server as i32);
    for (name, value) in [
        ("http.request.method", "POST"),
        ("http.route", "/echo/{id}"),
        ("url.path", "/echo/9"),
        ("http.response.status_code", "200"),
    ] {
        assert_eq!(attribute(echo, name), value, "{name}");
    }
    assert!(attribute(echo, "http.request.header.x-request-id").contains("r-1"));
    assert_eq!(attribute(outer, "size"), "5");
    assert_eq!(inner.events[0].name, "heard");
    let took = inner.end_time_unix_nano - inner.start_time_unix_nano;
    assert!((19_000_000..40_000_000).contains(&took), "{took}");

    assert!(fail.parent_span_id.is_empty() && fail.trace_id != trace);
    assert_eq!(attribute(fail, "error.type"), "INTERNAL_ERROR");
    // STATUS_CODE_ERROR.
    assert_eq!(fail.status.as_ref().unwrap().code, 2);
    assert_ne!(echo.status.as_ref().map_or(0, |status| status.code), 2);
}

#[tokio::test]
async fn a_collector_that_is_not_there_holds_nobody_up() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    // Takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let unanswered = format!("http://{}", silent.local_addr().unwrap());
    for url in [refused, unanswered] {
        let traces = traces(&url);
        let worker = worker(&traces);
        let start = Instant::now();
        // More spans than the queue holds.
        for _ in 0..1000 {
            let response = send(&worker, &[], post("/echo/1", &[])).await;
            assert_eq!(text(response).await, "hello");
        }
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        let end = Instant::now();
        traces.stop();
        assert!(
            end.elapsed() < Duration::from_secs(4),
            "{:?}",
            end.elapsed()
        );
    }
}
