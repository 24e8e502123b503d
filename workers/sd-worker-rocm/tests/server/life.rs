//! Keys, health, and the end.

use crate::support::{generation, identity, listen, parse, Server, JSON, LOST};
use sd_worker_rocm::server::{ImageWorker, ServerOptions};
use serde_json::{json, Value};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;
use worker::serve::{health, run, Worker};
use worker::Error;

#[test]
fn keys_health_and_the_end() {
    let server = Server::with_key();
    for (method, path) in [
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/x/stream"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/images/edits"),
        ("POST", "/sdapi/v1/txt2img"),
        ("GET", "/sdapi/v1/progress"),
        ("POST", "/sdapi/v1/interrupt"),
        ("GET", "/info"),
        ("GET", "/v1/models"),
    ] {
        let (status, _, body) = server.send(method, path, JSON, b"{}");
        assert_eq!(
            (status, &parse(&body)["error"]["code"]),
            (401, &json!("MISSING_API_KEY")),
            "{path}"
        );
        let (status, ..) = server.send(method, path, "Authorization: Bearer wrong\r\n", b"");
        assert_eq!(status, 401, "{path}");
    }
    let (status, _, info) = server.send("GET", "/info", "Authorization: Bearer secret\r\n", b"");
    let info = parse(&info);
    assert_eq!(status, 200);
    assert_eq!(
        (&info["id"], &info["status"], &info["model_id"]),
        (&json!("w1"), &json!("ready"), &json!("painter"))
    );
    let (status, health) = server.get("/health");
    assert_eq!(
        (status, &health["status"], &health["device"]["fallback"]),
        (200, &json!("healthy"), &json!("no GPU"))
    );
    assert!(health["timestamp"].as_str().unwrap() > "2020");
    assert_eq!(server.get("/ready").1["ready"], true);
    let (status, head, page) = server.send("GET", "/", "", b"");
    assert_eq!(status, 200);
    assert!(head
        .to_lowercase()
        .contains("content-security-policy: default-src 'none'"));
    // Nothing from elsewhere: the name of SVG is no address that is fetched.
    let page = String::from_utf8(page).unwrap();
    let page = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src=\"//"));

    server.worker.frame().stop();
    server.queue.close();
    let (status, ready) = server.get("/ready");
    assert_eq!((status, &ready["ready"]), (503, &json!(false)));
    let body = generation("x").to_string();
    let headers = format!("{JSON}Authorization: Bearer secret\r\n");
    assert_eq!(
        server.send("POST", "/v1/jobs", &headers, body.as_bytes()).0,
        503
    );
}

/// The status and the body of a path.
fn get(address: SocketAddr, path: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let limit = Some(Duration::from_secs(10));
    stream.set_read_timeout(limit).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, parse(body.as_bytes()))
}

#[test]
fn the_port_answers_while_the_model_loads() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let listener = runtime.block_on(listen().bind()).unwrap();
    let address = listener.local_addr().unwrap();
    let options = ServerOptions {
        model: "asked".to_string(),
        ..ServerOptions::default()
    };
    let worker = ImageWorker::new(identity(), options);
    let (told, tells) = channel();
    let (fail, fails) = channel::<()>();
    let load = move |worker: &ImageWorker| {
        let progress = &worker.frame().progress;
        progress.expect(100);
        progress.begin("loading denoiser");
        progress.set(25);
        told.send(()).unwrap();
        fails.recv().unwrap();
        Err(Error::Usage("there is no such model".to_string()))
    };
    let served = worker.clone();
    let ended = runtime
        .spawn(async move { run(served, listener, &listen(), load, std::future::pending()).await });
    tells.recv().unwrap();
    let (status, health) = get(address, "/health");
    assert_eq!(
        (
            status,
            &health["status"],
            &health["progress"],
            &health["stage"],
            &health["model"]
        ),
        (
            503,
            &json!("loading"),
            &json!(0.25),
            &json!("loading denoiser"),
            &json!("asked")
        )
    );
    assert_eq!(get(address, "/ready").0, 503);
    let (status, refused) = get(address, "/v1/jobs");
    assert_eq!(
        (status, &refused["error"]["code"]),
        (503, &json!("LOADING"))
    );
    let beat = health::heartbeat(&*worker);
    assert_eq!(beat["worker"]["status"], "starting");
    fail.send(()).unwrap();
    let error = runtime.block_on(ended).unwrap().unwrap_err();
    assert_eq!(error.exit_code(), 2, "{error}");
}

/// Takes the ten seconds for which `/health` tells of it.
#[test]
fn a_lost_device_is_noticed() {
    let mut server = Server::start();
    // Another job waits behind the one that finds out.
    let first = server.submit(&generation("slow and lost"));
    let second = server.submit(&generation("slow"));
    for id in [first, second] {
        let events = server.events(&format!("/v1/jobs/{id}/stream"), "GET", b"");
        let (name, error) = events.last().unwrap();
        assert_eq!(
            (name.as_str(), &error["code"]),
            ("error", &json!("DEVICE_LOST"))
        );
        assert!(error["message"].as_str().unwrap().contains(LOST), "{error}");
    }
    let (status, health) = server.get("/health");
    assert_eq!((status, &health["status"]), (503, &json!("lost")));
    assert!(health["message"].as_str().unwrap().contains(LOST));
    assert_eq!(server.get("/ready").0, 503);
    assert_eq!(server.get("/info").1["status"], "stopped");
    let (status, refused) = server.post("/v1/images/generations", &json!({"prompt": "x"}));
    assert_eq!(
        (status, &refused["error"]["code"]),
        (503, &json!("DEVICE_LOST"))
    );
    let (_, _, metrics) = server.send("GET", "/metrics", "", b"");
    let metrics = String::from_utf8(metrics).unwrap();
    assert!(metrics.contains("sd_worker_device_lost 1"), "{metrics}");
    let error = server.end().unwrap_err();
    assert!(matches!(&error, Error::DeviceLost(reason) if reason == LOST));
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn an_orchestrator_hears_of_every_worker_in_the_same_way() {
    let server = Server::start();
    let beat = health::heartbeat(&*server.worker);
    let timestamp = beat["timestamp"].as_str().unwrap();
    assert!(timestamp.contains('T') && timestamp.ends_with('Z'));
    let worker = &beat["worker"];
    assert_eq!(
        (&worker["id"], &worker["device"], &worker["port"]),
        (&json!("w1"), &json!("cpu"), &json!(8080))
    );
    assert_eq!(worker["status"], "ready");
    let mut slow = generation("slow");
    slow["steps"] = json!(150);
    let id = server.submit(&slow);
    server.wait_for(&id, "running");
    assert_eq!(health::worker_info(&*server.worker)["status"], "busy");
    // What is not there says so in JSON.
    let (status, missing) = server.get("/nowhere");
    assert_eq!(
        (status, &missing["error"]["code"]),
        (404, &json!("NOT_FOUND"))
    );
    let (status, wrong) = server.post("/v1/models", &json!({}));
    assert_eq!(
        (status, &wrong["error"]["code"]),
        (405, &json!("METHOD_NOT_ALLOWED"))
    );
    let (status, document) = server.get("/openapi.json");
    assert_eq!((status, &document["openapi"]), (200, &json!("3.0.3")));
}

#[test]
fn pages_of_other_origins_may_cancel_where_they_are_let_in() {
    let origin = |listen: &mut worker::http::ListenOptions| {
        listen
            .cors_origins
            .push("https://pages.example".to_string());
    };
    let server = Server::listening(Default::default(), ServerOptions::default(), origin);
    let preflight = "Origin: https://pages.example\r\nAccess-Control-Request-Method: DELETE\r\n";
    let (status, head, _) = server.send("OPTIONS", "/v1/jobs/x", preflight, b"");
    assert_eq!(status, 200);
    let head = head.to_lowercase();
    let allowed = head
        .lines()
        .find_map(|line| line.strip_prefix("access-control-allow-methods:"));
    assert!(
        allowed.is_some_and(|methods| methods.contains("delete")),
        "{head}"
    );
}

#[test]
fn a_stop_lets_short_jobs_finish_and_cancels_long_ones() {
    for (steps, last) in [(20, "event: complete"), (150, "CANCELLED")] {
        let mut server = Server::start();
        let mut slow = generation("slow");
        slow["steps"] = json!(steps);
        let id = server.submit(&slow);
        let mut stream = server.open("GET", &format!("/v1/jobs/{id}/stream"), "", b"");
        let mut text = String::new();
        while !text.contains("event: progress") {
            let mut part = [0; 256];
            let count = stream.read(&mut part).unwrap();
            text.push_str(std::str::from_utf8(&part[..count]).unwrap());
        }
        server.terminate.take().unwrap().send(()).unwrap();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.contains(last), "{last} in {text:.2000}");
        server.end().unwrap();
    }
}
