//! The frame of a server around a worker that only echoes.

use axum::body::{to_bytes, Body};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use clap::Parser;
use serde_json::{json, Map, Value};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::ServiceExt;
use worker::serve::{
    health, router, DeviceInfo, Figure, Frame, Identity, Model, Route, Routes, Served, ServerArgs,
    Status, Worker,
};

/// What is loaded.
#[derive(Clone, Default)]
struct Echo(Arc<Mutex<Status>>);

impl Served for Echo {
    fn status(&self) -> Status {
        self.0.lock().unwrap().clone()
    }

    fn figures(&self) -> Vec<Figure> {
        vec![
            Figure::counter("echoes", "Echoes", 3),
            Figure::level("waiting", "Waiting", 2),
            Figure::gauge("share", "A share", 0.5),
            Figure::seconds("busy_seconds", "Time", 1.5),
        ]
    }

    fn info(&self) -> Map<String, Value> {
        Map::from_iter([("voices".to_string(), json!(1))])
    }

    fn stop(&self, _grace: Duration) {}
}

#[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
struct Said {
    text: String,
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
        let echo = |_: Model<Echo>, worker::http::JsonBody(said): worker::http::JsonBody<Said>| async move {
            said.text
        };
        let forget = |_: Model<Echo>| async {};
        Routes {
            public: vec![Route::get("/", "The page", || async { "page" })],
            protected: vec![
                Route::post("/echo/{id}", "Says it again", echo).takes::<Said>(),
                Route::delete("/echo/{id}", "Forgets it", forget),
            ],
        }
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    serve: ServerArgs,
}

fn worker() -> Arc<EchoWorker> {
    let identity = Identity {
        worker_id: "w1".to_string(),
        port: 80,
        device: DeviceInfo {
            name: "cpu".to_string(),
            ..DeviceInfo::default()
        },
        ..Identity::default()
    };
    Arc::new(EchoWorker(Frame::new(identity, "echo")))
}

async fn send(worker: &Arc<EchoWorker>, arguments: &[&str], request: Request<Body>) -> Response {
    let program = std::iter::once(&"serve");
    let listen = Cli::parse_from(program.chain(arguments)).serve.listen;
    let router = router(worker.clone(), &listen).unwrap();
    router.oneshot(request).await.unwrap()
}

async fn text(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

async fn get(worker: &Arc<EchoWorker>, path: &str) -> (u16, Value) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let (status, text) = text(send(worker, &[], request).await).await;
    (status, serde_json::from_str(&text).unwrap_or(json!(text)))
}

fn say(text: &str) -> Request<Body> {
    let body = Body::from(json!({"text": text}).to_string());
    Request::post("/echo/1").body(body).unwrap()
}

#[tokio::test]
async fn phases() {
    let worker = worker();
    worker.0.progress.expect(4);
    worker.0.progress.add(1);
    worker.0.progress.begin("clearing the throat");
    let (status, health) = get(&worker, "/health").await;
    assert_eq!((status, &health["status"]), (503, &json!("loading")));
    assert_eq!(
        (&health["progress"], &health["stage"], &health["model"]),
        (
            &json!(0.25),
            &json!("clearing the throat"),
            &json!("canyon")
        )
    );
    assert_eq!(get(&worker, "/ready").await.0, 503);
    assert_eq!(get(&worker, "/").await, (200, json!("page")));
    assert_eq!(get(&worker, "/info").await.1["status"], "starting");
    let refused = send(&worker, &[], say("x")).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    let (status, refused) = text(refused).await;
    assert!(status == 503 && refused.contains("LOADING"), "{refused}");

    let echo = Echo::default();
    worker.0.serve(echo.clone());
    let (_, health) = get(&worker, "/health").await;
    assert_eq!(
        (&health["status"], &health["switched_off"]),
        (&json!("healthy"), &json!([]))
    );
    assert_eq!(get(&worker, "/ready").await.0, 200);
    let said = text(send(&worker, &[], say("hallo")).await).await;
    assert_eq!(said, (200, "hallo".to_string()));

    echo.0.lock().unwrap().busy = true;
    let beat = health::heartbeat(&*worker);
    let expected = json!({
        "id": "w1", "model_id": "canyon", "device": "cpu", "port": 80, "status": "busy",
        "implementation": "echo-worker", "version": "1.2.3", "voices": 1,
    });
    assert_eq!(beat["worker"], expected);
    assert_eq!(get(&worker, "/info").await, (200, expected));
    assert!(beat["timestamp"].as_str().unwrap().ends_with('Z'));

    assert!(get(&worker, "/health").await.1.get("degraded").is_none());
    echo.0.lock().unwrap().degraded = vec!["hoarse".to_string()];
    let (status, health) = get(&worker, "/health").await;
    assert_eq!((status, &health["degraded"]), (200, &json!(["hoarse"])));

    echo.0.lock().unwrap().lost = Some("gone".to_string());
    let (status, health) = get(&worker, "/health").await;
    assert_eq!((status, &health["status"]), (503, &json!("lost")));
    assert_eq!(get(&worker, "/info").await.1["status"], "stopped");

    // What is loaded is there for answers that began before.
    worker.0.stop();
    assert_eq!(get(&worker, "/health").await.1["status"], "stopping");
    let last = send(&worker, &[], say("last")).await;
    assert_eq!(last.headers()["connection"], "close");
    assert_eq!(text(last).await.0, 200);
    assert!(worker.0.serving().is_err());
}

#[tokio::test]
async fn keys_unknown_paths_and_origins() {
    let worker = worker();
    worker.0.serve(Echo::default());
    let key = ["--api-key", "secret"];
    let request = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    for path in ["/info", "/metrics"] {
        assert_eq!(send(&worker, &key, request(path)).await.status(), 401);
    }
    for path in ["/", "/health", "/ready", "/openapi.json"] {
        assert_eq!(send(&worker, &key, request(path)).await.status(), 200);
    }
    let (status, missing) = get(&worker, "/nowhere").await;
    assert_eq!(
        (status, &missing["error"]["code"]),
        (404, &json!("NOT_FOUND"))
    );
    let (status, wrong) = get(&worker, "/echo/1").await;
    assert_eq!(
        (status, &wrong["error"]["code"]),
        (405, &json!("METHOD_NOT_ALLOWED"))
    );
    let preflight = Request::options("/echo/1")
        .header("Origin", "https://pages.example")
        .header("Access-Control-Request-Method", "DELETE")
        .body(Body::empty())
        .unwrap();
    let allowed = send(
        &worker,
        &["--cors-origin", "https://pages.example"],
        preflight,
    )
    .await;
    assert_eq!(allowed.status(), StatusCode::OK);
    let methods = allowed.headers()["access-control-allow-methods"].to_str();
    for method in ["GET", "POST", "DELETE"] {
        assert!(methods.as_ref().unwrap().contains(method), "{methods:?}");
    }
}

#[tokio::test]
async fn figures_and_the_document() {
    let worker = worker();
    worker.0.serve(Echo::default());
    get(&worker, "/nowhere").await;
    let (_, text) = get(&worker, "/metrics").await;
    let text = text.as_str().unwrap();
    for line in [
        "echo_http_answers_total{route=\"unknown\",status=\"404\"} 1",
        "echo_echoes_total 3",
        "echo_waiting 2",
        "echo_share 0.5",
        "echo_busy_seconds_total 1.5",
        "echo_device_lost 0.0",
        "echo_switched_off 0",
        "# TYPE echo_echoes_total counter",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    assert!(!text.contains("# EOF"), "{text}");
    let request = Request::get("/metrics")
        .header("Accept", "application/openmetrics-text")
        .body(Body::empty());
    let open = send(&worker, &[], request.unwrap()).await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.headers()["content-type"], kind);
    let (_, open) = self::text(open).await;
    assert!(open.ends_with("# EOF\n"), "{open}");
    assert!(open.contains("# TYPE echo_echoes counter\n"), "{open}");
    let (_, document) = get(&worker, "/openapi.json").await;
    let item = &document["paths"]["/echo/{id}"];
    assert_eq!(item["post"]["summary"], "Says it again");
    assert_eq!(item["delete"]["parameters"][0]["name"], "id");
    let body = &item["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"];
    let pointer = &body.as_str().unwrap()[1..];
    assert!(document.pointer(pointer).unwrap()["properties"]["text"].is_object());
}
