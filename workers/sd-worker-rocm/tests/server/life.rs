//! Keys, health, and the end.

use crate::support::{generation, parse, Server, JSON};
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::server::ServerOptions;
use serde_json::json;
use worker::http::ApiKeys;

#[test]
fn keys_health_and_the_end() {
    let options = ServerOptions {
        keys: ApiKeys::new(["secret".to_string()]),
        device: "a device".to_string(),
        device_fallback: Some("no GPU".to_string()),
        worker_id: Some("w1".to_string()),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
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
        (status, &health["status"], &health["device_fallback"]),
        (200, &json!("healthy"), &json!("no GPU"))
    );
    assert!(health["timestamp"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(server.get("/ready").1["ready"], true);
    let (status, head, page) = server.send("GET", "/", "", b"");
    assert_eq!(status, 200);
    assert!(head
        .to_lowercase()
        .contains("content-security-policy: default-src 'none'"));
    // Nothing from elsewhere.
    let page = String::from_utf8(page).unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src=\"//"));

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
