//! The contract of rbee's workers against scripts.

use crate::client::{app, text_model, Server};
use crate::script::{Play, Script};
use futures_util::future::join_all;
use llm_worker_rocm::engine::api::Failure;
use llm_worker_rocm::server::Loaded;
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::Duration;
use worker::serve::health;

fn job(fields: Value) -> Value {
    let mut body = json!({
        "operation": "infer", "hive_id": "h", "model": "any", "prompt": "Say hi", "max_tokens": 16, "temperature": 0.0, "stream": true,
    });
    let map = body.as_object_mut().unwrap();
    map.extend(fields.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_job_and_its_stream() {
    let server = Server::new([
        Play::Say("Hi!"),
        Play::Say("longer than 16 bytes"),
        Play::Say("a#"),
    ]);
    for (path, fields, tokens, out, reason) in [
        ("/v1/jobs", json!({}), vec!["H", "i", "!"], 4, "EOS"),
        (
            "/v1/inference",
            json!({"max_tokens": 2}),
            vec!["l", "o"],
            2,
            "MAX_TOKENS",
        ),
        (
            "/v1/jobs",
            json!({"stop": ["#"]}),
            vec!["a"],
            2,
            "STOP_SEQUENCE",
        ),
    ] {
        let created = server.post(path, &job(fields)).await.json();
        let id = created["job_id"].as_str().unwrap();
        let url = created["sse_url"].as_str().unwrap();
        assert_eq!(url, format!("{path}/{id}/stream"));
        let frames = server.get(url).await.frames();
        assert_eq!(frames[0]["type"], "started");
        assert_eq!(frames[0]["job_id"], id);
        assert_eq!(frames[0]["model"], "org/model");
        assert!(frames[0]["started_at"].as_str().unwrap().ends_with('Z'));
        let count = tokens.len();
        for (i, text) in tokens.iter().enumerate() {
            assert_eq!(frames[1 + i], json!({"type": "token", "t": text, "i": i}));
        }
        assert_eq!(frames[1 + count]["type"], "metrics");
        assert_eq!(frames[1 + count]["vram_bytes"], 0);
        assert!(frames[1 + count]["tokens_per_sec"].is_f64());
        let end = &frames[2 + count];
        assert_eq!(
            (&end["type"], &end["tokens_out"]),
            (&json!("end"), &json!(out))
        );
        assert_eq!(end["stop_reason"], reason);
        assert!(end["decode_time_ms"].is_u64());
        assert_eq!(frames.len(), 3 + count);
        // A stream is taken once.
        assert_eq!(server.get(url).await.status, 404);
    }
    assert_eq!(server.get("/v1/jobs/unknown/stream").await.status, 404);
}

#[tokio::test]
async fn limits_are_applied() {
    let server = Server::new([]);
    for (fields, word) in [
        (json!({"operation": "train"}), "operation"),
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": "x".repeat(32_769)}), "32768"),
        (json!({"prompt": 3}), "prompt"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"temperature": 2.5}), "temperature"),
        (json!({"temperature": -0.5}), "temperature"),
        (json!({"n": 2}), "one answer"),
    ] {
        let (status, code, message) = server.post("/v1/jobs", &job(fields)).await.error();
        assert_eq!((status, code.as_str()), (400, "INVALID_REQUEST"));
        assert!(message.contains(word), "{message}");
    }
}

#[tokio::test]
async fn failures_are_frames_with_codes() {
    for (failure, code) in [
        (Failure::OutOfMemory("x".into()), "VRAM_OOM"),
        (Failure::Stopping, "CANCELLED"),
        (Failure::Timeout(1), "TIMEOUT"),
        (Failure::Invalid("x".into()), "INVALID_REQUEST"),
        (Failure::Internal("x".into()), "INFERENCE_FAILED"),
        (Failure::DeviceLost("x".into()), "INFERENCE_FAILED"),
    ] {
        let message = failure.to_string();
        let server = Server::new([Play::SayAndFail("a", failure)]);
        let created = server.post("/v1/jobs", &job(json!({}))).await.json();
        let frames = server
            .get(created["sse_url"].as_str().unwrap())
            .await
            .frames();
        let error = json!({"type": "error", "code": code, "message": message});
        assert_eq!(*frames.last().unwrap(), error);
    }
}

#[tokio::test]
async fn jobs_that_nobody_takes_are_bounded() {
    let server = Server::new((0..256).map(|_| Play::SayAndHang("")));
    for _ in 0..256 {
        server.post("/v1/jobs", &job(json!({}))).await.json();
    }
    let refused = server.post("/v1/jobs", &job(json!({}))).await;
    assert_eq!(refused.error().0, 429);
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(server.script.held(), 256);
}

#[tokio::test]
async fn jobs_that_come_at_once_are_bounded_too() {
    let server = Server::new((0..256).map(|_| Play::SayAndHang("")));
    let body = job(json!({}));
    let created = join_all((0..300).map(|_| server.post("/v1/jobs", &body))).await;
    let taken = created.iter().filter(|answer| answer.status == 200).count();
    let refused = created.iter().filter(|answer| answer.status == 429).count();
    assert_eq!((taken, refused), (256, 44));
}

#[tokio::test]
async fn a_job_that_is_taken_or_refused_leaves_its_place() {
    let full = Failure::QueueFull {
        waiting: 1,
        retry_after: Duration::ZERO,
    };
    let plays = (0..256).flat_map(|_| [Play::Refuse(full.clone()), Play::Say("x")]);
    let server = Server::new(plays.chain([Play::Say("x")]));
    for _ in 0..256 {
        assert_eq!(
            server.post("/v1/jobs", &job(json!({}))).await.error().0,
            429
        );
        let created = server.post("/v1/jobs", &job(json!({}))).await.json();
        server.get(created["sse_url"].as_str().unwrap()).await;
    }
    server.post("/v1/jobs", &job(json!({}))).await.json();
}

#[tokio::test]
async fn info_and_heartbeat() {
    let server = Server::loading();
    let expected = |status: &str| {
        json!({
            "id": "worker-1", "model_id": "org/model", "device": "cpu", "port": 8080, "status": status,
            "implementation": "llm-worker-rocm", "version": env!("CARGO_PKG_VERSION"),
        })
    };
    assert_eq!(server.get("/info").await.json(), expected("starting"));
    let server = Server::new([]);
    assert_eq!(server.get("/info").await.json(), expected("ready"));
    server.script.status.lock().unwrap().waiting = 1;
    assert_eq!(server.get("/info").await.json(), expected("busy"));
    let beat = health::heartbeat(&*server.app);
    assert_eq!(beat["worker"], expected("busy"));
    assert!(beat["timestamp"].as_str().unwrap().contains('T'));
}

#[tokio::test]
async fn a_worker_is_busy_when_a_request_would_have_to_wait() {
    let (app, script) = (app(), Arc::new(Script::default()));
    let mut model = text_model(script.clone());
    model.parallel = 2;
    app.frame.serve(Loaded {
        text: Some(Arc::new(model)),
        ..Loaded::default()
    });
    for (running, waiting, status) in [
        (0, 0, "ready"),
        (1, 0, "ready"),
        (2, 0, "busy"),
        (0, 1, "busy"),
    ] {
        {
            let mut figures = script.status.lock().unwrap();
            (figures.running, figures.waiting) = (running, waiting);
        }
        assert_eq!(health::worker_info(&*app)["status"], status);
    }
}
