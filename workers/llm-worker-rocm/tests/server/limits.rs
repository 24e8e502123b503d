//! Keys, bodies, origins.

use crate::client::{Answer, Server};
use crate::script::Play;
use axum::body::Body;
use axum::http::Request;
use serde_json::json;

#[tokio::test]
async fn keys() {
    let server = Server::with_arguments([], &["--api-key", "first,second", "--api-key", "other"]);
    let get = |path: &str, key: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(key) = key {
            request = request.header("Authorization", key);
        }
        let request = request.body(Body::empty()).unwrap();
        async { Answer::of(server.send(request).await).await }
    };
    for path in [
        "/v1/models",
        "/metrics",
        "/info",
        "/props",
        "/v1/jobs/x/stream",
    ] {
        let refused = get(path, None).await;
        assert_eq!(
            (refused.error().0, refused.error().1.as_str()),
            (401, "MISSING_API_KEY")
        );
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
        let (status, code, _) = get(path, Some("Bearer third")).await.error();
        assert_eq!((status, code.as_str()), (401, "INVALID_API_KEY"));
    }
    for key in ["Bearer first", "Bearer second", "bearer other"] {
        get("/v1/models", Some(key)).await.json();
    }
    for path in [
        "/",
        "/page/0/app/app.js",
        "/health",
        "/ready",
        "/openapi.json",
    ] {
        assert_eq!(get(path, None).await.status, 200, "{path} is open");
    }
    // The same key in the header of others.
    let request = Request::get("/v1/models").header("X-Api-Key", "second");
    let answer = Answer::of(server.send(request.body(Body::empty()).unwrap()).await).await;
    answer.json();
    // What does not exist says so without a key.
    assert_eq!(get("/nowhere", None).await.status, 404);
}

#[tokio::test]
async fn what_one_key_has_sent_is_no_prefix_of_anothers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "third\n").unwrap();
    let arguments = [
        "--api-key",
        "first",
        "--api-key",
        "second",
        "--api-key-file",
        file.to_str().unwrap(),
    ];
    let plays = (0..6).map(|_| Play::Say("x"));
    let server = Server::with_arguments(plays, &arguments);
    for key in ["first", "second", "third"] {
        for (path, body) in [
            ("/v1/completions", json!({"prompt": "x"})),
            ("/v1/jobs", json!({"prompt": "x"})),
        ] {
            let request = Request::post(path)
                .header("Content-Type", "application/json")
                .header("Authorization", format!("Bearer {key}"));
            let request = request.body(Body::from(body.to_string())).unwrap();
            Answer::of(server.send(request).await).await.json();
        }
    }
    let seen = server.script.seen.lock().unwrap();
    let namespaces: Vec<u64> = seen.iter().map(|seen| seen.namespace).collect();
    assert_eq!(namespaces.len(), 6);
    let each: Vec<u64> = namespaces.iter().copied().step_by(2).collect();
    assert_eq!(
        each,
        namespaces[1..]
            .iter()
            .copied()
            .step_by(2)
            .collect::<Vec<_>>()
    );
    assert!(each[0] != each[1] && each[1] != each[2] && each[0] != each[2]);
}

#[tokio::test]
async fn pages_of_others_reach_no_route() {
    let server = Server::new([]);
    let foreign: [&[(&str, &str)]; 4] = [
        &[("Origin", "https://evil.example")],
        &[
            ("Host", "localhost:8080"),
            ("Origin", "http://localhost:39301"),
        ],
        &[
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Mode", "no-cors"),
        ],
        &[
            ("Host", "attacker.example:8080"),
            ("Origin", "http://attacker.example:8080"),
        ],
    ];
    for route in worker::serve::all_routes::<llm_worker_rocm::server::App>().iter() {
        for lines in foreign {
            let path = route.path().replace("{id}", "x").replace("{*id}", "x");
            let mut request = Request::builder().method(route.method()).uri(&path);
            for (name, value) in lines {
                request = request.header(*name, *value);
            }
            let request = request.body(Body::from(json!({"prompt": "x"}).to_string()));
            let (status, code, message) = Answer::of(server.send(request.unwrap()).await)
                .await
                .error();
            assert_eq!(status, 403, "{path} {lines:?}");
            let option = match code.as_str() {
                "FOREIGN_HOST" => "--allowed-host",
                "FOREIGN_ORIGIN" => "--cors-origin",
                other => panic!("{other}"),
            };
            assert!(message.contains(option), "{message}");
        }
    }
    assert!(server.script.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn bodies() {
    let server = Server::with_arguments([Play::Say("x")], &["--max-body-bytes", "100"]);
    let post = |content_type: Option<&str>, body: String| {
        let mut request = Request::post("/v1/completions");
        if let Some(content_type) = content_type {
            request = request.header("Content-Type", content_type);
        }
        let request = request.body(Body::from(body)).unwrap();
        async { Answer::of(server.send(request).await).await }
    };
    let good = json!({"prompt": "x"}).to_string();
    post(None, good.clone()).await.json();
    let (status, _, message) = post(Some("text/plain"), good).await.error();
    assert!(
        status == 415 && message.contains("application/json"),
        "{message}"
    );
    for bad in [
        "",
        "{",
        "[]",
        "\"x\"",
        "{\"prompt\": \"x\"} x",
        "{\"prompt\": \"\\ud800\"}",
    ] {
        let (status, code, _) = post(Some("application/json"), bad.to_string())
            .await
            .error();
        assert_eq!((status, code.as_str()), (400, "INVALID_REQUEST"), "{bad}");
    }
    let long = json!({"prompt": "x".repeat(100)}).to_string();
    let (status, code, _) = post(Some("application/json"), long).await.error();
    assert_eq!((status, code.as_str()), (413, "BODY_TOO_LARGE"));
}

#[tokio::test]
async fn origins() {
    let origin = |server: Server, origin: &'static str| async move {
        let request = Request::get("/health")
            .header("Origin", origin)
            .body(Body::empty());
        let answer = Answer::of(server.send(request.unwrap()).await).await;
        answer
            .headers
            .get("access-control-allow-origin")
            .map(|value| value.to_str().unwrap().to_string())
    };
    let server = |arguments: &[&str]| Server::with_arguments([], arguments);
    assert_eq!(origin(server(&[]), "https://a.example").await, None);
    let one = ["--cors-origin", "https://a.example"];
    assert_eq!(
        origin(server(&one), "https://a.example").await.as_deref(),
        Some("https://a.example")
    );
    assert_eq!(origin(server(&one), "https://b.example").await, None);
    assert_eq!(
        origin(server(&["--cors-origin", "*"]), "https://b.example")
            .await
            .as_deref(),
        Some("*")
    );
}
